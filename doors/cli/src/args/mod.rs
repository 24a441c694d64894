//! The command line: commands, options and their help.
//!
//! One meaning has one flag in all commands; docs/commands.md has the table of flags, and `vocabulary` holds it.

mod advise;
mod bench;
mod bench_fabric;
mod device;
mod doctor;
mod error;
mod exporter;
mod fabric;
mod nvmf;
mod offload;
pub(crate) mod operation;
mod output;
pub(crate) mod program;
mod qdp;
mod record;
mod run;
mod shell;
mod sim;
mod tier;
mod top;
mod trace;
mod tune;
pub(crate) mod values;
mod vfio;
mod vhost;
#[cfg(test)]
mod vocabulary;

pub(crate) use advise::Advise;
pub(crate) use bench::{AllBench, Bench, BenchKind, Contests, Hint};
pub(crate) use doctor::Doctor;
pub(crate) use error::sentence;
pub(crate) use exporter::{Exporter, Printable};
pub(crate) use fabric::{Fabric, FabricEnv, FabricInstall, FabricKind};
pub(crate) use nvmf::{Nvmf, NvmfBench, NvmfCheck, NvmfCtl, NvmfCtlKind, NvmfKind};
pub(crate) use offload::{Offload, OffloadInstall, OffloadKind, OffloadTop, StatsArg};
pub(crate) use output::{Format, Output, Printed, Updates};
pub(crate) use qdp::Qdp;
pub(crate) use record::{Record, RecordKind, RecordMerge, RecordPredict, RecordShow};
pub(crate) use run::{Kernel, Residency, Run, TraceFormat, View};
pub(crate) use shell::{Completions, Man, ShellName};
pub(crate) use sim::{Figures, OtherMachine, Sim, SimKind, SimRun, Validate};
pub(crate) use tier::{MechanismArg, SourceArg, Tier, TierKind, TierRun, TierTop};
pub(crate) use top::{Top, TopKind};
pub(crate) use trace::Trace;
pub(crate) use tune::Tune;
pub(crate) use vfio::Vfio;
pub(crate) use vhost::Vhost;

use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use device::DeviceArg;
use std::ffi::OsString;

/// Move memory without the CPU: tools for the Data Streaming Accelerator and its software model.
///
/// telpher uses the interface of Intel's Data Streaming Accelerator (DSA): 64-byte descriptors in, 32-byte completion
/// records out. On a machine without a DSA, a complete software model of the device executes them, so every command
/// works on any machine. The model's speed is that of software on this CPU, not of DSA hardware.
#[derive(Debug, Parser)]
#[command(
    name = "telpher",
    about,
    max_term_width = 110,
    disable_version_flag = true,
    after_help = "\
Examples:
  telpher bench                            the CPU and the modelled device
  telpher bench ops                        compared with glibc and ISA-L
  telpher list --format json               the devices, in accel-config's format
  telpher doctor                           why a device does not come up
  telpher sim run --size 64..1m            what DSA hardware would give
  telpher vhost --socket /tmp/vm.sock      a switch for virtual machines
  telpher vfio --socket /tmp/vm.sock       a device in virtual machines
  telpher nvmf --memory 1g                 a disk over NVMe/TCP
  telpher qdp                              a query with prefetched columns
  telpher tier run -- PROGRAM              hot pages in fast memory
  telpher record -- PROGRAM                what it copies, and from where
  telpher fabric env                       messages of MPI programs
  telpher run --hardware spr-1 -- PROGRAM  any DSA program, on the model
  telpher top                              what devices do, by process
  telpher exporter                         the same for Prometheus

Flags and exit codes: docs/commands.md; environment: docs/environment.md"
)]
pub(crate) struct Cli {
    /// Report what the command chooses, on standard error; -vv reports more.
    #[arg(short, long, action = ArgAction::Count, global = true, help_heading = "General")]
    pub(crate) verbose: u8,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the words of a command line; the first is the program's name.
    ///
    /// # Errors
    /// If the command line is invalid, or asks for help or the version.
    pub(crate) fn parse_from_words(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Cli, clap::Error> {
        Cli::from_arg_matches(&tree().try_get_matches_from(words)?)
    }
}

/// Returns the tree of commands, with the help of each command on one screen.
///
/// clap prints long help with a blank line between options. Here `--help` and `-h` print the same: the whole
/// description, and below it the options by topic, one or two lines each.
pub(crate) fn tree() -> clap::Command {
    let version = Arg::new("version").short('V').long("version").action(ArgAction::Version).help_heading("General");
    let command = Cli::command().version(env!("CARGO_PKG_VERSION")).long_version(crate::version::LONG.as_str());
    compact(command.arg(version.help("Print the version; --version also prints commit, target and kernels")))
}

/// Layout of the help of a command; its description is in the place of `before-help`.
const TEMPLATE: &str = "{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

fn compact(command: clap::Command) -> clap::Command {
    // The styled text is copied as it is. Its conversion to a string looks for escape sequences byte by byte, which
    // would take most of the start of a command.
    let description = command.get_long_about().or(command.get_about()).cloned().unwrap_or_default();
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print this help");
    let command = command
        .before_help(description)
        .help_template(TEMPLATE)
        .disable_help_flag(true)
        .disable_help_subcommand(true)
        .arg(help.help_heading("General"));
    command.mut_subcommands(compact)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Advise(Box<Advise>),
    Bench(Box<Bench>),
    Completions(Completions),
    Doctor(Doctor),
    Exporter(Exporter),
    Fabric(Fabric),
    List(List),
    Man(Man),
    Nvmf(Box<Nvmf>),
    Offload(Box<Offload>),
    Qdp(Box<Qdp>),
    Record(Box<Record>),
    Run(Box<Run>),
    Sim(Sim),
    Tier(Tier),
    Top(Top),
    Trace(Box<Trace>),
    Tune(Box<Tune>),
    Vfio(Vfio),
    Vhost(Box<Vhost>),
}

/// Show devices, groups, queues, engines and their capabilities.
///
/// Hardware comes first, as the driver reports it. For each queue, the list shows whether this user can use it, or why
/// not; no queue is opened for that. The model's default device follows: first-firmware Sapphire Rapids, with 4 groups,
/// 8 work queues, 4 engines and 128 queue entries. JSON has accel-config's format, which `accel-config load-config` and
/// --device model:FILE read. The last line names the CPU's kernels, as processor and tuning file choose them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher list
  telpher list --device model:full
  telpher list --format csv                       one line for each queue
  telpher list --device model:spr --format json --output dsa.json
  telpher list --device model:dsa.json            a device of that file")]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) printed: Printed,
}
