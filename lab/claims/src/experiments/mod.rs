//! One experiment for each claim that can be checked, by document.
//!
//! An experiment says what the simulation gives; whether that holds is the claim's to say (`verdict`).

mod apps;
pub(crate) mod asplos_device;
mod asplos_memory;
pub(crate) mod asplos_multi;
pub mod measure;
pub(crate) mod migration;
mod query;
pub mod series;
pub(crate) mod thesis;
pub(crate) mod vhost;

use crate::lab::Lab;
use telpher_sim::ScenarioError;

/// What an experiment found.
#[derive(Clone, PartialEq, Debug)]
pub enum Found {
    /// The number the claim is about, in its unit.
    Number(f64),
    /// Several of them, each with what it is of: all of them must hold.
    Numbers(Vec<(String, f64)>),
    /// Whether the form that the claim tells of is there, and what is there.
    Shape {
        /// What is there.
        shown: String,
        /// Whether that is the claim's form.
        holds: bool,
    },
    /// One of those, and what other readings of the claim give, each with its name: shown, not counted.
    Beside(Box<Found>, Vec<(String, f64)>),
}

impl Found {
    pub(crate) fn shape(holds: bool, shown: String) -> Self {
        Found::Shape { shown, holds }
    }

    /// With what other readings of the claim give.
    pub(crate) fn beside(self, others: Vec<(String, f64)>) -> Self {
        Found::Beside(Box::new(self), others)
    }
}

/// A script: simulates what a claim tells of.
pub type Experiment = fn(&Lab) -> Result<Found, ScenarioError>;

/// All experiments, by the claim they are about.
pub fn all() -> impl Iterator<Item = (&'static str, Experiment)> {
    let documents = [
        asplos_device::ALL,
        asplos_memory::ALL,
        asplos_multi::ALL,
        vhost::ALL,
        apps::ALL,
        thesis::ALL,
        query::ALL,
        migration::ALL,
    ];
    documents.into_iter().flatten().copied()
}

/// A claim's experiment.
#[must_use]
pub fn of(id: &str) -> Option<Experiment> {
    all().find(|(claim, _)| *claim == id).map(|(_, experiment)| experiment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::claims;
    use std::collections::BTreeSet;

    #[test]
    fn every_experiment_is_about_a_claim_and_the_only_one() {
        let mut seen = BTreeSet::new();
        for (id, _) in all() {
            assert!(claims().iter().any(|claim| claim.id == id), "{id} is no claim");
            assert!(seen.insert(id), "{id} has two experiments");
        }
    }
}
