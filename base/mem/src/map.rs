//! Mappings of memory: the system calls, and what to tell when one fails.
#![allow(unsafe_code, reason = "mmap, munmap, mprotect and madvise")]

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

/// [`PAGE_BYTES`](crate::PAGE_BYTES) as a length.
pub(crate) const SMALL_BYTES: usize = 4096;
const _: () = assert!(SMALL_BYTES as u64 == crate::PAGE_BYTES);

/// Move pages that are elsewhere. Source: UAPI, linux/mempolicy.h.
pub(crate) const MPOL_MF_MOVE: libc::c_uint = 1 << 1;
/// The most nodes Linux can have. Source: NODES_SHIFT is at most 10.
const MOST_NODES: u32 = 1 << 10;

/// The system refused a mapping, or a change of one.
#[derive(Debug, thiserror::Error)]
#[error("cannot {attempt} {len} bytes; {advice}")]
pub struct MapError {
    /// What was attempted, as a verb phrase.
    pub attempt: &'static str,
    /// How many bytes it was about.
    pub len: u64,
    /// What to do next.
    pub advice: &'static str,
    /// What the system said.
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
        // SAFETY: without MAP_FIXED the system picks a range nobody uses.
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

    /// Gives the pages of `offset..offset + len` back; they read as zero again. The range is of whole pages.
    pub(crate) fn discard(&self, offset: usize, len: usize) -> Result<(), MapError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "the range lies in the mapping");
        // SAFETY: the range lies in our own private mapping, whose users hold no reference across this call: `Region`
        // passes `&mut self`, and `Pages` never hands out references.
        let failed = unsafe { libc::madvise(self.base.as_ptr().add(offset).cast(), len, libc::MADV_DONTNEED) };
        if failed == 0 {
            Ok(())
        } else {
            Err(MapError::last("discard", len, "name whole pages, and none that are locked in memory"))
        }
    }

    /// Binds its pages to a node, and moves those that are elsewhere.
    pub(crate) fn bind(&self, node: u32) -> Result<(), MapError> {
        // A mask of all nodes there can be; the kernel wants one bit more than it reads (Linux, get_nodes).
        let mut mask = [0_u64; (MOST_NODES / 64) as usize];
        let Some(word) = mask.get_mut((node / 64) as usize) else {
            return Err(MapError {
                attempt: "bind to a node",
                len: self.len as u64,
                advice: "name a node of this machine",
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
            _ => {
                Err(MapError::last("bind to a node", self.len, "name a node of this machine that this process may use"))
            }
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
                    // SAFETY: a byte of our own mapping, which only its owner reaches, and it waits for this.
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

    /// Asks for small pages only, whatever the system prefers.
    pub(crate) fn advise_small(&self) {
        // SAFETY: our own mapping; the advice changes no byte. A system without huge pages refuses it, and has small ones only.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_NOHUGEPAGE) };
    }

    /// Keeps it out of the memory of forked children.
    pub(crate) fn keep_from_children(&self) -> Result<(), MapError> {
        // SAFETY: our own mapping; no byte changes in this process.
        let failed = unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_DONTFORK) };
        if failed == 0 {
            Ok(())
        } else {
            Err(MapError::last("keep from children", self.len, "raise `vm.max_map_count`"))
        }
    }

    /// Asks the kernel to give a forked child empty pages in its place; false if it cannot.
    pub(crate) fn wipe_on_fork(&self) -> bool {
        // SAFETY: our own private anonymous mapping; no byte changes in this process.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_WIPEONFORK) == 0 }
    }

    /// Changes what may be done with the pages of a range. Only for mappings to which no reference exists.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn protect(&self, offset: usize, len: usize, flags: i32) -> Result<(), MapError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "the range lies in the mapping");
        // SAFETY: the range lies in our own mapping; the only caller, `Pages`, never hands out references.
        let failed = unsafe { libc::mprotect(self.base.as_ptr().add(offset).cast(), len, flags) };
        if failed == 0 { Ok(()) } else { Err(MapError::last("protect", len, "name whole pages")) }
    }

    /// Shared memory of a file, read and write.
    pub(crate) fn file(file: &std::fs::File, len: usize) -> Result<Mapping, MapError> {
        use std::os::fd::AsRawFd;
        // SAFETY: without MAP_FIXED the system picks a range nobody uses; the file is open.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(MapError::last("map a file of", len, "open it for reading and writing"));
        }
        Ok(Mapping { base: NonNull::new(base.cast()).expect("mmap gives no null page without MAP_FIXED"), len })
    }

    /// A new, empty file in memory of `len` zero bytes.
    pub(crate) fn memory_file(len: u64) -> Result<std::fs::File, MapError> {
        use std::os::fd::FromRawFd;
        // SAFETY: the name is a terminated string; the descriptor is new and owned by the File.
        let file = unsafe {
            let fd = libc::memfd_create(c"telpher-pages".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(MapError::last("create a memory file of", 0, "raise `ulimit -n`"));
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

/// Bytes of a huge page, to which windows are aligned. Source: x86-64 page tables, level 2.
const HUGE_BYTES: usize = 2 << 20;

/// A file in memory that has no name, mapped for its owner, who has no reference to its bytes; zeros at first. Gone with whoever has it last.
#[derive(Debug)]
pub struct MemoryFile {
    file: std::fs::File,
    mapping: Mapping,
}

impl MemoryFile {
    /// One of so many bytes, a positive multiple of 4 KiB; no page is there until it is touched. Forked children have no mapping of it.
    ///
    /// # Errors
    /// The system's refusal, for example when the address space is exhausted.
    pub fn new(len: usize) -> Result<MemoryFile, MapError> {
        let file = Mapping::memory_file(len as u64)?;
        let mapping = Mapping::file(&file, len)?;
        mapping.keep_from_children()?;
        Ok(MemoryFile { file, mapping })
    }

    /// Where its owner has it.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let start = self.mapping.as_ptr().addr() as u64;
        start..start + self.mapping.len as u64
    }

    /// Has its pages on this NUMA node only, whoever touches them first.
    ///
    /// # Errors
    /// The system's refusal: no such node, or one this process may not use.
    pub fn bind(&self, node: u32) -> Result<(), MapError> {
        self.mapping.bind(node)
    }

    /// Gives pages back to the system: they are zero for all who have them.
    ///
    /// # Errors
    /// The system's refusal.
    ///
    /// # Panics
    /// If the range does not lie in it.
    pub fn discard(&self, offset: usize, len: usize) -> Result<(), MapError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.mapping.len), "the range lies in the file");
        // SAFETY: the range lies in our own mapping, and its bytes may change at any time: nobody has a reference to them.
        let failed = unsafe { libc::madvise(self.mapping.as_ptr().add(offset).cast(), len, libc::MADV_REMOVE) };
        if failed == 0 { Ok(()) } else { Err(MapError::last("give back", len, "name whole pages")) }
    }
}

/// Addresses at which parts of memory files are seen, each as long as its owner likes. Unmapped on drop.
#[derive(Debug)]
pub struct Window {
    mapping: Mapping,
    offset: usize,
    len: usize,
}

impl Window {
    /// Of so many bytes, rounded up to 2 MiB and aligned so; nothing is seen in it yet: it is private, empty memory.
    ///
    /// # Errors
    /// The system's refusal, for example when the address space is exhausted.
    pub fn new(len: usize) -> Result<Window, MapError> {
        let len = crate::region::whole(len, HUGE_BYTES)?;
        let room = crate::region::whole(len.saturating_add(HUGE_BYTES), HUGE_BYTES)?;
        let mapping = Mapping::anonymous(room, libc::MAP_NORESERVE, "map")?;
        let offset = mapping.as_ptr().align_offset(HUGE_BYTES);
        Ok(Window { mapping, offset, len })
    }

    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let start = self.mapping.as_ptr().addr() as u64 + self.offset as u64;
        start..start + self.len as u64
    }

    /// Shows bytes of a file in a part of it, from an offset on, in place of what was seen there; their pages are made present. Forked
    /// children have nothing there.
    ///
    /// # Errors
    /// The system's refusal, for example of more mappings than a process may have (`vm.max_map_count`); then the part is as it was.
    ///
    /// # Panics
    /// If the part does not lie in the window, or the bytes not in the file.
    ///
    /// # Safety
    /// - Whoever has a reference to bytes of the part finds the same there, and nobody writes to either while this goes on.
    /// - Nobody else changes those bytes of the file while they are seen.
    pub unsafe fn show(&self, part: Range<u64>, file: &MemoryFile, offset: u64) -> Result<(), MapError> {
        let all = self.range();
        assert!(
            all.start <= part.start && part.start <= part.end && part.end <= all.end,
            "the part lies in the window"
        );
        let len = part.end - part.start;
        assert!(offset.checked_add(len).is_some_and(|end| end <= file.mapping.len as u64), "the bytes lie in the file");
        let address = ptr::with_exposed_provenance_mut(usize::try_from(part.start).expect("in the mapping"));
        let len = usize::try_from(len).expect("in the mapping");
        let offset = libc::off_t::try_from(offset).expect("in the file");
        // SAFETY: the part lies in our own mapping, and what its users find there is the caller's promise; the file is open.
        unsafe {
            use std::os::fd::AsRawFd;
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            let flags = flags | libc::MAP_FIXED;
            let shown = libc::mmap(address, len, protection, flags, file.file.as_raw_fd(), offset);
            if shown == libc::MAP_FAILED {
                return Err(MapError::last("show a file's", len, "raise `vm.max_map_count`, or ask for less"));
            }
            // Of one whole mapping, which need not be split: not refused.
            libc::madvise(address, len, libc::MADV_DONTFORK);
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, of which nothing remains after this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(address: u64) -> *mut u8 {
        ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
    }

    #[test]
    fn a_window_shows_what_it_is_told_and_its_file_keeps_it() {
        let files = [0, 1].map(|_| MemoryFile::new(2 * HUGE_BYTES).unwrap());
        let window = Window::new(HUGE_BYTES).unwrap();
        let (all, huge) = (window.range(), HUGE_BYTES as u64);
        assert_eq!((all.start % huge, all.end - all.start), (0, huge));
        // SAFETY: addresses of the test's own memory; nobody has a reference to any of it.
        unsafe {
            window.show(all.clone(), &files[0], huge).unwrap();
            byte(all.start + 5000).write_volatile(7);
            assert_eq!(byte(files[0].range().start + huge + 5000).read_volatile(), 7);
            window.show(all.start + 4096..all.start + 8192, &files[1], 0).unwrap();
            assert_eq!(byte(all.start + 5000).read_volatile(), 0);
            byte(all.start + 5000).write_volatile(9);
            assert_eq!(byte(files[1].range().start + 904).read_volatile(), 9);
            assert_eq!(byte(files[0].range().start + huge + 5000).read_volatile(), 7);
            files[0].discard(HUGE_BYTES, HUGE_BYTES).unwrap();
            assert_eq!(byte(files[0].range().start + huge + 5000).read_volatile(), 0);
        }
    }

    #[test]
    #[should_panic(expected = "lie in the file")]
    fn a_window_shows_no_more_than_a_file_has() {
        let (file, window) = (MemoryFile::new(4096).unwrap(), Window::new(HUGE_BYTES).unwrap());
        // SAFETY: nobody has a reference to it; it is refused.
        let _ = unsafe { window.show(window.range(), &file, 0) };
    }
}
