//! Options of `telpher qdp`.

use super::output::Output;
use super::run::Runner;
use super::values::parse_data;
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use telpher_bench::options::PrefetchOptions;

/// Options of a query on this machine that do not apply to a simulated one.
const HERE: [&str; 17] = [
    "threads",
    "groups",
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
/// While SCAN filters the first columns, a device copies the columns of later stages into a cache in fast memory, where
/// AGGREGATE finds them (Fürst's thesis, sections 2.2 and 6). The query runs several times, in turns: by the engine
/// alone, in groups of threads without prefetching, and with it. Every answer is compared with that of the engine
/// alone.
///
/// With --profile a machine is simulated, and compared with the thesis' tables and figures. With --profile and another
/// query or data, the query runs once to count what its stages read; then it is simulated with its columns in DDR, in
/// HBM, prefetched, and with HBM as a cache.
#[derive(Debug, Args)]
#[command(after_help = "\
SQL text selects keys and aggregates of one table, FILE's or a generated one:
  select l_returnflag, count(*), avg(l_tax) from t
  where l_shipdate < '1998-09-02' and l_discount between 0.05 and 0.07
  group by l_returnflag
docs/commands.md describes the queries, and the columns of files that can be read.

Examples:
  telpher qdp                                         the thesis' query
  telpher qdp --query q1 --size 1g --threads 2
  telpher qdp --query \"select max(l_tax) from t where l_returnflag <> 'R'\"
  telpher qdp --query q6 --input FILE --format json
  telpher qdp --fetched-node 0 --tier-node 8          from DDR to HBM
  telpher qdp --device model:spr --runner threaded    with a modelled device
  telpher qdp --plain --repeat 20 --format json       the engine alone
  telpher qdp --profile xeon-max-9468                 the thesis' machine
  telpher qdp --profile xeon-max-9468 --query q6      simulated in all ways")]
pub(crate) struct Qdp {
    /// The query: thesis, q1, q6 (of TPC-H), or SQL text [default: thesis].
    #[arg(long, help_heading = "Query", value_name = "QUERY")]
    pub(crate) query: Option<String>,
    /// A Parquet or Arrow file; may be repeated [default: generated columns].
    #[arg(long, help_heading = "Query", value_name = "FILE", conflicts_with_all = ["size", "seed"])]
    pub(crate) input: Vec<PathBuf>,
    /// Total bytes of the generated columns [default: 256m].
    #[arg(short, long, help_heading = "Query", value_name = "SIZE", value_parser = parse_data)]
    pub(crate) size: Option<u64>,
    /// Seed of the generated data [default: 1].
    #[arg(long, help_heading = "Query", value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Hardware threads for the query [default: all that this process may use].
    #[arg(
        short,
        long,
        help_heading = "Pipeline",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    pub(crate) threads: Option<u32>,
    /// Groups of threads; each processes its part of the rows [default: one for each thread].
    #[arg(long, help_heading = "Pipeline", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) groups: Option<u32>,
    /// Rows that a group scans, and that are prefetched, together [default: 262144].
    #[arg(long, help_heading = "Pipeline", value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) chunk: Option<u64>,
    /// Threads of a group that scan [default: 1].
    #[arg(long, help_heading = "Pipeline", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) scanners: Option<u32>,
    /// Threads of a group that prefetch [default: 1].
    #[arg(long, help_heading = "Pipeline", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) fetchers: Option<u32>,
    /// Threads of a group that sum [default: 1].
    #[arg(long, help_heading = "Pipeline", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) aggregators: Option<u32>,
    /// What AGGREGATE does with a block whose copy is still in flight.
    #[arg(long, help_heading = "Pipeline", value_enum, default_value_t = OnLate::Source)]
    pub(crate) late: OnLate,
    /// Device that copies: cpu, model:spr, model:FILE, hw:wqM.N, or all (hardware, else the CPU).
    #[arg(
        short,
        long,
        help_heading = "Device",
        value_name = "DEV",
        default_value = "all",
        value_parser = super::values::parse_device
    )]
    pub(crate) device: String,
    /// Thread that executes on a modelled device.
    #[arg(long, help_heading = "Device", value_enum, default_value_t = Runner::Auto)]
    pub(crate) runner: Runner,
    /// A setting of telpher's mover, such as threshold=64k; may be repeated.
    #[arg(long, help_heading = "Device", value_name = "NAME=VALUE")]
    pub(crate) policy: Vec<String>,
    /// NUMA node whose CPUs the threads run on [default: any].
    #[arg(long, help_heading = "Memory", value_name = "NODE")]
    pub(crate) node: Option<u32>,
    /// NUMA node of the columns that SCAN reads.
    #[arg(long, help_heading = "Memory", value_name = "NODE")]
    pub(crate) scanned_node: Option<u32>,
    /// NUMA node of the columns that are prefetched.
    #[arg(long, help_heading = "Memory", value_name = "NODE")]
    pub(crate) fetched_node: Option<u32>,
    /// NUMA node of the fast memory.
    #[arg(long, help_heading = "Memory", value_name = "NODE")]
    pub(crate) tier_node: Option<u32>,
    /// Bytes of the fast memory [default: enough for all prefetched columns].
    #[arg(long, help_heading = "Memory", value_name = "SIZE", value_parser = parse_data)]
    pub(crate) tier_size: Option<u64>,
    /// Pages of columns and fast memory.
    #[arg(long, help_heading = "Memory", value_enum, value_name = "SIZE", default_value_t = ColumnPages::Huge)]
    pub(crate) pages: ColumnPages,
    /// Measured executions of each configuration.
    #[arg(
        long,
        help_heading = "Query",
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    pub(crate) repeat: u32,
    /// Execute the query by the engine alone: no groups, no cache.
    #[arg(long, help_heading = "Query")]
    pub(crate) plain: bool,
    /// Simulate this machine: a profile of `telpher sim profiles`, or a file.
    #[arg(short, long, help_heading = "Simulated machine", value_name = "PROFILE", conflicts_with_all = HERE)]
    pub(crate) profile: Option<String>,
    /// Change one number of the profile, such as device.bubble_ns=10.
    #[arg(long, help_heading = "Simulated machine", value_name = "KEY=VALUE", requires = "profile")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The query by default, and the bytes of generated columns.
const THESIS: &str = "thesis";
const SIZE: u64 = 256 << 20;

impl Qdp {
    /// Whether another plan or other data than the thesis' were named.
    pub(crate) fn has_plan(&self) -> bool {
        let is_thesis = self.query.as_deref().is_none_or(|query| query == THESIS);
        !is_thesis || !self.input.is_empty() || self.size.or(self.seed).or(self.chunk).is_some()
    }

    /// What is executed on this machine.
    pub(crate) fn options(&self) -> PrefetchOptions {
        PrefetchOptions {
            query: self.query.clone().unwrap_or_else(|| THESIS.to_owned()),
            input: self.input.clone(),
            size: self.size.unwrap_or(SIZE),
            seed: self.seed.unwrap_or(1),
            threads: self.threads,
            groups: self.groups,
            chunk: self.chunk,
            scanners: self.scanners,
            fetchers: self.fetchers,
            aggregators: self.aggregators,
            late: match self.late {
                OnLate::Source => telpher_query::OnLate::Source,
                OnLate::Wait => telpher_query::OnLate::Wait,
            },
            node: self.node,
            scanned_node: self.scanned_node,
            fetched_node: self.fetched_node,
            tier_node: self.tier_node,
            tier_size: self.tier_size,
            pages: self.pages.size(),
            repeat: self.repeat,
            plain: self.plain,
        }
    }
}

/// Pages of columns and fast memory. Not of 1 GiB: each column would take whole ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ColumnPages {
    /// 4 KiB pages.
    #[value(name = "4k")]
    Small,
    /// 2 MiB pages, requested with madvise.
    #[value(name = "2m")]
    Huge,
}

impl ColumnPages {
    /// The size of the pages.
    fn size(self) -> telpher_mem::PageSize {
        match self {
            ColumnPages::Small => telpher_mem::PageSize::Small,
            ColumnPages::Huge => telpher_mem::PageSize::Huge,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum OnLate {
    /// Reads the block at its source, without waiting for the copy, as in the thesis.
    Source,
    /// Waits for the copy, and takes part in it.
    Wait,
}
