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
    #[arg(long, help_heading = "Device", value_name = "PRESET|FILE")]
    pub(crate) hardware: Option<String>,
    /// Kernel version whose driver is emulated: its attributes, formats and refusals.
    #[arg(long, help_heading = "Device", value_enum, default_value_t = Kernel::V6_6)]
    pub(crate) abi: Kernel,
    /// Let programs map a portal, as with CAP_SYS_RAWIO (the default).
    #[arg(long, help_heading = "Device", overrides_with = "no_rawio")]
    pub(crate) rawio: bool,
    /// Refuse mmap with EPERM, as kernels since INTEL-SA-01084 do.
    #[arg(long, help_heading = "Device")]
    pub(crate) no_rawio: bool,
    /// Give queues the ioctls for windows between processes.
    #[arg(long, help_heading = "Device")]
    pub(crate) idpt: bool,
    /// How programs see the device's files: preloaded library, mount namespace, or what fits.
    #[arg(long, help_heading = "Program", value_enum, default_value_t = View::Auto)]
    pub(crate) view: View,
    /// Thread that executes descriptors; here, auto is inline.
    #[arg(long, help_heading = "Device", value_enum, default_value_t = Runner::Auto)]
    pub(crate) runner: Runner,
    /// On an absent page, without block-on-fault: fault as hardware does, or bring it in.
    #[arg(long, help_heading = "Device", value_enum, default_value_t = Residency::Strict)]
    pub(crate) residency: Residency,
    /// Let every submission trap; normally its site is rewritten after the first trap.
    #[arg(long, help_heading = "Program")]
    pub(crate) no_rewrite: bool,
    /// Do not follow programs that are started with another LD_PRELOAD or an empty environment.
    #[arg(long, help_heading = "Program")]
    pub(crate) no_follow: bool,
    /// Write every descriptor and record to this file; - is standard error.
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Format of the trace: text lines, or a JSON object on each line.
    #[arg(long, help_heading = "Output", value_enum, default_value_t = TraceFormat::Table, requires = "trace")]
    pub(crate) trace_format: TraceFormat,
    /// Faults to inject, such as fault=1%,seed=7; see below.
    #[arg(long, help_heading = "Device", value_name = "SPEC", value_parser = inject::parse)]
    pub(crate) inject: Option<Inject>,
    /// Report misuse that a device would not detect, such as a buffer changed while in flight.
    #[arg(long, help_heading = "Output")]
    pub(crate) check: bool,
    /// Print a summary at exit: descriptors by operation, status and size, faults, retries.
    #[arg(long, help_heading = "Output")]
    pub(crate) summary: bool,
    /// Seconds to wait for the program and its children after the first SIGTERM.
    #[arg(long, help_heading = "Program", value_name = "S", default_value = "5", value_parser = parse_grace)]
    pub(crate) grace: f64,
    /// The program, searched in PATH, and its arguments.
    #[arg(required = true, help_heading = "Program", trailing_var_arg = true, value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// Returns the help text below the options.
fn after_help() -> String {
    format!(
        "\
Hardware, configured and enabled: {}, or a file of save-config

Injected faults (--inject):
{}

Examples:
  telpher run -- telpher list                        one device, not configured
  telpher run --hardware spr-1 -- telpher bench      a configured device
  telpher run --hardware spr-1 --summary -- PROGRAM  a summary at the end
  telpher run --hardware spr-1 --trace - -- PROGRAM  every descriptor and record
  telpher run --hardware spr-1 --check -- PROGRAM    report undetected misuse
  telpher run --abi 6.12 --no-rawio -- PROGRAM       a kernel that refuses mmap
  telpher run --hardware srf-1 --idpt -- PROGRAM     windows between processes",
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
    /// dsacaps, and lists of buffers on devices of version 3.
    #[value(name = "7.0")]
    V7_0,
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
    /// The same; static programs find character devices, which they cannot open.
    Devices,
}

/// The thread that executes descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Runner {
    /// Inline for descriptors up to 256 KiB, threaded for longer ones.
    Auto,
    /// The submitting thread.
    Inline,
    /// A separate thread.
    Threaded,
}

impl From<Runner> for telpher_device::Runner {
    fn from(runner: Runner) -> Self {
        match runner {
            Runner::Auto => telpher_device::Runner::Auto,
            Runner::Inline => telpher_device::Runner::Inline,
            Runner::Threaded => telpher_device::Runner::Threaded,
        }
    }
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
    Table,
    /// A JSON object on each line.
    Json,
}
