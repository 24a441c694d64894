//! What devices have done up to one moment.

use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use telpher_abi::Status;
use telpher_model::Totals;

/// A number, or the reason why it cannot be known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// The number.
    Known(u64),
    /// It cannot be known, or was not recorded. It may have any value.
    Unknown {
        /// Why.
        unknown: String,
    },
}

/// The source of the devices that programs model in their own processes, summed over the processes.
pub const PROGRAMS: &str = "programs";
/// The beginning of the source of such devices of one process.
pub(crate) const PROCESS: &str = "process-";

/// The reason of a value that is recorded only while a reader has subscribed.
pub const NOT_RECORDED: &str = "not recorded";

impl Default for Value {
    fn default() -> Value {
        Value::unknown(NOT_READ)
    }
}

/// The reason of a value that was not asked for.
const NOT_READ: &str = "not read";

impl Value {
    /// Creates a value that cannot be known.
    pub fn unknown(why: impl Into<String>) -> Value {
        Value::Unknown { unknown: why.into() }
    }

    /// Returns the number, if it is known.
    #[must_use]
    pub fn known(&self) -> Option<u64> {
        match self {
            Value::Known(value) => Some(*value),
            Value::Unknown { .. } => None,
        }
    }
}

impl Value {
    /// Returns the value in another unit, of which one of this has so many.
    #[must_use]
    pub(crate) fn times(self, unit: u64) -> Value {
        match self {
            Value::Known(value) => Value::Known(value.saturating_mul(unit)),
            unknown @ Value::Unknown { .. } => unknown,
        }
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Known(value)
    }
}

/// The number, or a dash.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Known(value) => value.fmt(f),
            Value::Unknown { .. } => f.write_str("–"),
        }
    }
}

/// What a device, a queue, an engine or a process has done: totals since its start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Work {
    /// Descriptors that ended, without members of batches.
    pub descriptors: Value,
    /// Members of batches that ended.
    pub members: Value,
    /// Bytes read by operations.
    pub read_bytes: Value,
    /// Bytes written by operations.
    pub written_bytes: Value,
    /// Descriptors and members that ended with a page fault.
    pub faults: Value,
}

impl Work {
    /// Work of which nothing is known.
    #[must_use]
    pub fn unknown(why: &str) -> Work {
        let value = || Value::unknown(why);
        Work { descriptors: value(), members: value(), read_bytes: value(), written_bytes: value(), faults: value() }
    }
}

impl From<telpher_model::QueueTotals> for Work {
    fn from(totals: telpher_model::QueueTotals) -> Work {
        Work {
            descriptors: totals.descriptors.into(),
            members: totals.members.into(),
            read_bytes: totals.read_bytes.into(),
            written_bytes: totals.written_bytes.into(),
            faults: totals.faults.into(),
        }
    }
}

/// A device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceRow {
    /// Where it was found: the name of a run, `hardware`, or the process that models it.
    pub source: String,
    /// Its name, such as dsa0.
    pub device: String,
    /// enabled, disabled, halted, or what the driver says.
    pub state: String,
    /// Open files, as the driver counts clients.
    pub clients: Value,
    /// What it has done.
    #[serde(flatten)]
    pub work: Work,
    /// Deferrable submissions that got Retry.
    pub retries: Value,
    /// Posted submissions that were lost.
    pub lost: Value,
    /// Descriptors and members that ended with an error; page faults are no errors.
    pub errors: Value,
    /// Descriptors taken by shared queues.
    pub shared_requests: Value,
    /// Descriptors taken by dedicated queues.
    pub dedicated_requests: Value,
    /// Descriptors and members by operation: name and number, without operations that were not used.
    pub operations: Vec<(String, u64)>,
    /// Descriptors and members by status.
    pub statuses: Vec<(String, u64)>,
    /// Entries of the event log now: errors that no completion record could report.
    pub logged: Value,
    /// The same by error code: code, meaning, and number.
    pub logged_codes: Vec<(String, u64)>,
}

/// A queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct QueueRow {
    /// Where it was found.
    pub source: String,
    /// Its name, such as wq0.1.
    pub queue: String,
    /// enabled or disabled.
    pub state: String,
    /// shared or dedicated.
    pub mode: String,
    /// Its entries.
    pub size: Value,
    /// The threshold of a shared queue.
    pub threshold: Value,
    /// Its priority.
    pub priority: Value,
    /// Its group.
    pub group: Value,
    /// Open files.
    pub clients: Value,
    /// Descriptors that wait in it.
    pub occupancy: Value,
    /// What it has done.
    #[serde(flatten)]
    pub work: Work,
    /// Deferrable submissions that got Retry.
    pub retries: Value,
    /// Posted submissions that were lost.
    pub lost: Value,
}

/// An engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EngineRow {
    /// Where it was found.
    pub source: String,
    /// Its name, such as engine0.1.
    pub engine: String,
    /// Its group.
    pub group: Value,
    /// What it has done.
    #[serde(flatten)]
    pub work: Work,
    /// Descriptors and members whose time was recorded.
    pub timed: Value,
    /// The sum of their times in nanoseconds.
    pub busy_ns: Value,
    /// Their number by time: bucket N has times of N bits in nanoseconds. Empty if none was recorded.
    pub times: Vec<u64>,
}

/// A process that has a queue open, or the sum of those that have closed it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessRow {
    /// Where it was found.
    pub source: String,
    /// The queue.
    pub queue: String,
    /// The process; unknown for the sum of those that have closed the queue.
    pub pid: Value,
    /// The name of its program.
    pub command: String,
    /// Its address space identifier.
    pub pasid: Value,
    /// What it has done.
    #[serde(flatten)]
    pub work: Work,
    /// Its deferrable submissions that got Retry.
    pub retries: Value,
    /// Its posted submissions that were lost.
    pub lost: Value,
    /// Faults at completion records that the driver serviced.
    pub record_faults: Value,
    /// The distance from the NUMA node of the CPU on which the process ran last to the device's: 10 on the same node.
    pub numa_distance: Value,
}

/// What a process publishes of one part of this project that it uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProgramRow {
    /// The process.
    pub pid: u32,
    /// The name of its program.
    pub command: String,
    /// mover, cache, fabric, nvmf, vhost, offload or tier.
    pub system: String,
    /// What it has done: operations, accesses, messages, commands, packets, calls or exchanges.
    pub operations: Value,
    /// Bytes that it has moved.
    pub bytes: Value,
    /// What the CPU did of `cpu_whole`.
    pub cpu_part: Value,
    /// Work that the CPU or a device did: bytes, pieces of messages, or digests.
    pub cpu_whole: Value,
    /// How often the CPU did work that was meant for a device.
    pub fallbacks: Value,
    /// Fallbacks by reason, without reasons that have not occurred.
    pub reasons: Vec<(String, u64)>,
    /// Nanoseconds in which operations waited for room in a queue.
    pub waited_ns: Value,
}

/// What devices have done.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Snapshot {
    /// The devices.
    pub devices: Vec<DeviceRow>,
    /// Their queues.
    pub queues: Vec<QueueRow>,
    /// Their engines.
    pub engines: Vec<EngineRow>,
    /// The processes by queue.
    pub processes: Vec<ProcessRow>,
    /// What programs publish of themselves, on any device.
    pub programs: Vec<ProgramRow>,
    /// Microjoules that the processor packages have used since the first reading.
    pub package_energy_uj: Value,
    /// What could not be read, and why.
    pub problems: Vec<String>,
}

impl Snapshot {
    /// Adds the rows of another snapshot.
    pub fn append(&mut self, other: Snapshot) {
        self.devices.extend(other.devices);
        self.queues.extend(other.queues);
        self.engines.extend(other.engines);
        self.processes.extend(other.processes);
        self.programs.extend(other.programs);
        self.problems.extend(other.problems);
    }

    /// The sources of the devices: runs, and hardware.
    #[must_use]
    pub fn sources(&self) -> BTreeSet<&str> {
        self.devices.iter().map(|row| row.source.as_str()).collect()
    }

    /// True if there is neither a device nor a program.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.programs.is_empty()
    }

    /// True if there is a device of a run or of hardware. Others come and go with the programs that model them.
    #[must_use]
    pub fn has_lasting_devices(&self) -> bool {
        let is_in_program = |source: &str| source == PROGRAMS || source.starts_with(PROCESS);
        self.devices.iter().any(|row| !is_in_program(&row.source))
    }

    /// The rows of programs, which have no source.
    #[must_use]
    pub fn of_programs(&self) -> Snapshot {
        Snapshot { programs: self.programs.clone(), ..Snapshot::default() }
    }

    /// The rows of one source.
    #[must_use]
    pub fn of_source(&self, source: &str) -> Snapshot {
        Snapshot {
            devices: self.devices.iter().filter(|row| row.source == source).cloned().collect(),
            queues: self.queues.iter().filter(|row| row.source == source).cloned().collect(),
            engines: self.engines.iter().filter(|row| row.source == source).cloned().collect(),
            processes: self.processes.iter().filter(|row| row.source == source).cloned().collect(),
            ..Snapshot::default()
        }
    }

    /// Microjoules of the packages since an earlier snapshot, and the bytes that all devices have written meanwhile.
    ///
    /// # Errors
    /// The reason why one of them is not known.
    pub fn energy_since(&self, before: &Snapshot) -> Result<(u64, u64), String> {
        let known = |value: &Value| match value {
            Value::Known(value) => Ok(*value),
            Value::Unknown { unknown } => Err(unknown.clone()),
        };
        let written = |snapshot: &Snapshot| -> Result<u64, String> {
            snapshot.devices.iter().try_fold(0_u64, |sum, row| Ok(sum.saturating_add(known(&row.work.written_bytes)?)))
        };
        let energy = known(&self.package_energy_uj)?.saturating_sub(known(&before.package_energy_uj)?);
        Ok((energy, written(self)?.saturating_sub(written(before)?)))
    }
}

/// Returns the descriptors that ended with an error.
pub(crate) fn errors(totals: &Totals) -> u64 {
    let is_error = |code: &u8| {
        let status = Status::from_code(*code);
        let is_fault = status.is_page_fault() || status == Status::BatchPageFault;
        !is_fault && !matches!(status, Status::None | Status::Success | Status::SuccessPredicateFalse)
    };
    (0..64).filter(is_error).fold(0, |sum: u64, code| sum.saturating_add(totals.status(code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_is_never_zero() {
        let unknown = Value::unknown(NOT_RECORDED);
        assert_eq!((unknown.known(), unknown.to_string()), (None, "–".to_owned()));
        assert_eq!(serde_json::to_string(&[unknown, 7.into()]).unwrap(), r#"[{"unknown":"not recorded"},7]"#);
    }
}
