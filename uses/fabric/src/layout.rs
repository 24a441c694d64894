//! Where the parts of a connection's memory are.
//!
//! ```text
//! page 0          the receiver's count of taken messages, the sender's count of taken answers
//! message ring    entries from the sender
//! answer ring     entries from the receiver
//! payload area    bytes of eager messages up to a KiB that do not fit in their entry
//! slots           pieces of longer messages
//! long payloads   bytes of longer eager messages
//! ```
//!
//! The areas of payloads are used in turn. Short ones stay in the caches, since their area is small. Long ones have an
//! area that exceeds a core's cache: near cores then fetch the lines from the cache that they share, which takes less
//! time than from each other's.

use crate::config::Config;
use crate::entry::INLINE_BYTES;
use crate::error::FabricError;
use crate::ring::ENTRY_WORDS;
use telpher_mem::PAGE_BYTES;

/// Bytes of a cache line, to which payload is aligned.
pub(crate) const LINE_BYTES: u64 = 64;
/// The longest payload in the area for short ones. Source: chosen; four of them fit in the smallest area.
pub(crate) const SHORT_PAYLOAD_BYTES: u32 = 1 << 10;
/// Bytes of a ring's entry.
const ENTRY_BYTES: u64 = (ENTRY_WORDS * size_of::<u64>()) as u64;
/// The position of the count of taken messages.
pub(crate) const MESSAGES_TAKEN: u64 = 0;
/// The position of the count of taken answers. The lines of the two counts are not neighbours, since some processors
/// prefetch lines in pairs.
pub(crate) const ANSWERS_TAKEN: u64 = 128;

/// The sizes of a connection. The sender chooses them, and the receiver checks them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    pub(crate) ring_entries: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) long_payload_bytes: u32,
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) eager_bytes: u32,
}

/// The limits of one size.
struct Rule {
    what: &'static str,
    value: u32,
    least: u32,
    most: u32,
    is_power_of_two: bool,
}

impl Sizes {
    /// Takes the sizes of a configuration.
    pub(crate) fn of(config: &Config) -> Result<Sizes, FabricError> {
        let sizes = Sizes {
            ring_entries: config.ring_entries,
            payload_bytes: config.payload_bytes,
            long_payload_bytes: config.long_payload_bytes,
            slots: config.slots,
            slot_bytes: config.slot_bytes,
            eager_bytes: config.eager_bytes,
        };
        sizes.check()?;
        Ok(sizes)
    }

    /// Checks the limits. They bound the memory that a peer can make this process map.
    pub(crate) fn check(&self) -> Result<(), FabricError> {
        let rule = |what, value, least, most| Rule { what, value, least, most, is_power_of_two: true };
        // A message does not wrap around the end of the area: it starts at the beginning, and the bytes before the end
        // stay unused. The receiver reports free bytes in quarters. So a message of a quarter always finds room at
        // last.
        let most_eager = self.long_payload_bytes / 4;
        #[allow(clippy::cast_possible_truncation, reason = "32")]
        let rules = [
            rule("number of ring entries", self.ring_entries, 8, 1 << 16),
            rule("number of bytes for short payloads", self.payload_bytes, 4 * SHORT_PAYLOAD_BYTES, 64 << 20),
            rule("number of bytes for long payloads", self.long_payload_bytes, 4 << 10, 64 << 20),
            rule("number of slots", self.slots, 2, 256),
            rule("number of bytes of a slot", self.slot_bytes, 4 << 10, 4 << 20),
            Rule {
                is_power_of_two: false,
                ..rule("number of bytes of an eager message", self.eager_bytes, INLINE_BYTES as u32, most_eager)
            },
        ];
        for Rule { what, value, least, most, is_power_of_two } in rules {
            if value < least || value > most || (is_power_of_two && !value.is_power_of_two()) {
                return Err(FabricError::WrongSize { what, value, least, most, is_power_of_two });
            }
        }
        Ok(())
    }

    fn ring_bytes(&self) -> u64 {
        (u64::from(self.ring_entries) * ENTRY_BYTES).next_multiple_of(PAGE_BYTES)
    }

    pub(crate) fn messages(&self) -> u64 {
        PAGE_BYTES
    }

    pub(crate) fn answers(&self) -> u64 {
        self.messages() + self.ring_bytes()
    }

    pub(crate) fn payload(&self) -> u64 {
        self.answers() + self.ring_bytes()
    }

    pub(crate) fn slots_start(&self) -> u64 {
        self.payload() + u64::from(self.payload_bytes)
    }

    fn long_payload(&self) -> u64 {
        self.slots_start() + u64::from(self.slots) * u64::from(self.slot_bytes)
    }

    /// Returns the position of a slot; `None` if there is none with this index.
    #[inline]
    pub(crate) fn slot(&self, index: u16) -> Option<u64> {
        let index = u32::from(index);
        (index < self.slots).then(|| self.slots_start() + u64::from(index) * u64::from(self.slot_bytes))
    }

    /// Returns the most bytes of an atomic operation: its operands and as many words to compare travel in the ring, and
    /// its results in a slot.
    pub(crate) fn atomic_bytes(&self) -> u64 {
        u64::from((self.eager_bytes / 2).min(self.slot_bytes))
    }

    /// Returns the bytes of the whole memory.
    pub(crate) fn total(&self) -> u64 {
        self.long_payload() + u64::from(self.long_payload_bytes)
    }
}

/// Bytes of both areas that payloads were given so far, including those that stay unused before the end of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Given {
    short: u64,
    long: u64,
}

/// Chooses where each payload goes. Both sides handle the same messages in the same order and compute the same places,
/// so no position is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadPlaces {
    short: Area,
    long: Area,
    given: Given,
}

/// An area of payloads in a connection's memory.
#[derive(Clone, Copy, Debug)]
struct Area {
    start: u64,
    capacity: u64,
}

impl Area {
    /// Returns the position of the next payload, and what is given afterwards: whole cache lines, all before the end of
    /// the area.
    #[inline]
    fn next(&self, given: u64, len: u32) -> (u64, u64) {
        let bytes = u64::from(len).next_multiple_of(LINE_BYTES);
        let at = given & (self.capacity - 1);
        let skipped = if at + bytes > self.capacity { self.capacity - at } else { 0 };
        (self.start + ((given + skipped) & (self.capacity - 1)), given + skipped + bytes)
    }
}

impl PayloadPlaces {
    pub(crate) fn new(sizes: &Sizes) -> PayloadPlaces {
        PayloadPlaces {
            short: Area { start: sizes.payload(), capacity: sizes.payload_bytes.into() },
            long: Area { start: sizes.long_payload(), capacity: sizes.long_payload_bytes.into() },
            given: Given::default(),
        }
    }

    /// Returns the bytes that were given so far.
    #[inline]
    pub(crate) fn given(&self) -> Given {
        self.given
    }

    /// Returns the position of the next payload in the connection's memory, and what is given afterwards.
    #[inline]
    pub(crate) fn next(&self, len: u32) -> (u64, Given) {
        if len <= SHORT_PAYLOAD_BYTES {
            let (at, short) = self.short.next(self.given.short, len);
            (at, Given { short, ..self.given })
        } else {
            let (at, long) = self.long.next(self.given.long, len);
            (at, Given { long, ..self.given })
        }
    }

    /// Records what `next` has returned.
    #[inline]
    pub(crate) fn advance(&mut self, given: Given) {
        self.given = given;
    }

    /// True if the bytes up to `given` fit in the areas, of which those up to `released` are free again.
    #[inline]
    pub(crate) fn has_room(&self, given: Given, released: Given) -> bool {
        given.short - released.short <= self.short.capacity && given.long - released.long <= self.long.capacity
    }

    /// True if the sender should learn that what is given so far is free: it knows of `published`, and a quarter of an
    /// area is free beyond that.
    #[inline]
    pub(crate) fn has_quarter(&self, published: Given) -> bool {
        self.given.short - published.short >= self.short.capacity / 4
            || self.given.long - published.long >= self.long.capacity / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_are_aligned() {
        for (ring_entries, slots) in [(8, 2), (512, 64), (1 << 16, 256)] {
            let sizes = Sizes { ring_entries, slots, ..Sizes::of(&Config::default()).unwrap() };
            sizes.check().unwrap();
            let ring = u64::from(ring_entries) * 64;
            assert!(ANSWERS_TAKEN + 8 <= sizes.messages() && sizes.messages() + ring <= sizes.answers());
            assert!(sizes.answers() + ring <= sizes.payload());
            assert_eq!(sizes.slot(0), Some(sizes.payload() + u64::from(sizes.payload_bytes)));
            let last = u16::try_from(slots - 1).unwrap();
            assert_eq!(sizes.slot(last).unwrap() + u64::from(sizes.slot_bytes), sizes.long_payload());
            assert_eq!(sizes.long_payload() + u64::from(sizes.long_payload_bytes), sizes.total());
            assert_eq!((sizes.slot(last + 1), sizes.slot(u16::MAX)), (None, None));
            assert!(
                [sizes.messages(), sizes.answers(), sizes.payload(), sizes.total()].iter().all(|at| at % 4096 == 0)
            );
        }
    }

    #[test]
    fn every_size_outside_its_limits_is_refused() {
        let good = Sizes::of(&Config::default()).unwrap();
        for ring_entries in [0, 1, 4, 513, 1 << 17, u32::MAX] {
            assert!(Sizes { ring_entries, ..good }.check().is_err());
        }
        for payload_bytes in [0, 1 << 11, 5000, 128 << 20, u32::MAX] {
            assert!(Sizes { payload_bytes, ..good }.check().is_err());
        }
        for long_payload_bytes in [0, 1 << 11, 5000, 16 << 10, 128 << 20, u32::MAX] {
            assert!(Sizes { long_payload_bytes, ..good }.check().is_err());
        }
        for slots in [0, 1, 3, 512, u32::MAX] {
            assert!(Sizes { slots, ..good }.check().is_err());
        }
        for slot_bytes in [0, 1 << 11, 5000, 8 << 20, u32::MAX] {
            assert!(Sizes { slot_bytes, ..good }.check().is_err());
        }
        for eager_bytes in [0, 31, (256 << 10) + 1, u32::MAX] {
            assert!(Sizes { eager_bytes, ..good }.check().is_err());
        }
        assert!(Sizes { eager_bytes: 256 << 10, ..good }.check().is_ok());
    }

    #[test]
    fn payload_stays_inside_and_never_wraps_within_a_message() {
        let good = Sizes::of(&Config::default()).unwrap();
        let sizes = Sizes { payload_bytes: 4096, long_payload_bytes: 8192, eager_bytes: 2048, ..good };
        let mut places = PayloadPlaces::new(&sizes);
        let mut random = telpher_os::Random::new(5);
        // The ends of the last payloads.
        let mut last = [sizes.payload(), sizes.long_payload()];
        for _ in 0..10_000 {
            let len = u32::try_from(33 + random.below(2016)).unwrap();
            let is_long = len > SHORT_PAYLOAD_BYTES;
            let (start, capacity) = if is_long { (sizes.long_payload(), 8192) } else { (sizes.payload(), 4096) };
            let (at, given) = places.next(len);
            assert!(at % 64 == 0 && at >= start && at + u64::from(len) <= start + capacity);
            let last = &mut last[usize::from(is_long)];
            assert!(at == *last || at == start, "payload follows payload, or begins at the start");
            let (short, long) = (given.short - places.given().short, given.long - places.given().long);
            assert!(if is_long { short == 0 && long < 2 * 2048 + 64 } else { long == 0 && short < 2 * 1024 + 64 });
            *last = at + u64::from(len).next_multiple_of(64);
            if *last == start + capacity {
                *last = start;
            }
            places.advance(given);
        }
    }
}
