//! Device names as users type them: `cpu`, `model:spr`, `model:FILE`, `hw:wq0.1`, `all`.

use std::path::PathBuf;
use std::str::FromStr;
use telpher_model::Preset;

/// The device that gets the work.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceName {
    /// No device: the CPU path.
    Cpu,
    /// The modelled device.
    Model(ModelSource),
    /// A real device's queue.
    Hardware(WqName),
    /// Every available device.
    All,
}

/// The source of a modelled device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelSource {
    /// A named set of capabilities, in its default configuration.
    Preset(Preset),
    /// An accel-config JSON file.
    File(PathBuf),
}

/// A queue's name: `wq0.1` is queue 1 of device 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct WqName {
    /// Number of the device.
    pub device: u32,
    /// Number of the queue in it.
    pub queue: u32,
}

/// Error: a name is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Not a device name.
    #[error(
        "unknown device '{0}'; accepted: cpu, model:spr, model:spr-fw2, model:full, model:srf, model:v2-full, \
         model:v3-full, model:FILE (accel-config JSON), hw:wqM.N, all"
    )]
    Device(String),
    /// Not a queue name.
    #[error("'{0}' is not a queue; queues are named like wq0.1 (device 0, queue 1)")]
    Queue(String),
}

impl FromStr for WqName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let parse = || {
            let (device, queue) = text.strip_prefix("wq")?.split_once('.')?;
            let number =
                |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
            Some(WqName { device: number(device)?, queue: number(queue)? })
        };
        parse().ok_or_else(|| NameError::Queue(text.into()))
    }
}

impl std::fmt::Display for WqName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "wq{}.{}", self.device, self.queue)
    }
}

impl FromStr for DeviceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match text.split_once(':') {
            None if text == "cpu" => Ok(DeviceName::Cpu),
            None if text == "all" => Ok(DeviceName::All),
            Some(("model", source)) => {
                if let Some(preset) = Preset::from_name(source) {
                    Ok(DeviceName::Model(ModelSource::Preset(preset)))
                } else if source.contains(['/', '.']) {
                    // Preset names contain neither character, so a mistyped preset is not searched for among the files.
                    Ok(DeviceName::Model(ModelSource::File(source.into())))
                } else {
                    Err(NameError::Device(text.into()))
                }
            }
            Some(("hw", queue)) => queue.parse().map(DeviceName::Hardware),
            _ => Err(NameError::Device(text.into())),
        }
    }
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceName::Cpu => f.write_str("cpu"),
            DeviceName::All => f.write_str("all"),
            DeviceName::Hardware(queue) => write!(f, "hw:{queue}"),
            DeviceName::Model(ModelSource::Preset(preset)) => write!(f, "model:{}", preset.name()),
            DeviceName::Model(ModelSource::File(path)) => write!(f, "model:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_printed_name_parses_back() {
        for text in [
            "cpu",
            "all",
            "model:spr",
            "model:spr-fw2",
            "model:full",
            "model:srf",
            "model:v2-full",
            "model:v3-full",
            "model:./my.json",
            "hw:wq0.1",
        ] {
            assert_eq!(text.parse::<DeviceName>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_wrong_name_error_lists_the_accepted_names() {
        for text in ["gpu", "model", "model:sprr", "hw", "hw:0.1", "hw:wq0", "hw:wq0.x", "hw:wq+1.0", ""] {
            let error = text.parse::<DeviceName>().unwrap_err().to_string();
            assert!(error.contains("accepted: cpu") || error.contains("named like wq0.1"), "{text}: {error}");
        }
    }
}
