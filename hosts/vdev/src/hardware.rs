//! The devices of the virtual machine: presets, and files in accel-config's own JSON.
//!
//! A file is an array of devices. Its keys are applied in file order through the driver's attributes. Then every device
//! and every queue in a group is enabled, as `accel-config load-config -e` does. accel-config ignores two additional
//! keys: `"capabilities"` (`"spr"`, the default, `"spr-fw2"`, `"full"`, `"srf"`, `"v2-full"` or `"v3-full"`) selects
//! what a device can do, `"about"` is for readers. Other devices than DSA (`iaxN`) are skipped.

pub(crate) mod json;

use crate::kernel::Abi;
use crate::tree::Errno;
use json::{Json, Object};
use std::path::{Path, PathBuf};
use telpher_model::{Capabilities, CapabilityError};

/// Most devices. Source: chosen; a real machine has at most 8.
const MAX_DEVICES: usize = 64;

/// The devices of the virtual machine, and their configuration at start.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Devices, in the order of their numbers.
    pub devices: Vec<HardwareDevice>,
    /// An IOMMU in scalable mode exists, so PASIDs can be used. Without it user queues are refused.
    pub shared_virtual_memory: bool,
    /// File or preset, for error messages.
    pub source: String,
}

/// One device.
#[derive(Clone, Debug)]
pub struct HardwareDevice {
    /// N of `dsaN`.
    pub number: u32,
    /// PCI address, `0000:6a:01.0`.
    pub address: String,
    /// What the device can do.
    pub capabilities: Capabilities,
    /// The configuration when the program starts; `None` for an unconfigured device.
    pub configuration: Option<Configuration>,
    /// The configuration comes from a preset: it is written for device 0 and used for every device number.
    pub(crate) from_preset: bool,
}

/// One device of a file in accel-config's JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configuration(pub(crate) Object);

/// Why a hardware description cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardwareError {
    /// The name is neither a preset nor a file.
    #[error("there is no hardware '{name}'; use one of the presets {presets}, or a file with accel-config JSON")]
    Unknown {
        /// The requested name.
        name: String,
        /// The available presets.
        presets: String,
    },
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file is not JSON.
    #[error("{file} is not JSON")]
    Parse {
        /// The file.
        file: String,
        /// The position and cause.
        #[source]
        source: serde_json::Error,
    },
    /// The file is JSON, but not a configuration.
    #[error("{file} is not a configuration of accel-config: {what}")]
    Shape {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The model does not support the capabilities.
    #[error("the model does not support such a device")]
    Capabilities(#[from] CapabilityError),
    /// The driver refused a setting, or to enable a device or queue.
    #[error("{file}: {object}: {key}: {errno}; {advice}")]
    Refused {
        /// File or preset.
        file: String,
        /// `wq0.0`.
        object: String,
        /// The key and its value.
        key: String,
        /// The driver's errno.
        errno: Errno,
        /// Advice: the valid values, or the reason.
        advice: String,
    },
}

/// A named machine.
struct Preset {
    name: &'static str,
    devices: u32,
    /// The configuration of one device, used for all.
    text: &'static str,
}

const SPR: &str = include_str!("../presets/spr.json");
const XEON_MAX: &str = include_str!("../presets/xeon-max.json");
const FULL: &str = include_str!("../presets/full.json");
const SRF: &str = include_str!("../presets/srf.json");
const V2_FULL: &str = include_str!("../presets/v2-full.json");
const V3_FULL: &str = include_str!("../presets/v3-full.json");

static PRESETS: &[Preset] = &[
    Preset { name: "spr-1", devices: 1, text: SPR },
    Preset { name: "spr-2", devices: 2, text: SPR },
    Preset { name: "spr-4", devices: 4, text: SPR },
    Preset { name: "spr-8", devices: 8, text: SPR },
    Preset { name: "xeon-max-8", devices: 8, text: XEON_MAX },
    Preset { name: "full-1", devices: 1, text: FULL },
    Preset { name: "srf-1", devices: 1, text: SRF },
    Preset { name: "v2-full-1", devices: 1, text: V2_FULL },
    Preset { name: "v3-full-1", devices: 1, text: V3_FULL },
];

/// PCI buses of the devices of a two-socket Sapphire Rapids machine. Source: published lspci listings.
const BUSES: [u8; 8] = [0x6a, 0x6f, 0x74, 0x79, 0xe7, 0xec, 0xf1, 0xf6];

impl Hardware {
    /// Returns the hardware of a preset, or of a file with accel-config's JSON.
    ///
    /// # Errors
    /// If there is no such preset, or the file is invalid.
    pub fn from_name(name: &str) -> Result<Self, HardwareError> {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) {
            return preset.hardware();
        }
        // Preset names contain neither character, so a mistyped preset is not searched for as a file.
        if name.contains(['/', '.']) {
            return Self::from_file(Path::new(name));
        }
        Err(HardwareError::Unknown { name: name.into(), presets: Self::presets().join(", ") })
    }

    /// Moves the devices to another PCI domain if this machine has one of their root buses (`is_taken("pci0000:6a")`),
    /// so that the machine's own devices stay visible.
    pub fn avoid(&mut self, is_taken: impl Fn(&str) -> bool) {
        let root = |domain: u32, rest: &str| format!("pci{domain:04x}:{}", rest.split(':').next().unwrap_or_default());
        let rests: Vec<String> = self
            .devices
            .iter()
            .filter_map(|device| device.address.split_once(':'))
            .map(|(_, rest)| rest.into())
            .collect();
        let free = |domain: &u32| !rests.iter().any(|rest| is_taken(&root(*domain, rest)));
        // On a machine with 65536 full domains, our devices hide the machine's.
        let Some(domain) = (0..0x1_0000).find(free) else { return };
        for (device, rest) in self.devices.iter_mut().zip(rests) {
            device.address = format!("{domain:04x}:{rest}");
        }
    }

    /// Reads a file with accel-config's JSON.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid.
    pub fn from_file(path: &Path) -> Result<Self, HardwareError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| HardwareError::Read { path: path.to_owned(), source })?;
        Self::from_text(&text, &path.display().to_string())
    }

    /// Parses the text of such a file; `source` names it in errors.
    ///
    /// # Errors
    /// If the text is invalid.
    pub fn from_text(text: &str, source: &str) -> Result<Self, HardwareError> {
        let shape = |what: &str| HardwareError::Shape { file: source.into(), what: what.into() };
        let json = Json::read(text).map_err(|error| HardwareError::Parse { file: source.into(), source: error })?;
        let Json::List(items) = json else { return Err(shape("it is not an array of devices")) };
        let mut devices = Vec::new();
        for item in items {
            let Json::Object(object) = item else { return Err(shape("a device is not an object")) };
            let Some(Json::Text(name)) = object.get("dev") else { return Err(shape("a device has no \"dev\"")) };
            if name.starts_with("iax") {
                continue;
            }
            let number = name.strip_prefix("dsa").and_then(|number| number.parse().ok());
            let number: u32 =
                number.ok_or_else(|| shape(&format!("\"{name}\" is not a device; device names are like dsa0")))?;
            if devices.iter().any(|device: &HardwareDevice| device.number == number) {
                return Err(shape(&format!("dsa{number} is listed twice")));
            }
            let capabilities = match object.get("capabilities") {
                None => telpher_model::Preset::Spr,
                Some(Json::Text(name)) => telpher_model::Preset::from_name(name).ok_or_else(|| {
                    shape(&format!("unknown capabilities \"{name}\"; use spr, spr-fw2, full, srf, v2-full or v3-full"))
                })?,
                Some(_) => return Err(shape("\"capabilities\" is not a text")),
            };
            devices.push(HardwareDevice {
                number,
                address: String::new(),
                capabilities: capabilities.capabilities(),
                configuration: Some(Configuration(object)),
                from_preset: false,
            });
        }
        if devices.is_empty() || devices.len() > MAX_DEVICES {
            return Err(shape(&format!("it has {} DSA devices, not 1 to {MAX_DEVICES}", devices.len())));
        }
        devices.sort_by_key(|device| device.number);
        for (device, place) in devices.iter_mut().zip(0..) {
            device.address = address(place);
        }
        Ok(Hardware { devices, shared_virtual_memory: true, source: source.into() })
    }

    /// Queues that are shared in the preset but become dedicated, because this kernel version has no shared queues for
    /// users.
    #[must_use]
    pub fn unshared(&self, abi: Abi) -> Vec<String> {
        let unshared = self.devices.iter().filter(|device| device.is_unshared(abi));
        unshared.flat_map(HardwareDevice::shared_queues).collect()
    }

    /// Devices with these capabilities, unconfigured and disabled.
    #[must_use]
    pub fn unconfigured(devices: u32, capabilities: Capabilities) -> Self {
        let device = |number| HardwareDevice {
            number,
            address: address(number),
            capabilities,
            configuration: None,
            from_preset: false,
        };
        let source = "unconfigured hardware".into();
        Hardware { devices: (0..devices).map(device).collect(), shared_virtual_memory: true, source }
    }

    /// Names of the presets.
    #[must_use]
    pub fn presets() -> Vec<&'static str> {
        PRESETS.iter().map(|preset| preset.name).collect()
    }
}

impl HardwareDevice {
    /// True if shared queues become dedicated: only in presets, which serve all kernel versions. A file is applied as
    /// written.
    pub(crate) fn is_unshared(&self, abi: Abi) -> bool {
        self.from_preset && !abi.has_shared_queues_for_users()
    }

    /// Names of the shared queues in the configuration.
    fn shared_queues(&self) -> Vec<String> {
        let objects = |list: Option<&Json>| match list {
            Some(Json::List(items)) => items.clone(),
            _ => Vec::new(),
        };
        let groups = objects(self.configuration.as_ref().and_then(|device| device.0.get("groups")));
        let queues = groups.iter().flat_map(|group| match group {
            Json::Object(group) => objects(group.get("grouped_workqueues")),
            _ => Vec::new(),
        });
        let name = |queue: Json| match &queue {
            Json::Object(queue) if queue.get("mode") == Some(&Json::Text("shared".into())) => match queue.get("dev") {
                // A preset has the names of the first device.
                Some(Json::Text(name)) => {
                    Some(format!("wq{}.{}", self.number, name.rsplit('.').next().unwrap_or(name)))
                }
                _ => None,
            },
            _ => None,
        };
        queues.filter_map(name).collect()
    }
}

impl Default for Hardware {
    /// One device, unconfigured and disabled.
    fn default() -> Self {
        Self::unconfigured(1, telpher_model::Preset::Spr.capabilities())
    }
}

impl Preset {
    fn hardware(&self) -> Result<Hardware, HardwareError> {
        let mut hardware = Hardware::from_text(self.text, self.name)?;
        let Some(first) = hardware.devices.pop() else { return Ok(hardware) };
        let device = |number| HardwareDevice { number, address: address(number), from_preset: true, ..first.clone() };
        hardware.devices = (0..self.devices).map(device).collect();
        Ok(hardware)
    }
}

/// Address of the n-th device: function 01.0 on its own root bus.
fn address(place: u32) -> String {
    let bus = usize::try_from(place).ok().and_then(|place| BUSES.get(place)).map_or(0x80 + place, |bus| (*bus).into());
    format!("0000:{bus:02x}:01.0")
}
