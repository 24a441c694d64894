//! The costs of operations on this machine, and the sizes from which a device is used: a terminal table, JSON and CSV.

use crate::tune::TuneResult;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use telpher_mover::{Measured, MessageTuning, TunedMachine, Tuning};
use telpher_report::table::{Align, Table};
use telpher_report::{schema, units};

/// Formats a threshold: `never`, `always`, or a size.
fn limit(bytes: u64) -> String {
    match bytes {
        0 => "always".into(),
        u64::MAX => "never".into(),
        _ => units::size(bytes),
    }
}

/// Returns for each operation its name, its threshold, and its points.
fn operations(tuning: &Tuning) -> impl Iterator<Item = (&'static str, u64, &[Measured])> {
    let threshold = tuning.policy().threshold;
    let by_operation = tuning.measured.chunk_by(|a, b| a.op == b.op);
    by_operation.map(move |points| (points[0].op.short_name(), threshold.of(points[0].op), points))
}

/// Returns the table for a terminal; `path` is the tuning file.
pub fn text(result: &TuneResult, path: &Path) -> String {
    let TuneResult { tuning, remarks } = result;
    let mut table = Table::new(&[
        ("operation", Align::Left),
        ("size", Align::Right),
        ("CPU", Align::Right),
        ("device", Align::Right),
        ("device from", Align::Right),
    ]);
    for (name, from, points) in operations(tuning) {
        for (index, point) in points.iter().enumerate() {
            let first = |text: String| if index == 0 { text } else { String::new() };
            let time = |time: Duration| units::time(time.as_secs_f64() * 1e9);
            table.row([
                first(name.into()),
                units::size(point.bytes),
                time(point.cpu),
                time(point.device),
                first(limit(from)),
            ]);
        }
        table.gap();
    }
    let TunedMachine { cpu, device, in_flight, .. } = &tuning.machine;
    let how = match in_flight {
        1 => "one at a time".to_owned(),
        many => format!("{many} in flight"),
    };
    let mut text =
        format!("What operations cost their caller on {cpu}, by the CPU and by {device}, {how}\n\n{table}\n");
    // Writing to a string does not fail (here and below).
    if let Some(kernels) = tuning.kernels {
        let _ = writeln!(text, "Kernels that are fastest on data outside of the caches: {kernels}\n");
    }
    for line in messages(&tuning.messages).into_iter().chain(remarks.iter().cloned()) {
        let _ = writeln!(text, "{line}");
    }
    let shown = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let _ = writeln!(
        text,
        "Written to {}. Programs that use telpher start with it after\n\n  export {}={}",
        path.display(),
        Tuning::VARIABLE,
        shown.display()
    );
    text
}

/// Says how messages between processes travel, if that was measured.
fn messages(messages: &MessageTuning) -> Option<String> {
    let MessagesReport { eager_up_to, streaming_from } = MessagesReport::of(messages)?;
    let streaming = match streaming_from {
        None => "the shortest piece for non-temporal stores stays the default".to_owned(),
        Some(bytes) => format!("non-temporal stores may fill pieces from {} on", units::size(bytes)),
    };
    let eager = units::size(eager_up_to.into());
    Some(format!("Messages between processes: up to {eager} in the ring; {streaming}."))
}

/// The output of `--format json`.
#[derive(Serialize)]
struct Report<'a> {
    /// Always `tune`.
    kind: &'static str,
    /// The tuning file.
    file: &'a Path,
    /// The processor.
    cpu: &'a str,
    /// The device that was compared with it.
    device: &'a str,
    /// Operations in flight while the device was measured.
    in_flight: u32,
    /// The date of the measurement.
    date: &'a str,
    /// The variants of the CPU's kernels, if they were measured.
    kernels: Option<String>,
    /// What to know about the numbers, one sentence each.
    remarks: &'a [String],
    /// How messages between processes travel; null if they were not measured.
    messages: Option<MessagesReport>,
    /// The operations.
    operations: Vec<OperationReport<'a>>,
}

/// From which lengths messages between processes travel in another way.
#[derive(Serialize)]
struct MessagesReport {
    /// Bytes up to which messages travel inside the ring.
    eager_up_to: u32,
    /// Bytes from which non-temporal stores may fill pieces of messages; null if the default stays.
    streaming_from: Option<u64>,
}

impl MessagesReport {
    /// Returns `None` if the messages were not measured.
    fn of(messages: &MessageTuning) -> Option<MessagesReport> {
        Some(MessagesReport { eager_up_to: messages.eager_bytes?, streaming_from: messages.streaming_bytes })
    }
}

#[derive(Serialize)]
struct OperationReport<'a> {
    /// Its name.
    op: &'a str,
    /// Bytes from which the operation goes to the device; null if never.
    device_from: Option<u64>,
    /// The measured sizes.
    points: Vec<PointReport>,
}

#[derive(Serialize)]
struct PointReport {
    /// Bytes of an operation.
    size: u64,
    /// Nanoseconds of an operation by the CPU.
    cpu_ns: u128,
    /// Nanoseconds of an operation by the device.
    device_ns: u128,
}

impl From<&Measured> for PointReport {
    fn from(point: &Measured) -> Self {
        PointReport { size: point.bytes, cpu_ns: point.cpu.as_nanos(), device_ns: point.device.as_nanos() }
    }
}

/// Returns the JSON; `path` is the tuning file.
///
/// # Panics
/// Never: results are plain data.
pub fn json(result: &TuneResult, path: &Path) -> String {
    let TuneResult { tuning, remarks } = result;
    let TunedMachine { cpu, device, in_flight, date, .. } = &tuning.machine;
    let operations = operations(tuning).map(|(op, from, points)| OperationReport {
        op,
        device_from: (from < u64::MAX).then_some(from),
        points: points.iter().map(PointReport::from).collect(),
    });
    let operations = operations.collect();
    let kernels = tuning.kernels.map(|kernels| kernels.to_string());
    let messages = MessagesReport::of(&tuning.messages);
    let in_flight = *in_flight;
    let report =
        Report { kind: "tune", file: path, cpu, device, in_flight, date, kernels, remarks, messages, operations };
    schema::TUNE.pretty(&report)
}

/// Returns the CSV: one line for each operation and size.
pub fn csv(result: &TuneResult) -> String {
    let mut text = String::from("op,size,cpu_ns,device_ns,device_from\n");
    for (name, from, points) in operations(&result.tuning) {
        let from = if from == u64::MAX { String::new() } else { from.to_string() };
        for PointReport { size, cpu_ns, device_ns } in points.iter().map(PointReport::from) {
            let _ = writeln!(text, "{name},{size},{cpu_ns},{device_ns},{from}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune;

    #[test]
    fn points_of_a_sweep_become_a_table_json_and_csv() {
        let mut tuning = tune::sample();
        tuning.messages =
            MessageTuning { eager_bytes: Some(16 << 10), streaming_bytes: Some(8 << 10), pull_bytes: None };
        let mut result = TuneResult { tuning, remarks: vec!["Mind this.".into()] };
        let text = text(&result, Path::new("x.toml"));
        assert!(text.contains("4 KiB") && text.contains("Mind this.") && text.contains("TELPHER_TUNING=/"), "{text}");
        let expected = "up to 16 KiB in the ring; non-temporal stores may fill pieces from 8 KiB on.";
        assert!(text.contains(expected), "{text}");
        assert_eq!(csv(&result).lines().nth(2), Some("move,4096,80,60,4096"));
        let report = |result: &TuneResult| -> serde_json::Value {
            serde_json::from_str(&json(result, Path::new("x.toml"))).unwrap()
        };
        let json = report(&result);
        assert_eq!(json["operations"][0]["device_from"], 4096);
        assert_eq!(json["messages"], serde_json::json!({"eager_up_to": 16384, "streaming_from": 8192}));
        assert_eq!(json["operations"][0]["points"][2]["device_ns"], 900);
        result.tuning.messages.streaming_bytes = None;
        assert_eq!(report(&result)["messages"], serde_json::json!({"eager_up_to": 16384, "streaming_from": null}));
        let unmeasured = TuneResult { tuning: tune::sample(), remarks: Vec::new() };
        let document = report(&unmeasured);
        assert!(document["messages"].is_null(), "{document}");
    }
}
