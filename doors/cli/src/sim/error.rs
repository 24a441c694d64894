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
    /// No such profile.
    #[error(
        "'{name}' is no built-in profile; there are {known}. A file is named with a dot or a slash, such as \
         ./{name}.toml"
    )]
    NoProfile {
        /// The requested name.
        name: String,
        /// The existing names.
        known: String,
    },
    /// A profile is invalid.
    #[error(transparent)]
    Profile(#[from] telpher_sim::ProfileError),
    /// A workload is invalid.
    #[error(transparent)]
    Workload(#[from] telpher_sim::WorkloadError),
    /// The machine or a device does not support the request.
    #[error(transparent)]
    Scenario(#[from] telpher_sim::ScenarioError),
    /// The device's name is invalid.
    #[error(transparent)]
    Name(#[from] telpher_device::NameError),
    /// A file is not a configuration.
    #[error(transparent)]
    Config(#[from] telpher_device::ConfigError),
    /// The options contradict each other.
    #[error("{0}")]
    Not(String),
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
