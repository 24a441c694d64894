//! Runs cases on a subject.

use crate::arena::Arena;
use crate::case::{Case, NotPassed, Section, Verdict};
use crate::cases;
use crate::fixture::Fixture;
use crate::report::{Failure, Report};
use crate::sample;
use crate::subject::Subject;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A selection of cases.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    words: Vec<String>,
    only: Option<String>,
    not: Vec<String>,
    stop: bool,
}

impl Filter {
    /// Every case.
    #[must_use]
    pub fn all() -> Self {
        Filter::default()
    }

    /// Only cases whose section and name, joined, contain this text. With several texts all must be contained.
    #[must_use]
    pub fn containing(mut self, text: &str) -> Self {
        self.words.push(text.to_owned());
        self
    }

    /// Only the case of this name.
    #[must_use]
    pub fn only(name: &str) -> Self {
        Filter { only: Some(name.to_owned()), ..Filter::default() }
    }

    /// The same selection without the case of this name.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.not.push(name.to_owned());
        self
    }

    /// The same selection, ending at the first failure.
    #[must_use]
    pub fn until_first_failure(mut self) -> Self {
        self.stop = true;
        self
    }

    fn admits(&self, case: &Case) -> bool {
        let wanted = self.words.iter().all(|w| case.name.contains(w) || case.section.0.contains(w));
        wanted && self.only.as_ref().is_none_or(|name| *name == case.name) && !self.not.contains(&case.name)
    }
}

/// The cases for one kind of subject, and their memory.
///
/// Creating them takes longer than running them: keep the suite for several subjects with the same capabilities.
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
    /// Creates the cases for subjects with the capabilities of this one.
    #[must_use]
    pub fn of(subject: &dyn Subject) -> Self {
        let arena = Arena::new();
        sample::lay_out(&arena);
        let cases = cases::all(subject, &arena);
        Suite { arena, cases }
    }

    /// The sections and names of the cases.
    pub fn names(&self) -> impl Iterator<Item = (Section, &str)> {
        self.cases.iter().map(|case| (case.section, case.name.as_str()))
    }

    /// Runs the selected cases on `subject`.
    ///
    /// If a subject panics, the case fails; if a subject hangs, the run hangs.
    #[must_use]
    pub fn run(&self, subject: &dyn Subject, filter: &Filter) -> Report {
        self.run_each(subject, filter, &mut |_, _| ())
    }

    /// Like [`run`](Suite::run); calls `after` after each case with its name, and true unless it has failed.
    pub fn run_each(&self, subject: &dyn Subject, filter: &Filter, after: &mut dyn FnMut(&str, bool)) -> Report {
        let mut report = Report { subject: subject.name(), ..Report::default() };
        // The next case with the same spec reuses the device.
        let mut fixture: Option<Fixture> = None;
        for case in self.cases.iter().filter(|case| filter.admits(case)) {
            let kept = fixture.take().filter(|s| !case.fresh && s.spec == case.spec);
            let verdict = match kept.map_or_else(|| Fixture::new(subject, &self.arena, &case.spec), Ok) {
                Ok(ready) => {
                    let verdict = run_case(case, &ready);
                    if verdict.is_ok() && !case.fresh {
                        fixture = Some(ready);
                    } else {
                        // Work left over by the case ends with its device.
                        ready.release();
                        ready.device.settle();
                    }
                    verdict
                }
                Err(reason) => Err(reason),
            };
            self.arena.restore();
            after(&case.name, !matches!(verdict, Err(NotPassed::Fail { .. })));
            count(&mut report, case, verdict);
            if filter.stop && !report.failed.is_empty() {
                break;
            }
        }
        report
    }
}

/// Creates the cases for a subject and runs them.
#[must_use]
pub fn run(subject: &dyn Subject, filter: &Filter) -> Report {
    Suite::of(subject).run(subject, filter)
}

fn run_case(case: &Case, fixture: &Fixture) -> Verdict {
    // Clear what earlier cases on this device left.
    fixture.clear_sw_error();
    catch_unwind(AssertUnwindSafe(|| (case.body)(fixture))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Err(NotPassed::Fail { expected: "no panic".into(), got: text.unwrap_or("a panic without text").to_owned() })
    })
}

fn count(report: &mut Report, case: &Case, verdict: Verdict) {
    let tally = report.sections.entry(case.section).or_default();
    match verdict {
        Ok(()) => tally.passed += 1,
        Err(NotPassed::Skip(reason)) => {
            tally.skipped += 1;
            report.skipped.push((case.name.clone(), reason));
        }
        Err(NotPassed::Fail { expected, got }) => {
            tally.failed += 1;
            report.failed.push(Failure { case: case.name.clone(), section: case.section, expected, got });
        }
    }
}
