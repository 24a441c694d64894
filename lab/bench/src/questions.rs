//! Experiments, each with a question: `telpher bench mover`, `cache`, `tier`, `offload`, `nvmf`, `telemetry`, `sim`,
//! `vfio` and `dml` consist of them.
//!
//! ```text
//! hold ──► a table of experiments ──only──► Experiment::measure ──► rows ──► report::questions
//! ```
//!
//! An experiment has its own file and one line in its table: a name, a question, the number of cores and a function
//! that measures. Its competitors take turns of some milliseconds, so that a slow moment of the machine affects them
//! all. Its rows are medians over the turns.

use super::BenchError;
use super::buffers::first_difference;
use super::goal::Row;
use super::progress::Budget;
use serde::Serialize;
use std::time::Duration;
use telpher_mover::{JobError, Outcome};
use telpher_report::machine::Machine;

/// An experiment: a question, and how it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name for `--only`.
    pub name: &'static str,
    /// The question, one sentence.
    pub question: &'static str,
    /// The number of cores that it needs.
    pub cores: usize,
    /// Its share of the measuring time; 1 is normal.
    pub weight: f64,
    /// Measures for about the given time.
    pub measure: fn(&Machine, Duration) -> Result<Vec<Row>, BenchError>,
}

impl Experiment {
    /// Checks the result of a copy.
    pub fn done(&self, result: Result<Outcome, JobError>) -> Result<(), BenchError> {
        done(self.name, result)
    }

    /// Checks that the bytes are equal.
    pub fn arrived(&self, src: &[u8], dst: &[u8]) -> Result<(), BenchError> {
        arrived(self.name, src, dst)
    }
}

/// Checks the result of a copy by a route.
pub(crate) fn done(route: &str, result: Result<Outcome, JobError>) -> Result<(), BenchError> {
    // Called for each measured copy: nothing is allocated in the good case.
    if let Ok(Outcome::Done) = result {
        return Ok(());
    }
    let (op, route) = ("move".into(), route.into());
    Err(match result {
        Ok(_) => BenchError::Wrong { op, route },
        Err(source) => BenchError::Job { op, route, source },
    })
}

/// Checks that the bytes of a copy by a route are equal.
pub(crate) fn arrived(route: &str, src: &[u8], dst: &[u8]) -> Result<(), BenchError> {
    let (op, route, size) = ("move".into(), route.into(), src.len() as u64);
    let wrong = |at| Err(BenchError::Mismatch { op, route, size, offset: at as u64 });
    first_difference(dst, src).map_or(Ok(()), wrong)
}

/// The result of one experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The experiment's name.
    pub name: &'static str,
    /// Its question.
    pub question: &'static str,
    /// The numbers.
    pub rows: Vec<Row>,
}

/// The results of such a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Answers {
    /// The benchmark: `mover`, `cache`, `tier`, `offload`, `nvmf`, `telemetry`, `sim`, `vfio`, `dml`.
    pub kind: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// The results, in the order of the experiments.
    pub contests: Vec<Answer>,
}

/// Runs the requested experiments of a table, or all, in about `seconds` seconds.
pub fn hold(
    kind: &'static str,
    table: &[Experiment],
    only: &[String],
    seconds: f64,
    machine: Machine,
    mut remarks: Vec<String>,
) -> Result<Answers, BenchError> {
    let cores = machine.cores.len();
    let (able, unable): (Vec<Experiment>, Vec<Experiment>) =
        chosen(table, only)?.into_iter().partition(|contest| contest.cores <= cores);
    for contest in unable {
        remarks.push(format!(
            "Not measured: {} needs {} cores, and this process has {cores}.",
            contest.name, contest.cores
        ));
    }
    let mut budget = Budget::new(Duration::from_secs_f64(seconds), able.iter().map(|contest| contest.weight).sum());
    let mut contests = Vec::new();
    for Experiment { name, question, weight, measure, .. } in able {
        let rows = measure(&machine, budget.step(name, weight))?;
        contests.push(Answer { name, question, rows });
    }
    budget.finish();
    Ok(Answers { kind, machine, remarks, contests })
}

/// Returns the experiments with these names, in the table's order; all without names.
fn chosen(table: &[Experiment], names: &[String]) -> Result<Vec<Experiment>, BenchError> {
    let known = || table.iter().map(|contest| contest.name);
    if let Some(stranger) = names.iter().find(|name| !known().any(|known| known == *name)) {
        let known = known().collect::<Vec<_>>().join(", ");
        return Err(BenchError::Usage(format!("--only: '{stranger}' is not an experiment; use {known}")));
    }
    let asked = |contest: &&Experiment| names.is_empty() || names.iter().any(|name| name == contest.name);
    Ok(table.iter().filter(asked).copied().collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::goal::Goal;
    use crate::{cache, mover, nvmf, offload, tier};

    const TABLES: [&[Experiment]; 5] =
        [mover::EXPERIMENTS, cache::EXPERIMENTS, tier::EXPERIMENTS, offload::EXPERIMENTS, nvmf::EXPERIMENTS];
    /// Without those that start the telpher binary, which this test is not; a test of the binary runs them.
    const IN_THIS_PROCESS: [&[Experiment]; 4] =
        [mover::EXPERIMENTS, cache::EXPERIMENTS, tier::EXPERIMENTS, nvmf::EXPERIMENTS];

    /// One experiment with a row that is short of its goal and a row without a goal.
    pub(crate) fn sample() -> Answers {
        let rows = vec![
            Row::new("a, by b", 0.5, "of its speed", Some(Goal::AtLeast(0.9)), "in turns"),
            Row::new("c", 40.0, "ns", None, "in turns"),
        ];
        let contests = vec![Answer { name: "sample", question: "What is it?", rows }];
        Answers { kind: "mover", machine: Machine::read(), remarks: vec!["Mind this.".into()], contests }
    }

    #[test]
    fn names_are_unique_and_questions_end_with_a_question_mark() {
        for table in TABLES {
            for (index, contest) in table.iter().enumerate() {
                assert!(table[..index].iter().all(|other| other.name != contest.name), "{}", contest.name);
                assert!(contest.question.ends_with('?'), "{}", contest.question);
                assert!(contest.weight > 0.0 && contest.cores > 0);
            }
        }
    }

    #[test]
    fn requested_experiments_run_in_table_order_and_all_by_default() {
        for table in TABLES {
            assert_eq!(chosen(table, &[]).unwrap().len(), table.len());
            let names: Vec<String> = table.iter().rev().map(|contest| contest.name.to_owned()).collect();
            let order: Vec<&str> = chosen(table, &names).unwrap().iter().map(|contest| contest.name).collect();
            assert_eq!(order, table.iter().map(|contest| contest.name).collect::<Vec<_>>());
            assert_eq!(chosen(table, &names[..1]).unwrap().len(), 1);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_names() {
        for table in TABLES {
            let message = chosen(table, &["shraing".to_owned()]).unwrap_err().to_string();
            assert!(message.starts_with("--only: 'shraing' is not an experiment; use "), "{message}");
            assert!(table.iter().all(|contest| message.contains(contest.name)), "{message}");
        }
    }

    #[test]
    fn every_contest_finds_numbers() {
        let machine = Machine::read();
        for contest in IN_THIS_PROCESS.iter().copied().flatten().filter(|contest| contest.cores <= machine.cores.len())
        {
            let rows = match (contest.measure)(&machine, Duration::from_millis(50)) {
                Err(BenchError::NotHere(reason)) if contest.name == "huge" => {
                    crate::skip::skip("every_contest_finds_numbers", &reason);
                    continue;
                }
                rows => rows.unwrap(),
            };
            assert!(!rows.is_empty(), "{}", contest.name);
            // Few machines show the energy of their packages.
            let mut measured = rows.iter().filter(|row| row.unit != "J/GB");
            assert!(measured.all(|row| row.measured.is_finite()), "{}: {rows:?}", contest.name);
        }
    }
}
