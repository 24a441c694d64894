//! Determines from the driver's attributes whether a queue still works.
//!
//! The attributes are opened once, and each check is a read or two: cheap enough for every millisecond of a wait. A
//! queue that is disabled and enabled again is not the same queue, so the node's own attribute is kept open, too; it
//! disappears with the node.
//!
//! | observed | meaning | source |
//! |---|---|---|
//! | device `halted` | stopped by an error | K612 `irq.c`; SPEC §5.7 |
//! | device `disabled` | unbound or reset | K612 `device.c` |
//! | queue `disabled` | unbound | K612 `device.c`, idxd_drv_disable_wq: drained and reset first |
//! | `clients` 0, or another node of the name | disabled, and enabled again | K612 `device.c`, `cdev.c` |
//! | an error of a dedicated queue without a record | a descriptor of its only client was lost | SPEC §5.4, §5.9 |
//! | an error that halts, but the device works | the driver reset and enabled it | K612 `irq.c`, idxd_device_reinit |
//!
//! An unreadable attribute proves nothing. Nor does an error of a shared queue: it contains a PASID, and a program does
//! not know its own.

use crate::attribute::Value;
use crate::discover::path_of;
use crate::files::Live;
use crate::machine::{Device, Queue, State};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use telpher_abi::{DeviceError, Status, SwError};
use telpher_portal::{QueueInfo, QueueMode};

/// The longest attribute that is read: 256 bits as text. Source: K612 `sysfs.c`, errors_show.
const ATTRIBUTE_BYTES: usize = 128;

/// The open attributes.
#[derive(Debug, Default)]
pub(crate) struct HealthAttributes {
    device: String,
    queue: String,
    queue_number: u32,
    device_state: Option<File>,
    device_errors: Option<File>,
    queue_state: Option<File>,
    queue_clients: Option<File>,
    /// The node's own number, and the path at which another node of the same name would show its number.
    node: Option<(File, PathBuf)>,
}

impl HealthAttributes {
    /// Opens the attributes that exist.
    pub(crate) fn of(files: &Live, device: &Device, queue: &Queue) -> Self {
        let open = |path: PathBuf| File::open(files.at(&path)).ok();
        let (of_device, of_queue) = (path_of(&device.name), path_of(&queue.name));
        // The driver calls the node `dsa/wq0.0`, and sysfs replaces the slash by `!`. Source: K612 `cdev.c`,
        // idxd_cdev_devnode.
        let node = of_queue.join(format!("dsa!{}/dev", queue.name));
        HealthAttributes {
            device: device.name.clone(),
            queue: queue.name.clone(),
            queue_number: queue.number,
            device_state: open(of_device.join("state")),
            device_errors: open(of_device.join("errors")),
            queue_state: open(of_queue.join("state")),
            queue_clients: open(of_queue.join("clients")),
            node: open(node.clone()).map(|file| (file, files.at(&node))),
        }
    }

    /// Returns the reason why the queue has stopped; `None` if no attribute shows that.
    pub(crate) fn stopped(&self) -> Option<String> {
        let (device, queue) = (&self.device, &self.queue);
        match value(self.device_state.as_ref()) {
            Some(State::Halted) => return Some(format!("{device} has halted{}", self.error("its"))),
            Some(State::Disabled) => return Some(format!("{device} has been disabled{}", self.error("its"))),
            Some(State::Enabled) | None => {}
        }
        if value(self.queue_state.as_ref()) == Some(State::Disabled) {
            return Some(format!("{queue} has been disabled"));
        }
        let no_clients = value(self.queue_clients.as_ref()) == Some(0_u32);
        let replaced = self.node.as_ref().is_some_and(|(node, path)| is_gone(node) && File::open(path).is_ok());
        (no_clients || replaced).then(|| format!("{queue} has been disabled and enabled again since it was opened"))
    }

    /// Returns the reason why a descriptor that the queue took will never get a record, if the last error shows that.
    /// Call it only if an error was reported since the queue was opened: earlier errors stay readable.
    ///
    /// The affected descriptor is unknown, so the queue must be closed to find out.
    pub(crate) fn lost(&self, info: &QueueInfo) -> Option<String> {
        let (device, queue, error) = (&self.device, &self.queue, self.last_error()?);
        let device_error = DeviceError::from_code(error.error_code());
        if !error.wq_index_valid() && device_error == DeviceError::ConfigurationChange {
            return Some(format!("{device} has halted and was reset since {queue} was opened{}", self.error("its")));
        }
        let ours = error.wq_index_valid() && u32::from(error.wq_index()) == self.queue_number;
        if !ours || info.mode != QueueMode::Dedicated {
            return None;
        }
        if device_error == DeviceError::QueueOverflow {
            let size = info.size;
            return Some(format!("{queue} got more than the {size} descriptors that it can hold, and lost one"));
        }
        let unwritten = [Status::CompletionRecordFault, Status::CompletionRecordAlignment];
        let vanished = unwritten.contains(&Status::from_code(error.error_code())) && error.descriptor_valid();
        // A member's Batch has a record of its own, which reports the error.
        (vanished && !error.batch_member()).then(|| format!("{queue} lost a descriptor{}", self.error("its device's")))
    }

    /// Formats SWERROR as the end of a sentence; `whose` names the owner of the register.
    pub(crate) fn error(&self, whose: &str) -> String {
        let format_error = |error| format!("; {whose} error register says: {}", meaning(error));
        self.last_error().map_or_else(String::new, format_error)
    }

    /// Returns the last SWERROR that the driver read; `None` if there never was an error.
    fn last_error(&self) -> Option<SwError> {
        value(self.device_errors.as_ref()).map(SwError).filter(SwError::valid)
    }
}

/// Returns the meaning of an error's code as text.
fn meaning(error: SwError) -> String {
    let code = error.error_code();
    match (DeviceError::from_code(code), Status::from_code(code)) {
        (DeviceError::Unknown(_), status) => status.to_string(),
        (known, _) => known.to_string(),
    }
}

/// Reads an attribute's current value.
fn value<T: Value>(file: Option<&File>) -> Option<T> {
    let mut text = [0; ATTRIBUTE_BYTES];
    let len = file?.read_at(&mut text, 0).ok()?;
    T::parse(std::str::from_utf8(&text[..len]).ok()?.trim())
}

/// True once an attribute's object no longer exists. Source: K612 `fs/kernfs/file.c`, ENODEV.
fn is_gone(file: &File) -> bool {
    file.read_at(&mut [0; ATTRIBUTE_BYTES], 0)
        .is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)))
}
