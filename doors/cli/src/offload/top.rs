//! `telpher offload top`: the processes that run now.

use super::process::row;
use crate::args::OffloadTop;
use crate::live;
use std::collections::HashMap;
use std::time::Instant;
use telpher_record::SiteNames;
use telpher_report::deliver::DeliverError;
use telpher_report::offload::{RunningProcess, running_csv, running_text};
use telpher_report::schema;

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TopError {
    /// No such process runs.
    #[error(
        "no process{} has a device under `telpher offload` as this user; start one, or look as the user whose it is",
        if *.0 { " of these numbers" } else { "" }
    )]
    None(bool),
    /// Standard output is closed.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Shows the processes under `telpher offload` until none is left.
///
/// # Errors
/// If there is nothing to show at the beginning, or standard output is closed.
pub(crate) fn top(args: &OffloadTop) -> Result<(), TopError> {
    let mut before: HashMap<u32, (Instant, u64)> = HashMap::new();
    let mut names = SiteNames::default();
    let read = || {
        let found = telpher_offload::running().into_iter().map(|(_, process)| process);
        let found = found.filter(|process| args.pid.is_empty() || args.pid.contains(&process.pid));
        let mut rows: Vec<RunningProcess> = found
            .map(|process| {
                let now = (Instant::now(), process.counters.device_bytes);
                let rate = before.insert(process.pid, now).map(|(then, bytes)| {
                    let seconds = now.0.duration_since(then).as_secs_f64().max(1e-3);
                    now.1.saturating_sub(bytes) as f64 / seconds
                });
                let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid)).unwrap_or_default();
                RunningProcess {
                    command: name.trim_end().into(),
                    is_on: process.is_on,
                    device_bytes_per_second: rate,
                    calls: row(&process, &mut names),
                }
            })
            .collect();
        rows.sort_by_key(|row| row.calls.pid);
        rows
    };
    let shown = live::show(&args.updates, (schema::OFFLOAD_TOP, "processes"), read, running_text, running_csv)?;
    if shown { Ok(()) } else { Err(TopError::None(!args.pid.is_empty())) }
}
