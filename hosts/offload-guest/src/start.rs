//! The start, before the program's `main`, and the end.
#![allow(
    unsafe_code,
    reason = "places functions in the sections the dynamic linker calls, and reads the environment before main"
)]

use crate::children;
use crate::device::{self, Device};
use crate::gates::{COMPARE, COPY, FILL, Gate, MOVE, MOVE_TO_END, NEVER};
use crate::refusal::{self, Refusal};
use std::ffi::CStr;
use telpher_interpose::preload::{Original, variable};
use telpher_offload_wire::statistics::Operation;
use telpher_offload_wire::{Settings, VARIABLE};

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
        crate::exec::follow(value);
    }
    match refusal::of_this_process() {
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
        (&COPY, Operation::Copy),
        (&MOVE_TO_END, Operation::Copy),
        (&MOVE, Operation::Move),
        (&FILL, Operation::Set),
        (&COMPARE, Operation::Compare),
    ];
    for (gate, operation) in gates {
        gate.set_threshold(if device.statistics().is_some() { 0 } else { device.threshold(operation) });
    }
}

/// Tells the user that the calls of this process stay with the CPU, and why.
fn say(why: &str) {
    eprintln!("telpher: process {} runs without offload: {why}", std::process::id());
}

/// Called when the program ends: calls of later destructors stay with the CPU.
extern "C" fn end() {
    GATES.iter().for_each(|(gate, _)| gate.set_threshold(NEVER));
    if let Some(device) = device::get().filter(|device| device.is_of_this_process())
        && let Some(statistics) = device.statistics()
    {
        statistics.end();
    }
}
