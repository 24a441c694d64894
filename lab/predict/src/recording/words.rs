//! What a prediction assumes, what it scales, and what a recording lacks, as sentences.

use super::options::PredictOptions;
use super::sample::{LARGEST, SWEEP_DESCRIPTORS, Sample};
use super::study::{long_calls, long_from};
use telpher_os::size;
use telpher_recording::{Access, Calibration, Operation, Recording, Temperature};
use telpher_report::units::time;

/// What was scaled, and how.
pub(super) fn scaled(recording: &Recording, options: &PredictOptions) -> Vec<String> {
    let profile = &options.machine.name;
    if options.is_recorded_machine {
        return vec![format!("Nothing: {profile} describes the recorded machine.")];
    }
    let Calibration { copy, fill, compare, .. } = &recording.calibration;
    if copy.is_empty() && fill.is_empty() && compare.is_empty() {
        return vec![format!(
            "Nothing: the recording has no calibration. Calls take the CPU of {profile} as long as recorded."
        )];
    }
    let mut out = vec![format!(
        "The CPU's time of each long call is multiplied by the time of {profile} for its size and temperature, and \
         divided by that of the calibration curve. Both are for a single call: hot in the nearest cache with room, \
         cold in memory without history, fresh with a page fault for each 4 KiB."
    )];
    let curves =
        [(Access::Copy, copy, "copies"), (Access::Fill, fill, "fills"), (Access::Compare, compare, "comparisons")];
    for (access, _, what) in curves.into_iter().filter(|(_, curve, _)| curve.is_empty()) {
        if recording.sizes.iter().any(|row| row.operation.access() == access && row.to >= long_from(recording)) {
            out.push(format!("The time of {what} is not scaled: there is no calibration curve for them."));
        }
    }
    out.push("Shorter calls in the threshold sweep are scaled in the same way, by the mean time of their size.".into());
    out.push("All other work of the program is not scaled: it takes as long as recorded.".into());
    out
}

/// What the prediction assumes.
pub(super) fn assumptions(recording: &Recording, options: &PredictOptions) -> Vec<String> {
    let long_from = size(long_from(recording));
    let mut out = vec![
        "Work between two long calls takes as long as recorded, also where it waits for input, locks or other threads."
            .into(),
        "The program's time is that of all threads with long calls, each from the start of its process to the last \
         long call there."
            .into(),
        "Each thread has a core of its own; it polls while a device works, so offloading frees no core.".into(),
        "Threads use the shared queues of all devices in turn, one of 128 entries and four engines for each device. A \
         full queue is tried once more; then the CPU executes the call."
            .into(),
        "Devices and memory are near the threads; the program's pages have 4 KiB.".into(),
        "The time to fetch copied data into a cache again is not counted, nor what the caches gain because copies do \
         not pass through them. The recording cannot show when data is read next."
            .into(),
        format!("Devices write their results to {}.", if options.to_cache { "the cache" } else { "memory" }),
        "A device copies the first part of a fresh call, until it meets a missing page. Then the CPU maps the missing \
         pages, and the device does the rest; the CPU does a rest that is short."
            .into(),
        "Overlapping copies are executed piece by piece, at the speed of other copies: what an overlap costs a device \
         is not published."
            .into(),
        format!("A policy applies to calls of {long_from} or more; shorter calls of a call site stay on the CPU."),
        "A call site of which more than a tenth of the calls are fresh stays on the CPU.".into(),
        "Learning a policy takes no time.".into(),
    ];
    out.push(if options.comparisons {
        "Comparisons are offloaded like copies.".into()
    } else {
        "Comparisons (memcmp) stay on the CPU.".into()
    });
    out.push("Functions that copy strings stay on the CPU: their length is not known beforehand.".into());
    out
}

fn is_fresh(temperature: Option<Temperature>) -> bool {
    temperature == Some(Temperature::Fresh)
}

/// What the recording lacks, and what was cut.
pub(super) fn remarks(recording: &Recording, full: &Sample, part: &Sample) -> Vec<String> {
    let mut out = Vec::new();
    let long_calls = long_calls(recording);
    let lacks = &recording.not_recorded;
    if long_calls == 0 {
        out.push("The recording has no long calls, so there is nothing to replay.".to_owned());
    } else if full.calls.is_empty() {
        out.push(
            "The recording has no trace, so there is nothing to replay. Record again with room for one.".to_owned(),
        );
    } else if (full.calls.len() as u64) < long_calls {
        out.push(format!(
            "The replay has {} of {long_calls} long calls, in whole blocks of consecutive calls; sums are scaled to \
             all of them.",
            full.calls.len()
        ));
    }
    if part.is_cut {
        out.push(format!(
            "The threshold sweep, the policy and the cold shares were simulated with {} calls, to limit the work to {} \
             descriptors each.",
            part.calls.len(),
            SWEEP_DESCRIPTORS
        ));
    }
    if full.calls.iter().any(|call| call.bytes > LARGEST) {
        out.push(format!("Calls of more than {} stay on the CPU.", size(LARGEST)));
    }
    let interrupted: Vec<f64> = full.calls.iter().map(|call| call.interrupted_ns).filter(|ns| *ns > 0.0).collect();
    if !interrupted.is_empty() {
        out.push(format!(
            "{} replayed calls took more than four times as long as the slowest data: they were interrupted, and count \
             like most calls of their site. The time beyond, {} of {}, remains with any policy; times and gains of \
             calls leave it out.",
            interrupted.len(),
            time(interrupted.iter().sum()),
            time(full.recorded_ns())
        ));
    }
    // Interrupted calls may count otherwise than they were judged.
    if recording.events.iter().filter(|event| is_fresh(event.temperature)).count() > interrupted.len()
        && !full.calls.iter().any(|call| is_fresh(call.temperature))
    {
        out.push(
            "The calibration has fresh data that is not slower than cold data, so fresh calls count as cold. Record \
             again."
                .to_owned(),
        );
    }
    if recording.calibration.copy.is_empty() && long_calls > 0 {
        out.push("The recording has no calibration: hot, cold and fresh data cannot be told apart.".to_owned());
    }
    let cpus = recording.machine.logical_cpus;
    let threads = recording.threads.iter().filter(|thread| thread.long_calls > 0).count();
    if cpus > 0 && threads > cpus as usize {
        out.push(format!(
            "{threads} threads with long calls shared {cpus} CPUs, so recorded times contain waiting for a CPU."
        ));
    }
    if recording.threads.iter().any(|thread| thread.is_shared) {
        out.push("Several threads share a table of the recording; they are replayed as one thread.".to_owned());
    }
    if recording.processes.len() > 1 && full.section_count() > 1 {
        out.push("Processes are replayed one after the other, so they do not wait for each other's copies.".to_owned());
    }
    for (count, what) in [
        (lacks.calls_lost, "calls were not recorded"),
        (lacks.entries_damaged, "entries of the recording make no sense and were skipped"),
        (lacks.events_torn, "entries of the trace were not complete and were skipped"),
    ] {
        if count > 0 {
            out.push(format!("{count} {what}."));
        }
    }
    let strings: u64 = recording
        .sizes
        .iter()
        .filter(|row| row.operation == Operation::StringCopy)
        .map(|row| row.bytes)
        .fold(0, u64::saturating_add);
    if strings > 0 {
        out.push(format!("String functions copied {}; these bytes cannot be offloaded.", size(strings)));
    }
    out
}
