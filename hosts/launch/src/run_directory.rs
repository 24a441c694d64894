//! A run's own directory: created for one run in the [user's directory](crate::UserDirectory), removed when the run
//! ends, however it ends.

use crate::error::LaunchError;
use crate::run_kind::{OPEN, RunKind};
use crate::sweeper::Sweeper;
use crate::user_directory::UserDirectory;
use rustix::fs::{FlockOperation, Mode, RawDir, flock, fstat, mkdirat, openat};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory of one run.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    name: String,
    /// Removes the directory when the run ends, also if this process is killed.
    _sweeper: Sweeper,
    /// Locked while this process lives: the sweeper of another run may remove an unlocked directory.
    _lock: OwnedFd,
}

impl RunDirectory {
    /// Creates the directory, and starts the removal of leftover directories of this user's earlier runs. Call this
    /// while the process has one thread.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn create(user: &UserDirectory, kind: RunKind) -> Result<Self, LaunchError> {
        let create = || loop {
            if let Some(made) = Self::create_once(user, kind)? {
                return Ok(made);
            }
        };
        create().map_err(LaunchError::errno("create a directory for this run"))
    }

    /// Returns `None` if the directory was removed before it was locked: by a run in another PID namespace, which
    /// cannot see this process.
    fn create_once(user: &UserDirectory, kind: RunKind) -> Result<Option<Self>, Errno> {
        let mut random = [0; 4];
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()))?;
        let name = format!("{}{}-{:08x}", kind.prefix(), std::process::id(), u32::from_ne_bytes(random));
        let base = user.descriptor();
        let own = CString::new(name.as_str()).map_err(|_| Errno::INVAL)?;
        // The sweeper starts before the directory exists: if this process is killed at any later moment, nothing is
        // left behind.
        let sweeper = Sweeper::start(base, &own)?;
        mkdirat(base, &name, Mode::RWXU)?;
        let lock = match openat(base, &name, OPEN, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            lock => lock?,
        };
        // Another run's sweeper, or `tier top`, holds the lock for the moment in which it checks whether this run is
        // alive.
        rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
        if fstat(&lock)?.st_nlink == 0 {
            return Ok(None);
        }
        Ok(Some(RunDirectory { path: user.path().join(&name), name, _sweeper: sweeper, _lock: lock }))
    }

    /// The directory's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last component of the path, unique on this machine.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directories of this user's active runs, sorted by name.
    #[must_use]
    pub fn running(kind: RunKind) -> Vec<PathBuf> {
        UserDirectory::existing().iter().flat_map(|user| running_in(user, kind)).collect()
    }
}

fn running_in(user: &UserDirectory, kind: RunKind) -> Vec<PathBuf> {
    // A separate descriptor: reading moves the offset.
    let Ok(directory) = openat(user.descriptor(), ".", OPEN, Mode::empty()) else { return Vec::new() };
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut found = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        if name.starts_with(kind.prefix().as_bytes()) && is_locked(user.descriptor(), name) {
            found.push(user.path().join(OsStr::from_bytes(name)));
        }
    }
    found.sort_unstable();
    found
}

fn is_locked(base: BorrowedFd<'_>, name: &[u8]) -> bool {
    let Ok(directory) = openat(base, name, OPEN, Mode::empty()) else { return false };
    flock(&directory, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
}
