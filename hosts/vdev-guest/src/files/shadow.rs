//! The shadow tree: a directory of the run with a directory, link or placeholder for everything that the driver adds to
//! the machine's tree.
//!
//! `/sys/bus/dsa/devices` is at `<run>/view/sys/bus/dsa/devices`. A directory that the machine has too, and that only
//! gains entries, contains a marker file; everything else in the tree is ours. So the tree itself, which the host keeps
//! up to date, tells what is ours, and this library stores nothing.

use crate::files::path::{self, Path};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Stat};
use std::ffi::CStr;

/// Name of the marker file in merged directories; no listing shows it.
pub(crate) const MERGED: &[u8] = b".telpher-merged";

/// Hashes of directories that are known to have the marker, so that walking through them needs no system call.
static KNOWN: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// The shadow tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shadow<'a> {
    /// Its root, absolute.
    root: &'a [u8],
}

/// Which tree a path belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ownership {
    /// Only in our tree.
    Ours,
    /// A directory of the machine with entries of ours.
    Merged,
    /// Only the machine's.
    Real,
}

impl<'a> Shadow<'a> {
    /// The tree at an absolute path.
    pub(crate) fn new(root: &'a [u8]) -> Self {
        Shadow { root }
    }

    /// The location of a path in the tree.
    ///
    /// # Errors
    /// ENAMETOOLONG.
    pub(crate) fn location(&self, path: &Path) -> Result<Path, Errno> {
        let mut location = Path::new(self.root)?;
        if path.as_bytes() != b"/" {
            location.append(path.as_bytes())?;
        }
        Ok(location)
    }

    /// The path that a location in the tree stands for; `None` for a location outside the tree.
    pub(crate) fn path_of<'p>(&self, location: &'p [u8]) -> Option<&'p [u8]> {
        // The kernel appends this to the name of a removed file.
        let location = location.strip_suffix(b" (deleted)").unwrap_or(location);
        path::below(location, self.root).map(|path| if path.is_empty() { &b"/"[..] } else { path })
    }

    /// The status of a path in the tree; a link is not followed.
    pub(crate) fn look(&self, path: &Path) -> Option<Stat> {
        let location = self.location(path).ok()?;
        rustix::fs::statat(CWD, location.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Which tree a path belongs to.
    pub(crate) fn ownership(&self, path: &Path) -> Ownership {
        if path.as_bytes() == b"/" || self.is_known_merged(path) {
            return Ownership::Merged;
        }
        match self.look(path) {
            Some(status) if kind(&status) == FileType::Directory => self.ownership_of_directory(path),
            Some(_) => Ownership::Ours,
            None => Ownership::Real,
        }
    }

    /// True for a directory that is known to have the marker. Markers are never removed: the machine keeps its
    /// directories.
    pub(crate) fn is_known_merged(&self, path: &Path) -> bool {
        let number = self.number(path);
        // Relaxed: each element is independent: a hash, or 0.
        KNOWN
            .iter()
            .map(|known| known.load(Ordering::Relaxed))
            .take_while(|known| *known != 0)
            .any(|known| known == number)
    }

    /// Remembers that a directory has the marker, if there is space.
    fn know_merged(&self, path: &Path) {
        let number = self.number(path);
        for known in &KNOWN {
            match known.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
                Err(other) if other != number => {}
                _ => return,
            }
        }
    }

    /// A hash of a path in this tree, never 0: FNV-1a over 64 bits. A collision between two of a tree's dozen marked
    /// paths is the only way to a wrong result.
    fn number(&self, path: &Path) -> u64 {
        let bytes = self.root.iter().chain(path.as_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }) | 1
    }

    /// Which tree a directory belongs to that exists in the shadow tree.
    pub(crate) fn ownership_of_directory(&self, path: &Path) -> Ownership {
        if self.is_known_merged(path) {
            return Ownership::Merged;
        }
        let marked = self.location(path).and_then(|mut location| {
            location.push(MERGED)?;
            rustix::fs::statat(CWD, location.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)
        });
        if marked.is_err() {
            return Ownership::Ours;
        }
        self.know_merged(path);
        Ownership::Merged
    }

    /// A link's text.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn link<'b>(&self, path: &Path, into: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        link(self.location(path)?.as_c_str(), into)
    }
}

/// The file type in a status.
pub(crate) fn kind(status: &Stat) -> FileType {
    FileType::from_raw_mode(status.st_mode)
}

/// Text of a link of the machine.
///
/// # Errors
/// The system's.
pub(crate) fn link<'b>(path: &CStr, into: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let len = rustix::fs::readlinkat_raw(CWD, path, &mut *into)?;
    Ok(&into[..len])
}
