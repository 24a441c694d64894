//! A queue's portal in this address space: 4 KiB with 64 slots, all of the same queue.
#![allow(unsafe_code, reason = "maps the portal, replaces it by an ordinary page, unmaps it")]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use telpher_os::Lineage;

/// Bytes of a portal. Source: SPEC §3.3.
const PORTAL_BYTES: usize = 4096;
/// Bytes of a slot: the size that the instructions store.
const SLOT_BYTES: usize = 64;

thread_local! {
    /// The slot after this thread's last one. Each thread has its own, so that threads do not wait for each other's
    /// cache line; the device does not care which thread uses which slot.
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
    /// The error of mmap(2); EPERM since INTEL-SA-01084 without CAP_SYS_RAWIO.
    pub(crate) fn of(node: &File) -> io::Result<Page> {
        Page::map(libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE, node.as_raw_fd())
    }

    /// Maps a page of ordinary memory, which is no queue.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub(crate) fn ordinary() -> io::Result<Page> {
        Page::map(libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1)
    }

    fn map(protection: i32, flags: i32, fd: RawFd) -> io::Result<Page> {
        let mapped_in = Lineage::current();
        // SAFETY: without MAP_FIXED the system picks an unused range.
        let base = unsafe { libc::mmap(ptr::null_mut(), PORTAL_BYTES, protection, flags, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Page { base: NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED"), mapped_in })
    }

    /// Returns the next slot. Successive submissions use different slots, because direct stores to one address stay in
    /// order and wait for each other (SDM vol. 2, MOVDIR64B).
    #[inline]
    pub(crate) fn slot(&self) -> *mut u8 {
        let offset = NEXT.get();
        NEXT.set((offset + SLOT_BYTES) % PORTAL_BYTES);
        // SAFETY: smaller than the mapping's length.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Replaces the portal by ordinary memory: stores of any thread from now on reach no device. A direct store is lost
    /// there, and ENQCMD answers Retry (SDM vol. 2, ENQCMD).
    ///
    /// # Errors
    ///
    /// If there is no memory; the portal is unchanged then.
    pub(crate) fn disarm(&self) -> io::Result<()> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: our own mapping, replaced in one step; it contains nothing of this program, and its lifetime does not
        // change.
        let base = unsafe { libc::mmap(self.base.as_ptr().cast(), PORTAL_BYTES, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if !self.mapped_in.is_current() {
            // In a child another mapping may be at this address.
            return;
        }
        // SAFETY: our own mapping, to which no pointer is used after this.
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
    fn stores_after_disarming_do_not_reach_the_file() {
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
        // SAFETY: as above; the address is the same, though another page is mapped there.
        unsafe { page.slot().write_volatile(7) };
        assert_eq!(sum(), 7);
    }
}
