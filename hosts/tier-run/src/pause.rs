//! `telpher tier pause` and `telpher tier resume`: keep the pages of a process in place, for debuggers and other
//! readers of its memory.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use telpher_launch::{RunDirectory, RunKind};
use telpher_tier_wire::StateFolder;

/// How long the process may take to answer. It checks every 50 ms, or less often if its own scans take long. Source:
/// chosen.
const LIMIT: Duration = Duration::from_secs(30);
/// Interval of checks for its answer.
const LOOK: Duration = Duration::from_millis(10);

/// Why a process was not paused or resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PauseError {
    /// The process does not exist.
    #[error("process {0} does not run under `telpher tier run` as this user; `telpher tier top` shows those that do")]
    None(u32),
    /// Its memory is not managed.
    #[error("the memory of process {pid} is not managed, so none of its pages move: {why}")]
    Unmanaged {
        /// The file.
        pid: u32,
        /// Why.
        why: String,
    },
    /// The request file cannot be created or removed.
    #[error("cannot tell process {pid}")]
    File {
        /// Which process.
        pid: u32,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The process does not answer.
    #[error(
        "process {0} did not answer within {n} s; its threads may be stopped (a debugger, SIGSTOP): let them run, and \
         try again",
        n = LIMIT.as_secs()
    )]
    Silent(u32),
}

/// Pauses or resumes page moves of a process; returns when the process has done so.
///
/// # Errors
/// The process does not exist, or does not answer.
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
