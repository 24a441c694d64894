//! What `telpher record predict` says of a program, against the same program with simulated device times.

use super::program::LONG;
use super::runs::{Offloaded, Predicted, deviation, offload_as_predicted, offloaded, predict, record_into};
use crate::BenchError;
use crate::folder::Folder;
use crate::goal::{Goal, Row};
use crate::measured_program::MeasuredProgram;
use crate::questions::Experiment;
use std::ffi::OsString;
use std::time::Duration;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "prediction",
    question: "How far is telpher record predict from the same program with the times of the simulated device?",
    cores: 1,
    weight: 1.0,
    measure,
};

/// Most deviation of the time, in per cent. Source: promise of `telpher record predict`.
const TIME: f64 = 10.0;
/// Most deviation of a replay without devices from the recording, in per cent. Source: likewise.
const REPLAY: f64 = 3.0;
/// Recordings and runs. Of those with calls by the device, the one counts that predicts the fewest missing pages: the
/// program has all of its pages, but on a busy machine some disturbed copies look like copies to missing pages.
const ROUNDS: usize = 5;
/// Rounds of the program's copies. Source: chosen; they take a tenth of a second, and all calls fit in the trace.
const COPIES: u128 = 1000;

fn measure(_: &Machine, _: Duration) -> Result<Vec<Row>, BenchError> {
    let pairs = (0..ROUNDS).map(|_| record_and_run()).collect::<Result<Vec<_>, _>>()?;
    let (predicted, done) = pairs
        .iter()
        .min_by(|a, b| disturbance(&a.0).total_cmp(&disturbance(&b.0)))
        .expect("there is more than one round");
    Ok(rows(predicted, done))
}

/// The share of calls whose pages are predicted to be missing; more than any share if no call goes to the device.
fn disturbance(predicted: &Predicted) -> f64 {
    if predicted.calls > 0.0 { predicted.faults } else { f64::INFINITY }
}

/// Records the program, predicts, and runs it as predicted.
fn record_and_run() -> Result<(Predicted, Offloaded), BenchError> {
    let folder = Folder::new()?;
    let run = |what: &str, under: &[OsString]| {
        let mut program = MeasuredProgram::start(what, "offload", under)?;
        program.ask("mixed", COPIES)?;
        program.end()
    };
    run("the program under telpher record", &record_into(&folder))?;
    let predicted = predict(&folder)?;
    run("the program with simulated device times", &offload_as_predicted(&folder))?;
    Ok((predicted, offloaded(&folder.file("offload.json"))?))
}

fn rows(predicted: &Predicted, done: &Offloaded) -> Vec<Row> {
    let exact = Some(Goal::AtMost(0.0));
    // Without calls by the device there is nothing to compare.
    let difference = |a: f64, b: f64| if a > 0.0 { (a - b).abs() } else { f64::NAN };
    let both = |a: f64, b: f64| match a > 0.0 {
        true => format!("one thread, {} KiB copies, fixed verdicts; {a} predicted, {b} in the run", LONG >> 10),
        false => "on this machine the prediction leaves all copies to the CPU".into(),
    };
    vec![
        Row::new(
            "calls by the device: predicted, against the run's",
            difference(predicted.calls, done.calls),
            "calls",
            exact,
            both(predicted.calls, done.calls),
        ),
        Row::new(
            "bytes by the device: predicted, against the run's",
            difference(predicted.bytes, done.bytes),
            "bytes",
            exact,
            both(predicted.bytes, done.bytes),
        ),
        Row::new(
            "simulated time of these calls: predicted, against the run's",
            deviation(predicted.ns, done.ns),
            "%",
            Some(Goal::AtMost(TIME)),
            format!(
                "{} predicted, with missing pages in {:.2} % of calls, the least of {ROUNDS} recordings; {} in the run",
                units::time(predicted.ns),
                100.0 * predicted.faults,
                units::time(done.ns)
            ),
        ),
        Row::new(
            "replay without devices, against the recorded time of the calls",
            100.0 * predicted.replay_error.abs(),
            "%",
            Some(Goal::AtMost(REPLAY)),
            format!("the sections between the calls deviate by {:.2} %", 100.0 * predicted.section_error.abs()),
        ),
        Row::new(
            "calls that took the CPU longer than the simulated device",
            done.late,
            "calls",
            None,
            "more than 0: elapsed times of the run are not those with such a device; simulated times are",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_must_be_exact_and_times_may_deviate_by_a_tenth() {
        let predicted =
            Predicted { calls: 10.0, bytes: 640.0, ns: 1090.0, faults: 0.0, replay_error: -0.02, section_error: 0.01 };
        let done = Offloaded { calls: 10.0, bytes: 640.0, ns: 1000.0, late: 3.0 };
        assert!(rows(&predicted, &done).iter().all(Row::reached));
        let other = Offloaded { calls: 9.0, bytes: 641.0, ns: 980.0, late: 0.0 };
        let reached: Vec<bool> = rows(&predicted, &other).iter().map(Row::reached).collect();
        assert_eq!(reached, [false, false, false, true, true]);
    }
}
