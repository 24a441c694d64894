//! A queue's portal in this address space: 4 KiB of 64 slots that are all the same queue.
#![allow(unsafe_code, reason = "maps the portal, puts an ordinary page in its place, unmaps it")]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use telpher_os::Lineage;

/// Bytes of a portal. Source: SPEC §3.3.
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
        Page::map(libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE, node.as_raw_fd())
    }

    /// A page of ordinary memory, which is no queue.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub(crate) fn ordinary() -> io::Result<Page> {
        Page::map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1)
    }

    fn map(protection: i32, flags: i32, fd: RawFd) -> io::Result<Page> {
        let mapped_in = Lineage::current();
        // SAFETY: without MAP_FIXED the system picks a range nobody uses.
        let base = unsafe { libc::mmap(ptr::null_mut(), PORTAL_BYTES, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Page { base: NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED"), mapped_in })
    }

    /// The next slot. Successive submissions go to different ones, since direct stores to one address stay in order and wait
    /// for each other (SDM vol. 2, MOVDIR64B).
    #[inline]
    pub(crate) fn slot(&self) -> *mut u8 {
        let offset = NEXT.get();
        NEXT.set((offset + SLOT_BYTES) % PORTAL_BYTES);
        // SAFETY: smaller than the mapping's length.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Puts ordinary memory in the portal's place: what any thread stores from here on reaches no device. A direct store is lost
    /// there, and ENQCMD answers Retry (SDM vol. 2, ENQCMD).
    ///
    /// # Errors
    ///
    /// If there is no memory; the portal is as it was then.
    pub(crate) fn disarm(&self) -> io::Result<()> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: our own mapping, in one step; it holds nothing of this program's, and stays as long as it would have.
        let base = unsafe { libc::mmap(self.base.as_ptr().cast(), PORTAL_BYTES, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn successive_slots_walk_the_whole_page_and_stay_in_it() {
        let page = Page::ordinary().unwrap();
        let base = page.base.as_ptr() as usize;
        let slots: Vec<usize> = (0..128).map(|_| page.slot() as usize).collect();
        assert!(slots.iter().all(|slot| slot.is_multiple_of(SLOT_BYTES) && (base..base + PORTAL_BYTES).contains(slot)));
        assert!(slots.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(slots.iter().collect::<HashSet<_>>().len(), 64);
    }

    #[test]
    fn what_is_stored_after_disarming_does_not_reach_the_file() {
        // SAFETY: a terminated name; the descriptor is new.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"portal".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(PORTAL_BYTES as u64).unwrap();
        let page = Page::of(&file).unwrap();
        let sum = || {
            let mut bytes = [0; PORTAL_BYTES];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>()
        };
        // SAFETY: a slot of a page that can be written.
        unsafe { page.slot().write_volatile(7) };
        assert_eq!(sum(), 7);
        page.disarm().unwrap();
        // SAFETY: as above, and it is the same page still, though another one lies there.
        unsafe { page.slot().write_volatile(7) };
        assert_eq!(sum(), 7);
    }
}
