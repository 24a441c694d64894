//! Applies a configuration in accel-config's JSON as that tool does: it writes every key in file order to the attribute
//! of the same name, then enables everything. Source: ACCFG `accfg/config.c`.

use super::attribute::Id;
use super::{Abi, Kernel, status};
use crate::hardware::json::{Json, Object};
use crate::hardware::{Hardware, HardwareDevice, HardwareError};
use crate::tree::Errno;
use telpher_abi::registers::VERSION_2;

/// A key of the configuration.
struct Key {
    name: &'static str,
    /// Its name in older kernels and files.
    older: Option<&'static str>,
    /// When the tool skips it.
    skipped: fn(&Kernel, Id, value: &str) -> bool,
    /// Advice for the user if the driver refuses the value.
    advice: &'static str,
}

const fn key(name: &'static str, advice: &'static str) -> Key {
    Key { name, older: None, skipped: |_, _, _| false, advice }
}

const fn renamed(name: &'static str, older: &'static str, advice: &'static str) -> Key {
    Key { older: Some(older), ..key(name, advice) }
}

/// The keys of one kind of object, and its lists of child objects.
struct Level {
    /// `wq` of `wq0.1`.
    kind: &'static str,
    keys: &'static [Key],
    /// Lists of child objects; `true` if the children become members of a group.
    children: &'static [(&'static str, &'static Level, bool)],
}

static DEVICE: Level = Level {
    kind: "dsa",
    keys: &[
        renamed("read_buffer_limit", "token_limit", "at most max_read_buffers; 0 for none"),
        Key {
            // Saved files contain it also for devices without a log.
            skipped: |_, _, value| value == "0",
            ..key(
                "event_log_size",
                "64 to 65535 on a device with an event log (\"capabilities\": \"full\"); else leave it out",
            )
        },
    ],
    children: &[
        ("groups", &GROUP, false),
        ("ungrouped_workqueues", &QUEUE, false),
        ("ungrouped_engines", &ENGINE, false),
    ],
};

static GROUP: Level = Level {
    kind: "group",
    keys: &[
        renamed("read_buffers_reserved", "tokens_reserved", "all groups together may reserve max_read_buffers"),
        Key {
            skipped: |k, id, _| k.dsa(id).read_buffer_limit == 0,
            ..renamed("use_read_buffer_limit", "use_token_limit", "0 or 1")
        },
        renamed(
            "read_buffers_allowed",
            "tokens_allowed",
            "at least 4 for each engine, at most what is reserved or free; engines must come before it",
        ),
        Key { skipped: old_device, ..key("traffic_class_a", "0 to 7") },
        Key { skipped: old_device, ..key("traffic_class_b", "0 to 7") },
        key("desc_progress_limit", "0 to 3, on devices with progress limits"),
        key("batch_progress_limit", "0 to 3, on devices with progress limits"),
    ],
    children: &[("grouped_workqueues", &QUEUE, true), ("grouped_engines", &ENGINE, true)],
};

static QUEUE: Level = Level {
    kind: "wq",
    keys: &[
        key("mode", "\"dedicated\" or \"shared\"; kernel 5.15 has no shared queues for users"),
        key("size", "all queues together have max_work_queues_size entries"),
        key("group_id", "-1 or the number of a group"),
        key("priority", "1 to 15"),
        key("block_on_fault", "0 or 1; 0 if prs_disable is 1"),
        key("max_batch_size", "1 to the device's max_batch_size"),
        key("max_transfer_size", "1 to the device's max_transfer_size"),
        key("type", "\"user\", \"kernel\" or \"none\""),
        key("name", "up to 1024 characters; type must come before it; none for kernel queues until 6.6"),
        // Since 6.7; older kernels do not have it.
        Key { skipped: |k, _, _| k.abi() < Abi::V6_12, ..key("driver_name", "\"user\" or \"dmaengine\"") },
        Key {
            // Listings print 0 for queues that have no threshold.
            skipped: |k, id, value| !k.wq(id).shared() || value == "0",
            ..key("threshold", "1 to the queue's size; mode and size must come before it")
        },
        key("ats_disable", "0 or 1, on devices that can"),
        Key {
            skipped: |_, _, value| value == "0",
            ..key("prs_disable", "0 or 1, on devices that can, from kernel 6.4 on")
        },
        key("op_config", "a bitmap within the device's op_cap, on devices with per-queue operations"),
    ],
    children: &[],
};

static ENGINE: Level = Level { kind: "engine", keys: &[key("group_id", "-1 or the number of a group")], children: &[] };

/// True for devices below version 2: accel-config does not set their traffic classes.
fn old_device(kernel: &Kernel, id: Id, _: &str) -> bool {
    kernel.dsa(id).capabilities().version < VERSION_2
}

/// Applies the hardware's configuration and enables its devices and queues.
pub(super) fn load(kernel: &mut Kernel, hardware: &Hardware) -> Result<(), HardwareError> {
    for (device, found) in hardware.devices.iter().enumerate() {
        let Some(configuration) = &found.configuration else { continue };
        let mut loader = Loader { kernel, file: &hardware.source, found, device, queues: Vec::new() };
        loader.object(&DEVICE, &configuration.0, None)?;
        loader.enable()?;
    }
    Ok(())
}

struct Loader<'a> {
    kernel: &'a mut Kernel,
    file: &'a str,
    found: &'a HardwareDevice,
    device: usize,
    /// Queues that are in a group, in file order.
    queues: Vec<Id>,
}

impl Loader<'_> {
    fn object(&mut self, level: &Level, object: &Object, group: Option<usize>) -> Result<(), HardwareError> {
        let (index, path) = self.place(level, object)?;
        let id = Id { device: self.device, index };
        for (name, value) in &object.0 {
            if let Some((_, below, joins)) = level.children.iter().find(|(list, ..)| *list == name) {
                for child in self.objects(name, value)? {
                    self.object(below, child, joins.then_some(index))?;
                }
            } else if let Some(key) = level.keys.iter().find(|key| key.name == name || key.older == Some(name)) {
                self.set(level, id, &path, key, name, value)?;
            }
        }
        // A queue or engine in a group's list becomes a member, also without a `group_id` in the file.
        if let Some(group) = group.filter(|_| object.get("group_id").is_none()) {
            let key = level.keys.iter().find(|key| key.name == "group_id");
            if let Some(key) = key {
                self.set(level, id, &path, key, "group_id", &Json::Number(group.to_string()))?;
            }
        }
        if level.kind == "wq" && self.kernel.wq(id).group.is_some() {
            self.queues.push(id);
        }
        Ok(())
    }

    /// Finds the object's index and its directory in the tree.
    fn place(&self, level: &Level, object: &Object) -> Result<(usize, String), HardwareError> {
        let root = self.kernel.device_path(Id { device: self.device, index: 0 });
        let Some(Json::Text(name)) = object.get("dev") else {
            return Err(self.shape(format!("an object of a {} has no \"dev\"", level.kind)));
        };
        if level.kind == "dsa" {
            return Ok((0, root));
        }
        let number = self.found.number.to_string();
        let parts = name.strip_prefix(level.kind).and_then(|rest| rest.split_once('.'));
        // A preset is written for the first device and used for all devices.
        let own = parts.filter(|(device, _)| self.found.from_preset || *device == number);
        let index = own.and_then(|(_, index)| index.parse::<usize>().ok());
        let place = index.map(|index| (index, format!("{root}/{}{number}.{index}", level.kind)));
        place
            .filter(|(_, path)| self.kernel.entry(path).is_ok())
            .ok_or_else(|| self.shape(format!("\"{name}\" is no {} of dsa{number}", level.kind)))
    }

    fn objects<'v>(&self, name: &str, value: &'v Json) -> Result<Vec<&'v Object>, HardwareError> {
        let Json::List(items) = value else {
            return Err(self.shape(format!("\"{name}\" is not a list")));
        };
        let object = |item: &'v Json| match item {
            Json::Object(object) => Ok(object),
            _ => Err(self.shape(format!("\"{name}\" has an entry that is not an object"))),
        };
        items.iter().map(object).collect()
    }

    fn set(
        &mut self,
        level: &Level,
        id: Id,
        path: &str,
        key: &Key,
        name: &str,
        value: &Json,
    ) -> Result<(), HardwareError> {
        let text = match value {
            Json::Number(text) | Json::Text(text) => text.clone(),
            Json::Flag(on) => u8::from(*on).to_string(),
            Json::Null | Json::List(_) | Json::Object(_) => {
                return Err(self.refused(path, name, Errno::INVAL, "expected a number or a text"));
            }
        };
        // A preset's shared queue becomes dedicated if the kernel has no shared queues for users.
        let unshared = self.found.is_unshared(self.kernel.abi()) && name == "mode" && text == "shared";
        let text = if unshared { "dedicated".into() } else { text };
        // The tool refuses negative values for a group.
        if level.kind == "group" && text.starts_with('-') {
            return Err(self.refused(path, name, Errno::INVAL, key.advice));
        }
        if text.is_empty() || (key.skipped)(self.kernel, id, &text) {
            return Ok(());
        }
        let names = [Some(key.name), key.older];
        let present = names.into_iter().flatten().find(|name| self.kernel.entry(&format!("{path}/{name}")).is_ok());
        let attribute = format!("{path}/{}", present.unwrap_or(key.name));
        match self.kernel.store(&attribute, text.as_bytes()) {
            Ok(_) => Ok(()),
            Err(errno) => Err(self.refused(path, &format!("{name} {text}"), errno, key.advice)),
        }
    }

    /// Enables the device, then its queues.
    fn enable(&mut self) -> Result<(), HardwareError> {
        let device = Id { device: self.device, index: 0 };
        let path = self.kernel.device_path(device);
        let mut binds = vec![("idxd", path)];
        for queue in &self.queues {
            let kernel_type = self.kernel.wq(*queue).settings.kind == super::device::QueueType::Kernel;
            binds.push((if kernel_type { "dmaengine" } else { "user" }, self.kernel.queue_path(*queue)));
        }
        for (driver, path) in binds {
            let name = path.rsplit('/').next().unwrap_or_default();
            if let Err(errno) = self.kernel.store(&format!("/sys/bus/dsa/drivers/{driver}/bind"), name.as_bytes()) {
                let reason = status::meaning(self.kernel.dsa(device).cmd_status);
                return Err(self.refused(&path, &format!("bind to {driver}"), errno, &reason));
            }
        }
        Ok(())
    }

    fn refused(&self, path: &str, key: &str, errno: Errno, advice: &str) -> HardwareError {
        HardwareError::Refused {
            file: self.file.into(),
            object: path.rsplit('/').next().unwrap_or_default().into(),
            key: key.into(),
            errno,
            advice: advice.into(),
        }
    }

    fn shape(&self, what: String) -> HardwareError {
        HardwareError::Shape { file: self.file.into(), what }
    }
}
