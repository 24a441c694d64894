//! Sharing out: from which size on one operation is cut into parts that are in flight at the same time, over how many queues,
//! and whether the thread that waits for it does some of them.

use crate::ask::Ask;
use std::ops::RangeInclusive;

/// How one long operation is shared out.
///
/// That holds for a job, for an operation of a scope and for a member of a batch alike.
///
/// Only operations whose parts can be done in any order are: copies that do not overlap, fills, dualcasts, flushes and
/// comparisons. The others (checksums, DIF, deltas, overlapping copies) go on from where the part before ended.
///
/// *Sources.* A single device stays below the memory's bandwidth, two reach nearly all of it and more gain little (*Data movement
/// with DSA*, §3.2.3, Figures 3.6 and 3.7: "splitting tasks over more than two DSAs yields only marginal gains"); small tasks had
/// better be distributed whole (§3.3: "task size should be at or above 1 MiB"; for many smaller ones "splitting a copy might
/// prove disadvantageous"). Those are the defaults.
///
/// ```
/// use telpher_mover::{Policy, Split};
/// let four = Split { ways: 4, ..Split::default() };
/// let policy = Policy { split: four, ..Policy::default() };
/// assert_eq!(policy.split.above, 1 << 20);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// Bytes from which an operation is cut into parts. One that is longer than a queue's largest transfer always is.
    pub above: u64,
    /// Queues its parts go to at most, those of different devices first; 0 counts as 1. The policy's
    /// [`Route`](crate::Route) says which come first.
    pub ways: u32,
    /// Whether the thread that waits for it ([`Job::wait`](crate::Job::wait), [`copy_slices`](crate::Mover::copy_slices), the
    /// end of a [`Scope`](crate::Scope)) does parts of it meanwhile.
    pub hybrid: bool,
}

impl Default for Split {
    fn default() -> Self {
        Split { above: 1 << 20, ways: 2, hybrid: false }
    }
}

impl Split {
    /// Everything stays whole, as far as the queues' largest transfer allows.
    pub const NONE: Split = Split { above: u64::MAX, ways: 1, hybrid: false };
}

/// Parts each queue has at once, so that its device finds the next one there when it has done one.
pub(crate) const DEPTH: usize = 2;

/// Parts shorter than this are not worth a descriptor.
/// Source: a device is at its full rate from here on (Kuper et al., ASPLOS 2024, Figures 2 and 3).
const LEAST: u64 = 64 << 10;

/// A part's shortest and longest while the CPU takes its share, for a device and for the CPU: long, because two that copy pieces
/// in turns reach less of the memory's bandwidth than two that copy long stretches, and short towards the end, because the last
/// part of either decides how long the other has nothing to do. The CPU's are the shorter ones: between them it looks at the
/// devices' records. Source: measured (AMD EPYC, 2 cores, a mebibyte by a model with one engine and the waiting thread, beside the
/// same shared out by halves: 0.95 of it with these, 0.91 with a sixth of what is left for the device and 64 KiB for the CPU).
const SHARED: [RangeInclusive<u64>; 2] = [32 << 10..=512 << 10, 32 << 10..=256 << 10];

/// Results this long stay in no cache: the CPU's parts of them are long enough to be written past it, as the platform's `memcpy`
/// does with one that long. Source: assumed; the last-level cache of the machines at hand.
pub(crate) const BULK: u64 = 32 << 20;

/// Bytes of an ask not yet given to anybody: devices take from the front, the CPU from the end.
///
/// Nothing is decided beforehand: whoever is done takes the next part, and parts get shorter as less is left (guided
/// self-scheduling), so that all end at about the same time whatever their rates turn out to be. A share computed from estimated
/// rates would be off by as much as the estimates are, and by every page fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Middle {
    head: u64,
    tail: u64,
    /// What the first byte's address leaves when divided by a page.
    phase: u64,
}

/// A page: parts meet at its borders, so that no two of them write the same page or line.
const PAGE: u64 = telpher_mem::PAGE_BYTES;

impl Middle {
    pub(crate) fn of(ask: &Ask) -> Self {
        Middle { head: 0, tail: ask.len(), phase: ask.anchor() % PAGE }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head >= self.tail
    }

    fn len(&self) -> u64 {
        self.tail.saturating_sub(self.head)
    }

    /// Nothing from `at` on is needed any more.
    pub(crate) fn cut_off(&mut self, at: u64) {
        self.tail = self.tail.min(at);
    }

    /// The last border at or before `at` that lies behind `after`; `at` itself if there is none.
    fn border(&self, at: u64, after: u64) -> u64 {
        let over = (at + self.phase) % PAGE;
        if at.saturating_sub(over) > after { at - over } else { at }
    }

    /// The next part for a device, as start and length: one of `ways` queues, which takes `longest` at most.
    pub(crate) fn take_front(&mut self, ways: usize, longest: u64, shared_with_cpu: bool) -> Option<(u64, u64)> {
        if self.is_empty() {
            return None;
        }
        let left = self.len();
        let len = match (shared_with_cpu, ways) {
            (true, _) => Self::shared(left, ways, &SHARED[0]),
            // One queue: nobody to share with.
            (false, ..=1) => left,
            (false, _) => (left / (ways * DEPTH) as u64).max(LEAST),
        };
        let len = len.min(longest).max(1);
        let start = self.head;
        // What would be left is not worth a part of its own.
        let end = if left <= longest && left < len.saturating_add(LEAST / 2) {
            self.tail
        } else {
            self.border(start + len, start)
        };
        self.head = end;
        Some((start, end - start))
    }

    /// Length of a part of what is left, for one of `ways` queues or the CPU.
    fn shared(left: u64, ways: usize, bounds: &RangeInclusive<u64>) -> u64 {
        (left / (2 * ways.max(1) * DEPTH) as u64).clamp(*bounds.start(), *bounds.end())
    }

    /// Gives back the part that was taken from the front last.
    pub(crate) fn put_back(&mut self, start: u64) {
        self.head = start;
    }

    /// The next part for the CPU beside `ways` queues; its whole is bulk or not.
    pub(crate) fn take_back(&mut self, ways: usize, bulk: bool) -> Option<(u64, u64)> {
        if self.is_empty() {
            return None;
        }
        let left = self.len();
        let end = self.tail;
        let len = if bulk {
            (left / 8).clamp(LEAST, telpher_ops::STREAM_BYTES as u64)
        } else {
            Self::shared(left, ways, &SHARED[1])
        };
        // Never shorter than meant, so that what is meant to be streamed is.
        let start = if left <= len { self.head } else { self.border(end - len, self.head) };
        self.tail = start;
        Some((start, end - start))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use telpher_abi::Descriptor;

    fn middle(dst: u64, len: u64) -> Middle {
        Middle::of(&Ask::new(Descriptor::fill(0, dst, 0), len))
    }

    #[test]
    fn every_byte_is_given_once_whoever_comes_and_parts_meet_at_pages() {
        for (dst, len) in [(0, 1), (4095, 2), (100, 5000), (0, 1 << 20), (7, (3 << 20) + 5), (4096, 100 << 20)] {
            for (ways, longest, hybrid) in
                [(1, 4096, false), (1, 2 << 20, true), (2, 2 << 20, false), (3, 100_000, true)]
            {
                let mut middle = middle(dst, len);
                let (mut front, mut back, mut turn) = (0, len, 0);
                let aligned = |at: u64| at == 0 || at == len || (dst + at).is_multiple_of(PAGE);
                while !middle.is_empty() {
                    turn += 1;
                    if hybrid && turn % 3 == 0 {
                        let (start, len) = middle.take_back(ways, len >= BULK).unwrap();
                        assert_eq!((start + len, start >= front, len > 0), (back, true, true));
                        back = start;
                    } else {
                        let (start, len) = middle.take_front(ways, longest, hybrid).unwrap();
                        assert_eq!((start, (1..=longest).contains(&len)), (front, true), "{len}");
                        front = start + len;
                    }
                    assert!(aligned(front) && aligned(back), "{front} and {back} of {len} at {dst}");
                }
                assert_eq!(front, back);
                assert_eq!((middle.take_front(ways, longest, hybrid), middle.take_back(ways, false)), (None, None));
            }
        }
    }

    #[test]
    fn parts_get_shorter_as_less_is_left() {
        let mut middle = middle(0, 8 << 20);
        let parts: Vec<u64> = std::iter::from_fn(|| middle.take_front(2, 2 << 20, false)).map(|(_, len)| len).collect();
        // The last takes with it what would not be worth a part.
        let (last, others) = parts.split_last().unwrap();
        assert!(others.windows(2).all(|pair| pair[0] >= pair[1]), "{parts:?}");
        assert_eq!(parts[0], 2 << 20);
        assert!(*last <= 2 * LEAST, "{parts:?}");
    }

    #[test]
    fn what_the_cpu_takes_is_no_longer_than_what_a_device_has_meanwhile() {
        for (ways, mebibytes) in [(1, 1), (1, 16), (3, 1), (3, 8)] {
            let mut middle = middle(0, mebibytes << 20);
            while !middle.is_empty() {
                let aloft: u64 =
                    (0..DEPTH).filter_map(|_| middle.take_front(ways, 2 << 20, true)).map(|part| part.1).sum();
                let (_, len) = middle.take_back(ways, false).unwrap_or_default();
                assert!(len <= aloft, "{len} beside {aloft}");
            }
        }
    }

    #[test]
    fn bulk_is_streamed_while_there_is_much_of_it() {
        let mut middle = middle(123, BULK);
        let (_, len) = middle.take_back(1, true).unwrap();
        assert!(len >= telpher_ops::STREAM_BYTES as u64);
    }
}
