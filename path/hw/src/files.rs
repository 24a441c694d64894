//! The machine's description of itself: its files, or a recording of them.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};

/// Files by their absolute path, as on the machine itself. Discovery and diagnosis read through this trait, so that
/// both also work on a recorded machine.
pub trait Files: Debug {
    /// Returns the whole content.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Returns the names in a directory, sorted.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Returns the target of a symbolic link, as stored.
    ///
    /// # Errors
    ///
    /// The system's error.
    fn link(&self, path: &Path) -> io::Result<PathBuf>;
}

/// This machine, or a tree with the same paths under another root.
#[derive(Clone, Debug)]
pub struct Live {
    root: PathBuf,
}

impl Default for Live {
    fn default() -> Self {
        Live::under("/")
    }
}

impl Live {
    /// Creates a view whose paths are relative to `root`.
    #[must_use]
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Live { root: root.into() }
    }

    /// Returns the real location of a path of the machine.
    pub(crate) fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl Files for Live {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(self.at(path))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let entries = std::fs::read_dir(self.at(path))?;
        let mut names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        std::fs::read_link(self.at(path))
    }
}
