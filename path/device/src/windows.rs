//! The memory of windows that a modelled device has attached: a PASID for each entry of the table, which has the
//! granted memory and nothing else, as long as the window is attached.

use crate::spaces::{SpaceTable, UnmappedSpace};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use telpher_mem::{Fault, Remote, Space, WriteHint};

/// The most windows attached at a time. Source: chosen; the table of address spaces has room for them besides the
/// processes of a device.
pub(crate) const MAX_ATTACHED: usize = 32;
/// PASID of the first window; the others follow. Source: chosen; a PASID has 20 bits, and processes get small ones.
const FIRST_PASID: u32 = 0x8_0000;

/// The attached windows of a device, by the index of their entry.
#[derive(Debug, Default)]
pub(crate) struct Windows(Mutex<Vec<Slot>>);

/// An index of the table that has been used.
#[derive(Debug)]
struct Slot {
    memory: Arc<SlotSpace>,
    taken: bool,
}

/// The memory of a window's PASID while the window is attached.
#[derive(Debug, Default)]
pub(crate) struct SlotSpace(RwLock<Option<Remote>>);

/// The PASID of the window with this index.
pub(crate) fn pasid(index: usize) -> u32 {
    // At most MAX_ATTACHED.
    FIRST_PASID + u32::try_from(index).unwrap_or_default()
}

impl Windows {
    /// Takes a free index below `entries`, whose PASID has a space from then on.
    pub(crate) fn take(&self, spaces: &SpaceTable, entries: usize) -> Option<(usize, Arc<SlotSpace>)> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = slots.iter().position(|slot| !slot.taken) {
            slots[index].taken = true;
            return Some((index, Arc::clone(&slots[index].memory)));
        }
        let (index, memory) = (slots.len(), Arc::new(SlotSpace::default()));
        if index == entries || !spaces.add(pasid(index), Box::new(SharedSlot(Arc::clone(&memory)))) {
            return None;
        }
        slots.push(Slot { memory: Arc::clone(&memory), taken: true });
        Some((index, memory))
    }

    pub(crate) fn give_back(&self, index: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[index].taken = false;
    }
}

impl SlotSpace {
    pub(crate) fn set(&self, memory: Option<Remote>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = memory;
    }

    fn with<R>(&self, access: impl FnOnce(&dyn Space) -> R) -> R {
        match &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            Some(memory) => access(memory),
            None => access(&UnmappedSpace),
        }
    }
}

/// A slot's memory in the table of spaces.
#[derive(Debug)]
struct SharedSlot(Arc<SlotSpace>);

impl Space for SharedSlot {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.0.with(|space| space.read(address, into))
    }
    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        self.0.with(|space| space.write(address, from, hint))
    }
    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.with(|space| space.move_forward(dst, src, len, hint))
    }
    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.with(|space| space.move_backward(dst, src, len, hint))
    }
    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.0.with(|space| space.fill(dst, pattern, len, hint))
    }
    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.0.with(|space| space.compare(a, b, len))
    }
    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.0.with(|space| space.compare_pattern(a, pattern, len))
    }
    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        self.0.with(|space| space.flush(address, len))
    }
    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        self.0.with(|space| space.write_record(address, record))
    }
    fn page_request(&self, address: u64, write: bool) -> bool {
        self.0.with(|space| space.page_request(address, write))
    }
}
