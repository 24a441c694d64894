//! Reads what Linux shows of hardware: states, clients, occupancy, and the processes that have a queue open. Source:
//! Linux 6.12, `drivers/dma/idxd/sysfs.c` and `cdev.c`.

use crate::run::command;
use crate::snapshot::{DeviceRow, EngineRow, ProcessRow, QueueRow, Snapshot, Value, Work};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why work is not known on hardware.
const NO_WORK: &str = "the kernel shows no work; it needs the perf counters";
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
        let place = Place(folder.join(&name));
        if is_numbered(&name, "dsa", 1) {
            snapshot.devices.push(device(&place, name));
        } else if is_numbered(&name, "wq", 2) {
            snapshot.processes.extend(processes(&place, &name));
            snapshot.queues.push(queue(&place, name));
        } else if is_numbered(&name, "engine", 2) {
            snapshot.engines.push(EngineRow {
                source: HARDWARE.into(),
                engine: name,
                group: place.number("group_id"),
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
struct Place(PathBuf);

impl Place {
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

fn device(place: &Place, device: String) -> DeviceRow {
    let no = || Value::unknown(NO_WORK);
    DeviceRow {
        source: HARDWARE.into(),
        device,
        state: place.word("state"),
        clients: place.number("clients"),
        work: Work::unknown(NO_WORK),
        retries: no(),
        lost: no(),
        errors: Value::unknown("the kernel shows the last error and counts none"),
        shared_requests: no(),
        dedicated_requests: no(),
        operations: Vec::new(),
        statuses: Vec::new(),
    }
}

fn queue(place: &Place, queue: String) -> QueueRow {
    QueueRow {
        source: HARDWARE.into(),
        queue,
        state: place.word("state"),
        mode: place.word("mode"),
        size: place.number("size"),
        threshold: place.number("threshold"),
        priority: place.number("priority"),
        group: place.number("group_id"),
        clients: place.number("clients"),
        occupancy: place.number("occupancy"),
        work: Work::unknown(NO_WORK),
        retries: Value::unknown(NO_WORK),
        lost: Value::unknown(NO_WORK),
    }
}

/// The processes that have a queue open, which Linux shows from 6.4 on, below the queue's character device.
fn processes(place: &Place, queue: &str) -> Vec<ProcessRow> {
    let Ok(entries) = fs::read_dir(place.0.join(format!("dsa!{queue}"))) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.file_name().is_some_and(|name| is_numbered(&name.to_string_lossy(), "file", 1)));
    files.sort();
    let row = |path: PathBuf| {
        let file = Place(path);
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
