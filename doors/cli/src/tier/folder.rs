//! Where runs have their states: a folder of this user's, and in it one of each run.

use rustix::process::getuid;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The folder of this user's runs: in `XDG_RUNTIME_DIR`, or in the system's for what is temporary.
pub(super) fn of_user() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let base = runtime.unwrap_or_else(std::env::temp_dir);
    base.join(format!("telpher-tier-{}", getuid().as_raw()))
}

/// One run's folder; it goes with this.
#[derive(Debug)]
pub(super) struct RunFolder(PathBuf);

impl RunFolder {
    /// A fresh one.
    ///
    /// # Errors
    /// The system's, or that the user's folder is somebody else's.
    pub(super) fn create() -> io::Result<RunFolder> {
        let of_user = of_user();
        let private = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        match private(&of_user) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = fs::symlink_metadata(&of_user)?;
                if !found.is_dir() || found.uid() != getuid().as_raw() || found.mode() & 0o077 != 0 {
                    let why = format!("{} is not a folder of this user alone; remove it", of_user.display());
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
                }
            }
            other => other?,
        }
        let folder = of_user.join(std::process::id().to_string());
        // Left by a process of this number that was killed.
        let _ = fs::remove_dir_all(&folder);
        private(&folder)?;
        Ok(RunFolder(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        // The last one takes the user's with it; a refusal means that there are others.
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

/// The folders of runs that go on.
pub(super) fn running() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of_user()) else { return Vec::new() };
    let lives = |path: &PathBuf| {
        let pid = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
        pid.is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
    };
    let mut folders: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(lives).collect();
    folders.sort_unstable();
    folders
}
