//! Options of `telpher qdp`.

use super::bench::{Output, Pages};
use super::run::Runner;
use super::values::parse_data;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Options of a query on this machine that do not apply to a simulated one.
const HERE: [&str; 22] = [
    "query",
    "input",
    "size",
    "seed",
    "threads",
    "groups",
    "chunk",
    "scanners",
    "fetchers",
    "aggregators",
    "late",
    "device",
    "runner",
    "policy",
    "node",
    "scanned_node",
    "fetched_node",
    "tier_node",
    "tier_size",
    "pages",
    "repeat",
    "plain",
];

/// Run a query whose columns are prefetched into fast memory.
///
/// Query-driven prefetching: the query's plan lists the columns that its later stages will read. While SCAN filters the
/// first columns, a device copies the others into a cache in fast memory, where AGGREGATE finds them (Fürst's thesis,
/// sections 2.2 and 6). The query is executed several times, in turns: by the engine alone, in the thesis' groups of
/// threads without prefetching, and with prefetching, in step and relaxed. Prints the answer, the times, the stages'
/// times and the share of blocks that were copied in time; writes one HTML file. Every answer is compared with that of
/// the engine alone.
///
/// On a machine with one kind of memory there is nothing to gain, and the numbers show it. With --profile nothing is
/// executed: the thesis' machine, or another one, is simulated, and its tables and figures are compared with the
/// published ones.
#[derive(Debug, Args)]
#[command(after_help = "\
Queries: thesis (the sum of one column where another one is small), q1 and q6 (TPC-H), or SQL text
such as
  select l_shipmode, count(*), sum(l_quantity) from t where l_shipdate < date '1995-01-01' group by l_shipmode
Values are integers: decimals in units of their last digit, dates in days since 1970.

Files: Parquet, or Arrow's IPC format (also called Feather). Only the columns that the query names
are read: integers, decimals, dates, times, and texts of one character. They must not contain
nulls.

Examples:
  telpher qdp                                         the thesis' query over 256 MiB, on every core
  telpher qdp --query q1 --size 4g --threads 8
  telpher qdp --query q6 --input lineitem.parquet --format json --no-html
  telpher qdp --fetched-node 0 --tier-node 8 --node 0 --device all      from DDR to HBM, with all devices
  telpher qdp --device model:spr --runner threaded --chunk 262144       the model copies, on a separate thread
  telpher qdp --plain --repeat 20 --format json       the engine alone
  telpher qdp --profile xeon-max-9468                 the thesis' Tables 6.1 and 6.2, simulated")]
pub(crate) struct Qdp {
    /// The query: thesis, q1, q6, or SQL text that begins with select.
    #[arg(long, value_name = "QUERY", default_value = "thesis")]
    pub(crate) query: String,
    /// The data, a Parquet or an Arrow file; may be repeated: the rows of all files, one after the other [default:
    /// generated].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "seed"])]
    pub(crate) input: Vec<PathBuf>,
    /// Total bytes of the generated columns.
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = parse_data)]
    pub(crate) size: u64,
    /// Seed of the generated data: the same number gives the same data.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Hardware threads for the query: the number of the engine's threads, and of the pipeline's groups [default: all
    /// that this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Groups of threads; each processes its part of the rows [default: one for each hardware thread].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) groups: Option<u32>,
    /// Rows that a group scans before it sums them, and that are prefetched together [default: 262144].
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) chunk: Option<u64>,
    /// Threads of a group that scan [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) scanners: Option<u32>,
    /// Threads of a group that prefetch [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) fetchers: Option<u32>,
    /// Threads of a group that sum [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) aggregators: Option<u32>,
    /// What AGGREGATE does with a block whose copy is still in flight.
    #[arg(long, value_enum, default_value_t = Late::Source)]
    pub(crate) late: Late,
    /// Device that copies: cpu, model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON), hw:wqM.N, or all
    /// (every hardware queue that this user may use, else the CPU).
    #[arg(long, value_name = "DEV", default_value = "all", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    /// Thread that executes on a modelled device: the thread that requests a copy, or a separate one.
    #[arg(long, value_enum, default_value_t = Runner::Inline)]
    pub(crate) runner: Runner,
    /// A setting of telpher's mover, such as threshold=64k, route=local or split=1m:2; may be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) policy: Vec<String>,
    /// NUMA node whose CPUs the threads run on [default: any].
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<u32>,
    /// NUMA node of the columns that SCAN reads [default: the system decides].
    #[arg(long, value_name = "NODE")]
    pub(crate) scanned_node: Option<u32>,
    /// NUMA node of the columns that are prefetched [default: the system decides].
    #[arg(long, value_name = "NODE")]
    pub(crate) fetched_node: Option<u32>,
    /// NUMA node of the fast memory that they are prefetched to [default: the system decides].
    #[arg(long, value_name = "NODE")]
    pub(crate) tier_node: Option<u32>,
    /// Bytes of the fast memory [default: enough for all prefetched columns].
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub(crate) tier_size: Option<u64>,
    /// Pages of columns and fast memory: 4k, or 2m (transparent huge pages).
    #[arg(long, value_enum, default_value_t = Pages::Huge)]
    pub(crate) pages: Pages,
    /// Measured executions of each configuration, after one that is not measured.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) repeat: u32,
    /// Execute the query by the engine alone: no groups, no cache.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Simulate the thesis' query on this machine instead: the name of a profile (`telpher sim profiles` lists them),
    /// or a file.
    #[arg(long, value_name = "PROFILE", conflicts_with_all = HERE)]
    pub(crate) profile: Option<String>,
    /// Change one number of that profile, such as device.bubble_ns=10; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", requires = "profile")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Late {
    /// Reads the block at its source, without waiting for the copy, as in the thesis.
    Source,
    /// Waits for the copy, and takes part in it.
    Wait,
}
