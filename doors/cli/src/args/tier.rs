//! Options of `telpher tier`.

use super::values::{ValueError, parse_data, parse_grace, parse_seconds};
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use telpher_tier_run::TierChoice;

/// Have an unmodified program's memory on the tiers where it belongs: what is hot in fast memory, what is cold in slow memory.
///
/// Pages of 4 KiB and 2 MiB are moved while the program uses them: taken out with UFFDIO_MOVE, copied by the CPU or a device, and put back with
/// another page below. Bytes and addresses stay what they are; whoever touches a page on its way waits for it. Needs Linux 6.8 for that, and older
/// kernels with several NUMA nodes move pages themselves (move_pages). Which pages are hot is found by the kernel's monitor
/// (DAMON) or by samples of what is written and read, at one or two hundredths of a core.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher tier run -- ./my-program                          tiers are the machine's NUMA nodes
  telpher tier run --tier hbm@1 --tier ddr@0 -- ./my-program
  telpher tier run --tier fast=256m --tier slow -- redis-server    one node: parts of it, to try it out
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
    /// Keep all pages of a process where they are, so that debuggers and checkpoint tools can read them.
    ///
    /// The kernel answers EIO to a debugger, and to any reader of /proc/PID/mem, that meets a page while it moves. When this command returns, no
    /// page of the process is on its way, and none will be until `telpher tier resume PID`. The process itself runs on. A tracer that is
    /// attached has the same effect, but may stop the process while pages are on their way: pause it first.
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
/// The program and every dynamically linked program it starts load a library first that manages their private memory from inside: mappings
/// of 128 KiB and more are taken over as they come, and followed when they move, grow, are discarded or unmapped. What is left alone, and why, is
/// counted. Forked children go on without; programs they execute begin anew. Each process may take so much of a tier as is said here.
///
/// The exit code is the program's own; 128 + N if signal N ended it, 127 if there is no such program, 126 if it cannot be run here (static
/// programs and those that change their user load no library), 125 if its memory cannot be managed at all. What was done is told on standard error
/// at the end.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher tier run -- ./my-program
  telpher tier run --tier ddr@0 --tier cxl@2=64g --home ddr --limit 2g -- ./my-program
  telpher tier run --tier fast=256m --tier slow --json tiers.json -- python3 job.py

A user who may not answer page faults is told how to be allowed to: /dev/userfaultfd, or CAP_SYS_PTRACE.")]
pub(crate) struct TierRun {
    /// A tier, the fastest first: its name, the NUMA node it is, and how much of it a process may take. Without a node it is a part of what memory
    /// there is [default: every node that has memory, fastest first by what the firmware says of its latency and bandwidth; all that is free].
    #[arg(long, value_name = "NAME[@NODE][=SIZE]", value_parser = parse_tier)]
    pub(crate) tier: Vec<TierChoice>,
    /// The tier whose memory pages have when they are touched first [default: that of the first node with CPUs; of parts of one node, the last].
    #[arg(long, value_name = "NAME")]
    pub(crate) home: Option<String>,
    /// Who copies: cpu, model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON), hw:wqM.N, or all (every hardware queue that
    /// this user may use).
    #[arg(long, value_name = "DEV", default_value = "cpu", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    /// How pages move: exchange (UFFDIO_MOVE, copy, UFFDIO_MOVE), or move-pages (by the kernel) [default: exchange where the kernel has it].
    #[arg(long, value_enum)]
    pub(crate) mechanism: Option<MechanismArg>,
    /// How it is found which pages are hot: auto (damon once a process has 64 MiB, if this user may and nobody else uses it; else windows and
    /// traps), damon (reads and writes, by the kernel's own monitor; a machine has one, for one process and root), traps (reads and writes of a few
    /// pages at a time, small and huge; zeros in a core dump while they are sampled), windows (writes to samples of memory), or perf
    /// (loads and stores, by the processor's own unit, PEBS or IBS; unverified on silicon). Who is named is taken by every process from its beginning:
    /// with damon a shell that starts the program has it, and the program goes without; begin that with exec.
    #[arg(long, value_enum, default_value_t = SourceArg::Auto)]
    pub(crate) source: SourceArg,
    /// Bytes a second that are moved at most, in each process [default: 512m; with --shuffle as many as go].
    #[arg(long, value_name = "SIZE", value_parser = parse_data)]
    pub(crate) limit: Option<u64>,
    /// Move all memory to and fro all the time, whatever is hot: to see whether the program stands it.
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// Let programs go that are started with another LD_PRELOAD or an empty environment. Normally the functions of the C library that execute
    /// programs put back what makes them managed.
    #[arg(long)]
    pub(crate) no_follow: bool,
    /// Leave mappings of fewer bytes alone.
    #[arg(long, value_name = "SIZE", default_value = "128k", value_parser = parse_data)]
    pub(crate) least: u64,
    /// Write a report with charts here when the program has ended.
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Write all that was told of as JSON here when the program has ended.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Tell nothing on standard error at the end.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// After the first SIGTERM, wait this long for the program and what it has started; then end, and print what still runs.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_grace)]
    pub(crate) grace: f64,
    /// The program, searched in PATH, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// Show what programs under `telpher tier run` have on which tier.
///
/// For every process: its tiers, how many pages are on each, how many moved in the last second, what was left alone, and where its memory is
/// hot. Shows this user's processes, a new picture every second until Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "\
The hot map has a cell for each piece of memory, in order of addresses: the darker, the hotter. A
cell's letter is the first of the tier that most of its pages are on.

Examples:
  telpher tier top
  telpher tier top 4711 --every 0.2
  telpher tier top --once --format json")]
pub(crate) struct TierTop {
    /// This process alone.
    #[arg(value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// Seconds between two pictures.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    pub(crate) every: f64,
    /// Show one picture and end.
    #[arg(long)]
    pub(crate) once: bool,
    /// Output: a picture, or all that processes tell, as JSON (one document with --once, else one a line).
    #[arg(long, value_enum, default_value_t = TopFormat::Table)]
    pub(crate) format: TopFormat,
}

/// Reads a tier as typed: `NAME[@NODE][=SIZE]`.
fn parse_tier(text: &str) -> Result<TierChoice, ValueError> {
    let why = || {
        ValueError(format!(
            "'{text}' is not a tier; it is a name, such as hbm, with @ and a NUMA node, and = and a size, such as hbm@1=16g"
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

/// How heat is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SourceArg {
    /// The best there is.
    Auto,
    /// The kernel's own monitor.
    Damon,
    /// Touches of sampled pages.
    Traps,
    /// The processor's own unit.
    Perf,
    /// Writes to samples of memory.
    Windows,
}

/// How pictures are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TopFormat {
    /// For people.
    Table,
    /// For programs.
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
