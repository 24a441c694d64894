//! Owned memory that consists of whole pages.
#![allow(unsafe_code, reason = "makes slices of an owned mapping")]

use crate::map::{MapError, Mapping, SMALL_BYTES};
use std::ops::{Deref, DerefMut, Range};

/// Bytes of a huge page. Source: x86-64 page tables, level 2.
const HUGE_BYTES: usize = 2 << 20;

/// Bytes of the largest page. Source: x86-64 page tables, level 3.
const GIGANTIC_BYTES: usize = 1 << 30;

/// The page size that a [`Region`] asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum PageSize {
    /// 4 KiB.
    #[default]
    Small,
    /// 2 MiB: from the pool of huge pages if it has enough (`vm.nr_hugepages`), else transparent huge pages, else small
    /// pages. [`Region::backing`] reports the result.
    Huge,
}

/// The pages that a [`Region`] got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Backing {
    /// 4 KiB pages.
    Small,
    /// 2 MiB pages from the system's pool.
    HugePool,
    /// 1 GiB pages from the system's pool.
    GiganticPool,
    /// Aligned to 2 MiB and advised to use huge pages. The system uses them where it can, unless they are switched off.
    Transparent,
}

/// Owned, zeroed, page-aligned memory that is a slice of bytes.
///
/// Its pages are not present until first touched: a device that does not fault pages in finds them missing.
///
/// ```
/// use telpher_mem::{PageSize, Region};
///
/// let mut region = Region::new(10_000, PageSize::Small)?;
/// region[9_999] = 7;
/// assert_eq!(region.len(), 10_000);
/// assert_eq!(region.as_ptr().addr() % 4096, 0);
/// # Ok::<(), telpher_mem::MapError>(())
/// ```
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    /// Offset of the slice in the mapping, past the padding that aligns it.
    offset: usize,
    /// Bytes of the slice.
    len: usize,
    backing: Backing,
}

impl Region {
    /// Maps `len` bytes, rounded up internally to whole pages.
    ///
    /// # Errors
    /// The system's refusal, for example when the address space or the memory limit is exhausted.
    pub fn new(len: usize, pages: PageSize) -> Result<Region, MapError> {
        match pages {
            PageSize::Small => {
                let mapping = Mapping::anonymous(whole(len, SMALL_BYTES)?, 0, "map")?;
                Ok(Region { mapping, offset: 0, len, backing: Backing::Small })
            }
            PageSize::Huge => Self::huge(len),
        }
    }

    fn huge(len: usize) -> Result<Region, MapError> {
        let bytes = whole(len, HUGE_BYTES)?;
        let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        if let Ok(mapping) = Mapping::anonymous(bytes, flags, "map from the pool of huge pages") {
            return Ok(Region { mapping, offset: 0, len, backing: Backing::HugePool });
        }
        // Maps one huge page more, so that an aligned range of enough bytes fits at any start address.
        let mapping = Mapping::anonymous(whole(bytes.saturating_add(HUGE_BYTES), HUGE_BYTES)?, 0, "map")?;
        mapping.advise_huge();
        let offset = mapping.as_ptr().align_offset(HUGE_BYTES);
        Ok(Region { mapping, offset, len, backing: Backing::Transparent })
    }

    /// Maps `len` bytes of 1 GiB pages from the system's pool, which it takes whole.
    ///
    /// # Errors
    /// The system's refusal, for example when its pool has too few such pages.
    pub fn gigantic(len: usize) -> Result<Region, MapError> {
        let flags = libc::MAP_HUGETLB | libc::MAP_HUGE_1GB;
        let mapping = Mapping::anonymous(whole(len, GIGANTIC_BYTES)?, flags, "map, in pages of 1 GiB,");
        let advice = "reserve such pages: boot with `hugepagesz=1G hugepages=N`, or write N to \
                      /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
        let mapping = mapping.map_err(|error| MapError { advice, ..error })?;
        Ok(Region { mapping, offset: 0, len, backing: Backing::GiganticPool })
    }

    /// Returns the kind of pages that back it.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// Binds its pages to this NUMA node, including those that are already present.
    ///
    /// # Errors
    /// The system's refusal: no such node, or one this process may not use.
    pub fn bind(&mut self, node: u32) -> Result<(), MapError> {
        self.mapping.bind(node)
    }

    /// Makes all its pages present without changing a byte.
    ///
    /// # Errors
    /// The system's refusal: too little memory, or too little on the node it is bound to.
    pub fn populate(&mut self) -> Result<(), MapError> {
        self.mapping.populate(self.offset, self.len)
    }

    /// Returns the whole pages inside `range` to the system: they read as zero, and are not present until touched.
    ///
    /// # Errors
    /// The system's refusal, for example when the pages are locked in memory.
    ///
    /// # Panics
    /// If the range does not lie in the region.
    pub fn discard(&mut self, range: Range<usize>) -> Result<(), MapError> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} lies in a region of {} bytes", self.len);
        let page = match self.backing {
            Backing::Small | Backing::Transparent => SMALL_BYTES,
            Backing::HugePool => HUGE_BYTES,
            Backing::GiganticPool => GIGANTIC_BYTES,
        };
        let start = range.start.next_multiple_of(page);
        // A partial last page is possible only if the region ends in it; then nothing else lies on that page.
        let end = if range.end == self.len { self.len.next_multiple_of(page) } else { range.end - range.end % page };
        if start < end { self.mapping.discard(self.offset + start, end - start) } else { Ok(()) }
    }
}

/// `len` rounded up to a positive multiple of `page`.
pub(crate) fn whole(len: usize, page: usize) -> Result<usize, MapError> {
    len.max(1).checked_next_multiple_of(page).ok_or_else(|| MapError {
        attempt: "map",
        len: len as u64,
        advice: "ask for less than the address space",
        source: std::io::ErrorKind::OutOfMemory.into(),
    })
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: offset + len lies in the mapping, which is initialised (zero), readable while `self` lives, and
        // written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(self.offset), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and exclusive because `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr().add(self.offset), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_region_is_zero_and_writable_to_its_last_byte() {
        for pages in [PageSize::Small, PageSize::Huge] {
            for len in [0, 1, 4096, 4097, (2 << 20) + 1] {
                let mut region = Region::new(len, pages).unwrap();
                assert_eq!(region.len(), len);
                assert!(region.iter().all(|&byte| byte == 0));
                region.fill(9);
                assert!(region.iter().all(|&byte| byte == 9));
            }
        }
    }

    #[test]
    fn huge_pages_are_aligned_whatever_backs_them() {
        let region = Region::new(3 << 20, PageSize::Huge).unwrap();
        assert_ne!(region.backing(), Backing::Small);
        assert_eq!(region.as_ptr().addr() % HUGE_BYTES, 0);
    }

    #[test]
    fn pages_of_1_gib_are_got_or_the_refusal_says_how_to_reserve_them() {
        match Region::gigantic(10) {
            Ok(region) => {
                assert_eq!((region.len(), region.as_ptr().addr() % GIGANTIC_BYTES), (10, 0));
                assert_eq!(region.backing(), Backing::GiganticPool);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(text.starts_with("cannot map, in pages of 1 GiB, 1073741824 bytes; reserve such"), "{text}");
            }
        }
        let error = Region::gigantic(1 << 62).unwrap_err();
        assert!(error.to_string().contains("nr_hugepages"), "{error}");
    }

    #[test]
    fn discarded_pages_read_as_zero_and_their_neighbours_stay() {
        let mut region = Region::new(4 * 4096 + 10, PageSize::Small).unwrap();
        region.fill(5);
        region.discard(100..3 * 4096 - 1).unwrap();
        assert!(region[..4096].iter().all(|&byte| byte == 5));
        assert!(region[4096..2 * 4096].iter().all(|&byte| byte == 0));
        assert!(region[2 * 4096..].iter().all(|&byte| byte == 5));
        region.discard(4 * 4096..4 * 4096 + 10).unwrap();
        assert!(region[4 * 4096..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_refusal_names_attempt_reason_and_remedy() {
        let error = Region::new(1 << 60, PageSize::Small).unwrap_err();
        assert!(error.to_string().starts_with("cannot map 1152921504606846976 bytes; ask for less"), "{error}");
        assert_eq!(error.source.kind(), std::io::ErrorKind::OutOfMemory);
        assert!(Region::new(usize::MAX, PageSize::Huge).is_err());
    }
}
