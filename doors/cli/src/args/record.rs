//! Options of `telpher record`.

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
/// writes its own file, which is valid however the process ends. A short call takes one to two nanoseconds longer: a
/// loop of nothing but 8-byte copies takes three times as long, other programs hardly longer.
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
  telpher record show -f json -o copies.json --html copies.html redis.recording")]
pub(crate) struct RecordShow {
    /// Recordings, or folders of recordings.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
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
