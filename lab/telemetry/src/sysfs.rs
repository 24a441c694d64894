//! Reads what Linux shows of hardware: states, clients, occupancy, and the processes that have a queue open. Source:
//! Linux 6.12, `drivers/dma/idxd/sysfs.c` and `cdev.c`.

use crate::event_log;
use crate::run::command;
use crate::snapshot::{DeviceRow, EngineRow, ProcessRow, QueueRow, Snapshot, Value, Work};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

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
    for name in names {
        let attributes = Attributes(folder.join(&name));
        if is_numbered(&name, "dsa", 1) {
            snapshot.devices.push(device(&attributes, name, sys));
        } else if is_numbered(&name, "wq", 2) {
            snapshot.processes.extend(processes(&attributes, &name));
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
fn processes(attributes: &Attributes, queue: &str) -> Vec<ProcessRow> {
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
        }
    };
    files.into_iter().map(row).collect()
}
