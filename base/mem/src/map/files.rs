//! Files as memory, and windows in which parts of them are seen.

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

/// A file cannot be had as memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot have {} as memory: {why}", path.display())]
pub struct FileError {
    /// Which.
    pub path: PathBuf,
    /// Why, and what to do.
    pub why: &'static str,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// Bytes of a huge page, to which windows are aligned. Source: x86-64 page tables, level 2.
const HUGE_BYTES: usize = 2 << 20;

/// A file in memory that has no name, mapped for its owner, who has no reference to its bytes; zeros at first. Gone with whoever has it last.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
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

    /// The same of huge pages (hugetlb), all of them there at once, on a node if one is named; of those that the system has reserved.
    ///
    /// # Errors
    /// The system's refusal, above all when it has too few of them.
    ///
    /// # Panics
    /// If the length is no positive multiple of 2 MiB.
    pub fn huge(len: usize, node: Option<u32>) -> Result<MemoryFile, MapError> {
        assert!(len > 0 && len.is_multiple_of(HUGE_BYTES), "{len} bytes are whole huge pages");
        let few = "reserve more pages of 2 MiB, on the node that was named: `vm.nr_hugepages`";
        let told = |error: MapError| MapError { advice: few, ..error };
        let file = Mapping::memory_file_with(len as u64, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, few)?;
        let mapping = Mapping::file(&file, len).map_err(told)?;
        mapping.keep_from_children()?;
        if let Some(node) = node {
            mapping.bind(node)?;
        }
        // A page that its node does not have would be a SIGBUS for whoever touches it first.
        mapping.populate(0, len).map_err(told)?;
        Ok(MemoryFile { file, mapping })
    }

    /// That of a file that there is: a device of memory (device-DAX, `/dev/dax0.0`), or a file in memory (tmpfs, hugetlbfs). As much as
    /// there is, in whole multiples of 2 MiB, and no more than `most`. Its bytes are what they are. Nobody else has it this way meanwhile.
    ///
    /// # Errors
    /// [`FileError`]: it cannot be opened for reading and writing, is no such file, is shorter than 2 MiB, or somebody has it.
    pub fn of(path: &Path, most: usize) -> Result<MemoryFile, FileError> {
        let refused = |why| move |source| FileError { path: path.to_owned(), why, source };
        let no_file = || io::Error::from(io::ErrorKind::InvalidInput);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(refused("name one that this user may read and write"))?;
        // SAFETY: a call without pointers. Given back when this is dropped.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(refused("somebody has it already")(io::Error::last_os_error()));
        }
        let about = file.metadata().map_err(refused("its length cannot be asked"))?;
        let is_device = about.file_type().is_char_device();
        let has = if is_device {
            device_bytes(about.rdev()).map_err(refused("it is no device of memory"))?
        } else {
            about.len()
        };
        let has = usize::try_from(has).unwrap_or(usize::MAX).min(most) / HUGE_BYTES * HUGE_BYTES;
        if has == 0 {
            return Err(refused("it has less than 2 MiB, which is the least that is moved")(no_file()));
        }
        let told = |error: MapError| FileError {
            path: path.to_owned(),
            why: "the system does not map it",
            source: error.source,
        };
        let mapping = Mapping::file(&file, has).map_err(told)?;
        mapping.keep_from_children().map_err(told)?;
        if !is_device {
            // As above: a file system that is full would be a SIGBUS.
            mapping.populate(0, has).map_err(told)?;
        }
        Ok(MemoryFile { file, mapping })
    }

    /// Writes zeros everywhere.
    pub fn clear(&self) {
        // SAFETY: all of our own mapping, and its bytes may change at any time: nobody has a reference to them.
        unsafe { self.mapping.as_ptr().write_bytes(0, self.mapping.len) };
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

    /// Hides what is seen in a part of it: whoever touches it waits, until something is [shown](Window::show) there again and he is
    /// [woken](Userfault::wake). Forked children have nothing there.
    ///
    /// For what [`Userfault::protect`] cannot protect. It is an empty mapping, registered with the userfaultfd before it is moved there.
    ///
    /// # Errors
    /// The system's refusal. In the part there may be nothing then: what was there is to be shown again.
    ///
    /// # Panics
    /// If the part does not lie in the window.
    ///
    /// # Safety
    /// - Another thread reads the userfaultfd's [events](Userfault::read), of which `EVENT_REMAP` is one, and touches nothing in the window.
    /// - Something is shown in the part again, with the same bytes.
    pub unsafe fn hide(&self, part: Range<u64>, userfault: &Userfault) -> Result<(), MapError> {
        let all = self.range();
        assert!(all.start <= part.start && part.start < part.end && part.end <= all.end, "the part lies in the window");
        let len = usize::try_from(part.end - part.start).expect("in the mapping");
        let veil = Mapping::anonymous(len, libc::MAP_NORESERVE, "map")?;
        veil.keep_from_children()?;
        let start = veil.as_ptr().addr() as u64;
        // SAFETY: nobody touches it where it is, and who reads events is the caller's promise; what touches it later is to see what is shown then.
        unsafe { userfault.register(start..start + len as u64) }.map_err(|source| MapError {
            attempt: "hide",
            len: len as u64,
            advice: "see what the system said",
            source,
        })?;
        // SAFETY: the whole of our own mapping, moved over a part of our own other; what its users find there is the caller's promise.
        let hidden = unsafe {
            let to: *mut libc::c_void =
                ptr::with_exposed_provenance_mut(usize::try_from(part.start).expect("in the mapping"));
            libc::mremap(veil.as_ptr().cast(), len, len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to)
        };
        if hidden == libc::MAP_FAILED {
            return Err(MapError::last("hide", len, "raise `vm.max_map_count`"));
        }
        // It is the window's now.
        std::mem::forget(veil);
        Ok(())
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        // A forked child has the descriptor, too, with whose last copy the lock would go.
        // SAFETY: a call without pointers; one that has no lock has nothing to give back.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// How much memory a device has. Source: Linux, Documentation/ABI/testing/sysfs-bus-dax.
fn device_bytes(number: u64) -> io::Result<u64> {
    let folder = format!("/sys/dev/char/{}:{}", libc::major(number), libc::minor(number));
    let told = |name: &str| -> io::Result<u64> {
        let text = std::fs::read_to_string(format!("{folder}/{name}"))?;
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    };
    // What it is mapped in.
    if told("align")? > HUGE_BYTES as u64 {
        return Err(io::Error::other(
            "its pages are larger than 2 MiB; make a device of pages of 2 MiB of it: daxctl create-device -a 2M",
        ));
    }
    told("size")
}
