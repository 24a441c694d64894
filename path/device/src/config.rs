//! Configurations in accel-config's own JSON. Source: accel-config `accfg/config.c` and its packaged example files.
//!
//! A file is an array of devices; every object begins with `dev`. Keys that cannot be set (capabilities, states,
//! clients) may be in a file, since saved files contain them, and are ignored. Written files have every key that
//! accel-config and all kernels need: each queue's and engine's group, a shared queue's threshold, a name, and the
//! driver.

mod written;

use serde::{Deserialize, Serialize};
use telpher_model::Capabilities;

/// One device: groups with their queues and engines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(into = "written::Device")]
pub struct Config {
    /// `dsa0`.
    pub dev: String,
    /// Read buffers shared by groups that use the global limit; 0 for no limit.
    #[serde(default, alias = "token_limit")]
    pub read_buffer_limit: u32,
    /// Entries of the event log; 0 for none.
    #[serde(default)]
    pub event_log_size: u32,
    /// Groups that have members.
    #[serde(default)]
    pub groups: Vec<GroupConfig>,
}

/// One group.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct GroupConfig {
    /// `group0.0`.
    pub dev: String,
    /// Read buffers that only this group may use.
    #[serde(default, alias = "tokens_reserved")]
    pub read_buffers_reserved: u32,
    /// 1 if the group uses the device's read buffer limit.
    #[serde(default, alias = "use_token_limit")]
    pub use_read_buffer_limit: u32,
    /// The most read buffers of this group; all if absent.
    #[serde(default, alias = "tokens_allowed")]
    pub read_buffers_allowed: Option<u32>,
    /// The limit of its reads.
    #[serde(default)]
    pub read_bandwidth: Bandwidth,
    /// The limit of its writes.
    #[serde(default)]
    pub write_bandwidth: Bandwidth,
    /// Queues.
    #[serde(default)]
    pub grouped_workqueues: Vec<WqConfig>,
    /// Engines.
    #[serde(default)]
    pub grouped_engines: Vec<EngineConfig>,
}

/// The share of the device's bandwidth, to or from memory, that a group may use. accel-config has no key for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bandwidth {
    /// No limit.
    #[default]
    All,
    /// A half.
    Half,
    /// A quarter.
    Quarter,
    /// An eighth.
    Eighth,
}

impl Bandwidth {
    /// All limits, the highest first: the position of each is its code in GRPCFG.
    pub const ALL: [Bandwidth; 4] = [Bandwidth::All, Bandwidth::Half, Bandwidth::Quarter, Bandwidth::Eighth];

    /// Returns the code in GRPCFG.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the word in options and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Bandwidth::All => "all",
            Bandwidth::Half => "half",
            Bandwidth::Quarter => "quarter",
            Bandwidth::Eighth => "eighth",
        }
    }
}

/// The mode of a queue, in accel-config's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WqMode {
    /// One client; posted writes.
    Dedicated,
    /// Many clients; deferrable writes.
    #[default]
    Shared,
}

/// One queue.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct WqConfig {
    /// `wq0.0`.
    pub dev: String,
    /// Dedicated or shared.
    #[serde(default)]
    pub mode: WqMode,
    /// Entries.
    pub size: u32,
    /// Priority, 1 to 15.
    #[serde(default = "default_priority")]
    pub priority: u32,
    /// 1 if descriptors may wait for pages.
    #[serde(default)]
    pub block_on_fault: u32,
    /// Largest batch, in descriptors; rounded up to a power of two.
    #[serde(default = "default_max_batch")]
    pub max_batch_size: u32,
    /// Largest transfer, in bytes; rounded up to a power of two.
    #[serde(default = "default_max_transfer")]
    pub max_transfer_size: u64,
    /// For a shared queue: the most entries that user portals may fill; the whole queue if absent.
    #[serde(default)]
    pub threshold: Option<u32>,
    /// The type of the queue; the model accepts only `user`.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// A name for users and programs.
    #[serde(default)]
    pub name: Option<String>,
    /// 1 disables the address translation service.
    #[serde(default)]
    pub ats_disable: u32,
    /// 1 disables page requests.
    #[serde(default)]
    pub prs_disable: u32,
}

// The Linux driver's defaults. Source: K612 `sysfs.c`: WQ maximum transfer 2 MiB, batch 32; priority 10 is that of
// accel-config's packaged profiles.
fn default_priority() -> u32 {
    10
}
fn default_max_batch() -> u32 {
    32
}
fn default_max_transfer() -> u64 {
    2 << 20
}

/// One engine.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct EngineConfig {
    /// `engine0.0`.
    pub dev: String,
}

/// Error: a file is not a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file is not accel-config JSON.
    #[error("{path} is not an accel-config configuration (a JSON array of devices, each with \"dev\" and \"groups\")")]
    Parse {
        /// The file.
        path: String,
        /// The position and kind of the error.
        #[source]
        source: serde_json::Error,
    },
    /// The file contains no device.
    #[error("{path} configures no device")]
    Empty {
        /// The file.
        path: String,
    },
}

impl WqConfig {
    /// Creates a queue with the driver's defaults, but with the largest transfers and batches.
    #[must_use]
    pub fn new(queue: u32, mode: WqMode, size: u32) -> Self {
        WqConfig {
            dev: format!("wq0.{queue}"),
            mode,
            size,
            priority: default_priority(),
            block_on_fault: 1,
            max_batch_size: 1024,
            max_transfer_size: 1 << 31,
            threshold: None,
            kind: Some("user".into()),
            name: Some(format!("telpher-{queue}")),
            ats_disable: 0,
            prs_disable: 0,
        }
    }
}

impl Config {
    /// Returns the model's default configuration. Every group has one engine and an equal share of the queues, first a
    /// dedicated queue, then shared ones, all of equal size.
    #[must_use]
    pub fn default_for(capabilities: &Capabilities) -> Self {
        let groups = u32::from(capabilities.grp_cap.groups());
        let engines = u32::from(capabilities.eng_cap.engines());
        let queues = u32::from(capabilities.wq_cap.queues());
        let used = groups.min(engines).min(queues);
        let size = u32::from(capabilities.wq_cap.total_entries()) / queues;
        let group = |group: u32| GroupConfig {
            dev: format!("group0.{group}"),
            grouped_workqueues: (group..queues)
                .step_by(used as usize)
                .map(|queue| {
                    let mode = if queue < used { WqMode::Dedicated } else { WqMode::Shared };
                    WqConfig::new(queue, mode, size)
                })
                .collect(),
            grouped_engines: (group..engines).step_by(used as usize).map(engine).collect(),
            ..GroupConfig::default()
        };
        Config::of_groups((0..used).map(group).collect())
    }

    /// Returns a configuration of one group with one queue and some engines.
    #[must_use]
    pub fn single(mode: WqMode, size: u32, engines: u32) -> Self {
        Config::of_groups(vec![GroupConfig {
            dev: "group0.0".into(),
            grouped_workqueues: vec![WqConfig::new(0, mode, size)],
            grouped_engines: (0..engines).map(engine).collect(),
            ..GroupConfig::default()
        }])
    }

    /// Returns a device with these groups.
    #[must_use]
    pub fn of_groups(groups: Vec<GroupConfig>) -> Self {
        Config { dev: "dsa0".into(), read_buffer_limit: 0, event_log_size: 0, groups }
    }

    /// Loads the devices of a file.
    ///
    /// # Errors
    /// If the file cannot be read, is not accel-config JSON, or contains no device.
    pub fn load(path: &std::path::Path) -> Result<Vec<Config>, ConfigError> {
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: name(), source })?;
        let devices: Vec<Config> =
            serde_json::from_str(&text).map_err(|source| ConfigError::Parse { path: name(), source })?;
        if devices.is_empty() {
            return Err(ConfigError::Empty { path: name() });
        }
        Ok(devices)
    }
}

fn engine(index: u32) -> EngineConfig {
    EngineConfig { dev: format!("engine0.{index}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_model::Preset;

    #[test]
    fn the_default_is_four_groups_eight_queues_four_engines_and_128_entries() {
        let config = Config::default_for(&Preset::Spr.capabilities());
        let queues: Vec<_> = config.groups.iter().flat_map(|group| &group.grouped_workqueues).collect();
        assert_eq!(config.groups.len(), 4);
        assert_eq!(queues.len(), 8);
        assert_eq!(queues.iter().map(|queue| queue.size).sum::<u32>(), 128);
        assert!(config.groups.iter().all(|group| group.grouped_engines.len() == 1));
    }

    #[test]
    fn a_saved_file_with_read_only_keys_loads() {
        let text = r#"[{"dev":"dsa0","max_groups":4,"state":"enabled","read_buffer_limit":0,"groups":[
            {"dev":"group0.0","traffic_class_a":1,"read_buffers_reserved":0,"use_read_buffer_limit":0,
             "read_buffers_allowed":8,
             "grouped_workqueues":[{"dev":"wq0.0","mode":"shared","size":16,"group_id":0,"priority":10,
               "block_on_fault":1,"type":"user","driver_name":"user","name":"app1","threshold":15,"clients":0}],
             "grouped_engines":[{"dev":"engine0.0","group_id":0},{"dev":"engine0.1","group_id":0}]}],
            "ungrouped_workqueues":[],"ungrouped_engines":[{"dev":"engine0.2"}]}]"#;
        let devices: Vec<Config> = serde_json::from_str(text).unwrap();
        let queue = &devices[0].groups[0].grouped_workqueues[0];
        assert_eq!((queue.size, queue.threshold, queue.mode), (16, Some(15), WqMode::Shared));
        assert_eq!(devices[0].groups[0].read_buffers_allowed, Some(8));
    }

    #[test]
    fn a_saved_configuration_loads_again() {
        let mut config = Config::default_for(&Preset::Full.capabilities());
        let text = serde_json::to_string(&[&config]).unwrap();
        // Implied values are written out.
        for queue in config.groups.iter_mut().flat_map(|group| &mut group.grouped_workqueues) {
            queue.threshold = (queue.mode == WqMode::Shared).then_some(queue.size);
        }
        assert_eq!(serde_json::from_str::<Vec<Config>>(&text).unwrap(), [config]);
    }

    #[test]
    fn a_written_file_has_every_key_that_accel_config_needs() {
        let mut plain = WqConfig::new(3, WqMode::Shared, 16);
        (plain.name, plain.kind, plain.ats_disable) = (None, None, 1);
        let group = GroupConfig {
            dev: "group2.1".into(),
            grouped_workqueues: vec![plain, WqConfig::new(4, WqMode::Dedicated, 8)],
            grouped_engines: vec![engine(2)],
            ..GroupConfig::default()
        };
        let written = serde_json::to_value(Config::of_groups(vec![group])).unwrap();
        let group = &written["groups"][0];
        let (shared, dedicated) = (&group["grouped_workqueues"][0], &group["grouped_workqueues"][1]);
        for queue in [shared, dedicated] {
            let driver = (&queue["group_id"], &queue["type"], &queue["driver_name"]);
            assert_eq!(driver, (&1.into(), &"user".into(), &"user".into()), "{queue}");
            assert!(queue["name"].is_string() && queue.get("prs_disable").is_none(), "{queue}");
        }
        assert_eq!((&shared["threshold"], &shared["ats_disable"]), (&16.into(), &1.into()), "{shared}");
        assert_eq!((dedicated.get("threshold"), dedicated.get("ats_disable")), (None, None), "{dedicated}");
        assert_eq!(group["grouped_engines"][0]["group_id"], 1, "{group}");
    }
}
