//! One long call as three words of the trace.
//!
//! ```text
//! word 0   start in ticks, since the recording's start
//! word 1   bits 0–31 duration in ticks, 32–47 site, 48–63 thread
//! word 2   bits 0–39 size, 40–43 operation, 44–45 overlap (none, down, up), 46–51 binary logarithm of its distance,
//!          52 and 53 destination and source aligned to 64 bytes, 54–55 temperature (unknown, hot, cold, fresh),
//!          56–63 long calls in flight
//! ```

use crate::operation::{Direction, Operation, Temperature};

/// The site's number in an event of an unknown site.
pub(crate) const NO_SITE: u16 = u16::MAX;

/// A long call in the units of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RawEvent {
    /// Since the recording's start.
    pub(crate) start_ticks: u64,
    /// At most `u32::MAX`, which also stands for longer calls.
    pub(crate) duration_ticks: u32,
    /// Index of the call site, or [`NO_SITE`].
    pub(crate) site: u16,
    /// Index of the thread's table.
    pub(crate) thread: u16,
    /// At most 2^40 - 1, which also stands for longer calls.
    pub(crate) len: u64,
    /// The function.
    pub(crate) operation: Operation,
    /// Direction, and the binary logarithm of the distance, rounded down (0 for the distance 0).
    pub(crate) overlap: Option<(Direction, u8)>,
    /// The destination is a multiple of 64.
    pub(crate) destination_aligned: bool,
    /// The source is a multiple of 64.
    pub(crate) source_aligned: bool,
    /// `None` if there is no calibration.
    pub(crate) temperature: Option<Temperature>,
    /// Long calls in flight in the process when this one began, itself included; at most 255.
    pub(crate) in_flight: u8,
}

/// The largest size of an event.
pub(crate) const MOST_LEN: u64 = (1 << 40) - 1;

impl RawEvent {
    pub(crate) fn pack(&self) -> [u64; 3] {
        let place = u64::from(self.duration_ticks) | u64::from(self.site) << 32 | u64::from(self.thread) << 48;
        let (overlap, distance) =
            self.overlap.map_or((0, 0), |(direction, log)| (1 + direction as u64, u64::from(log)));
        let temperature = self.temperature.map_or(0, |temperature| 1 + temperature as u64);
        let what = self.len.min(MOST_LEN)
            | (self.operation as u64) << 40
            | overlap << 44
            | (distance & 63) << 46
            | u64::from(self.destination_aligned) << 52
            | u64::from(self.source_aligned) << 53
            | temperature << 54
            | u64::from(self.in_flight) << 56;
        [self.start_ticks, place, what]
    }

    /// Reads the words of any author; `None` if they are no event.
    pub(crate) fn unpack([start_ticks, place, what]: [u64; 3]) -> Option<RawEvent> {
        let bits = |word: u64, from: u32, count: u32| word >> from & ((1 << count) - 1);
        let small = |word, from, count| usize::try_from(bits(word, from, count)).ok();
        let overlap = match small(what, 44, 2)? {
            0 => None,
            number => Some((*Direction::ALL.get(number - 1)?, u8::try_from(bits(what, 46, 6)).ok()?)),
        };
        let temperature = match small(what, 54, 2)? {
            0 => None,
            number => Some(*Temperature::ALL.get(number - 1)?),
        };
        Some(RawEvent {
            start_ticks,
            duration_ticks: u32::try_from(bits(place, 0, 32)).ok()?,
            site: u16::try_from(bits(place, 32, 16)).ok()?,
            thread: u16::try_from(bits(place, 48, 16)).ok()?,
            len: bits(what, 0, 40),
            operation: *Operation::ALL.get(small(what, 40, 4)?)?,
            overlap,
            destination_aligned: bits(what, 52, 1) == 1,
            source_aligned: bits(what, 53, 1) == 1,
            temperature,
            in_flight: u8::try_from(bits(what, 56, 8)).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn words_are_an_event_that_has_these_words_or_none(words in any::<[u64; 3]>()) {
            let Some(event) = RawEvent::unpack(words) else { return Ok(()) };
            // The distance of ranges that do not overlap is not kept.
            let kept = if event.overlap.is_none() { !(63 << 46) } else { u64::MAX };
            prop_assert_eq!(event.pack(), [words[0], words[1], words[2] & kept]);
        }
    }

    #[test]
    fn every_field_comes_back() {
        let event = RawEvent {
            start_ticks: 1 << 50,
            duration_ticks: 77,
            site: NO_SITE,
            thread: 3,
            len: MOST_LEN,
            operation: Operation::StringCopy,
            overlap: Some((Direction::Up, 39)),
            destination_aligned: true,
            source_aligned: false,
            temperature: Some(Temperature::Fresh),
            in_flight: 255,
        };
        assert_eq!(RawEvent::unpack(event.pack()), Some(event));
        let none = RawEvent { overlap: None, temperature: None, operation: Operation::Memcpy, ..event };
        assert_eq!(RawEvent::unpack(none.pack()), Some(none));
    }
}
