//! Finds the entry that contains a range: a hash table of entries by approximate start and length.
//!
//! A class holds the entries of `2^k` to `2^(k+1) - 1` bytes, and its addresses are divided into buckets of `2^k`
//! bytes. An entry that contains a given byte begins less than `2^(k+1)` bytes before it: in the byte's bucket or in
//! one of the two before. So a search checks three buckets of each class present, however many entries there are. A
//! block that is accessed exactly as before is found in the first bucket.

use hashbrown::HashTable;

/// A range of addresses; not empty, and within the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Span {
    /// Cannot overflow: a span ends within the address space.
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

    /// The hash of the bucket that it begins in.
    fn hash(self) -> u64 {
        hash(self.class(), self.start >> self.class())
    }
}

/// The entries of an index.
pub(crate) trait Spanning: Clone {
    fn span(&self) -> Span;
}

/// Entries by their ranges. Of two entries with the same start and class, the longer one is kept.
#[derive(Debug)]
pub(crate) struct Index<E> {
    /// By class and bucket.
    table: HashTable<E>,
    /// The number of entries of each class.
    counts: [usize; CLASSES],
    /// Bit `k`: there are entries of class `k`.
    present: u64,
}

/// One for each bit of a length.
const CLASSES: usize = 64;

impl<E: Spanning> Index<E> {
    pub(crate) fn new() -> Self {
        Index { table: HashTable::new(), counts: [0; CLASSES], present: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns an entry that contains all of `wanted`: of the smallest class, and within it the one that begins last.
    #[inline]
    pub(crate) fn find(&self, wanted: Span) -> Option<&E> {
        self.present_from(wanted.class()).find_map(|class| {
            let place = wanted.start >> class;
            // An entry in a later bucket begins later.
            let in_place = |place| {
                let having = self.in_place(class, place).filter(|entry| entry.span().contains(wanted));
                having.max_by_key(|entry| entry.span().start)
            };
            in_place(place).or_else(|| in_place(place.checked_sub(1)?)).or_else(|| in_place(place.checked_sub(2)?))
        })
    }

    /// Returns the entry of exactly this range.
    pub(crate) fn get(&self, span: Span) -> Option<&E> {
        self.table.find(span.hash(), |entry| entry.span() == span)
    }

    #[inline]
    fn in_place(&self, class: usize, place: u64) -> impl Iterator<Item = &E> {
        self.table.iter_hash(hash(class, place)).filter(move |entry| {
            let span = entry.span();
            span.start >> class == place && span.class() == class
        })
    }

    /// Returns all entries that have a byte of the range.
    pub(crate) fn overlapping(&self, span: Span) -> Vec<E> {
        let places = |class| span.start.saturating_sub(reach(class)) >> class..=(span.end() - 1) >> class;
        // Cannot overflow: no class has a bucket beyond the last address, which no span contains.
        let count = |class| places(class).end() - places(class).start() + 1;
        let looks = self.present_from(0).map(count).fold(0, u64::saturating_add);
        let overlaps = |entry: &&E| entry.span().overlaps(span);
        match looks < self.len() as u64 {
            true => {
                let near = |class| places(class).flat_map(move |place| self.in_place(class, place));
                self.present_from(0).flat_map(near).filter(overlaps).cloned().collect()
            }
            false => self.iter().filter(overlaps).cloned().collect(),
        }
    }

    /// Returns all entries, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.table.iter()
    }

    /// Adds an entry; returns the entry that it replaces, or itself if there is a longer one.
    pub(crate) fn insert(&mut self, entry: E) -> Option<E> {
        let span = entry.span();
        let class = span.class();
        let same = |there: &E| there.span().start == span.start && there.span().class() == class;
        match self.table.find_mut(span.hash(), same) {
            Some(there) if there.span().len > span.len => Some(entry),
            Some(there) => Some(std::mem::replace(there, entry)),
            None => {
                self.table.insert_unique(span.hash(), entry, |entry| entry.span().hash());
                self.counts[class] += 1;
                self.present |= 1 << class;
                None
            }
        }
    }

    /// Removes the entry of exactly this range, if `is` accepts it.
    pub(crate) fn remove(&mut self, span: Span, is: impl Fn(&E) -> bool) -> Option<E> {
        let found = self.table.find_entry(span.hash(), |entry| entry.span() == span && is(entry)).ok()?;
        let (entry, _) = found.remove();
        let class = span.class();
        self.counts[class] -= 1;
        if self.counts[class] == 0 {
            self.present &= !(1 << class);
        }
        Some(entry)
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

/// Returns how far before a byte an entry of this class that contains it may begin.
const fn reach(class: usize) -> u64 {
    // 2^(class + 1) - 2, also for the last class.
    ((1 << class) - 1) * 2
}

/// The hash of a bucket: both halves of a product with an odd number without a pattern (2^64 divided by the golden
/// ratio), so that neighbours are far apart whichever bits the table uses.
fn hash(class: usize, place: u64) -> u64 {
    let product = u128::from(place ^ (class as u64) << 57) * 0x9e37_79b9_7f4a_7c15;
    #[allow(clippy::cast_possible_truncation, reason = "both halves are used")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cmp::Reverse;

    impl Spanning for Span {
        fn span(&self) -> Span {
            *self
        }
    }

    const fn span(start: u64, len: u64) -> Span {
        Span { start, len }
    }

    #[test]
    fn a_range_inside_an_entry_is_found_although_another_entry_starts_nearer() {
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
    fn ranges_at_the_end_of_the_address_space_work() {
        let mut index = Index::new();
        let all = span(0, u64::MAX);
        assert_eq!((index.insert(all), index.find(span(u64::MAX - 1, 1))), (None, Some(&all)));
        assert_eq!(index.overlapping(span(u64::MAX - 1, 1)).len(), 1);
    }

    proptest! {
        #[test]
        fn the_index_equals_a_list_searched_linearly(steps in prop::collection::vec((0_u8..4, 0_u64..300, 1_u64..80), 1..120)) {
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
                // The best one by that order, among all that contain the range.
                let best = list.iter().filter(|entry| entry.contains(wanted)).max_by_key(|entry| (Reverse(entry.class()), entry.start));
                prop_assert_eq!(found, best.copied());
                let sorted = |mut all: Vec<Span>| { all.sort_unstable_by_key(|span| (span.start, span.len)); all };
                let naive = list.iter().copied().filter(|entry| entry.overlaps(wanted)).collect();
                prop_assert_eq!(sorted(index.overlapping(wanted)), sorted(naive));
                prop_assert_eq!((index.len(), index.iter().count()), (list.len(), list.len()));
            }
        }
    }
}
