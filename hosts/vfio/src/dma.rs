//! The guest addresses that a function may access: an interval map of the client's DMA_MAP requests.
//!
//! A client removes and maps its memory again while firmware changes the memory map, in pieces of other sizes, some
//! read-only, some without a file. A range may therefore span several maps.

use crate::wire::{DmaRegion, Errno, dma_flags};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use telpher_mem::{PAGE_BYTES, torn_pages};
use telpher_vhost::{GuestMemory, MemoryError, Region};

/// The most maps without a file. Source: chosen; firmware makes a handful.
const MOST_WITHOUT_FILE: usize = 1024;

/// One map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DmaRange {
    pub(crate) len: u64,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// The address of its first byte in this process; `None` without a file.
    pub(crate) host: Option<u64>,
    offset: u64,
}

/// Why a map was refused: a number for the client, and a reason for the log.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) errno: Errno,
    pub(crate) reason: String,
}

fn refused(errno: Errno, reason: impl Into<String>) -> Refused {
    Refused { errno, reason: reason.into() }
}

/// All maps of one client.
#[derive(Debug, Default)]
pub(crate) struct DmaMap {
    /// By guest address; they do not overlap.
    ranges: BTreeMap<u64, DmaRange>,
    /// The mapped files of those that have one.
    memory: GuestMemory,
}

impl DmaMap {
    /// Adds a map. Addresses and lengths are multiples of a page.
    ///
    /// # Errors
    /// The request contradicts the other maps or the limits, or its file cannot be mapped. Nothing has changed then.
    pub(crate) fn add(&mut self, region: DmaRegion, mut files: Vec<OwnedFd>) -> Result<(), Refused> {
        let DmaRegion { flags, offset, address, len } = region;
        let (read, write) = (flags & dma_flags::READ != 0, flags & dma_flags::WRITE != 0);
        let pages = [address, len].iter().all(|value| value.is_multiple_of(PAGE_BYTES));
        let end = address.checked_add(len).filter(|_| len > 0);
        let (true, Some(end), 0..=1) = (pages, end, files.len()) else {
            return Err(refused(Errno::Invalid, "it is not a range of whole pages with at most one file"));
        };
        if let Some((other, range)) =
            self.ranges.range(..end).next_back().filter(|(at, range)| **at + range.len > address)
        {
            let reason = format!("it overlaps the map of {:#x} bytes at {other:#x}", range.len);
            return Err(refused(Errno::Exists, reason));
        }
        let host = match files.pop() {
            Some(file) => {
                let region = Region { guest: address, len, user: address, offset };
                self.memory = self.memory.with(region, file.as_fd()).map_err(|error| {
                    let full = matches!(error.source, MemoryError::Many);
                    refused(if full { Errno::NoMemory } else { Errno::Invalid }, telpher_os::chain(&error))
                })?;
                self.memory.host(address, 1)
            }
            None if self.ranges.len() - self.memory.regions() >= MOST_WITHOUT_FILE => {
                return Err(refused(Errno::NoMemory, "there are too many maps without a file"));
            }
            None => None,
        };
        self.ranges.insert(address, DmaRange { len, read, write, host, offset });
        Ok(())
    }

    /// Removes the maps in a range, which must contain each of them completely.
    ///
    /// # Errors
    /// The range cuts a map, or has none. Nothing has changed then.
    pub(crate) fn remove(&mut self, address: u64, len: u64) -> Result<(), Errno> {
        let end = address.checked_add(len).filter(|_| len > 0).ok_or(Errno::Invalid)?;
        let cuts = |(at, range): (&u64, &DmaRange)| *at < address && *at + range.len > address || *at + range.len > end;
        let touched = self.ranges.range(..end).rev().take_while(|(at, range)| **at + range.len > address);
        let found: Vec<u64> = touched.clone().map(|(at, _)| *at).collect();
        if touched.clone().any(cuts) {
            return Err(Errno::Invalid);
        }
        if found.is_empty() {
            return Err(Errno::NoEntry);
        }
        for at in found {
            self.remove_one(at);
        }
        Ok(())
    }

    fn remove_one(&mut self, address: u64) {
        let Some(range) = self.ranges.remove(&address) else { return };
        if range.host.is_some() {
            let region = Region { guest: address, len: range.len, user: address, offset: range.offset };
            // Cannot fail: the region was added with these fields.
            if let Ok(memory) = self.memory.without(region) {
                self.memory = memory;
            }
        }
    }

    /// Removes all maps.
    pub(crate) fn clear(&mut self) {
        *self = DmaMap::default();
    }

    /// Returns the map that contains an address, and where it begins.
    #[inline]
    pub(crate) fn range_of(&self, address: u64) -> Option<(u64, DmaRange)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.len).then_some((*start, *range))
    }

    /// True if no mapped file was found shorter than its map. See [`telpher_mem::SharedMapping::is_whole`].
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        torn_pages() == 0 || self.memory.is_whole()
    }

    /// The number of maps.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    /// A file in memory.
    pub(crate) fn file(len: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, len).unwrap();
        file
    }

    pub(crate) fn region(address: u64, len: u64, flags: u32) -> DmaRegion {
        DmaRegion { flags, offset: 0, address, len }
    }

    fn errno(refusal: Result<(), Refused>) -> Errno {
        refusal.unwrap_err().errno
    }

    #[test]
    fn ranges_are_found_by_any_of_their_addresses() {
        let mut map = DmaMap::default();
        map.add(region(0x10_0000, 0x4000, 3), vec![file(0x4000)]).unwrap();
        map.add(region(0xc_0000, 0x1000, 1), Vec::new()).unwrap();
        assert!(map.range_of(0xb_ffff).is_none() && map.range_of(0x10_4000).is_none());
        let (start, range) = map.range_of(0x10_3fff).unwrap();
        assert_eq!((start, range.read, range.write, range.host.is_some()), (0x10_0000, true, true, true));
        let (start, range) = map.range_of(0xc_0fff).unwrap();
        assert_eq!((start, range.read, range.write, range.host), (0xc_0000, true, false, None));
    }

    #[test]
    fn the_firmware_replaces_all_memory_by_pieces_and_back() {
        let mut map = DmaMap::default();
        for _ in 0..3 {
            map.add(region(0, 0x20_0000, 3), vec![file(0x20_0000)]).unwrap();
            assert_eq!(map.remove(0, 0x10_0000), Err(Errno::Invalid), "half of a map");
            assert_eq!(map.remove(0x1000, u64::MAX - 0x1000), Err(Errno::Invalid));
            map.remove(0, 0x20_0000).unwrap();
            map.add(region(0, 0xc_0000, 3), vec![file(0xc_0000)]).unwrap();
            map.add(region(0xc_0000, 0x4_0000, 1), Vec::new()).unwrap();
            map.add(region(0x10_0000, 0x10_0000, 3), vec![file(0x10_0000)]).unwrap();
            assert_eq!(map.len(), 3);
            map.remove(0, 0x20_0000).unwrap();
            assert_eq!((map.len(), map.remove(0, 0x20_0000)), (0, Err(Errno::NoEntry)));
        }
    }

    #[test]
    fn wrong_requests_are_refused_and_change_nothing() {
        let mut map = DmaMap::default();
        map.add(region(0x2000, 0x2000, 3), vec![file(0x2000)]).unwrap();
        for (address, len) in [(0, 0), (1, 0x1000), (0, 0xfff), (u64::MAX - 0xfff, 0x2000)] {
            assert_eq!(errno(map.add(region(address, len, 3), vec![file(0x4000)])), Errno::Invalid);
        }
        for (address, len) in [(0, 0x3000), (0x3000, 0x1000), (0x1000, 0x10000), (0x2000, 0x2000)] {
            assert_eq!(errno(map.add(region(address, len, 3), vec![file(0x10000)])), Errno::Exists);
        }
        assert_eq!(errno(map.add(region(0x8000, 0x2000, 3), vec![file(0x1000)])), Errno::Invalid, "a short file");
        assert_eq!(errno(map.add(region(0x8000, 0x1000, 3), vec![file(0x1000), file(0x1000)])), Errno::Invalid);
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn there_is_a_limit_of_maps_with_and_without_a_file() {
        let mut map = DmaMap::default();
        let memory = file(0x1000);
        let add = |map: &mut DmaMap, n: u64, with: bool| {
            let files = if with { vec![memory.try_clone().unwrap()] } else { Vec::new() };
            map.add(region(n * 0x1000, 0x1000, 3), files)
        };
        let most = telpher_vhost::MOST_REGIONS as u64;
        (0..most).for_each(|n| add(&mut map, n, true).unwrap());
        assert_eq!(errno(add(&mut map, most, true)), Errno::NoMemory);
        (0..MOST_WITHOUT_FILE as u64).for_each(|n| add(&mut map, most + n, false).unwrap());
        assert_eq!(errno(add(&mut map, 1 << 30, false)), Errno::NoMemory);
        map.clear();
        assert_eq!(map.len(), 0);
    }
}
