//! Options of `telpher qdp`.

use super::bench::{Output, Pages};
use super::run::Runner;
use super::values::parse_data;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What a query here says, and what a simulated one has no use for.
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

/// Run a query whose columns are fetched ahead into fast memory.
///
/// Query-driven prefetching: the query's plan says which columns its later stages will read, and while SCAN filters the first ones,
/// a device copies the others into a cache in fast memory, where AGGREGATE then finds them (Fürst's thesis, sections 2.2 and 6). The query is
/// executed several times in turns: by the engine alone, in the thesis' groups of threads without prefetching, and with it, in step and
/// relaxed. Prints the answer, the times, the stages' times and the share of blocks that came in time; writes one HTML file. Every
/// execution's answer is compared with the engine's own.
///
/// On a machine with one kind of memory there is nothing to gain, and the numbers say so. With --profile nothing is executed: the thesis'
/// machine, or another one, is simulated, and its tables and figures stand beside what was published.
#[derive(Debug, Args)]
#[command(after_help = "\
Queries: thesis (the sum of one column where another one is small), q1 and q6 (TPC-H), or a text
such as
  select l_shipmode, count(*), sum(l_quantity) from t where l_shipdate < date '1995-01-01' group by l_shipmode
Values are whole numbers: decimals are counted in their last digit, dates in days since 1970.

Files: Parquet, or Arrow's IPC format (also called Feather). Of their columns those that the query
names are read: whole numbers, decimals, dates, times, and texts of one character. There may be no
nulls in them.

Examples:
  telpher qdp                                         the thesis' query over 256 MiB, on every core
  telpher qdp --query q1 --size 4g --threads 8
  telpher qdp --query q6 --input lineitem.parquet --format json --no-html
  telpher qdp --fetched-node 0 --tier-node 8 --node 0 --device all      from DDR to HBM, by the devices there are
  telpher qdp --device model:spr --runner threaded --chunk 262144       the model copies, on a thread of its own
  telpher qdp --plain --repeat 20 --format json       the engine alone
  telpher qdp --profile xeon-max-9468                 the thesis' Tables 6.1 and 6.2, simulated")]
pub(crate) struct Qdp {
    /// The query: thesis, q1, q6, or a text that begins with select.
    #[arg(long, value_name = "QUERY", default_value = "thesis")]
    pub(crate) query: String,
    /// Its data, a Parquet or an Arrow file; given several times, the rows of all of them, one after the other [default: generated].
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "seed"])]
    pub(crate) input: Vec<PathBuf>,
    /// Bytes of the columns that are generated, in all.
    #[arg(long, value_name = "SIZE", default_value = "256m", value_parser = parse_data)]
    pub(crate) size: u64,
    /// Which data are generated: the same for the same number.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Hardware threads that the query is for: the engine alone has so many threads, the pipeline so many groups [default: those that
    /// this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Groups of threads, each with its part of the rows [default: one for each hardware thread].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) groups: Option<u32>,
    /// Rows that a group scans before it sums over them, and that are fetched together [default: 262144].
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) chunk: Option<u64>,
    /// Threads of a group that scan [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) scanners: Option<u32>,
    /// Threads of a group that fetch ahead [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) fetchers: Option<u32>,
    /// Threads of a group that sum [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) aggregators: Option<u32>,
    /// What AGGREGATE does about a block that is still on its way.
    #[arg(long, value_enum, default_value_t = Late::Source)]
    pub(crate) late: Late,
    /// Who copies: cpu, model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON), hw:wqM.N, or all (every hardware queue that
    /// this user may use, else the CPU).
    #[arg(long, value_name = "DEV", default_value = "all", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    /// Who executes on a modelled device: the thread that asks for a copy, or a thread beside it.
    #[arg(long, value_enum, default_value_t = Runner::Inline)]
    pub(crate) runner: Runner,
    /// A setting of telpher's mover, such as threshold=64k, route=local or split=1m:2; may stand several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) policy: Vec<String>,
    /// NUMA node whose CPUs the threads run on [default: any].
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<u32>,
    /// NUMA node of the columns that SCAN reads [default: wherever the system puts them].
    #[arg(long, value_name = "NODE")]
    pub(crate) scanned_node: Option<u32>,
    /// NUMA node of the columns that are fetched ahead [default: wherever the system puts them].
    #[arg(long, value_name = "NODE")]
    pub(crate) fetched_node: Option<u32>,
    /// NUMA node of the fast memory that they are fetched to [default: wherever the system puts it].
    #[arg(long, value_name = "NODE")]
    pub(crate) tier_node: Option<u32>,
    /// Bytes of that memory [default: room for all that is fetched].
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub(crate) tier_size: Option<u64>,
    /// Pages of columns and fast memory: 4k, or 2m (transparent huge pages).
    #[arg(long, value_enum, default_value_t = Pages::Huge)]
    pub(crate) pages: Pages,
    /// Executions of each way that are measured, after one that is not.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) repeat: u32,
    /// Execute it by the engine alone: no groups, no cache.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Simulate the thesis' query on this machine instead: the name of a profile (`telpher sim profiles` lists them), or a file.
    #[arg(long, value_name = "PROFILE", conflicts_with_all = HERE)]
    pub(crate) profile: Option<String>,
    /// A number of that profile changed, such as device.bubble_ns=10; may stand several times.
    #[arg(long, value_name = "KEY=VALUE", requires = "profile")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Late {
    /// Reads it where it lies: nobody waits for a copy, as in the thesis.
    Source,
    /// Waits for it, and takes part in the copying.
    Wait,
}
