//! Files as memory, and windows that map parts of them.

#[cfg(test)]
mod tests;

use super::{MapError, Mapping};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr;
use telpher_os::Userfault;

/// A file cannot be used as memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} as memory: {why}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The reason, and what to do.
    pub why: &'static str,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

/// Bytes of a huge page, to which windows are aligned. Source: x86-64 page tables, level 2.
const HUGE_BYTES: usize = 2 << 20;

/// An unnamed file in memory, zeroed at first, mapped for its owner, which holds no reference to its bytes. The kernel
/// frees it when its last user is gone.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    mapping: Mapping,
}

impl MemoryFile {
    /// Creates a file of `len` bytes, a positive multiple of 4 KiB. No page is present until it is touched. Forked
    /// children do not inherit the mapping.
    ///
    /// # Errors
    /// The system's refusal, for example when the address space is exhausted.
    pub fn new(len: usize) -> Result<MemoryFile, MapError> {
        let file = Mapping::memory_file(len as u64)?;
        let mapping = Mapping::file(&file, len)?;
        mapping.keep_from_children()?;
        Ok(MemoryFile { file, mapping })
    }

    /// Creates a file of reserved huge pages (hugetlb), all present at once, on `node` if given.
    ///
    /// # Errors
    /// The system's refusal, usually because it has too few huge pages.
    ///
    /// # Panics
    /// If the length is not a positive multiple of 2 MiB.
    pub fn huge(len: usize, node: Option<u32>) -> Result<MemoryFile, MapError> {
        assert!(len > 0 && len.is_multiple_of(HUGE_BYTES), "{len} bytes are not whole huge pages");
        let few = "reserve more pages of 2 MiB on the chosen node: `vm.nr_hugepages`";
        let with_advice = |error: MapError| MapError { advice: few, ..error };
        let file = Mapping::memory_file_with(len as u64, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, few)?;
        let mapping = Mapping::file(&file, len).map_err(with_advice)?;
        mapping.keep_from_children()?;
        if let Some(node) = node {
            mapping.bind(node)?;
        }
        // If the node lacked a page, the first access to it would raise SIGBUS.
        mapping.populate(0, len).map_err(with_advice)?;
        Ok(MemoryFile { file, mapping })
    }

    /// Maps an existing file: a memory device (device-DAX, `/dev/dax0.0`), or a file in memory (tmpfs, hugetlbfs). Maps
    /// as much as it has, in whole multiples of 2 MiB, and at most `most` bytes. The contents stay unchanged. A lock
    /// keeps other users of this function out.
    ///
    /// # Errors
    /// [`FileError`]: the file cannot be opened for reading and writing, is not of such a kind, is shorter than 2 MiB,
    /// or is locked by another user.
    pub fn of(path: &Path, most: usize) -> Result<MemoryFile, FileError> {
        let refused = |why| move |source| FileError { path: path.to_owned(), why, source };
        let no_file = || io::Error::from(io::ErrorKind::InvalidInput);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(refused("choose a file that this user may read and write"))?;
        // SAFETY: a call without pointers. The lock is released on drop.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(refused("another process uses it already")(io::Error::last_os_error()));
        }
        let about = file.metadata().map_err(refused("its length cannot be read"))?;
        let is_device = about.file_type().is_char_device();
        let has = if is_device {
            device_bytes(about.rdev()).map_err(refused("it is not a memory device"))?
        } else {
            about.len()
        };
        let has = usize::try_from(has).unwrap_or(usize::MAX).min(most) / HUGE_BYTES * HUGE_BYTES;
        if has == 0 {
            return Err(refused("it has less than 2 MiB, the smallest size that can be mapped")(no_file()));
        }
        let refusal = |error: MapError| FileError {
            path: path.to_owned(),
            why: "the system refused to map it",
            source: error.source,
        };
        let mapping = Mapping::file(&file, has).map_err(refusal)?;
        mapping.keep_from_children().map_err(refusal)?;
        if !is_device {
            // As above: on a full file system the first access would raise SIGBUS.
            mapping.populate(0, has).map_err(refusal)?;
        }
        Ok(MemoryFile { file, mapping })
    }

    /// Writes zeros everywhere.
    pub fn clear(&self) {
        // SAFETY: the whole of our own mapping. Its bytes may change at any time: no reference to them exists.
        unsafe { self.mapping.as_ptr().write_bytes(0, self.mapping.len) };
    }

    /// Returns the pointer to the first byte of its owner's mapping.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Returns the address range at which its owner has it mapped.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let start = self.mapping.as_ptr().addr() as u64;
        start..start + self.mapping.len as u64
    }

    /// Binds its pages to this NUMA node, regardless of which thread touches them first.
    ///
    /// # Errors
    /// The system's refusal: no such node, or one this process may not use.
    pub fn bind(&self, node: u32) -> Result<(), MapError> {
        self.mapping.bind(node)
    }

    /// Returns pages to the system: they read as zero for all users of the file.
    ///
    /// # Errors
    /// The system's refusal.
    ///
    /// # Panics
    /// If the range does not lie in the file.
    pub fn discard(&self, offset: usize, len: usize) -> Result<(), MapError> {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.mapping.len), "the range lies in the file");
        // SAFETY: the range lies in our own mapping. Its bytes may change at any time: no reference to them exists.
        let failed = unsafe { libc::madvise(self.mapping.as_ptr().add(offset).cast(), len, libc::MADV_REMOVE) };
        if failed == 0 { Ok(()) } else { Err(MapError::last("give back", len, "name whole pages")) }
    }
}

/// An address range in which parts of memory files are mapped, each part as long as its owner chooses. Unmapped on
/// drop.
#[derive(Debug)]
pub struct Window {
    mapping: Mapping,
    offset: usize,
    len: usize,
}

impl Window {
    /// Reserves `len` bytes, rounded up and aligned to 2 MiB. At first the window is private, empty memory.
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

    /// Returns its address range.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        let start = self.mapping.as_ptr().addr() as u64 + self.offset as u64;
        start..start + self.len as u64
    }

    /// Maps bytes of a file, from `offset` on, into a part of the window, and replaces what was mapped there. The pages
    /// are made present. Forked children have nothing mapped there.
    ///
    /// # Errors
    /// The system's refusal, for example because the process has too many mappings (`vm.max_map_count`). The part is
    /// then unchanged.
    ///
    /// # Panics
    /// If the part does not lie in the window, or the bytes do not lie in the file.
    ///
    /// # Safety
    /// - Every existing reference to bytes of the part sees the same bytes afterwards. No thread writes to the old or
    ///   the new bytes during the call.
    /// - No other user changes those bytes of the file while they are mapped.
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
        // SAFETY: the part lies in our own mapping. The caller guarantees that its users find valid bytes there. The
        // file is open.
        unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            let flags = flags | libc::MAP_FIXED;
            let shown = libc::mmap(address, len, protection, flags, file.file.as_raw_fd(), offset);
            if shown == libc::MAP_FAILED {
                return Err(MapError::last("show a file's", len, "raise `vm.max_map_count`, or ask for less"));
            }
            // This covers one whole mapping, which need not be split, so the kernel does not refuse it.
            libc::madvise(address, len, libc::MADV_DONTFORK);
        }
        Ok(())
    }

    /// Hides a part of the window. A thread that touches it waits until something is [shown](Window::show) there again
    /// and the thread is [woken](Userfault::wake). Forked children have nothing mapped there.
    ///
    /// For memory that [`Userfault::protect`] cannot protect. The function registers an empty mapping with the
    /// userfaultfd and then moves it over the part.
    ///
    /// # Errors
    /// The system's refusal. The part may then be unmapped; the caller must show its contents again.
    ///
    /// # Panics
    /// If the part does not lie in the window.
    ///
    /// # Safety
    /// - Another thread reads the userfaultfd's [events](Userfault::read), including `EVENT_REMAP`, and touches nothing
    ///   in the window.
    /// - The caller shows something in the part again, with the same bytes.
    pub unsafe fn hide(&self, part: Range<u64>, userfault: &Userfault) -> Result<(), MapError> {
        let all = self.range();
        assert!(all.start <= part.start && part.start < part.end && part.end <= all.end, "the part lies in the window");
        let len = usize::try_from(part.end - part.start).expect("in the mapping");
        let placeholder = Mapping::anonymous(len, libc::MAP_NORESERVE, "map")?;
        placeholder.keep_from_children()?;
        let start = placeholder.as_ptr().addr() as u64;
        // SAFETY: no thread touches the mapping at its present address. The caller guarantees that a thread reads the
        // events. Later accesses see what the caller shows then.
        unsafe { userfault.register(start..start + len as u64) }.map_err(|source| MapError {
            attempt: "hide",
            len: len as u64,
            advice: "see the system's error",
            source,
        })?;
        // SAFETY: moves the whole of our own mapping over a part of our other mapping. The caller guarantees what its
        // users find there.
        let hidden = unsafe {
            let to: *mut libc::c_void =
                ptr::with_exposed_provenance_mut(usize::try_from(part.start).expect("in the mapping"));
            libc::mremap(placeholder.as_ptr().cast(), len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to)
        };
        if hidden == libc::MAP_FAILED {
            return Err(MapError::last("hide", len, "raise `vm.max_map_count`"));
        }
        // The window owns the mapping now.
        std::mem::forget(placeholder);
        Ok(())
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // A forked child has the descriptor, too, and would keep the lock until it closes its copy; so unlock here.
        // SAFETY: a call without pointers; without a lock it does nothing.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Returns the size of a memory device. Source: Linux, Documentation/ABI/testing/sysfs-bus-dax.
fn device_bytes(number: u64) -> io::Result<u64> {
    let folder = format!("/sys/dev/char/{}:{}", libc::major(number), libc::minor(number));
    let attribute = |name: &str| -> io::Result<u64> {
        let text = std::fs::read_to_string(format!("{folder}/{name}"))?;
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    };
    // The page size in which the device is mapped.
    if attribute("align")? > HUGE_BYTES as u64 {
        return Err(io::Error::other(
            "its pages are larger than 2 MiB; recreate the device with pages of 2 MiB: daxctl create-device -a 2M",
        ));
    }
    attribute("size")
}
