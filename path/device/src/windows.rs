//! Windows of a modelled device to memory that other processes have granted.
//!
//! The device belongs to this process, so its table is written here and not by a driver: an entry for each attached
//! window, with this process as its single submitter. The entry's PASID has the granted memory and nothing else, which
//! also sees to it that nothing is reached after a revoke.

use crate::apply::OWN_PASID;
use crate::model::{Inner, ModelDevice};
use crate::spaces::UnmappedSpace;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use telpher_abi::WindowFlags;
use telpher_abi::registers::{Command, CommandCode, IdptEntry};
use telpher_mem::{Fault, GrantedMemory, Remote, Space, WriteHint};
use telpher_model::layout;
use telpher_portal::{AttachedWindow, WindowError};

/// The most windows attached at a time. Source: chosen; the table of address spaces has room for them besides the
/// processes of a device.
const MAX_ATTACHED: usize = 32;
/// PASID of the first window; the others follow. Source: chosen; a PASID has 20 bits, and processes get small ones.
const FIRST_PASID: u32 = 0x8_0000;
/// Bytes of an entry of the table. Source: SPEC §9.2.29.
const ENTRY_BYTES: u64 = 32;

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
struct SlotSpace(RwLock<Option<Remote>>);

/// Ends an attached window when it is dropped.
#[derive(Debug)]
struct Attached {
    device: ModelDevice,
    index: usize,
    memory: Arc<SlotSpace>,
}

impl Inner {
    /// Attaches a window to granted memory.
    pub(crate) fn attach_window(self: &Arc<Self>, file: BorrowedFd<'_>) -> Result<AttachedWindow, WindowError> {
        let device = ModelDevice { inner: Arc::clone(self) };
        let capabilities = device.capabilities();
        if !capabilities.gen_cap.inter_domain() || !capabilities.id_cap.single_submitter() {
            return Err(WindowError::Unsupported);
        }
        let refused = |why: &dyn std::error::Error| WindowError::Refused { why: telpher_os::chain(why) };
        let memory = GrantedMemory::open(file).map_err(|error| refused(&error))?;
        let entries = usize::from(capabilities.id_cap.entries()).min(MAX_ATTACHED);
        let (index, slot) = self.windows.take(self, entries).ok_or(WindowError::NoRoom)?;
        // From here on the drop of `attached` gives the slot back.
        let attached = Attached { device, index, memory: slot };
        let mut flags = WindowFlags::READ | WindowFlags::ENABLE;
        flags.set(WindowFlags::WRITE, memory.file().access().writes());
        let entry = IdptEntry::default()
            .with_usable(true)
            .with_submitter_pasid(OWN_PASID)
            .with_access_pasid(pasid(index))
            .with_window_base(memory.file().address())
            .with_window_size(memory.file().len())
            .with_window_flags(flags);
        attached.memory.set(Some(Remote::granted(memory)));
        let handle = attached.handle(CommandCode::RequestIdptHandle).map_err(|error| refused(&error))?;
        attached.write_entry(&entry);
        Ok(AttachedWindow::new(handle, attached))
    }
}

fn pasid(index: usize) -> u32 {
    // At most MAX_ATTACHED.
    FIRST_PASID + u32::try_from(index).unwrap_or_default()
}

impl Windows {
    /// Takes a free index below `entries`, whose PASID has a space from then on.
    fn take(&self, inner: &Inner, entries: usize) -> Option<(usize, Arc<SlotSpace>)> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = slots.iter().position(|slot| !slot.taken) {
            slots[index].taken = true;
            return Some((index, Arc::clone(&slots[index].memory)));
        }
        let (index, memory) = (slots.len(), Arc::new(SlotSpace::default()));
        if index == entries || !inner.core.spaces.add(pasid(index), Box::new(SharedSlot(Arc::clone(&memory)))) {
            return None;
        }
        slots.push(Slot { memory: Arc::clone(&memory), taken: true });
        Some((index, memory))
    }

    fn give_back(&self, index: usize) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[index].taken = false;
    }
}

impl Attached {
    /// Writes its entry from the last word to the first, so that the entry is usable only when it is whole.
    fn write_entry(&self, entry: &IdptEntry) {
        let at = layout::IDPT + ENTRY_BYTES * self.index as u64;
        for (word, value) in entry.0.iter().enumerate().rev() {
            self.device.inner.core.device.write_register(at + 8 * word as u64, 8, *value);
        }
    }

    /// Requests or releases the handle, if the device issues them; otherwise it is the index.
    fn handle(&self, command: CommandCode) -> Result<u16, crate::CommandFailed> {
        // At most MAX_ATTACHED.
        let index = u16::try_from(self.index).unwrap_or_default();
        let capabilities = self.device.capabilities();
        let command = Command::new(command, index.into());
        let issues = capabilities.gen_cap.command_capability() && capabilities.cmd_cap >> command.code() & 1 == 1;
        if issues { self.device.command(command) } else { Ok(index) }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let at = layout::IDPT + ENTRY_BYTES * self.index as u64;
        // Not usable any more; then the other words can be cleared.
        self.device.inner.core.device.write_register(at, 8, 0);
        self.write_entry(&IdptEntry::default());
        // Waits for a descriptor that accesses the memory, and ends the access of one that has looked up its entry.
        self.memory.set(None);
        let _ = self.handle(CommandCode::ReleaseIdptHandle);
        self.device.inner.windows.give_back(self.index);
    }
}

impl SlotSpace {
    fn set(&self, memory: Option<Remote>) {
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
