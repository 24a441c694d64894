//! The driver as programs see it: only through paths, texts and errnos.

mod attributes;
mod binding;
mod files;
mod hostile;
mod loading;
mod readers;
mod versions;

use super::{Abi, Kernel};
use crate::hardware::Hardware;
use crate::tree::{Caller, Errno};
use telpher_model::{Capabilities, Preset};

/// One unconfigured device.
fn fresh(preset: Preset, abi: Abi) -> Kernel {
    with(preset.capabilities(), abi)
}

fn with(capabilities: Capabilities, abi: Abi) -> Kernel {
    Kernel::new(&Hardware::unconfigured(1, capabilities), abi, false).unwrap()
}

/// The path of an attribute in /sys/bus/dsa/devices.
fn path(attribute: &str) -> String {
    format!("/sys/bus/dsa/devices/{attribute}")
}

/// Writes an attribute as `echo` does.
fn set(kernel: &mut Kernel, attribute: &str, value: &str) -> Result<(), Errno> {
    let text = format!("{value}\n");
    kernel.store(&path(attribute), text.as_bytes()).map(|taken| assert_eq!(taken, text.len()))
}

/// Reads an attribute; checks and removes the final newline.
fn get(kernel: &mut Kernel, attribute: &str) -> Result<String, Errno> {
    let text = String::from_utf8(kernel.show(&path(attribute))?).unwrap();
    Ok(text.strip_suffix('\n').unwrap_or_else(|| panic!("{attribute} ends its line: {text:?}")).to_owned())
}

fn write(kernel: &mut Kernel, path: &str, text: &str) -> Result<(), Errno> {
    kernel.store(path, text.as_bytes()).map(|taken| assert_eq!(taken, text.len()))
}

fn bind(kernel: &mut Kernel, driver: &str, name: &str) -> Result<(), Errno> {
    write(kernel, &format!("/sys/bus/dsa/drivers/{driver}/bind"), name)
}

fn unbind(kernel: &mut Kernel, driver: &str, name: &str) -> Result<(), Errno> {
    write(kernel, &format!("/sys/bus/dsa/drivers/{driver}/unbind"), name)
}

/// Makes writes that must all succeed; skips attributes that the kernel version does not have.
fn script(kernel: &mut Kernel, lines: &[(&str, &str)]) {
    for (attribute, value) in lines {
        if kernel.entry(&format!("{}/.", path(attribute))) == Err(Errno::NOENT) {
            continue;
        }
        assert_eq!(set(kernel, attribute, value), Ok(()), "{attribute} {value}");
    }
}

/// A shared user queue wq0.0 and a dedicated one wq0.1 in group 0, with all engines.
const SETTINGS: &[(&str, &str)] = &[
    ("engine0.0/group_id", "0"),
    ("engine0.1/group_id", "0"),
    ("engine0.2/group_id", "0"),
    ("engine0.3/group_id", "0"),
    ("wq0.0/group_id", "0"),
    ("wq0.0/mode", "shared"),
    ("wq0.0/size", "16"),
    ("wq0.0/threshold", "8"),
    ("wq0.0/priority", "10"),
    ("wq0.0/type", "user"),
    ("wq0.0/name", "one"),
    ("wq0.0/driver_name", "user"),
    ("wq0.1/group_id", "0"),
    ("wq0.1/mode", "dedicated"),
    ("wq0.1/size", "16"),
    ("wq0.1/priority", "10"),
    ("wq0.1/type", "user"),
    ("wq0.1/name", "two"),
    ("wq0.1/driver_name", "user"),
];

/// The state to which a test brings a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// As found by the driver.
    Found,
    /// The settings are made.
    Configured,
    /// The device is enabled, its queues are not.
    DeviceEnabled,
    /// The device, wq0.0 and wq0.1 are enabled.
    Enabled,
}

fn bring(kernel: &mut Kernel, stage: Stage) {
    if stage == Stage::Found {
        return;
    }
    script(kernel, SETTINGS);
    if stage == Stage::Configured {
        return;
    }
    assert_eq!(bind(kernel, "idxd", "dsa0"), Ok(()));
    if stage == Stage::DeviceEnabled {
        return;
    }
    assert_eq!(bind(kernel, "user", "wq0.0"), Ok(()));
    assert_eq!(bind(kernel, "user", "wq0.1"), Ok(()));
}

fn brought(preset: Preset, abi: Abi, stage: Stage) -> Kernel {
    let mut kernel = fresh(preset, abi);
    bring(&mut kernel, stage);
    kernel
}

fn caller(process: u32, space: u64) -> Caller {
    Caller { process, space }
}
