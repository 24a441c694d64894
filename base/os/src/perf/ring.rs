//! The ring in which the kernel writes records, and a reader tells how far it has read.
//!
//! Source: UAPI linux/perf_event.h, `struct perf_event_mmap_page`.

use crate::Lineage;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of records, a power of two; before them is a page of words. Source: chosen, some 800 samples.
pub(super) const DATA_BYTES: usize = 32 << 10;
const PAGE: usize = 4096;
const MAP_BYTES: usize = PAGE + DATA_BYTES;
/// `data_head`: how far the kernel has written; `data_tail`: how far this side has read. Bytes since the beginning, both.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// An event's ring; unmapped on drop.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    /// A forked child has no such mapping (`VM_DONTCOPY`: Linux, kernel/events/core.c), and perhaps another one there.
    made_in: Lineage,
}

// SAFETY: the mapping belongs to the process, and only `take`, which has it alone, reads it.
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn map(fd: &OwnedFd) -> io::Result<Ring> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: without MAP_FIXED the system picks a range nobody uses.
        let base = unsafe { libc::mmap(ptr::null_mut(), MAP_BYTES, access, flags, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED");
        Ok(Ring { base, made_in: Lineage::current() })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!((offset == HEAD || offset == TAIL) && self.made_in.is_current(), "one of the two, where they are");
        // SAFETY: eight bytes within the first page of the mapping, at a multiple of eight, which lives as long as `self` in the process that made it;
        // the kernel and this side change them as atomics.
        unsafe { self.base.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Adds what was written since the last time to `bytes`, and gives its room back. False if it cannot be told what was written: it is dropped.
    /// In a forked child nothing is written.
    pub(super) fn take(&mut self, bytes: &mut Vec<u8>) -> bool {
        if !self.made_in.is_current() {
            return true;
        }
        // Acquire: pairs with the kernel's barrier before it tells how far it has written; the records before are seen whole.
        let head = self.word(HEAD).load(Ordering::Acquire);
        // Relaxed: only this side changes it.
        let tail = self.word(TAIL).load(Ordering::Relaxed);
        let len = head.wrapping_sub(tail);
        let whole = usize::try_from(len).ok().filter(|&len| len <= DATA_BYTES);
        if let Some(len) = whole {
            let first = usize::try_from(tail % DATA_BYTES as u64).expect("less than the ring");
            let before_end = len.min(DATA_BYTES - first);
            bytes.reserve(len);
            for (offset, len) in [(first, before_end), (0, len - before_end)] {
                // SAFETY: this is the process that made the mapping, as asked above. Both parts lie in the ring's data, as `first` is less than it and each ends
                // at its end at most; the kernel writes nothing between tail and head until the tail is told below. The bytes go behind those that `bytes`
                // has, where there is room for `len` in all.
                unsafe {
                    let from = self.base.add(PAGE + offset).as_ptr();
                    ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(bytes.len()), len);
                    bytes.set_len(bytes.len() + len);
                }
            }
        }
        // Release: pairs with the kernel's reading of it before it writes there; the copy above is over.
        self.word(TAIL).store(head, Ordering::Release);
        whole.is_some()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.made_in.is_current() {
            return;
        }
        // SAFETY: the mapping is this one's, in the process that made it, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), MAP_BYTES) };
    }
}

#[cfg(test)]
impl Ring {
    /// In a forked child: it is neither read, nor is what the child has mapped there unmapped when it is dropped.
    pub(super) fn is_left_alone(&mut self, bytes: &mut Vec<u8>) -> bool {
        let (place, access) = (self.base.as_ptr().cast(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let nothing = self.take(bytes) && bytes.is_empty();
        // SAFETY: only where nothing is, so that nobody uses it.
        let mapped = unsafe { libc::mmap(place, MAP_BYTES, access, flags, -1, 0) } == place;
        // SAFETY: a copy that is dropped here; the other one is not, as the child ends.
        drop(unsafe { ptr::read(self) });
        let mut there = [0; MAP_BYTES / PAGE];
        // SAFETY: asks for the pages of a range, one byte each, for which there is room.
        let is_there = unsafe { libc::mincore(place, MAP_BYTES, there.as_mut_ptr()) } == 0;
        nothing && mapped && is_there
    }
}
