//! A name becomes the queues that a mover takes: the one call every door makes.

use crate::config::{Config, ConfigError};
use crate::model::{ModelDevice, ModelOptions, PortalError, StartError};
use crate::name::{DeviceName, ModelSource, WqName};
use crate::runner::Runner;
use std::sync::Arc;
use telpher_hw::QueueType;
use telpher_portal::Portal;

/// What came of a name.
#[derive(Debug, Default)]
pub struct Opened {
    /// Queues, to be given to a mover; none means the CPU does everything. They keep their device alive.
    pub portals: Vec<Arc<dyn Portal>>,
    /// Queues that were looked at and cannot be used, each with the reason: those `all` passes by (a queue asked for by name is
    /// an error instead), and those of a file's further devices.
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
    /// A real device's queue cannot be used.
    #[error(transparent)]
    Hardware(#[from] telpher_hw::OpenError),
}

/// Opens what a name names: `cpu` gives no queue, `model:…` every enabled queue of a fresh modelled device, `hw:wqM.N` that
/// queue, `all` every hardware queue this process may use (the model and the CPU path need no opening beside them). A machine
/// without hardware has none, which is no error.
///
/// # Errors
///
/// [`OpenError`] tells what was attempted and what the machine said.
pub fn open(name: &DeviceName, options: OpenOptions) -> Result<Opened, OpenError> {
    let (model, skipped) = match name {
        DeviceName::Cpu => return Ok(Opened::default()),
        DeviceName::All => return Ok(every_queue()),
        DeviceName::Hardware(wq) => {
            let portal = telpher_hw::open(&wq.to_string())?;
            return Ok(Opened { portals: vec![portal], skipped: Vec::new() });
        }
        DeviceName::Model(source) => source.options()?,
    };
    let started = ModelDevice::start(model.with_runner(options.runner));
    let device = started.map_err(|source| OpenError::Start { name: name.to_string(), source })?;
    let queues = device.enabled_queues();
    let portals = queues.iter().map(|queue| device.portal(&WqName { device: 0, queue: *queue }.to_string()));
    Ok(Opened { portals: portals.collect::<Result<_, _>>()?, skipped })
}

impl ModelSource {
    /// What to start, and the queues of a file's further devices: a modelled device is the first one.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn options(&self) -> Result<(ModelOptions, Vec<Skipped>), ConfigError> {
        let path = match self {
            ModelSource::Preset(preset) => return Ok((ModelOptions::of(*preset), Vec::new())),
            ModelSource::File(path) => path,
        };
        let mut devices = Config::load(path)?.into_iter();
        let first = devices.next().expect("a loaded file has a device");
        let why = format!("a modelled device is the first of its file, {}", first.dev);
        let queues = devices.flat_map(|device| device.groups).flat_map(|group| group.grouped_workqueues);
        let skipped = queues.map(|queue| Skipped { queue: queue.dev, why: why.clone() }).collect();
        Ok((ModelOptions::default().with_config(first), skipped))
    }
}

/// Every hardware queue that this process can open.
fn every_queue() -> Opened {
    let machine = telpher_hw::discover(&telpher_hw::Live::default());
    let mut opened = Opened::default();
    for (_, queue) in machine.queues() {
        // What nobody has configured is no queue yet.
        if queue.queue_type.is_none_or(|kind| kind == QueueType::None) {
            continue;
        }
        match telpher_hw::open(&queue.name) {
            Ok(portal) => opened.portals.push(portal),
            Err(error) => opened.skipped.push(Skipped { queue: queue.name.clone(), why: told(&error) }),
        }
    }
    opened
}

/// An error and what led to it, as one sentence.
pub(crate) fn told(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(name: &str) -> Result<Opened, OpenError> {
        open(&name.parse().unwrap(), OpenOptions::default())
    }

    #[test]
    fn the_cpu_needs_no_queue_and_a_model_gives_all_that_are_enabled() {
        assert!(opened("cpu").unwrap().portals.is_empty());
        let names: Vec<String> =
            opened("model:full").unwrap().portals.iter().map(|portal| portal.info().name.clone()).collect();
        assert_eq!(names, (0..8).map(|queue| format!("wq0.{queue}")).collect::<Vec<_>>());
    }

    #[test]
    fn a_hardware_queue_that_is_not_there_is_an_error_by_name_and_none_among_all() {
        let said = opened("hw:wq4294967295.9").unwrap_err().to_string();
        assert!(said.starts_with("cannot open wq4294967295.9: "), "{said}");
        let all = opened("all").unwrap();
        assert!(all.portals.iter().all(|portal| portal.info().name.starts_with("wq")));
        assert!(all.skipped.iter().all(|skipped| skipped.why.contains(&skipped.queue)), "{:?}", all.skipped);
    }

    #[test]
    fn a_file_s_first_device_is_modelled_and_the_queues_of_the_others_are_told() {
        let device = |number: u32| {
            format!(
                r#"{{ "dev": "dsa{number}", "groups": [{{ "dev": "group{number}.0",
                    "grouped_workqueues": [{{ "dev": "wq{number}.3", "mode": "shared", "size": 8 }}],
                    "grouped_engines": [{{ "dev": "engine{number}.0" }}] }}] }}"#
            )
        };
        let path = std::env::temp_dir().join(format!("telpher-open-{}.json", std::process::id()));
        std::fs::write(&path, format!("[{}, {}]", device(2), device(4))).unwrap();
        let opened = opened(&format!("model:{}", path.display()));
        std::fs::remove_file(&path).unwrap();
        let Opened { portals, skipped } = opened.unwrap();
        assert_eq!(portals.iter().map(|portal| portal.info().name.as_str()).collect::<Vec<_>>(), ["wq0.3"]);
        let why = "a modelled device is the first of its file, dsa2".to_owned();
        assert_eq!(skipped, [Skipped { queue: "wq4.3".into(), why }]);
    }

    #[test]
    fn a_sentence_carries_what_led_to_it() {
        let said = told(&opened("model:./no/such/file.json").unwrap_err());
        assert!(said.starts_with("cannot read ./no/such/file.json: ") && said.contains("os error 2"), "{said}");
    }
}
