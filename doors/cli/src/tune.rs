//! `telpher tune`: measures what operations cost on this machine, by CPU and device, and writes the file with which
//! programs start.
//!
//! ```text
//! options ──► bench::sweep ──► points ──► Tuning ──► the file; a table of the thresholds
//! ```

use crate::args::{Format, Runner, Tune};
use crate::{log, version};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use telpher_bench::options::{Hint, SweepOptions};
use telpher_bench::results::{self, Point, SweepResult};
use telpher_bench::{BenchError, sweep};
use telpher_device::{DeviceName, OpenOptions};
use telpher_mem::PageSize;
use telpher_mover::{Measured, Opcode, TunedMachine, Tuning, TuningError};
use telpher_report::deliver::DeliverError;
use telpher_report::machine::Machine;
use telpher_report::table::{Align, Table};
use telpher_report::units;

/// Why a machine was not tuned.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TuneError {
    /// The measurement failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The file could not be written.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// The device ran no operation, so there is nothing to compare with the CPU.
    #[error(
        "{device} ran none of the requested operations, so there is nothing to tune; `telpher list` shows what it \
         supports"
    )]
    Nothing {
        /// The device, as typed.
        device: String,
    },
    /// The name is not a device that can be tuned for.
    #[error("--device {0} is not a device to tune for; name a model or a queue, such as model:spr or hw:wq0.0")]
    Device(String),
    /// The result cannot be written.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Measures, writes the file, and prints the result.
pub(crate) fn run(args: &Tune) -> Result<(), TuneError> {
    let device = device(args.device.as_deref())?;
    log::info(|| format!("tunes for {device}; kernels: {}", version::kernels()));
    writable(&args.tuning)?;
    args.printed.check()?;
    let machine = Machine::read();
    let result = sweep::run(&plan(args, &device), machine.clone())?;
    let tuning = tuning(&result, &device, args, &machine);
    if tuning.measured.is_empty() {
        return Err(TuneError::Nothing { device });
    }
    tuning.save(&args.tuning)?;
    let text = match args.printed.format {
        Format::Table => table(&tuning, &result.remarks, &args.tuning),
        Format::Json => json(&tuning, &result.remarks, &args.tuning),
        Format::Csv => csv(&tuning),
    };
    Ok(args.printed.write(text)?)
}

/// Returns the device to tune for: the named one, otherwise the first usable hardware queue, otherwise the model.
fn device(named: Option<&str>) -> Result<String, TuneError> {
    if let Some(name) = named {
        return match name.parse::<DeviceName>().map_err(BenchError::from)? {
            DeviceName::Cpu | DeviceName::All => Err(TuneError::Device(name.into())),
            _ => Ok(name.into()),
        };
    }
    let hardware = telpher_device::open(&DeviceName::All, OpenOptions::default()).ok();
    let queue = hardware.and_then(|opened| Some(opened.portals.first()?.info().name.clone()));
    Ok(queue.map_or_else(|| "model:spr".into(), |queue| format!("hw:{queue}")))
}

/// Checks before measuring that the file can be written, without changing it.
fn writable(path: &Path) -> Result<(), TuneError> {
    let refused = |source| TuningError::File { what: "write", path: path.to_owned(), source };
    Ok(telpher_os::check_writable(path).map_err(refused)?)
}

/// Returns the sweep to run: the CPU and the device, with the requested number in flight.
fn plan(args: &Tune, device: &str) -> SweepOptions {
    SweepOptions {
        ops: args.op.0.clone(),
        sizes: args.size.0.clone(),
        depths: Some(vec![args.in_flight]),
        batches: None,
        threads: 1,
        queue: None,
        wq_size: None,
        engines: None,
        placement: None,
        pages: PageSize::Small,
        hint: Hint::Cache,
        device: device.into(),
        seconds: args.seconds,
    }
}

/// Returns what an operation costs its caller: the latency if each is waited for, the time between two operations if
/// many are in
/// flight. Without a latency, the time between two: sequential operations take as long.
fn cost(point: &Point) -> Duration {
    let latency = point.p50_ns.filter(|_| point.in_flight == 1);
    let nanos = latency.unwrap_or(1e9 / point.ops_per_s);
    // At least a nanosecond, the smallest time that the file can hold.
    Duration::from_secs_f64((nanos.max(1.0) / 1e9).min(3600.0))
}

fn tuning(result: &SweepResult, device: &str, args: &Tune, machine: &Machine) -> Tuning {
    let runner = match args.runner {
        Runner::Inline => results::Runner::Inline,
        Runner::Threaded => results::Runner::Threaded,
    };
    let other = match args.runner {
        Runner::Inline => results::Runner::Threaded,
        Runner::Threaded => results::Runner::Inline,
    };
    // Points of hardware have their own runner, which is neither.
    let wanted = |point: &&Point| point.route.runner.is_some_and(|its| its == runner || its != other);
    let measured = result.points.iter().filter(wanted).filter_map(|point| {
        let cpu =
            result.points.iter().find(|cpu| cpu.route.is_cpu() && (cpu.op, cpu.size) == (point.op, point.size))?;
        let op = Opcode::ALL.iter().copied().find(|op| op.short_name() == point.op)?;
        Some(Measured { op, bytes: point.size, cpu: cost(cpu), device: cost(point) })
    });
    let where_measured = TunedMachine {
        cpu: machine.cpu.clone(),
        device: device.into(),
        in_flight: args.in_flight,
        date: machine.date.clone(),
        telpher: machine.version.into(),
    };
    Tuning::new(where_measured, measured.collect())
}

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

fn table(tuning: &Tuning, remarks: &[String], path: &Path) -> String {
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
    for remark in remarks {
        // Writing to a string does not fail (here and below).
        let _ = writeln!(text, "{remark}");
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

/// The output of `--format json`.
#[derive(Serialize)]
struct Report<'a> {
    kind: &'static str,
    file: &'a Path,
    cpu: &'a str,
    device: &'a str,
    in_flight: u32,
    date: &'a str,
    remarks: &'a [String],
    operations: Vec<OperationReport<'a>>,
}

#[derive(Serialize)]
struct OperationReport<'a> {
    op: &'a str,
    /// Bytes from which the operation goes to the device; absent if never.
    device_from: Option<u64>,
    points: Vec<PointReport>,
}

#[derive(Serialize)]
struct PointReport {
    size: u64,
    cpu_ns: u128,
    device_ns: u128,
}

impl From<&Measured> for PointReport {
    fn from(point: &Measured) -> Self {
        PointReport { size: point.bytes, cpu_ns: point.cpu.as_nanos(), device_ns: point.device.as_nanos() }
    }
}

fn json(tuning: &Tuning, remarks: &[String], path: &Path) -> String {
    let TunedMachine { cpu, device, in_flight, date, .. } = &tuning.machine;
    let operations = operations(tuning).map(|(op, from, points)| OperationReport {
        op,
        device_from: (from < u64::MAX).then_some(from),
        points: points.iter().map(PointReport::from).collect(),
    });
    let operations = operations.collect();
    let report = Report { kind: "tune", file: path, cpu, device, in_flight: *in_flight, date, remarks, operations };
    serde_json::to_string_pretty(&report).expect("results are plain data with string keys") + "\n"
}

fn csv(tuning: &Tuning) -> String {
    let mut text = String::from("op,size,cpu_ns,device_ns,device_from\n");
    for (name, from, points) in operations(tuning) {
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
    use crate::args::{Cli, Command};

    fn args(words: &[&str]) -> Tune {
        let words = ["telpher", "tune"].iter().chain(words);
        match Cli::parse_from_words(words).unwrap().command {
            Command::Tune(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn points_of_a_sweep_become_pairs_and_a_threshold() {
        let args = args(&["--runner", "threaded"]);
        let tuning = tuning(&results::sample(), "model:spr", &args, &Machine::read());
        let sizes: Vec<u64> = tuning.measured.iter().map(|point| point.bytes).collect();
        assert_eq!(sizes, [64, 4096, 65536]);
        assert_eq!(tuning.measured[1].cpu, Duration::from_nanos(80));
        assert_eq!(tuning.measured[1].device, Duration::from_nanos(60));
        assert_eq!(tuning.policy().threshold.of(Opcode::MemoryMove), 4096);
        let text = table(&tuning, &["Mind this.".into()], Path::new("x.toml"));
        assert!(text.contains("4 KiB") && text.contains("Mind this.") && text.contains("TELPHER_TUNING=/"), "{text}");
        assert_eq!(csv(&tuning).lines().nth(2), Some("move,4096,80,60,4096"));
        let json: serde_json::Value = serde_json::from_str(&json(&tuning, &[], Path::new("x.toml"))).unwrap();
        assert_eq!(json["operations"][0]["device_from"], 4096);
        assert_eq!(json["operations"][0]["points"][2]["device_ns"], 900);
    }

    #[test]
    fn points_of_the_other_runner_are_left_out() {
        let tuning = tuning(&results::sample(), "model:spr", &args(&[]), &Machine::read());
        assert!(tuning.measured.is_empty(), "the sample has threaded points only");
    }
}
