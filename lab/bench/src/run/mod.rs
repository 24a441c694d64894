//! `telpher bench run`: what it costs a program to run under `telpher run`.
//!
//! ```text
//! run ──► turns ──"nop 20"──► program   rewritten, trapping, strict: each under its own `telpher run`
//!  │                       └► program   alone
//!  ├────► the model in this process
//!  └────► starts of `telpher run -- true`
//! ```

pub mod program;
mod starts;

use super::BenchError;
use super::buffers::fill_known;
use super::goal::{Goal, Row};
use super::measure::{median, window};
use super::progress::Budget;
use crate::ffi::{self, OwnedCopy};
use crate::measured_program::MeasuredProgram;
use program::{COPY, Task};
use serde::Serialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{Config, ModelDevice, ModelOptions, Residency, WqMode};
use telpher_portal::{Offer, Portal, RecordCell, Submission};
use telpher_report::machine::Machine;

/// Everything that `telpher bench run` measured.
#[derive(Clone, Debug, Serialize)]
pub struct RunResult {
    /// `run`.
    pub kind: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// The numbers.
    pub rows: Vec<Row>,
}

/// Rounds in which every competitor has its turn; medians are over rounds.
const ROUNDS: usize = 15;
/// Fraction of the total time for starting programs.
const STARTING: f64 = 0.25;
/// Upper limit in nanoseconds from the call site to the return, without execution. Source: goal of `telpher run`.
const SITE_NS: f64 = 300.0;
/// Minimum factor by which a rewritten site is faster than a trap. Source: goal of `telpher run`.
const AGAINST_TRAP: f64 = 15.0;
/// Minimum speed of 1 MiB copies, divided by that of the model used directly. Source: goal of `telpher run`.
const COPIES: f64 = 0.8;
/// Minimum speed of a program that never touches the device, divided by its speed without `telpher run`. Source:
/// derived from "no measurable slowdown"; turns of the same program differ by two or three per cent.
const UNTOUCHED: f64 = 0.97;
/// Upper limit in milliseconds from start to end of `telpher run -- true`. Source: goal of `telpher run`.
const START_MS: f64 = 100.0;

/// Runs the benchmark.
pub fn run(seconds: f64, machine: Machine) -> Result<RunResult, BenchError> {
    let total = Duration::from_secs_f64(seconds);
    let mut rows = working(total.mul_f64(1.0 - STARTING))?;
    rows.extend(starts::rows(total.mul_f64(STARTING))?);
    let mut remarks = vec![
        "What is measured is the emulation of the submission instructions and the software model, not \
         DSA hardware. Times within a program are CPU time of the submitting thread, in which the device works as well."
            .to_owned(),
    ];
    if machine.virtual_machine {
        remarks
            .push("In a virtual machine a trap costs more than on the bare processor, which favours the ratio.".into());
    }
    Ok(RunResult { kind: "run", machine, remarks, rows })
}

/// The competitors that take turns.
struct Experiment {
    rewritten: MeasuredProgram,
    trapping: MeasuredProgram,
    strict: MeasuredProgram,
    alone: MeasuredProgram,
    lenient_model: Direct,
    strict_model: Direct,
}

/// Nanoseconds per operation, one value per round.
#[derive(Default)]
struct Seen {
    refused: [Vec<f64>; 2],
    nop: [Vec<f64>; 5],
    copy: [Vec<f64>; 4],
    compute: [Vec<f64>; 2],
    files: [Vec<f64>; 2],
}

/// Turns in a round.
const TURNS: usize = 15;

/// The command and the options that all runs share, with the queues that the program looks for.
const QUEUES: [&str; 5] = ["run", "--hardware", "spr-1", "--view", "preload"];

fn working(time: Duration) -> Result<Vec<Row>, BenchError> {
    let under = |what, more: &[&'static str]| MeasuredProgram::start(what, "run", &[&QUEUES, more].concat());
    let mut contest = Experiment {
        rewritten: under("the program with rewritten sites", &["--residency", "lenient"])?,
        trapping: under("the program whose sites trap", &["--residency", "lenient", "--no-rewrite"])?,
        strict: under("the program with strict residency", &[])?,
        alone: MeasuredProgram::start::<&str>("the program by itself", "run", &[])?,
        lenient_model: Direct::start(Residency::Lenient)?,
        strict_model: Direct::start(Residency::Strict)?,
    };
    let mut budget = Budget::new(time, (ROUNDS * TURNS) as f64);
    let mut seen = Seen::default();
    // One round is not measured: it rewrites sites, maps pages and warms caches.
    round(&mut contest, &mut Seen::default(), || Duration::from_millis(1))?;
    for number in 0..ROUNDS {
        round(&mut contest, &mut seen, || budget.step(&format!("round {} of {ROUNDS}", number + 1), 1.0))?;
    }
    budget.finish();
    Ok(rows_of(&mut seen))
}

/// Every competitor's turn at each of its tasks.
fn round(contest: &mut Experiment, seen: &mut Seen, mut time: impl FnMut() -> Duration) -> Result<(), BenchError> {
    seen.refused[0].push(contest.rewritten.turn(Task::Refused.word(), time())?);
    seen.refused[1].push(contest.trapping.turn(Task::Refused.word(), time())?);
    seen.nop[0].push(contest.rewritten.turn(Task::Nop.word(), time())?);
    seen.nop[1].push(contest.lenient_model.nop(time()));
    seen.nop[2].push(contest.trapping.turn(Task::Nop.word(), time())?);
    seen.nop[3].push(contest.strict.turn(Task::Nop.word(), time())?);
    seen.nop[4].push(contest.strict_model.nop(time()));
    seen.copy[0].push(contest.rewritten.turn(Task::Copy.word(), time())?);
    seen.copy[1].push(contest.lenient_model.copy(time())?);
    seen.copy[2].push(contest.strict.turn(Task::Copy.word(), time())?);
    seen.copy[3].push(contest.strict_model.copy(time())?);
    seen.compute[0].push(contest.rewritten.turn(Task::Compute.word(), time())?);
    seen.compute[1].push(contest.alone.turn(Task::Compute.word(), time())?);
    seen.files[0].push(contest.rewritten.turn(Task::Files.word(), time())?);
    seen.files[1].push(contest.alone.turn(Task::Files.word(), time())?);
    Ok(())
}

/// Returns the table's rows.
fn rows_of(seen: &mut Seen) -> Vec<Row> {
    let each = |a: &[f64], b: &[f64], what: fn(f64, f64) -> f64| {
        median(&mut a.iter().zip(b).map(|(a, b)| what(*a, *b)).collect::<Vec<_>>())
    };
    let ratio = |a: &[f64], b: &[f64]| each(a, b, |a, b| a / b);
    let less = |a: &[f64], b: &[f64]| each(a, b, |a, b| a - b);
    let row = |what, measured, unit, goal, how: &str| Row::new(what, measured, unit, goal, how);
    let nop = "No-op, until its record is seen";
    vec![
        row(
            "call site to return, rewritten",
            median(&mut seen.refused[0].clone()),
            "ns",
            Some(Goal::AtMost(SITE_NS)),
            "ENQCMD of a No-op to a disabled queue: answered Retry, nothing is executed",
        ),
        row(
            "call site to return, trapping",
            median(&mut seen.refused[1].clone()),
            "ns",
            None,
            "the same with --no-rewrite",
        ),
        row(
            "rewritten against trapping",
            ratio(&seen.refused[1], &seen.refused[0]),
            "times faster",
            Some(Goal::AtLeast(AGAINST_TRAP)),
            "median over the turns",
        ),
        row("No-op executed, rewritten", median(&mut seen.nop[0].clone()), "ns", None, nop),
        row("No-op executed, the model directly", median(&mut seen.nop[1].clone()), "ns", None, nop),
        row(
            "No-op, what running under telpher adds",
            less(&seen.nop[0], &seen.nop[1]),
            "ns",
            Some(Goal::AtMost(SITE_NS)),
            "difference of the two, median over the turns: a call site of a descriptor that is taken",
        ),
        row("No-op executed, trapping", median(&mut seen.nop[2].clone()), "ns", None, "the same with --no-rewrite"),
        row(
            "No-op, what strict residency adds",
            less(&seen.nop[3], &seen.nop[0]),
            "ns",
            None,
            "strict by lenient, rewritten: a look at the page tables for the record's page",
        ),
        row(
            "1 MiB copies against the model, lenient",
            ratio(&seen.copy[1], &seen.copy[0]),
            "of its speed",
            Some(Goal::AtLeast(COPIES)),
            &rate(&seen.copy[0]),
        ),
        row(
            "1 MiB copies against the model, strict",
            ratio(&seen.copy[3], &seen.copy[2]),
            "of its speed",
            Some(Goal::AtLeast(COPIES)),
            &rate(&seen.copy[2]),
        ),
        row(
            "1 MiB copies, strict against lenient",
            ratio(&seen.copy[0], &seen.copy[2]),
            "of its speed",
            None,
            "a look at the page tables for 512 pages a copy",
        ),
        row(
            "never touches the device: calculation",
            ratio(&seen.compute[1], &seen.compute[0]),
            "of its speed",
            Some(Goal::AtLeast(UNTOUCHED)),
            "numbers, strings, allocation, sorting; with and without telpher run in turns",
        ),
        row(
            "never touches the device: files",
            ratio(&seen.files[1], &seen.files[0]),
            "of its speed",
            Some(Goal::AtLeast(UNTOUCHED)),
            "stat, open, read, close, readdir; with and without telpher run in turns",
        ),
    ]
}

/// Returns text such as `9.8 GB/s in the program`.
fn rate(ns: &[f64]) -> String {
    let bytes_per_s = COPY as f64 * 1e9 / median(&mut ns.to_vec());
    format!("one at a time, the same buffers again; {} in the program", telpher_report::units::rate(bytes_per_s))
}

/// The model in this process, called directly.
struct Direct {
    /// Kept alive while its portal is used.
    _device: ModelDevice,
    portal: Arc<dyn Portal>,
    record: &'static RecordCell,
    nop: Submission,
    copy: OwnedCopy,
}

impl Direct {
    fn start(residency: Residency) -> Result<Self, BenchError> {
        let config = Config::single(WqMode::Dedicated, 16, 1);
        let options = ModelOptions::default().with_config(config).with_residency(residency);
        let device =
            ModelDevice::start(options).map_err(|source| BenchError::Start { name: "the model".into(), source })?;
        let portal = device.portal("wq0.0")?;
        let mut bytes = vec![0; COPY];
        fill_known(&mut bytes, 1);
        // Leaked: the executing thread may access it at any time.
        let record: &'static RecordCell = Box::leak(Box::default());
        Ok(Direct { _device: device, portal, record, nop: ffi::nop(record), copy: OwnedCopy::new(bytes) })
    }

    fn once(&self, submission: &Submission, record: &RecordCell) -> u64 {
        record.clear();
        while self.portal.offer(submission) == Offer::Retry {}
        while record.status().is_none() {
            self.portal.drive();
        }
        1
    }

    fn nop(&self, time: Duration) -> f64 {
        let Ok(seen) = window(time, || Ok::<u64, Infallible>(self.once(&self.nop, self.record)));
        seen.cpu_ns_per_op()
    }

    fn copy(&mut self, time: Duration) -> Result<f64, BenchError> {
        let Ok(seen) = window(time, || Ok::<u64, Infallible>(self.once(self.copy.submission(), self.copy.record())));
        if !self.copy.is_exact() {
            return Err(BenchError::Wrong { op: "move".into(), route: "the model directly".into() });
        }
        Ok(seen.cpu_ns_per_op())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A result with equal numbers in every round: all goals are reached but that for files.
    pub(crate) fn sample() -> RunResult {
        let of = |ns: f64| vec![ns; 3];
        let mut seen = Seen {
            refused: [of(100.0), of(7000.0)],
            nop: [of(190.0), of(90.0), of(7200.0), of(230.0), of(120.0)],
            copy: [of(110e3), of(100e3), of(130e3), of(120e3)],
            compute: [of(100.0), of(100.0)],
            files: [of(200.0), of(100.0)],
        };
        let machine = Machine::read();
        RunResult { kind: "run", machine, remarks: vec!["Mind this.".into()], rows: rows_of(&mut seen) }
    }

    #[test]
    fn ratios_are_speedups_and_differences_are_added_times() {
        let rows = sample().rows;
        let of = |what: &str| rows.iter().find(|row| row.what.starts_with(what)).expect("a row").measured;
        assert_eq!(of("rewritten against trapping"), 70.0);
        assert_eq!(of("No-op, what running under telpher adds"), 100.0);
        assert_eq!(of("No-op, what strict residency adds"), 40.0);
        assert!((of("1 MiB copies against the model, lenient") - 10.0 / 11.0).abs() < 1e-9);
        assert!((of("1 MiB copies against the model, strict") - 12.0 / 13.0).abs() < 1e-9);
        assert_eq!(of("never touches the device: files"), 0.5);
    }

    #[test]
    fn only_rows_that_miss_their_goal_are_short() {
        let rows = sample().rows;
        let short: Vec<&str> = rows.iter().filter(|row| !row.reached()).map(|row| &*row.what).collect();
        assert_eq!(short, ["never touches the device: files"]);
    }

    #[test]
    fn the_model_alone_is_measured() {
        for residency in [Residency::Lenient, Residency::Strict] {
            let mut direct = Direct::start(residency).unwrap();
            assert!(direct.nop(Duration::from_millis(2)) > 0.0);
            assert!(direct.copy(Duration::from_millis(2)).unwrap() > direct.nop(Duration::from_millis(2)));
        }
    }
}
