//! Pages that are known by their address only.

use crate::map::{MapError, Mapping};
use crate::region::{PageSize, whole};
use std::ops::Range;

/// Bytes of a huge page, to which every tract is aligned. Source: x86-64 page tables, level 2.
const HUGE_BYTES: usize = 2 << 20;

/// Owned anonymous memory that nobody has a reference to: for those who move its pages away and put others there. Unmapped on drop.
#[derive(Debug)]
pub struct Tract {
    mapping: Mapping,
    /// Where it begins in the mapping: past what aligns it.
    offset: usize,
    len: usize,
}

impl Tract {
    /// Maps `len` bytes, rounded up to 2 MiB and aligned so: of small pages, which stay small, or of transparent huge ones as far as there are
    /// any. No page is there until it is [made present](Tract::populate).
    ///
    /// # Errors
    /// The system's refusal, for example when the address space is exhausted.
    pub fn new(len: usize, pages: PageSize) -> Result<Tract, MapError> {
        let len = whole(len, HUGE_BYTES)?;
        let mapping =
            Mapping::anonymous(whole(len.saturating_add(HUGE_BYTES), HUGE_BYTES)?, libc::MAP_NORESERVE, "map")?;
        match pages {
            PageSize::Small => mapping.advise_small(),
            PageSize::Huge => mapping.advise_huge(),
        }
        let offset = mapping.as_ptr().align_offset(HUGE_BYTES);
        Ok(Tract { mapping, offset, len })
    }

    /// Address of its first byte.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.mapping.as_ptr().addr() as u64 + self.offset as u64
    }

    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start()..self.start() + self.len as u64
    }

    /// Has its pages on this NUMA node only.
    ///
    /// # Errors
    /// The system's refusal: no such node, or one this process may not use.
    pub fn bind(&self, node: u32) -> Result<(), MapError> {
        self.mapping.bind(node)
    }

    /// Keeps it from forked children: it is not in their memory.
    ///
    /// # Errors
    /// The system's.
    pub fn keep_from_children(&self) -> Result<(), MapError> {
        self.mapping.keep_from_children()
    }

    /// Makes all pages of a range of it present, without changing a byte.
    ///
    /// # Errors
    /// The system's refusal: not so much memory, or not on the node it is bound to.
    ///
    /// # Panics
    /// If the range does not lie in it.
    pub fn populate(&self, range: Range<u64>) -> Result<(), MapError> {
        let (offset, len) = self.place(range);
        self.mapping.populate(offset, len)
    }

    /// Gives the pages of a range back to the system. The range is of whole pages.
    ///
    /// # Errors
    /// The system's refusal, for example when the pages are locked in memory.
    ///
    /// # Panics
    /// If the range does not lie in it.
    pub fn discard(&self, range: Range<u64>) -> Result<(), MapError> {
        let (offset, len) = self.place(range);
        self.mapping.discard(offset, len)
    }

    fn place(&self, range: Range<u64>) -> (usize, usize) {
        let all = self.range();
        assert!(
            all.start <= range.start && range.start <= range.end && range.end <= all.end,
            "{range:#x?} lies in a tract at {all:#x?}"
        );
        // Both lie in the mapping, whose length is a `usize`.
        let offset = usize::try_from(range.start - all.start).expect("in the mapping");
        (self.offset + offset, usize::try_from(range.end - range.start).expect("in the mapping"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_os::Scan;

    fn pages_there(tract: &Tract) -> u64 {
        let mut there = 0;
        Scan::open().unwrap().present(tract.range(), |run| there += run.pages()).unwrap();
        there
    }

    #[test]
    fn pages_come_when_asked_for_and_go() {
        if Scan::open().is_err() {
            return;
        }
        let tract = Tract::new(3 << 20, PageSize::Small).unwrap();
        let all = tract.range();
        assert_eq!((all.start % (2 << 20), all.end - all.start), (0, 4 << 20));
        assert_eq!(pages_there(&tract), 0);
        tract.populate(all.start + 4096..all.start + 3 * 4096).unwrap();
        assert_eq!(pages_there(&tract), 2);
        tract.discard(all.start..all.start + 2 * 4096).unwrap();
        assert_eq!(pages_there(&tract), 1);
    }

    #[test]
    #[should_panic(expected = "lies in a tract")]
    fn only_its_own_pages_are_populated() {
        let tract = Tract::new(4096, PageSize::Small).unwrap();
        let _ = tract.populate(tract.range().end..tract.range().end + 4096);
    }
}
