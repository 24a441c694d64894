//! Cache hits on several threads at the same time.

use super::interleaved::{InterleavedLoad, Rate, rates_by_both, ratio};
use super::sample_set::{Reader, SampleSet};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Experiment;
use std::time::Duration;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "threads",
    question: "How many more hits do two threads get than one?",
    cores: 2,
    weight: 1.5,
    measure,
};

/// Minimum throughput of two threads on different entries, divided by that of one thread. Source: goal of the cache.
const APART: f64 = 1.8;
/// Entries of each thread.
const BLOCKS: usize = 512;

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let (shelf, other) = (SampleSet::full(&EXPERIMENT, 2 * BLOCKS)?, SampleSet::full(&EXPERIMENT, BLOCKS)?);
    let side = |states| InterleavedLoad { states, step: &Reader::access };
    let half = |number| Reader::new(&shelf, number * BLOCKS, BLOCKS);
    let one = || Reader::new(&shelf, 0, 1);
    let mut sides = [
        side(vec![half(0)]),
        side(vec![half(0), half(1)]),
        // Two threads with a cache each: the machine's own limit.
        side(vec![half(0), Reader::new(&other, 0, BLOCKS)]),
        side(vec![one()]),
        side(vec![one(), one()]),
    ];
    let seen = rates_by_both(machine, time, &mut sides)?;
    let [wall, cpu] = [(|rate: &Rate| rate.wall) as fn(&Rate) -> f64, |rate| rate.cpu]
        .map(|clock| -> Vec<Vec<f64>> { seen.iter().map(|turns| turns.iter().map(clock).collect()).collect() });
    let speed = |of: usize| units::frequency(median(&mut wall[of].clone()));
    let row = |what: &'static str, of: usize, by: usize, goal| {
        let how = format!(
            "{} against {}, in turns on cores of their own; {:.2} times by what they had of a CPU, whatever else ran",
            speed(of),
            speed(by),
            ratio(&cpu[of], &cpu[by])
        );
        Row::new(what, ratio(&wall[of], &wall[by]), "times one thread", goal, how)
    };
    Ok(vec![
        row("two threads on different entries of one cache", 1, 0, Some(Goal::AtLeast(APART))),
        row("two threads with a cache each: what the machine gives", 2, 0, None),
        row("two threads on the same entry", 4, 3, None),
    ])
}
