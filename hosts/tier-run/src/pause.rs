//! `telpher tier pause` and `telpher tier resume`: pages of a process stay where they are, for debuggers and other readers of its memory.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use telpher_launch::{RunDirectory, RunKind};
use telpher_tier_wire::StateFolder;

/// How long the process may take to answer. It looks every 50 ms, or at a hundredth of the time its own looks take. Source: chosen.
const LIMIT: Duration = Duration::from_secs(30);
/// How often its answer is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// Why a process was not paused, or does not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PauseError {
    /// No such process.
    #[error("process {0} does not run under `telpher tier run` as this user; `telpher tier top` shows those that do")]
    None(u32),
    /// Its memory is not managed.
    #[error("the memory of process {pid} is not managed, so none of its pages move: {why}")]
    Unmanaged {
        /// Which.
        pid: u32,
        /// Why.
        why: String,
    },
    /// The file by which the process is told cannot be made or removed.
    #[error("cannot tell process {pid}")]
    File {
        /// Which process.
        pid: u32,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It does not answer.
    #[error(
        "process {0} did not answer within {n} s; its threads may be stopped (a debugger, SIGSTOP): let them run, and try again",
        n = LIMIT.as_secs()
    )]
    Silent(u32),
}

/// Has a process keep all its pages where they are, or move them again; returns when it does.
///
/// # Errors
/// There is no such process, or it does not answer.
pub fn pause(pid: u32, paused: bool) -> Result<(), PauseError> {
    let state = |folder: &StateFolder| {
        let states = folder.read_all().unwrap_or_default();
        states.into_iter().find(|state| state.pid == pid && !state.ended)
    };
    let lives = || Path::new("/proc").join(pid.to_string()).exists();
    let folders = RunDirectory::running(RunKind::Tier).into_iter().filter_map(|path| StateFolder::open(&path).ok());
    let found = folders.into_iter().find_map(|folder| Some((state(&folder)?, folder)));
    let (found, folder) = found.filter(|_| lives()).ok_or(PauseError::None(pid))?;
    if let Some(why) = found.error {
        return Err(PauseError::Unmanaged { pid, why });
    }
    folder.pause(pid, paused).map_err(|source| PauseError::File { pid, source })?;
    let end = Instant::now() + LIMIT;
    while state(&folder).is_none_or(|state| state.paused != paused) {
        if !lives() {
            return Err(PauseError::None(pid));
        }
        if Instant::now() >= end {
            return Err(PauseError::Silent(pid));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
