//! Memory for a moment, straight from the kernel: a call of the program may be on a small stack, and the program's
//! allocator may be in the middle of its work.
#![allow(unsafe_code, reason = "unmaps memory, and refers to its bytes")]

use rustix::mm::munmap;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of its own mapping, zero at first.
pub(crate) struct Scratch {
    start: NonNull<u8>,
    len: usize,
}

impl Scratch {
    /// Maps so many bytes.
    pub(crate) fn new(len: usize) -> Result<Scratch, rustix::io::Errno> {
        Ok(Scratch { start: telpher_os::map_private(len)?, len })
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has these bytes, and lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other reference exists.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: no reference into the mapping outlives this value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}
