//! Attaches windows to memory that other processes have granted.
//!
//! The device belongs to this process, so its table is written here and not by a driver: an entry for each attached
//! window, with this process as its single submitter. The entry's PASID has the granted memory and nothing else, which
//! also sees to it that nothing is reached after a revoke.

use crate::apply::OWN_PASID;
use crate::model::{CommandFailed, Inner, ModelDevice};
use crate::windows::{MAX_ATTACHED, SlotSpace, pasid};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use telpher_abi::WindowFlags;
use telpher_abi::registers::{Command, CommandCode, IdptEntry};
use telpher_mem::{GrantedMemory, Remote};
use telpher_model::layout;
use telpher_os::Lineage;
use telpher_portal::{AttachedWindow, WindowError};

/// Bytes of an entry of the table. Source: SPEC §9.2.29.
const ENTRY_BYTES: u64 = 32;

/// Ends an attached window when it is dropped.
#[derive(Debug)]
struct Attached {
    device: ModelDevice,
    index: usize,
    memory: Arc<SlotSpace>,
    made_in: Lineage,
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
        let (index, slot) = self.windows.take(&self.core.spaces, entries).ok_or(WindowError::NoRoom)?;
        // From here on the drop of `attached` gives the slot back.
        let attached = Attached { device, index, memory: slot, made_in: Lineage::current() };
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

impl Attached {
    /// Writes its entry from the last word to the first, so that the entry is usable only when it is whole.
    fn write_entry(&self, entry: &IdptEntry) {
        let at = layout::IDPT + ENTRY_BYTES * self.index as u64;
        for (word, value) in entry.0.iter().enumerate().rev() {
            self.device.inner.core.device.write_register(at + 8 * word as u64, 8, *value);
        }
    }

    /// Requests or releases the handle, if the device issues them; otherwise it is the index.
    fn handle(&self, command: CommandCode) -> Result<u16, CommandFailed> {
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
        // A forked child has a copy of the device, with locks that threads of the parent may have held.
        if !self.made_in.is_current() {
            return;
        }
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
