//! Which entry has the bytes of a range: entries by where they begin, apart by how long they are.
//!
//! A class holds the entries of `2^k` to `2^(k+1) - 1` bytes. Who has a given byte begins less than `2^(k+1)` bytes before it, so
//! that a search in a class passes no entry that is far away, however long those of other classes are.

use std::collections::BTreeMap;

/// A range of addresses; not empty, and no more than there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Span {
    /// Cannot overflow: a span ends where addresses do at the latest.
    pub(crate) fn end(self) -> u64 {
        self.start + self.len
    }

    pub(crate) fn contains(self, other: Span) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    pub(crate) fn overlaps(self, other: Span) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    fn class(self) -> usize {
        self.len.ilog2() as usize
    }
}

/// What an index keeps.
pub(crate) trait Spanning: Clone {
    fn span(&self) -> Span;
}

/// Entries by their ranges. Of two that begin at the same place and are of one class the longer one is kept.
#[derive(Debug)]
pub(crate) struct Index<E> {
    classes: [BTreeMap<u64, E>; 64],
    /// Bit `k`: there are entries of class `k`.
    present: u64,
    count: usize,
}

impl<E: Spanning> Index<E> {
    pub(crate) fn new() -> Self {
        Index { classes: [const { BTreeMap::new() }; 64], present: 0, count: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// An entry that has all of it, of those the one of the least class.
    #[inline]
    pub(crate) fn find(&self, wanted: Span) -> Option<&E> {
        let least = wanted.class();
        self.present_from(least).find_map(|class| {
            let reach = wanted.start.saturating_sub(reach(class));
            let near = self.classes[class].range(reach..=wanted.start).rev();
            near.map(|(_, entry)| entry).find(|entry| entry.span().contains(wanted))
        })
    }

    /// All that have a byte of it.
    pub(crate) fn overlapping(&self, span: Span) -> impl Iterator<Item = &E> {
        self.present_from(0).flat_map(move |class| {
            let near = self.classes[class].range(span.start.saturating_sub(reach(class))..span.end());
            near.map(|(_, entry)| entry).filter(move |entry| entry.span().overlaps(span))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.present_from(0).flat_map(|class| self.classes[class].values())
    }

    /// Keeps an entry, and gives back the one that it takes the place of, or itself if there is a longer one.
    pub(crate) fn insert(&mut self, entry: E) -> Option<E> {
        let span = entry.span();
        let class = &mut self.classes[span.class()];
        if class.get(&span.start).is_some_and(|there| there.span().len > span.len) {
            return Some(entry);
        }
        self.present |= 1 << span.class();
        let before = class.insert(span.start, entry);
        self.count += usize::from(before.is_none());
        before
    }

    /// Forgets the entry of just this range, if `is` says it is the one.
    pub(crate) fn remove(&mut self, span: Span, is: impl FnOnce(&E) -> bool) -> Option<E> {
        let class = &mut self.classes[span.class()];
        class.get(&span.start).filter(|entry| entry.span() == span && is(entry))?;
        let entry = class.remove(&span.start);
        if class.is_empty() {
            self.present &= !(1 << span.class());
        }
        self.count -= 1;
        entry
    }

    fn present_from(&self, class: usize) -> impl Iterator<Item = usize> + use<E> {
        let mut left = self.present >> class << class;
        std::iter::from_fn(move || {
            let class = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(class)
        })
    }
}

/// How far before a byte an entry of this class that has it may begin.
const fn reach(class: usize) -> u64 {
    // 2^(class + 1) - 2, also for the last class.
    ((1 << class) - 1) * 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Spanning for Span {
        fn span(&self) -> Span {
            *self
        }
    }

    const fn span(start: u64, len: u64) -> Span {
        Span { start, len }
    }

    #[test]
    fn a_range_inside_an_entry_is_found_whatever_begins_nearer() {
        let mut index = Index::new();
        for entry in [span(0, 1000), span(990, 20), span(500, 3), span(1 << 40, 1 << 30)] {
            assert_eq!(index.insert(entry), None);
        }
        assert_eq!(index.find(span(501, 10)), Some(&span(0, 1000)));
        assert_eq!(index.find(span(995, 15)), Some(&span(990, 20)));
        assert_eq!(index.find(span(985, 20)), None);
        assert_eq!(index.find(span((1 << 40) + (1 << 30) - 1, 1)), Some(&span(1 << 40, 1 << 30)));
    }

    #[test]
    fn the_last_addresses_are_addresses() {
        let mut index = Index::new();
        let all = span(0, u64::MAX);
        assert_eq!((index.insert(all), index.find(span(u64::MAX - 1, 1))), (None, Some(&all)));
        assert_eq!(index.overlapping(span(u64::MAX - 1, 1)).count(), 1);
    }

    proptest! {
        #[test]
        fn as_a_list_that_is_searched_from_end_to_end(steps in prop::collection::vec((0_u8..4, 0_u64..300, 1_u64..80), 1..120)) {
            let mut index = Index::new();
            let mut list: Vec<Span> = Vec::new();
            for (what, start, len) in steps {
                let wanted = span(start, len);
                if what == 0 {
                    let longer = list.iter().any(|e| e.start == start && e.class() == wanted.class() && e.len > len);
                    if longer {
                        prop_assert_eq!(index.insert(wanted), Some(wanted));
                    } else {
                        let before = list.iter().position(|e| e.start == start && e.class() == wanted.class());
                        let before = before.map(|at| list.swap_remove(at));
                        prop_assert_eq!(index.insert(wanted), before);
                        list.push(wanted);
                    }
                } else if what == 1 {
                    let at = list.iter().position(|entry| *entry == wanted);
                    prop_assert_eq!(index.remove(wanted, |_| true), at.map(|at| list.swap_remove(at)));
                }
                let found = index.find(wanted).copied();
                prop_assert_eq!(found.is_some(), list.iter().any(|entry| entry.contains(wanted)));
                prop_assert!(found.is_none_or(|entry| entry.contains(wanted)));
                let sorted = |mut all: Vec<Span>| { all.sort_unstable_by_key(|span| (span.start, span.len)); all };
                let naive = list.iter().copied().filter(|entry| entry.overlaps(wanted)).collect();
                prop_assert_eq!(sorted(index.overlapping(wanted).copied().collect()), sorted(naive));
                prop_assert_eq!((index.len(), index.iter().count()), (list.len(), list.len()));
            }
        }
    }
}
