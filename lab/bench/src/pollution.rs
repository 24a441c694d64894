//! `telpher bench pollution`: the effect of copies on the memory latency of neighbouring cores.

use super::BenchError;
use super::buffers::{Arena, Temperature, first_difference};
use super::chase::Chase;
use super::copy_route::{CopyRoute, DeviceRoute};
use super::devices::{self, Running};
use super::distance::{self, PING_PONG, RoundTrip};
use super::measure::median;
use super::progress::Budget;
use super::results::{Route, Runner};
use super::submitter::{BufferMemory, OperationSlots};
use crate::ffi;
use crate::options::PollutionOptions;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use telpher_abi::Opcode;
use telpher_mover::Hint;
use telpher_os::{CacheMonitor, chain};
use telpher_report::machine::Machine;
use telpher_report::units;

/// How the copying core copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Copies {
    /// No copies.
    None,
    /// glibc's memcpy.
    Memcpy,
    /// Non-temporal stores of the CPU.
    NonTemporal,
    /// The device: a model with its engine on the copying core, or a real device.
    Device,
}

impl Copies {
    /// All kinds; the one without copies is first.
    pub const ALL: [Copies; 4] = [Copies::None, Copies::Memcpy, Copies::NonTemporal, Copies::Device];

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Copies::None => "none",
            Copies::Memcpy => "memcpy",
            Copies::NonTemporal => "non-temporal",
            Copies::Device => "device",
        }
    }
}

/// Latency of the co-runners under one kind of copies.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Bytes in the working set of each co-runner.
    pub working_set: u64,
    /// The copies made at the same time.
    pub copies: Copies,
    /// Nanoseconds per access of a co-runner, median.
    pub latency_ns: f64,
    /// That latency divided by the one without copies in the same round, median over the rounds.
    pub against_none: f64,
    /// Bytes copied per second at the same time.
    pub copied_per_s: f64,
    /// Bytes of the last-level cache that a co-runner occupied at the end of a window, median; `None` if not known.
    pub runner_cache: Option<f64>,
    /// The same of the copying thread.
    pub copier_cache: Option<f64>,
    /// Distance between a co-runner and the copying core, measured just before.
    pub distance: Option<RoundTrip>,
}

/// What one window measured.
struct Window {
    /// Nanoseconds per access of a co-runner, median.
    ns: f64,
    /// Bytes copied per second.
    copied: f64,
    /// Bytes of the last-level cache of a co-runner, median.
    runner_cache: Option<f64>,
    /// The same of the copying thread.
    copier_cache: Option<f64>,
}

/// Everything that `telpher bench pollution` measured.
#[derive(Clone, Debug, Serialize)]
pub struct PollutionResult {
    /// `pollution`.
    pub kind: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// Number of co-runners, each on its own core.
    pub co_runners: usize,
    /// The device that copies.
    pub device: String,
    /// Bytes of one copy.
    pub copy_size: u64,
    /// Every working set with every kind of copies.
    pub rows: Vec<Row>,
}

/// Rounds over the kinds of copies for each working set; the median of the rounds is reported.
const ROUNDS: usize = 5;

/// Runs the experiment.
pub fn run(args: &PollutionOptions, machine: Machine) -> Result<PollutionResult, BenchError> {
    let [runners @ .., copier] = machine.cores.as_slice() else {
        return Err(BenchError::NotHere("this process may use no core at all".into()));
    };
    if runners.is_empty() {
        return Err(BenchError::NotHere(
            "the pollution bench needs two cores, one to copy and one to be disturbed; this process may use one".into(),
        ));
    }
    let mut remarks = remarks(&machine, runners.len());
    let cache = Path::new("/sys/fs/resctrl");
    if let Err(reason) = CacheMonitor::of_thread(cache, thread_number()) {
        remarks.push(format!("Last-level cache of each thread: – ({}).", chain(&reason)));
    }
    let size = usize::try_from(args.size).unwrap_or(usize::MAX);
    let cold = usize::try_from(machine.cold_bytes()).unwrap_or(usize::MAX);
    let mut copier = Copier::new(&args.device, *copier, size, cold.max(2 * size), &mut remarks)?;
    let sets = &args.working_sets;
    let mut budget =
        Budget::new(Duration::from_secs_f64(args.seconds), (sets.len() * ROUNDS * Copies::ALL.len()) as f64);
    let mut rows = Vec::new();
    for &working_set in sets {
        let mut chases: Vec<Chase> = runners.iter().map(|_| Chase::new(working_set)).collect();
        let distance = distance::measure(runners[0], copier.core, PING_PONG);
        let mut seen = Copies::ALL.map(|_| Vec::new());
        for round in 0..ROUNDS {
            for i in 0..Copies::ALL.len() {
                // Each round begins with another kind, so that no kind always follows the same one.
                let i = (i + round) % Copies::ALL.len();
                let time = budget.step(&format!("{} beside {}", Copies::ALL[i].name(), units::size(working_set)), 1.0);
                seen[i].push(beside(&mut chases, runners, &mut copier, Copies::ALL[i], time, cache)?);
            }
        }
        let quiet: Vec<f64> = seen[0].iter().map(|window| window.ns).collect();
        for (copies, windows) in Copies::ALL.into_iter().zip(seen) {
            let all = |of: fn(&Window) -> f64| windows.iter().map(of).collect::<Vec<_>>();
            let (mut ns, mut copied) = (all(|window| window.ns), all(|window| window.copied));
            // Compared with the window without copies of the same round, because slow changes affect both.
            let against_none = median(&mut ns.iter().zip(&quiet).map(|(ns, quiet)| ns / quiet).collect::<Vec<_>>());
            let (latency_ns, copied_per_s) = (median(&mut ns), median(&mut copied));
            let middle = |of: fn(&Window) -> Option<f64>| {
                let mut known: Vec<f64> = windows.iter().filter_map(of).collect();
                Some(median(&mut known)).filter(|bytes| !bytes.is_nan())
            };
            rows.push(Row {
                working_set,
                copies,
                latency_ns,
                against_none,
                copied_per_s,
                runner_cache: middle(|window| window.runner_cache),
                copier_cache: middle(|window| window.copier_cache),
                distance,
            });
        }
    }
    budget.finish();
    let co_runners = runners.len();
    let (device, copy_size) = (copier.device, args.size);
    Ok(PollutionResult { kind: "pollution", machine, remarks, co_runners, device, copy_size, rows })
}

fn remarks(machine: &Machine, runners: usize) -> Vec<String> {
    let word = if runners == 1 { "co-runner" } else { "co-runners" };
    let mut remarks = vec![format!(
        "{runners} {word} and one copying core; the paper had eight co-runners and four copying cores on one socket. \
         With few cores less pressure on the shared cache is physically possible, so expect smaller effects."
    )];
    if machine.virtual_machine {
        remarks.push(
            "In a virtual machine the last-level cache is shared with strangers, whose work moves these numbers."
                .into(),
        );
    }
    remarks
}

/// The remark about a modelled device.
const ENGINE_REMARK: &str = "The modelled engine is a thread on the copying core: it shows what its copies cost \
                             neighbours as software. A hardware engine reads without allocating in any cache and \
                             writes into a part of the last level only, which no software can. The model's engine \
                             stores past the caches only transfers of 8 MiB and more.";

/// The copying side: one core, its memory, and a device; a modelled device's engine runs on that core too.
struct Copier {
    device: String,
    core: usize,
    size: usize,
    arena: Arena,
    copier: CopyRoute,
    work: OperationSlots,
}

/// Copies in flight on the device: enough for the submitting thread to sleep while the engine has the core.
const DEPTH: u32 = 64;

impl Copier {
    fn new(
        device: &str,
        core: usize,
        size: usize,
        bytes: usize,
        remarks: &mut Vec<String>,
    ) -> Result<Self, BenchError> {
        // The engine is restricted to the copying core; it must not run on a co-runner's core.
        let there = Machine { cores: vec![core], ..Machine::read() };
        let Running { name: device, runner, portals } = devices::one(device, &there, remarks)?;
        if runner == Runner::Threaded {
            remarks.push(ENGINE_REMARK.to_owned());
        }
        let route = Route { device: device.clone(), runner: Some(runner), depth: DEPTH, batch: 1, threads: 1 };
        // The default of hardware: results go to memory.
        let mut copier = CopyRoute::Device(Box::new(DeviceRoute::new(portals[0].clone(), &route, Hint::Memory)?));
        let mut work = OperationSlots::new(Opcode::MemoryMove, size, (bytes / size).max(2), &BufferMemory::small())?;
        copier.verify(Opcode::MemoryMove, &mut work, Copies::Device.name())?;
        Ok(Copier { device, core, size, arena: Arena::new(bytes)?, copier, work })
    }

    /// Copies at least once and until `stop`; sets `begun` at the beginning. Returns bytes per second.
    fn until(&mut self, begun: &AtomicBool, stop: &AtomicBool, copies: Copies) -> Result<f64, BenchError> {
        let _ = telpher_os::run_on(&[self.core]);
        ffi::wake_exactly();
        // Relaxed: nothing else depends on these flags.
        begun.store(true, Ordering::Relaxed);
        let going = || !stop.load(Ordering::Relaxed);
        let mut places = self.arena.places(self.size, self.size, Temperature::Cold);
        let (start, mut count) = (Instant::now(), 0u64);
        let mut on_cpu = |copy: fn(&[u8], &mut [u8])| {
            loop {
                let (src, dst) = self.arena.next(&mut places);
                copy(src, dst);
                count += 1;
                if !going() {
                    return;
                }
            }
        };
        match copies {
            Copies::None => return Ok(0.0),
            Copies::Memcpy => on_cpu(|src, dst| ffi::memcpy(dst, src)),
            Copies::NonTemporal => on_cpu(|src, dst| ffi::copy_past_caches(dst, src)),
            Copies::Device => {
                loop {
                    count += self.copier.throughput(Opcode::MemoryMove, &mut self.work, Duration::from_millis(10))?.ops;
                    if !going() {
                        break;
                    }
                }
                self.work.check(copies.name())?;
                return Ok(count as f64 * self.size as f64 / start.elapsed().as_secs_f64());
            }
        }
        let rate = count as f64 * self.size as f64 / start.elapsed().as_secs_f64();
        let (src, dst) = self.arena.last(&places);
        if let Some(offset) = first_difference(src, dst) {
            let (op, route, size, offset) = ("move".into(), copies.name().into(), self.size as u64, offset as u64);
            return Err(BenchError::Mismatch { op, route, size, offset });
        }
        Ok(rate)
    }
}

/// The number of the calling thread.
fn thread_number() -> u32 {
    rustix::thread::gettid().as_raw_pid().unsigned_abs()
}

/// Runs one window. `cache` is the directory of cache monitoring, `/sys/fs/resctrl` except in tests.
fn beside(
    chases: &mut [Chase],
    runners: &[usize],
    copier: &mut Copier,
    copies: Copies,
    time: Duration,
    cache: &Path,
) -> Result<Window, BenchError> {
    let monitor = || CacheMonitor::of_thread(cache, thread_number()).ok();
    let bytes = |monitor: Option<CacheMonitor>| monitor?.bytes().ok().map(|bytes| bytes as f64);
    let (begun, stop) = (&AtomicBool::new(false), &AtomicBool::new(false));
    thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let monitor = monitor();
            let copied = copier.until(begun, stop, copies);
            (copied, bytes(monitor))
        });
        let running: Vec<_> = chases
            .iter_mut()
            .zip(runners)
            .map(|(chase, core)| {
                scope.spawn(move || {
                    let monitor = monitor();
                    let _ = telpher_os::run_on(&[*core]);
                    // On a busy machine the copies may begin after the end of the window.
                    while !begun.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    // A third of the time lets the caches reach a steady state under these copies; the rest is
                    // measured.
                    chase.run(time / 3);
                    let ns = chase.run(time - time / 3);
                    (ns, bytes(monitor))
                })
            })
            .collect();
        let ran: Vec<(f64, Option<f64>)> =
            running.into_iter().map(|r| r.join().expect("a chase does not panic")).collect();
        let mut latencies: Vec<f64> = ran.iter().map(|(ns, _)| *ns).collect();
        let caches: Option<Vec<f64>> = ran.iter().map(|(_, bytes)| *bytes).collect();
        // Relaxed: as above.
        stop.store(true, Ordering::Relaxed);
        let (copied, copier_cache) = copying.join().expect("copying reports its errors");
        let runner_cache = caches.map(|mut caches| median(&mut caches));
        Ok(Window { ns: median(&mut latencies), copied: copied?, runner_cache, copier_cache })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two working sets; the larger one is disturbed.
    pub(crate) fn sample() -> PollutionResult {
        let mut rows = Vec::new();
        for (working_set, quiet, factor) in [(1u64 << 20, 5.0, 1.0), (16 << 20, 20.0, 1.5)] {
            for copies in Copies::ALL {
                let against_none = if copies == Copies::None { 1.0 } else { factor };
                let copied_per_s = if copies == Copies::None { 0.0 } else { 9e9 };
                rows.push(Row {
                    working_set,
                    copies,
                    latency_ns: quiet * against_none,
                    against_none,
                    copied_per_s,
                    runner_cache: None,
                    copier_cache: None,
                    distance: None,
                });
            }
        }
        let machine = Machine::read();
        let (remarks, device) = (remarks(&machine, 1), "model:spr".into());
        PollutionResult { kind: "pollution", machine, remarks, co_runners: 1, device, copy_size: 65536, rows }
    }

    #[test]
    fn copies_beside_a_co_runner_are_checked_and_measured() {
        let cpus = telpher_os::allowed_cpus().unwrap();
        let mut copier = Copier::new("model:spr", cpus[cpus.len() - 1], 4096, 1 << 20, &mut Vec::new()).unwrap();
        let mut chases = [Chase::new(64 << 10)];
        let (time, none) = (Duration::from_millis(6), Path::new("/nonexistent"));
        for copies in Copies::ALL {
            let window = beside(&mut chases, &cpus[..1], &mut copier, copies, time, none).unwrap();
            assert!(window.ns > 0.0);
            assert_eq!(window.copied > 0.0, copies != Copies::None, "{copies:?}");
            assert_eq!((window.runner_cache, window.copier_cache), (None, None));
        }
    }
}
