//! The directory of a run of this process, whose index and words the tests write.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use telpher_device::published::{INDEX, RunIndex, SharedFile};

/// The directory; removed on drop.
pub(crate) struct RunFolder(pub(crate) PathBuf);

impl RunFolder {
    pub(crate) fn new(test: &str) -> RunFolder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        RunFolder(path)
    }

    /// Creates a file of zeros, and says how an index names it.
    pub(crate) fn file(&self, name: &str, bytes: usize) -> (File, SharedFile) {
        let file = File::create_new(self.0.join(name)).unwrap();
        file.set_len(bytes as u64).unwrap();
        let shared = SharedFile { descriptor: file.as_raw_fd(), inode: file.metadata().unwrap().ino() };
        (file, shared)
    }

    /// Replaces the index.
    pub(crate) fn write(&self, index: &RunIndex) {
        let part = self.0.join("part");
        File::create(&part).unwrap().write_all(&serde_json::to_vec(index).unwrap()).unwrap();
        fs::rename(part, self.0.join(INDEX)).unwrap();
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
