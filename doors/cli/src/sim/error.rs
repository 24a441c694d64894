//! Errors of the simulation commands.

use std::io;
use telpher_claims::thesis_query::SimulateError;
use telpher_report::deliver::DeliverError;

/// Why a simulation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SimError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path}; name another place")]
    Write {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// No such figure.
    #[error("'{name}' is no figure; there are {known}")]
    NoFigure {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// The prediction failed.
    #[error(transparent)]
    Predict(#[from] telpher_predict::PredictError),
    /// A workload is invalid.
    #[error(transparent)]
    Workload(#[from] telpher_sim::WorkloadError),
    /// The machine or a device does not support the request.
    #[error(transparent)]
    Scenario(#[from] telpher_sim::ScenarioError),
    /// The options contradict each other.
    #[error("{0}")]
    Not(String),
    /// Nothing was simulated.
    #[error(
        "the device refuses all of these operations, so there are no numbers; the result says why, and other sizes or \
         devices may be accepted"
    )]
    AllRefused,
    /// The result could not be delivered.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

impl From<SimulateError> for SimError {
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Scenario(error) => SimError::Scenario(error),
            // Another machine has to be named on the command line.
            error => SimError::Not(error.to_string()),
        }
    }
}
