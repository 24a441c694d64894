//! Reads what Linux shows of hardware: states, clients, occupancy, and the processes that have a queue open. Source:
//! Linux 6.12, `drivers/dma/idxd/sysfs.c` and `cdev.c`.

use crate::device_rows::command;
use crate::event_log;
use crate::snapshot::{DeviceRow, EngineRow, ProcessRow, QueueRow, Snapshot, Value, Work};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use telpher_os::Nodes;

/// Why work is not known on hardware, until [`Pmus`](crate::pmu::Pmus) has counted.
const NO_WORK: &str = "the kernel shows no work; perf counters count only while this command updates";
const NO_WORK_BY_PROCESS: &str = "the kernel sees no submissions of a process";

/// Reads the devices below `sys`, which is `/sys` except in tests. Nothing is found where the driver is not loaded.
#[must_use]
pub fn read(sys: &Path) -> Snapshot {
    let folder = sys.join("bus/dsa/devices");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    names.sort_by_key(|name| (name.len(), name.clone()));
    let mut snapshot = Snapshot::default();
    let nodes = Nodes::read(&sys.join("devices/system/node"));
    for name in names {
        let attributes = Attributes(folder.join(&name));
        if is_numbered(&name, "dsa", 1) {
            snapshot.devices.push(device(&attributes, name, sys));
        } else if is_numbered(&name, "wq", 2) {
            let device = Attributes(folder.join(device_of(&name)));
            let distance = |process| numa_distance(&device, process, &nodes);
            snapshot.processes.extend(processes(&attributes, &name, &distance));
            snapshot.queues.push(queue(&attributes, name));
        } else if is_numbered(&name, "engine", 2) {
            snapshot.engines.push(EngineRow {
                source: HARDWARE.into(),
                engine: name,
                group: attributes.number("group_id"),
                work: Work::unknown(NO_WORK),
                timed: Value::unknown(NO_WORK),
                busy_ns: Value::unknown(NO_WORK),
                times: Vec::new(),
            });
        }
    }
    snapshot
}

/// The source of rows that are no run.
pub(crate) const HARDWARE: &str = "hardware";

/// True for a name of a prefix and numbers that are separated by points.
fn is_numbered(name: &str, prefix: &str, numbers: usize) -> bool {
    let parts = || name.strip_prefix(prefix).into_iter().flat_map(|rest| rest.split('.'));
    parts().count() == numbers && parts().all(|part| part.parse::<u32>().is_ok())
}

/// Returns the device of a queue: `dsa0` of `wq0.1`.
fn device_of(queue: &str) -> String {
    let number = queue.trim_start_matches("wq").split('.').next().unwrap_or_default();
    format!("dsa{number}")
}

/// Returns the distance from the node of the CPU on which a process ran last to that of a device.
fn numa_distance(device: &Attributes, process: Option<u32>, nodes: &Nodes) -> Value {
    let Value::Known(node) = device.number("numa_node") else {
        return Value::unknown("Linux shows no NUMA node of the device");
    };
    let node = u32::try_from(node).unwrap_or(u32::MAX);
    let of_process = process.and_then(last_cpu).and_then(|cpu| nodes.of_cpu(cpu));
    of_process.map_or_else(
        || Value::unknown("it is not known where the process ran last"),
        |from| u64::from(nodes.distance(from, node)).into(),
    )
}

/// Returns the CPU on which a process ran last. Source: proc_pid_stat(5), the 39th field; the second one is in
/// parentheses and may have any characters.
fn last_cpu(process: u32) -> Option<usize> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(36)?.parse().ok()
}

/// The folder of a device, queue or engine.
struct Attributes(PathBuf);

impl Attributes {
    fn text(&self, attribute: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.0.join(attribute))?.trim().to_owned())
    }

    fn word(&self, attribute: &str) -> String {
        self.text(attribute).unwrap_or_else(|_| "unknown".into())
    }

    /// Reads an attribute that is a number. The driver shows -1 for an object without a group.
    fn number(&self, attribute: &str) -> Value {
        match self.text(attribute) {
            Ok(text) => text.parse().map_or_else(|_| Value::unknown(format!("{attribute} is '{text}'")), Value::Known),
            Err(error) => Value::unknown(format!("{attribute} cannot be read: {error}")),
        }
    }
}

fn device(attributes: &Attributes, device: String, sys: &Path) -> DeviceRow {
    let no = || Value::unknown(NO_WORK);
    let (logged, logged_codes) = event_log::read(sys, &device);
    DeviceRow {
        source: HARDWARE.into(),
        device,
        state: attributes.word("state"),
        clients: attributes.number("clients"),
        work: Work::unknown(NO_WORK),
        retries: no(),
        lost: no(),
        errors: Value::unknown("the kernel shows the last error and counts none"),
        shared_requests: no(),
        dedicated_requests: no(),
        operations: Vec::new(),
        statuses: Vec::new(),
        logged,
        logged_codes,
    }
}

fn queue(attributes: &Attributes, queue: String) -> QueueRow {
    QueueRow {
        source: HARDWARE.into(),
        queue,
        state: attributes.word("state"),
        mode: attributes.word("mode"),
        size: attributes.number("size"),
        threshold: attributes.number("threshold"),
        priority: attributes.number("priority"),
        group: attributes.number("group_id"),
        clients: attributes.number("clients"),
        occupancy: attributes.number("occupancy"),
        work: Work::unknown(NO_WORK),
        retries: Value::unknown(NO_WORK),
        lost: Value::unknown(NO_WORK),
    }
}

/// The processes that have a queue open, which Linux shows from 6.4 on, below the queue's character device.
fn processes(attributes: &Attributes, queue: &str, distance: &dyn Fn(Option<u32>) -> Value) -> Vec<ProcessRow> {
    let Ok(entries) = fs::read_dir(attributes.0.join(format!("dsa!{queue}"))) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.file_name().is_some_and(|name| is_numbered(&name.to_string_lossy(), "file", 1)));
    files.sort();
    let row = |path: PathBuf| {
        let file = Attributes(path);
        let pid = file.number("pid");
        let process = pid.known().and_then(|pid| u32::try_from(pid).ok());
        ProcessRow {
            source: HARDWARE.into(),
            queue: queue.into(),
            command: process.map(command).unwrap_or_default(),
            pid,
            pasid: Value::unknown("the kernel does not show it"),
            work: Work::unknown(NO_WORK_BY_PROCESS),
            retries: Value::unknown(NO_WORK_BY_PROCESS),
            lost: Value::unknown(NO_WORK_BY_PROCESS),
            record_faults: file.number("cr_faults"),
            numa_distance: distance(process),
        }
    };
    files.into_iter().map(row).collect()
}
