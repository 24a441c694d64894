//! The portal pages and their open files: a table that is read without a lock, in the middle of an instruction.
//!
//! A hash table with one word per page: page number, number of the open file, permissions. Writers hold the nodes'
//! lock. A reader sees a page before or after a change, never half of it.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Most portal pages a process may have mapped at once. Source: chosen.
pub(crate) const MAX_PORTALS: usize = 6000;
/// Slots of the table, a power of two, never all used.
const SLOTS: usize = 8192;
const _: () = assert!(SLOTS.is_power_of_two() && MAX_PORTALS < SLOTS);

/// Bytes of a portal: Linux maps one page of one kind. Source: K612 `cdev.c`.
pub(crate) const PORTAL_BYTES: u64 = 4096;

/// Never used.
const EMPTY: u64 = 0;
/// Removed: a search continues after it.
const GONE: u64 = 1;
/// Bits: 0 removed, 1 stores reach the queue, 2 the file was open for writing, 18:3 open file, 63:19 page number.
const WRITABLE: u64 = 1 << 1;
const MAY_WRITE: u64 = 1 << 2;
const FILE_SHIFT: u32 = 3;
const PAGE_SHIFT: u32 = 19;

/// A portal page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Portal {
    /// Address of its first byte.
    pub(crate) address: u64,
    /// Number of the open file.
    pub(crate) file: u16,
    /// Currently mapped for writing.
    pub(crate) writable: bool,
    /// May become writable: the file was open for writing.
    pub(crate) may_write: bool,
}

impl Portal {
    fn to_word(self) -> u64 {
        (self.address / PORTAL_BYTES) << PAGE_SHIFT
            | u64::from(self.file) << FILE_SHIFT
            | if self.may_write { MAY_WRITE } else { 0 }
            | if self.writable { WRITABLE } else { 0 }
    }

    fn from_word(word: u64) -> Self {
        Portal {
            address: (word >> PAGE_SHIFT) * PORTAL_BYTES,
            file: (word >> FILE_SHIFT & 0xffff) as u16,
            writable: word & WRITABLE != 0,
            may_write: word & MAY_WRITE != 0,
        }
    }
}

/// The table of portal pages.
#[derive(Debug)]
pub(crate) struct Table {
    slots: [AtomicU64; SLOTS],
    /// Number of portals.
    count: AtomicU32,
}

/// The process's portals.
pub(crate) static PORTALS: Table = Table::new();

impl Table {
    pub(crate) const fn new() -> Self {
        Table { slots: [const { AtomicU64::new(EMPTY) }; SLOTS], count: AtomicU32::new(0) }
    }

    /// The portal that contains an address.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<Portal> {
        // Relaxed: for a page that is being mapped or unmapped, either answer is correct.
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.slot(address / PORTAL_BYTES).map(|slot| {
            // Acquire: pairs with the Release in `insert`; the file with this number is set up.
            Portal::from_word(self.slots[slot].load(Ordering::Acquire))
        })
    }

    /// True if there is no portal.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn slot(&self, page: u64) -> Option<usize> {
        let mut slot = start(page);
        for _ in 0..SLOTS {
            // Acquire: as in `find`.
            match self.slots[slot].load(Ordering::Acquire) {
                EMPTY => return None,
                word if word != GONE && word >> PAGE_SHIFT == page => return Some(slot),
                _ => slot = (slot + 1) % SLOTS,
            }
        }
        None
    }

    /// Adds a page that is not in the table; `false` if the table is full. One writer at a time.
    pub(crate) fn insert(&self, portal: Portal) -> bool {
        if self.count.load(Ordering::Relaxed) as usize >= MAX_PORTALS {
            return false;
        }
        let mut slot = start(portal.address / PORTAL_BYTES);
        while !matches!(self.slots[slot].load(Ordering::Relaxed), EMPTY | GONE) {
            slot = (slot + 1) % SLOTS;
        }
        // Release: pairs with the Acquire in `find`.
        self.slots[slot].store(portal.to_word(), Ordering::Release);
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Changes the permissions of a page. One writer at a time.
    pub(crate) fn update(&self, portal: Portal) {
        if let Some(slot) = self.slot(portal.address / PORTAL_BYTES) {
            self.slots[slot].store(portal.to_word(), Ordering::Release);
        }
    }

    /// Removes a page. One writer at a time.
    pub(crate) fn remove(&self, portal: &Portal) {
        let Some(slot) = self.slot(portal.address / PORTAL_BYTES) else { return };
        self.slots[slot].store(GONE, Ordering::Release);
        // Removed slots at the end of a run become empty, so that searches stay short however many pages came and went.
        if self.slots[(slot + 1) % SLOTS].load(Ordering::Relaxed) == EMPTY {
            let mut last = slot;
            while self.slots[last].load(Ordering::Relaxed) == GONE {
                self.slots[last].store(EMPTY, Ordering::Relaxed);
                last = (last + SLOTS - 1) % SLOTS;
            }
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// The portal with the lowest address that overlaps `begin..end`.
    pub(crate) fn first_in(&self, begin: u64, end: u64) -> Option<Portal> {
        if self.is_empty() {
            return None;
        }
        // A short range is looked up page by page; a long one is compared with every portal.
        let (first, last) = (begin / PORTAL_BYTES, end.div_ceil(PORTAL_BYTES));
        if last.saturating_sub(first) <= 16 {
            return (first..last).find_map(|page| self.find(page * PORTAL_BYTES));
        }
        let words = self.slots.iter().map(|slot| slot.load(Ordering::Acquire));
        let portals = words.filter(|word| !matches!(*word, EMPTY | GONE)).map(Portal::from_word);
        portals
            .filter(|portal| portal.address < end && portal.address + PORTAL_BYTES > begin)
            .min_by_key(|portal| portal.address)
    }

    /// Removes all: in a forked child, which inherits no portal.
    pub(crate) fn clear(&self) {
        for slot in &self.slots {
            if slot.load(Ordering::Relaxed) != EMPTY {
                slot.store(EMPTY, Ordering::Relaxed);
            }
        }
        self.count.store(0, Ordering::Relaxed);
    }
}

/// The first slot of the search for a page: multiplication by the golden ratio spreads neighbouring pages.
#[allow(clippy::cast_possible_truncation, reason = "reduced below the number of slots")]
fn start(page: u64) -> usize {
    (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portal(page: u64, file: u16) -> Portal {
        Portal { address: page * PORTAL_BYTES, file, writable: page.is_multiple_of(2), may_write: true }
    }

    #[test]
    fn every_address_of_a_page_finds_it_and_no_other_does() {
        let table = Box::new(Table::new());
        // The highest page of five-level user space has 45 bits.
        let pages = [1, 2, 0x7_ffff_ffff, (1 << 45) - 1];
        for (file, page) in (7..).zip(pages) {
            assert!(table.insert(portal(page, file)));
        }
        for (file, page) in (7..).zip(pages) {
            for offset in [0, 64, 4095] {
                assert_eq!(table.find(page * PORTAL_BYTES + offset), Some(portal(page, file)));
            }
        }
        assert_eq!(table.find(0), None);
        assert_eq!(table.find(3 * PORTAL_BYTES), None);
    }

    #[test]
    fn many_insertions_and_removals_leave_no_used_slots() {
        let table = Box::new(Table::new());
        for round in 0..100_000 {
            let page = 0x7000 + round * 3;
            assert!(table.insert(portal(page, 1)));
            if round >= 50 {
                let old = portal(page - 150, 1);
                table.remove(&old);
                assert_eq!(table.find(old.address), None);
            }
            assert_eq!(table.find(page * PORTAL_BYTES), Some(portal(page, 1)));
        }
        table.clear();
        assert!(table.is_empty());
        assert!(table.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == EMPTY));
    }

    #[test]
    fn a_full_table_refuses_and_still_finds_everything() {
        let table = Box::new(Table::new());
        let most = MAX_PORTALS as u64;
        assert!((1..=most).all(|page| table.insert(portal(page, 3))));
        assert!(!table.insert(portal(most + 1, 3)));
        assert!((1..=most).all(|page| table.find(page * PORTAL_BYTES) == Some(portal(page, 3))));
    }

    #[test]
    fn short_and_long_ranges_find_their_lowest_portal() {
        let table = Box::new(Table::new());
        for page in [100, 90, 5000] {
            assert!(table.insert(portal(page, 0)));
        }
        let page = |page: u64| page * PORTAL_BYTES;
        for (begin, end, found) in [
            (page(90), page(91), Some(90)),
            (page(89), page(90), None),
            (page(89) + 5, page(90) + 1, Some(90)),
            (page(91), page(100), None),
            (page(91), page(101), Some(100)),
            (0, u64::MAX - page(1), Some(90)),
            (page(101), page(1 << 40), Some(5000)),
        ] {
            assert_eq!(table.first_in(begin, end).map(|portal| portal.address / PORTAL_BYTES), found);
        }
    }

    #[test]
    fn an_update_is_visible() {
        let table = Box::new(Table::new());
        assert!(table.insert(portal(4, 9)));
        let changed = Portal { writable: false, ..portal(4, 9) };
        table.update(changed);
        assert_eq!(table.find(4 * PORTAL_BYTES), Some(changed));
    }
}
