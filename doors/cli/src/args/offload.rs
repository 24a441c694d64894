//! Options of `telpher offload`.

use super::program::ProgramArgs;
use super::values::{ValueError, parse_data};
use clap::Args;
use telpher_offload_wire::Functions;

/// Let a device execute the long memory copies of an unmodified program.
///
/// The program, and every dynamically linked program it starts, first load a library that stands in front of memcpy,
/// memmove, mempcpy, memset and memcmp. Calls below the threshold go to the C library after one comparison. A longer
/// call goes to the device if its call site copies data that is not in the caches; the library learns this from the
/// time of some copies by the CPU. Cached data stays with the CPU, which copies it faster than any device.
///
/// The exit code is the program's own; 128 + N if signal N ended it, 127 if the program does not exist, 126 if it
/// cannot be run here (static and setuid programs load no library), 125 if the device cannot be opened. A summary is
/// printed to standard error at the end. Go programs and Java's own copies do not call these functions.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher offload -- PROGRAM                        hardware queues of this user
  telpher offload --device model:spr -- PROGRAM     a modelled device
  telpher offload --threshold 4k --always -- PROGRAM
  telpher offload --function copy,fill -- PROGRAM
  telpher offload -f json -o offload.json -- PROGRAM")]
pub(crate) struct Offload {
    /// Device that executes long calls: model:spr, model:FILE, hw:wqM.N, all hardware queues, or cpu.
    #[arg(
        short,
        long,
        help_heading = "Device",
        value_name = "DEV",
        default_value = "all",
        value_parser = super::values::parse_device
    )]
    pub(crate) device: String,
    /// Shorter calls stay with the CPU.
    #[arg(long, help_heading = "Calls", value_name = "BYTES", default_value = "16k", value_parser = parse_data)]
    pub(crate) threshold: u64,
    /// Functions that are offloaded: copy, fill, compare.
    #[arg(long, help_heading = "Calls", value_name = "LIST", default_value = "copy", value_parser = parse_functions)]
    pub(crate) function: Functions,
    /// Offload every call from the threshold on, whether its data is in the caches or not.
    #[arg(long, help_heading = "Calls")]
    pub(crate) always: bool,
    /// Do not offload programs that are started with another LD_PRELOAD or an empty environment.
    #[arg(long, help_heading = "Program")]
    pub(crate) no_follow: bool,
    #[command(flatten)]
    pub(crate) run: ProgramArgs,
}

/// Reads a list of functions.
fn parse_functions(text: &str) -> Result<Functions, ValueError> {
    let mut functions = Functions { copy: false, fill: false, compare: false };
    for name in text.split(',') {
        match name {
            "copy" => functions.copy = true,
            "fill" => functions.fill = true,
            "compare" => functions.compare = true,
            _ => return Err(ValueError(format!("'{name}' is not a function; use copy, fill, compare"))),
        }
    }
    Ok(functions)
}
