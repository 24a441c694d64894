//! `telpher top`: what devices do, of runs and of hardware.

use crate::args::Top;
use crate::live;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use telpher_launch::{RunDirectory, RunKind};
use telpher_os::chain;
use telpher_report::deliver::{DeliverError, write_update};
use telpher_telemetry::{Snapshot, run, subscribe, sysfs, tables};

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DevicesError {
    /// There is no device.
    #[error(
        "no DSA device is in use: this user has no `telpher run`, and Linux shows no hardware; start a program with \
         `telpher run`, or see `telpher doctor`"
    )]
    None,
    /// Standard output is closed.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Shows the devices until none is left.
///
/// # Errors
/// If there is nothing to show at the beginning, or standard output is closed.
pub(crate) fn run(args: &Top) -> Result<(), DevicesError> {
    if args.pcm {
        return pcm(args);
    }
    let times = !args.updates.once;
    let read = || {
        let snapshot = read(times);
        if snapshot.devices.is_empty() { Vec::new() } else { vec![snapshot] }
    };
    let text = |snapshots: &[Snapshot]| snapshots.iter().map(tables::text).collect::<String>();
    let csv = |snapshots: &[Snapshot]| snapshots.iter().map(tables::csv).collect::<String>();
    if live::show(&args.updates, read, text, csv)? { Ok(()) } else { Err(DevicesError::None) }
}

/// Prints the columns of pcm-accel at intervals. Each line is a difference, so the first one comes after an interval.
fn pcm(args: &Top) -> Result<(), DevicesError> {
    let updates = &args.updates;
    let count = if updates.once { 1 } else { updates.count.unwrap_or(u64::MAX) };
    let mut before = (Instant::now(), read(false));
    if before.1.devices.is_empty() {
        return Err(DevicesError::None);
    }
    for _ in 0..count {
        std::thread::sleep(Duration::from_secs_f64(updates.every));
        let after = (Instant::now(), read(false));
        if after.1.devices.is_empty() {
            break;
        }
        let seconds = after.0.duration_since(before.0).as_secs_f64();
        let is_read = write_update(updates.printed.file(), tables::pcm(&before.1, &after.1, seconds))?;
        if !is_read {
            break;
        }
        before = after;
    }
    Ok(())
}

/// Reads all devices; with `times`, engines record the times of their descriptors until the next reading.
pub(crate) fn read(times: bool) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let directories: BTreeSet<PathBuf> = RunDirectory::running(RunKind::Device).into_iter().collect();
    for directory in directories {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let found = if times { subscribe(&directory).map(drop) } else { Ok(()) };
        match found.and_then(|()| run::read(&directory, &name)) {
            Ok(of_run) => snapshot.append(of_run),
            // A run may end while it is read.
            Err(run::ReadError::Index { .. }) if !directory.exists() => {}
            Err(error) => snapshot.problems.push(chain(&error)),
        }
    }
    snapshot.append(sysfs::read(Path::new("/sys")));
    snapshot
}
