//! Which devices the virtual machine has.

use crate::tree::Errno;
use std::path::{Path, PathBuf};
use telpher_model::{Capabilities, CapabilityError, Preset};

/// The devices of the virtual machine, and how the driver finds them configured.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Devices, in the order of their numbers.
    pub devices: Vec<HardwareDevice>,
}

/// One device.
#[derive(Clone, Debug)]
pub struct HardwareDevice {
    /// N of `dsaN`.
    pub number: u32,
    /// What it can do.
    pub capabilities: Capabilities,
}

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
    /// The capabilities are beyond the model.
    #[error("the model cannot be such a device")]
    Capabilities(#[from] CapabilityError),
    /// The driver refused a setting.
    #[error("{file}: {object}: {key}: {errno}; {advice}")]
    Refused {
        /// File or preset.
        file: String,
        /// `wq0.0`.
        object: String,
        /// Which key.
        key: String,
        /// What the driver answered.
        errno: Errno,
        /// What to do.
        advice: String,
    },
}

impl Hardware {
    /// The hardware of a preset's name, or of a file with accel-config's JSON.
    ///
    /// # Errors
    /// If there is no such preset, or the file is none.
    pub fn from_name(name: &str) -> Result<Self, HardwareError> {
        Err(HardwareError::Unknown { name: name.into(), presets: Self::presets().join(", ") })
    }

    /// The hardware of a file with accel-config's JSON.
    ///
    /// # Errors
    /// If it cannot be read or is no such file.
    pub fn from_file(_path: &Path) -> Result<Self, HardwareError> {
        Ok(Self::default())
    }

    /// Names of the presets.
    #[must_use]
    pub fn presets() -> Vec<&'static str> {
        vec!["spr-1", "spr-2", "spr-4", "spr-8", "xeon-max-8"]
    }
}

impl Default for Hardware {
    /// One device, unconfigured and disabled.
    fn default() -> Self {
        Hardware { devices: vec![HardwareDevice { number: 0, capabilities: Preset::Spr.capabilities() }] }
    }
}
