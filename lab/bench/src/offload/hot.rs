//! A program whose copies are all of cached data: the library learns that they belong to the CPU.

use super::program::WORDS;
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

/// Most time of the program under `telpher offload`, by that of the program by itself. Source: goal of
/// `telpher offload`.
const SLOWDOWN: f64 = 1.01;
/// Rounds in which both have their turn; medians are over rounds.
const ROUNDS: u32 = 31;
/// Time for the first calls, in which the call site is learned.
const LEARNING: Duration = Duration::from_millis(20);

/// The share of copies in the time of the program that has a goal. Source: chosen; a program that copies often.
const SHARE: f64 = 0.2;
/// The task that does nothing but copies.
const HOT: &str = "hot";

/// Nanoseconds per operation in each round: by the program alone, and under `telpher offload`.
type Seen = [Vec<f64>; 2];

fn measure(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut programs = [
        MeasuredProgram::start::<&str>("the program by itself", "offload", &[])?,
        MeasuredProgram::start("the program under telpher offload", "offload", &OFFLOAD)?,
    ];
    let slice = time / (ROUNDS * 4);
    let mut alone = |task: &str| programs[0].turn(task, LEARNING);
    let words = words_for_share(alone(HOT)?, alone(&format!("read-and-copy-{WORDS}"))?);
    let reading = format!("read-and-copy-{words}");
    let mut of_tasks = [const { [const { Vec::new() }; 2] }; 2];
    for (task, seen) in [reading.as_str(), HOT].into_iter().zip(&mut of_tasks) {
        for program in &mut programs {
            program.turn(task, LEARNING)?;
        }
        for round in 0..ROUNDS as usize {
            // The order alternates.
            for at in [round % 2, (round + 1) % 2] {
                seen[at].push(programs[at].turn(task, slice)?);
            }
        }
    }
    programs.into_iter().try_for_each(MeasuredProgram::end)?;
    Ok(rows_of(&of_tasks).into())
}

/// Returns how many words to read before each copy, so that copies have their share of the time. `copy` is the time of
/// a copy alone, `all` that with all words read before.
fn words_for_share(copy: f64, all: f64) -> usize {
    let wanted = copy * (1.0 - SHARE) / SHARE;
    (1..WORDS).find(|words| (all - copy) * *words as f64 >= wanted * WORDS as f64).unwrap_or(WORDS)
}

/// The rows, from the times of a program that reads and copies, and of one that only copies.
fn rows_of([reading, copying]: &[Seen; 2]) -> [Row; 2] {
    let ns = |seen: &[f64]| median(&mut seen.to_vec());
    // An operation of either program has one copy of the same data.
    let share = 100.0 * ns(&copying[0]) / ns(&reading[0]);
    let row = |what: &str, [plain, offloaded]: &Seen, goal, share: f64| {
        let (with, without) = (units::time(ns(offloaded)), units::time(ns(plain)));
        Row::new(
            format!("{what}, learning on: time by that without telpher"),
            ratio(offloaded, plain),
            "of the time",
            goal,
            format!("{with}, and {without} by the program alone; copies are {share:.0} % of its time"),
        )
    };
    [
        row("a part of 64 KiB read, then all copied within the cache", reading, Some(Goal::AtMost(SLOWDOWN)), share),
        row("nothing but 64 KiB copies within the cache", copying, None, 100.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_time_is_copies() {
        // A copy takes 2, a word 0.01: 800 words take 8.
        assert!(words_for_share(2.0, 2.0 + 0.01 * WORDS as f64).abs_diff(800) <= 1);
        assert_eq!(words_for_share(2.0, 3.0), WORDS);
    }

    #[test]
    fn both_rows_say_which_share_of_the_time_is_copies_and_one_has_a_goal() {
        let of = |plain: f64, offloaded: f64| [vec![plain; 3], vec![offloaded; 3]];
        let [reading, copying] = rows_of(&[of(1000.0, 1020.0), of(200.0, 220.0)]);
        assert_eq!((reading.measured, reading.reached(), copying.goal), (1.02, false, None));
        assert!(reading.how.ends_with("copies are 20 % of its time"), "{}", reading.how);
        assert!(copying.how.ends_with("copies are 100 % of its time") && copying.measured > 1.09, "{}", copying.how);
    }
}
