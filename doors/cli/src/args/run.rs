//! Options of `telpher run`.

use super::values::parse_grace;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use telpher_vdev::hardware::Hardware;
use telpher_vdev::inject::{self, Inject};

/// Run a program, unmodified, on a virtual DSA.
///
/// The program and everything it starts find a machine with the device: the driver's files below /sys, the queues in
/// /dev/dsa, the submission instructions (MOVDIR64B, ENQCMD, UMONITOR, UMWAIT, TPAUSE) that this CPU may lack. Descriptors
/// are executed by the software model, in the memory of the process that submits them. Nothing outside the program's own
/// process tree changes. The library that is preloaded stays in a directory of this user; all else goes with the run.
/// Without --hardware there is one device that is not configured yet, for accel-config to set up.
///
/// The exit code is the program's own; 128 + N if signal N ended it, 127 if there is no such program, 126 if it cannot be
/// executed here, 125 if an option is wrong or the device could not be set up.
///
/// CPUID cannot be made to tell of the emulated instructions. /proc/cpuinfo does, and so does the variable
/// TELPHER_INSTRUCTIONS, which holds `movdir64b enqcmd waitpkg`.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct Run {
    /// What devices there are: a preset or a file [default: one device, not configured].
    #[arg(long, value_name = "PRESET|FILE")]
    pub(crate) hardware: Option<String>,
    /// Whose driver it is: the attributes, formats and refusals of this kernel.
    #[arg(long, value_enum, default_value_t = Kernel::V6_6)]
    pub(crate) abi: Kernel,
    /// Programs count as having CAP_SYS_RAWIO, as root does, so that kernels since INTEL-SA-01084 let them map a portal. This
    /// is the default, since programs for DSA map it first of all.
    #[arg(long, overrides_with = "no_rawio")]
    pub(crate) rawio: bool,
    /// Programs count as ordinary users: kernels since INTEL-SA-01084 refuse mmap with EPERM and take write().
    #[arg(long)]
    pub(crate) no_rawio: bool,
    /// How programs see the device's files: preloaded (needs no privilege, dynamically linked programs), in a private mount
    /// namespace (needs /dev/fuse; static and Go programs see them too), or whichever the program can have.
    #[arg(long, value_enum, default_value_t = View::Auto)]
    pub(crate) view: View,
    /// Who executes descriptors: the submitting thread before it goes on (one of a process at a time), or a thread
    /// beside it.
    #[arg(long, value_enum, default_value_t = Runner::Inline)]
    pub(crate) runner: Runner,
    /// What a page that is not present does when a descriptor does not block on faults: faults as on silicon, or is
    /// brought in silently.
    #[arg(long, value_enum, default_value_t = Residency::Strict)]
    pub(crate) residency: Residency,
    /// Let every submission trap. Normally a site is rewritten after its first trap to call the emulation directly.
    #[arg(long)]
    pub(crate) no_rewrite: bool,
    /// Let programs go that are started with another LD_PRELOAD or an empty environment: they run without the device. Normally the
    /// functions of the C library that execute programs put back what makes them part of the run: the entry of LD_PRELOAD,
    /// TELPHER_RUN and TELPHER_INSTRUCTIONS.
    #[arg(long)]
    pub(crate) no_follow: bool,
    /// Write every descriptor and record, decoded, with process, thread, queue and times; - is standard error. `telpher trace`
    /// filters and summarises such a file.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Lines to read, or a JSON object a line.
    #[arg(long, value_enum, default_value_t = TraceFormat::Text, requires = "trace")]
    pub(crate) trace_format: TraceFormat,
    /// What shall go wrong, such as fault=1%,seed=7; see below.
    #[arg(long, value_name = "SPEC", value_parser = inject::parse)]
    pub(crate) inject: Option<Inject>,
    /// Report misuse that a device would not notice: a record reused or a buffer changed while in flight, a status that was
    /// not reset, descriptors that race, no record requested, MOVDIR64B to a shared queue or ENQCMD to a dedicated one.
    #[arg(long)]
    pub(crate) check: bool,
    /// Tell at exit what was done: descriptors by operation, status and size, faults, retries, bytes.
    #[arg(long)]
    pub(crate) summary: bool,
    /// After the first SIGTERM, wait this long for the program and what it has started; then end, and print what still runs.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_grace)]
    pub(crate) grace: f64,
    /// The program, searched in PATH, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// What stands below the options.
fn after_help() -> String {
    format!(
        "\
Hardware: {}, configured and enabled;
or a file as accel-config's save-config writes it, likewise configured and enabled

Injected faults (--inject):
{}

Examples:
  telpher run -- accel-config list -i                      what the tool sees: one device, idle
  telpher run -- sh -c 'accel-config load-config -c my.conf -e && ./my-program'
  telpher run --hardware spr-1 --summary -- ./my-program   on configured queues, with a summary at the end
  telpher run --hardware spr-1 --trace - -- ./my-program   every descriptor and record on standard error
  telpher run --hardware spr-1 --check -- ./my-program     tell of misuse that a device would not notice
  telpher run --abi 6.12 --no-rawio -- ./my-program        a kernel that refuses mmap: submission by write()",
        Hardware::presets().join(", "),
        inject::LANGUAGE
    )
}

/// Kernels whose driver can be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kernel {
    /// Token attributes, no shared queues for programs, no write().
    #[value(name = "5.15")]
    V5_15,
    /// Read buffers, op_config; as its later updates: write() submits, and only CAP_SYS_RAWIO may map.
    #[value(name = "6.1")]
    V6_1,
    /// Event log, prs_disable, a directory for each open file.
    #[value(name = "6.6")]
    V6_6,
    /// A queue names its driver.
    #[value(name = "6.12")]
    V6_12,
}

/// How files are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum View {
    /// Preloaded where the program is dynamically linked, else the namespace.
    Auto,
    /// Preloaded.
    Preload,
    /// A private mount namespace.
    Namespace,
}

/// Who executes descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Runner {
    /// The submitting thread.
    Inline,
    /// A thread beside it.
    Threaded,
}

/// What absent pages do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Residency {
    /// Fault.
    Strict,
    /// Are brought in.
    Lenient,
}

/// How a trace is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TraceFormat {
    /// Lines to read.
    Text,
    /// A JSON object a line.
    Json,
}
