//! Simulated memory: which addresses lie where. Nothing is stored in it but the descriptor lists of batches.

use telpher_abi::Descriptor;

/// Each region has this many address bits for itself.
const REGION_BITS: u32 = 40;

/// Where a region of memory lies, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Place {
    /// Memory node.
    pub node: usize,
    /// Bytes of a page.
    pub page: u64,
    /// Where its lines are when an operation begins.
    pub lines: Lines,
    /// Bytes by which the buffers begin behind the start of a line.
    pub skew: u32,
    /// Its pages are mapped. One that is not faults when it is first touched.
    pub present: bool,
    /// Bytes through which a thread's buffers walk, one after the other; 0 is as many as are in flight.
    pub footprint: u64,
}

/// Where the lines of a buffer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub enum Lines {
    /// In memory, in no cache.
    #[default]
    Memory,
    /// In the last-level cache.
    Llc,
}

impl Place {
    /// Memory of a node: pages of 4 KiB, mapped, in no cache, aligned.
    #[must_use]
    pub const fn on(node: usize) -> Self {
        Place { node, page: 4096, lines: Lines::Memory, skew: 0, present: true, footprint: 0 }
    }
}

/// All regions of a simulation.
#[derive(Debug, Default)]
pub struct Places {
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    place: Place,
    list: Vec<Descriptor>,
}

impl Places {
    /// A region; the address of its first byte.
    pub fn add(&mut self, place: Place) -> u64 {
        self.regions.push(Region { place, list: Vec::new() });
        (self.regions.len() as u64) << REGION_BITS
    }

    /// A region that holds a descriptor list.
    pub fn add_list(&mut self, place: Place, list: Vec<Descriptor>) -> u64 {
        self.regions.push(Region { place, list });
        (self.regions.len() as u64) << REGION_BITS
    }

    /// The same in place of a list that nobody needs any more, if there is one.
    pub fn list_again(&mut self, old: Option<u64>, place: Place, list: Vec<Descriptor>) -> u64 {
        let region = |address: u64| usize::try_from(address >> REGION_BITS).ok()?.checked_sub(1);
        match old.and_then(|address| Some((address, self.regions.get_mut(region(address)?)?))) {
            Some((address, region)) => {
                *region = Region { place, list };
                address
            }
            None => self.add_list(place, list),
        }
    }

    fn region(&self, address: u64) -> Option<&Region> {
        let number = usize::try_from(address >> REGION_BITS).ok()?;
        self.regions.get(number.checked_sub(1)?)
    }

    /// Where an address lies; `None` for what is nobody's.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<Place> {
        self.region(address).map(|region| region.place)
    }

    /// The descriptor at an address of a list.
    #[must_use]
    #[inline]
    pub fn descriptor(&self, address: u64) -> Option<&Descriptor> {
        let index = (address & ((1 << REGION_BITS) - 1)) / 64;
        self.region(address)?.list.get(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_tells_its_region() {
        let mut places = Places::default();
        let far = Place::on(1);
        let near = places.add(Place::on(0));
        let list = places.add_list(far, vec![Descriptor::nop(), Descriptor::fill(1, near, 64)]);
        assert_eq!(places.at(near + 12345).map(|place| place.node), Some(0));
        assert_eq!(places.at(list), Some(far));
        assert_eq!(places.descriptor(list + 64).map(|d| d.dst()), Some(near));
        assert_eq!(places.descriptor(list + 128), None);
        assert_eq!((places.at(0), places.at(u64::MAX)), (None, None));
    }
}
