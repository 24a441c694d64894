//! A run's own directory: made for one run in the [user's directory](crate::UserDirectory), gone with it, however it ends.

use crate::error::LaunchError;
use crate::sweeper::Sweeper;
use crate::user_directory::UserDirectory;
use rustix::fs::{FlockOperation, Mode, OFlags, RawDir, flock, fstat, mkdirat, openat};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Longest path. A socket's address has 108 bytes and ends with a zero, and the preloaded part keeps room for this much.
pub(super) const LONGEST: usize = 96;

/// Longest path of the directory in which run directories are: what a name takes besides is `/tier-`, a process number of at most ten
/// digits, and `-` with eight hexadecimal digits.
pub(super) const LONGEST_PARENT: usize = LONGEST - 25;

/// Opens a directory itself, not what a link of its name leads to.
pub(super) const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Which command a run directory is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunKind {
    /// `telpher run`.
    Device,
    /// `telpher tier run`.
    Tier,
}

impl RunKind {
    /// All of them.
    pub(super) const ALL: [RunKind; 2] = [RunKind::Device, RunKind::Tier];

    /// What names of such directories begin with.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            RunKind::Device => "run-",
            RunKind::Tier => "tier-",
        }
    }
}

/// A directory of this run's own.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    name: String,
    /// Removes it: at the end, and if this process is killed.
    _sweeper: Sweeper,
    /// Locked as long as this process lives: the sweeper of another run may remove an unlocked directory.
    _lock: OwnedFd,
}

impl RunDirectory {
    /// Makes one, and has the remains of this user's earlier runs removed. To be called while the process has one thread.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn create(user: &UserDirectory, kind: RunKind) -> Result<Self, LaunchError> {
        let create = || loop {
            if let Some(made) = Self::create_once(user, kind)? {
                return Ok(made);
            }
        };
        create().map_err(LaunchError::errno("make a directory for this run"))
    }

    /// `None` if the directory was removed before it was locked: by a run in another PID namespace, which cannot see this process.
    fn create_once(user: &UserDirectory, kind: RunKind) -> Result<Option<Self>, Errno> {
        let mut random = [0; 4];
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()))?;
        let name = format!("{}{}-{:08x}", kind.prefix(), std::process::id(), u32::from_ne_bytes(random));
        let base = user.descriptor();
        let own = CString::new(name.as_str()).map_err(|_| Errno::INVAL)?;
        // Before there is anything to sweep: killed at any later moment, this process leaves nothing.
        let sweeper = Sweeper::start(base, &own)?;
        mkdirat(base, &name, Mode::RWXU)?;
        let lock = match openat(base, &name, OPEN, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            lock => lock?,
        };
        // Another run's sweeper, or `tier top`, has the lock for the moment in which it asks whether this run lives.
        rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
        if fstat(&lock)?.st_nlink == 0 {
            return Ok(None);
        }
        Ok(Some(RunDirectory { path: user.path().join(&name), name, _sweeper: sweeper, _lock: lock }))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its last part, unique on this machine.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directories of this user's runs that go on, in the order of their names.
    #[must_use]
    pub fn running(kind: RunKind) -> Vec<PathBuf> {
        UserDirectory::existing().iter().flat_map(|user| running_in(user, kind)).collect()
    }
}

fn running_in(user: &UserDirectory, kind: RunKind) -> Vec<PathBuf> {
    // A descriptor of its own: reading moves the offset.
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
