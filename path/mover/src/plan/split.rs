//! Splitting: from which size on one operation is cut into parts that are in flight at the same time, over how many
//! queues, and whether the waiting thread does some of them.

use crate::plan::request::Request;
use std::ops::RangeInclusive;

/// How one long operation is split.
///
/// Applies equally to a job, to an operation of a scope and to a member of a batch.
///
/// Only operations whose parts can be done in any order are split: copies that do not overlap, fills, dualcasts,
/// flushes and comparisons. The others (checksums, DIF, deltas, overlapping copies, numbers and lists) go on from where
/// the part before ended.
///
/// *Sources.* A single device stays below the memory's bandwidth, two reach nearly all of it and more gain little
/// (*Data movement with DSA*, §3.2.3, Figures 3.6 and 3.7: "splitting tasks over more than two DSAs yields only
/// marginal gains"). Small tasks are better distributed whole (§3.3: "task size should be at or above 1 MiB"; for many
/// smaller ones "splitting a copy might prove disadvantageous"). These are the defaults.
///
/// ```
/// use telpher_mover::{Policy, Split};
/// let four = Split { ways: 4, ..Split::default() };
/// let policy = Policy { split: four, ..Policy::default() };
/// assert_eq!(policy.split.above, 1 << 20);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// Bytes from which an operation is cut into parts. An operation that is longer than a queue's largest transfer
    /// always is.
    pub above: u64,
    /// The most queues that its parts go to, those of different devices first; 0 counts as 1. The policy's
    /// [`Route`](crate::Route) decides which come first.
    pub ways: u32,
    /// Whether the thread that waits for it ([`Job::wait`](crate::Job::wait),
    /// [`copy_slices`](crate::Mover::copy_slices), the end of a [`Scope`](crate::Scope)) does parts of it meanwhile.
    pub hybrid: bool,
}

impl Default for Split {
    fn default() -> Self {
        Split { above: 1 << 20, ways: 2, hybrid: false }
    }
}

impl Split {
    /// Every operation stays whole, as far as the queues' largest transfer allows.
    pub const NONE: Split = Split { above: u64::MAX, ways: 1, hybrid: false };
}

/// Parts that each queue has at once, so that its device finds the next one when it has finished one.
pub(crate) const DEPTH: usize = 2;

/// Parts shorter than this are not worth a descriptor.
/// Source: a device is at its full rate from here on (Kuper et al., ASPLOS 2024, Figures 2 and 3).
const LEAST: u64 = 64 << 10;

/// The shortest and longest part while the CPU takes a share: for a device, then for the CPU. Parts are long, because
/// two executors that copy alternating chunks reach less of the memory's bandwidth than two that copy long ranges. They
/// get short towards the end, because the last part of one executor decides how long the other is idle. The CPU's parts
/// are shorter, because it checks the devices' records between them. Source: measured (AMD EPYC, 2 cores; one mebibyte
/// by a model with one engine and the waiting thread, relative to a split in halves: 0.95 with these limits, 0.91 with
/// a sixth of the rest for the device and 64 KiB for the CPU).
const SHARED: [RangeInclusive<u64>; 2] = [32 << 10..=512 << 10, 32 << 10..=256 << 10];

/// Results this long stay in no cache. The CPU's parts of them are long enough to bypass it, as the platform's `memcpy`
/// does for such lengths. Source: assumed; the last-level cache of the machines at hand.
pub(crate) const BULK: u64 = 32 << 20;

/// The bytes of a request that are not handed out yet: devices take from the front, the CPU from the end.
///
/// Nothing is decided in advance: each executor takes the next part when it is done, and parts get shorter as less is
/// left (guided self-scheduling). So all end at about the same time, whatever their rates are. Shares computed from
/// estimated rates would be wrong by the error of the estimates, and by every page fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remainder {
    head: u64,
    tail: u64,
    /// The first byte's address modulo the page size.
    phase: u64,
}

/// A page: parts meet at page borders, so that no two of them write the same page or cache line.
const PAGE: u64 = telpher_mem::PAGE_BYTES;

impl Remainder {
    pub(crate) fn of(request: &Request) -> Self {
        Remainder { head: 0, tail: request.len(), phase: request.anchor() % PAGE }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head >= self.tail
    }

    fn len(&self) -> u64 {
        self.tail.saturating_sub(self.head)
    }

    /// Drops everything from `at` on.
    pub(crate) fn cut_off(&mut self, at: u64) {
        self.tail = self.tail.min(at);
    }

    /// Returns the last page border at or before `at` that lies behind `after`; `at` itself if there is none.
    fn border(&self, at: u64, after: u64) -> u64 {
        let over = (at + self.phase) % PAGE;
        if at.saturating_sub(over) > after { at - over } else { at }
    }

    /// Takes the next part for a device beside the CPU, as [`Remainder::take_front`] does. If the queue `is_busy` with
    /// an earlier part, it does not get the last one: the waiting thread is free and takes it, or the queue itself when
    /// it has nothing else. So a short operation, which has two parts, is shared by both.
    pub(crate) fn take_shared(&mut self, ways: usize, longest: u64, is_busy: bool) -> Option<(u64, u64)> {
        let before = self.head;
        let part = self.take_front(ways, longest, true);
        if is_busy && self.is_empty() {
            self.put_back(before);
            return None;
        }
        part
    }

    /// Takes the next part for a device, as start and length. The device has one of `ways` queues, which takes
    /// `longest` at most.
    pub(crate) fn take_front(&mut self, ways: usize, longest: u64, shared_with_cpu: bool) -> Option<(u64, u64)> {
        if self.is_empty() {
            return None;
        }
        let left = self.len();
        let len = match (shared_with_cpu, ways) {
            (true, _) => Self::shared(left, ways, &SHARED[0]),
            // One queue: there is no other executor.
            (false, ..=1) => left,
            (false, _) => (left / (ways * DEPTH) as u64).max(LEAST),
        };
        let len = len.min(longest).max(1);
        let start = self.head;
        // A rest that is not worth a part of its own is included.
        let end = if left <= longest && left < len.saturating_add(LEAST / 2) {
            self.tail
        } else {
            self.border(start + len, start)
        };
        self.head = end;
        Some((start, end - start))
    }

    /// Returns the length of the next part, for one of `ways` queues or the CPU.
    fn shared(left: u64, ways: usize, bounds: &RangeInclusive<u64>) -> u64 {
        (left / (2 * ways.max(1) * DEPTH) as u64).clamp(*bounds.start(), *bounds.end())
    }

    /// Puts back the part that was taken from the front last.
    pub(crate) fn put_back(&mut self, start: u64) {
        self.head = start;
    }

    /// Takes the next part for the CPU beside `ways` queues; `bulk` says whether the whole bypasses the cache.
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
        // Never shorter than intended, so that parts meant to bypass the cache are long enough. A rest that is not
        // worth a part of its own is included: pages whose border the device's part did not reach.
        let start = if left < len + LEAST / 4 { self.head } else { self.border(end - len, self.head) };
        self.tail = start;
        Some((start, end - start))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use telpher_abi::Descriptor;

    fn remainder(dst: u64, len: u64) -> Remainder {
        Remainder::of(&Request::new(Descriptor::fill(0, dst, 0), len))
    }

    #[test]
    fn every_byte_is_handed_out_once_and_parts_meet_at_page_borders() {
        for (dst, len) in [(0, 1), (4095, 2), (100, 5000), (0, 1 << 20), (7, (3 << 20) + 5), (4096, 100 << 20)] {
            for (ways, longest, hybrid) in
                [(1, 4096, false), (1, 2 << 20, true), (2, 2 << 20, false), (3, 100_000, true)]
            {
                let mut remainder = remainder(dst, len);
                let (mut front, mut back, mut turn) = (0, len, 0);
                let aligned = |at: u64| at == 0 || at == len || (dst + at).is_multiple_of(PAGE);
                while !remainder.is_empty() {
                    turn += 1;
                    if hybrid && turn % 3 == 0 {
                        let (start, len) = remainder.take_back(ways, len >= BULK).unwrap();
                        assert_eq!((start + len, start >= front, len > 0), (back, true, true));
                        back = start;
                    } else {
                        let (start, len) = remainder.take_front(ways, longest, hybrid).unwrap();
                        assert_eq!((start, (1..=longest).contains(&len)), (front, true), "{len}");
                        front = start + len;
                    }
                    assert!(aligned(front) && aligned(back), "{front} and {back} of {len} at {dst}");
                }
                assert_eq!(front, back);
                assert_eq!(
                    (remainder.take_front(ways, longest, hybrid), remainder.take_back(ways, false)),
                    (None, None)
                );
            }
        }
    }

    #[test]
    fn parts_get_shorter_as_less_is_left() {
        let mut remainder = remainder(0, 8 << 20);
        let parts: Vec<u64> =
            std::iter::from_fn(|| remainder.take_front(2, 2 << 20, false)).map(|(_, len)| len).collect();
        // The last part includes a rest that is not worth a part of its own.
        let (last, others) = parts.split_last().unwrap();
        assert!(others.windows(2).all(|pair| pair[0] >= pair[1]), "{parts:?}");
        assert_eq!(parts[0], 2 << 20);
        assert!(*last <= 2 * LEAST, "{parts:?}");
    }

    #[test]
    fn a_busy_queue_leaves_the_last_part_to_the_waiting_thread_or_takes_it_when_it_is_idle() {
        for (dst, len) in [(0, LEAST), (16, LEAST), (4095, LEAST + 4096)] {
            let mut remainder = remainder(dst, len);
            let (start, first) = remainder.take_shared(1, 2 << 20, false).unwrap();
            assert!(start == 0 && first.abs_diff(len / 2) < 2 * PAGE, "{first} of {len} at {dst}");
            assert_eq!(remainder.take_shared(1, 2 << 20, true), None, "{len} at {dst}");
            let mut other = remainder;
            assert_eq!(other.take_shared(1, 2 << 20, false), Some((first, len - first)), "the queue is idle");
            let of_cpu: u64 = std::iter::from_fn(|| remainder.take_back(1, false)).map(|(_, len)| len).sum();
            assert_eq!((of_cpu, remainder.take_shared(1, 2 << 20, true)), (len - first, None));
        }
        // While more than one part is left, a busy queue gets its next one in advance.
        let mut remainder = remainder(0, 1 << 20);
        assert!((0..DEPTH).all(|part| remainder.take_shared(1, 2 << 20, part > 0).is_some()));
    }

    #[test]
    fn a_part_for_the_cpu_is_no_longer_than_the_device_parts_in_flight() {
        for (ways, mebibytes) in [(1, 1), (1, 16), (3, 1), (3, 8)] {
            let mut remainder = remainder(0, mebibytes << 20);
            while !remainder.is_empty() {
                let in_flight: u64 =
                    (0..DEPTH).filter_map(|_| remainder.take_front(ways, 2 << 20, true)).map(|part| part.1).sum();
                let (_, len) = remainder.take_back(ways, false).unwrap_or_default();
                assert!(len <= in_flight, "{len} beside {in_flight}");
            }
        }
    }

    #[test]
    fn parts_of_bulk_data_are_long_enough_to_bypass_the_cache() {
        let mut remainder = remainder(123, BULK);
        let (_, len) = remainder.take_back(1, true).unwrap();
        assert!(len >= telpher_ops::STREAM_BYTES as u64);
    }
}
