//! Options of `telpher sim` and its subcommands.

use super::bench::{Hint, Pages};
use super::device::{DeviceArg, QueueArgs, WqMode};
use super::operation::NewerOps;
use super::output::{Output, Printed};
use super::values::{Choice, Counts, Placement, Sizes, parse_footprint, parse_many, parse_seconds};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use telpher_sim::{AccessPattern, Library, SubmitBy, Wait};

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
const WORKLOAD: [&str; 27] = [
    "op",
    "size",
    "in_flight",
    "batch",
    "threads",
    "wq_mode",
    "wq_size",
    "devices",
    "groups",
    "wqs",
    "engines",
    "read_bandwidth",
    "write_bandwidth",
    "placement",
    "core_node",
    "pages",
    "source_in",
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
/// Sweeps operation x transfer size x mode (one at a time, several in flight, batches) as `telpher bench` does, but in
/// simulated time. Prints throughput, latency percentiles and where latency is spent, the cores' activity, utilisation,
/// and the bottleneck. With --html, a page has the charts.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Work",
    after_help = "\
Sizes are bytes, or k, m, g for KiB, MiB, GiB. --size, --in-flight and --batch
take lists and ranges: 64..64m multiplies by 4, and 1k..8k*2 by 2.

Examples:
  telpher sim run                                     copies on Sapphire Rapids
  telpher sim run --size 4k --in-flight 32 --batch 1  one point, in detail
  telpher sim run --op fill,compare --engines 4       four engines in a group
  telpher sim run --devices 4 --threads 4 --size 64k  four devices and threads
  telpher sim run --wq-mode shared --threads 16       one shared queue
  telpher sim run --devices 2 --policy route=local    as telpher's mover routes
  telpher sim run --set submit.enqcmd_ns=300          one number changed
  telpher sim run -f csv -o out.csv                   for a spreadsheet"
)]
pub(crate) struct SimRun {
    /// A TOML file with several loads, or with tenants and their limits (see advise), instead of the options for one.
    #[arg(value_name = "WORKLOAD", conflicts_with_all = WORKLOAD)]
    pub(crate) workload: Option<PathBuf>,
    /// Machine: a profile of `telpher sim profiles`, or a file [default: spr-asplos].
    #[arg(short, long, value_name = "PROFILE", help_heading = "Machine")]
    pub(crate) profile: Option<String>,
    /// Change one number of the profile, such as device.bubble_ns=10.
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Machine")]
    pub(crate) set: Vec<String>,
    /// Operations, such as move,crc or all (docs/commands.md lists them).
    #[arg(long, value_name = "OPS", default_value = "move")]
    pub(crate) op: NewerOps,
    /// Transfer sizes.
    #[arg(short, long, value_name = "SIZE", default_value = "64..1m")]
    pub(crate) size: Sizes,
    /// Descriptors (or batches) of a thread in flight [default: 1 and 32].
    #[arg(short, long, value_name = "N")]
    pub(crate) in_flight: Option<Counts>,
    /// Descriptors in a batch; 1 submits each separately [default: 1 and 32].
    #[arg(short, long, value_name = "N")]
    pub(crate) batch: Option<Counts>,
    /// Submitting threads, each on its own core.
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) threads: u32,
    /// Operations that arrive at each thread per second [default: no pause].
    #[arg(long, value_name = "N", value_parser = parse_many)]
    pub(crate) rate: Option<u64>,
    /// Submissions of each thread, for each point.
    #[arg(long, value_name = "N", default_value = "2000", value_parser = parse_many)]
    pub(crate) count: u64,
    /// Simulated seconds of each point, instead of --count.
    #[arg(long, value_name = "S", conflicts_with = "count", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) queues: QueueArgs,
    /// Devices [default: 1].
    #[arg(long, value_name = "N", help_heading = "Device", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) devices: Option<u16>,
    /// Groups of each device [default: 1].
    #[arg(long, value_name = "N", help_heading = "Device", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) groups: Option<u32>,
    /// Work queues of each group [default: 1 shared, or enough dedicated ones].
    #[arg(long, value_name = "N", help_heading = "Device", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) wqs: Option<u32>,
    /// Engines of each group [default: 1].
    #[arg(long, value_name = "N", help_heading = "Device", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) engines: Option<u32>,
    /// Limit of a group's reads: all, half, quarter or eighth of the device's.
    #[arg(long = "reads", value_enum, value_name = "SHARE", help_heading = "Device", hide_possible_values = true)]
    pub(crate) read_bandwidth: Option<Bandwidth>,
    /// Limit of a group's writes: all, half, quarter or eighth of the device's.
    #[arg(long = "writes", value_enum, value_name = "SHARE", help_heading = "Device", hide_possible_values = true)]
    pub(crate) write_bandwidth: Option<Bandwidth>,
    /// Where the device writes results (DSA's cache-control flag).
    #[arg(long, value_enum, value_name = "WHERE", help_heading = "Device", default_value_t = Hint::Memory)]
    pub(crate) hint: Hint,
    /// Memory nodes of source and destination buffers [default: 0,0].
    #[arg(long, value_name = "SRC,DST", help_heading = "Memory")]
    pub(crate) placement: Option<Placement>,
    /// Node whose cores the threads run on.
    #[arg(long, value_name = "NODE", help_heading = "Memory", default_value_t = 0)]
    pub(crate) core_node: usize,
    /// Pages of the buffers.
    #[arg(long, value_enum, value_name = "SIZE", help_heading = "Memory", default_value_t = Pages::Small)]
    pub(crate) pages: Pages,
    /// Where the source's lines are when an operation begins.
    #[arg(long, value_enum, value_name = "WHERE", help_heading = "Memory", default_value_t = Hint::Memory)]
    pub(crate) source_in: Hint,
    /// Bytes of source and destination that a thread goes through repeatedly.
    #[arg(long, value_name = "SIZE", help_heading = "Memory", value_parser = parse_footprint)]
    pub(crate) footprint: Option<u64>,
    /// Addresses of a core's own operations: alone, random or sequential.
    #[arg(long, value_name = "WALK", help_heading = "Memory", default_value = "alone")]
    pub(crate) walk: Choice<AccessPattern>,
    /// How a thread waits: poll, umwait, interrupt or sleep.
    #[arg(long, value_name = "HOW", help_heading = "Software", default_value = "poll")]
    pub(crate) wait: Choice<Wait>,
    /// Software between the program and the portal: raw, lean, dml or kernel.
    #[arg(long, value_name = "LIBRARY", help_heading = "Software", default_value = "raw")]
    pub(crate) library: Choice<Library>,
    /// How descriptors reach the queue: portal (MOVDIR64B, ENQCMD) or write.
    #[arg(long, value_name = "HOW", help_heading = "Software", default_value = "portal")]
    pub(crate) through: Choice<SubmitBy>,
    /// Setting of telpher's mover, such as threshold=4k or route=local.
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Software", conflicts_with = "batch")]
    pub(crate) policy: Vec<String>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The share of a device's bandwidth that a group may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Bandwidth {
    All,
    Half,
    Quarter,
    Eighth,
}

impl Bandwidth {
    fn of_a_group(self) -> telpher_device::Bandwidth {
        use telpher_device::Bandwidth as Of;
        match self {
            Bandwidth::All => Of::All,
            Bandwidth::Half => Of::Half,
            Bandwidth::Quarter => Of::Quarter,
            Bandwidth::Eighth => Of::Eighth,
        }
    }
}

impl SimRun {
    /// What is simulated.
    pub(crate) fn options(&self) -> telpher_predict::SweepOptions {
        telpher_predict::SweepOptions {
            ops: self.op.0.clone(),
            sizes: self.size.0.clone(),
            depths: self.in_flight.as_ref().map(|counts| counts.0.clone()),
            batches: self.batch.as_ref().map(|counts| counts.0.clone()),
            threads: self.threads,
            rate: self.rate,
            count: self.count,
            seconds: self.seconds,
            device: self.device.name.clone(),
            wq_mode: self.queues.wq_mode.map(|mode| match mode {
                WqMode::Dedicated => telpher_device::WqMode::Dedicated,
                WqMode::Shared => telpher_device::WqMode::Shared,
            }),
            wq_size: self.queues.wq_size,
            devices: self.devices,
            groups: self.groups,
            wqs: self.wqs,
            engines: self.engines,
            bandwidth: [self.read_bandwidth, self.write_bandwidth].map(|limit| limit.map(Bandwidth::of_a_group)),
            to_cache: self.hint == Hint::Cache,
            placement: self.placement.map(|nodes| (nodes.src, nodes.dst)),
            core_node: self.core_node,
            page_bytes: self.pages.bytes(),
            from_cache: self.source_in == Hint::Cache,
            footprint: self.footprint,
            walk: self.walk.0,
            wait: self.wait.0,
            library: self.library.0,
            through: self.through.0,
            policy: self.policy.clone(),
        }
    }
}

/// Another machine for the published experiments.
#[derive(Debug, Args)]
#[command(next_help_heading = "Machine")]
pub(crate) struct OtherMachine {
    /// Machine to use instead of the published ones: the name of a profile, or a file. Experiments that it cannot run
    /// are reported.
    #[arg(short, long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Change one number of that profile, such as device.bubble_ns=10; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", requires = "profile")]
    pub(crate) set: Vec<String>,
}

/// Draw the published figures again, from simulation.
///
/// Every figure of the ASPLOS paper that concerns the device (2 to 15, 17, 19 and 21), of the thesis (3.4 to 3.8), the
/// white paper's Figures 3 and 10, the slides about page migration, and LightDSA's raw series: simulated, with the
/// published numbers for comparison. Also page migration by the program itself. Writes a folder with a CSV and a JSON
/// file for each figure and one HTML page with all charts; prints the list of figures, and where simulated and
/// published numbers differ.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher sim figures                          all, into ./telpher-figures
  telpher sim figures --only asplos-3,asplos-7
  telpher sim figures --only migration --folder migration
  telpher sim figures --only offload           a cache's long copies
  telpher sim figures --only nvmf              a storage target's digests
  telpher sim figures --only fabric            messages between processes
  telpher sim figures --only asplos-10 -f csv -o 10.csv --no-html
  telpher sim figures --profile gold-6430 --folder gold")]
pub(crate) struct Figures {
    #[command(flatten)]
    pub(crate) elsewhere: OtherMachine,
    /// Figures to draw: names such as asplos-3, or a common prefix, such as thesis [default: all].
    #[arg(long, value_name = "NAMES", help_heading = "Work", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Folder to write into; created if it does not exist.
    #[arg(long, value_name = "DIR", help_heading = "Output", default_value = "telpher-figures")]
    pub(crate) folder: PathBuf,
    /// Write no HTML page.
    #[arg(long, help_heading = "Output")]
    pub(crate) no_html: bool,
    #[command(flatten)]
    pub(crate) printed: Printed,
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
  telpher sim validate --only T                all claims of one document
  telpher sim validate --format csv --output claims.csv
  telpher sim validate --markdown              every table in full
  telpher sim validate --profile gold-6430     how another machine differs")]
pub(crate) struct Validate {
    #[command(flatten)]
    pub(crate) elsewhere: OtherMachine,
    /// Claims to check, or their common prefix; `series` for the raw series. Separate several by commas.
    #[arg(long, value_name = "NAMES", help_heading = "Work", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Print the tables in full, as Markdown.
    #[arg(long, help_heading = "Output", conflicts_with = "format")]
    pub(crate) markdown: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[cfg(test)]
mod tests {
    use clap::Command;

    fn command(path: &[&str]) -> Command {
        let mut command = super::super::tree();
        for name in path {
            command = command.find_subcommand(name).expect("it is there").clone();
        }
        command
    }

    /// Every option and value of `bench` must also exist for `sim run`, which always prints every table.
    #[test]
    fn run_takes_every_option_of_bench_and_every_value() {
        let (bench, run) = (command(&["bench"]), command(&["sim", "run"]));
        let mut seen = 0;
        for option in bench.get_opts().filter(|option| option.get_long() != Some("full")) {
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
