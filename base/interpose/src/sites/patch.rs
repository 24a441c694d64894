//! Changes code that other threads execute.

use super::jump::{JUMP, Refusal};
use crate::kernel::{Memory, serialise_all_threads};

/// PUSH ES, which no processor executes in 64-bit mode.
const INVALID: u8 = 0x06;

/// The access that is needed to change code.
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

    /// Writes code that no thread executes yet; returns false if it cannot be written.
    ///
    /// # Safety
    /// No code relies on the old contents.
    pub(super) unsafe fn write(&self, address: usize, bytes: &[u8]) -> bool {
        // SAFETY: forwarded.
        unsafe { self.memory.write(address, bytes) }
    }

    /// Replaces `old` by `new` while threads may be executing either; returns false if nothing was changed.
    ///
    /// # Safety
    /// `old` is present. A thread that executes [`INVALID`] at `address` is sent to code for which both have the same
    /// effect.
    pub(super) unsafe fn replace(&self, address: usize, old: [u8; JUMP], new: [u8; JUMP]) -> bool {
        // Each write except the middle one has a single byte, and no thread executes the other bytes while the first is
        // invalid. A barrier cannot fail after one has succeeded. SAFETY: forwarded.
        if !unsafe { self.memory.write(address, &[INVALID]) } {
            return false;
        }
        let _ = serialise_all_threads();
        // SAFETY: forwarded.
        let tail = unsafe { self.memory.write(address + 1, &new[1..]) };
        let _ = serialise_all_threads();
        if !tail {
            // The tail reaches into the next page, which refused the write; so nothing, or only the part in this page,
            // was written.
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
