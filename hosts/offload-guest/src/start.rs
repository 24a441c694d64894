//! The start, before the program's `main`, and the end.
#![allow(
    unsafe_code,
    reason = "places functions in the sections the dynamic linker calls, and reads the environment before main"
)]

use crate::calls;
use crate::children;
use crate::device::{self, Device};
use crate::gates::{COMPARE, COPY, FILL, Gate, MOVE, MOVE_TO_END};
use crate::record;
use crate::refusal::{self, Refusal};
use std::ffi::{CStr, c_void};
use telpher_interpose::preload::{Original, variable};
use telpher_offload_wire::statistics::Operation;
use telpher_offload_wire::{RECORD_VARIABLE, Settings, VARIABLE};

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
    // SAFETY: before main, when no code changes the environment.
    if let Some(value) = unsafe { variable(RECORD_VARIABLE) } {
        if let Err(why) = record::begin(value) {
            eprintln!("telpher: process {} is not recorded: {why}", std::process::id());
        }
        return;
    }
    // A program without the variable is not part of the run, for example one that was executed with another
    // environment.
    //
    // SAFETY: before main, when no code changes the environment.
    let value = unsafe { variable(VARIABLE) };
    let Some(value) = value.and_then(|value| std::str::from_utf8(value).ok()) else { return };
    let settings = match Settings::from_value(value) {
        Ok(settings) => settings,
        Err(error) => return say(&error.to_string()),
    };
    if settings.follow {
        crate::exec::follow(VARIABLE, value, "its copies stay with the CPU");
    }
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
                eprintln!("telpher: children of process {pid} run without offload: no memory for fork handlers");
            }
            open_gates(device);
        }
        // The CPU executes everything.
        Ok(None) => {}
        Err(why) => say(&why),
    }
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
}

/// Tells the user that the calls of this process stay with the CPU, and why.
fn say(why: &str) {
    eprintln!("telpher: process {} runs without offload: {why}", std::process::id());
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
