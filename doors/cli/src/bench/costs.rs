//! The costs around a descriptor: submitting, waiting, staying out of the way of small copies, and keeping a device.

use super::BenchError;
use super::buffers::{Arena, Temperature, fill_known};
use super::devices::{self, Shape};
use super::distance::{self, Class, Distance, PING_PONG};
use super::duel::duel;
use super::lane::{DeviceLane, Lane};
use super::machine::Machine;
use super::measure::{Implausible, median, window};
use super::results::{Route, Runner};
use super::work::{Ground, Work};
use crate::ffi;
use serde::Serialize;
use std::convert::Infallible;
use std::thread;
use std::time::{Duration, Instant};
use telpher_abi::Opcode;
use telpher_device::{ModelDevice, ModelOptions, ModelSource, Preset};
use telpher_mem::PageSize;
use telpher_mover::{Hint, Mover, Policy, Threshold};
use telpher_portal::{Offer, RecordCell};

/// One cost and what it may be.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Cost {
    /// What is measured.
    pub(crate) what: &'static str,
    /// The number.
    pub(crate) measured: f64,
    /// Its unit.
    pub(crate) unit: &'static str,
    /// What it must reach.
    pub(crate) goal: f64,
    /// True if larger is better.
    pub(crate) at_least: bool,
    /// How it was measured.
    pub(crate) how: String,
    /// Between the cores involved.
    pub(crate) distance: Option<Distance>,
}

impl Cost {
    /// True if the goal is reached.
    pub(crate) fn reached(&self) -> bool {
        if self.at_least { self.measured >= self.goal } else { self.measured <= self.goal }
    }
}

/// Windows of one measurement.
const ROUNDS: u32 = 7;
/// Bytes of the copies below the threshold.
const SMALL: usize = 256;
/// Transfers of the CPU time measurement, in bytes and in flight.
const BULK: usize = 64 << 10;
const BULK_DEPTH: u32 = 32;
/// Devices started to weigh one.
const IDLE_DEVICES: u32 = 8;

/// Measures all costs in about `time`.
pub(crate) fn run(machine: &Machine, time: Duration) -> Result<Vec<Cost>, BenchError> {
    let share = time / 6;
    let mut costs = idle_device()?;
    costs.push(nop(machine, share)?);
    for (depth, batch) in [(64, 1), (2, 32)] {
        costs.push(small_copies(machine, share, depth, batch)?);
    }
    costs.extend(below_threshold(machine, share)?);
    if machine.cores.len() > 1 {
        costs.push(cpu_time(machine, 2 * share)?);
    }
    Ok(costs)
}

fn apart(machine: &Machine) -> Option<Distance> {
    (machine.cores.len() > 1).then(|| distance::measure(machine.core(0), machine.core(1), PING_PONG)).flatten()
}

fn start(machine: &Machine, runner: Runner) -> Result<devices::Running, BenchError> {
    devices::start("model:spr", &ModelSource::Preset(Preset::default()), Shape::PLAIN, runner, machine)
}

/// Runs on a thread of its own on the first core.
fn pinned<T: Send>(machine: &Machine, body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _ = ffi::pin(&[machine.core(0)]);
            ffi::wake_exactly();
            body()
        });
        thread.join().expect("measurements report their errors")
    })
}

/// One No-op after the other at the seam: from the offer to its record seen.
fn nop(machine: &Machine, time: Duration) -> Result<Cost, BenchError> {
    let device = start(machine, Runner::Inline)?;
    let portal = &device.portals[0];
    // For good: whoever executes may look at it at any time.
    let record: &'static RecordCell = Box::leak(Box::default());
    let submission = ffi::nop(record);
    let mut seen = pinned(machine, || {
        let mut seen = Vec::new();
        for _ in 0..ROUNDS {
            let Ok(window) = window(time / ROUNDS, || -> Result<u64, Infallible> {
                record.clear();
                while portal.offer(&submission) == Offer::Retry {}
                while record.status().is_none() {
                    portal.drive();
                }
                Ok(1)
            });
            seen.push(window.ns_per_op());
        }
        seen
    });
    Ok(Cost {
        what: "no-op, offered to record seen, inline",
        measured: median(&mut seen),
        unit: "ns",
        goal: 100.0,
        at_least: false,
        how: "one at a time at the portal, on one core".into(),
        distance: None,
    })
}

/// Copies of 64 bytes kept in flight on one engine thread.
fn small_copies(machine: &Machine, time: Duration, depth: u32, batch: u32) -> Result<Cost, BenchError> {
    let device = start(machine, Runner::Threaded)?;
    let route = Route { device: device.name, runner: Some(Runner::Threaded), depth, batch, threads: 1 };
    let mut lane = Lane::Device(Box::new(DeviceLane::new(device.portals[0].clone(), &route, Hint::Cache)?));
    let ground = Ground { pages: PageSize::Small, placement: None };
    let mut work = Work::new(Opcode::MemoryMove, 64, (depth * batch) as usize, ground)?;
    let distance = apart(machine);
    let mut seen = pinned(machine, || -> Result<Vec<f64>, BenchError> {
        lane.verify(Opcode::MemoryMove, &mut work, "threaded")?;
        (0..ROUNDS)
            .map(|_| Ok(1e3 / lane.throughput(Opcode::MemoryMove, &mut work, time / ROUNDS)?.ns_per_op()))
            .collect()
    })?;
    work.check("threaded")?;
    let near = distance.is_none_or(|d| d.class == Class::Near);
    let one_by_one = if near { 4.0 } else { 2.0 };
    Ok(Cost {
        what: if batch == 1 { "64-byte copies, threaded, one engine" } else { "64-byte copies in batches of 32" },
        measured: median(&mut seen),
        unit: "M/s",
        goal: if batch == 1 { one_by_one } else { 2.0 * one_by_one },
        at_least: true,
        how: format!("through a channel, {} in flight", depth * batch),
        distance,
    })
}

/// What the mover adds to a copy that the CPU does anyway.
fn below_threshold(machine: &Machine, time: Duration) -> Result<Vec<Cost>, BenchError> {
    let device = start(machine, Runner::Inline)?;
    let policy = Policy { threshold: Threshold::all(4096), ..Policy::default() };
    let mover = Mover::new(device.portals.clone(), policy);
    let (mut src, mut dst) = (vec![0; SMALL], vec![0; SMALL]);
    fill_known(&mut src, 3);
    let owned = pinned(machine, || -> Result<f64, Implausible> {
        let mut both = Some((src.clone(), dst.clone()));
        let result = duel(
            time / 2,
            SMALL as u64,
            &mut both,
            |both| {
                let (src, dst) = both.take().expect("the buffers came back");
                *both = Some(std::hint::black_box(mover.copy(src, dst).wait()).buffers);
            },
            |both| {
                let (src, dst) = both.as_mut().expect("the buffers came back");
                ffi::memcpy(std::hint::black_box(dst), src);
            },
        )?;
        Ok(result.ours_ns - result.theirs_ns)
    });
    let borrowed = pinned(machine, || -> Result<f64, Implausible> {
        let result = duel(
            time / 2,
            SMALL as u64,
            &mut dst,
            |dst| {
                let _ = std::hint::black_box(mover.copy_slices(&src, dst));
            },
            |dst| ffi::memcpy(std::hint::black_box(dst), &src),
        )?;
        Ok(result.ours_ns - result.theirs_ns)
    });
    let cost = |what, more: Result<f64, Implausible>| -> Result<Cost, BenchError> {
        let measured = more.map_err(|source| BenchError::Implausible { what: String::from(what), source })?;
        let how = format!("{SMALL} bytes, median over turns with memcpy");
        Ok(Cost { what, measured, unit: "ns more", goal: 5.0, at_least: false, how, distance: None })
    };
    Ok(vec![
        cost("Mover::copy below the threshold, against memcpy", owned)?,
        cost("Mover::copy_slices below the threshold, against memcpy", borrowed)?,
    ])
}

/// The submitting thread's CPU time for bulk copies from cold buffers, by that of memcpy.
fn cpu_time(machine: &Machine, time: Duration) -> Result<Cost, BenchError> {
    let device = start(machine, Runner::Threaded)?;
    let route = Route { device: device.name, runner: Some(Runner::Threaded), depth: BULK_DEPTH, batch: 1, threads: 1 };
    let mut lane = Lane::Device(Box::new(DeviceLane::new(device.portals[0].clone(), &route, Hint::Cache)?));
    let bytes = usize::try_from(machine.cold_bytes()).unwrap_or(usize::MAX);
    let ground = Ground { pages: PageSize::Small, placement: None };
    let mut work = Work::new(Opcode::MemoryMove, BULK, bytes / BULK, ground)?;
    let mut arena = Arena::new(bytes)?;
    let mut places = arena.places(BULK, BULK, Temperature::Cold);
    let distance = apart(machine);
    let (mut ratios, mut memcpy_ns) = pinned(machine, || -> Result<(Vec<f64>, Vec<f64>), BenchError> {
        lane.verify(Opcode::MemoryMove, &mut work, "threaded")?;
        let (mut ratios, mut alone) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        while ratios.len() < 3 || begin.elapsed() < time {
            let device = lane.throughput(Opcode::MemoryMove, &mut work, time / (2 * ROUNDS))?;
            let Ok(memcpy) = window(time / (2 * ROUNDS), || -> Result<u64, Infallible> {
                let (src, dst) = arena.next(&mut places);
                ffi::memcpy(dst, src);
                Ok(1)
            });
            ratios.push(100.0 * device.cpu_ns_per_op() / memcpy.cpu_ns_per_op());
            alone.push(memcpy.cpu_ns_per_op());
        }
        Ok((ratios, alone))
    })?;
    work.check("threaded")?;
    Ok(Cost {
        what: "submitting thread's CPU time, 64 KiB cold, by memcpy's",
        measured: median(&mut ratios),
        unit: "%",
        goal: 10.0,
        at_least: false,
        how: format!(
            "{BULK_DEPTH} in flight, sleeping while waiting; memcpy takes {:.1} µs",
            median(&mut memcpy_ns) / 1e3
        ),
        distance,
    })
}

/// Resident and allocated memory of a threaded device without work.
fn idle_device() -> Result<Vec<Cost>, BenchError> {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        pages * telpher_mem::PAGE_BYTES
    };
    let start = || {
        ModelDevice::start(ModelOptions::default().with_runner(telpher_device::Runner::Threaded))
            .map_err(|source| BenchError::Start { name: "model:spr".into(), source })
    };
    // The first one brings in code and tables that all share.
    let first = start()?;
    let (pages, allocated) = (resident(), ffi::allocated_bytes());
    let devices = (0..IDLE_DEVICES).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
    // Until the workers sleep, their stacks are not settled.
    thread::sleep(Duration::from_millis(5));
    let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / f64::from(IDLE_DEVICES) / 1024.0;
    let measured = each(resident(), pages);
    let heap = each(ffi::allocated_bytes() as u64, allocated as u64);
    drop((first, devices));
    Ok(vec![Cost {
        what: "memory of an idle device, resident",
        measured,
        unit: "KiB",
        goal: 1024.0,
        at_least: false,
        how: format!("mean of {IDLE_DEVICES} threaded devices; {heap:.0} KiB allocated each"),
        distance: None,
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cost_is_measured_and_has_its_goal() {
        let costs = run(&Machine::read(), Duration::from_millis(60)).unwrap();
        assert!(costs.len() >= 6, "{costs:?}");
        for cost in costs {
            assert!(cost.measured.is_finite() && cost.goal > 0.0, "{cost:?}");
        }
    }

    #[test]
    fn a_goal_is_a_floor_or_a_ceiling() {
        let cost = |measured, at_least| Cost {
            what: "w",
            measured,
            unit: "u",
            goal: 2.0,
            at_least,
            how: String::new(),
            distance: None,
        };
        assert!(cost(2.0, true).reached() && !cost(1.9, true).reached());
        assert!(cost(2.0, false).reached() && !cost(2.1, false).reached());
    }
}
