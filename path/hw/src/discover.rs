//! Reads the driver's tree: the devices and their configuration. Source: ABI.
//!
//! ```text
//! /sys/bus/dsa/devices/dsa0 ─► ../../../devices/pci…/0000:6a:01.0/dsa0/{attributes, groupM.N, engineM.N, wqM.N}
//! ```

use crate::attribute::{Folder, pci_address};
use crate::files::Files;
use crate::machine::{Device, DeviceKind, Engine, Group, Machine, Queue, UnreadableAttribute};
use std::path::{Path, PathBuf};

/// The bus of the driver's devices.
pub(crate) const BUS: &str = "/sys/bus/dsa";

/// Reads everything that the driver shows of its devices. A machine without the driver has no devices. Unreadable
/// attributes are listed in [`Machine::oddities`]; the rest is returned nevertheless.
///
/// ```
/// use telpher_hw::{Live, discover};
///
/// for device in discover(&Live::default()).devices {
///     println!("{} on node {:?}: {} queues", device.name, device.numa_node, device.queues.len());
/// }
/// ```
#[must_use]
pub fn discover(files: &dyn Files) -> Machine {
    let mut machine = Machine::default();
    let bus = Path::new(BUS);
    machine.drivers = names(files, &bus.join("drivers"), &mut machine.oddities);
    let all = names(files, &bus.join("devices"), &mut machine.oddities);
    for name in &all {
        let kinds = [("dsa", DeviceKind::Dsa), ("iax", DeviceKind::Iax)];
        let parsed = kinds.into_iter().find_map(|(prefix, kind)| Some((kind, whole(name.strip_prefix(prefix)?)?)));
        if let Some((kind, number)) = parsed {
            machine.devices.push(device(files, &all, name, kind, number, &mut machine.oddities));
        }
    }
    // Names would sort as text; sort by number.
    machine.devices.sort_by_key(|device| device.number);
    machine
}

/// Reads a single DSA device, for machines with many.
pub(crate) fn discover_device(files: &dyn Files, number: u32) -> Option<Device> {
    let (bus, mut oddities) = (Path::new(BUS), Vec::new());
    let all = names(files, &bus.join("devices"), &mut oddities);
    let name = format!("dsa{number}");
    all.contains(&name).then(|| device(files, &all, &name, DeviceKind::Dsa, number, &mut oddities))
}

fn names(files: &dyn Files, folder: &Path, oddities: &mut Vec<UnreadableAttribute>) -> Vec<String> {
    match files.list(folder) {
        Ok(names) => names.into_iter().filter_map(|name| name.into_string().ok()).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            oddities.push(UnreadableAttribute { path: folder.into(), why: error.to_string() });
            Vec::new()
        }
    }
}

/// Parses a number that consists of digits only.
pub(crate) fn whole(digits: &str) -> Option<u32> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Returns a device's members among the names on the bus, which lists them beside their devices: `wq0.1` is number 1 of
/// device 0. DSA and IAX devices share their numbering.
fn members(all: &[String], prefix: &str, device: u32) -> Vec<(String, u32)> {
    let parse = |name: &str| {
        let (of, number) = name.strip_prefix(prefix)?.split_once('.')?;
        (whole(of)? == device).then(|| whole(number)).flatten()
    };
    let mut found: Vec<_> = all.iter().filter_map(|name| Some((name.clone(), parse(name)?))).collect();
    found.sort_by_key(|(_, number)| *number);
    found
}

/// Returns the path at which the bus shows a device, queue, group or engine.
pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(BUS).join("devices").join(name)
}

fn device(
    files: &dyn Files,
    all: &[String],
    name: &str,
    kind: DeviceKind,
    number: u32,
    oddities: &mut Vec<UnreadableAttribute>,
) -> Device {
    let of = |kind: &str| members(all, kind, number);
    let (groups, engines, queues) = (of("group"), of("engine"), of("wq"));
    let groups = groups.into_iter().map(|(name, number)| group(files, name, number, oddities)).collect();
    let engines = engines.into_iter().map(|(name, number)| engine(files, name, number, oddities)).collect();
    let queues = queues.into_iter().map(|(name, number)| queue(files, name, number, oddities)).collect();
    let path = path_of(name);
    let pci_address = pci_address(files, &path);
    let mut folder = Folder { files, path, oddities };
    Device {
        name: name.to_owned(),
        number,
        kind,
        pci_address,
        driver: folder.link("driver"),
        version: folder.value(&["version"]),
        state: folder.value(&["state"]),
        numa_node: folder.value(&["numa_node"]),
        gen_cap: folder.value(&["gen_cap"]),
        dsa_caps: folder.value(&["dsacaps"]),
        op_cap: folder.value(&["op_cap"]),
        configurable: folder.value(&["configurable"]),
        pasid_enabled: folder.value(&["pasid_enabled"]),
        max_groups: folder.value(&["max_groups"]),
        max_work_queues: folder.value(&["max_work_queues"]),
        max_work_queues_size: folder.value(&["max_work_queues_size"]),
        max_engines: folder.value(&["max_engines"]),
        max_batch: folder.value(&["max_batch_size"]),
        max_transfer: folder.value(&["max_transfer_size"]),
        max_read_buffers: folder.value(&["max_read_buffers", "max_tokens"]),
        read_buffer_limit: folder.value(&["read_buffer_limit", "token_limit"]),
        event_log_size: folder.value(&["event_log_size"]),
        clients: folder.value(&["clients"]),
        cmd_status: folder.value(&["cmd_status"]),
        errors: folder.value(&["errors"]),
        cdev_major: folder.value(&["cdev_major"]),
        groups,
        engines,
        queues,
    }
}

fn group(files: &dyn Files, name: String, number: u32, oddities: &mut Vec<UnreadableAttribute>) -> Group {
    let mut folder = Folder { files, path: path_of(&name), oddities };
    Group {
        number,
        work_queues: folder.names("work_queues"),
        engines: folder.names("engines"),
        use_read_buffer_limit: folder.value(&["use_read_buffer_limit", "use_token_limit"]),
        read_buffers_reserved: folder.value(&["read_buffers_reserved", "tokens_reserved"]),
        read_buffers_allowed: folder.value(&["read_buffers_allowed", "tokens_allowed"]),
        traffic_class_a: folder.value(&["traffic_class_a"]),
        traffic_class_b: folder.value(&["traffic_class_b"]),
        name,
    }
}

fn engine(files: &dyn Files, name: String, number: u32, oddities: &mut Vec<UnreadableAttribute>) -> Engine {
    let mut folder = Folder { files, path: path_of(&name), oddities };
    Engine { number, group: folder.value(&["group_id"]), name }
}

fn queue(files: &dyn Files, name: String, number: u32, oddities: &mut Vec<UnreadableAttribute>) -> Queue {
    let mut folder = Folder { files, path: path_of(&name), oddities };
    Queue {
        number,
        state: folder.value(&["state"]),
        mode: folder.value(&["mode"]),
        size: folder.value(&["size"]),
        threshold: folder.value(&["threshold"]),
        group: folder.value(&["group_id"]),
        priority: folder.value(&["priority"]),
        block_on_fault: folder.value(&["block_on_fault"]),
        queue_type: folder.value(&["type"]),
        label: folder.value(&["name"]),
        driver_name: folder.value(&["driver_name"]),
        driver: folder.link("driver"),
        clients: folder.value(&["clients"]),
        cdev_minor: folder.value(&["cdev_minor"]),
        max_transfer: folder.value(&["max_transfer_size"]),
        max_batch: folder.value(&["max_batch_size"]),
        ats_disable: folder.value(&["ats_disable"]),
        prs_disable: folder.value(&["prs_disable"]),
        occupancy: folder.value(&["occupancy"]),
        enqcmds_retries: folder.value(&["enqcmds_retries"]),
        op_config: folder.value(&["op_config"]),
        name,
    }
}
