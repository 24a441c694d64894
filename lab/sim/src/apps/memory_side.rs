//! Fast memory as a hardware-managed cache of slow memory (Intel's cache mode for HBM; thesis §2.1): direct-mapped. The
//! hardware caches lines; the simulation caches pages, because a query reads whole pages.
//! ```text
//! page ─ its physical address ─ modulo the cache's size ─► slot: this page? yes: read there · no: read in slow memory,
//! then cached
//! ```

use crate::rng::Rng;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// HBM in cache mode, in front of the nodes of a query's columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HbmCacheMode {
    /// Node that caches column a.
    pub a: usize,
    /// Node that caches column b; may be the same.
    pub b: usize,
    /// Bytes of each of these nodes.
    pub bytes: u64,
    /// Placement of the columns' pages.
    pub pages: Pages,
    /// The query ran once before.
    pub warm: bool,
}

/// Placement of pages in physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Contiguous, column b behind column a.
    InARow,
    /// Random, by a seed: Linux shuffles free pages if it knows of such a cache (`page_alloc.shuffle`).
    Anywhere(u64),
}

/// The cached pages.
#[derive(Debug)]
pub(super) struct Cached {
    /// By slot: the number of its page plus one; 0 for none. If there are two caches, they follow each other.
    slots: Vec<u32>,
    /// The slot of each page, of a, then of b.
    slot_of: Vec<u32>,
    /// Pages of a.
    of_a: u64,
    hits: u64,
    touched: u64,
}

impl Cached {
    /// For two columns of `column` bytes. Columns and caches have less than 2^32 pages.
    pub(super) fn new(side: &HbmCacheMode, column: u64) -> Self {
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let (of_a, slots) = (column.div_ceil(PAGE), (side.bytes / PAGE).max(1));
        let apart = side.a != side.b;
        let mut rng = match side.pages {
            Pages::InARow => None,
            Pages::Anywhere(seed) => Some(Rng::new(seed, 0)),
        };
        let place = |page: u64| {
            let own = apart && page >= of_a;
            let row = if own { page - of_a } else { page };
            let slot = rng.as_mut().map_or(row % slots, |rng| rng.below(slots));
            number(slot + if own { slots } else { 0 })
        };
        let slot_of: Vec<u32> = (0..2 * of_a).map(place).collect();
        let all = slots * (1 + u64::from(apart));
        let slots = vec![0; usize::try_from(all).unwrap_or(0)];
        Cached { slots, slot_of, of_a, hits: 0, touched: 0 }
    }

    /// Applies earlier reads in this order: column (b or a), start, bytes. A second repetition would leave the same
    /// pages.
    pub(super) fn warm(&mut self, reads: impl Iterator<Item = (bool, u64, u64)>) {
        for (b, from, bytes) in reads {
            self.read(b, from, bytes);
        }
        (self.hits, self.touched) = (0, 0);
    }

    /// Reads bytes of column a, or of b; returns how many of them come from the cache.
    pub(super) fn read(&mut self, b: bool, from: u64, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let (first, last) = (from / PAGE, (from + bytes - 1) / PAGE);
        let (mut hits, base) = (0, if b { self.of_a } else { 0 });
        for page in first..=last {
            let number = base + page;
            let Some(slot) = usize::try_from(number).ok().and_then(|number| self.slot_of.get(number)) else { break };
            let (slot, tag) = (*slot as usize, u32::try_from(number + 1).unwrap_or(u32::MAX));
            hits += u64::from(self.slots[slot] == tag);
            self.slots[slot] = tag;
        }
        let pages = last - first + 1;
        self.hits += hits;
        self.touched += pages;
        // At most the requested bytes: hits are some of the pages.
        u64::try_from(u128::from(bytes) * u128::from(hits) / u128::from(pages)).unwrap_or(bytes)
    }

    /// Share of the read pages that were cached, in per cent.
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    pub(super) fn rate(&self) -> f64 {
        self.hits as f64 / self.touched.max(1) as f64 * 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(side: HbmCacheMode, column: u64) -> f64 {
        let mut cached = Cached::new(&side, column);
        let piece = 16 * PAGE;
        let reads =
            || [false, true].into_iter().flat_map(|b| (0..column / piece).map(move |at| (b, at * piece, piece)));
        if side.warm {
            cached.warm(reads());
        }
        let near: u64 = reads().map(|(b, from, bytes)| cached.read(b, from, bytes)).sum();
        let rate = cached.rate();
        assert!((near as f64 / (2 * column) as f64 * 100.0 - rate).abs() < 1e-9);
        rate
    }

    #[test]
    fn pages_read_before_are_cached_if_they_fit() {
        let side = HbmCacheMode { a: 8, b: 8, bytes: 16 << 20, pages: Pages::InARow, warm: true };
        assert_eq!(rate(side, 8 << 20), 100.0);
        assert_eq!(rate(HbmCacheMode { warm: false, ..side }, 8 << 20), 0.0);
        assert_eq!(rate(HbmCacheMode { bytes: 8 << 20, ..side }, 8 << 20), 0.0, "each column evicts the other");
        assert_eq!(rate(HbmCacheMode { bytes: 8 << 20, b: 9, ..side }, 8 << 20), 100.0, "each has its own cache");
    }

    /// A page that shares its slot with no other stays: with half as many random pages as slots, a share of e^-½.
    #[test]
    fn random_pages_collide_as_often_as_probability_says() {
        let side = HbmCacheMode { a: 8, b: 8, bytes: 256 << 20, pages: Pages::Anywhere(1), warm: true };
        let found = rate(side, 64 << 20);
        assert!((found - (-0.5f64).exp() * 100.0).abs() < 0.5, "{found} %");
    }
}
