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
        let far = Place { node: 1, page: 4096 };
        let near = places.add(Place { node: 0, page: 4096 });
        let list = places.add_list(far, vec![Descriptor::nop(), Descriptor::fill(1, near, 64)]);
        assert_eq!(places.at(near + 12345).map(|place| place.node), Some(0));
        assert_eq!(places.at(list), Some(far));
        assert_eq!(places.descriptor(list + 64).map(|d| d.dst()), Some(near));
        assert_eq!(places.descriptor(list + 128), None);
        assert_eq!((places.at(0), places.at(u64::MAX)), (None, None));
    }
}
