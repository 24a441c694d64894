//! Simulated memory: the placement of address ranges. Only the descriptor lists of batches have contents.

use std::collections::BTreeSet;
use telpher_abi::Descriptor;

/// Address bits within a region.
const REGION_BITS: u32 = 40;

/// The placement of a memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BufferPlacement {
    /// Memory node.
    pub node: usize,
    /// Page size in bytes.
    pub page: u64,
    /// Where its lines are when an operation begins.
    pub lines: LineLocation,
    /// Offset of the buffers from the start of a line, in bytes.
    pub skew: u32,
    /// True if its pages are mapped. Otherwise each page faults at its first access.
    pub present: bool,
    /// Total bytes that a thread's consecutive buffers cover before they repeat; 0 means only the buffers in flight.
    pub footprint: u64,
}

/// The location of a buffer's lines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub enum LineLocation {
    /// In memory, not in a cache.
    #[default]
    Memory,
    /// In the last-level cache.
    Llc,
    /// In memory, and a core writes them past the caches, with non-temporal stores. To all other accesses as `Memory`.
    Streamed,
}

impl BufferPlacement {
    /// Memory of a node: pages of 4 KiB, mapped, not cached, aligned.
    #[must_use]
    pub const fn on(node: usize) -> Self {
        BufferPlacement { node, page: 4096, lines: LineLocation::Memory, skew: 0, present: true, footprint: 0 }
    }
}

/// All regions of a simulation.
#[derive(Debug, Default)]
pub struct SimulatedMemory {
    regions: Vec<Region>,
    /// First addresses of the pages that were mapped in regions without present pages.
    brought: BTreeSet<u64>,
    /// True if a region without present pages exists.
    empty: bool,
}

#[derive(Debug)]
struct Region {
    place: BufferPlacement,
    /// Bytes of the region that are in use.
    extent: u64,
    /// Bytes from the end of its last buffer to the next page.
    left: u64,
    /// True if a device wrote to it through the cache.
    cached: bool,
    list: Vec<Descriptor>,
}

impl Region {
    fn of(place: BufferPlacement, list: Vec<Descriptor>) -> Self {
        Region { place, extent: 0, left: 0, cached: false, list }
    }
}

impl SimulatedMemory {
    /// Adds a region; returns the address of its first byte.
    pub fn add(&mut self, place: BufferPlacement) -> u64 {
        self.add_of(place, place.footprint)
    }

    /// Like [`add`](SimulatedMemory::add), with the number of bytes in use.
    pub fn add_of(&mut self, place: BufferPlacement, extent: u64) -> u64 {
        self.empty |= !place.present;
        self.regions.push(Region { extent, ..Region::of(place, Vec::new()) });
        ((self.regions.len() as u64) << REGION_BITS) + u64::from(place.skew)
    }

    /// Places a region's next buffer behind the last one. Returns the number of pages that it enters, and whether the
    /// region has more than `known` pages.
    #[inline]
    pub(crate) fn enter(&mut self, address: u64, bytes: u64, known: u64) -> (u64, bool) {
        let Some(region) = self.region_mut(address) else { return (0, false) };
        let Some(beyond) = bytes.checked_sub(region.left + 1) else {
            region.left -= bytes;
            return (0, false);
        };
        let page = region.place.page.max(4096);
        region.left = page - 1 - beyond % page;
        (beyond / page + 1, region.place.footprint > known.saturating_mul(page))
    }

    /// True if no page of any region is or was missing.
    #[must_use]
    pub fn all_there(&self) -> bool {
        !self.empty
    }

    /// The first byte from `address` on whose page is missing.
    #[must_use]
    pub fn first_missing(&self, address: u64, bytes: u64) -> Option<u64> {
        let place = self.at(address).filter(|place| !place.present)?;
        let pages = pages_of(place.page, address, bytes);
        pages.into_iter().find(|page| !self.brought.contains(page)).map(|page| page.max(address))
    }

    /// Maps the pages of these bytes; returns how many were missing.
    pub fn touch(&mut self, address: u64, bytes: u64) -> u64 {
        let Some(place) = self.at(address).filter(|place| !place.present) else { return 0 };
        pages_of(place.page, address, bytes).into_iter().filter(|page| self.brought.insert(*page)).count() as u64
    }

    /// Adds a region that holds a descriptor list; returns its address.
    pub fn add_list(&mut self, place: BufferPlacement, list: Vec<Descriptor>) -> u64 {
        self.regions.push(Region::of(place, list));
        (self.regions.len() as u64) << REGION_BITS
    }

    /// Puts a descriptor list in the region of an `old` list that is no longer used; adds a region if there is none.
    pub fn list_again(&mut self, old: Option<u64>, place: BufferPlacement, list: Vec<Descriptor>) -> u64 {
        match old.and_then(|address| Some((address, self.region_mut(address)?))) {
            Some((address, region)) => {
                *region = Region::of(place, list);
                address
            }
            None => self.add_list(place, list),
        }
    }

    fn region(&self, address: u64) -> Option<&Region> {
        let number = usize::try_from(address >> REGION_BITS).ok()?;
        self.regions.get(number.checked_sub(1)?)
    }

    fn region_mut(&mut self, address: u64) -> Option<&mut Region> {
        let number = usize::try_from(address >> REGION_BITS).ok()?;
        self.regions.get_mut(number.checked_sub(1)?)
    }

    /// The placement of an address; `None` if it is in no region.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<BufferPlacement> {
        self.region(address).map(|region| region.place)
    }

    /// Notes that a device writes `bytes` of a region through the cache. The first time it returns the region's bytes
    /// in use.
    pub(crate) fn cached(&mut self, address: u64, bytes: u64) -> Option<u64> {
        let region = self.region_mut(address)?;
        (!std::mem::replace(&mut region.cached, true)).then_some(region.extent.max(bytes))
    }

    /// The descriptor at an address within a list.
    #[must_use]
    #[inline]
    pub fn descriptor(&self, address: u64) -> Option<&Descriptor> {
        let index = (address & ((1 << REGION_BITS) - 1)) / 64;
        self.region(address)?.list.get(usize::try_from(index).ok()?)
    }
}

/// First addresses of the pages that contain these bytes.
fn pages_of(page: u64, address: u64, bytes: u64) -> impl IntoIterator<Item = u64> {
    // No machine has smaller pages.
    let page = page.max(4096);
    let first = address / page;
    let last = if bytes == 0 { first } else { (address + (bytes - 1)) / page + 1 };
    (first..last).map(move |number| number * page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_identifies_its_region() {
        let mut places = SimulatedMemory::default();
        let far = BufferPlacement::on(1);
        let near = places.add(BufferPlacement::on(0));
        let list = places.add_list(far, vec![Descriptor::nop(), Descriptor::fill(1, near, 64)]);
        assert_eq!(places.at(near + 12345).map(|place| place.node), Some(0));
        assert_eq!(places.at(list), Some(far));
        assert_eq!(places.descriptor(list + 64).map(|d| d.dst()), Some(near));
        assert_eq!(places.descriptor(list + 128), None);
        assert_eq!((places.at(0), places.at(u64::MAX)), (None, None));
        let ring = places.add_of(far, 1 << 20);
        assert_eq!([ring + 64, ring, near].map(|address| places.cached(address, 64)), [Some(1 << 20), None, Some(64)]);
    }

    #[test]
    fn adjacent_buffers_enter_each_page_once() {
        let mut places = SimulatedMemory::default();
        let (ring, far) = (
            places.add(BufferPlacement::on(0)),
            places.add(BufferPlacement { footprint: 1 << 30, ..BufferPlacement::on(0) }),
        );
        let entered: Vec<u64> = (0..128).map(|_| places.enter(far, 64, 4096).0).collect();
        assert_eq!((entered.iter().sum::<u64>(), entered[0], entered[64]), (2, 1, 1));
        assert_eq!([10_000, 2288, 1].map(|bytes| places.enter(far, bytes, 4096)), [(3, true), (0, false), (1, true)]);
        assert_eq!((places.enter(ring, 4096, 4096), places.enter(far, 4096, 1 << 18)), ((1, false), (1, false)));
        assert_eq!((places.enter(ring, 0, 0), places.enter(0, 4096, 0)), ((0, false), (0, false)));
    }

    #[test]
    fn a_page_is_missing_until_it_is_touched() {
        let mut places = SimulatedMemory::default();
        let (there, new) = (
            places.add(BufferPlacement::on(0)),
            places.add(BufferPlacement { present: false, skew: 8, ..BufferPlacement::on(0) }),
        );
        assert!(!places.all_there());
        assert_eq!((places.touch(there, 1 << 20), places.first_missing(there, 1 << 20)), (0, None));
        assert_eq!(places.first_missing(new, 8192), Some(new));
        assert_eq!(places.touch(new, 4088), 1);
        assert_eq!(places.first_missing(new, 8192), Some(new - 8 + 4096));
        assert_eq!((places.touch(new, 8192), places.touch(new, 8192)), (2, 0));
        assert_eq!((places.first_missing(new, 8192), places.touch(new, 0)), (None, 0));
    }
}
