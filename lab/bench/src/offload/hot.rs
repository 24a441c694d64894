//! A program whose copies are all of cached data: the library learns that they belong to the CPU.

use super::runs::OFFLOAD;
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::interleaved::ratio;
use crate::measure::median;
use crate::measured_program::MeasuredProgram;
use crate::questions::Experiment;
use std::time::Duration;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "hot",
    question: "How much slower is a program whose long copies are all of cached data?",
    cores: 1,
    weight: 1.5,
    measure,
};

/// Most time of the program under `telpher offload`, by that of the program by itself. Source: promise of
/// `telpher offload`.
const SLOWDOWN: f64 = 1.01;
/// Rounds in which both have their turn; medians are over rounds.
const ROUNDS: u32 = 31;
/// Time for the first calls, in which the call site is learned.
const LEARNING: Duration = Duration::from_millis(20);

/// The tasks, what they are, and the goal.
const TASKS: [(&str, &str, Option<Goal>); 2] = [
    ("read-and-copy", "64 KiB read, then copied within the cache", Some(Goal::AtMost(SLOWDOWN))),
    ("hot", "nothing but 64 KiB copies within the cache", None),
];

fn measure(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut programs = [
        MeasuredProgram::start::<&str>("the program by itself", "offload", &[])?,
        MeasuredProgram::start("the program under telpher offload", "offload", &OFFLOAD)?,
    ];
    let slice = time / (ROUNDS * 4);
    let mut rows = Vec::new();
    for (task, what, goal) in TASKS {
        for program in &mut programs {
            program.turn(task, LEARNING)?;
        }
        let mut seen = [const { Vec::new() }; 2];
        for round in 0..ROUNDS as usize {
            // The order alternates.
            for at in [round % 2, (round + 1) % 2] {
                seen[at].push(programs[at].turn(task, slice)?);
            }
        }
        let [plain, offloaded] = &seen;
        let ns = |seen: &[f64]| units::time(median(&mut seen.to_vec()));
        rows.push(Row::new(
            format!("{what}, learning on: time by that without telpher"),
            ratio(offloaded, plain),
            "of the time",
            goal,
            format!("{}, and {} by the program alone", ns(offloaded), ns(plain)),
        ));
    }
    programs.into_iter().try_for_each(MeasuredProgram::end)?;
    Ok(rows)
}
