//! The list of a size class: its slots from the most to the least recently used, and its free slots.

/// No slot.
const NONE: u32 = u32::MAX;

/// A slot's neighbours in the list.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The slot that was used just after this one.
    newer: u32,
    /// The slot that was used just before this one.
    older: u32,
    key: u64,
    is_linked: bool,
}

/// The slots of a size class by their last use.
#[derive(Debug)]
pub(super) struct Lru {
    nodes: Vec<Node>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl Default for Lru {
    fn default() -> Self {
        Lru { nodes: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl Lru {
    /// Number of all slots.
    pub(super) fn slots(&self) -> usize {
        self.nodes.len()
    }

    /// Adds this many free slots.
    pub(super) fn add_free(&mut self, slots: usize) {
        let first = self.nodes.len();
        self.nodes.resize(first + slots, Node { newer: NONE, older: NONE, key: 0, is_linked: false });
        let number = |slot: usize| u32::try_from(slot).expect("a cache has fewer than 2^32 slots of a class");
        self.free.extend((first..first + slots).rev().map(number));
    }

    /// Takes a free slot.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Makes a slot free.
    pub(super) fn free(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Adds a slot as the most recently used.
    pub(super) fn link(&mut self, slot: u32, key: u64) {
        self.nodes[slot as usize] = Node { newer: NONE, older: self.newest, key, is_linked: true };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.nodes[newest as usize].newer = slot,
        }
        self.newest = slot;
    }

    /// Removes a slot from the list.
    pub(super) fn unlink(&mut self, slot: u32) {
        let Node { newer, older, .. } = self.nodes[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        self.nodes[slot as usize].is_linked = false;
    }

    /// Makes a slot the most recently used, if it is in the list and still has this key.
    pub(super) fn touch(&mut self, slot: u32, key: u64) {
        let node = self.nodes[slot as usize];
        if node.is_linked && node.key == key && self.newest != slot {
            self.unlink(slot);
            self.link(slot, key);
        }
    }

    /// Returns the least recently used slot and its key.
    pub(super) fn last(&self) -> Option<(u32, u64)> {
        self.entry(self.oldest)
    }

    /// Returns the slot that was used after this one, and its key.
    pub(super) fn before(&self, slot: u32) -> Option<(u32, u64)> {
        self.entry(self.nodes[slot as usize].newer)
    }

    fn entry(&self, slot: u32) -> Option<(u32, u64)> {
        (slot != NONE).then(|| (slot, self.nodes[slot as usize].key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(lru: &Lru) -> Vec<u32> {
        let slots = std::iter::successors(lru.last(), |(slot, _)| lru.before(*slot));
        slots.map(|(slot, _)| slot).collect()
    }

    #[test]
    fn slots_are_in_the_order_of_their_use() {
        let mut lru = Lru::default();
        lru.add_free(4);
        let slots: Vec<u32> = (0..4).map(|_| lru.take_free().unwrap()).collect();
        assert_eq!((slots.as_slice(), lru.take_free()), ([0, 1, 2, 3].as_slice(), None));
        slots.iter().for_each(|slot| lru.link(*slot, u64::from(*slot) + 10));
        lru.touch(1, 11);
        assert_eq!(order(&lru), [0, 2, 3, 1]);
        lru.touch(0, 99);
        assert_eq!(order(&lru), [0, 2, 3, 1], "slot 0 has another key");
        lru.unlink(0);
        lru.unlink(3);
        assert_eq!(order(&lru), [2, 1]);
        lru.unlink(1);
        lru.unlink(2);
        assert_eq!((order(&lru), lru.newest, lru.oldest), (vec![], NONE, NONE));
        lru.touch(2, 12);
        assert_eq!(order(&lru), [0_u32; 0]);
    }
}
