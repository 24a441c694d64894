use super::output::Updates;
use clap::Args;

/// Show what DSA devices do, by device, queue, engine and process.
///
/// Shows the devices of this user's runs (`telpher run`), which count exactly, and hardware as far as Linux shows it.
/// Numbers are totals since the start of the device; those of processes that have closed a queue are kept in one row. A
/// value that cannot be known is a dash, "unknown" in CSV, and has its reason in JSON.
///
/// Descriptors do not include the members of batches. Times of engines are recorded only while this command updates:
/// with --once they are not recorded, unless another one runs. Updates every second until Ctrl-C or until no device is
/// left.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher top
  telpher top --once --format json
  telpher top --pcm --every 3        the columns of Intel's pcm-accel, as CSV")]
pub(crate) struct Top {
    /// Print the columns of Intel's pcm-accel as CSV: what each device does per second.
    #[arg(long, help_heading = "Output", conflicts_with = "format")]
    pub(crate) pcm: bool,
    #[command(flatten)]
    pub(crate) updates: Updates,
}
