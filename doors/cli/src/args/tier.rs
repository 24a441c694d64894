//! Options of `telpher tier`.

use super::values::{ValueError, parse_data, parse_grace, parse_seconds};
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
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
  telpher tier run -- ./my-program                          tiers are the machine's NUMA nodes
  telpher tier run --tier hbm@1 --tier ddr@0 -- ./my-program
  telpher tier run --tier fast=256m --tier slow -- redis-server    two parts of one node, to try it out
  telpher tier run --html tiers.html -- python3 job.py      with a report at the end
  telpher tier top                                          what runs now, tier by tier
  telpher tier pause 4711 && gdb -p 4711                    no page moves until telpher tier resume 4711")]
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
  telpher tier run -- ./my-program
  telpher tier run --tier ddr@0 --tier cxl@2=64g --home ddr --limit 2g -- ./my-program
  telpher tier run --tier fast=256m --tier slow --json tiers.json -- python3 job.py

Handling page faults needs access to /dev/userfaultfd, or CAP_SYS_PTRACE; an error message says how to get it.")]
pub(crate) struct TierRun {
    /// A tier, the fastest first: its name, its NUMA node, and how much of it a process may use. Without a node it is a
    /// part of all memory [default: every node with memory, fastest first by the latency and bandwidth that the
    /// firmware reports; all free memory].
    #[arg(long, value_name = "NAME[@NODE][=SIZE]", value_parser = parse_tier)]
    pub(crate) tier: Vec<TierChoice>,
    /// The tier on which pages start at their first access [default: that of the first node with CPUs; for parts of one
    /// node, the last].
    #[arg(long, value_name = "NAME")]
    pub(crate) home: Option<String>,
    /// Device that copies: cpu, model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON), hw:wqM.N, or all
    /// (every hardware queue that this user may use).
    #[arg(long, value_name = "DEV", default_value = "cpu", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    /// How pages move: exchange (UFFDIO_MOVE, copy, UFFDIO_MOVE), or move-pages (by the kernel) [default: exchange if
    /// the kernel has it].
    #[arg(long, value_enum)]
    pub(crate) mechanism: Option<MechanismArg>,
    /// How hot pages are found: auto (damon once a process has 64 MiB, if this user may use it and no other process
    /// does; otherwise windows and traps), damon (reads and writes, by the kernel's own monitor; needs root, and serves
    /// one process of the machine at a time), traps (reads and writes of a few pages at a time, small and huge; sampled
    /// pages are zeros in a core dump), windows (writes to samples of memory), or perf (loads and stores, by the
    /// processor's own unit, PEBS or IBS; not tested on hardware). Every process uses the given source from its start:
    /// with damon, a shell that starts the program takes DAMON and the program cannot have it, so start the program
    /// with exec.
    #[arg(long, value_enum, default_value_t = SourceArg::Auto)]
    pub(crate) source: SourceArg,
    /// Maximum bytes moved per second in each process [default: 512m; with --shuffle, no limit].
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub(crate) limit: Option<u64>,
    /// Move all memory back and forth all the time, hot or not, to test whether the program tolerates it.
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// Do not follow programs that are started with another LD_PRELOAD or an empty environment. Normally the C
    /// library's functions that execute programs restore the variables of the run.
    #[arg(long)]
    pub(crate) no_follow: bool,
    /// Do not manage mappings with fewer bytes.
    #[arg(long, value_name = "SIZE", default_value = "128k", value_parser = parse_data)]
    pub(crate) least: u64,
    /// Write a report with charts to this file when the program has ended.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write all reported numbers as JSON to this file when the program has ended.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Print no summary at the end.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// After the first SIGTERM, wait this long for the program and its children; then exit, and print what still runs.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_grace)]
    pub(crate) grace: f64,
    /// The program, searched in PATH, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// Show the tiers of programs under `telpher tier run`.
///
/// For every process: its tiers, the pages on each, the pages moved in the last second, the memory left alone, and a
/// map of its hot memory. Shows this user's processes, and updates every second until Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "\
The hot map has a cell for each part of memory, in address order: the darker, the hotter. A
cell's letter is the initial of the tier that most of its pages are on.

Examples:
  telpher tier top
  telpher tier top 4711 --every 0.2
  telpher tier top --once --format json")]
pub(crate) struct TierTop {
    /// Show only this process.
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub(crate) every: f64,
    /// Print once and exit.
    #[arg(long)]
    pub(crate) once: bool,
    /// Output format: a table, or everything that processes report as JSON (one document with --once, else one on each
    /// line).
    #[arg(long, value_enum, default_value_t = TopFormat::Table)]
    pub(crate) format: TopFormat,
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

/// Output format of `telpher tier top`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TopFormat {
    /// A table.
    Table,
    /// JSON.
    Json,
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
