//! The ring into which the kernel writes records, and in which the reader reports how far it has read.
//!
//! Source: UAPI linux/perf_event.h, `struct perf_event_mmap_page`.

use crate::Lineage;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of records, a power of two; a page of control words precedes them. Source: chosen, some 800 samples.
pub(super) const DATA_BYTES: usize = 32 << 10;
const PAGE: usize = 4096;
const MAP_BYTES: usize = PAGE + DATA_BYTES;
/// `data_head`: how far the kernel has written; `data_tail`: how far this reader has read. Both count bytes since the
/// start.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// An event's ring; unmapped on drop.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    /// The process that mapped it. A forked child does not inherit the mapping (`VM_DONTCOPY`: Linux,
    /// kernel/events/core.c), and may have another mapping at that address.
    made_in: Lineage,
}

// SAFETY: the mapping belongs to the process, and only `take`, which has exclusive access, reads it.
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn map(fd: &OwnedFd) -> io::Result<Ring> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: without MAP_FIXED the system picks an unused range.
        let base = unsafe { libc::mmap(ptr::null_mut(), MAP_BYTES, access, flags, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED");
        Ok(Ring { base, made_in: Lineage::current() })
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            (offset == HEAD || offset == TAIL) && self.made_in.is_current(),
            "offset of a counter, in the process that mapped the ring"
        );
        // SAFETY: eight aligned bytes within the first page of the mapping, which lives as long as `self` in the
        // process that made it. The kernel and this reader change them as atomics.
        unsafe { self.base.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Appends the bytes written since the last call to `bytes`, and frees their space in the ring. Returns false if
    /// their extent is invalid; they are dropped then. In a forked child it does nothing.
    pub(super) fn take(&mut self, bytes: &mut Vec<u8>) -> bool {
        if !self.made_in.is_current() {
            return true;
        }
        // Acquire: pairs with the kernel's barrier before it publishes the head; all records before it are complete.
        let head = self.word(HEAD).load(Ordering::Acquire);
        // Relaxed: only this reader changes it.
        let tail = self.word(TAIL).load(Ordering::Relaxed);
        let len = head.wrapping_sub(tail);
        let whole = usize::try_from(len).ok().filter(|&len| len <= DATA_BYTES);
        if let Some(len) = whole {
            let first = usize::try_from(tail % DATA_BYTES as u64).expect("less than the ring");
            let before_end = len.min(DATA_BYTES - first);
            bytes.reserve(len);
            for (offset, len) in [(first, before_end), (0, len - before_end)] {
                // SAFETY: checked above, this is the process that made the mapping. Both parts lie in the ring's data:
                // `first` is less than its length, and each part ends at its end at the latest. The kernel writes
                // nothing between tail and head until the tail is stored below. The bytes are appended to `bytes`,
                // which has space for `len` more.
                unsafe {
                    let from = self.base.add(PAGE + offset).as_ptr();
                    ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(bytes.len()), len);
                    bytes.set_len(bytes.len() + len);
                }
            }
        }
        // Release: pairs with the kernel's read of the tail before it writes there; the copy above is complete.
        self.word(TAIL).store(head, Ordering::Release);
        whole.is_some()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.made_in.is_current() {
            return;
        }
        // SAFETY: the mapping belongs to this ring, in the process that made it, and no reference to it remains.
        unsafe { libc::munmap(self.base.as_ptr().cast(), MAP_BYTES) };
    }
}

#[cfg(test)]
impl Ring {
    /// In a forked child: checks that the ring is not read, and that its drop does not unmap what the child has mapped
    /// there.
    pub(super) fn is_left_alone(&mut self, bytes: &mut Vec<u8>) -> bool {
        let (place, access) = (self.base.as_ptr().cast(), libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let nothing = self.take(bytes) && bytes.is_empty();
        // SAFETY: maps only an unused range.
        let mapped = unsafe { libc::mmap(place, MAP_BYTES, access, flags, -1, 0) } == place;
        // SAFETY: a bitwise copy that is dropped here. The original is not dropped, because the child exits.
        drop(unsafe { ptr::read(self) });
        let mut there = [0; MAP_BYTES / PAGE];
        // SAFETY: queries the pages of a range, one byte each; the array has space for them.
        let is_there = unsafe { libc::mincore(place, MAP_BYTES, there.as_mut_ptr()) } == 0;
        nothing && mapped && is_there
    }
}
