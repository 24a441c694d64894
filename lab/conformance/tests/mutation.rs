//! The suite has teeth: with any one legality check of the model switched off, at least one case fails.
//!
//! `cargo test -p telpher-conformance --features mutation --test mutation`

#[path = "subjects/model.rs"]
mod model;

use model::Model;
use telpher_conformance::{Filter, Suite};
use telpher_device::{Preset, Runner};
use telpher_model::{Mutant, all_mutants, with_mutant};

/// The sections that can notice a mutant, the likeliest first.
fn sections(mutant: &Mutant) -> &'static [&'static str] {
    match mutant {
        Mutant::Flag(..) | Mutant::RefusedFlag(..) | Mutant::Required(..) => &["flags", "in a batch", ""],
        Mutant::Reserved(..) => &["reserved fields", ""],
        Mutant::Check(_) => {
            &["order of checks", "sizes", "alignment", "overlap", "interrupts", "reserved fields", "flags", ""]
        }
    }
}

#[test]
fn every_legality_check_is_noticed_when_it_is_missing() {
    // What one preset lacks another has: each mutant must be noticed on one of them.
    let subjects = [Preset::Full, Preset::Spr].map(|preset| Model::new(preset, Runner::Inline));
    let suites = subjects.each_ref().map(|subject| Suite::of(subject));
    // Cases that fail anyway notice nothing.
    let plain: Vec<Filter> = suites
        .iter()
        .zip(&subjects)
        .map(|(suite, subject)| {
            let failed = suite.run(subject, &Filter::all()).failed;
            failed.iter().fold(Filter::all(), |filter, failure| filter.without(&failure.case))
        })
        .collect();
    let mutants = all_mutants();
    let unnoticed: Vec<&Mutant> = mutants
        .iter()
        .filter(|mutant| {
            !sections(mutant).iter().any(|section| {
                suites.iter().zip(&subjects).zip(&plain).any(|((suite, subject), plain)| {
                    let filter = plain.clone().containing(section).until_first_failure();
                    with_mutant(**mutant, || !suite.run(subject, &filter).failed.is_empty())
                })
            })
        })
        .collect();
    println!("{} mutants, {} noticed", mutants.len(), mutants.len() - unnoticed.len());
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
