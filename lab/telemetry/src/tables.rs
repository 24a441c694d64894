//! Snapshots as tables and CSV.

use crate::snapshot::{DeviceRow, Snapshot, Value, Work};
use telpher_report::table::Align::{Left, Right};
use telpher_report::table::{Align, Table};

/// The columns of the work of an object.
const WORK: [(&str, Align); 5] =
    [("descriptors", Right), ("members", Right), ("read", Right), ("written", Right), ("faults", Right)];

/// The columns of the CSV.
const CSV: &str = "kind,source,name,pid,command,state,mode,group,clients,occupancy,size,threshold,descriptors,members,\
                   read_bytes,written_bytes,faults,retries,lost,errors,timed,busy_ns,record_faults\n";

/// The header of the columns of Intel's pcm-accel. Source: pcm, `pcm-accel.cpp` and `opCode-6-143-accel.txt`.
const PCM: &str = "Accelerator,Socket,Inbound_BW(Bps),Outbound_BW(Bps),ShareWQ_ReqNb,DedicateWQ_ReqNb\n";

fn work(work: &Work) -> [String; 5] {
    let Work { descriptors, members, read_bytes, written_bytes, faults } = work;
    [descriptors.to_string(), members.to_string(), bytes(read_bytes), bytes(written_bytes), faults.to_string()]
}

fn bytes(value: &Value) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let Some(bytes) = value.known() else { return value.to_string() };
    // Whole numbers of at most five digits.
    let unit = (0..UNITS.len() - 1).find(|unit| bytes >> (10 * unit) < 10_240).unwrap_or(UNITS.len() - 1);
    format!("{} {}", bytes >> (10 * unit), UNITS[unit])
}

fn millis(value: &Value) -> String {
    value.known().map_or_else(|| value.to_string(), |ns| format!("{}.{:03} ms", ns / 1_000_000, ns / 1_000 % 1_000))
}

/// A table with some columns before and after those of the work.
fn table(before: &[(&str, Align)], after: &[(&str, Align)]) -> Table {
    Table::new(&[before, &WORK, after].concat())
}

/// Returns the snapshot as text: tables of devices, queues, engines and processes. A value that cannot be known is a
/// dash.
#[must_use]
pub fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let mut add = |table: Table, is_empty: bool| {
        if !is_empty {
            text.push_str(&format!("{table}\n"));
        }
    };
    let mut devices = table(
        &[("source", Left), ("device", Left), ("state", Left), ("clients", Right)],
        &[("retries", Right), ("lost", Right), ("errors", Right)],
    );
    for row in &snapshot.devices {
        let before = [row.source.clone(), row.device.clone(), row.state.clone(), row.clients.to_string()];
        let after = [&row.retries, &row.lost, &row.errors].map(ToString::to_string);
        devices.row(before.into_iter().chain(work(&row.work)).chain(after));
    }
    add(devices, snapshot.devices.is_empty());
    let mut queues = table(
        &[("source", Left), ("queue", Left), ("state", Left), ("mode", Left), ("clients", Right), ("waiting", Right)],
        &[("retries", Right), ("lost", Right)],
    );
    for row in &snapshot.queues {
        let waiting = format!("{}/{}", row.occupancy, row.size);
        let names = [&row.source, &row.queue, &row.state, &row.mode].map(Clone::clone);
        let after = [&row.retries, &row.lost].map(ToString::to_string);
        let before = names.into_iter().chain([row.clients.to_string(), waiting]);
        queues.row(before.chain(work(&row.work)).chain(after));
    }
    add(queues, snapshot.queues.is_empty());
    let mut engines =
        table(&[("source", Left), ("engine", Left), ("group", Right)], &[("timed", Right), ("busy", Right)]);
    for row in &snapshot.engines {
        let before = [row.source.clone(), row.engine.clone(), row.group.to_string()];
        engines.row(before.into_iter().chain(work(&row.work)).chain([row.timed.to_string(), millis(&row.busy_ns)]));
    }
    add(engines, snapshot.engines.is_empty());
    let mut processes = table(
        &[("source", Left), ("queue", Left), ("pid", Right), ("program", Left)],
        &[("retries", Right), ("lost", Right)],
    );
    for row in &snapshot.processes {
        let before = [row.source.clone(), row.queue.clone(), row.pid.to_string(), row.command.clone()];
        let after = [&row.retries, &row.lost].map(ToString::to_string);
        processes.row(before.into_iter().chain(work(&row.work)).chain(after));
    }
    add(processes, snapshot.processes.is_empty());
    for problem in &snapshot.problems {
        text.push_str(&format!("{problem}\n"));
    }
    text
}

/// A field of CSV: quoted if its text needs it.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

fn value(value: &Value) -> String {
    value.known().map_or_else(|| "unknown".into(), |value| value.to_string())
}

/// Returns the snapshot as CSV: a line for each device, queue, engine and process. A value that cannot be known is
/// `unknown`; a column that an object does not have is empty.
#[must_use]
pub fn csv(snapshot: &Snapshot) -> String {
    let mut text = CSV.to_owned();
    let mut line = |fields: Vec<String>| {
        let fields: Vec<String> = fields.iter().map(|text| field(text)).collect();
        text.push_str(&(fields.join(",") + "\n"));
    };
    let none = String::new;
    let work = |work: &Work| {
        let Work { descriptors, members, read_bytes, written_bytes, faults } = work;
        [descriptors, members, read_bytes, written_bytes, faults].map(value)
    };
    for row in &snapshot.devices {
        let mut fields = vec!["device".into(), row.source.clone(), row.device.clone(), none(), none()];
        fields.extend([row.state.clone(), none(), none(), value(&row.clients), none(), none(), none()]);
        fields.extend(work(&row.work));
        fields.extend([&row.retries, &row.lost, &row.errors].map(value));
        fields.extend([none(), none(), none()]);
        line(fields);
    }
    for row in &snapshot.queues {
        let mut fields = vec!["queue".into(), row.source.clone(), row.queue.clone(), none(), none()];
        fields.extend([row.state.clone(), row.mode.clone()]);
        fields.extend([&row.group, &row.clients, &row.occupancy, &row.size, &row.threshold].map(value));
        fields.extend(work(&row.work));
        fields.extend([&row.retries, &row.lost].map(value));
        fields.extend([none(), none(), none(), none()]);
        line(fields);
    }
    for row in &snapshot.engines {
        let mut fields = vec!["engine".into(), row.source.clone(), row.engine.clone(), none(), none(), none(), none()];
        fields.extend([value(&row.group), none(), none(), none(), none()]);
        fields.extend(work(&row.work));
        fields.extend([none(), none(), none(), value(&row.timed), value(&row.busy_ns), none()]);
        line(fields);
    }
    for row in &snapshot.processes {
        let mut fields = vec!["process".into(), row.source.clone(), row.queue.clone(), value(&row.pid)];
        fields.extend([row.command.clone(), none(), none(), none(), none(), none(), none(), none()]);
        fields.extend(work(&row.work));
        fields.extend([value(&row.retries), value(&row.lost), none(), none(), none(), value(&row.record_faults)]);
        line(fields);
    }
    text
}

/// Returns the columns of Intel's pcm-accel as CSV, with its header: what each device did per second between two
/// snapshots. A value that cannot be known is `unknown`.
#[must_use]
pub fn pcm(before: &Snapshot, after: &Snapshot, seconds: f64) -> String {
    let mut text = PCM.to_owned();
    for (number, row) in after.devices.iter().enumerate() {
        let earlier = before.devices.iter().find(|old| (&old.source, &old.device) == (&row.source, &row.device));
        let rate = |of: &dyn Fn(&DeviceRow) -> Option<u64>| {
            let grown = of(row).and_then(|now| Some(now.saturating_sub(earlier.map_or(Some(0), of)?)));
            // Cut to a whole number, as pcm-accel does.
            grown.map_or_else(|| "unknown".into(), |grown| format!("{:.0}", (grown as f64 / seconds.max(1e-9)).floor()))
        };
        let columns = [
            rate(&|row| row.work.read_bytes.known()),
            rate(&|row| row.work.written_bytes.known()),
            rate(&|row| row.shared_requests.known()),
            rate(&|row| row.dedicated_requests.known()),
        ];
        text.push_str(&format!("DSA#{number},unknown,{}\n", columns.join(",")));
    }
    text
}
