//! The table of Intel's DTO for each process of a run.

use crate::args::program::{ProgramArgs, WriteError, write};
use std::path::Path;
use telpher_offload::ProcessStatistics;
use telpher_offload_wire::statistics::{BUCKET_BYTES, BUCKETS, Bucket};
use telpher_report::offload::{DtoRow, DtoStatistics, dto_text};

/// Prints the tables, or writes them where the options say. Without such an option, each goes to the log file of DTO's
/// variables, to which the program's name and process number are added.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn deliver(
    processes: &[ProcessStatistics],
    args: &ProgramArgs,
    log_file: Option<&Path>,
) -> Result<(), WriteError> {
    if let Some(log_file) = log_file {
        for process in processes {
            let mut path = log_file.as_os_str().to_owned();
            path.push(format!(".{}.{}", process.calls.program.replace('/', "_"), process.pid));
            write(path.as_ref(), &dto_text(&table(process)))?;
        }
        return Ok(());
    }
    let mut text = String::new();
    for process in processes {
        // DTO's table does not name its process.
        if processes.len() > 1 {
            text += &format!("telpher: process {} ({})\n", process.pid, process.calls.program);
        }
        text += &dto_text(&table(process));
    }
    args.deliver(&text)
}

/// Returns the statistics of a process as the table shows them.
fn table(process: &ProcessStatistics) -> DtoStatistics {
    let rows = process.calls.buckets.iter().map(|bucket| row(bucket, process.ticks_per_us)).collect();
    DtoStatistics { run_time: process.run_time, rows }
}

fn row(bucket: &Bucket, ticks_per_us: u64) -> DtoRow {
    let first = bucket.index * BUCKET_BYTES;
    let mean_us = |group: usize, operation: usize| {
        let calls = bucket.calls[group][operation].max(1);
        bucket.ticks[group][operation] as f64 / calls as f64 / ticks_per_us as f64
    };
    DtoRow {
        first,
        last: (bucket.index + 1 < BUCKETS).then_some(first + BUCKET_BYTES - 1),
        calls: bucket.calls,
        mean_us: std::array::from_fn(|group| std::array::from_fn(|operation| mean_us(group, operation))),
        bytes: bucket.bytes,
        failures: bucket.failures,
    }
}
