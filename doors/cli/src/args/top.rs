use super::output::Updates;
use clap::{Args, ValueEnum};

/// Show what DSA devices do, by device, queue, engine and process.
///
/// Shows the devices of this user's runs (`telpher run`) and those that programs model themselves (`model:spr`), which
/// count exactly, and hardware as far as Linux shows it. Numbers are totals since the start of the device, or of
/// the process that models it; those of processes that have closed a queue are kept in one row. A value that cannot be
/// known is a dash, "unknown" in CSV, and has its reason in JSON.
///
/// In a terminal, this is a live view of rates per second, until q, Ctrl-C, or until no device is left; its last line
/// lists the keys. With --once, --count or --output, or without a terminal, tables of totals are printed. Columns that
/// do not fit are left out; CSV and JSON have all.
///
/// Descriptors do not include the members of batches. Times of engines are recorded only while this command updates:
/// with --once they are not recorded, unless another one runs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher top
  telpher top --sort retries
  telpher top --once --format json
  telpher top --show programs        what programs do by themselves
  telpher top --pcm --every 3        the columns of Intel's pcm-accel, as CSV")]
pub(crate) struct Top {
    /// Print the columns of Intel's pcm-accel as CSV: what each device does per second.
    #[arg(long, help_heading = "Output", conflicts_with = "format")]
    pub(crate) pcm: bool,
    /// Show only these, such as runs,hardware. --pcm cannot show programs.
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',', help_heading = "Output")]
    pub(crate) show: Vec<TopKind>,
    /// Sort tables by this column: numbers descend, names ascend. Without it, rows are in the order of their names.
    #[arg(long, value_name = "COLUMN", value_parser = telpher_telemetry::sections::NAMES, conflicts_with = "pcm",
          help_heading = "Output")]
    pub(crate) sort: Option<String>,
    #[command(flatten)]
    pub(crate) updates: Updates,
}

/// What `telpher top` shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TopKind {
    /// Devices of `telpher run`.
    Runs,
    /// Devices that Linux shows.
    Hardware,
    /// What programs publish, with the devices that they model themselves.
    Programs,
}
