//! Old copies: what small pages were copied from when they went to a faster tier stays where it is, until its tier needs the room.
//!
//! A page that goes back to the tier of its old copy is compared with it, and copied only if it differs. Nothing has to be told here when a
//! page is written, discarded or mapped elsewhere: its old copy is worth less then, and not wrong.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// An old copy: whose page, and in which place of a pool.
type Old = (u64, u64);

/// Old copies of pages.
#[derive(Debug)]
pub(crate) struct Shadows {
    /// Places by their pages.
    places: HashMap<u64, u64>,
    /// By their tiers, the oldest first; some that are here are no more.
    oldest: Vec<VecDeque<Old>>,
    /// So many at most.
    most: usize,
}

impl Shadows {
    /// None yet, and never more than so many.
    pub(crate) fn new(tiers: usize, most: usize) -> Shadows {
        Shadows { places: HashMap::new(), oldest: vec![VecDeque::new(); tiers], most }
    }

    /// There may be some.
    pub(crate) fn are_kept(&self) -> bool {
        self.most > 0
    }

    /// Where a page's old copy is.
    pub(crate) fn of(&self, page: u64) -> Option<u64> {
        self.places.get(&page).copied()
    }

    /// A place has a page's old copy from now on, of this tier. Returns places whose copies are kept no more: one that the page had
    /// before, and the oldest of the tier's (or, if it has none, of any tier's) if there are too many.
    pub(crate) fn keep(&mut self, tier: usize, page: u64, place: u64) -> impl Iterator<Item = u64> + use<> {
        let before = self.places.insert(page, place);
        self.oldest[tier].push_back((page, place));
        let too_many = self.places.len() > self.most;
        let oldest = if too_many { self.oldest_of(tier).or_else(|| self.oldest_of_any()) } else { None };
        // What is kept no more is left in the list until it is as long again.
        if self.oldest[tier].len() > 64 + 2 * self.most {
            let places = &self.places;
            self.oldest[tier].retain(|(page, place)| places.get(page) == Some(place));
        }
        before.into_iter().chain(oldest)
    }

    /// The place of a tier's oldest copy, which is kept no more.
    pub(crate) fn oldest_of(&mut self, tier: usize) -> Option<u64> {
        while let Some((page, place)) = self.oldest[tier].pop_front() {
            if self.places.get(&page) == Some(&place) {
                self.places.remove(&page);
                return Some(place);
            }
        }
        None
    }

    fn oldest_of_any(&mut self) -> Option<u64> {
        (0..self.oldest.len()).find_map(|tier| self.oldest_of(tier))
    }

    /// A page's old copy is somebody else's now.
    pub(crate) fn forget(&mut self, page: u64) -> Option<u64> {
        self.places.remove(&page)
    }

    /// All of a range's are kept no more; returns their places.
    pub(crate) fn forget_all(&mut self, range: &Range<u64>) -> Vec<u64> {
        let gone = self.places.extract_if(|page, _| range.contains(page));
        gone.map(|(_, place)| place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(shadows: &mut Shadows, tier: usize, page: u64, place: u64) -> Vec<u64> {
        shadows.keep(tier, page, place).collect()
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut shadows = Shadows::new(2, 3);
        for page in 1..=3 {
            assert_eq!(keep(&mut shadows, 1, page, 10 + page), []);
        }
        assert_eq!(keep(&mut shadows, 1, 4, 14), [11]);
        assert_eq!((shadows.of(1), shadows.of(2), shadows.of(4)), (None, Some(12), Some(14)));
        // Of the same tier first.
        shadows.forget(2);
        shadows.forget(3);
        assert_eq!(keep(&mut shadows, 0, 5, 25), []);
        assert_eq!(keep(&mut shadows, 0, 6, 26), []);
        assert_eq!(keep(&mut shadows, 0, 7, 27), [25]);
    }

    #[test]
    fn a_page_has_one() {
        let mut shadows = Shadows::new(1, 3);
        assert_eq!(keep(&mut shadows, 0, 1, 11), []);
        assert_eq!(keep(&mut shadows, 0, 2, 12), []);
        assert_eq!(keep(&mut shadows, 0, 1, 13), [11]);
        assert_eq!((shadows.oldest_of(0), shadows.oldest_of(0), shadows.oldest_of(0)), (Some(12), Some(13), None));
    }

    #[test]
    fn what_is_forgotten_is_not_found_again() {
        let mut shadows = Shadows::new(1, 100);
        (0..10).for_each(|page| assert_eq!(keep(&mut shadows, 0, page, 100 + page), []));
        assert_eq!(shadows.forget(3), Some(103));
        let mut gone = shadows.forget_all(&(5..8));
        gone.sort_unstable();
        assert_eq!(gone, [105, 106, 107]);
        let rest: Vec<u64> = std::iter::from_fn(|| shadows.oldest_of(0)).collect();
        assert_eq!(rest, [100, 101, 102, 104, 108, 109]);
    }

    #[test]
    fn a_list_is_no_longer_than_what_is_kept_twice_over() {
        let mut shadows = Shadows::new(1, 10);
        for round in 0..1000 {
            let _ = keep(&mut shadows, 0, 1, round);
            assert!(shadows.oldest[0].len() <= 64 + 2 * 10);
        }
        assert_eq!((shadows.oldest_of(0), shadows.oldest_of(0)), (Some(999), None));
    }
}
