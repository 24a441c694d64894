//! Where libfabric finds the provider in tests.

use std::path::PathBuf;

/// A folder with the provider under the name that libfabric looks for. It is removed with the value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes a folder for a test.
    pub(crate) fn new(test: &str) -> Folder {
        // Using the library makes Cargo build the shared object, too, beside the test itself.
        assert!(!telpher_ofi::fi_prov_ini().is_null());
        let test_itself = std::env::current_exe().expect("Linux knows the path");
        let library = test_itself.with_file_name("libtelpher_ofi.so");
        assert!(library.exists(), "{}", library.display());
        let folder = std::env::temp_dir().join(format!("telpher-ofi-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("room");
        std::fs::copy(library, folder.join("libtelpher-fi.so")).expect("room");
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
