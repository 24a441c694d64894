//! The command line: commands, options and their help.

mod advise;
mod bench;
mod doctor;
mod error;
pub(crate) mod operation;
mod qdp;
mod run;
mod sim;
mod tier;
mod trace;
mod tune;
pub(crate) mod values;
mod vhost;

pub(crate) use advise::Advise;
pub(crate) use bench::{Bench, BenchKind, Contests, Format, Hint, Output, Pages, Queue};
pub(crate) use doctor::Doctor;
pub(crate) use error::sentence;
pub(crate) use qdp::{Late, Qdp};
pub(crate) use run::{Kernel, Residency, Run, Runner, TraceFormat, View};
pub(crate) use sim::{Elsewhere, Figures, Sim, SimKind, SimRun, Validate};
pub(crate) use tier::{MechanismArg, SourceArg, Tier, TierKind, TierRun, TierTop, TopFormat};
pub(crate) use trace::{EndFilter, LineFormat, Trace};
pub(crate) use tune::Tune;
pub(crate) use vhost::{Forward, MapArg, SummaryFormat, Threshold, Vhost};

use clap::{Args, Parser, Subcommand};

/// Move memory without the CPU: tools for the Data Streaming Accelerator and its software model.
///
/// telpher uses the interface of Intel's Data Streaming Accelerator (DSA): 64-byte descriptors in, 32-byte completion
/// records out. On a machine without a DSA, a complete software model of the device executes them, so every command
/// works on any machine. The model's speed is that of software on this CPU, not of DSA hardware.
#[derive(Debug, Parser)]
#[command(
    name = "telpher",
    version,
    about,
    max_term_width = 110,
    after_help = "\
Examples:
  telpher bench                         sweep sizes on the CPU and the modelled device, write telpher-bench.html
  telpher bench ops                     compare each operation with glibc and ISA-L on this machine
  telpher list --format json            the devices of this machine, in accel-config's JSON format
  telpher doctor                        why a real device does not come up, or is slow, and what to do
  telpher sim run --size 64..1m         what DSA hardware would give, in simulated time
  telpher vhost --socket /tmp/vm.sock   a software switch for virtual machines; a device copies the packets
  telpher qdp                           a query whose columns are prefetched into fast memory
  telpher tier run -- ./my-program      hot pages in fast memory, cold pages in slow memory
  telpher run --hardware spr-1 -- ./my-program      any DSA program, unmodified, on the model"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Advise(Box<Advise>),
    Bench(Box<Bench>),
    Doctor(Doctor),
    List(List),
    Qdp(Box<Qdp>),
    Run(Box<Run>),
    Sim(Sim),
    Tier(Tier),
    Trace(Box<Trace>),
    Tune(Box<Tune>),
    Vhost(Box<Vhost>),
}

/// Show devices, groups, queues, engines and their capabilities.
///
/// Hardware comes first, as the driver reports it. For each queue, the list shows whether this user can use it, or why
/// not; no queue is opened for that. The model's default device follows: first-firmware Sapphire Rapids, with 4 groups,
/// 8 work queues, 4 engines and 128 queue entries.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher list
  telpher list --device model:full
  telpher list --device hw:wq0.0 --format json    the device of that queue, as a file for `accel-config load-config`
  telpher list --device model:spr --format json > dsa.json    a file that `--device model:dsa.json` reads back")]
pub(crate) struct List {
    /// Device to show: model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON), hw:wqM.N (the device of
    /// that queue), cpu, or all.
    #[arg(long, value_name = "DEV", default_value = "all", value_parser = values::parse_device)]
    pub(crate) device: String,
    /// Output format: text, or accel-config's JSON.
    #[arg(long, value_enum, default_value_t = ListFormat::Text)]
    pub(crate) format: ListFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum ListFormat {
    /// Indented text.
    Text,
    /// JSON; a list of devices in accel-config's format.
    Json,
}
