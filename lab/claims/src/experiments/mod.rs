//! One experiment for each claim that can be checked, by document.
//!
//! An experiment returns the simulated result; `verdict` decides whether the claim holds.

pub(crate) mod apps;
pub(crate) mod asplos_device;
mod asplos_memory;
pub(crate) mod asplos_multi;
pub(crate) mod fabric;
pub mod formula;
pub mod measure;
pub(crate) mod migration;
mod query;
pub mod series;
pub(crate) mod storage;
pub(crate) mod thesis;
pub(crate) mod vhost;

use crate::lab::Lab;
use telpher_sim::ScenarioError;

/// The result of an experiment.
#[derive(Clone, PartialEq, Debug)]
pub enum Found {
    /// The number that the claim is about, in its unit.
    Number(f64),
    /// Several numbers with their names: all of them must hold.
    Numbers(Vec<(String, f64)>),
    /// Whether the simulated shape is the claim's, and a description of it.
    Shape {
        /// The description.
        shown: String,
        /// True if it is the claim's shape.
        holds: bool,
    },
    /// The claim's number depends on inputs that its source does not print.
    Spans {
        /// The number with the assumed inputs.
        assumed: f64,
        /// The smallest and the largest number over the tried inputs.
        ends: (f64, f64),
        /// The inputs, and what was tried.
        free: &'static str,
    },
    /// One of the above, and the results of other readings of the claim with their names: shown, not counted.
    Beside(Box<Found>, Vec<(String, f64)>),
}

impl Found {
    pub(crate) fn shape(holds: bool, shown: String) -> Self {
        Found::Shape { shown, holds }
    }

    /// Adds the results of other readings of the claim.
    pub(crate) fn beside(self, others: Vec<(String, f64)>) -> Self {
        Found::Beside(Box::new(self), others)
    }
}

/// A script that simulates the situation of a claim.
pub type Experiment = fn(&Lab) -> Result<Found, ScenarioError>;

/// All experiments, by their claim.
pub fn all() -> impl Iterator<Item = (&'static str, Experiment)> {
    let documents = [
        asplos_device::ALL,
        asplos_memory::ALL,
        asplos_multi::ALL,
        vhost::ALL,
        apps::ALL,
        storage::ALL,
        thesis::ALL,
        query::ALL,
        migration::ALL,
    ];
    documents.into_iter().flatten().copied()
}

/// The experiment of a claim.
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
