//! Portal pages: collects the pieces of 64-byte stores, and hands over each store that is complete.
//!
//! A virtual machine monitor may hand over a store of 64 bytes in one message, or in pieces of 4 to 32 bytes. QEMU cuts
//! it into eight. Pieces of a slot must come in ascending order; stores to other slots may come between, from other
//! processors of the guest. A piece out of order drops what the slot has. Each slot of each page has room for one
//! store, so memory is bounded however many stores are left incomplete.

use telpher_abi::registers::{PORTAL_PAGE, PORTAL_STRIDE, PortalKind};

/// Bytes of a descriptor and of a slot.
const SLOT_BYTES: usize = 64;
/// Slots of a page.
const SLOTS: usize = 64;
const _: () = assert!(SLOTS as u64 * SLOT_BYTES as u64 == PORTAL_PAGE);

/// A store that has not arrived completely.
#[derive(Clone, Copy, Debug)]
struct Partial {
    bytes: [u8; SLOT_BYTES],
    /// How many have arrived.
    filled: usize,
}

/// A complete store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Store {
    pub(crate) wq: usize,
    pub(crate) kind: PortalKind,
    pub(crate) bytes: [u8; SLOT_BYTES],
}

/// The portal pages of a function.
#[derive(Debug)]
pub(crate) struct Portals {
    /// Allocated when a page gets its first incomplete store.
    pages: Vec<Option<Box<[Partial; SLOTS]>>>,
    torn: u64,
}

impl Portals {
    pub(crate) fn new(queues: usize) -> Portals {
        let pages = queues * index(PORTAL_STRIDE / PORTAL_PAGE);
        Portals { pages: vec![const { None }; pages], torn: 0 }
    }

    /// How many stores were dropped because their pieces came out of order.
    pub(crate) fn torn(&self) -> u64 {
        self.torn
    }

    /// Forgets all incomplete stores.
    pub(crate) fn clear(&mut self) {
        self.pages.fill(None);
    }

    /// Takes bytes written at an offset of BAR2, and calls `submit` for each store that they complete.
    pub(crate) fn write(&mut self, mut offset: u64, mut data: &[u8], mut submit: impl FnMut(Store)) {
        while !data.is_empty() {
            let room = SLOT_BYTES - index(offset % SLOT_BYTES as u64);
            let (piece, rest) = data.split_at(room.min(data.len()));
            if let Some(store) = self.piece(offset, piece) {
                submit(store);
            }
            offset = offset.saturating_add(piece.len() as u64);
            data = rest;
        }
    }

    /// Takes bytes of one slot.
    fn piece(&mut self, offset: u64, piece: &[u8]) -> Option<Store> {
        let number = index(offset / PORTAL_PAGE);
        let page = self.pages.get_mut(number)?;
        let (slot, at) = (index(offset % PORTAL_PAGE) / SLOT_BYTES, index(offset % SLOT_BYTES as u64));
        let store = |bytes| {
            let pages = index(PORTAL_STRIDE / PORTAL_PAGE);
            // Cannot lose bits: a queue has four pages.
            let kind = PortalKind::from_code(u8::try_from(number % pages).unwrap_or_default());
            Store { wq: number / pages, kind, bytes }
        };
        let waiting = page.as_ref().map_or(0, |slots| slots[slot].filled);
        if let Ok(whole) = piece.try_into() {
            if waiting != 0 {
                self.torn += 1;
                page.as_mut()?[slot].filled = 0;
            }
            return Some(store(whole));
        }
        let slots = page.get_or_insert_with(|| Box::new([Partial { bytes: [0; SLOT_BYTES], filled: 0 }; SLOTS]));
        let partial = &mut slots[slot];
        let follows = at == partial.filled && matches!(piece.len(), 4 | 8 | 16 | 32);
        if !follows {
            self.torn += 1;
            partial.filled = 0;
            // The first piece of another store may begin here.
            if at != 0 || !matches!(piece.len(), 4 | 8 | 16 | 32) {
                return None;
            }
        }
        partial.bytes[at..at + piece.len()].copy_from_slice(piece);
        partial.filled = at + piece.len();
        (partial.filled == SLOT_BYTES).then(|| {
            partial.filled = 0;
            store(partial.bytes)
        })
    }
}

/// Converts an offset within the portals; one outside is beyond all pages.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the tests' numbers are small")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A descriptor whose bytes tell their places.
    fn descriptor(seed: u8) -> [u8; SLOT_BYTES] {
        std::array::from_fn(|at| seed.wrapping_add(at as u8))
    }

    fn write(portals: &mut Portals, offset: u64, data: &[u8]) -> Vec<Store> {
        let mut stores = Vec::new();
        portals.write(offset, data, |store| stores.push(store));
        stores
    }

    #[test]
    fn a_store_arrives_whole_or_in_pieces_of_any_kind() {
        for bytes in [4, 8, 16, 32, 64] {
            let mut portals = Portals::new(8);
            let at = 3 * PORTAL_STRIDE + PORTAL_PAGE + 5 * 64;
            let pieces = descriptor(9);
            let stores: Vec<Store> = (0..64 / bytes)
                .flat_map(|n| write(&mut portals, at + (n * bytes) as u64, &pieces[n * bytes..(n + 1) * bytes]))
                .collect();
            assert_eq!(stores, [Store { wq: 3, kind: PortalKind::LimitedMsix, bytes: pieces }]);
            assert_eq!(portals.torn(), 0);
        }
    }

    #[test]
    fn stores_of_two_processors_to_two_slots_do_not_mix() {
        let mut portals = Portals::new(1);
        let mut stores = Vec::new();
        for n in 0..8 {
            for (slot, seed) in [(0, 1), (1, 101)] {
                stores.extend(write(&mut portals, slot * 64 + n * 8, &descriptor(seed)[n as usize * 8..][..8]));
            }
        }
        let bytes: Vec<_> = stores.iter().map(|store| store.bytes).collect();
        assert_eq!(bytes, [descriptor(1), descriptor(101)]);
    }

    #[test]
    fn a_torn_store_is_dropped_and_counted_and_the_next_one_arrives() {
        let mut portals = Portals::new(1);
        assert!(write(&mut portals, 0, &[1; 8]).is_empty());
        assert!(write(&mut portals, 16, &[1; 8]).is_empty(), "a gap");
        assert!(write(&mut portals, 0, &[1; 8]).is_empty());
        assert!(write(&mut portals, 0, &[1; 8]).is_empty(), "another store begins");
        assert!(write(&mut portals, 8, &[1; 3]).is_empty(), "no piece has 3 bytes");
        assert_eq!(portals.torn(), 3);
        assert!(write(&mut portals, 0, &[1; 32]).is_empty());
        assert_eq!(write(&mut portals, 32, &[1; 32]).len(), 1);
        assert!(write(&mut portals, 0, &[1; 8]).is_empty());
        assert_eq!(
            write(&mut portals, 0, &descriptor(5)),
            [Store { wq: 0, kind: PortalKind::UnlimitedMsix, bytes: descriptor(5) }]
        );
        assert_eq!(portals.torn(), 4);
    }

    #[test]
    fn a_page_full_of_stores_and_one_without_a_queue() {
        let mut portals = Portals::new(1);
        assert_eq!(write(&mut portals, 0, &[7; 4096]).len(), 64);
        assert!(write(&mut portals, PORTAL_STRIDE, &[7; 64]).is_empty());
        assert!(write(&mut portals, u64::MAX - 3, &[7; 64]).is_empty());
    }

    proptest! {
        #[test]
        fn any_writes_are_bounded_and_never_invent_bytes(
            writes in proptest::collection::vec((0_u64..2 * PORTAL_STRIDE, 1_usize..130), 0..200)
        ) {
            let mut portals = Portals::new(1);
            for (offset, len) in writes {
                for store in write(&mut portals, offset, &vec![0xa5; len]) {
                    prop_assert_eq!(store.bytes, [0xa5; 64]);
                    prop_assert_eq!(store.wq, 0);
                }
            }
        }
    }
}
