//! The suite is effective: with any one legality check of the model switched off, at least one case fails.
//!
//! `cargo test -p telpher-conformance --features mutation --test mutation`
//!
//! Of the checks of the operations of 2.x and 3.0, which have most cases, this takes every fourth. `./soak` takes all.

#[path = "subjects/model.rs"]
mod model;

use model::Model;
use std::collections::HashMap;
use std::num::NonZero;
use std::thread;
use telpher_conformance::table::OPERATIONS;
use telpher_conformance::{Filter, Suite};
use telpher_device::{Preset, Runner};
use telpher_model::{Check, Mutant, all_mutants, take_failed_checks, with_mutant};

/// Selections of cases that can detect a mutant of an operation's row, the likeliest first: the text of an operation,
/// and of a section.
fn selections(mutant: &Mutant) -> [[&'static str; 2]; 3] {
    let operation = |code| OPERATIONS.iter().find(|row| row.code == code).map_or("", |row| row.name);
    match *mutant {
        Mutant::Flag(code, _) | Mutant::RefusedFlag(code, _) | Mutant::Required(code, _) => {
            [[operation(code), "flags"], ["", "flags"], ["", ""]]
        }
        Mutant::Reserved(code, _) => [[operation(code), "reserved fields"], ["", "reserved fields"], ["", ""]],
        Mutant::Check(_) => unreachable!("a check has a list of its cases"),
    }
}

/// True for an operation that version 1.x does not have.
fn is_new(mutant: &Mutant) -> bool {
    match *mutant {
        Mutant::Flag(code, _)
        | Mutant::RefusedFlag(code, _)
        | Mutant::Required(code, _)
        | Mutant::Reserved(code, _) => {
            matches!(code, 0x0a | 0x17..=0x1e | 0x21..=0x26)
        }
        Mutant::Check(_) => false,
    }
}

/// Returns the mutants of this run.
fn mutants() -> Vec<Mutant> {
    let all = all_mutants();
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    if seconds.is_some_and(|seconds| seconds > 1) {
        return all;
    }
    let (new, old): (Vec<Mutant>, Vec<Mutant>) = all.into_iter().partition(is_new);
    old.into_iter().chain(new.into_iter().step_by(4)).collect()
}

#[test]
fn every_missing_legality_check_is_detected() {
    let mutants = mutants();
    // A mutant applies to one thread and its devices: the threads divide the mutants between them.
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let undetected: Vec<Mutant> = thread::scope(|scope| {
        let share = |nth: usize| mutants.iter().copied().skip(nth).step_by(threads).collect();
        let hunters: Vec<_> = (0..threads).map(share).map(|share| scope.spawn(|| undetected(share))).collect();
        hunters.into_iter().flat_map(|hunter| hunter.join().expect("a share ends")).collect()
    });
    println!("{} mutants, {} noticed", mutants.len(), mutants.len() - undetected.len());
    assert!(undetected.is_empty(), "not noticed: {undetected:?}");
}

/// A device, its cases, and those that pass while no check is missing.
struct Bench {
    subject: Model,
    suite: Suite,
    passing: Filter,
    /// For each check the passing cases in which it fails: only they can detect that it is missing.
    by_check: HashMap<Check, Vec<String>>,
}

impl Bench {
    fn new(preset: Preset) -> Self {
        let subject = Model::new(preset, Runner::Inline);
        let suite = Suite::of(&subject);
        let (mut passing, mut by_check) = (Filter::all(), HashMap::<Check, Vec<String>>::new());
        let _ = take_failed_checks();
        let _ = suite.run_each(&subject, &Filter::all(), &mut |name, passes| {
            let failed_checks = take_failed_checks();
            if passes {
                failed_checks.into_iter().for_each(|check| by_check.entry(check).or_default().push(name.to_owned()));
            } else {
                passing = passing.clone().without(name);
            }
        });
        Bench { subject, suite, passing, by_check }
    }

    fn detects(&self, mutant: Mutant, filter: &Filter) -> bool {
        with_mutant(mutant, || !self.suite.run(&self.subject, filter).failed.is_empty())
    }
}

/// The mutants that no case detects.
fn undetected(mutants: Vec<Mutant>) -> Vec<Mutant> {
    // One preset may lack a feature that another has: each mutant must be detected with one of them.
    let benches = [Preset::Full, Preset::Spr, Preset::V2Full, Preset::Srf, Preset::V3Full].map(Bench::new);
    let noticed = |mutant: &Mutant| match mutant {
        Mutant::Check(check) => benches.iter().any(|bench| {
            let cases = bench.by_check.get(check).into_iter().flatten();
            cases.into_iter().any(|name| bench.detects(*mutant, &Filter::only(name)))
        }),
        _ => selections(mutant).iter().any(|[operation, section]| {
            benches.iter().any(|bench| {
                let filter = bench.passing.clone().containing(operation).containing(section).until_first_failure();
                bench.detects(*mutant, &filter)
            })
        }),
    };
    mutants.into_iter().filter(|mutant| !noticed(mutant)).collect()
}
