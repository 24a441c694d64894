//! A set of pages in a window of 512.

/// The pages of a window. Source: the pages of a huge page.
pub(crate) const PAGES_IN_SET: usize = 512;

/// A set of pages in a window, as a bit mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageSet([u64; PAGES_IN_SET / 64]);

impl Default for PageSet {
    fn default() -> PageSet {
        PageSet([0; PAGES_IN_SET / 64])
    }
}

impl PageSet {
    pub(crate) fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.0[at / 64] & 1 << (at % 64) != 0
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns the pages that are in this set and not in the other.
    pub(crate) fn without(mut self, there: &PageSet) -> PageSet {
        self.0.iter_mut().zip(there.0).for_each(|(here, there)| *here &= !there);
        self
    }

    /// Returns the pages that are in both sets.
    pub(crate) fn and(mut self, other: &PageSet) -> PageSet {
        self.0.iter_mut().zip(other.0).for_each(|(here, there)| *here &= there);
        self
    }

    /// Adds the pages of the other set.
    pub(crate) fn add(&mut self, other: &PageSet) {
        self.0.iter_mut().zip(other.0).for_each(|(here, there)| *here |= there);
    }

    /// Returns the pages in ascending order.
    pub(crate) fn each(&self) -> impl Iterator<Item = usize> + '_ {
        (0..PAGES_IN_SET).filter(|&at| self.has(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_inserted_and_combined() {
        let of = |pages: &[usize]| {
            let mut page_set = PageSet::default();
            pages.iter().for_each(|&at| page_set.insert(at));
            page_set
        };
        let (one, mut other) = (of(&[0, 63, 64, 511]), of(&[63, 100]));
        assert_eq!((one.count(), one.has(64), one.has(65)), (4, true, false));
        assert_eq!((one.without(&other), one.and(&other)), (of(&[0, 64, 511]), of(&[63])));
        other.add(&one);
        assert_eq!(other.each().collect::<Vec<_>>(), [0, 63, 64, 100, 511]);
    }
}
