//! `telpher tune`: what operations cost their caller on this machine, by the CPU and by a device; and from which
//! lengths messages between processes travel in another way.
//!
//! ```text
//! options ──► sweep ──► points ──► Tuning, which telpher-mover writes to a file
//!         └─► crossovers of fabric ─┘
//! ```

use crate::fabric::crossovers;
use crate::options::{Hint, Pages, SweepOptions, TuneOptions};
use crate::results::{Point, Runner, SweepResult};
use crate::{BenchError, sweep};
use std::time::Duration;
use telpher_device::{DeviceName, OpenOptions};
use telpher_mover::{Measured, MessageTuning, Opcode, TunedMachine, Tuning};
use telpher_ops::Variants;
use telpher_report::machine::Machine;

/// What was measured.
#[derive(Clone, Debug)]
pub struct TuneResult {
    /// The costs; without any if the device ran none of the operations.
    pub tuning: Tuning,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
}

/// Returns the device that is tuned for unless the user names one: the first usable hardware queue, otherwise the
/// model.
pub fn default_device() -> String {
    let hardware = telpher_device::open(&DeviceName::All, OpenOptions::default()).ok();
    let queue = hardware.and_then(|opened| Some(opened.portals.first()?.info().name.clone()));
    queue.map_or_else(|| "model:spr".into(), |queue| format!("hw:{queue}"))
}

/// Measures the operations by the CPU and by the device.
///
/// # Errors
/// If the measurement fails.
pub fn run(options: &TuneOptions, machine: Machine) -> Result<TuneResult, BenchError> {
    // First, so that the costs of the CPU are those with the fastest kernels.
    let kernels = Variants::measure(&mut vec![0; Variants::SCRATCH], KERNELS);
    kernels.apply();
    let result = sweep::run(&plan(options), machine.clone())?;
    let mut tuning = tuning(&result, options, &machine);
    tuning.kernels = Some(kernels);
    let mut remarks = result.remarks;
    match messages(&machine, options.seconds * FOR_MESSAGES) {
        Ok(messages) => tuning.messages = messages,
        Err(why) => remarks.push(format!("Messages between processes were not measured: {why}.")),
    }
    Ok(TuneResult { tuning, remarks })
}

/// The part of the time in which messages between processes are measured. Source: chosen.
const FOR_MESSAGES: f64 = 0.2;

/// The least time that is allowed for that; with few seconds, the shortest turns take longer than their share.
const AT_LEAST: Duration = Duration::from_secs(2);

/// Measures messages between two cores, or returns why not.
fn messages(machine: &Machine, seconds: f64) -> Result<MessageTuning, String> {
    let cpus = [machine.core(0), machine.core(1)];
    if cpus[0] == cpus[1] {
        return Err("this process has one core, and they need two".into());
    }
    let time = Duration::from_secs_f64(seconds);
    crossovers::measure(cpus, time, 2 * time + AT_LEAST).map_err(|error| error.to_string())
}

/// How long the variants of kernels are measured. Source: chosen; some thousand runs.
const KERNELS: Duration = Duration::from_millis(500);

/// Returns the sweep to run: the CPU and the device, with the requested number in flight.
fn plan(options: &TuneOptions) -> SweepOptions {
    SweepOptions {
        ops: options.ops.clone(),
        sizes: options.sizes.clone(),
        depths: Some(vec![options.in_flight]),
        batches: None,
        threads: 1,
        queue: None,
        wq_size: None,
        engines: None,
        placement: None,
        pages: Pages::Small,
        hint: Hint::Cache,
        device: options.device.clone(),
        waits: false,
        seconds: options.seconds * (1.0 - FOR_MESSAGES),
    }
}

/// Returns what an operation costs its caller: the latency if each is waited for, the time between two operations if
/// many are in flight. Without a latency, the time between two: sequential operations take as long.
fn cost(point: &Point) -> Duration {
    let latency = point.p50_ns.filter(|_| point.in_flight == 1);
    let nanos = latency.unwrap_or(1e9 / point.ops_per_s);
    // At least a nanosecond, the smallest time that the file can hold.
    Duration::from_secs_f64((nanos.max(1.0) / 1e9).min(3600.0))
}

fn tuning(result: &SweepResult, options: &TuneOptions, machine: &Machine) -> Tuning {
    let key = |point: &Point| (point.op, point.size, point.in_flight);
    let is_quickest = |point: &Point| {
        let mut others = result.points.iter().filter(|other| other.route.runner.is_some() && key(other) == key(point));
        others.all(|other| cost(point) <= cost(other))
    };
    // Points of hardware have a runner of their own.
    let wanted = |point: &&Point| {
        point.route.runner.is_some_and(|its| match options.runner {
            telpher_device::Runner::Auto => is_quickest(point),
            telpher_device::Runner::Inline => its != Runner::Threaded,
            telpher_device::Runner::Threaded => its != Runner::Inline,
        })
    };
    let measured = result.points.iter().filter(wanted).filter_map(|point| {
        let cpu =
            result.points.iter().find(|cpu| cpu.route.is_cpu() && (cpu.op, cpu.size) == (point.op, point.size))?;
        let op = Opcode::ALL.iter().copied().find(|op| op.short_name() == point.op)?;
        Some(Measured { op, bytes: point.size, cpu: cost(cpu), device: cost(point) })
    });
    let where_measured = TunedMachine {
        cpu: machine.cpu.clone(),
        device: options.device.clone(),
        in_flight: options.in_flight,
        date: machine.date.clone(),
        telpher: machine.version.into(),
    };
    Tuning::new(where_measured, measured.collect())
}

/// Options of the tests: the points of one runner.
#[cfg(test)]
fn options(runner: telpher_device::Runner) -> TuneOptions {
    TuneOptions {
        ops: Opcode::ALL.to_vec(),
        sizes: vec![256],
        in_flight: 1,
        device: "model:spr".into(),
        runner,
        seconds: 1.0,
    }
}

/// The tuning from made-up points, for tests.
#[cfg(test)]
pub(crate) fn sample() -> Tuning {
    tuning(&crate::results::sample(), &options(telpher_device::Runner::Threaded), &Machine::read())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_of_a_sweep_become_pairs_and_a_threshold() {
        let tuning = sample();
        let sizes: Vec<u64> = tuning.measured.iter().map(|point| point.bytes).collect();
        assert_eq!(sizes, [64, 4096, 65536]);
        assert_eq!(tuning.measured[1].cpu, Duration::from_nanos(80));
        assert_eq!(tuning.measured[1].device, Duration::from_nanos(60));
        assert_eq!(tuning.policy().threshold.of(Opcode::MemoryMove), 4096);
    }

    #[test]
    fn points_of_the_other_runner_are_left_out() {
        let tuning = tuning(&crate::results::sample(), &options(telpher_device::Runner::Inline), &Machine::read());
        assert!(tuning.measured.is_empty(), "the sample has threaded points only");
    }

    #[test]
    fn auto_takes_the_quicker_runner_of_each_size() {
        let mut result = crate::results::sample();
        let threaded: Vec<Point> = result.points.iter().filter(|point| point.route.runner.is_some()).cloned().collect();
        result.points.extend(threaded.into_iter().map(|mut point| {
            let factor = if point.size == 4096 { 0.5 } else { 2.0 };
            point.route.runner = Some(Runner::Inline);
            point.p50_ns = point.p50_ns.map(|nanos| nanos * factor);
            point.ops_per_s /= factor;
            point
        }));
        let auto = tuning(&result, &options(telpher_device::Runner::Auto), &Machine::read());
        let threaded = sample();
        let quicker: Vec<bool> = auto
            .measured
            .iter()
            .zip(&threaded.measured)
            .map(|(auto, threaded)| auto.device < threaded.device)
            .collect();
        assert_eq!(quicker, [false, true, false]);
        assert_eq!(auto.measured.len(), 3);
    }
}
