//! Finds which bytes of which file a range of this process' memory shows, if other processes can map them too
//! (`PROCMAP_QUERY`, Linux 6.11).
//!
//! Only files that are memory count: memory files, shared memory objects of POSIX and System V, and files on huge
//! pages. The mapping of another file could wait for a disk or a server.
//!
//! Sources: UAPI linux/fs.h, linux/magic.h; proc_pid_maps(5), proc_pid_map_files(5).
#![allow(unsafe_code, reason = "an ioctl that fills structures of this module")]

#[cfg(test)]
mod tests;

use crate::ioctl::ioctl_number;
use rustix::fs::{Mode, OFlags, fstat, fstatfs, major, minor, open};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `PROCMAP_QUERY`: read and write, 104 bytes, letter f, number 17.
const QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;
const _: () = assert!(QUERY == 0xc068_6611);

/// `PROCMAP_QUERY_VMA_READABLE`, `PROCMAP_QUERY_VMA_SHARED` and `PROCMAP_QUERY_FILE_BACKED_VMA`: other mappings are not
/// found.
const WANTED: u64 = 0x01 | 0x08 | 0x20;

/// `TMPFS_MAGIC`, `HUGETLBFS_MAGIC`.
const MEMORY_FILE_SYSTEMS: [u64; 2] = [0x0102_1994, 0x9584_58f6];

/// How the names of files that are memory begin. Source: mm/memfd.c, mm/shmem.c, ipc/shm.c; shm_overview(7).
const NAMES: [&[u8]; 6] =
    [b"/memfd:", b"/dev/shm/", b"/dev/hugepages/", b"/dev/zero (deleted)", b"/anon_hugepage", b"/SYSV"];

/// The longest name that is read. Source: `PATH_MAX`.
const MOST_NAME: usize = 4096;

#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// Identifies a file while it is mapped or open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIdentity {
    device: (u32, u32),
    inode: u64,
}

/// A mapping that other processes can have, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedRange {
    /// Its file.
    pub file: FileIdentity,
    /// The address of its first byte.
    pub start: u64,
    /// The address after its last byte.
    pub end: u64,
    /// The position of the first byte in the file.
    pub offset: u64,
}

/// The mappings of this process. In a forked child they are still those of the parent.
#[derive(Debug)]
pub struct SharedFiles {
    maps: OwnedFd,
}

impl SharedFiles {
    /// Opens the list of this process' mappings.
    ///
    /// # Errors
    /// The system's refusal; [`Unsupported`](io::ErrorKind::Unsupported) before Linux 6.11.
    pub fn open() -> io::Result<SharedFiles> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let files = SharedFiles { maps: open("/proc/self/maps", flags, Mode::empty())? };
        match files.query(0, &mut []) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Err(io::ErrorKind::Unsupported.into()),
            _ => Ok(files),
        }
    }

    /// Returns the mapping of a file at an address, if it is readable and other processes see the same bytes. One
    /// system call.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<SharedRange> {
        self.query(address, &mut []).ok().map(|found| found.range())
    }

    /// Opens the file of a mapping for reading, if it is memory and this process can reach it: by a descriptor that it
    /// has, by the file's name, or, with the right to do so, by the mapping.
    #[must_use]
    pub fn open_file(&self, range: &SharedRange) -> Option<OwnedFd> {
        let mut name = [0; MOST_NAME];
        let found = self.query(range.start, &mut name).ok().filter(|found| found.range() == *range)?;
        let name = name.get(..(found.vma_name_size as usize).checked_sub(1)?)?;
        if !NAMES.iter().any(|known| name.starts_with(known)) {
            return None;
        }
        let mapping = format!("/proc/self/map_files/{:x}-{:x}", range.start, range.end);
        let is_it = |file: &OwnedFd| is_memory(file) && identity(file) == Some(range.file);
        let reopen = |path: &Path| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            open(path, flags, Mode::empty()).ok().filter(is_it)
        };
        let by_descriptor = || {
            // The links are compared first: a file that is no memory is not touched.
            let descriptors = std::fs::read_dir("/proc/self/fd").ok()?.flatten().map(|entry| entry.path());
            let is_named = |path: &std::path::PathBuf| {
                std::fs::read_link(path).is_ok_and(|link| link.as_os_str().as_bytes() == name)
            };
            descriptors.filter(is_named).find_map(|path| reopen(&path))
        };
        let by_name = || {
            let path = Path::new(std::ffi::OsStr::from_bytes(name));
            (!name.ends_with(b" (deleted)")).then(|| reopen(path)).flatten()
        };
        reopen(Path::new(&mapping)).or_else(by_descriptor).or_else(by_name)
    }

    fn query(&self, address: u64, name: &mut [u8]) -> io::Result<Query> {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            query_flags: WANTED,
            query_addr: address,
            vma_name_size: u32::try_from(name.len()).unwrap_or(u32::MAX),
            vma_name_addr: if name.is_empty() { 0 } else { name.as_mut_ptr().expose_provenance() as u64 },
            ..Query::default()
        };
        // SAFETY: the kernel writes the structure, and at most `vma_name_size` bytes of the name, both of which are
        // ours and outlive the call.
        match unsafe { libc::ioctl(self.maps.as_raw_fd(), ioctl_number(QUERY), &raw mut query) } {
            0 => Ok(query),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Query {
    fn range(&self) -> SharedRange {
        SharedRange {
            file: FileIdentity { device: (self.dev_major, self.dev_minor), inode: self.inode },
            start: self.vma_start,
            end: self.vma_end,
            offset: self.vma_offset,
        }
    }
}

/// True if a file is memory: a mapping of it waits for no disk, and no other process answers its page faults.
#[must_use]
pub fn is_memory(file: impl AsFd) -> bool {
    fstatfs(file).is_ok_and(|system| MEMORY_FILE_SYSTEMS.contains(&system.f_type.cast_unsigned()))
}

fn identity(file: &OwnedFd) -> Option<FileIdentity> {
    let stat = fstat(file).ok()?;
    Some(FileIdentity { device: (major(stat.st_dev), minor(stat.st_dev)), inode: stat.st_ino })
}
