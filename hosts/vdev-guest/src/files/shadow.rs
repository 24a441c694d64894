//! The shadow tree: a directory of the run with a directory, link or placeholder for everything the driver adds to the machine.
//!
//! `/sys/bus/dsa/devices` stands in `<run>/view/sys/bus/dsa/devices`. A directory that the machine has too, and which only gains
//! entries, bears a mark; everything else in the tree is ours. So the tree itself, which the host keeps in step with the
//! driver, answers what is whose, and nothing has to be remembered here.

use crate::files::path::{self, Path};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Stat};
use std::ffi::CStr;

/// Name of the mark in directories that only gain entries; no listing shows it.
pub(crate) const MERGED: &[u8] = b".telpher-merged";

/// Numbers of directories that are known to bear the mark, so that the way through them costs nothing.
static KNOWN: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// The tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shadow<'a> {
    /// Where it stands, absolute.
    root: &'a [u8],
}

/// Whose a path is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Ours alone.
    Ours,
    /// A directory of the machine with entries of ours.
    Merged,
    /// The machine's.
    Real,
}

impl<'a> Shadow<'a> {
    /// A tree at an absolute path.
    pub(crate) fn new(root: &'a [u8]) -> Self {
        Shadow { root }
    }

    /// Where a path stands in the tree.
    ///
    /// # Errors
    /// ENAMETOOLONG.
    pub(crate) fn place(&self, path: &Path) -> Result<Path, Errno> {
        let mut place = Path::new(self.root)?;
        if path.as_bytes() != b"/" {
            place.append(path.as_bytes())?;
        }
        Ok(place)
    }

    /// The path that a place in the tree stands for; `None` if it is no place in the tree.
    pub(crate) fn path_of<'p>(&self, place: &'p [u8]) -> Option<&'p [u8]> {
        // The kernel says so behind the name of what has been removed.
        let place = place.strip_suffix(b" (deleted)").unwrap_or(place);
        path::below(place, self.root).map(|path| if path.is_empty() { &b"/"[..] } else { path })
    }

    /// What the tree has at a path, without following it.
    pub(crate) fn look(&self, path: &Path) -> Option<Stat> {
        let place = self.place(path).ok()?;
        rustix::fs::statat(CWD, place.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Whose a directory is.
    pub(crate) fn side(&self, path: &Path) -> Side {
        if path.as_bytes() == b"/" || self.is_known_merged(path) {
            return Side::Merged;
        }
        match self.look(path) {
            Some(status) if kind(&status) == FileType::Directory => self.side_of_directory(path),
            Some(_) => Side::Ours,
            None => Side::Real,
        }
    }

    /// True for a directory that is known to bear the mark. Marks are never taken away: the machine keeps its directories.
    pub(crate) fn is_known_merged(&self, path: &Path) -> bool {
        let number = self.number(path);
        // Relaxed: each place holds a number of its own, or nothing yet.
        KNOWN
            .iter()
            .map(|known| known.load(Ordering::Relaxed))
            .take_while(|known| *known != 0)
            .any(|known| known == number)
    }

    /// Remembers that a directory bears the mark, if there is room.
    fn know_merged(&self, path: &Path) {
        let number = self.number(path);
        for known in &KNOWN {
            match known.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
                Err(other) if other != number => {}
                _ => return,
            }
        }
    }

    /// A number for a path in this tree, never 0: FNV-1a over 64 bits. Two of a tree's dozen marked paths would have to be taken for
    /// one another to do harm.
    fn number(&self, path: &Path) -> u64 {
        let bytes = self.root.iter().chain(path.as_bytes());
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        }) | 1
    }

    /// Whose a directory is that the tree has.
    pub(crate) fn side_of_directory(&self, path: &Path) -> Side {
        if self.is_known_merged(path) {
            return Side::Merged;
        }
        let marked = self.place(path).and_then(|mut place| {
            place.push(MERGED)?;
            rustix::fs::statat(CWD, place.as_c_str(), AtFlags::SYMLINK_NOFOLLOW)
        });
        if marked.is_err() {
            return Side::Ours;
        }
        self.know_merged(path);
        Side::Merged
    }

    /// A link's text.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn link<'b>(&self, path: &Path, into: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        link(self.place(path)?.as_c_str(), into)
    }
}

/// What a status tells about the kind of file.
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
