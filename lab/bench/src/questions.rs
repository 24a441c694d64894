//! Questions, each answered by a contest: what `telpher bench mover`, `cache` and `tier` are made of.
//!
//! ```text
//! hold ──► a table of contests ──only──► Contest::measure ──► rows ──► report::questions
//! ```
//!
//! A contest is a file of its own and one line in its table: a name, a question, the cores it needs and how it is measured. Its
//! contestants take turns of some milliseconds, so that a slow moment of the machine meets them all, and its rows carry medians over the
//! turns.

use super::BenchError;
use super::buffers::first_difference;
use super::progress::Budget;
use super::row::Row;
use serde::Serialize;
use std::time::Duration;
use telpher_mover::{JobError, Outcome};
use telpher_report::machine::Machine;

/// One question and how it is answered.
#[derive(Clone, Copy, Debug)]
pub struct Contest {
    /// What `--only` calls it.
    pub name: &'static str,
    /// What it answers, one sentence.
    pub question: &'static str,
    /// Cores without which there is no answer.
    pub cores: usize,
    /// Its part of the measuring time, where 1 is the usual.
    pub weight: f64,
    /// Measures for about so long.
    pub measure: fn(&Machine, Duration) -> Result<Vec<Row>, BenchError>,
}

impl Contest {
    /// What a copy must have come to.
    pub fn done(&self, result: Result<Outcome, JobError>) -> Result<(), BenchError> {
        // Said once for each copy of a measurement: nothing is built for what is as it must be.
        if let Ok(Outcome::Done) = result {
            return Ok(());
        }
        let (op, route) = ("move".into(), self.name.into());
        Err(match result {
            Ok(_) => BenchError::Wrong { op, route },
            Err(source) => BenchError::Job { op, route, source },
        })
    }

    /// That the bytes have arrived.
    pub fn arrived(&self, src: &[u8], dst: &[u8]) -> Result<(), BenchError> {
        let (op, route, size) = ("move".into(), self.name.into(), src.len() as u64);
        let wrong = |at| Err(BenchError::Mismatch { op, route, size, offset: at as u64 });
        first_difference(dst, src).map_or(Ok(()), wrong)
    }
}

/// What came of one contest.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The contest's name.
    pub name: &'static str,
    /// Its question.
    pub question: &'static str,
    /// The numbers.
    pub rows: Vec<Row>,
}

/// Everything such a bench found.
#[derive(Clone, Debug, Serialize)]
pub struct Answers {
    /// Which bench: `mover`, `cache`, `tier`.
    pub kind: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// What a reader must know.
    pub remarks: Vec<String>,
    /// What was found, contest by contest.
    pub contests: Vec<Answer>,
}

/// Holds those contests of a table that are asked for, all if none is, in about so many seconds.
pub fn hold(
    kind: &'static str,
    table: &[Contest],
    only: &[String],
    seconds: f64,
    machine: Machine,
    mut remarks: Vec<String>,
) -> Result<Answers, BenchError> {
    let cores = machine.cores.len();
    let (able, unable): (Vec<Contest>, Vec<Contest>) =
        chosen(table, only)?.into_iter().partition(|contest| contest.cores <= cores);
    for contest in unable {
        remarks.push(format!(
            "Not measured: {} needs {} cores, and this process has {cores}.",
            contest.name, contest.cores
        ));
    }
    let mut budget = Budget::new(Duration::from_secs_f64(seconds), able.iter().map(|contest| contest.weight).sum());
    let mut contests = Vec::new();
    for Contest { name, question, weight, measure, .. } in able {
        let rows = measure(&machine, budget.step(name, weight))?;
        contests.push(Answer { name, question, rows });
    }
    budget.finish();
    Ok(Answers { kind, machine, remarks, contests })
}

/// The contests of these names, in their own order; all without any.
fn chosen(table: &[Contest], names: &[String]) -> Result<Vec<Contest>, BenchError> {
    let known = || table.iter().map(|contest| contest.name);
    if let Some(stranger) = names.iter().find(|name| !known().any(|known| known == *name)) {
        let known = known().collect::<Vec<_>>().join(", ");
        return Err(BenchError::Usage(format!("--only: '{stranger}' is not a contest; there are {known}")));
    }
    let asked = |contest: &&Contest| names.is_empty() || names.iter().any(|name| name == contest.name);
    Ok(table.iter().filter(asked).copied().collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::row::Goal;
    use crate::{cache, mover, tier};

    const TABLES: [&[Contest]; 3] = [mover::CONTESTS, cache::CONTESTS, tier::CONTESTS];

    /// One contest with a row that is short of its goal and one that has none.
    pub(crate) fn sample() -> Answers {
        let rows = vec![
            Row::new("a, by b", 0.5, "of its speed", Some(Goal::AtLeast(0.9)), "in turns"),
            Row::new("c", 40.0, "ns", None, "in turns"),
        ];
        let contests = vec![Answer { name: "sample", question: "What is it?", rows }];
        Answers { kind: "mover", machine: Machine::read(), remarks: vec!["Mind this.".into()], contests }
    }

    #[test]
    fn no_two_contests_have_one_name_and_every_question_is_one() {
        for table in TABLES {
            for (index, contest) in table.iter().enumerate() {
                assert!(table[..index].iter().all(|other| other.name != contest.name), "{}", contest.name);
                assert!(contest.question.ends_with('?'), "{}", contest.question);
                assert!(contest.weight > 0.0 && contest.cores > 0);
            }
        }
    }

    #[test]
    fn those_asked_for_run_in_the_table_s_order_and_all_without_a_name() {
        for table in TABLES {
            assert_eq!(chosen(table, &[]).unwrap().len(), table.len());
            let names: Vec<String> = table.iter().rev().map(|contest| contest.name.to_owned()).collect();
            let order: Vec<&str> = chosen(table, &names).unwrap().iter().map(|contest| contest.name).collect();
            assert_eq!(order, table.iter().map(|contest| contest.name).collect::<Vec<_>>());
            assert_eq!(chosen(table, &names[..1]).unwrap().len(), 1);
        }
    }

    #[test]
    fn an_unknown_contest_is_answered_with_those_there_are() {
        for table in TABLES {
            let said = chosen(table, &["shraing".to_owned()]).unwrap_err().to_string();
            assert!(said.starts_with("--only: 'shraing' is not a contest; there are "), "{said}");
            assert!(table.iter().all(|contest| said.contains(contest.name)), "{said}");
        }
    }

    #[test]
    fn every_contest_finds_numbers() {
        let machine = Machine::read();
        let has_huge_pages = !telpher_os::TransparentHugePages::setting().are_off();
        for contest in TABLES.iter().copied().flatten().filter(|contest| contest.cores <= machine.cores.len()) {
            if contest.name == "huge" && !has_huge_pages {
                crate::skip::skip(
                    "every_contest_finds_numbers",
                    "transparent huge pages are off: no contest of huge pages",
                );
                continue;
            }
            let rows = (contest.measure)(&machine, Duration::from_millis(50)).unwrap();
            assert!(!rows.is_empty(), "{}", contest.name);
            assert!(rows.iter().all(|row| row.measured.is_finite()), "{}: {rows:?}", contest.name);
        }
    }
}
