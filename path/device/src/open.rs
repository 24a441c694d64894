//! Opens a device name as queues for a mover; every front end makes this call.

use crate::config::{Config, ConfigError};
use crate::counting::CountsIn;
use crate::imposed::ImposedTimes;
use crate::model::{ModelDevice, ModelOptions, PortalError, StartError};
use crate::name::{DeviceName, ModelSource, NameError, WqName};
use crate::runner::Runner;
use std::sync::Arc;
use telpher_hw::{DescribedQueue, QueueType};
use telpher_portal::Portal;

/// The result of opening a name.
#[derive(Debug, Default)]
pub struct Opened {
    /// Queues for a mover; if there are none, the CPU does everything. They keep their device alive.
    pub portals: Vec<Arc<dyn Portal>>,
    /// Queues that cannot be used, each with the reason. They are queues that `all` skips (a queue opened by name
    /// causes an error instead), and queues of a file's further devices.
    pub skipped: Vec<Skipped>,
}

/// A queue that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// `wq0.1`.
    pub queue: String,
    /// The reason, as a sentence.
    pub why: String,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not used: {}", self.queue, self.why)
    }
}

/// Options for modelled devices. Hardware has no options.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The runner that executes descriptors; the default chooses for each of them.
    pub runner: Runner,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { runner: Runner::Auto }
    }
}

/// Error: a name could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The configuration file cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The modelled device does not start.
    #[error("{name} does not start")]
    Start {
        /// The name as typed.
        name: String,
        /// The reason.
        #[source]
        source: StartError,
    },
    /// A queue of the modelled device does not exist or is not enabled.
    #[error(transparent)]
    Portal(#[from] PortalError),
    /// The times of a device can be imposed on a modelled device only.
    #[error("{name} is not a modelled device, so it has times of its own")]
    NotModelled {
        /// The name as typed.
        name: String,
    },
    /// A real device's queue cannot be used.
    #[error(transparent)]
    Hardware(#[from] telpher_hw::OpenError),
}

/// Opens a device name. `cpu` gives no queue, `model:…` every enabled queue of a new modelled device, `hw:wqM.N` that
/// queue, `all` every hardware queue that this process may use (the model and the CPU path need no opening besides). A
/// machine without hardware gives no queue; this is not an error.
///
/// # Errors
///
/// [`OpenError`] contains the attempt and the system's error.
pub fn open(name: &DeviceName, options: OpenOptions) -> Result<Opened, OpenError> {
    prepare(name)?.open(options)
}

/// Error: the device that a user asks for cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The text names no device.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device is there, and its queues are not for this user.
    #[error("it has no queue that this user may use")]
    NoQueue,
}

/// Opens the device that a user asks for, by the text of a variable. Without a text, and for `cpu`, there are no
/// queues; any other text gives one at least.
///
/// # Errors
///
/// [`RequestError`]
pub fn open_requested(text: &str) -> Result<Opened, RequestError> {
    if text.is_empty() || text == "cpu" {
        return Ok(Opened::default());
    }
    let opened = open(&text.parse()?, OpenOptions::default())?;
    if opened.portals.is_empty() { Err(RequestError::NoQueue) } else { Ok(opened) }
}

/// Reads what the opening of a device name needs from files and directories, as the first half of [`open`].
///
/// # Errors
///
/// [`OpenError`] contains the attempt and the system's error.
pub fn prepare(name: &DeviceName) -> Result<PreparedDevice, OpenError> {
    let kind = match name {
        DeviceName::Cpu => Kind::Cpu,
        DeviceName::All => {
            let (queues, skipped) = every_queue();
            Kind::All(queues, skipped)
        }
        DeviceName::Hardware(wq) => Kind::Hardware(Box::new(telpher_hw::describe(&wq.to_string())?)),
        DeviceName::Model(source) => {
            let (options, skipped) = source.options()?;
            Kind::Model(Box::new(options), skipped)
        }
    };
    Ok(PreparedDevice { name: name.clone(), kind })
}

/// A device that is ready to be opened, in this process and in its forked children. A child may have been forked while
/// another thread held the locks of the C library: there, opening must not read directories, and does not.
#[derive(Clone, Debug)]
pub struct PreparedDevice {
    name: DeviceName,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Cpu,
    /// The options of the modelled device, and queues of further devices in its file.
    Model(Box<ModelOptions>, Vec<Skipped>),
    Hardware(Box<DescribedQueue>),
    /// Queues that may be usable, and those that are not.
    All(Vec<DescribedQueue>, Vec<Skipped>),
}

impl PreparedDevice {
    /// Imposes the times of a device on this modelled one.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotModelled`]
    pub fn with_times(self, times: Arc<ImposedTimes>) -> Result<Self, OpenError> {
        match self.kind {
            Kind::Model(model, skipped) => {
                Ok(PreparedDevice { kind: Kind::Model(Box::new(model.with_times(times)), skipped), ..self })
            }
            _ => Err(OpenError::NotModelled { name: self.name.to_string() }),
        }
    }

    /// Opens the device, as the second half of [`open`]. It calls no allocator but Rust's, and with
    /// [`Runner::Inline`] it starts no thread.
    ///
    /// # Errors
    ///
    /// [`OpenError`] contains the attempt and the system's error.
    pub fn open(&self, options: OpenOptions) -> Result<Opened, OpenError> {
        match &self.kind {
            Kind::Cpu => Ok(Opened::default()),
            Kind::Hardware(queue) => Ok(Opened { portals: vec![queue.open()?], skipped: Vec::new() }),
            Kind::All(queues, skipped) => {
                let mut opened = Opened { portals: Vec::new(), skipped: skipped.clone() };
                for queue in queues {
                    match queue.open() {
                        Ok(portal) => opened.portals.push(portal),
                        Err(error) => opened.skipped.push(unusable(queue.name(), &error)),
                    }
                }
                Ok(opened)
            }
            Kind::Model(model, skipped) => {
                let model = (**model).clone().with_runner(options.runner).with_counts(CountsIn::Published);
                let started = ModelDevice::start(model);
                let failed = |source| OpenError::Start { name: self.name.to_string(), source };
                let device = started.map_err(failed)?;
                let queues = device.enabled_queues();
                let portals =
                    queues.iter().map(|queue| device.portal(&WqName { device: 0, queue: *queue }.to_string()));
                Ok(Opened { portals: portals.collect::<Result<_, _>>()?, skipped: skipped.clone() })
            }
        }
    }
}

impl ModelSource {
    /// Returns the options to start the device, and the skipped queues of a file's further devices. A modelled device
    /// is the first of its file.
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
        let why = format!("only the first device of a file is modelled: {}", first.dev);
        let queues = devices.flat_map(|device| device.groups).flat_map(|group| group.grouped_workqueues);
        let skipped = queues.map(|queue| Skipped { queue: queue.dev, why: why.clone() }).collect();
        Ok((ModelOptions::default().with_config(first), skipped))
    }
}

/// Returns every configured hardware queue: those that may be usable, and the others.
fn every_queue() -> (Vec<DescribedQueue>, Vec<Skipped>) {
    let machine = telpher_hw::discover(&telpher_hw::Live::default());
    let (mut queues, mut skipped) = (Vec::new(), Vec::new());
    for (_, queue) in machine.queues() {
        // A queue that is not configured does not count.
        if queue.queue_type.is_none_or(|kind| kind == QueueType::None) {
            continue;
        }
        match telpher_hw::describe(&queue.name) {
            Ok(queue) => queues.push(queue),
            Err(error) => skipped.push(unusable(&queue.name, &error)),
        }
    }
    (queues, skipped)
}

fn unusable(queue: &str, error: &telpher_hw::OpenError) -> Skipped {
    Skipped { queue: queue.into(), why: telpher_os::chain(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_gives_queues_or_says_why_there_are_none() {
        for text in ["", "cpu"] {
            assert!(open_requested(text).unwrap().portals.is_empty(), "{text:?}");
        }
        assert!(!open_requested("model:spr").unwrap().portals.is_empty());
        let error = open_requested("gpu").unwrap_err();
        assert!(matches!(error, RequestError::Name(_)), "{error}");
        let skipped = Skipped { queue: "wq0.1".into(), why: "it is disabled".into() };
        assert_eq!(skipped.to_string(), "wq0.1 is not used: it is disabled");
    }

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
    fn a_missing_hardware_queue_is_an_error_by_name_and_skipped_by_all() {
        let message = opened("hw:wq4294967295.9").unwrap_err().to_string();
        assert!(message.starts_with("cannot open wq4294967295.9: "), "{message}");
        let all = opened("all").unwrap();
        assert!(all.portals.iter().all(|portal| portal.info().name.starts_with("wq")));
        assert!(all.skipped.iter().all(|skipped| skipped.why.contains(&skipped.queue)), "{:?}", all.skipped);
    }

    #[test]
    fn a_file_s_first_device_is_modelled_and_other_queues_are_skipped() {
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
        let why = "only the first device of a file is modelled: dsa2".to_owned();
        assert_eq!(skipped, [Skipped { queue: "wq4.3".into(), why }]);
    }

    #[test]
    fn a_prepared_device_is_opened_again_without_its_file() {
        let path = std::env::temp_dir().join(format!("telpher-prepared-{}.json", std::process::id()));
        let text = r#"[{ "dev": "dsa0", "groups": [{ "dev": "group0.0",
            "grouped_workqueues": [{ "dev": "wq0.1", "mode": "shared", "size": 8 }],
            "grouped_engines": [{ "dev": "engine0.0" }] }] }]"#;
        std::fs::write(&path, text).unwrap();
        let prepared = prepare(&format!("model:{}", path.display()).parse().unwrap());
        std::fs::remove_file(&path).unwrap();
        let prepared = prepared.unwrap();
        let [first, second] = [(); 2].map(|()| prepared.open(OpenOptions::default()).unwrap().portals);
        for portals in [&first, &second] {
            assert_eq!(portals.iter().map(|portal| portal.info().name.as_str()).collect::<Vec<_>>(), ["wq0.1"]);
        }
        // They are two devices, not one.
        assert!(!Arc::ptr_eq(&first[0], &second[0]));
    }

    #[test]
    fn an_error_sentence_includes_its_causes() {
        let message = telpher_os::chain(&opened("model:./no/such/file.json").unwrap_err());
        assert!(
            message.starts_with("cannot read ./no/such/file.json: ") && message.contains("os error 2"),
            "{message}"
        );
    }
}
