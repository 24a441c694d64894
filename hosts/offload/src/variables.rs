//! The variables with which a program is offloaded that another program starts: a systemd unit, a container, a script.

use crate::run::OffloadError;
use std::path::Path;
use telpher_device::{DeviceName, ModelSource};
use telpher_launch::{PRELOAD, UserDirectory, libraries};
use telpher_offload_wire::{Settings, VARIABLE};

/// Writes the library to a file that stays, and returns the variables for the program's environment. Their values have
/// no blanks, quotes, dollar or per cent signs, so they need no quoting anywhere.
///
/// The library goes to `library`, or to a file for this build in the user's cache directory. The program counts in no
/// file.
///
/// # Errors
/// If a device's name is unknown, or the library cannot be written.
pub fn variables(settings: Settings, library: Option<&Path>) -> Result<[(&'static str, String); 2], OffloadError> {
    let devices = settings.devices.iter().map(|name| Ok(everywhere(name.parse()?).to_string()));
    let settings = Settings { devices: devices.collect::<Result<_, OffloadError>>()?, folder: None, ..settings };
    let library = match library {
        Some(path) => libraries::OFFLOAD.write_to(path)?,
        None => libraries::OFFLOAD.place(&UserDirectory::lasting()?)?,
    };
    Ok([(PRELOAD, library.to_string_lossy().into_owned()), (VARIABLE, settings.to_value())])
}

/// Returns a name that means the same device in every working directory.
fn everywhere(device: DeviceName) -> DeviceName {
    match device {
        DeviceName::Model(ModelSource::File(path)) => {
            // An empty path is an error when the device is opened, too.
            DeviceName::Model(ModelSource::File(std::path::absolute(&path).unwrap_or(path)))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modelled_device_is_named_by_an_absolute_path() {
        let file = everywhere("model:./devices.json".parse().unwrap()).to_string();
        assert!(file.starts_with("model:/") && file.ends_with("/devices.json"), "{file}");
        assert_eq!(everywhere("hw:wq0.1".parse().unwrap()).to_string(), "hw:wq0.1");
    }
}
