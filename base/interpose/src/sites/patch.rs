//! Changing code that other threads execute.

use super::{JUMP, Refusal};
use crate::kernel::{Memory, serialise_all_threads};

/// PUSH ES, which no processor executes in 64-bit mode.
const INVALID: u8 = 0x06;

/// The means to change code.
#[derive(Debug)]
pub(super) struct Patch {
    memory: Memory,
}

impl Patch {
    /// # Errors
    /// [`Refusal::Protected`]: this kernel, or this process' sandbox, does not allow it.
    pub(super) fn new() -> Result<Self, Refusal> {
        let allowed = |_| Refusal::Protected;
        serialise_all_threads().map_err(allowed)?;
        Ok(Patch { memory: Memory::open().map_err(allowed)? })
    }

    /// Writes where no thread executes yet; false if it cannot be written.
    ///
    /// # Safety
    /// Nobody relies on what was there.
    pub(super) unsafe fn write(&self, address: usize, bytes: &[u8]) -> bool {
        // SAFETY: forwarded.
        unsafe { self.memory.write(address, bytes) }
    }

    /// Replaces `old` by `new` while threads may be executing the one or the other; false if nothing was changed.
    ///
    /// # Safety
    /// `old` is there. A thread that executes [`INVALID`] at `address` is sent where both mean the same.
    pub(super) unsafe fn replace(&self, address: usize, old: [u8; JUMP], new: [u8; JUMP]) -> bool {
        // Each write but the middle one is of a single byte, and no thread executes the others while the first is invalid.
        // A barrier cannot fail once one was done. SAFETY: forwarded.
        if !unsafe { self.memory.write(address, &[INVALID]) } {
            return false;
        }
        let _ = serialise_all_threads();
        // SAFETY: forwarded.
        let tail = unsafe { self.memory.write(address + 1, &new[1..]) };
        let _ = serialise_all_threads();
        if !tail {
            // In the next page, which refuses; so nothing, or what lies in this page, was written.
            // SAFETY: forwarded.
            let _ = unsafe { self.memory.write(address + 1, &old[1..]) };
        }
        let first = if tail { new[0] } else { old[0] };
        // SAFETY: forwarded.
        let _ = unsafe { self.memory.write(address, &[first]) };
        let _ = serialise_all_threads();
        tail
    }
}
