//! Sharing out: from which size on one operation is cut into parts that are in flight at the same time, over how many queues,
//! and whether the thread that waits for it does some of them.

use crate::ask::Ask;

/// How one long operation is shared out.
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

/// A part's longest while the CPU takes its share: short, because nobody knows beforehand who will be faster, and the last part
/// of either decides how long the other has nothing to do.
const LONGEST_SHARED: u64 = 256 << 10;

/// The CPU's own parts, between which it looks at the devices' records. Source: assumed; 6 µs at 10 GB/s.
const CPU_LEAST: u64 = 64 << 10;

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
        let places = (ways * DEPTH) as u64;
        let len = match (shared_with_cpu, ways) {
            (true, _) => (left / (2 * places + 2)).clamp(LEAST / 2, LONGEST_SHARED),
            // One queue: nobody to share with.
            (false, ..=1) => left,
            (false, _) => (left / places).max(LEAST),
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

    /// Gives back the part that was taken from the front last.
    pub(crate) fn put_back(&mut self, start: u64) {
        self.head = start;
    }

    /// The next part for the CPU.
    pub(crate) fn take_back(&mut self) -> Option<(u64, u64)> {
        if self.is_empty() {
            return None;
        }
        let left = self.len();
        let end = self.tail;
        let start = if left <= CPU_LEAST { self.head } else { self.border(end - CPU_LEAST, self.head) };
        self.tail = start;
        Some((start, end - start))
    }
}
