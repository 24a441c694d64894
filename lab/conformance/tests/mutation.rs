//! The suite is effective: with any one legality check of the model switched off, at least one case fails.
//!
//! `cargo test -p telpher-conformance --features mutation --test mutation`

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

#[test]
fn every_missing_legality_check_is_detected() {
    let mutants = all_mutants();
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
