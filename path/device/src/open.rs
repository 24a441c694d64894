//! A name becomes the queues that a mover takes: the one call every door makes.

use crate::config::{Config, ConfigError};
use crate::model::{ModelDevice, ModelOptions, PortalError, StartError};
use crate::name::{DeviceName, ModelSource, WqName};
use crate::runner::Runner;
use std::sync::Arc;
use telpher_portal::Portal;

/// What came of a name.
#[derive(Debug, Default)]
pub struct Opened {
    /// Queues, to be given to a mover; none means the CPU does everything. They keep their device alive.
    pub portals: Vec<Arc<dyn Portal>>,
    /// Queues that were looked at and cannot be used, each with the reason (`all` passes them by; a queue asked for by name is
    /// an error instead).
    pub skipped: Vec<Skipped>,
}

/// A queue that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// `wq0.1`.
    pub queue: String,
    /// Why, as a sentence.
    pub why: String,
}

/// How modelled devices run. Hardware has nothing to choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Who executes.
    pub runner: Runner,
}

/// Why a name gave no queues.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration file cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The modelled device does not start.
    #[error("{name} does not start")]
    Start {
        /// As typed.
        name: String,
        /// Why.
        #[source]
        source: StartError,
    },
    /// A queue of the modelled device is not there.
    #[error(transparent)]
    Portal(#[from] PortalError),
    /// Hardware.
    #[error("{0} cannot be opened")]
    Hardware(WqName),
}

/// Opens what a name names: `cpu` gives no queue, `model:…` every enabled queue of a fresh modelled device, `hw:wqM.N` that
/// queue, `all` every hardware queue this process may use (the model and the CPU path need no opening beside them).
///
/// # Errors
///
/// [`OpenError`] tells what was attempted and what the machine said.
pub fn open(name: &DeviceName, options: OpenOptions) -> Result<Opened, OpenError> {
    let model = match name {
        DeviceName::Cpu | DeviceName::All => return Ok(Opened::default()),
        DeviceName::Hardware(wq) => return Err(OpenError::Hardware(*wq)),
        DeviceName::Model(ModelSource::Preset(preset)) => ModelOptions::of(*preset),
        DeviceName::Model(ModelSource::File(path)) => {
            let first = Config::load(path)?.into_iter().next().expect("a loaded file has a device");
            ModelOptions::default().with_config(first)
        }
    };
    let started = ModelDevice::start(model.with_runner(options.runner));
    let device = started.map_err(|source| OpenError::Start { name: name.to_string(), source })?;
    let queues = device.enabled_queues();
    let portals = queues.iter().map(|queue| device.portal(&WqName { device: 0, queue: *queue }.to_string()));
    Ok(Opened { portals: portals.collect::<Result<_, _>>()?, skipped: Vec::new() })
}
