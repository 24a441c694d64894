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
//! | an error that names a dedicated queue and no record | a descriptor of its only client has vanished | SPEC §5.4, §5.9 |
//! | an error that halts a device which works | halted, reset and enabled anew by the driver | K612 `irq.c`, idxd_device_reinit |
//!
//! What cannot be read tells nothing. Nor does an error of a shared queue, which names a PASID that no program knows its own of.

use crate::attribute::Value;
use crate::discover::path_of;
use crate::files::Live;
use crate::machine::{Device, Queue, State};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use telpher_abi::{DeviceError, Status, SwError};
use telpher_portal::{QueueInfo, QueueMode};

/// Longest attribute that is looked at: 256 bits as text. Source: K612 `sysfs.c`, errors_show.
const ATTRIBUTE_BYTES: usize = 128;

/// The open attributes.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    device: String,
    queue: String,
    queue_number: u32,
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
        let open = |path: PathBuf| File::open(files.at(&path)).ok();
        let (of_device, of_queue) = (path_of(&device.name), path_of(&queue.name));
        // The driver calls the node `dsa/wq0.0`, and sysfs writes ! for the stroke. Source: K612 `cdev.c`, idxd_cdev_devnode.
        let node = of_queue.join(format!("dsa!{}/dev", queue.name));
        Evidence {
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

    /// Why the queue works no more; `None` while nothing says so.
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
        let nobody = value(self.queue_clients.as_ref()) == Some(0_u32);
        let replaced = self.node.as_ref().is_some_and(|(node, path)| is_gone(node) && File::open(path).is_ok());
        (nobody || replaced).then(|| format!("{queue} has been disabled and enabled anew since it was opened"))
    }

    /// Why something that the queue took will never have a record, if the last error says so. To be asked if an error was
    /// reported since the queue was opened: what was before stays to be read.
    ///
    /// Which descriptor it is nobody knows, so that the queue has to be closed to find out.
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
            return Some(format!("{queue} was given more than the {size} descriptors it has room for, and lost one"));
        }
        let unwritten = [Status::CompletionRecordFault, Status::CompletionRecordAlignment];
        let vanished = unwritten.contains(&Status::from_code(error.error_code())) && error.descriptor_valid();
        // A member's Batch has a record of its own, and tells.
        (vanished && !error.batch_member()).then(|| format!("{queue} lost a descriptor{}", self.error("its device's")))
    }

    /// What SWERROR says, as the end of a sentence; `whose` register it is.
    pub(crate) fn error(&self, whose: &str) -> String {
        let says = |error| format!("; {whose} error register says: {}", meaning(error));
        self.last_error().map_or_else(String::new, says)
    }

    /// What the driver last read of SWERROR; `None` if there never was an error.
    fn last_error(&self) -> Option<SwError> {
        value(self.device_errors.as_ref()).map(SwError).filter(SwError::valid)
    }
}

/// What an error's code means, as words.
fn meaning(error: SwError) -> String {
    let code = error.error_code();
    match (DeviceError::from_code(code), Status::from_code(code)) {
        (DeviceError::Unknown(_), status) => status.to_string(),
        (known, _) => known.to_string(),
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
