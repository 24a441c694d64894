//! Options of `telpher tune`.

use super::operation::Ops;
use super::output::Printed;
use super::run::Runner;
use super::values::{Sizes, parse_seconds};
use clap::Args;
use std::path::PathBuf;

/// Measure what operations cost on this machine, and write a tuning file for programs that use telpher.
///
/// The CPU and the device execute each operation at each size, in turns in the same run. The medians give, for each
/// operation, the size from which the device is used. The file also contains the times themselves, from which a
/// learning program continues, and accepts other settings (how threads wait, which queue is preferred). It is TOML with
/// comments, meant to be read and edited.
///
/// In a fifth of the time, two threads on two cores exchange messages, as processes do with `telpher fabric`. This
/// gives the lengths from which messages travel in another way; the provider for libfabric starts with these.
///
/// Programs use the file if the environment sets TELPHER_TUNING=FILE. Without a tuning file they start with published
/// times of the first hardware generation; tuning is optional.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
The same device costs a program that waits for each operation more than one that keeps many in \
flight: set --in-flight as your program works.

Examples:
  telpher tune                                   hardware, or else the model
  telpher tune --device hw:wq0.0 --in-flight 16  for 16 operations in flight
  telpher tune --op move --size 256..16m*2 --tuning copies.toml
  TELPHER_TUNING=$PWD/telpher-tuning.toml PROGRAM"
)]
pub(crate) struct Tune {
    /// Operations, such as move,crc or all (docs/commands.md lists them).
    #[arg(long, value_name = "OPS", default_value = "all")]
    pub(crate) op: Ops,
    /// Transfer sizes.
    #[arg(short, long, value_name = "SIZE", default_value = "256..4m")]
    pub(crate) size: Sizes,
    /// Operations in flight at once; 1 waits for each before the next.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) in_flight: u32,
    /// Device: hw:wqM.N, model:spr or model:FILE [default: hardware, else model:spr].
    #[arg(short, long, value_name = "DEV", value_parser = super::values::parse_device)]
    pub(crate) device: Option<String>,
    /// Thread that executes on a modelled device; auto uses the quicker one at each point.
    #[arg(long, value_enum, default_value_t = Runner::Auto)]
    pub(crate) runner: Runner,
    /// The tuning file; an existing file is replaced.
    #[arg(long, value_name = "FILE", help_heading = "Output", default_value = "telpher-tuning.toml")]
    pub(crate) tuning: PathBuf,
    /// Total measuring time in seconds.
    #[arg(long, value_name = "S", default_value = "15", value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    #[command(flatten)]
    pub(crate) printed: Printed,
}
