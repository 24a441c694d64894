//! The suite is effective: with any one legality check of the model switched off, at least one case fails.
//!
//! `cargo test -p telpher-conformance --features mutation --test mutation`
//!
//! Of the checks of the operations of 2.x and 3.0, which have most cases, this takes every fourth. `./soak` takes all.

#[path = "subjects/model.rs"]
mod model;

use model::Model;
use std::num::NonZero;
use std::thread;
use telpher_conformance::table::OPERATIONS;
use telpher_conformance::{Filter, Suite};
use telpher_device::{Preset, Runner};
use telpher_model::{Mutant, all_mutants, with_mutant};

/// Selections of cases that can detect a mutant, the likeliest first: the text of an operation, and of a section.
fn selections(mutant: &Mutant) -> Vec<[&'static str; 2]> {
    let operation = |code| OPERATIONS.iter().find(|row| row.code == code).map_or("", |row| row.name);
    match *mutant {
        Mutant::Flag(code, _) | Mutant::RefusedFlag(code, _) | Mutant::Required(code, _) => {
            vec![[operation(code), "flags"], ["", "flags"], ["", "in a batch"], ["", ""]]
        }
        Mutant::Reserved(code, _) => vec![[operation(code), "reserved fields"], ["", "reserved fields"], ["", ""]],
        Mutant::Check(_) => {
            ["order of checks", "sizes", "alignment", "overlap", "interrupts", "reserved fields", "flags", ""]
                .map(|section| ["", section])
                .to_vec()
        }
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

/// The mutants that no case detects.
fn undetected(mutants: Vec<Mutant>) -> Vec<Mutant> {
    // One preset may lack a feature that another has: each mutant must be detected with one of them.
    let subjects = [Preset::Full, Preset::Spr, Preset::V2Full, Preset::Srf, Preset::V3Full]
        .map(|preset| Model::new(preset, Runner::Inline));
    let suites = subjects.each_ref().map(|subject| Suite::of(subject));
    // Cases that always fail detect nothing.
    let plain: Vec<Filter> = suites
        .iter()
        .zip(&subjects)
        .map(|(suite, subject)| {
            let failed = suite.run(subject, &Filter::all()).failed;
            failed.iter().fold(Filter::all(), |filter, failure| filter.without(&failure.case))
        })
        .collect();
    let noticed = |mutant: &Mutant| {
        selections(mutant).iter().any(|[operation, section]| {
            suites.iter().zip(&subjects).zip(&plain).any(|((suite, subject), plain)| {
                let filter = plain.clone().containing(operation).containing(section).until_first_failure();
                with_mutant(*mutant, || !suite.run(subject, &filter).failed.is_empty())
            })
        })
    };
    mutants.into_iter().filter(|mutant| !noticed(mutant)).collect()
}
