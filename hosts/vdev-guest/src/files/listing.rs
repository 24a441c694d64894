//! The entries that readdir(3) returns for our directories and for merged directories of the machine: a list made when
//! the directory is opened.

use crate::files::path::Path;
use crate::files::shadow::{MERGED, Ownership, Shadow};
use crate::files::{descriptor, status};
use crate::sys::Errno;
use rustix::fs::{AtFlags, CWD, FileType, OFlags, RawDir};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Its name.
    pub(crate) name: Vec<u8>,
    /// Its inode number, as in stat(2).
    pub(crate) inode: u64,
    /// Its type.
    pub(crate) kind: FileType,
}

/// The entries of an open directory with this path.
///
/// # Errors
/// The system's.
pub(crate) fn list(shadow: Shadow<'_>, fd: RawFd, path: &Path, ownership: Ownership) -> Result<Vec<Entry>, Errno> {
    let mut entries = descriptor::borrowed(fd, entries_of)?;
    match ownership {
        Ownership::Ours => present(path, &mut entries),
        Ownership::Real => {}
        Ownership::Merged => {
            let location = shadow.location(path)?;
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            let tree: OwnedFd = rustix::fs::open(location.as_c_str(), flags, rustix::fs::Mode::empty())?;
            let mut ours = entries_of(tree.as_fd())?;
            present(path, &mut ours);
            // For an entry in both lists: a merged directory is the machine's, everything else is ours.
            ours.retain(|entry| !(entry.kind == FileType::Directory && is_merged(shadow, path, &entry.name)));
            entries.retain(|real| !ours.iter().any(|entry| entry.name == real.name && !is_dots(&entry.name)));
            ours.retain(|entry| !is_dots(&entry.name));
            entries.append(&mut ours);
        }
    }
    Ok(entries)
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// True for an entry of the tree that is also a directory of the machine.
fn is_merged(shadow: Shadow<'_>, directory: &Path, name: &[u8]) -> bool {
    let mut path = directory.clone();
    !is_dots(name)
        && path.push(name).is_ok()
        && shadow.ownership_of_directory(&path) == Ownership::Merged
        && rustix::fs::statat(CWD, path.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// Makes the tree's entries look like those of the file system they appear in.
fn present(directory: &Path, entries: &mut Vec<Entry>) {
    entries.retain(|entry| entry.name != MERGED);
    for entry in entries {
        entry.inode = status::inode(entry.inode);
        if entry.kind == FileType::RegularFile && status::is_node(directory) {
            entry.kind = FileType::CharacterDevice;
        }
    }
}

fn entries_of(directory: BorrowedFd<'_>) -> Result<Vec<Entry>, Errno> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = Vec::new();
    let mut stream = RawDir::new(directory, &mut buffer);
    while let Some(entry) = stream.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes().to_vec();
        entries.push(Entry { name, inode: entry.ino(), kind: entry.file_type() });
    }
    Ok(entries)
}

/// The open descriptors of this process.
pub(crate) fn descriptors() -> Vec<RawFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::open(c"/proc/thread-self/fd", flags, rustix::fs::Mode::empty()) else {
        return Vec::new();
    };
    let entries = entries_of(directory.as_fd()).unwrap_or_default();
    let numbers = entries.iter().filter_map(|entry| std::str::from_utf8(&entry.name).ok()?.parse().ok());
    numbers.filter(|number| *number != directory.as_raw_fd()).collect()
}
