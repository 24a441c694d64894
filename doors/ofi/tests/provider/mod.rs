//! Where libfabric finds the provider in tests.

use std::path::PathBuf;
use telpher_launch::libraries;

/// A folder with the provider under the name that libfabric looks for. It is removed with the value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes a folder for a test.
    pub(crate) fn new(test: &str) -> Folder {
        let folder = std::env::temp_dir().join(format!("telpher-ofi-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("room");
        libraries::FABRIC.write_to(&folder.join("libtelpher-fi.so")).expect("room");
        Folder(folder)
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("a path in ASCII")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It is a temporary folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
