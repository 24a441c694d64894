//! The start, before the program's `main`, and the end.
//!
//! `telpher offload` passes the settings in a variable. A copy that was [installed](`is_installed`) works without it,
//! in a program that is linked with it or preloads it.
#![allow(
    unsafe_code,
    reason = "places functions in the sections the dynamic linker calls, and reads the environment before main"
)]

use crate::calls;
use crate::children;
use crate::device::{self, Device};
use crate::gates::{COMPARE, COPY, FILL, Gate, MOVE, MOVE_TO_END};
use crate::record;
use crate::refusal::{self, LoadPosition, Refusal};
use std::ffi::{CStr, c_void};
use std::io::Write as _;
use telpher_interpose::preload::{Original, variable};
use telpher_offload_wire::statistics::Operation;
use telpher_offload_wire::{DtoVariables, RECORD_VARIABLE, Settings, VARIABLE, read_dto_variables};

telpher_interpose::start_and_end!(begin, end);

/// The gates, and the C library's function behind each.
static GATES: [(&Gate, &CStr); 5] =
    [(&COPY, c"memmove"), (&MOVE, c"memmove"), (&MOVE_TO_END, c"mempcpy"), (&FILL, c"memset"), (&COMPARE, c"memcmp")];

extern "C" fn begin() {
    for (gate, name) in GATES {
        if let Some(found) = Original::new(name).find() {
            gate.set_original(found);
        }
    }
    record::strings::find_originals();
    if refusal::has_foreign_rights() {
        return say("it has rights that its user does not have");
    }
    match refusal::place() {
        LoadPosition::First => {}
        LoadPosition::BehindCopy => return telpher_interpose::pass_on_signals(),
        LoadPosition::BehindCLibrary => {
            return say("this library comes behind the C library; preload it, or link it before (not by dlopen)");
        }
    }
    // SAFETY: before main, when no code changes the environment.
    if let Some(value) = unsafe { variable(RECORD_VARIABLE) } {
        if let Err(why) = record::begin(value) {
            print(format_args!("process {} is not recorded: {why}", std::process::id()));
        }
        return;
    }
    // SAFETY: before main, when no code changes the environment.
    let settings = match unsafe { variable(VARIABLE) } {
        Some(value) => {
            let Ok(value) = std::str::from_utf8(value) else { return };
            let settings = match Settings::from_value(value) {
                Ok(settings) => settings,
                Err(error) => return say(&error.to_string()),
            };
            if settings.follow {
                crate::exec::follow(VARIABLE, value, "its copies stay with the CPU");
            }
            settings
        }
        None if is_installed() => default_settings(),
        // A program that another one has executed with another environment is not part of the run.
        None => return,
    };
    match refusal::of_this_process(&settings.deny) {
        None => {}
        Some(Refusal::Helper) => return,
        Some(Refusal::Told(why)) => return say(&why),
    }
    match Device::open(settings) {
        Ok(Some(device)) => {
            let device = device::publish(device);
            if children::watch_forks().is_err() {
                let pid = std::process::id();
                print(format_args!("children of process {pid} run without offload: no memory for fork handlers"));
            }
            open_gates(device);
        }
        // The CPU executes everything.
        Ok(None) => {}
        Err(why) => say(&why),
    }
}

/// Returns whether this library's file was installed by the user; `telpher offload` puts a hash into the name.
fn is_installed() -> bool {
    let name = refusal::own_path().and_then(|path| path.file_name()?.to_str());
    name.is_some_and(|name| !name.starts_with("telpher-offload-"))
}

/// Returns the settings of a program that was not started by `telpher offload`: all hardware queues, and the variables
/// of DTO.
fn default_settings() -> Settings {
    // Programs that it executes are linked with this library or not.
    let mut settings = Settings { follow: false, ..Settings::new("all") };
    let environment = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let DtoVariables { mut remarks, log_file } = read_dto_variables(environment, &mut settings);
    if settings.statistics {
        settings.statistics = false;
        remarks.push("DTO_COLLECT_STATS has no effect here: `telpher offload --stats dto` prints the table".into());
    }
    if log_file.is_some() {
        remarks.push("DTO_LOG_FILE has no effect here".into());
    }
    if !remarks.is_empty() {
        print(format_args!("process {}: variables of DTO: {}", std::process::id(), remarks.join("; ")));
    }
    settings
}

/// Lets long calls reach the device, and all calls the statistics if the user asks for them.
fn open_gates(device: &Device) {
    let gates = [
        (&COPY, Operation::Copy, calls::copy_long as *mut c_void),
        (&MOVE_TO_END, Operation::Copy, calls::copy_to_end_long as *mut c_void),
        (&MOVE, Operation::Move, calls::move_long as *mut c_void),
        (&FILL, Operation::Set, calls::fill_long as *mut c_void),
        (&COMPARE, Operation::Compare, calls::compare_long as *mut c_void),
    ];
    for (gate, operation, long) in gates {
        gate.divert_long(if device.statistics().is_some() { 0 } else { device.threshold(operation) }, long);
    }
    for gate in [&COPY, &MOVE_TO_END, &MOVE] {
        gate.copy_small();
    }
}

/// Tells the user that the calls of this process stay with the CPU, and why.
fn say(why: &str) {
    print(format_args!("process {} runs without offload: {why}", std::process::id()));
}

/// Prints a line to standard error. If that cannot be written, the program runs on: a panic here would end it.
fn print(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "telpher: {line}");
}

/// Called when the program ends: the C library executes the calls of later destructors.
extern "C" fn end() {
    record::end();
    GATES.iter().for_each(|(gate, _)| gate.close());
    if let Some(device) = device::get().filter(|device| device.is_of_this_process())
        && let Some(statistics) = device.statistics()
    {
        statistics.end();
    }
}
