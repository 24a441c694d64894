//! Ranges that have moved recently.

use crate::config::{PAGE, TierId};
use crate::policy::Move;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Ranges that have moved, without overlaps.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    /// By start address.
    moved: BTreeMap<u64, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    end: u64,
    at: Duration,
    from: TierId,
    /// The range is held until then, whatever the residence.
    until: Duration,
}

impl Recent {
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, Entry)> + '_ {
        let start = range.start;
        let before = self.moved.range(..range.end).rev();
        before.take_while(move |(_, entry)| entry.end > start).map(|(&start, &entry)| (start, entry))
    }

    /// Returns whether a part of the range has moved less than `residence` ago, or is held for longer.
    pub(super) fn is_held(&self, range: &Range<u64>, now: Duration, residence: Duration) -> bool {
        self.overlapping(range).any(|(_, entry)| entry.at + residence > now || entry.until > now)
    }

    /// Notes a move now. Returns how many of its pages go back to where they came from less than `payback` ago.
    pub(super) fn note(&mut self, what: &Move, now: Duration, payback: Duration) -> u64 {
        let range = what.range.clone();
        let part = |start: u64, entry: &Entry| (entry.end.min(range.end) - start.max(range.start)) / PAGE;
        let came = self.overlapping(&range).filter(|(_, entry)| entry.from == what.to && entry.at + payback > now);
        let back = came.map(|(start, entry)| part(start, &entry)).sum();
        self.put(&range, Entry { end: range.end, at: now, from: what.from, until: Duration::ZERO });
        back
    }

    /// Holds the range where it is until then.
    pub(super) fn hold(&mut self, range: &Range<u64>, until: Duration) {
        for (start, mut entry) in self.overlapping(range).collect::<Vec<_>>() {
            entry.until = until;
            self.moved.insert(start, entry);
        }
    }

    fn put(&mut self, range: &Range<u64>, new: Entry) {
        for (start, entry) in self.overlapping(range).collect::<Vec<_>>() {
            self.moved.remove(&start);
            if start < range.start {
                self.moved.insert(start, Entry { end: range.start, ..entry });
            }
            if entry.end > range.end {
                self.moved.insert(range.end, entry);
            }
        }
        self.moved.insert(range.start, new);
    }

    /// Forgets ranges that moved longer ago than `age`.
    pub(super) fn forget(&mut self, now: Duration, age: Duration) {
        self.moved.retain(|_, entry| entry.at + age > now || entry.until > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(pages: Range<u64>) -> Range<u64> {
        pages.start * PAGE..pages.end * PAGE
    }

    fn up(pages: Range<u64>) -> Move {
        Move { range: range(pages), from: TierId(1), to: TierId(0) }
    }

    fn down(pages: Range<u64>) -> Move {
        Move { range: range(pages), from: TierId(0), to: TierId(1) }
    }

    #[test]
    fn moved_pages_are_held_and_returning_pages_counted() {
        let (mut recent, second) = (Recent::default(), Duration::from_secs);
        assert_eq!(recent.note(&up(10..20), second(1), second(10)), 0);
        let held = |recent: &Recent, pages, now| recent.is_held(&range(pages), second(now), second(2));
        assert!(
            held(&recent, 19..25, 2)
                && !held(&recent, 20..25, 2)
                && !held(&recent, 0..10, 2)
                && !held(&recent, 10..11, 3)
        );
        // Half of it comes back in time; its ends moved long ago.
        assert_eq!(recent.note(&down(5..15), second(10), second(10)), 5);
        assert_eq!(recent.note(&down(15..20), second(11), second(10)), 0, "too late");
        assert_eq!(recent.note(&down(5..15), second(12), second(10)), 0, "the other direction");
        recent.note(&up(0..30), second(13), second(10));
        recent.hold(&range(29..30), second(100));
        recent.forget(second(50), second(10));
        assert!(held(&recent, 0..1, 99) && !held(&recent, 0..1, 100) && !held(&recent, 30..31, 50));
        recent.forget(second(101), second(10));
        assert!(recent.moved.is_empty());
    }
}
