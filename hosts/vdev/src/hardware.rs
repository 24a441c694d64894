//! Which devices the virtual machine has: presets, and files in accel-config's own JSON.
//!
//! A file is an array of devices. Its keys are applied in file order through the driver's attributes, then every device and
//! every queue in a group is enabled, as `accel-config load-config -e` does. Two keys are ours, and ignored by accel-config:
//! `"capabilities"` (`"spr"`, the default, `"spr-fw2"` or `"full"`) says what a device can do, `"about"` is for readers.
//! Devices that are no DSA (`iaxN`) are passed over: there are none here.

pub(crate) mod json;

use crate::kernel::Abi;
use crate::tree::Errno;
use json::{Json, Object};
use std::path::{Path, PathBuf};
use telpher_model::{Capabilities, CapabilityError};

/// Most devices. Source: chosen; a machine has 8 at most.
const MAX_DEVICES: usize = 64;

/// The devices of the virtual machine, and how the driver finds them configured.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Devices, in the order of their numbers.
    pub devices: Vec<HardwareDevice>,
    /// There is an IOMMU in scalable mode, so PASIDs can be used. Without it user queues are refused.
    pub shared_virtual_memory: bool,
    /// File or preset, for errors.
    pub source: String,
}

/// One device.
#[derive(Clone, Debug)]
pub struct HardwareDevice {
    /// N of `dsaN`.
    pub number: u32,
    /// PCI address, `0000:6a:01.0`.
    pub address: String,
    /// What it can do.
    pub capabilities: Capabilities,
    /// How it is configured when the program starts; `None` for not at all.
    pub configuration: Option<Configuration>,
    /// The configuration is a preset's: written for device 0, whatever this one's number is.
    pub(crate) from_preset: bool,
}

/// One device of a file in accel-config's JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configuration(pub(crate) Object);

/// Why there is no such hardware.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HardwareError {
    /// Neither a preset nor a file.
    #[error("no hardware is called '{name}'; presets are: {presets}; or give a file of accel-config JSON")]
    Unknown {
        /// Asked for.
        name: String,
        /// What there is.
        presets: String,
    },
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is not JSON.
    #[error("{file} is not JSON")]
    Parse {
        /// Which.
        file: String,
        /// Where it goes wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The file is JSON, but no configuration.
    #[error("{file} is no configuration of accel-config: {what}")]
    Shape {
        /// Which.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The capabilities are beyond the model.
    #[error("the model cannot be such a device")]
    Capabilities(#[from] CapabilityError),
    /// The driver refused a setting, or to enable something.
    #[error("{file}: {object}: {key}: {errno}; {advice}")]
    Refused {
        /// File or preset.
        file: String,
        /// `wq0.0`.
        object: String,
        /// Which key, with its value.
        key: String,
        /// What the driver answered.
        errno: Errno,
        /// What is wanted, or why not.
        advice: String,
    },
}

/// A named machine.
struct Preset {
    name: &'static str,
    devices: u32,
    /// One device; all are alike.
    text: &'static str,
}

const SPR: &str = include_str!("../presets/spr.json");
const XEON_MAX: &str = include_str!("../presets/xeon-max.json");
const FULL: &str = include_str!("../presets/full.json");

static PRESETS: &[Preset] = &[
    Preset { name: "spr-1", devices: 1, text: SPR },
    Preset { name: "spr-2", devices: 2, text: SPR },
    Preset { name: "spr-4", devices: 4, text: SPR },
    Preset { name: "spr-8", devices: 8, text: SPR },
    Preset { name: "xeon-max-8", devices: 8, text: XEON_MAX },
    Preset { name: "full-1", devices: 1, text: FULL },
];

/// PCI buses of the devices of a two-socket Sapphire Rapids machine. Source: published lspci listings.
const BUSES: [u8; 8] = [0x6a, 0x6f, 0x74, 0x79, 0xe7, 0xec, 0xf1, 0xf6];

impl Hardware {
    /// The hardware of a preset's name, or of a file with accel-config's JSON.
    ///
    /// # Errors
    /// If there is no such preset, or the file is none.
    pub fn from_name(name: &str) -> Result<Self, HardwareError> {
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == name) {
            return preset.hardware();
        }
        // A preset's name has neither, so a mistyped preset is not looked for among the files.
        if name.contains(['/', '.']) {
            return Self::from_file(Path::new(name));
        }
        Err(HardwareError::Unknown { name: name.into(), presets: Self::presets().join(", ") })
    }

    /// Moves devices whose PCI root bus this machine has itself (`is_taken("pci0000:6a")`) to the same bus of a domain in
    /// which no bus is taken, so that the machine's own devices stay where they are.
    pub fn avoid(&mut self, is_taken: impl Fn(&str) -> bool) {
        let root = |domain: u32, rest: &str| format!("pci{domain:04x}:{}", rest.split(':').next().unwrap_or_default());
        let rests: Vec<String> = self
            .devices
            .iter()
            .filter_map(|device| device.address.split_once(':'))
            .map(|(_, rest)| rest.into())
            .collect();
        let free = |domain: &u32| !rests.iter().any(|rest| is_taken(&root(*domain, rest)));
        // A machine with 65536 full domains keeps its devices hidden behind ours.
        let Some(domain) = (0..0x1_0000).find(free) else { return };
        for (device, rest) in self.devices.iter_mut().zip(rests) {
            device.address = format!("{domain:04x}:{rest}");
        }
    }

    /// The hardware of a file with accel-config's JSON.
    ///
    /// # Errors
    /// If it cannot be read or is no such file.
    pub fn from_file(path: &Path) -> Result<Self, HardwareError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| HardwareError::Read { path: path.to_owned(), source })?;
        Self::from_text(&text, &path.display().to_string())
    }

    /// The hardware of such a file's text; `source` names it in errors.
    ///
    /// # Errors
    /// If it is no such text.
    pub fn from_text(text: &str, source: &str) -> Result<Self, HardwareError> {
        let shape = |what: &str| HardwareError::Shape { file: source.into(), what: what.into() };
        let json = Json::read(text).map_err(|error| HardwareError::Parse { file: source.into(), source: error })?;
        let Json::List(items) = json else { return Err(shape("it is no array of devices")) };
        let mut devices = Vec::new();
        for item in items {
            let Json::Object(object) = item else { return Err(shape("a device is no object")) };
            let Some(Json::Text(name)) = object.get("dev") else { return Err(shape("a device has no \"dev\"")) };
            if name.starts_with("iax") {
                continue;
            }
            let number = name.strip_prefix("dsa").and_then(|number| number.parse().ok());
            let number: u32 = number.ok_or_else(|| shape(&format!("\"{name}\" is no device; one is called dsa0")))?;
            if devices.iter().any(|device: &HardwareDevice| device.number == number) {
                return Err(shape(&format!("dsa{number} is there twice")));
            }
            let capabilities = match object.get("capabilities") {
                None => telpher_model::Preset::Spr,
                Some(Json::Text(name)) => telpher_model::Preset::from_name(name)
                    .ok_or_else(|| shape(&format!("\"{name}\" are no capabilities; spr, spr-fw2 and full are")))?,
                Some(_) => return Err(shape("\"capabilities\" is no text")),
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

    /// Queues that the preset shares and this kernel cannot: they are dedicated there.
    #[must_use]
    pub fn unshared(&self, abi: Abi) -> Vec<String> {
        let unshared = self.devices.iter().filter(|device| device.is_unshared(abi));
        unshared.flat_map(HardwareDevice::shared_queues).collect()
    }

    /// So many devices with these capabilities, unconfigured and disabled.
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
    /// True if what is written as shared becomes dedicated: in presets, which serve all kernels. A file means what it says.
    pub(crate) fn is_unshared(&self, abi: Abi) -> bool {
        self.from_preset && !abi.has_shared_queues_for_users()
    }

    /// Names of the queues that the configuration shares.
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
                // A preset's names are those of its first device.
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

/// Address of the n-th device: 01.0 of a root bus of its own.
fn address(place: u32) -> String {
    let bus = usize::try_from(place).ok().and_then(|place| BUSES.get(place)).map_or(0x80 + place, |bus| (*bus).into());
    format!("0000:{bus:02x}:01.0")
}
