//! Options of `telpher sim` and its subcommands.

use super::bench::{Format, Hint, Output, Queue};
use super::operation::Ops;
use super::values::{Choice, Counts, Placement, Sizes, parse_many, parse_seconds, parse_size};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use telpher_sim::{AccessPattern, Library, Through, Wait};

/// Simulate what DSA hardware would give.
///
/// A discrete-event simulation of a machine described by a profile: cores that prepare and submit, the model's own
/// queues, arbiter and engines, memory nodes and links. All results are simulated and are marked so, with the name and
/// the hash of the profile.
#[derive(Debug, Args)]
pub(crate) struct Sim {
    #[command(subcommand)]
    pub(crate) kind: SimKind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SimKind {
    Run(Box<SimRun>),
    Figures(Figures),
    Profiles(Profiles),
    Validate(Validate),
}

/// Options that a workload file replaces.
const WORKLOAD: [&str; 25] = [
    "op",
    "size",
    "depth",
    "batch",
    "threads",
    "queue",
    "wq_size",
    "devices",
    "groups",
    "wqs",
    "engines",
    "placement",
    "core_node",
    "pages",
    "source",
    "hint",
    "wait",
    "library",
    "rate",
    "walk",
    "count",
    "seconds",
    "footprint",
    "through",
    "policy",
];

/// Simulate a workload on a machine.
///
/// Sweeps operation x transfer size x mode (one at a time, queue depth, batch) as `telpher bench` does, but in
/// simulated time. Prints throughput, latency percentiles and where latency is spent, the cores' activity, utilisation,
/// and the bottleneck; writes one HTML file with charts.
#[derive(Debug, Args)]
#[command(after_help = "\
Sizes are bytes with k, m, g for KiB, MiB, GiB. Lists take commas and ranges: in 64..64m each size is
four times the previous one, in 1k..8k*2 twice.

Examples:
  telpher sim run                                        copies of 64 B to 1 MiB on Sapphire Rapids, by device and CPU
  telpher sim run --size 4k --depth 32 --batch 1         one point, in full detail
  telpher sim run --op fill,compare --engines 4          four engines behind the queue
  telpher sim run --devices 4 --threads 4 --size 64k     four devices, each with a thread and a queue
  telpher sim run --queue shared --threads 16            sixteen submitters on one shared queue
  telpher sim run --device model:dsa.json                queues and engines from an accel-config file
  telpher sim run --devices 2 --policy route=local --policy split=1m:2     as telpher's mover distributes work
  telpher sim run lab/workloads/arrivals.toml            several loads at once, each described in a file
  telpher sim run --set submit.enqcmd_ns=300             the same machine with one number changed
  telpher sim run --size 4k --format csv --no-html       for a spreadsheet")]
pub(crate) struct SimRun {
    /// A TOML file with several loads that run at the same time, each with all its options, instead of the options that
    /// describe one load.
    #[arg(value_name = "WORKLOAD", conflicts_with_all = WORKLOAD)]
    pub(crate) workload: Option<PathBuf>,
    /// Machine: the name of a profile (`telpher sim profiles` lists them), or a file [default: spr-asplos, or the
    /// profile that the workload names].
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Change one number of the profile, such as device.bubble_ns=10; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Operations: move, fill, compare, compare-pattern, create-delta, apply-delta, dualcast, crc, copy-crc, dif-check,
    /// dif-insert, dif-strip, dif-update, cache-flush, or all.
    #[arg(long, value_name = "OPS", default_value = "move")]
    pub(crate) op: Ops,
    /// Transfer sizes.
    #[arg(long, value_name = "SIZES", default_value = "64..1m")]
    pub(crate) size: Sizes,
    /// Descriptors (or batches) each thread keeps in flight; 1 waits for each before the next. Without --depth and
    /// --batch: one at a time, 32 in flight, and two batches of 32 in flight.
    #[arg(long, value_name = "COUNTS")]
    pub(crate) depth: Option<Counts>,
    /// Descriptors in a batch; 1 submits each separately.
    #[arg(long, value_name = "COUNTS")]
    pub(crate) batch: Option<Counts>,
    /// Submitting threads, each on its own core; they are assigned to the queues in turn.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) threads: u32,
    /// Kind of work queue: dedicated has one client, so each thread gets its own queue; shared has many [default:
    /// dedicated].
    #[arg(long, value_enum)]
    pub(crate) queue: Option<Queue>,
    /// Entries of a work queue [default: the device's 128, divided among its queues].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65535))]
    pub(crate) wq_size: Option<u32>,
    /// Devices [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) devices: Option<u16>,
    /// Groups of each device [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) groups: Option<u32>,
    /// Work queues of each group [default: 1 shared, or as many dedicated ones as the threads need].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) wqs: Option<u32>,
    /// Engines of each group [default: 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) engines: Option<u32>,
    /// Memory nodes of source and destination buffers, as numbered in the profile, such as 0,1 [default: 0,0].
    #[arg(long, value_name = "SRC,DST")]
    pub(crate) placement: Option<Placement>,
    /// Node whose cores the threads run on.
    #[arg(long, value_name = "NODE", default_value_t = 0)]
    pub(crate) core_node: usize,
    /// Pages of the buffers: 4k, 2m or 1g.
    #[arg(long, value_enum, default_value_t = SimPages::Small)]
    pub(crate) pages: SimPages,
    /// Where the source's lines are when an operation begins: memory, or cache.
    #[arg(long, value_enum, default_value_t = Hint::Memory)]
    pub(crate) source: Hint,
    /// Where the device writes results: to the cache, which is the default of `telpher bench`, or to memory (DSA's
    /// cache-control flag).
    #[arg(long, value_enum, default_value_t = Hint::Memory)]
    pub(crate) hint: Hint,
    /// How a thread waits: poll, umwait, interrupt or sleep.
    #[arg(long, value_name = "HOW", default_value = "poll")]
    pub(crate) wait: Choice<Wait>,
    /// Software between the program and the portal: raw, lean, dml or kernel.
    #[arg(long, value_name = "LIBRARY", default_value = "raw")]
    pub(crate) library: Choice<Library>,
    /// Addresses of a core's own operations: alone (each in memory that was not used before), random, or sequential
    /// (each behind the previous one).
    #[arg(long, value_name = "WALK", default_value = "alone")]
    pub(crate) walk: Choice<AccessPattern>,
    /// Bytes of source and of destination that a thread walks through repeatedly, such as 1g [default: small enough
    /// that the data stays where it is].
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) footprint: Option<u64>,
    /// How descriptors reach the queue: portal (MOVDIR64B or ENQCMD), or write (a system call).
    #[arg(long, value_name = "HOW", default_value = "portal")]
    pub(crate) through: Choice<Through>,
    /// A setting of telpher's mover, which then chooses a queue or the CPU for each operation: threshold, route, split
    /// or hybrid, such as threshold=4k or route=local; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "batch")]
    pub(crate) policy: Vec<String>,
    /// Operations that arrive at each thread per second, at random times, even if its queue is full [default: the next
    /// as soon as there is a free entry].
    #[arg(long, value_name = "N", value_parser = parse_many)]
    pub(crate) rate: Option<u64>,
    /// Device to simulate: cpu, model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON, a device for each
    /// of its entries), or all (the CPU and model:spr).
    #[arg(long, value_name = "DEV", default_value = "all", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    /// Submissions of each thread, for each point.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = parse_many)]
    pub(crate) count: u64,
    /// Simulated time of each point, instead of --count: as many submissions as fill it at the rate of the first 2000.
    #[arg(long, value_name = "S", conflicts_with = "count", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SimPages {
    /// 4 KiB pages.
    #[value(name = "4k")]
    Small,
    /// 2 MiB pages.
    #[value(name = "2m")]
    Huge,
    /// 1 GiB pages.
    #[value(name = "1g")]
    Gigantic,
}

impl SimPages {
    /// Bytes of a page.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            SimPages::Small => 4 << 10,
            SimPages::Huge => 2 << 20,
            SimPages::Gigantic => 1 << 30,
        }
    }
}

/// Another machine for the published experiments.
#[derive(Debug, Args)]
pub(crate) struct Elsewhere {
    /// Machine to use instead of the published ones: the name of a profile, or a file. Experiments that it cannot run
    /// are reported.
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Change one number of that profile, such as device.bubble_ns=10; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", requires = "profile")]
    pub(crate) set: Vec<String>,
}

/// Draw the published figures again, from simulation.
///
/// Every figure of the ASPLOS paper that concerns the device (2 to 15), of the thesis (3.4 to 3.8), the white paper's
/// Figures 3 and 10, the slides about page migration, and LightDSA's raw series: simulated, with the published numbers
/// for comparison. Also page migration by the program itself. Writes a folder with a CSV and a JSON file for each
/// figure and one HTML page with all charts; prints the list of figures, and where simulated and published numbers
/// differ.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher sim figures                          all figures, into ./telpher-figures
  telpher sim figures --only asplos-3,asplos-7
  telpher sim figures --only migration --out migration
  telpher sim figures --only asplos-10 --format csv --no-html
  telpher sim figures --profile ./my-machine.toml --out mine")]
pub(crate) struct Figures {
    #[command(flatten)]
    pub(crate) elsewhere: Elsewhere,
    /// Figures to draw: names such as asplos-3, or a common prefix, such as thesis [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Folder to write into; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "telpher-figures")]
    pub(crate) out: PathBuf,
    /// Output format: a table of the figures, or all their data as CSV or JSON.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    /// Write no HTML page.
    #[arg(long)]
    pub(crate) no_html: bool,
}

/// Show the built-in machine profiles, as a base for your own.
///
/// Without a name, prints one line for every built-in profile. With a name, prints its text, each number with its unit
/// and source. To describe your own machine, redirect the text to a file, change what differs, and pass the file to
/// --profile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher sim profiles
  telpher sim profiles spr-asplos > my-machine.toml
  telpher sim run --profile ./my-machine.toml")]
pub(crate) struct Profiles {
    /// The profile to print.
    #[arg(value_name = "PROFILE")]
    pub(crate) name: Option<String>,
}

/// Compare the simulator with every published number.
///
/// Each claim of five documents about the device is one experiment: published, simulated, deviation, verdict. Claims
/// that set a parameter have a separate table and prove nothing. Then follow the raw series of LightDSA, point by
/// point, and the goals of the simulator. A claim that fails is shown as failing, with the reason if it is known.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher sim validate
  telpher sim validate --only K-021,K-044      two claims, in full detail
  telpher sim validate --only T                the claims of one document (K, T, V, P); `series` for the raw series
  telpher sim validate --format csv --no-html > claims.csv
  telpher sim validate --markdown --no-html    every table in full, for a document
  telpher sim validate --profile ./my-machine.toml     how that machine differs from the published ones")]
pub(crate) struct Validate {
    #[command(flatten)]
    pub(crate) elsewhere: Elsewhere,
    /// Claims to check, or their common prefix; `series` for the raw series. Separate several by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Print the tables in full, as Markdown.
    #[arg(long, conflicts_with = "format")]
    pub(crate) markdown: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    fn command(path: &[&str]) -> Command {
        let mut command = super::super::Cli::command();
        for name in path {
            command = command.find_subcommand(name).expect("it is there").clone();
        }
        command
    }

    /// Every option and value of `bench` must also exist for `sim run`.
    #[test]
    fn run_takes_every_option_of_bench_and_every_value() {
        let (bench, run) = (command(&["bench"]), command(&["sim", "run"]));
        let mut seen = 0;
        for option in bench.get_opts() {
            let name = option.get_long().expect("every option has a long name");
            let same = run.get_opts().find(|other| other.get_long() == Some(name));
            let same = same.unwrap_or_else(|| panic!("sim run has no --{name}"));
            let values = |option: &clap::Arg| -> Vec<String> {
                option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect()
            };
            let known = values(same);
            for value in values(option) {
                assert!(known.contains(&value), "sim run --{name} does not take {value}");
            }
            assert_eq!(option.get_num_args(), same.get_num_args(), "--{name}");
            seen += 1;
        }
        assert!(seen >= 15, "bench has {seen} options");
        for more in ["profile", "devices", "groups", "wqs", "wait", "library"] {
            assert!(run.get_opts().any(|option| option.get_long() == Some(more)), "--{more}");
        }
    }
}
