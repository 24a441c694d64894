//! The folder of a run, in which each process keeps a file with its state.

use crate::VERSION;
use crate::state::State;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Opens a folder itself, not the target of a link.
const OPEN: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The most bytes of a state. Source: chosen; a hundred times the state of a process with thousands of mappings.
const MOST_BYTES: u64 = 16 << 20;

/// The identity of a folder, independent of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    device: u64,
    number: u64,
}

/// The folder of a run, held open: a process that outlives the run writes to the folder that it opened, or fails.
#[derive(Debug)]
pub struct StateFolder(OwnedFd);

impl StateFolder {
    /// Opens a run's folder.
    ///
    /// # Errors
    /// The system's error, or that other users may write to the folder.
    pub fn open(path: &Path) -> io::Result<StateFolder> {
        let folder = openat(CWD, path, OPEN, Mode::empty())?;
        let status = fstat(&folder)?;
        if status.st_uid != rustix::process::geteuid().as_raw() || status.st_mode & 0o022 != 0 {
            let why = format!("{} must be a folder that only this user may write to", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(StateFolder(folder))
    }

    /// Opens a folder that was open before, if the path still leads to it.
    ///
    /// # Errors
    /// As [`open`](StateFolder::open); `ENOENT` if another folder has the path now.
    pub fn open_again(path: &Path, identity: Identity) -> io::Result<StateFolder> {
        let folder = StateFolder::open(path)?;
        if folder.identity()? == identity { Ok(folder) } else { Err(Errno::NOENT.into()) }
    }

    /// Returns the identity of this folder.
    ///
    /// # Errors
    /// The system's error.
    pub fn identity(&self) -> io::Result<Identity> {
        let Stat { st_dev: device, st_ino: number, .. } = fstat(&self.0)?;
        Ok(Identity { device, number })
    }

    /// Replaces the state of a process as a whole. No link is followed.
    ///
    /// # Errors
    /// The system's error; `ENOENT` if the folder was removed.
    pub fn write(&self, state: &State) -> io::Result<()> {
        let (name, part) = (format!("{}.json", state.pid), format!("{}.part", state.pid));
        let text = serde_json::to_vec(state)?;
        // Left by a killed process of the same number.
        let _ = unlinkat(&self.0, &part, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.0, &part, flags, Mode::RUSR | Mode::WUSR)?;
        File::from(file).write_all(&text)?;
        Ok(renameat(&self.0, &part, &self.0, &name)?)
    }

    /// Pauses a process, so that it takes no page out, or resumes it.
    ///
    /// # Errors
    /// The system's error.
    pub fn pause(&self, pid: u32, paused: bool) -> io::Result<()> {
        let name = format!("{pid}.pause");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (done, already) = if paused {
            (openat(&self.0, &name, flags, Mode::RUSR | Mode::WUSR).map(drop), Errno::EXIST)
        } else {
            (unlinkat(&self.0, &name, AtFlags::empty()), Errno::NOENT)
        };
        if done == Err(already) { Ok(()) } else { Ok(done?) }
    }

    /// Returns whether a process is paused.
    #[must_use]
    pub fn is_paused(&self, pid: u32) -> bool {
        statat(&self.0, format!("{pid}.pause"), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Returns the states in the folder, sorted by process; files without a state of this version are skipped.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn read_all(&self) -> io::Result<Vec<State>> {
        let mut states: Vec<State> = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            if entry.file_name().to_bytes().ends_with(b".json") {
                // A process may end, and its file disappear, during the read.
                states.extend(self.read(entry.file_name()));
            }
        }
        states.sort_by_key(|state| state.pid);
        Ok(states)
    }

    fn read(&self, name: &std::ffi::CStr) -> Option<State> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::empty()).ok()?;
        let mut text = Vec::new();
        File::from(file).take(MOST_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok().filter(|state: &State| state.version == VERSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    /// A folder for one test, removed when this is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("telpher-tier-wire-{test}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn state(pid: u32, version: u32) -> State {
        State { version, pid, command: vec!["a b".into()], seconds: 1.5, ..State::default() }
    }

    #[test]
    fn states_are_read_back_and_other_files_are_skipped() {
        let scratch = Scratch::new("read");
        let folder = StateFolder::open(&scratch.0).unwrap();
        for state in [state(30, VERSION), state(7, VERSION), state(9, VERSION + 1)] {
            folder.write(&state).unwrap();
        }
        std::fs::write(scratch.0.join("8.json"), "{").unwrap();
        std::fs::write(scratch.0.join("x.part"), "{}").unwrap();
        symlink("7.json", scratch.0.join("link.json")).unwrap();
        for _ in 0..2 {
            assert_eq!(folder.read_all().unwrap(), [state(7, VERSION), state(30, VERSION)]);
        }
        assert!(StateFolder::open(&scratch.0.join("none")).is_err());
    }

    /// What broke: a daemon that outlived its run followed a link in a folder that another user had made at the old
    /// path.
    #[test]
    fn a_folder_that_was_removed_is_never_written_again() {
        let scratch = Scratch::new("removed");
        let (path, victim) = (scratch.0.join("run"), scratch.0.join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        std::fs::create_dir(&path).unwrap();
        let folder = StateFolder::open(&path).unwrap();
        let identity = folder.identity().unwrap();
        folder.write(&state(7, VERSION)).unwrap();
        std::fs::remove_dir_all(&path).unwrap();
        // Keeps the number of the removed folder from being given to the new one.
        std::fs::create_dir(&path).unwrap();
        for name in ["7.part", "7.json"] {
            symlink(&victim, path.join(name)).unwrap();
        }
        assert_eq!(folder.write(&state(7, VERSION)).unwrap_err().raw_os_error(), Some(Errno::NOENT.raw_os_error()));
        assert!(StateFolder::open_again(&path, identity).is_err());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2);
    }

    #[test]
    fn links_in_the_folder_are_replaced_and_not_followed() {
        let scratch = Scratch::new("links");
        let (path, victim) = (scratch.0.join("run"), scratch.0.join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        std::fs::create_dir(&path).unwrap();
        for name in ["7.part", "7.json"] {
            symlink(&victim, path.join(name)).unwrap();
        }
        let folder = StateFolder::open(&path).unwrap();
        folder.write(&state(7, VERSION)).unwrap();
        assert_eq!(folder.read_all().unwrap(), [state(7, VERSION)]);
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_folder_that_others_may_write_to_or_a_link_to_one_is_refused() {
        let scratch = Scratch::new("refused");
        let path = scratch.0.join("run");
        std::fs::create_dir(&path).unwrap();
        symlink("run", scratch.0.join("link")).unwrap();
        assert!(StateFolder::open(&scratch.0.join("link")).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(StateFolder::open(&path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
