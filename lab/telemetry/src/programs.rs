//! What programs publish of themselves, as rows: one for each process and part of this project that it uses.
//!
//! ```text
//! ProcessMetrics, one for each region ──► values by name and label ──► SYSTEMS: which of them are operations, bytes, …
//! ```

use crate::device_rows::command;
use crate::published::ProcessMetrics;
use crate::snapshot::{ProgramRow, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Values whose sum is a number of a row: a metric, and those values of its label that count; all if there are none.
struct Part {
    metric: &'static str,
    labels: &'static [&'static str],
    /// What a metric without labels is called as the reason of fallbacks.
    reason: &'static str,
}

const fn all(metric: &'static str) -> Part {
    Part { metric, labels: &[], reason: "" }
}

const fn only(metric: &'static str, labels: &'static [&'static str]) -> Part {
    Part { metric, labels, reason: "" }
}

/// What the CPU did of work that a device may do.
enum Cpu {
    /// This part of that whole.
    Did(&'static [Part], &'static [Part]),
    /// The whole without what a device did.
    DidWithout(&'static [Part], &'static [Part]),
    /// Not counted.
    Unknown(&'static str),
}

/// A part of this project that publishes metrics.
struct System {
    name: &'static str,
    operations: &'static [Part],
    bytes: &'static [Part],
    /// Bytes that one of the counted things stands for.
    unit: u64,
    cpu: Cpu,
    /// Fallbacks; the values of the labels are their reasons.
    fallbacks: &'static [Part],
    waited: Waited,
}

/// Time in which operations waited for room in queues.
enum Waited {
    /// The sum of these.
    Counted(&'static [Part]),
    /// Why there is none, or why it is not known.
    Unknown(&'static str),
}

/// What the channels, copies and jobs of a process waited.
const IN_QUEUES: Waited = Waited::Counted(&[all("telpher_mover_full_queue_seconds_total")]);
/// The reason of a system that leaves its copies to a mover.
const OF_MOVER: Waited = Waited::Unknown("the copies are those of the process' mover");

const OFFLOAD_CALLS: &str = "telpher_offload_calls_total";
const DIGESTS: &str = "telpher_nvmf_digests_total";
const PROTECTIONS: &str = "telpher_nvmf_protections_total";
/// What did the work of nvmf, if no device did.
const NO_DEVICE: &[&str] = &["CPU", "fallback"];

const SYSTEMS: [System; 7] = [
    System {
        name: "mover",
        operations: &[all("telpher_mover_operations_total")],
        bytes: &[all("telpher_mover_bytes_total")],
        unit: 1,
        cpu: Cpu::Did(&[only("telpher_mover_bytes_total", &["cpu"])], &[all("telpher_mover_bytes_total")]),
        fallbacks: &[all("telpher_mover_fallbacks_total")],
        waited: IN_QUEUES,
    },
    System {
        name: "cache",
        operations: &[all("telpher_cache_hits_total"), all("telpher_cache_misses_total")],
        bytes: &[all("telpher_cache_copied_bytes_total")],
        unit: 1,
        cpu: Cpu::Unknown("the copies of a cache are those of the process' mover"),
        fallbacks: &[all("telpher_cache_fallbacks_total")],
        waited: OF_MOVER,
    },
    System {
        name: "fabric",
        operations: &[
            all("telpher_fabric_eager_messages_sent_total"),
            all("telpher_fabric_long_messages_sent_total"),
            all("telpher_fabric_messages_received_total"),
            all("telpher_fabric_reads_total"),
            all("telpher_fabric_writes_total"),
            all("telpher_fabric_atomics_total"),
        ],
        bytes: &[all("telpher_fabric_sent_bytes_total"), all("telpher_fabric_received_bytes_total")],
        unit: 1,
        cpu: Cpu::Did(
            &[all("telpher_fabric_pieces_by_cpu_total"), all("telpher_fabric_pieces_by_fallback_total")],
            &[
                all("telpher_fabric_pieces_by_cpu_total"),
                all("telpher_fabric_pieces_by_fallback_total"),
                all("telpher_fabric_pieces_by_device_total"),
            ],
        ),
        fallbacks: &[all("telpher_fabric_pieces_by_fallback_total")],
        waited: IN_QUEUES,
    },
    System {
        name: "nvmf",
        operations: &[all("telpher_nvmf_commands_total")],
        bytes: &[all("telpher_nvmf_received_bytes_total"), all("telpher_nvmf_sent_bytes_total")],
        unit: 1,
        cpu: Cpu::Did(&[only(DIGESTS, NO_DEVICE), only(PROTECTIONS, NO_DEVICE)], &[all(DIGESTS), all(PROTECTIONS)]),
        fallbacks: &[all("telpher_nvmf_fallbacks_total")],
        waited: IN_QUEUES,
    },
    System {
        name: "vhost",
        operations: &[all("telpher_vhost_packets_total")],
        bytes: &[all("telpher_vhost_bytes_total")],
        unit: 1,
        cpu: Cpu::DidWithout(&[all("telpher_vhost_offloaded_bytes_total")], &[all("telpher_vhost_bytes_total")]),
        fallbacks: &[
            all("telpher_vhost_fallbacks_total"),
            Part { reason: "left undone by DMA queue", ..all("telpher_vhost_dma_redone_copies_total") },
        ],
        waited: IN_QUEUES,
    },
    System {
        name: "offload",
        operations: &[all(OFFLOAD_CALLS)],
        bytes: &[all("telpher_offload_bytes_total")],
        unit: 1,
        cpu: Cpu::Did(&[only("telpher_offload_bytes_total", &["cpu"])], &[all("telpher_offload_bytes_total")]),
        fallbacks: &[only(
            OFFLOAD_CALLS,
            &[
                "cpu: data in the cache",
                "cpu: timed",
                "cpu: pages absent",
                "cpu: inside another call",
                "cpu: switched off",
                "cpu: overlapping ranges",
                "cpu: forked child",
                "cpu: caller is denied",
            ],
        )],
        waited: Waited::Unknown("a call never waits: without room, the CPU does it"),
    },
    System {
        name: "tier",
        operations: &[all("telpher_tier_exchanges_total")],
        bytes: &[all("telpher_tier_moved_pages_total")],
        unit: telpher_os::PAGE_BYTES,
        cpu: Cpu::Unknown("the copies of a tier are those of the process' mover"),
        fallbacks: &[],
        waited: OF_MOVER,
    },
];

/// The reason of a number that a system does not count.
const NOT_COUNTED: &str = "not counted";

/// The values of a process by the name of their metric, with the values of the label.
type Values<'a> = BTreeMap<&'a str, Vec<(&'a str, u64)>>;

impl Part {
    /// The values of this part; `None` if the process publishes none.
    fn of<'a>(&self, values: &Values<'a>) -> Option<Vec<(&'a str, u64)>> {
        let is_wanted = |label: &str| self.labels.is_empty() || self.labels.contains(&label);
        Some(values.get(self.metric)?.iter().filter(|(label, _)| is_wanted(label)).copied().collect())
    }
}

/// The sum of all parts; unknown if one is not published.
fn sum(parts: &[Part], values: &Values<'_>) -> Value {
    if parts.is_empty() {
        return Value::unknown(NOT_COUNTED);
    }
    let sums: Option<Vec<u64>> = parts
        .iter()
        .map(|part| Some(part.of(values)?.iter().fold(0, |sum: u64, (_, value)| sum.saturating_add(*value))))
        .collect();
    match sums {
        Some(sums) => Value::Known(sums.into_iter().fold(0, u64::saturating_add)),
        None => Value::unknown(NOT_COUNTED),
    }
}

impl System {
    fn row(&self, pid: u32, values: &Values<'_>) -> Option<ProgramRow> {
        let operations = sum(self.operations, values);
        // Another process' table may have any metrics; a row needs its first number.
        operations.known()?;
        let (cpu_part, cpu_whole) = match &self.cpu {
            Cpu::Did(part, whole) => (sum(part, values), sum(whole, values)),
            Cpu::DidWithout(device, whole) => {
                let whole = sum(whole, values);
                let part = whole.known().zip(sum(device, values).known());
                let part = part.map(|(whole, device)| whole.saturating_sub(device).into());
                (part.unwrap_or_else(|| Value::unknown(NOT_COUNTED)), whole)
            }
            Cpu::Unknown(why) => (Value::unknown(*why), Value::unknown(*why)),
        };
        let named = |part: &Part| -> Vec<(String, u64)> {
            let name = |label: &str| {
                if label.is_empty() { part.reason.into() } else { label.trim_start_matches("cpu: ").into() }
            };
            part.of(values).unwrap_or_default().into_iter().map(|(label, number)| (name(label), number)).collect()
        };
        let reasons = self.fallbacks.iter().flat_map(named);
        Some(ProgramRow {
            pid,
            command: command(pid),
            system: self.name.into(),
            operations,
            bytes: sum(self.bytes, values).times(self.unit),
            cpu_part,
            cpu_whole,
            fallbacks: sum(self.fallbacks, values),
            reasons: reasons.filter(|(_, number)| *number > 0).collect(),
            waited_ns: match self.waited {
                Waited::Counted(parts) => sum(parts, values),
                Waited::Unknown(why) => Value::unknown(why),
            },
        })
    }
}

/// Returns a row for each process and system that it publishes metrics of.
#[must_use]
pub fn rows(processes: &[ProcessMetrics]) -> Vec<ProgramRow> {
    let pids: BTreeSet<u32> = processes.iter().map(|process| process.pid).collect();
    let of_process = |pid: u32| {
        let mut values: Values<'_> = BTreeMap::new();
        for process in processes.iter().filter(|process| process.pid == pid) {
            for (metric, value) in process.metrics.iter().zip(&process.values) {
                let label = metric.label.as_ref().map_or("", |(_, value)| value.as_str());
                let of_metric = values.entry(metric.name.as_str()).or_default();
                // A process may have several regions of the same metrics.
                match of_metric.iter_mut().find(|(other, _)| *other == label) {
                    Some((_, sum)) => *sum = sum.saturating_add(*value),
                    None => of_metric.push((label, *value)),
                }
            }
        }
        SYSTEMS.iter().filter_map(move |system| system.row(pid, &values)).collect::<Vec<_>>()
    };
    pids.into_iter().flat_map(of_process).collect()
}

/// The metrics that the rows need, for a test that they exist.
pub fn needed() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let parts = |system: &'static System| {
        let cpu: [&[Part]; 2] = match &system.cpu {
            Cpu::Did(part, whole) | Cpu::DidWithout(part, whole) => [part, whole],
            Cpu::Unknown(_) => [&[], &[]],
        };
        let waited: &[Part] = match system.waited {
            Waited::Counted(parts) => parts,
            Waited::Unknown(_) => &[],
        };
        [system.operations, system.bytes, system.fallbacks, waited, cpu[0], cpu[1]].into_iter().flatten()
    };
    SYSTEMS.iter().flat_map(parts).map(|part| (part.metric, part.labels))
}
