//! Devices, groups, queues, engines and what they can do: text, and CSV with a line for each queue.

use crate::csv;
use crate::table::{Align, Table};
use crate::terminal;
use crate::units;
use serde::Serialize;
use std::fmt::Write as _;

/// A device. `None` is a value that it does not report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name on the command line, such as `model:spr`.
    pub name: String,
    /// Its name in accel-config, such as `dsa0`.
    pub dev: String,
    /// True for a modelled device.
    pub modelled: bool,
    /// Address of its PCI function.
    pub pci_address: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// The most groups.
    pub max_groups: Option<u32>,
    /// The most queues.
    pub max_work_queues: Option<u32>,
    /// The number of engines.
    pub max_engines: Option<u32>,
    /// Entries of all queues together.
    pub work_queue_size: Option<u32>,
    /// Read buffers.
    pub max_read_buffers: Option<u32>,
    /// Largest batch, in descriptors.
    pub max_batch_size: Option<u32>,
    /// Largest transfer, in bytes.
    pub max_transfer_size: Option<u64>,
    /// Version.
    pub version: Option<String>,
    /// GENCAP.
    pub gen_cap: Option<String>,
    /// OPCAP.
    pub op_cap: Option<String>,
    /// Names of the operations in OPCAP.
    pub operations: Vec<&'static str>,
    /// `enabled`, `disabled` or `halted`.
    pub state: Option<String>,
    /// Groups with members.
    pub groups: Vec<Group>,
}

/// A group of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its name, such as `group0.0`.
    pub dev: String,
    /// Its queues.
    pub queues: Vec<Queue>,
    /// Names of its engines.
    pub engines: Vec<String>,
}

/// A work queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Its name, such as `wq0.0`.
    pub dev: String,
    /// `dedicated` or `shared`.
    pub mode: Option<&'static str>,
    /// Entries.
    pub size: u32,
    /// The most entries that the limited portal may fill; 0 for a dedicated queue.
    pub threshold: u32,
    /// Priority.
    pub priority: Option<u32>,
    /// Largest transfer, in bytes.
    pub max_transfer_size: Option<u64>,
    /// Largest batch, in descriptors.
    pub max_batch_size: Option<u32>,
    /// 1 if descriptors may wait for pages.
    pub block_on_fault: Option<u32>,
    /// Type: `user`, `kernel` or `none`.
    pub kind: Option<String>,
    /// State.
    pub state: Option<String>,
    /// Why this user cannot use it.
    pub unusable: Option<String>,
}

/// One work queue. The fields of a device without queues are those of the device alone.
#[derive(Default, Serialize)]
struct QueueRow {
    device: String,
    name: String,
    group: Option<String>,
    queue: Option<String>,
    mode: Option<&'static str>,
    entries: Option<u32>,
    threshold: Option<u32>,
    priority: Option<u32>,
    max_transfer_size: Option<u64>,
    max_batch_size: Option<u32>,
    block_on_fault: Option<u32>,
    state: Option<String>,
    engines: Vec<String>,
    unusable: Option<String>,
}

/// Returns one line for each work queue, and one for each device without queues.
#[must_use]
pub fn csv(devices: &[Device]) -> String {
    let mut rows = Vec::new();
    for device in devices {
        let begun = rows.len();
        for group in &device.groups {
            rows.extend(group.queues.iter().map(|queue| QueueRow {
                device: device.dev.clone(),
                name: device.name.clone(),
                group: Some(group.dev.clone()),
                queue: Some(queue.dev.clone()),
                mode: queue.mode,
                entries: Some(queue.size),
                threshold: (queue.mode == Some("shared")).then_some(queue.threshold),
                priority: queue.priority,
                max_transfer_size: queue.max_transfer_size,
                max_batch_size: queue.max_batch_size,
                block_on_fault: queue.block_on_fault,
                state: queue.state.clone(),
                engines: group.engines.clone(),
                unusable: queue.unusable.clone(),
            }));
        }
        if rows.len() == begun {
            rows.push(QueueRow { device: device.dev.clone(), name: device.name.clone(), ..QueueRow::default() });
        }
    }
    csv::rows(&rows)
}

/// Formats a value that the device may not report; "?" if it does not.
fn known<T: ToString>(value: Option<T>) -> String {
    value.map_or("?".into(), |value| value.to_string())
}

/// Returns one device as text.
#[must_use]
pub fn text(d: &Device) -> String {
    let name = &d.name;
    let mut out = String::new();
    let groups = d.groups.len();
    let queues: usize = d.groups.iter().map(|g| g.queues.len()).sum();
    let engines: usize = d.groups.iter().map(|g| g.engines.len()).sum();
    let what = if d.modelled { "a modelled Data Streaming Accelerator" } else { "a Data Streaming Accelerator" };
    let _ =
        write!(out, "{} ({name}): {what}, version {}, {}", d.dev, known(d.version.as_ref()), known(d.state.as_ref()));
    if let Some(address) = &d.pci_address {
        let _ = write!(out, ", at {address}");
    }
    let node = d.numa_node.map_or(String::new(), |node| format!(", NUMA node {node}"));
    let _ = writeln!(out, "{node}");
    let _ = writeln!(
        out,
        "  {groups} of {} groups, {queues} of {} work queues, {engines} of {} engines in use; {} queue entries in all",
        known(d.max_groups),
        known(d.max_work_queues),
        known(d.max_engines),
        known(d.work_queue_size)
    );
    let _ = writeln!(
        out,
        "  transfers to {}, batches to {} descriptors, {} read buffers",
        known(d.max_transfer_size.map(units::size)),
        known(d.max_batch_size),
        known(d.max_read_buffers)
    );
    let _ = writeln!(out, "  GENCAP {}, OPCAP {}", known(d.gen_cap.as_ref()), known(d.op_cap.as_ref()));
    let _ = writeln!(out, "  operations: {}\n", wrapped(&d.operations, 14));
    if queues == 0 {
        let _ =
            writeln!(out, "  No queue is configured; configure queues with `accel-config load-config -c FILE -e`.\n");
        return out;
    }
    let _ = writeln!(out, "{}", table(d));
    if !d.modelled {
        let members = d.groups.iter().flat_map(|group| &group.queues);
        for queue in members {
            let _ = match &queue.unusable {
                None => writeln!(out, "  hw:{} can be used", queue.dev),
                Some(why) => writeln!(out, "  hw:{} cannot be used: {why}", queue.dev),
            };
        }
        out.push('\n');
    }
    out
}

/// Returns the table of a device's queues.
fn table(d: &Device) -> Table {
    let mut columns = vec![
        ("group", Align::Left),
        ("queue", Align::Left),
        ("mode", Align::Left),
        ("entries", Align::Right),
        ("threshold", Align::Right),
        ("priority", Align::Right),
        ("transfer", Align::Right),
        ("batch", Align::Right),
        ("block on fault", Align::Left),
        ("state", Align::Left),
        ("engines", Align::Left),
    ];
    if !d.modelled {
        columns.insert(3, ("type", Align::Left));
    }
    let mut table = Table::new(&columns);
    for group in &d.groups {
        let engines = spans(group.engines.iter().map(String::as_str));
        for (i, q) in group.queues.iter().enumerate() {
            let first = |text: String| if i == 0 { text } else { String::new() };
            let mut cells = vec![
                first(group.dev.clone()),
                q.dev.clone(),
                known(q.mode),
                q.size.to_string(),
                if q.mode == Some("shared") { q.threshold.to_string() } else { String::new() },
                known(q.priority),
                known(q.max_transfer_size.map(units::size)),
                known(q.max_batch_size),
                q.block_on_fault.map_or("?", |blocks| if blocks == 1 { "yes" } else { "no" }).into(),
                known(q.state.as_ref()),
                first(engines.clone()),
            ];
            if !d.modelled {
                cells.insert(3, known(q.kind.as_ref()));
            }
            table.row(cells);
        }
    }
    table
}

/// Formats names such as `engine0.1`; consecutive numbers become one span: `engine0.0-2 engine0.4`.
fn spans<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut spans: Vec<(&str, u32, u32)> = Vec::new();
    for name in names {
        let (stem, number) =
            name.rsplit_once('.').and_then(|(stem, n)| Some((stem, n.parse().ok()?))).unwrap_or((name, 0));
        match spans.last_mut() {
            Some((before, _, last)) if *before == stem && *last + 1 == number => *last = number,
            _ => spans.push((stem, number, number)),
        }
    }
    let span = |(stem, first, last): (&str, u32, u32)| match last {
        _ if first == last => format!("{stem}.{first}"),
        _ => format!("{stem}.{first}-{last}"),
    };
    spans.into_iter().map(span).collect::<Vec<_>>().join(" ")
}

/// Columns at which lists are wrapped, if the terminal has as many.
const LIST_COLUMNS: usize = 100;

/// Joins words with commas, broken at the end of a line and indented.
fn wrapped(words: &[&str], indent: usize) -> String {
    let columns = terminal::columns().min(LIST_COLUMNS);
    let (mut out, mut column) = (String::new(), indent);
    for (i, word) in words.iter().enumerate() {
        if i > 0 {
            out.push(',');
            if column + word.len() + 2 > columns {
                out.push('\n');
                out.push_str(&" ".repeat(indent));
                column = indent;
            } else {
                out.push(' ');
                column += 2;
            }
        }
        out.push_str(word);
        column += word.len();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn consecutive_engines_are_one_span() {
        let joined = |names: &[&str]| spans(names.iter().copied());
        assert_eq!(joined(&["engine0.0"]), "engine0.0");
        assert_eq!(
            joined(&["engine0.0", "engine0.1", "engine0.2", "engine0.4", "engine1.5"]),
            "engine0.0-2 engine0.4 engine1.5"
        );
        assert_eq!(joined(&[]), "");
    }

    #[test]
    fn long_lists_are_wrapped() {
        let words = ["abcdefghij"; 20];
        let text = wrapped(&words, 4);
        assert!(text.lines().count() > 1 && text.lines().all(|l| l.len() <= 101));
    }
}
