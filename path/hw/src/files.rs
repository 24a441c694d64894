//! Where the machine's own account of itself is read: its files, or a recording of them.

use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};

/// Files by their absolute path, as on the machine itself. Discovery and diagnosis read through this, so that both work on a
/// recorded machine too.
pub trait Files: Debug {
    /// The whole content.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Names in a directory, sorted.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Where a symbolic link points, as it is written.
    ///
    /// # Errors
    ///
    /// What the system said.
    fn link(&self, path: &Path) -> io::Result<PathBuf>;
}

/// This machine, or a tree of its shape under another root.
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
    /// Paths are taken below `root`.
    #[must_use]
    pub fn under(root: impl Into<PathBuf>) -> Self {
        Live { root: root.into() }
    }

    /// Where a path of the machine really is.
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
