//! Whether a queue still works, by what the driver says.
//!
//! The attributes are opened once, and each look is a read or two: cheap enough for every millisecond of a wait. A name that is
//! enabled anew is not the same queue, so the node's own attribute is kept open too: it goes with the node.
//!
//! | seen | meaning | source |
//! |---|---|---|
//! | device `halted` | stopped by an error | K612 `irq.c`; SPEC §5.7 |
//! | device `disabled` | unbound or reset | K612 `device.c` |
//! | queue `disabled` | unbound | K612 `device.c`, idxd_drv_disable_wq: drained and reset first |
//! | `clients` 0, or another node of the name | disabled, and enabled anew | K612 `device.c`, `cdev.c` |
//!
//! What cannot be read tells nothing.

use crate::attribute::Value;
use crate::files::Live;
use crate::machine::{Device, Queue, State};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use telpher_abi::{DeviceError, Status, SwError};

/// Longest attribute that is looked at: 256 bits as text. Source: K612 `sysfs.c`, errors_show.
const ATTRIBUTE_BYTES: usize = 128;

/// The open attributes.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    device: String,
    queue: String,
    device_state: Option<File>,
    device_errors: Option<File>,
    queue_state: Option<File>,
    queue_clients: Option<File>,
    /// The node's own number, and where another node of the same name would show its.
    node: Option<(File, PathBuf)>,
}

impl Evidence {
    /// Opens what is there.
    pub(crate) fn of(files: &Live, device: &Device, queue: &Queue) -> Self {
        let devices = Path::new("/sys/bus/dsa/devices");
        let open = |path: PathBuf| File::open(files.at(&path)).ok();
        // The driver calls the node `dsa/wq0.0`, and sysfs writes ! for the stroke. Source: K612 `cdev.c`, idxd_cdev_devnode.
        let node = devices.join(&queue.name).join(format!("dsa!{}/dev", queue.name));
        Evidence {
            device: device.name.clone(),
            queue: queue.name.clone(),
            device_state: open(devices.join(&device.name).join("state")),
            device_errors: open(devices.join(&device.name).join("errors")),
            queue_state: open(devices.join(&queue.name).join("state")),
            queue_clients: open(devices.join(&queue.name).join("clients")),
            node: open(node.clone()).map(|file| (file, files.at(&node))),
        }
    }

    /// Why the queue works no more; `None` while nothing says so.
    pub(crate) fn stopped(&self) -> Option<String> {
        let (device, queue) = (&self.device, &self.queue);
        match value(self.device_state.as_ref()) {
            Some(State::Halted) => return Some(format!("{device} has halted{}", self.error())),
            Some(State::Disabled) => return Some(format!("{device} has been disabled{}", self.error())),
            Some(State::Enabled) | None => {}
        }
        if value(self.queue_state.as_ref()) == Some(State::Disabled) {
            return Some(format!("{queue} has been disabled"));
        }
        let nobody = value(self.queue_clients.as_ref()) == Some(0_u32);
        let replaced = self.node.as_ref().is_some_and(|(node, path)| is_gone(node) && File::open(path).is_ok());
        (nobody || replaced).then(|| format!("{queue} has been disabled and enabled anew since it was opened"))
    }

    /// What SWERROR says, as the end of a sentence.
    fn error(&self) -> String {
        let Some(error) = value(self.device_errors.as_ref()).map(SwError).filter(SwError::valid) else {
            return String::new();
        };
        let code = error.error_code();
        let meaning = match (DeviceError::from_code(code), Status::from_code(code)) {
            (DeviceError::Unknown(_), status) => status.to_string(),
            (known, _) => known.to_string(),
        };
        format!("; its error register says: {meaning}")
    }
}

/// An attribute's value now.
fn value<T: Value>(file: Option<&File>) -> Option<T> {
    let mut text = [0; ATTRIBUTE_BYTES];
    let len = file?.read_at(&mut text, 0).ok()?;
    T::parse(std::str::from_utf8(&text[..len]).ok()?.trim())
}

/// True once what an attribute was about does not exist any more. Source: K612 `fs/kernfs/file.c`, ENODEV.
fn is_gone(file: &File) -> bool {
    file.read_at(&mut [0; ATTRIBUTE_BYTES], 0)
        .is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)))
}
