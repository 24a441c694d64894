//! What `telpher record predict` says of a program, against the same program with simulated device times.

use super::program::LONG;
use super::runs::{Offloaded, Predicted, deviation, largest, offload_as_predicted, offloaded, predict, record_into};
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

/// Most deviation of the time, in per cent. Source: goal of `telpher record predict`.
const TIME: f64 = 10.0;
/// Most deviation of the sections' time in a replay without devices, in per cent. Source: likewise.
const REPLAY: f64 = 3.0;
/// Recordings and runs. Counts must be exact in each; of times the median counts, because on a busy machine some
/// disturbed copies look like copies to missing pages, though the program has all of its pages.
const ROUNDS: usize = 5;
/// Rounds of the program's copies. Source: chosen; they take a tenth of a second, and all calls fit in the trace.
const COPIES: u128 = 1000;

fn measure(_: &Machine, _: Duration) -> Result<Vec<Row>, BenchError> {
    let rounds = (0..ROUNDS).map(|_| record_and_run()).collect::<Result<Vec<_>, _>>()?;
    Ok(rows(&rounds))
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

fn rows(rounds: &[(Predicted, Offloaded)]) -> Vec<Row> {
    let exact = Some(Goal::AtMost(0.0));
    // Without calls by the device there is nothing to compare.
    let compared: Vec<_> = rounds.iter().filter(|(predicted, _)| predicted.calls > 0.0).collect();
    let largest_of = |of: fn(&(Predicted, Offloaded)) -> f64| largest(compared.iter().map(|round| of(round)));
    let sorted = |of: fn(&(Predicted, Offloaded)) -> f64| {
        let mut values: Vec<f64> = compared.iter().map(|round| of(round)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |values: &[f64]| values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
    // A row without a number says why.
    let if_used = |how: String| match compared.is_empty() {
        true => "on this machine the prediction leaves all copies to the CPU".into(),
        false => how,
    };
    let used = format!(
        "one thread, {} KiB copies, fixed verdicts; {} of {ROUNDS} predictions use the device",
        LONG >> 10,
        compared.len()
    );
    let times = sorted(|(predicted, done)| deviation(predicted.ns, done.ns));
    let range = |values: &[f64], scale: f64| match values {
        [first, .., last] => format!("{:.2} to {:.2}", scale * first, scale * last),
        _ => "-".into(),
    };
    vec![
        Row::new(
            "calls by the device: predicted, against the run's",
            largest_of(|(predicted, done)| (predicted.calls - done.calls).abs()),
            "calls",
            exact,
            if_used(used.clone()),
        ),
        Row::new(
            "bytes by the device: predicted, against the run's",
            largest_of(|(predicted, done)| (predicted.bytes - done.bytes).abs()),
            "bytes",
            exact,
            if_used(used),
        ),
        Row::new(
            "simulated time of these calls: predicted, against the run's",
            median(&times),
            "%",
            Some(Goal::AtMost(TIME)),
            if_used(format!(
                "median of {}; from {} %; {} in the run; missing pages predicted in {} % of calls",
                times.len(),
                range(&times, 1.0),
                units::time(median(&sorted(|(_, done)| done.ns))),
                range(&sorted(|(predicted, _)| predicted.faults), 100.0)
            )),
        ),
        Row::new(
            "replay with offload off, against the recorded time of its sections",
            largest(rounds.iter().map(|(predicted, _)| 100.0 * predicted.section_error.abs())),
            "%",
            Some(Goal::AtMost(REPLAY)),
            format!(
                "largest of {}; checks the work between calls: calls take their recorded times. Temperatures are \
                 checked by the calibration curves, which deviate {}",
                rounds.len(),
                curve_errors(rounds)
            ),
        ),
        Row::new(
            "calls that took the CPU longer than the simulated device",
            largest_of(|(_, done)| done.late),
            "calls",
            None,
            if_used(
                "more than 0: elapsed times of the run are not those with such a device; simulated times are".into(),
            ),
        ),
    ]
}

/// Returns how far calls' times by the calibration curves are from the recorded ones.
fn curve_errors(rounds: &[(Predicted, Offloaded)]) -> String {
    let errors: Option<Vec<f64>> = rounds.iter().map(|(predicted, _)| predicted.curve_error).collect();
    match errors {
        Some(errors) => format!("up to {:.2} %", 100.0 * largest(errors.iter().map(|error| error.abs()))),
        None => "by an unknown part: a recording has no call with a curve".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREDICTED: Predicted = Predicted {
        calls: 10.0,
        bytes: 640.0,
        ns: 1090.0,
        faults: 0.0,
        section_error: -0.02,
        curve_error: Some(-0.125),
    };
    const DONE: Offloaded = Offloaded { calls: 10.0, bytes: 640.0, ns: 1000.0, late: 3.0 };

    #[test]
    fn counts_must_be_exact_and_times_may_deviate_by_a_tenth() {
        let predicted = PREDICTED;
        let done = DONE;
        let round = |done| (predicted, done);
        assert!(rows(&[round(done); 3]).iter().all(Row::reached));
        let reached = |rounds: &[_]| rows(rounds).iter().map(Row::reached).collect::<Vec<bool>>();
        // One round with another count is one too many; one with another time is not.
        let other = Offloaded { calls: 9.0, bytes: 641.0, ns: 980.0, late: 0.0 };
        assert_eq!(reached(&[round(done), round(other), round(done)]), [false, false, true, true, true]);
        assert_eq!(reached(&[round(other), round(other), round(done)]), [false, false, false, true, true]);
    }

    #[test]
    fn the_replay_of_the_sections_can_miss_its_goal() {
        let replay = |section_error| {
            let wrong = Predicted { section_error, ..PREDICTED };
            rows(&[(PREDICTED, DONE), (wrong, DONE), (PREDICTED, DONE)])[3].clone()
        };
        assert!(replay(0.029).reached() && !replay(-0.031).reached() && !replay(f64::NAN).reached());
        assert!(replay(0.0).how.ends_with("which deviate up to 12.50 %"), "{}", replay(0.0).how);
        let unknown = Predicted { curve_error: None, ..PREDICTED };
        assert!(rows(&[(unknown, DONE)])[3].how.ends_with("no call with a curve"));
    }

    #[test]
    fn rows_without_a_number_say_that_the_copies_are_left_to_the_cpu() {
        let without = Predicted { calls: 0.0, bytes: 0.0, ns: 0.0, ..PREDICTED };
        for row in rows(&[(without, DONE); 2]) {
            assert_eq!(row.measured.is_nan(), row.how.contains("to the CPU"), "{row:?}");
            assert_eq!(row.measured.is_nan(), !row.what.starts_with("replay"), "{row:?}");
        }
        // Without a number, no goal is reached.
        assert!(rows(&[(PREDICTED, Offloaded { calls: f64::NAN, ..DONE })]).iter().any(|row| !row.reached()));
    }
}
