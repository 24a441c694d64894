//! Options of `telpher advise`.

use super::operation::Ops;
use super::output::Output;
use super::values::{Choice, Placement, parse_many, parse_size};
use clap::Args;
use std::path::PathBuf;
use telpher_sim::advise::Objective;

/// Find out how to configure and use DSA for a given load.
///
/// Describe the operations. telpher simulates them on the machine of a profile and recommends groups, queues and
/// engines, batches and descriptors in flight, the wait mode, the destination hint, and the size from which the device
/// is worth it. Each recommendation names the guideline that it follows (G1 to G6 of the DSA analysis at ASPLOS 2024,
/// section 6) and the next best choice with its result. All numbers are simulated.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
A file WORK lists several loads that run at the same time:
  [[work]]
  name = \"packets\"
  op = \"memory-move\"
  size = 1500
  rate = 200_000        # operations per second and thread; if absent, as fast as possible
  threads = 2
  in_flight = 32        # operations that may be outstanding before the first must be done; 1 is synchronous
  src = 0               # memory nodes, as numbered in the profile
  dst = 0
  read_soon = true      # a core reads the results soon

A file with [[tenant]] instead has users that share devices. Each may limit how
much the others disturb it; the advice keeps these limits:
  devices = 1           # devices that they may use [default: all]
  [[tenant]]            # keys as above
  name = \"requests\"
  op = \"memory-move\"
  size = \"1k\"
  rate = 500_000
  p99_us = 4            # 99 % of the operations are not slower, in microseconds
  loss_percent = 5      # of the throughput that it has without the others
  batch = 1             # operations of a batch

Examples:
  telpher advise --size 4k --threads 4
  telpher advise --size 64k --in-flight 1 --objective latency
  telpher advise --op crc --size 16k --objective cycles --config dsa.json
  telpher advise --size 2m --threads 8 --profile xeon-max-9468
  telpher advise --op crc --size 1m -f json -o advice.json"
)]
pub(crate) struct Advise {
    /// A TOML file with the loads, instead of the options that describe one load.
    #[arg(value_name = "WORK", conflicts_with_all = ["op", "size", "threads", "rate", "in_flight", "placement", "read_soon"])]
    pub(crate) work: Option<PathBuf>,
    /// Machine: a profile of `telpher sim profiles`, or a file.
    #[arg(short, long, help_heading = "Machine", value_name = "PROFILE", default_value = "spr-asplos")]
    pub(crate) profile: String,
    /// Change one number of the profile, such as device.bubble_ns=10; may be repeated.
    #[arg(long, help_heading = "Machine", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// What to optimise: throughput, latency (99th percentile), per-core (bytes in a second of core time), or cycles
    /// (as per-core, but waiting in UMWAIT or asleep costs nothing).
    #[arg(long, value_name = "WHAT", default_value = "throughput")]
    pub(crate) objective: Choice<Objective>,
    /// Operations, one load for each: move, fill, compare, crc, … (docs/commands.md lists them).
    #[arg(long, value_name = "OPS", default_value = "move")]
    pub(crate) op: Ops,
    /// Bytes for each operation.
    #[arg(short, long, value_name = "SIZE", default_value = "4k", value_parser = parse_size)]
    pub(crate) size: u64,
    /// Threads that run this load.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,
    /// Operations that arrive at each thread per second [default: as fast as they are done].
    #[arg(long, value_name = "N", value_parser = parse_many)]
    pub(crate) rate: Option<u64>,
    /// Operations that a thread may have in flight before the first must be done; 1 is synchronous.
    #[arg(short, long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) in_flight: u32,
    /// Memory nodes of source and destination, as numbered in the profile, such as 0,1 [default: 0,0].
    #[arg(long, value_name = "SRC,DST")]
    pub(crate) placement: Option<Placement>,
    /// A core reads the results soon.
    #[arg(long)]
    pub(crate) read_soon: bool,
    /// Also write the accel-config JSON to this file.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}
