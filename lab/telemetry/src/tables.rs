//! Snapshots as tables and CSV.

use crate::sections::sections;
use crate::snapshot::{DeviceRow, ProgramRow, Snapshot, Value, Work};
use telpher_report::table::{Table, wrapped};

/// Spaces before each column.
const GAP: usize = 2;

/// The columns of the CSV.
const CSV: &str = "kind,source,name,pid,command,state,mode,group,clients,occupancy,size,threshold,descriptors,members,\
                   read_bytes,written_bytes,faults,retries,lost,errors,timed,busy_ns,record_faults,system,operations,\
                   bytes,cpu_part,cpu_whole,fallbacks,waited_ns,logged,numa_distance\n";

/// The header of the columns of Intel's pcm-accel. Source: pcm, `pcm-accel.cpp` and `opCode-6-143-accel.txt`.
const PCM: &str = "Accelerator,Socket,Inbound_BW(Bps),Outbound_BW(Bps),ShareWQ_ReqNb,DedicateWQ_ReqNb\n";

/// Returns the snapshot as text: for each source, tables of devices, queues, engines and processes, then the table of
/// programs. A value that cannot be known is a dash. Columns that do not fit into `width` characters are left out,
/// which a line below the table says.
#[must_use]
pub fn text(snapshot: &Snapshot, width: usize, sort: Option<&str>) -> String {
    let mut text = String::new();
    let sources = snapshot.sources().into_iter().map(|source| (source, snapshot.of_source(source)));
    let programs = (!snapshot.programs.is_empty()).then(|| ("programs", snapshot.of_programs()));
    for (heading, part) in sources.chain(programs) {
        text.push_str(&format!("{heading}\n"));
        for mut section in sections(&part, None) {
            section.remove("source");
            if let Some(sort) = sort {
                section.sort(sort, false);
            }
            section.fit(width, GAP);
            let columns: Vec<_> = section.columns.iter().map(|column| (column.name, column.align)).collect();
            let mut table = Table::new(&columns);
            for row in section.rows {
                table.row(row.into_iter().map(|cell| cell.text));
            }
            text.push_str(&table.to_string());
            if !section.left_out.is_empty() {
                let names = section.left_out.join(", ");
                let sentence = format!("Not shown in {width} columns: {names}.");
                for line in wrapped(&sentence, width.saturating_sub(GAP)) {
                    text.push_str(&format!("  {line}\n"));
                }
            }
            text.push('\n');
        }
    }
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

/// Returns the snapshot as CSV: a line for each device, queue, engine, process and program. A value that cannot be
/// known is `unknown`; a column that an object does not have is empty.
#[must_use]
pub fn csv(snapshot: &Snapshot) -> String {
    let mut text = CSV.to_owned();
    let columns = CSV.split(',').count();
    let mut line = |mut fields: Vec<String>| {
        fields.resize(columns, String::new());
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
        fields.resize(columns - 2, none());
        fields.push(value(&row.logged));
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
        fields.resize(columns - 1, none());
        fields.push(value(&row.numa_distance));
        line(fields);
    }
    // Programs have the last columns but two.
    let of_programs = columns - 9;
    for row in &snapshot.programs {
        let mut fields = vec!["program".into(), none(), none(), row.pid.to_string(), row.command.clone()];
        fields.resize(of_programs, none());
        fields.push(row.system.clone());
        let ProgramRow { operations, bytes, cpu_part, cpu_whole, fallbacks, waited_ns, .. } = row;
        fields.extend([operations, bytes, cpu_part, cpu_whole, fallbacks, waited_ns].map(value));
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
