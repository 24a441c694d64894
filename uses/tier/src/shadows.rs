//! Old copies: when a small page moves to a faster tier, its original stays in its pool until that tier needs the room.
//!
//! When the page goes back to the tier of its old copy, the two are compared, and the page is copied only if they
//! differ. This module need not learn that a page was written, discarded or mapped elsewhere: the old copy is then less
//! useful, but not wrong.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// A page's address, and the slot of its old copy.
type Old = (u64, u64);

/// The old copies of all pages.
#[derive(Debug)]
pub(crate) struct Shadows {
    /// The slot of each page's old copy.
    slots: HashMap<u64, u64>,
    /// Entries by tier, the oldest first; some are out of date.
    oldest: Vec<VecDeque<Old>>,
    /// The most old copies.
    most: usize,
}

impl Shadows {
    /// Creates an empty set that never holds more than `most` copies.
    pub(crate) fn new(tiers: usize, most: usize) -> Shadows {
        Shadows { slots: HashMap::new(), oldest: vec![VecDeque::new(); tiers], most }
    }

    /// Returns whether old copies are kept at all.
    pub(crate) fn are_kept(&self) -> bool {
        self.most > 0
    }

    /// Returns the slot of a page's old copy.
    pub(crate) fn of(&self, page: u64) -> Option<u64> {
        self.slots.get(&page).copied()
    }

    /// Notes that a slot of this tier holds a page's old copy. Returns the slots whose copies are dropped: the page's
    /// previous one, and if there are too many, the oldest of the tier (or of any tier if this one has none).
    pub(crate) fn keep(&mut self, tier: usize, page: u64, slot: u64) -> impl Iterator<Item = u64> + use<> {
        let before = self.slots.insert(page, slot);
        self.oldest[tier].push_back((page, slot));
        let too_many = self.slots.len() > self.most;
        let oldest = if too_many { self.oldest_of(tier).or_else(|| self.oldest_of_any()) } else { None };
        // Entries out of date stay in the list until it has doubled.
        if self.oldest[tier].len() > 64 + 2 * self.most {
            let slots = &self.slots;
            self.oldest[tier].retain(|(page, slot)| slots.get(page) == Some(slot));
        }
        before.into_iter().chain(oldest)
    }

    /// Drops a tier's oldest copy and returns its slot.
    pub(crate) fn oldest_of(&mut self, tier: usize) -> Option<u64> {
        while let Some((page, slot)) = self.oldest[tier].pop_front() {
            if self.slots.get(&page) == Some(&slot) {
                self.slots.remove(&page);
                return Some(slot);
            }
        }
        None
    }

    fn oldest_of_any(&mut self) -> Option<u64> {
        (0..self.oldest.len()).find_map(|tier| self.oldest_of(tier))
    }

    /// Drops a page's old copy, whose slot is used for something else, and returns the slot.
    pub(crate) fn forget(&mut self, page: u64) -> Option<u64> {
        self.slots.remove(&page)
    }

    /// Drops the old copies of a range and returns their slots.
    pub(crate) fn forget_all(&mut self, range: &Range<u64>) -> Vec<u64> {
        let gone = self.slots.extract_if(|page, _| range.contains(page));
        gone.map(|(_, slot)| slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(shadows: &mut Shadows, tier: usize, page: u64, slot: u64) -> Vec<u64> {
        shadows.keep(tier, page, slot).collect()
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut shadows = Shadows::new(2, 3);
        for page in 1..=3 {
            assert_eq!(keep(&mut shadows, 1, page, 10 + page), [0_u64; 0]);
        }
        assert_eq!(keep(&mut shadows, 1, 4, 14), [11]);
        assert_eq!((shadows.of(1), shadows.of(2), shadows.of(4)), (None, Some(12), Some(14)));
        // Copies of the same tier are dropped first.
        shadows.forget(2);
        shadows.forget(3);
        assert_eq!(keep(&mut shadows, 0, 5, 25), [0_u64; 0]);
        assert_eq!(keep(&mut shadows, 0, 6, 26), [0_u64; 0]);
        assert_eq!(keep(&mut shadows, 0, 7, 27), [25]);
    }

    #[test]
    fn a_page_has_one_old_copy() {
        let mut shadows = Shadows::new(1, 3);
        assert_eq!(keep(&mut shadows, 0, 1, 11), [0_u64; 0]);
        assert_eq!(keep(&mut shadows, 0, 2, 12), [0_u64; 0]);
        assert_eq!(keep(&mut shadows, 0, 1, 13), [11]);
        assert_eq!((shadows.oldest_of(0), shadows.oldest_of(0), shadows.oldest_of(0)), (Some(12), Some(13), None));
    }

    #[test]
    fn a_forgotten_copy_is_not_found_again() {
        let mut shadows = Shadows::new(1, 100);
        (0..10).for_each(|page| assert_eq!(keep(&mut shadows, 0, page, 100 + page), [0_u64; 0]));
        assert_eq!(shadows.forget(3), Some(103));
        let mut gone = shadows.forget_all(&(5..8));
        gone.sort_unstable();
        assert_eq!(gone, [105, 106, 107]);
        let rest: Vec<u64> = std::iter::from_fn(|| shadows.oldest_of(0)).collect();
        assert_eq!(rest, [100, 101, 102, 104, 108, 109]);
    }

    #[test]
    fn a_list_stays_below_twice_the_number_of_copies() {
        let mut shadows = Shadows::new(1, 10);
        for round in 0..1000 {
            let _ = keep(&mut shadows, 0, 1, round);
            assert!(shadows.oldest[0].len() <= 64 + 2 * 10);
        }
        assert_eq!((shadows.oldest_of(0), shadows.oldest_of(0)), (Some(999), None));
    }
}
