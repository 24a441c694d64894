//! Options of `telpher advise`.

use super::bench::Output;
use super::operation::Ops;
use super::values::{Choice, Placement, parse_many, parse_size};
use clap::Args;
use std::path::PathBuf;
use telpher_sim::advise::Objective;

/// How to configure and use DSA for some work.
///
/// Describe what is to be done; how is found by simulating it on the machine of a profile: groups, queues and engines, batches and how
/// many are in flight, waiting, the destination hint, and from which size on the device is worth it. Each recommendation stands beside
/// the guideline that it follows (G1 to G6 of the DSA analysis at ASPLOS 2024, section 6) and beside the next best choice, with what
/// that would give. Everything is simulated.
#[derive(Debug, Args)]
#[command(after_help = "\
A file lists several pieces of work that go on at the same time:
  [[work]]
  name = \"packets\"
  op = \"memory-move\"
  size = 1500
  rate = 200_000        # operations a second and thread; left out: as fast as they are done
  threads = 2
  at_once = 32          # operations at hand before the first must be done; 1 is synchronous
  src = 0               # memory nodes, as the profile numbers them
  dst = 0
  read_soon = true      # by a core

Examples:
  telpher advise --size 4k --threads 4
  telpher advise --size 64k --at-once 1 --objective latency
  telpher advise --op crc --size 16k --objective cycles --config dsa.json --no-html
  telpher advise lab/workloads/advise/packets-and-pages.toml --profile xeon-max-9468")]
pub(crate) struct Advise {
    /// Pieces of work as a TOML file, in place of the options that describe one.
    #[arg(value_name = "WORK", conflicts_with_all = ["op", "size", "threads", "rate", "at_once", "placement", "read_soon"])]
    pub(crate) work: Option<PathBuf>,
    /// Machine: the name of a profile (`telpher sim profiles` lists them), or a file.
    #[arg(long, value_name = "PROFILE", default_value = "spr-asplos")]
    pub(crate) profile: String,
    /// A number of the profile changed, such as device.bubble_ns=10; may stand several times.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// What counts: throughput, per-core (bytes for each second of a core), latency (the 99th percentile), or cycles (as per-core, where
    /// a core in UMWAIT or asleep is free).
    #[arg(long, value_name = "WHAT", default_value = "throughput")]
    pub(crate) objective: Choice<Objective>,
    /// Operations, a piece of work each: move, fill, compare, compare-pattern, crc, and all others of `telpher bench`.
    #[arg(long, value_name = "OPS", default_value = "move")]
    pub(crate) op: Ops,
    /// Bytes of each operation.
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = parse_size)]
    pub(crate) size: u64,
    /// Threads that have such work.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,
    /// Operations that come to each thread in a second [default: as fast as they are done].
    #[arg(long, value_name = "N", value_parser = parse_many)]
    pub(crate) rate: Option<u64>,
    /// Operations that a thread has at hand before the first of them must be done; 1 is synchronous.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) at_once: u32,
    /// Memory nodes of source and destination, as the profile numbers them, such as 0,1 [default: 0,0].
    #[arg(long, value_name = "SRC,DST")]
    pub(crate) placement: Option<Placement>,
    /// Results are read soon by a core.
    #[arg(long)]
    pub(crate) read_soon: bool,
    /// File that the accel-config JSON is written to as well.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}
