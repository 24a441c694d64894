//! The run directory: made for one run, gone with it, however it ends.

use super::options::RunError;
use super::sweeper::Sweeper;
use crate::tree::Errno;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, mkdirat, openat};
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What names of run directories begin with.
pub(super) const PREFIX: &str = "telpher-";

/// Longest path. A socket's address has 108 bytes and ends with a zero, and the preloaded part keeps room for this much.
const LONGEST: usize = 96;

/// A directory of this run's own.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    name: String,
    /// Removes it: at the end, and if this process is killed.
    _sweeper: Sweeper,
    /// Locked as long as this process lives: who finds it unlocked may sweep it.
    _lock: OwnedFd,
}

impl RunDirectory {
    /// Makes one, in the first place that will have it, and has others' remains there removed. To be called while the process has
    /// one thread.
    ///
    /// # Errors
    /// If no place will.
    pub(super) fn create() -> Result<Self, RunError> {
        let bases = bases();
        let mut last = io::Error::from(Errno::NOENT);
        for base in &bases {
            match Self::create_in(base) {
                Ok(directory) => return Ok(directory),
                Err(errno) => last = errno.into(),
            }
        }
        let tried = bases.iter().map(|base| base.display().to_string()).collect::<Vec<_>>().join(", ");
        Err(RunError::Directory { tried, source: last })
    }

    fn create_in(base: &Path) -> Result<Self, Errno> {
        let mut random = [0; 4];
        rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()))?;
        let name = format!("{PREFIX}{}-{:08x}", std::process::id(), u32::from_ne_bytes(random));
        let path = base.join(&name);
        if path.as_os_str().as_bytes().len() > LONGEST {
            return Err(Errno::NAMETOOLONG);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = openat(CWD, base, flags, Mode::empty())?;
        let own = CString::new(name.as_str()).map_err(|_| Errno::INVAL)?;
        // Before there is anything to sweep: killed at any later moment, this process leaves nothing.
        let sweeper = Sweeper::start(&base, &own)?;
        mkdirat(&base, &name, Mode::RWXU)?;
        let lock = openat(&base, &name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(RunDirectory { path, name, _sweeper: sweeper, _lock: lock })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its last part, unique on this machine.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// Places for run directories, the best first.
fn bases() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    runtime.into_iter().chain(["/dev/shm", "/tmp"].map(PathBuf::from)).collect()
}
