//! A folder for a benchmark's sockets and files.

use super::BenchError;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder that only this user can read. Dropping it removes it with its contents.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file in the folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a folder in the temporary folder. Its path is short, because a socket's path has at most 107 bytes, and
    /// its name cannot be guessed.
    pub(super) fn new() -> Result<Folder, BenchError> {
        loop {
            let mut random = [0; 8];
            let path = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
                .map(|_| std::env::temp_dir().join(format!("telpher-bench-{:016x}", u64::from_ne_bytes(random))));
            let failed = |what: String| move |source| BenchError::Program { what, source };
            let path = path.map_err(io::Error::from).map_err(failed("asking for random numbers".into()))?;
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    made.map_err(failed(format!("making {}", path.display())))?;
                    return Ok(Folder(path));
                }
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
