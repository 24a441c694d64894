//! Options of `telpher run`.

use super::values::parse_grace;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use telpher_vdev::hardware::Hardware;
use telpher_vdev::inject::{self, Inject};

/// Run a program, unmodified, on a virtual DSA.
///
/// The program and everything it starts see a machine with the device: the driver's files below /sys, the queues in
/// /dev/dsa, and the submission instructions (MOVDIR64B, ENQCMD, UMONITOR, UMWAIT, TPAUSE), even if this CPU lacks
/// them. The software model executes descriptors in the memory of the process that submits them. Nothing changes
/// outside the program's process tree. The preloaded library stays in a directory of this user; everything else is
/// removed after the run. Without --hardware there is one unconfigured device, for accel-config to set up.
///
/// The exit code is the program's own; 128 + N if signal N ended it, 127 if the program does not exist, 126 if it
/// cannot be executed here, 125 if an option is wrong or the device could not be set up.
///
/// CPUID cannot be made to report the emulated instructions. /proc/cpuinfo reports them, and so does the variable
/// TELPHER_INSTRUCTIONS, whose value is `movdir64b enqcmd waitpkg`.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct Run {
    /// The devices: a preset or a file [default: one device, not configured].
    #[arg(long, value_name = "PRESET|FILE")]
    pub(crate) hardware: Option<String>,
    /// Kernel version whose driver is emulated: its attributes, formats and refusals.
    #[arg(long, value_enum, default_value_t = Kernel::V6_6)]
    pub(crate) abi: Kernel,
    /// Treat programs as having CAP_SYS_RAWIO, as root has, so that kernels since INTEL-SA-01084 let them map a portal.
    /// This is the default, since DSA programs map the portal first.
    #[arg(long, overrides_with = "no_rawio")]
    pub(crate) rawio: bool,
    /// Treat programs as ordinary users: kernels since INTEL-SA-01084 refuse mmap with EPERM and accept write().
    #[arg(long)]
    pub(crate) no_rawio: bool,
    /// How programs see the device's files: by a preloaded library (no privilege needed; only dynamically linked
    /// programs), in a private mount namespace (needs /dev/fuse; also static and Go programs), or the one that fits the
    /// program.
    #[arg(long, value_enum, default_value_t = View::Auto)]
    pub(crate) view: View,
    /// Thread that executes descriptors: the submitting thread before it continues (one thread of a process at a time),
    /// or a separate thread.
    #[arg(long, value_enum, default_value_t = Runner::Inline)]
    pub(crate) runner: Runner,
    /// What happens on an absent page if the descriptor does not block on faults: it faults as on hardware, or the page
    /// is brought in silently.
    #[arg(long, value_enum, default_value_t = Residency::Strict)]
    pub(crate) residency: Residency,
    /// Let every submission trap. Normally a submission site is rewritten after its first trap to call the emulation
    /// directly.
    #[arg(long)]
    pub(crate) no_rewrite: bool,
    /// Do not follow programs that are started with another LD_PRELOAD or an empty environment: they run without the
    /// device. Normally the C library's functions that execute programs restore the variables of the run: the entry in
    /// LD_PRELOAD, TELPHER_RUN and TELPHER_INSTRUCTIONS.
    #[arg(long)]
    pub(crate) no_follow: bool,
    /// Write every descriptor and record, decoded, with process, thread, queue and times; - is standard error. `telpher
    /// trace` filters and summarises such a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Format of the trace: text lines, or a JSON object on each line.
    #[arg(long, value_enum, default_value_t = TraceFormat::Text, requires = "trace")]
    pub(crate) trace_format: TraceFormat,
    /// Faults to inject, such as fault=1%,seed=7; see below.
    #[arg(long, value_name = "SPEC", value_parser = inject::parse)]
    pub(crate) inject: Option<Inject>,
    /// Report misuse that a device would not detect: a record reused or a buffer changed while in flight, a status that
    /// was not reset, racing descriptors, no record requested, MOVDIR64B to a shared queue or ENQCMD to a dedicated
    /// one.
    #[arg(long)]
    pub(crate) check: bool,
    /// Print a summary at exit: descriptors by operation, status and size, faults, retries, bytes.
    #[arg(long)]
    pub(crate) summary: bool,
    /// After the first SIGTERM, wait this long for the program and its children; then exit, and print what still runs.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_grace)]
    pub(crate) grace: f64,
    /// The program, searched in PATH, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// Returns the help text below the options.
fn after_help() -> String {
    format!(
        "\
Hardware: {}, configured and enabled;
or a file written by accel-config's save-config, also configured and enabled

Injected faults (--inject):
{}

Examples:
  telpher run -- accel-config list -i                      what the tool sees: one device, idle
  telpher run -- sh -c 'accel-config load-config -c my.conf -e && ./my-program'
  telpher run --hardware spr-1 --summary -- ./my-program   on configured queues, with a summary at the end
  telpher run --hardware spr-1 --trace - -- ./my-program   every descriptor and record on standard error
  telpher run --hardware spr-1 --check -- ./my-program     report misuse that a device would not detect
  telpher run --abi 6.12 --no-rawio -- ./my-program        a kernel that refuses mmap: submission by write()",
        Hardware::presets().join(", "),
        inject::LANGUAGE
    )
}

/// Kernels whose driver can be emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kernel {
    /// Token attributes, no shared queues for programs, no write().
    #[value(name = "5.15")]
    V5_15,
    /// Read buffers, op_config; as in its later updates, write() submits, and only CAP_SYS_RAWIO may map.
    #[value(name = "6.1")]
    V6_1,
    /// Event log, prs_disable, a directory for each open file.
    #[value(name = "6.6")]
    V6_6,
    /// A queue names its driver.
    #[value(name = "6.12")]
    V6_12,
}

/// How programs see the device's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum View {
    /// Preloaded if the program is dynamically linked, otherwise the namespace.
    Auto,
    /// Preloaded.
    Preload,
    /// A private mount namespace.
    Namespace,
}

/// The thread that executes descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Runner {
    /// The submitting thread.
    Inline,
    /// A separate thread.
    Threaded,
}

/// What happens on absent pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Residency {
    /// The access faults.
    Strict,
    /// The page is brought in.
    Lenient,
}

/// Format of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TraceFormat {
    /// Text lines.
    Text,
    /// A JSON object on each line.
    Json,
}
