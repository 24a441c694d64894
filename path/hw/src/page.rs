//! A queue's portal in this address space: 4 KiB of 64 slots that are all the same queue.
#![allow(unsafe_code, reason = "maps the portal and unmaps it")]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use telpher_mem::Lineage;

/// Bytes of a portal. Source: linux-abi §7.
const PORTAL_BYTES: usize = 4096;
/// Bytes of a slot: what the instructions store.
const SLOT_BYTES: usize = 64;

thread_local! {
    /// The slot after this thread's last one. Not shared between threads, so that nobody waits for anybody's cache line; the
    /// device does not care who uses which.
    static NEXT: Cell<usize> = const { Cell::new(0) };
}

/// A mapped portal; unmapped on drop. A forked child does not inherit the mapping.
#[derive(Debug)]
pub(crate) struct Page {
    base: NonNull<u8>,
    mapped_in: Lineage,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this type reads and writes none of its bytes.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Maps the portal of an open queue.
    ///
    /// # Errors
    ///
    /// What mmap(2) said; EPERM since INTEL-SA-01084 for whoever lacks CAP_SYS_RAWIO.
    pub(crate) fn of(node: &File) -> io::Result<Page> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let mapped_in = Lineage::current();
        // SAFETY: without MAP_FIXED the system picks a range nobody uses; the file is open.
        let base = unsafe { libc::mmap(ptr::null_mut(), PORTAL_BYTES, libc::PROT_WRITE, flags, node.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Page { base: NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED"), mapped_in })
    }

    /// The next slot. Successive submissions go to different ones, since direct stores to one address stay in order and wait
    /// for each other (instructions.md §3).
    #[inline]
    pub(crate) fn slot(&self) -> *mut u8 {
        let offset = NEXT.get();
        NEXT.set((offset + SLOT_BYTES) % PORTAL_BYTES);
        // SAFETY: smaller than the mapping's length.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if !self.mapped_in.is_current() {
            // What lies there in a child is somebody else's.
            return;
        }
        // SAFETY: our own mapping, of which nothing remains after this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), PORTAL_BYTES) };
    }
}
