//! Memory mappings: the system calls, and their error messages.
#![allow(unsafe_code, reason = "mmap, munmap, mprotect and madvise")]

mod durable;
mod files;

pub use durable::{DurableFile, DurableFileError, Persistence};
pub use files::{FileError, MemoryFile, Window};

use std::io;
use std::ptr::{self, NonNull};

/// [`PAGE_BYTES`](crate::PAGE_BYTES) as a length.
pub(crate) const SMALL_BYTES: usize = 4096;
const _: () = assert!(SMALL_BYTES as u64 == crate::PAGE_BYTES);

/// Moves pages that are on other nodes. Source: UAPI, linux/mempolicy.h.
const MPOL_MF_MOVE: libc::c_uint = 1 << 1;
/// The largest number of nodes in Linux. Source: NODES_SHIFT is at most 10.
const MOST_NODES: u32 = 1 << 10;

/// The system refused to make or change a mapping.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {len} bytes; {advice}")]
pub struct MapError {
    /// What was attempted, as a verb phrase.
    pub attempt: &'static str,
    /// The length of the range, in bytes.
    pub len: u64,
    /// What to do next.
    pub advice: &'static str,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl MapError {
    fn last(attempt: &'static str, len: usize, advice: &'static str) -> MapError {
        MapError { attempt, len: len as u64, advice, source: io::Error::last_os_error() }
    }
}

/// An owned mapping; unmapped on drop. Gives no access to its bytes.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this type reads and writes none of its bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New zeroed private memory; `len` is a positive multiple of the page size.
    pub(crate) fn anonymous(len: usize, extra_flags: i32, attempt: &'static str) -> Result<Mapping, MapError> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | extra_flags;
        // SAFETY: without MAP_FIXED the system picks an unused range.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(MapError::last(
                attempt,
                len,
                "ask for less, or raise `ulimit -v` or the memory cgroup's limit",
            ));
        }
        Ok(Mapping { base: NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED"), len })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the pages of `offset..offset + len` to the system; they read as zero again. The range consists of whole
    /// pages.
    pub(crate) fn discard(&self, offset: usize, len: usize) -> Result<(), MapError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "the range lies in the mapping");
        // SAFETY: the range lies in our own private mapping, whose users hold no reference to it across this call:
        // `Region` passes `&mut self`, `Pages` never hands out references, and `BlockMemory` names free blocks.
        let failed = unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), len, libc::MADV_DONTNEED) };
        if failed == 0 {
            Ok(())
        } else {
            Err(MapError::last("discard", len, "name whole pages, and none that are locked in memory"))
        }
    }

    /// Binds its pages to a node, and moves those that are on other nodes.
    pub(crate) fn bind(&self, node: u32) -> Result<(), MapError> {
        // A mask of all possible nodes. The kernel expects a count one higher than the bits it reads (Linux,
        // get_nodes).
        let mut mask = [0_u64; (MOST_NODES / 64) as usize];
        let Some(word) = mask.get_mut((node / 64) as usize) else {
            return Err(MapError {
                attempt: "bind to a node",
                len: self.len as u64,
                advice: "choose a node of this machine",
                source: io::ErrorKind::InvalidInput.into(),
            });
        };
        *word |= 1 << (node % 64);
        let bits = u64::from(MOST_NODES) + 1;
        // SAFETY: our own mapping; no byte of it changes. The mask is alive for the call.
        let failed = unsafe {
            let start = self.base.as_ptr();
            libc::syscall(libc::SYS_mbind, start, self.len, libc::MPOL_BIND, mask.as_ptr(), bits, MPOL_MF_MOVE)
        };
        match failed {
            0 => Ok(()),
            _ => Err(MapError::last(
                "bind to a node",
                self.len,
                "choose a node of this machine that this process may use",
            )),
        }
    }

    /// Makes the pages of `offset..offset + len` present.
    pub(crate) fn populate(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let end = offset.checked_add(len).filter(|&end| end <= self.len).expect("the range lies in the mapping");
        let first = offset / SMALL_BYTES * SMALL_BYTES;
        // SAFETY: the range lies in our own mapping, and no byte changes.
        let failed =
            unsafe { libc::madvise(self.base.as_ptr().add(first).cast(), end - first, libc::MADV_POPULATE_WRITE) };
        match failed {
            0 => Ok(()),
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) => {
                // Before Linux 5.14.
                for page in (first..end).step_by(SMALL_BYTES) {
                    // SAFETY: a byte of our own mapping. Only its owner accesses it, and the owner waits for this call.
                    unsafe {
                        let byte = self.base.as_ptr().add(page);
                        byte.write_volatile(byte.read_volatile());
                    }
                }
                Ok(())
            }
            _ => Err(MapError::last("make present", len, "ask for less, or for pages on another node")),
        }
    }

    /// Asks for transparent huge pages; without effect where the system has none.
    pub(crate) fn advise_huge(&self) {
        // SAFETY: our own mapping; the advice changes no byte. A refusal leaves small pages, which is the fallback.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    /// Asks for small pages only, regardless of the system's setting.
    pub(crate) fn advise_small(&self) {
        // SAFETY: our own mapping; the advice changes no byte. A system without huge pages refuses it, and has small
        // ones only.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_NOHUGEPAGE) };
    }

    /// Excludes it from the memory of forked children.
    pub(crate) fn keep_from_children(&self) -> Result<(), MapError> {
        // SAFETY: our own mapping; no byte changes in this process.
        let failed = unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_DONTFORK) };
        if failed == 0 {
            Ok(())
        } else {
            Err(MapError::last("exclude from forked children", self.len, "raise `vm.max_map_count`"))
        }
    }

    /// Changes the permitted accesses to a range. Only for mappings to which no reference exists.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn protect(&self, offset: usize, len: usize, flags: i32) -> Result<(), MapError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "the range lies in the mapping");
        // SAFETY: the range lies in our own mapping; the only caller, `Pages`, never hands out references.
        let failed = unsafe { libc::mprotect(self.base.as_ptr().add(offset).cast(), len, flags) };
        if failed == 0 { Ok(()) } else { Err(MapError::last("protect", len, "name whole pages")) }
    }

    /// Maps a file shared, for reading and writing.
    pub(crate) fn file(file: &std::fs::File, len: usize) -> Result<Mapping, MapError> {
        use std::os::fd::AsRawFd;
        // SAFETY: without MAP_FIXED the system picks an unused range; the file is open.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(MapError::last("map a file of", len, "open it for reading and writing"));
        }
        Ok(Mapping { base: NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED"), len })
    }

    /// Creates an unnamed file in memory of `len` zero bytes.
    pub(crate) fn memory_file(len: u64) -> Result<std::fs::File, MapError> {
        Self::memory_file_with(len, 0, "raise `ulimit -n`")
    }

    /// Creates an unnamed file in memory with further flags.
    fn memory_file_with(len: u64, flags: libc::c_uint, advice: &'static str) -> Result<std::fs::File, MapError> {
        use std::os::fd::FromRawFd;
        // SAFETY: the name is a terminated string; the descriptor is new and owned by the File.
        let file = unsafe {
            let fd = libc::memfd_create(c"telpher-pages".as_ptr(), libc::MFD_CLOEXEC | flags);
            if fd < 0 {
                return Err(MapError::last("create a memory file of", 0, advice));
            }
            std::fs::File::from_raw_fd(fd)
        };
        file.set_len(len).map_err(|source| MapError {
            attempt: "size a memory file to",
            len,
            advice: "ask for less",
            source,
        })?;
        Ok(file)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no pointer is used after this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
