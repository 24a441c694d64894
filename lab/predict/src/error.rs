//! Why there is no prediction.

use std::io;

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
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
}

impl PredictError {
    /// Returns true if the options are wrong on every machine.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, PredictError::Name(_) | PredictError::NoProfile { .. } | PredictError::Not(_))
    }
}
