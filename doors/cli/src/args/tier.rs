//! Options of `telpher tier`.

use super::output::Updates;
use super::program::ProgramArgs;
use super::values::{ValueError, parse_data};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
use telpher_tier_run::TierChoice;

/// Manage an unmodified program's memory: hot pages in fast memory, cold pages in slow memory.
///
/// Pages of 4 KiB and 2 MiB are moved while the program uses them: taken out with UFFDIO_MOVE, copied by the CPU or a
/// device, and put back on another physical page. Contents and addresses do not change; a thread that accesses a page
/// being moved waits for it. This needs Linux 6.8; on older kernels with several NUMA nodes the kernel moves pages
/// (move_pages). Hot pages are found with the kernel's monitor (DAMON) or by sampling writes and reads, at a cost of
/// one or two per cent of a core.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher tier run -- PROGRAM                       tiers are NUMA nodes
  telpher tier run --tier hbm@1 --tier ddr@0 -- PROGRAM
  telpher tier run --tier fast=256m --tier slow -- PROGRAM  parts of a node
  telpher tier run --html tiers.html -- PROGRAM     with a report at the end
  telpher tier top                                  what runs now, tier by tier
  telpher tier pause 4711                           no page moves until resumed")]
pub(crate) struct Tier {
    #[command(subcommand)]
    pub(crate) kind: TierKind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TierKind {
    Run(Box<TierRun>),
    Top(TierTop),
    /// Keep all pages of a process in place, so that debuggers and checkpoint tools can read them.
    ///
    /// A debugger, or any reader of /proc/PID/mem, that accesses a page while it moves gets EIO from the kernel. When
    /// this command returns, no page of the process is being moved, and none will be until `telpher tier resume PID`.
    /// The process continues to run. An attached tracer has the same effect, but may stop the process while pages are
    /// being moved: pause the process first.
    Pause(TierPid),
    /// Let the pages of a paused process move again.
    Resume(TierPid),
}

/// A process.
#[derive(Debug, Args)]
pub(crate) struct TierPid {
    /// The process, as `telpher tier top` shows it.
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,
}

/// Run a program with its memory managed.
///
/// The program, and every dynamically linked program it starts, first load a library that manages their private memory
/// from inside. It takes over mappings of 128 KiB and more as the program creates them, and follows them when they
/// move, grow, are discarded or unmapped. Memory left alone is counted by reason. Forked children are not managed;
/// programs they execute are. The size of a tier is the limit for each process.
///
/// The exit code is the program's own; 128 + N if signal N ended it, 127 if the program does not exist, 126 if it
/// cannot be run here (static and setuid programs load no library), 125 if its memory cannot be managed at all. A
/// summary is printed to standard error at the end.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher tier run -- PROGRAM
  telpher tier run --tier ddr@0 --tier cxl@2=64g --home ddr -- PROGRAM
  telpher tier run --tier fast=256m --tier slow -f json -o tiers.json -- PROGRAM

Handling page faults needs access to /dev/userfaultfd, or CAP_SYS_PTRACE; an error message says how to get it.")]
pub(crate) struct TierRun {
    /// A tier, the fastest first: name, NUMA node, and bytes for each process [default: every node with memory].
    #[arg(long, help_heading = "Memory", value_name = "NAME[@NODE][=SIZE]", value_parser = parse_tier)]
    pub(crate) tier: Vec<TierChoice>,
    /// Tier on which pages start at their first access [default: that of the first node with CPUs].
    #[arg(long, help_heading = "Memory", value_name = "NAME")]
    pub(crate) home: Option<String>,
    /// Device that copies: cpu, model:spr, model:FILE, hw:wqM.N, or all hardware queues.
    #[arg(
        short,
        long,
        help_heading = "Moving",
        value_name = "DEV",
        default_value = "cpu",
        value_parser = super::values::parse_device
    )]
    pub(crate) device: String,
    /// How pages move: exchange (UFFDIO_MOVE) or move-pages (by the kernel) [default: exchange if possible].
    #[arg(long, help_heading = "Moving", value_enum)]
    pub(crate) mechanism: Option<MechanismArg>,
    /// How hot pages are found; docs/commands.md describes each source.
    #[arg(long, help_heading = "Moving", value_enum, default_value_t = SourceArg::Auto)]
    pub(crate) source: SourceArg,
    /// Maximum bytes moved per second in each process [default: 512m; with --shuffle, no limit].
    #[arg(long, help_heading = "Moving", value_name = "SIZE", value_parser = parse_data)]
    pub(crate) limit: Option<u64>,
    /// Move all memory all the time, hot or not, to test whether the program tolerates it.
    #[arg(long, help_heading = "Moving")]
    pub(crate) shuffle: bool,
    /// Do not manage programs that are started with another LD_PRELOAD or an empty environment.
    #[arg(long, help_heading = "Program")]
    pub(crate) no_follow: bool,
    /// Do not manage mappings with fewer bytes.
    #[arg(long, help_heading = "Memory", value_name = "SIZE", default_value = "128k", value_parser = parse_data)]
    pub(crate) least: u64,
    /// Write a report with charts to this file when the program has ended.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: ProgramArgs,
}

/// Show the tiers of programs under `telpher tier run`.
///
/// For every process: its tiers, the pages on each, the pages moved in the last second, the memory left alone, and a
/// map of its hot memory. Shows this user's processes, and updates every second until Ctrl-C.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Updates",
    after_help = "\
The hot map has a cell for each part of memory, in address order: the darker, the hotter. A \
cell's letter is the initial of the tier that most of its pages are on.

Examples:
  telpher tier top
  telpher tier top 4711 --every 0.2
  telpher tier top --once --format json"
)]
pub(crate) struct TierTop {
    /// Show only this process.
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    #[command(flatten)]
    pub(crate) updates: Updates,
}

/// Reads a tier as given on the command line: `NAME[@NODE][=SIZE]`.
fn parse_tier(text: &str) -> Result<TierChoice, ValueError> {
    let why = || {
        ValueError(format!(
            "'{text}' is not a tier; a tier is a name, optionally with @ and a NUMA node and = and a size, \
             such as hbm or hbm@1=16g"
        ))
    };
    let (rest, bytes) = match text.split_once('=') {
        Some((rest, size)) => (rest, Some(parse_data(size)?)),
        None => (text, None),
    };
    let (name, node) = match rest.split_once('@') {
        Some((name, node)) => (name, Some(node.parse().map_err(|_| why())?)),
        None => (rest, None),
    };
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if is_name { Ok(TierChoice { name: name.into(), node, bytes }) } else { Err(why()) }
}

/// How pages move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum MechanismArg {
    /// Out with UFFDIO_MOVE, a copy, in with UFFDIO_MOVE.
    Exchange,
    /// By the kernel.
    MovePages,
}

/// How hot pages are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SourceArg {
    /// The best available.
    Auto,
    /// The kernel's own monitor.
    Damon,
    /// Accesses to sampled pages.
    Traps,
    /// The processor's own unit.
    Perf,
    /// Writes to samples of memory.
    Windows,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_names_with_nodes_and_sizes() {
        let tier = |text: &str| parse_tier(text).map(|tier| (tier.name, tier.node, tier.bytes));
        assert_eq!(tier("hbm"), Ok(("hbm".into(), None, None)));
        assert_eq!(tier("hbm@1"), Ok(("hbm".into(), Some(1), None)));
        assert_eq!(tier("cxl-0@2=64g"), Ok(("cxl-0".into(), Some(2), Some(64 << 30))));
        assert_eq!(tier("fast=256m"), Ok(("fast".into(), None, Some(256 << 20))));
        for wrong in ["", "@1", "hbm@x", "h b", "hbm=", "hbm=0"] {
            assert!(tier(wrong).is_err(), "{wrong}");
        }
    }
}
