//! `telpher tier top`: the live view of managed processes.

use crate::args::{TierTop, TopFormat};
use crate::report::deliver::{DeliverError, print};
use crate::report::tier as report;
use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;
use telpher_tier_wire::{State, StateFolder};
use telpher_vdev::launch::{RunDirectory, RunKind};

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TopError {
    /// No managed process runs.
    #[error("no program runs under `telpher tier run` as this user{}; start one, or look as the user whose it is", of(*.0))]
    None(Option<u32>),
    /// Standard output cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

fn of(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(", or none that is process {pid}"))
}

/// Clears the screen and goes to its upper left corner. Source: ECMA-48, CUP, ED.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows the live view until no managed process is left.
///
/// # Errors
/// If no managed process runs at the beginning, or standard output is closed.
pub(crate) fn top(args: &TierTop) -> Result<(), TopError> {
    let mut shown = false;
    loop {
        let states = states(args.pid);
        if states.is_empty() {
            return if shown { Ok(()) } else { Err(TopError::None(args.pid)) };
        }
        let text = match args.format {
            TopFormat::Table => report::picture(&states),
            TopFormat::Json if args.once => serde_json::to_string_pretty(&states).expect("states are plain data"),
            TopFormat::Json => serde_json::to_string(&states).expect("states are plain data"),
        };
        let again = args.format == TopFormat::Table && !args.once && std::io::stdout().is_terminal();
        print(if again { format!("{CLEAR}{text}") } else { text })?;
        if args.once {
            return Ok(());
        }
        shown = true;
        std::thread::sleep(Duration::from_secs_f64(args.every));
    }
}

/// Of processes that live.
fn states(pid: Option<u32>) -> Vec<State> {
    // A run may end, and its folder vanish, while it is read.
    let read = |folder: &std::path::PathBuf| StateFolder::open(folder).and_then(|folder| folder.read_all());
    let of_runs = RunDirectory::running(RunKind::Tier).into_iter().flat_map(|folder| read(&folder).unwrap_or_default());
    let lives = |state: &State| !state.ended && Path::new("/proc").join(state.pid.to_string()).exists();
    of_runs.filter(|state| pid.is_none_or(|pid| pid == state.pid) && lives(state)).collect()
}
