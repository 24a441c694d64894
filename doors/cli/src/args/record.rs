//! Options of `telpher record`.

use super::bench::Hint;
use super::offload::StatsArg;
use super::output::Printed;
use super::values::parse_grace;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// Record what an unmodified program copies, to see where its time goes and what a device would gain.
///
/// The program, and every dynamically linked program it starts, first load a library that stands in front of memcpy,
/// memmove, mempcpy, memset and memcmp. It counts every call by function and size; calls of 2 KiB and more with their
/// call site and whether their data was in the caches; and keeps a trace of calls of 16 KiB and more. Each process
/// writes its own file, which is valid however the process ends. A short call takes about two nanoseconds longer: a
/// loop of nothing but 8-byte copies takes more than three times as long, other programs hardly longer.
///
/// The exit code is the program's own; 128 + N if signal N ended it, 127 if the program does not exist, 126 if it
/// cannot be run here (static and setuid programs load no library), 125 if it cannot be recorded.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "telpher record [OPTIONS] -- <PROGRAM>...\n       telpher record <COMMAND>",
    after_help = "\
Examples:
  telpher record -- redis-server --port 7000      until it ends, or ^C
  telpher record show telpher-recording           functions, sizes, call sites
  telpher record show --html copies.html telpher-recording
  telpher record predict telpher-recording        what devices would gain
  telpher record merge telpher-recording --into redis.recording"
)]
pub(crate) struct Record {
    #[command(subcommand)]
    pub(crate) kind: Option<RecordKind>,
    /// Folder for the recordings, one file for each process. It must not exist, or be empty.
    #[arg(long, help_heading = "Output", value_name = "DIR", default_value = "telpher-recording")]
    pub(crate) folder: PathBuf,
    /// Print no summary at the end.
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Do not record programs that are started with another LD_PRELOAD or an empty environment.
    #[arg(long, help_heading = "Program")]
    pub(crate) no_follow: bool,
    /// Seconds to wait for the program and its children after the first SIGTERM.
    #[arg(long, help_heading = "Program", value_name = "S", default_value = "5", value_parser = parse_grace)]
    pub(crate) grace: f64,
    /// The program, searched in PATH, and its arguments.
    #[arg(help_heading = "Program", required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecordKind {
    Show(RecordShow),
    Predict(RecordPredict),
    Merge(RecordMerge),
}

/// Show what a program copied: by function, size and call site.
///
/// Several recordings are shown as one; a folder stands for all recordings in it. The recordings of a running program
/// can be read, too. Call sites are named by the symbols of the program's files as they are now; a file that was
/// replaced since is recognised by its build-id, and its sites keep their offsets.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher record show telpher-recording
  telpher record show telpher-recording/4711.recording
  telpher record show -f csv telpher-recording        a line for each site
  telpher record show --stats dto telpher-recording   the tables of Intel's DTO
  telpher record show -f json -o copies.json --html copies.html redis.recording")]
pub(crate) struct RecordShow {
    /// Recordings, or folders of recordings.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) printed: Printed,
    /// Text of the result: a summary, or calls by size as in the tables of Intel's DTO.
    #[arg(long, help_heading = "Output", value_enum, default_value_t = StatsArg::Summary)]
    pub(crate) stats: StatsArg,
    /// Write a page with charts to this file.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Predict what devices would gain for a recorded program.
///
/// The trace is replayed on a simulated machine: once by the CPU alone, and with devices for call sites, sizes and
/// shares of cold data. The result is the gain of the copies and of the program, the best choice for each call site,
/// and what the prediction assumes. All times of devices are simulated. The CPU's times are those of the recording,
/// scaled to the profile's machine by size and temperature.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher record predict telpher-recording
  telpher record predict -p xeon-max-9468 --html gain.html redis.recording
  telpher record predict --devices 1 --hint cache telpher-recording
  telpher record predict monday.recording --against tuesday.recording
  telpher record predict --verdicts redis.verdicts telpher-recording")]
pub(crate) struct RecordPredict {
    /// Recordings, or folders of recordings.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Another recording of the program, to which the choice for each call site is applied, too; or a folder.
    #[arg(long, value_name = "PATH", help_heading = "Recording")]
    pub(crate) against: Option<PathBuf>,
    /// The profile describes the machine of the recording: the CPU's times are not scaled.
    #[arg(long, help_heading = "Recording")]
    pub(crate) same_machine: bool,
    /// Machine: a profile of `telpher sim profiles`, or a file.
    #[arg(short, long, help_heading = "Machine", value_name = "PROFILE", default_value = "spr-asplos")]
    pub(crate) profile: String,
    /// Change one number of the profile, such as device.bubble_ns=10; may be repeated.
    #[arg(long, help_heading = "Machine", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Devices to use [default: all near ones of the machine].
    #[arg(long, value_name = "N", help_heading = "Device", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) devices: Option<u16>,
    /// Where devices write results (DSA's cache-control flag).
    #[arg(long, value_enum, value_name = "WHERE", help_heading = "Device", default_value_t = Hint::Memory)]
    pub(crate) hint: Hint,
    /// Offload comparisons (memcmp), too.
    #[arg(long, help_heading = "Device")]
    pub(crate) comparisons: bool,
    /// Write the best choice for each call site to this file, for `telpher offload --verdicts`.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) verdicts: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) printed: Printed,
    /// Write a page with charts to this file.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Write recordings of one machine into one file, without the unused parts of their tables.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher record merge telpher-recording --into redis.recording
  telpher record merge monday.recording tuesday.recording --into both.recording")]
pub(crate) struct RecordMerge {
    /// Recordings, or folders of recordings.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Write the recordings to this file.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(crate) into: PathBuf,
}
