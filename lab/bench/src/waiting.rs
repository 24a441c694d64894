//! Ways of waiting for a device, and the energy per byte that each of them and the CPU's own copies take.
//!
//! One copy of 4 MiB at a time goes to a device. No cache holds the buffers: within the last-level cache this model
//! needs only a quarter of the real device's time, too short for a sleep. All ways take turns on the same queue.

use crate::BenchError;
use crate::buffers::fill_known;
use crate::energy::{EnergyMeter, EnergyPerByte};
use crate::measure::window;
use crate::questions;
use crate::results::WaitingEnergy;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use telpher_mover::{Mover, NOTIFIER_THREAD, Notifier, Policy, Split, Threshold, Wait, Watchable};
use telpher_portal::Portal;
use telpher_report::machine::Machine;

/// Bytes of a copy.
pub(crate) const BYTES: usize = 4 << 20;
/// Intended number of turns, and the minimum.
const TURNS: u32 = 11;
const FEWEST: usize = 3;
/// Copies before the first measured one. Source: chosen; an estimate of the predicted sleep settles after about twenty.
const LESSONS: u32 = 32;

/// The name of the way of waiting that the goals are about.
pub(crate) const PREDICTED: &str = "predicted sleep";

/// The ways of waiting.
pub(crate) const WAYS: [(&str, Wait); 4] = [
    ("spinning", Wait::Spin),
    (PREDICTED, Wait::Predicted),
    ("yielding", Wait::Yield { pauses: telpher_mover::DEFAULT_PAUSES }),
    ("sleeping 50 µs at a time", Wait::Sleep { pauses: 0, interval: Duration::from_micros(50) }),
];

/// Pairs of buffers; the pair used last is at the end. All ways share them, because not all memory is equally fast.
pub(crate) type Rooms = VecDeque<(Vec<u8>, Vec<u8>)>;

/// Returns pairs of buffers that no cache holds together.
pub(crate) fn rooms(machine: &Machine) -> Rooms {
    let pairs = usize::try_from(machine.cold_bytes()).unwrap_or(usize::MAX) / (2 * BYTES);
    let mut src = vec![0; BYTES];
    fill_known(&mut src, 7);
    (0..pairs.max(1)).map(|_| (src.clone(), vec![0; BYTES])).collect()
}

/// One way, and nanoseconds per copy in each turn: wall-clock and CPU time.
pub(crate) struct WaitMethod {
    /// Its name.
    pub(crate) name: &'static str,
    pub(crate) mover: Mover,
    /// Reports ends by a descriptor, for which the thread waits in poll(2).
    pub(crate) notifier: Option<Notifier>,
    pub(crate) wall: Vec<f64>,
    pub(crate) cpu: Vec<f64>,
    pub(crate) energy: EnergyPerByte,
}

impl WaitMethod {
    fn of(name: &'static str, mover: Mover) -> WaitMethod {
        let (wall, cpu, energy) = (Vec::new(), Vec::new(), EnergyPerByte::default());
        WaitMethod { name, mover, notifier: None, wall, cpu, energy }
    }

    /// Waits for a device in this way.
    pub(crate) fn new((name, wait): (&'static str, Wait), portal: &Arc<dyn Portal>) -> Self {
        // The device makes the whole copy in one piece, because only the wait is measured.
        let split = Split { hybrid: false, above: u64::MAX, ..Split::default() };
        let policy = Policy { wait, split, threshold: Threshold::DEVICE, ..Policy::default() };
        WaitMethod::of(name, Mover::new([Arc::clone(portal)], policy))
    }

    /// Waits in poll(2) for the descriptor of a notifier, whose thread waits for the device by predicted sleep.
    pub(crate) fn by_descriptor(portal: &Arc<dyn Portal>) -> io::Result<Self> {
        let way = WaitMethod::new(("a descriptor, by predicted sleep", Wait::Predicted), portal);
        Ok(WaitMethod { notifier: Some(way.mover.notifier()?), ..way })
    }

    /// The CPU copies, and waits for nothing.
    pub(crate) fn cpu() -> Self {
        WaitMethod::of("CPU", Mover::cpu())
    }

    fn turn(&mut self, rooms: &mut Rooms, time: Duration, energy: &mut EnergyMeter) -> Result<(), BenchError> {
        let WaitMethod { mover, notifier, wall, cpu, energy: sum, .. } = self;
        let before = notifiers_cpu_ns();
        let seen = sum.around(energy, BYTES as f64, || window(time, || copy(mover, notifier.as_ref(), rooms)))?;
        // Other notifiers have no jobs, so their threads sleep.
        let of_notifier = notifiers_cpu_ns().saturating_sub(before) as f64 / seen.ops as f64;
        wall.push(seen.ns_per_op());
        cpu.push(seen.cpu_ns_per_op() + of_notifier);
        Ok(())
    }
}

fn copy(mover: &Mover, notifier: Option<&Notifier>, rooms: &mut Rooms) -> Result<u64, BenchError> {
    let (src, dst) = rooms.pop_front().expect("the buffers came back");
    let job = mover.copy(src, dst);
    let job = match notifier {
        None => job,
        Some(notifier) => await_descriptor(notifier, job).map_err(descriptor_failed)?,
    };
    let (result, src, dst) = job.wait().into_parts();
    rooms.push_back((src, dst));
    questions::done("wait", result).map(|()| 1)
}

/// Waits until a descriptor reports the end of a job. Signals do not end the wait.
fn await_descriptor<J: Watchable + 'static>(notifier: &Notifier, job: J) -> io::Result<J> {
    let watched = notifier.watch(job, 0);
    while notifier.take_ended(1).is_empty() {
        retry_on_intr(|| poll(&mut [PollFd::new(notifier, PollFlags::IN)], None))?;
    }
    Ok(watched.take().expect("its end was reported, and only this thread takes it"))
}

/// Describes a descriptor that could not be used.
pub(crate) fn descriptor_failed(source: io::Error) -> BenchError {
    BenchError::Program { what: "waiting for a descriptor".into(), source }
}

/// Returns the nanoseconds that the threads of notifiers have run; 0 if the system does not say.
/// Source: the kernel's Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat.
fn notifiers_cpu_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let read = |task: &Path, name: &str| std::fs::read_to_string(task.join(name)).unwrap_or_default();
    let notifiers = tasks.map(|task| task.path()).filter(|task| read(task, "comm").trim_end() == NOTIFIER_THREAD);
    notifiers.filter_map(|task| read(&task, "schedstat").split(' ').next()?.parse::<u64>().ok()).sum()
}

/// Runs each way in turn until the time is over, on the first core.
pub(crate) fn turns(
    ways: &mut [WaitMethod],
    rooms: &mut Rooms,
    time: Duration,
    energy: &mut EnergyMeter,
    machine: &Machine,
) -> Result<(), BenchError> {
    let mut run = || {
        let _ = telpher_os::run_on(&[machine.core(0)]);
        let slice = time / (TURNS * u32::try_from(ways.len()).unwrap_or(1));
        // Not measured: first touch of the pages, and the operations from which the prediction learns.
        for way in &mut *ways {
            for _ in 0..LESSONS {
                copy(&way.mover, way.notifier.as_ref(), rooms)?;
            }
        }
        let begin = Instant::now();
        while ways[0].wall.len() < FEWEST || begin.elapsed() < time {
            ways.iter_mut().try_for_each(|way| way.turn(rooms, slice, energy))?;
        }
        Ok(())
    };
    thread::scope(|scope| scope.spawn(&mut run).join().expect("measurements report their errors"))
}

/// Returns the energy of ways that were measured, or why it is not known.
fn of_ways(device: Option<&str>, ways: &[WaitMethod], reason: Option<String>) -> WaitingEnergy {
    let known = |way: &WaitMethod| (way.name, way.energy.joules_per_gb());
    WaitingEnergy { device: device.map(Into::into), bytes: BYTES, ways: ways.iter().map(known).collect(), reason }
}

/// Measures the energy of the CPU's copies and of each way of waiting for about the given time. Where it cannot be
/// read, nothing is copied.
pub(crate) fn energy(
    device: Option<(&str, &Arc<dyn Portal>)>,
    time: Duration,
    energy: &mut EnergyMeter,
    machine: &Machine,
) -> Result<WaitingEnergy, BenchError> {
    let name = device.map(|(name, _)| name);
    let waiting = device.iter().flat_map(|(_, portal)| WAYS.map(|way| WaitMethod::new(way, portal)));
    let mut ways: Vec<WaitMethod> = std::iter::once(WaitMethod::cpu()).chain(waiting).collect();
    if energy.reason().is_none() {
        let mut rooms = rooms(machine);
        turns(&mut ways, &mut rooms, time, energy, machine)?;
        rooms.iter().try_for_each(|(src, dst)| questions::arrived("wait", src, dst))?;
    }
    Ok(of_ways(name, &ways, energy.reason().map(Into::into)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::energy::tests::Tree;
    use crate::ffi::interrupts::interrupt;
    use crate::measure::Window;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn signals_do_not_end_the_wait_for_a_descriptor() {
        struct Told(Arc<AtomicBool>);
        impl Watchable for Told {
            fn is_done(&mut self) -> bool {
                self.0.load(Ordering::SeqCst)
            }
        }
        let end = Arc::new(AtomicBool::new(false));
        let job = Told(Arc::clone(&end));
        let policy =
            Policy { wait: Wait::Sleep { pauses: 0, interval: Duration::from_millis(1) }, ..Policy::default() };
        let notifier = Mover::new([], policy).notifier().unwrap();
        let waiting = thread::spawn(move || await_descriptor(&notifier, job).map(drop));
        // Nearly all of them arrive in the system call, where the thread spends its time.
        interrupt(&waiting, 100);
        end.store(true, Ordering::SeqCst);
        waiting.join().unwrap().unwrap();
    }

    #[test]
    fn each_way_has_the_energy_of_its_own_turns_also_where_the_counter_begins_again() {
        let tree = Tree::new("ways");
        // The range of the recorded counter ends within the turn of the second way.
        let mut at = tree.range_uj() - 5_000_000;
        tree.set(at);
        let mut meter = EnergyMeter::open(tree.sys());
        let mut ways = [WaitMethod::cpu(), WaitMethod::cpu(), WaitMethod::cpu()];
        for _ in 0..2 {
            for (way, microjoules) in ways.iter_mut().zip([4_000_000, 3_000_000, 1_000_000]) {
                let work = || {
                    at = (at + microjoules) % tree.range_uj();
                    tree.set(at);
                    Ok::<_, BenchError>(Window { ops: 2, ..Window::default() })
                };
                way.energy.around(&mut meter, 5e8, work).unwrap();
            }
        }
        let seen = of_ways(Some("model:spr"), &ways, None);
        let joules: Vec<_> = seen.ways.iter().map(|(_, joules)| joules.unwrap()).collect();
        assert!(joules.iter().zip([4.0, 3.0, 1.0]).all(|(seen, right)| (seen - right).abs() < 1e-9), "{joules:?}");
    }

    #[test]
    fn without_counters_nothing_is_copied_and_the_reason_is_kept() {
        let mut meter = EnergyMeter::open(std::path::Path::new("/nonexistent"));
        let machine = Machine::read();
        let seen = energy(None, Duration::from_secs(600), &mut meter, &machine).unwrap();
        assert_eq!(seen.ways, [("CPU", None)]);
        assert!(seen.reason.unwrap().starts_with("Linux shows no package energy"));
    }
}
