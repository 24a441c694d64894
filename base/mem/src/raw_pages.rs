//! Pages that are known by their address only.

use crate::map::{MapError, Mapping};
use crate::region::{PageSize, whole};
use std::ops::Range;

/// Bytes of a huge page, to which every tract is aligned. Source: x86-64 page tables, level 2.
const HUGE_BYTES: usize = 2 << 20;

/// Owned anonymous memory, for code that moves its pages, maps others in their place, or hands out parts of it. Gives
/// no reference to its bytes. Unmapped on drop.
#[derive(Debug)]
pub struct RawPages {
    mapping: Mapping,
    /// Offset of its first byte in the mapping, past the alignment padding.
    offset: usize,
    len: usize,
}

impl RawPages {
    /// Maps `len` bytes, rounded up and aligned to 2 MiB. The pages are small and stay small, or are transparent huge
    /// pages as far as the system has any. No page is present until it is [populated](RawPages::populate).
    ///
    /// # Errors
    /// The system's refusal, for example when the address space is exhausted.
    pub fn new(len: usize, pages: PageSize) -> Result<RawPages, MapError> {
        let len = whole(len, HUGE_BYTES)?;
        let mapping =
            Mapping::anonymous(whole(len.saturating_add(HUGE_BYTES), HUGE_BYTES)?, libc::MAP_NORESERVE, "map")?;
        match pages {
            PageSize::Small => mapping.advise_small(),
            PageSize::Huge => mapping.advise_huge(),
        }
        let offset = mapping.as_ptr().align_offset(HUGE_BYTES);
        Ok(RawPages { mapping, offset, len })
    }

    /// Returns the address of its first byte.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.mapping.as_ptr().addr() as u64 + self.offset as u64
    }

    /// Returns the pointer to its first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr().wrapping_add(self.offset)
    }

    /// Returns its address range.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start()..self.start() + self.len as u64
    }

    /// Binds its pages to this NUMA node.
    ///
    /// # Errors
    /// The system's refusal: no such node, or one this process may not use.
    pub fn bind(&self, node: u32) -> Result<(), MapError> {
        self.mapping.bind(node)
    }

    /// Excludes it from the memory of forked children.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn keep_from_children(&self) -> Result<(), MapError> {
        self.mapping.keep_from_children()
    }

    /// Makes all pages of a range present, without changing a byte.
    ///
    /// # Errors
    /// The system's refusal: too little memory, or too little on the node it is bound to.
    ///
    /// # Panics
    /// If the range does not lie in this memory.
    pub fn populate(&self, range: Range<u64>) -> Result<(), MapError> {
        let (offset, len) = self.place(range);
        self.mapping.populate(offset, len)
    }

    /// Returns the pages of a range to the system. The range consists of whole pages.
    ///
    /// # Errors
    /// The system's refusal, for example when the pages are locked in memory.
    ///
    /// # Panics
    /// If the range does not lie in this memory.
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
        // Both fit: they lie in the mapping, whose length is a `usize`.
        let offset = usize::try_from(range.start - all.start).expect("in the mapping");
        (self.offset + offset, usize::try_from(range.end - range.start).expect("in the mapping"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_os::Scan;

    fn pages_there(tract: &RawPages) -> u64 {
        let mut there = 0;
        Scan::open().unwrap().present(tract.range(), |run| there += run.pages()).unwrap();
        there
    }

    #[test]
    fn pages_are_populated_and_discarded() {
        if Scan::open().is_err() {
            return;
        }
        let tract = RawPages::new(3 << 20, PageSize::Small).unwrap();
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
        let tract = RawPages::new(4096, PageSize::Small).unwrap();
        let _ = tract.populate(tract.range().end..tract.range().end + 4096);
    }
}
