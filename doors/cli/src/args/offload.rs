//! Options of `telpher offload`.

use super::output::Updates;
use super::program::ProgramArgs;
use super::values::{ValueError, parse_data};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;
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
///
/// The variables of Intel's DTO (DTO_MIN_BYTES, DTO_WQ_LIST and so on) are read as well. An option of this command wins
/// over the variable. A warning lists those that DTO reads otherwise than it documents, and those without counterpart.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    mut_arg("program", |program| program.required(false).required_unless_present("print_env")),
    after_help = "\
Examples:
  telpher offload -- PROGRAM                        hardware queues of this user
  telpher offload --device model:spr -- PROGRAM     a modelled device
  telpher offload --threshold 4k --always -- PROGRAM
  telpher offload --stats dto -o calls.txt -- PROGRAM
  telpher offload -d model:spr --device-times spr-asplos -- PROGRAM
  telpher offload --learned learned.txt -- PROGRAM
  telpher offload --verdicts learned.txt -- PROGRAM uses what was learned
  telpher offload --print-env --device all          for systemd and containers
  telpher offload install --folder /usr/local/lib   for -ltelpher-offload
  telpher offload top                               what runs now
  telpher offload off 4711                          the CPU executes its calls"
)]
pub(crate) struct Offload {
    #[command(subcommand)]
    pub(crate) kind: Option<OffloadKind>,
    /// Device that executes long calls: model:spr, model:FILE, hw:wqM.N, all hardware queues, or cpu; may be repeated
    /// [default: all].
    #[arg(
        short,
        long,
        help_heading = "Device",
        value_name = "DEV",
        value_parser = super::values::parse_device
    )]
    pub(crate) device: Vec<String>,
    /// Let modelled devices take as long for each call as the simulated device of this profile. `telpher sim profiles`
    /// lists the profiles.
    #[arg(long, help_heading = "Device", value_name = "PROFILE")]
    pub(crate) device_times: Option<String>,
    /// Shorter calls stay with the CPU [default: 16k].
    #[arg(long, help_heading = "Calls", value_name = "BYTES", value_parser = parse_data)]
    pub(crate) threshold: Option<u64>,
    /// Functions that are offloaded: memcpy, memmove, memset, memcmp; copy is the first two [default: copy].
    #[arg(long, help_heading = "Calls", value_name = "LIST", value_parser = parse_functions)]
    pub(crate) function: Option<Functions>,
    /// Offload every call from the threshold on, whether its data is in the caches or not.
    #[arg(long, help_heading = "Calls")]
    pub(crate) always: bool,
    /// File that says which call sites the device executes and which the CPU, as --learned or `telpher record predict
    /// --verdicts` writes it.
    #[arg(long, help_heading = "Calls", value_name = "FILE")]
    pub(crate) verdicts: Option<PathBuf>,
    /// Write what the call sites have learned to this file, for --verdicts.
    #[arg(long, help_heading = "Calls", value_name = "FILE", conflicts_with = "print_env")]
    pub(crate) learned: Option<PathBuf>,
    /// Programs and libraries whose calls stay with the CPU, such as libfoo,my-driver; may be repeated.
    #[arg(long, help_heading = "Calls", value_name = "NAMES", value_delimiter = ',')]
    pub(crate) deny: Vec<String>,
    /// Do not offload programs that are started with another LD_PRELOAD or an empty environment.
    #[arg(long, help_heading = "Program")]
    pub(crate) no_follow: bool,
    /// Statistics at the end: a summary, or the table of Intel's DTO, which counts every call [default: summary].
    #[arg(long, help_heading = "Output", value_enum)]
    pub(crate) stats: Option<StatsArg>,
    /// Show the call sites in the summary, too; as CSV, show them instead of the processes.
    #[arg(long, help_heading = "Output")]
    pub(crate) sites: bool,
    /// Print the variables with which a program is offloaded wherever it is started, and run nothing.
    #[arg(long, help_heading = "Program", conflicts_with = "program")]
    pub(crate) print_env: bool,
    /// Write the library to this file for the printed variables [default: a file in the user's cache directory].
    #[arg(long, help_heading = "Program", value_name = "FILE", requires = "print_env")]
    pub(crate) library_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: ProgramArgs,
}

// Without a subcommand, a program is run. No doc comment: the help text is at the subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum OffloadKind {
    Top(OffloadTop),
    /// Keep the long calls of a running process on the CPU, until `telpher offload on PID`.
    ///
    /// It applies to calls that begin after this command has returned. Calls that the device executes then end there.
    Off(OffloadPid),
    /// Let the long calls of a process go to the device again.
    On(OffloadPid),
    Install(OffloadInstall),
}

/// Install the library for programs that are linked with it.
///
/// Writes libtelpher-offload.so to a folder. A program linked with -ltelpher-offload, or started with the file in
/// LD_PRELOAD, then offloads its long calls without this command, whatever its environment: to all hardware queues of
/// its user, with the defaults of `telpher offload`, and as the variables of Intel's DTO say. Without a queue, the CPU
/// executes everything. Programs that it executes are not offloaded, unless they have the library themselves.
///
/// Prints the paths of the installed files.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher offload install --folder /usr/local/lib
  telpher offload install --folder /opt/app/lib --as-dto   for -ldto")]
pub(crate) struct OffloadInstall {
    /// Folder of the library; it must exist.
    #[arg(long, help_heading = "Output", value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Also install the names of Intel's DTO, libdto.so and libdto.so.1.0, for programs that are linked with -ldto.
    #[arg(long, help_heading = "Output")]
    pub(crate) as_dto: bool,
}

/// A process.
#[derive(Debug, Args)]
pub(crate) struct OffloadPid {
    /// The process, as `telpher offload top` shows it.
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,
}

/// Show the processes under `telpher offload`.
///
/// For every process: its long calls and their bytes by device and CPU, page faults of the device, refusals of full
/// queues, and whether it is switched to the CPU. For every call site, as `telpher record show` names it: its calls,
/// their bytes, and what executes them (CSV has no sites). A process has at most 4096 sites; the calls of further ones
/// stay with the CPU. Shows this user's processes, and updates every second until Ctrl-C.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher offload top
  telpher offload top 4711 4712 --every 0.2 --count 50
  telpher offload top --once --format json")]
pub(crate) struct OffloadTop {
    /// Show only these processes.
    #[arg(value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    #[command(flatten)]
    pub(crate) updates: Updates,
}

/// Statistics at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum StatsArg {
    /// One line for each process.
    Summary,
    /// DTO's table of calls by size, for each process.
    Dto,
}

/// Reads a list of functions.
fn parse_functions(text: &str) -> Result<Functions, ValueError> {
    let mut functions = Functions::NONE;
    for name in text.split(',') {
        let is_known = match name {
            "copy" => functions.select("memcpy") && functions.select("memmove"),
            "fill" => functions.select("memset"),
            "compare" => functions.select("memcmp"),
            _ => functions.select(name),
        };
        if !is_known {
            let known = "copy (memcpy and memmove), memcpy, memmove, memset (or fill), memcmp (or compare)";
            return Err(ValueError(format!("'{name}' is not a function; use {known}")));
        }
    }
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_the_names_of_c_and_of_operations() {
        let of = |text: &str| {
            parse_functions(text).map(|Functions { memcpy, memmove, memset, memcmp }| [memcpy, memmove, memset, memcmp])
        };
        assert_eq!(of("copy"), Ok([true, true, false, false]));
        assert_eq!(of("memcpy,memset"), Ok([true, false, true, false]));
        assert_eq!((of("fill"), of("compare")), (of("memset"), of("memcmp")));
        assert_eq!(of("memmove,memcmp"), Ok([false, true, false, true]));
        assert!(of("strcpy").is_err() && of("").is_err() && of("copy,").is_err());
    }
}
