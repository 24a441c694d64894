//! Puts every case to a subject.

use crate::arena::Arena;
use crate::case::{Case, Section, Trouble, Verdict};
use crate::cases;
use crate::report::{Failure, Report};
use crate::specimen;
use crate::stand::Stand;
use crate::subject::Subject;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Which cases to run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    words: Vec<String>,
    not: Vec<String>,
    stop: bool,
}

impl Filter {
    /// Every case.
    #[must_use]
    pub fn all() -> Self {
        Filter::default()
    }

    /// Only cases whose section and name, joined, contain this text; several texts must all be contained.
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.words.push(text.to_owned());
        self
    }

    /// The same without the case of this name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.not.push(name.to_owned());
        self
    }

    /// The same, ending at the first failure.
    #[must_use]
    pub fn until_first_failure(mut self) -> Self {
        self.stop = true;
        self
    }

    fn admits(&self, case: &Case) -> bool {
        let wanted = self.words.iter().all(|w| case.name.contains(w) || case.section.0.contains(w));
        wanted && !self.not.contains(&case.name)
    }
}

/// The cases for one kind of subject, and the memory they live in.
///
/// Making them takes longer than putting them; who judges many subjects of the same capabilities keeps the suite.
pub struct Suite {
    arena: Arena,
    cases: Vec<Case>,
}

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Suite({} cases)", self.cases.len())
    }
}

impl Suite {
    /// The cases for subjects with the capabilities of this one.
    #[must_use]
    pub fn of(subject: &dyn Subject) -> Self {
        let arena = Arena::new();
        specimen::lay_out(&arena);
        let cases = cases::all(subject, &arena);
        Suite { arena, cases }
    }

    /// The cases' sections and names.
    pub fn names(&self) -> impl Iterator<Item = (Section, &str)> {
        self.cases.iter().map(|case| (case.section, case.name.as_str()))
    }

    /// Puts every case that `filter` admits to `subject`.
    ///
    /// A subject that panics fails the case; a subject that hangs hangs the run.
    #[must_use]
    pub fn run(&self, subject: &dyn Subject, filter: &Filter) -> Report {
        let mut report = Report { subject: subject.name(), ..Report::default() };
        // The device of the last case serves the next one with the same wish.
        let mut stand: Option<Stand> = None;
        for case in self.cases.iter().filter(|case| filter.admits(case)) {
            let kept = stand.take().filter(|s| !case.fresh && s.wish == case.wish);
            let verdict = match kept.map_or_else(|| Stand::new(subject, &self.arena, &case.wish), Ok) {
                Ok(ready) => {
                    let verdict = judge(case, &ready);
                    if verdict.is_ok() && !case.fresh {
                        stand = Some(ready);
                    } else {
                        // Whatever it left behind ends with its device.
                        ready.release();
                        ready.device.settle();
                    }
                    verdict
                }
                Err(trouble) => Err(trouble),
            };
            self.arena.restore();
            enter(&mut report, case, verdict);
            if filter.stop && !report.failed.is_empty() {
                break;
            }
        }
        report
    }
}

/// Makes the cases for a subject and puts them.
#[must_use]
pub fn run(subject: &dyn Subject, filter: &Filter) -> Report {
    Suite::of(subject).run(subject, filter)
}

fn judge(case: &Case, stand: &Stand) -> Verdict {
    // What earlier cases on this device left there.
    stand.clear_sw_error();
    catch_unwind(AssertUnwindSafe(|| (case.body)(stand))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Trouble::Fail { expected: "no panic".into(), got: text.unwrap_or("a panic without text").to_owned() })
    })
}

fn enter(report: &mut Report, case: &Case, verdict: Verdict) {
    let tally = report.sections.entry(case.section).or_default();
    match verdict {
        Ok(()) => tally.passed += 1,
        Err(Trouble::Skip(reason)) => {
            tally.skipped += 1;
            report.skipped.push((case.name.clone(), reason));
        }
        Err(Trouble::Fail { expected, got }) => {
            tally.failed += 1;
            report.failed.push(Failure { case: case.name.clone(), section: case.section, expected, got });
        }
    }
}
