//! Recording, for `telpher record`: every call is counted, those of 2 KiB and more with their site. No call is
//! offloaded.
//!
//! ```text
//! calls     the functions in front of the C library's
//! process   the recording of this process, and the slots of its threads; a forked child begins with none
//! file      creates the file of a recording
//! strings   functions that copy strings, which are counted only
//! ```

mod calls;
mod file;
mod process;
pub(crate) mod strings;

pub(crate) use process::{COUNTERS_OFFSET, SMALL_CALLS_BYTES};

use crate::gates::{COMPARE, COPY, FILL, MOVE, MOVE_TO_END};
use file::Template;
use telpher_offload_wire::{RECORD_VARIABLE, RecordSettings};
use telpher_recording::Start;

/// Begins to record this process, with the value of its variable.
///
/// # Errors
/// Why it is not recorded, as a sentence.
pub(crate) fn begin(value: &[u8]) -> Result<(), String> {
    let value = std::str::from_utf8(value).map_err(|_| format!("{RECORD_VARIABLE} is not text"))?;
    let settings = RecordSettings::from_value(value).map_err(|error| error.to_string())?;
    if settings.follow {
        crate::exec::follow(RECORD_VARIABLE, value, "its calls are not recorded");
    }
    if let Some(why) = crate::refusal::of_checkers() {
        return Err(why);
    }
    process::begin(Template::new(settings)?)?;
    let sites_from = Start::default().sites_from;
    for (gate, [short, long]) in [
        (&COPY, calls::COPY),
        (&MOVE, calls::MOVE),
        (&MOVE_TO_END, calls::MOVE_TO_END),
        (&FILL, calls::FILL),
        (&COMPARE, calls::COMPARE),
    ] {
        gate.divert_long(sites_from, long.address());
        gate.divert_short(short.address());
    }
    for gate in [&COPY, &MOVE, &MOVE_TO_END] {
        gate.count_small();
    }
    strings::begin();
    Ok(())
}

/// Notes the time of the process at its end.
pub(crate) fn end() {
    strings::end();
    if let Some(recorder) = process::recorder() {
        recorder.note_time();
    }
}
