//! Why there is nothing to tell.

use std::io;
use telpher_report::deliver::DeliverError;

/// Why a simulation did not come to a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SimError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path}; name another place")]
    Write {
        /// Which.
        path: String,
        /// What the system said.
        source: io::Error,
    },
    /// No such figure.
    #[error("'{name}' is no figure; there are {known}")]
    NoFigure {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// No such profile.
    #[error(
        "'{name}' is no built-in profile; there are {known}. A file is named with a dot or a slash, such as ./{name}.toml"
    )]
    NoProfile {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// A profile is none.
    #[error(transparent)]
    Profile(#[from] telpher_sim::ProfileError),
    /// A workload is none.
    #[error(transparent)]
    Workload(#[from] telpher_sim::WorkloadError),
    /// The machine, or a device, cannot do so.
    #[error(transparent)]
    Scenario(#[from] telpher_sim::ScenarioError),
    /// No such device.
    #[error(transparent)]
    Name(#[from] telpher_device::NameError),
    /// A file is no configuration.
    #[error(transparent)]
    Config(#[from] telpher_device::ConfigError),
    /// What was asked for does not fit together.
    #[error("{0}")]
    Not(String),
    /// The result did not arrive.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}
