//! The costs around a descriptor: submission, waiting, the mover's overhead for small copies, and an idle device.

use super::BenchError;
use super::buffers::{Arena, Temperature, fill_known, first_difference};
use super::copy_route::PATIENCE;
use super::devices::{self, Shape};
use super::distance::{self, PING_PONG, RoundTrip};
use super::measure::{Implausible, median, window};
use super::pairwise::duel;
use super::results::Runner;
use crate::ffi;
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use telpher_device::{ModelDevice, ModelOptions, ModelSource, Preset};
use telpher_mover::{Channel, ChannelPolicy, Finished, Hint, Mover, Policy, Threshold};
use telpher_os::Distance;
use telpher_portal::{Offer, Portal, RecordCell};
use telpher_report::machine::Machine;

/// One cost and its goal.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cost {
    /// The name of the cost.
    pub what: &'static str,
    /// The number.
    pub measured: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The goal.
    pub goal: f64,
    /// Whether the goal is a minimum.
    pub at_least: bool,
    /// How it was measured.
    pub how: String,
    /// Distance between the cores involved.
    pub distance: Option<RoundTrip>,
}

impl Cost {
    /// Returns true if the goal is reached.
    pub fn reached(&self) -> bool {
        if self.at_least { self.measured >= self.goal } else { self.measured <= self.goal }
    }
}

/// Windows per measurement.
const ROUNDS: u32 = 7;
/// Bytes of the copies below the threshold.
const SMALL: usize = 256;
/// Bytes, depth and batch size of the CPU time measurement.
const BULK: usize = 64 << 10;
const BULK_DEPTH: u32 = 8;
const BULK_BATCH: u32 = 32;
/// Devices started to weigh one.
const IDLE_DEVICES: u32 = 8;

/// Measures all costs in about `time`.
pub fn run(machine: &Machine, time: Duration) -> Result<Vec<Cost>, BenchError> {
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

fn apart(machine: &Machine) -> Option<RoundTrip> {
    (machine.cores.len() > 1).then(|| distance::measure(machine.core(0), machine.core(1), PING_PONG)).flatten()
}

fn start(machine: &Machine, runner: Runner) -> Result<devices::Running, BenchError> {
    devices::start("model:spr", &ModelSource::Preset(Preset::default()), Shape::PLAIN, runner, machine)
}

/// Runs `body` on its own thread on the first core.
fn pinned<T: Send>(machine: &Machine, body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _ = telpher_os::run_on(&[machine.core(0)]);
            ffi::wake_exactly();
            body()
        });
        thread.join().expect("measurements report their errors")
    })
}

/// Measures one No-op after the other at the portal: from the offer until its record is seen.
fn nop(machine: &Machine, time: Duration) -> Result<Cost, BenchError> {
    let device = start(machine, Runner::Inline)?;
    let portal = &device.portals[0];
    // Leaked: the executing thread may access it at any time.
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

/// Measures 64-byte copies kept in flight on one engine thread.
fn small_copies(machine: &Machine, time: Duration, depth: u32, batch: u32) -> Result<Cost, BenchError> {
    let device = start(machine, Runner::Threaded)?;
    let distance = apart(machine);
    let mut seen = pinned(machine, || -> Result<Vec<f64>, BenchError> {
        let mut stream = Stream::new(device.portals[0].clone(), 64, depth * batch, depth * batch, batch)?;
        let rates = (0..ROUNDS).map(|_| Ok(1e3 / window(time / ROUNDS, || stream.step())?.ns_per_op()));
        let rates: Result<Vec<f64>, BenchError> = rates.collect();
        stream.check()?;
        rates
    })?;
    let near = distance.is_none_or(|d| d.distance == Some(Distance::Near));
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

/// Copies through a channel with as little work around it as possible.
struct Stream {
    channel: Channel<Vec<u8>, Vec<u8>>,
    /// Pairs of buffers that are not in flight; those idle for longest are used first.
    idle: VecDeque<(Vec<u8>, Vec<u8>)>,
    done: Vec<Finished<Vec<u8>, Vec<u8>>>,
    aloft: usize,
    in_flight: usize,
    batch: usize,
    pairs: usize,
    bytes: u64,
}

impl Stream {
    /// Creates `pairs` pairs of `bytes` bytes; `in_flight` of them are in flight at a time, sent `batch` at a time.
    fn new(portal: Arc<dyn Portal>, bytes: usize, pairs: u32, in_flight: u32, batch: u32) -> Result<Self, BenchError> {
        let policy = ChannelPolicy { bursts: batch > 1, hint: Hint::Cache, ..ChannelPolicy::default() };
        let channel = Channel::new(portal, 2 * in_flight, policy)?;
        let pair = |seed| {
            let mut src = vec![0; bytes];
            fill_known(&mut src, u64::from(seed) + 1);
            (src, vec![1; bytes])
        };
        let idle: VecDeque<_> = (0..pairs).map(pair).collect();
        let (pairs, in_flight, batch) = (idle.len(), in_flight as usize, batch as usize);
        let done = Vec::with_capacity(in_flight);
        Ok(Stream { channel, idle, done, aloft: 0, in_flight, batch, pairs, bytes: bytes as u64 })
    }

    /// Submits as many copies as there is room for and collects completed ones; returns the number of completed ones.
    #[inline]
    fn step(&mut self) -> Result<u64, BenchError> {
        let (op, route) = (|| "move".to_owned(), || "threaded".to_owned());
        while self.aloft + self.batch <= self.in_flight {
            for (src, dst) in self.idle.drain(..self.batch) {
                if let Err(rejected) = self.channel.copy(src, dst) {
                    return Err(BenchError::Rejected { op: op(), route: route(), source: rejected.reason });
                }
            }
            self.aloft += self.batch;
            self.channel.submit();
        }
        let ended = self.channel.completed(&mut self.done);
        self.aloft -= ended;
        for finished in self.done.drain(..) {
            finished.result.map_err(|source| BenchError::Job { op: op(), route: route(), source })?;
            let buffers = finished.buffers.expect("channels without deadlines give buffers back");
            self.idle.extend(buffers.src.zip(buffers.dst));
        }
        Ok(ended as u64)
    }

    /// Waits for the remaining copies and compares all bytes.
    fn check(&mut self) -> Result<(), BenchError> {
        let begin = Instant::now();
        // No more copies are sent.
        self.in_flight = 0;
        while self.aloft > 0 {
            self.step()?;
            if begin.elapsed() > PATIENCE {
                return Err(BenchError::NoAnswer { op: "move".into(), route: "threaded".into() });
            }
        }
        assert_eq!(self.idle.len(), self.pairs, "every pair of buffers came back");
        // The pairs used last; the others may not have been used yet.
        let used = self.idle.iter().rev().take(self.pairs.min(64));
        match used.filter(|(src, dst)| !ffi::memcmp_equal(src, dst)).find_map(|(s, d)| first_difference(s, d)) {
            None => Ok(()),
            Some(offset) => {
                let (op, route, size) = ("move".into(), "threaded".into(), self.bytes);
                Err(BenchError::Mismatch { op, route, size, offset: offset as u64 })
            }
        }
    }
}

/// Measures what the mover adds to a copy that the CPU makes anyway.
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
                // The same moves of the same buffers, so that only the mover differs.
                let (src, mut dst) = both.take().expect("the buffers came back");
                ffi::memcpy(std::hint::black_box(&mut dst), &src);
                *both = Some(std::hint::black_box((src, dst)));
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

/// Time without a completion after which a step gives up. Source: chosen; far more than an engine waits for a core.
const NO_END: Duration = Duration::from_secs(10);

/// Measures the submitting thread's CPU time for bulk copies from cold buffers, divided by that of memcpy.
fn cpu_time(machine: &Machine, time: Duration) -> Result<Cost, BenchError> {
    let device = start(machine, Runner::Threaded)?;
    let bytes = usize::try_from(machine.cold_bytes()).unwrap_or(usize::MAX);
    let in_flight = BULK_DEPTH * BULK_BATCH;
    // There are enough pairs that those in flight are not the cached ones.
    let pairs = u32::try_from(bytes / BULK).unwrap_or(u32::MAX).max(2 * in_flight);
    let mut stream = Stream::new(device.portals[0].clone(), BULK, pairs, in_flight, BULK_BATCH)?;
    let mut arena = Arena::new(bytes)?;
    let mut places = arena.places(BULK, BULK, Temperature::Cold);
    let distance = apart(machine);
    let (mut ratios, mut memcpy_ns) = pinned(machine, || -> Result<(Vec<f64>, Vec<f64>), BenchError> {
        let (mut ratios, mut alone) = (Vec::new(), Vec::new());
        let begin = Instant::now();
        while ratios.len() < 3 || begin.elapsed() < time {
            let slice = time / (2 * ROUNDS);
            let Ok(memcpy) = window(slice, || -> Result<u64, Infallible> {
                let (src, dst) = arena.next(&mut places);
                ffi::memcpy(dst, src);
                Ok(1)
            });
            // The engine copies about as fast as memcpy, so the thread can sleep through most of what is in flight.
            let nap = Duration::from_secs_f64(0.75 * memcpy.ns_per_op() * f64::from(in_flight) / 1e9);
            let device = window(slice, || {
                // At least one completion, however late the engine gets a core on a busy machine.
                let waits = Instant::now();
                loop {
                    let ended = stream.step()?;
                    if ended > 0 || waits.elapsed() > NO_END {
                        return Ok::<u64, BenchError>(ended);
                    }
                    thread::sleep(nap);
                }
            })?;
            ratios.push(100.0 * device.cpu_ns_per_op() / memcpy.cpu_ns_per_op());
            alone.push(memcpy.cpu_ns_per_op());
        }
        stream.check()?;
        Ok((ratios, alone))
    })?;
    Ok(Cost {
        what: "submitting thread's CPU time, 64 KiB cold, by memcpy's",
        measured: median(&mut ratios),
        unit: "%",
        goal: 10.0,
        at_least: false,
        how: format!(
            "{BULK_DEPTH} batches of {BULK_BATCH} in flight, asleep while waiting; memcpy takes {:.1} µs",
            median(&mut memcpy_ns) / 1e3
        ),
        distance,
    })
}

/// Measures the resident and the allocated memory of an idle threaded device.
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
    // The first device loads code and tables that all share.
    let first = start()?;
    let (pages, allocated) = (resident(), ffi::allocated_bytes());
    let devices = (0..IDLE_DEVICES).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
    // The stacks of the workers reach their final size only when the workers sleep.
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
    fn goals_are_minimums_or_maximums() {
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
