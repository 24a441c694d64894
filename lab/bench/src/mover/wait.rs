//! What waiting costs: the CPU time of a thread that waits for a long job, and how late it notices the end.
//!
//! One copy of 4 MiB at a time goes to a device whose engine has its own core. No cache holds the buffers: within the
//! last-level cache this model needs only a quarter of the real device's time, too short for a sleep. All wait methods
//! take turns on the same queue. They are compared with spinning, which notices a record earliest.

use super::Experiment;
use crate::BenchError;
use crate::buffers::fill_known;
use crate::devices::{self, Shape};
use crate::energy::{EnergyMeter, EnergyPerByte};
use crate::goal::{Goal, Row};
use crate::measure::{median, window};
use crate::results::Runner;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use telpher_device::{ModelSource, Preset};
use telpher_mover::{Mover, Policy, Split, Threshold, Wait};
use telpher_portal::Portal;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "wait",
    question: "How much CPU time does waiting for a long job take, and how late is its end noticed?",
    cores: 2,
    weight: 1.0,
    measure,
};

/// Bytes of a job.
const BYTES: usize = 4 << 20;
/// Upper limit of the CPU time with predicted sleep, in percent of spinning's. Source: goal of the mover.
const CPU: f64 = 30.0;
/// Upper limit of the time from submission to seeing the record, divided by spinning's. Source: goal of the mover.
const LATENCY: f64 = 1.10;
/// Intended number of turns, and the minimum.
const TURNS: u32 = 11;
const FEWEST: usize = 3;

/// The wait methods; the others are compared with the first.
const WAYS: [(&str, Wait); 4] = [
    ("spinning", Wait::Spin),
    ("predicted sleep", Wait::Predicted),
    ("yielding", Wait::Yield { pauses: telpher_mover::DEFAULT_PAUSES }),
    ("sleeping 50 µs at a time", Wait::Sleep { pauses: 0, interval: Duration::from_micros(50) }),
];

/// Pairs of buffers; the pair used last is at the end. All methods share them, because not all memory is equally fast.
type Rooms = VecDeque<(Vec<u8>, Vec<u8>)>;

/// One wait method, and nanoseconds per copy in each turn: wall-clock and CPU time.
struct WaitMethod {
    mover: Mover,
    wall: Vec<f64>,
    cpu: Vec<f64>,
    energy: EnergyPerByte,
}

impl WaitMethod {
    fn new(portal: &Arc<dyn Portal>, wait: Wait) -> Self {
        // The device makes the whole copy in one piece, because only the wait is measured.
        let split = Split { hybrid: false, above: u64::MAX, ..Split::default() };
        let policy = Policy { wait, split, threshold: Threshold::DEVICE, ..Policy::default() };
        let mover = Mover::new([Arc::clone(portal)], policy);
        WaitMethod { mover, wall: Vec::new(), cpu: Vec::new(), energy: EnergyPerByte::default() }
    }

    fn copy(&mut self, rooms: &mut Rooms) -> Result<u64, BenchError> {
        let (src, dst) = rooms.pop_front().expect("the buffers came back");
        let (result, src, dst) = self.mover.copy(src, dst).wait().into_parts();
        rooms.push_back((src, dst));
        EXPERIMENT.done(result).map(|()| 1)
    }

    fn turn(&mut self, rooms: &mut Rooms, time: Duration, energy: &mut EnergyMeter) -> Result<(), BenchError> {
        let (seen, joules) = energy.around(|| window(time, || self.copy(rooms)));
        let seen = seen?;
        self.energy.add(joules, seen.ops as f64 * BYTES as f64);
        self.wall.push(seen.ns_per_op());
        self.cpu.push(seen.cpu_ns_per_op());
        Ok(())
    }
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let source = ModelSource::Preset(Preset::default());
    let device = devices::start("model:spr", &source, Shape::PLAIN, Runner::Threaded, machine)?;
    let portal = device.portals.first().expect("a plain device has a queue");
    let pairs = usize::try_from(machine.cold_bytes()).unwrap_or(usize::MAX) / (2 * BYTES);
    let mut src = vec![0; BYTES];
    fill_known(&mut src, 7);
    let mut rooms: Rooms = (0..pairs.max(1)).map(|_| (src.clone(), vec![0; BYTES])).collect();
    let mut ways = WAYS.map(|(_, wait)| WaitMethod::new(portal, wait));
    let mut energy = EnergyMeter::open(Path::new("/sys"));
    thread::scope(|scope| {
        let submitter = scope.spawn(|| {
            let _ = telpher_os::run_on(&[machine.core(0)]);
            turns(&mut ways, &mut rooms, time, &mut energy)
        });
        submitter.join().expect("measurements report their errors")
    })?;
    rooms.iter().try_for_each(|(src, dst)| EXPERIMENT.arrived(src, dst))?;
    let mut rows = rows(&ways);
    rows.extend(energy_rows(&ways, energy.remark().as_deref()));
    Ok(rows)
}

/// The energy of each wait method. Where it is not known, one row says why.
fn energy_rows(ways: &[WaitMethod], reason: Option<&str>) -> Vec<Row> {
    let row = |name: &str, joules: f64, how: String| {
        Row::new(format!("{name}: energy of the processor packages"), joules, "J/GB", None, how)
    };
    match reason {
        Some(reason) => vec![row("all wait methods", f64::NAN, reason.to_owned())],
        None => ways
            .iter()
            .zip(&WAYS)
            .map(|(way, (name, _))| {
                let how = "of all packages, with the engine's core and whatever else runs".to_owned();
                row(name, way.energy.joules_per_gb().unwrap_or(f64::NAN), how)
            })
            .collect(),
    }
}

/// Runs each method in turn until the time is over.
fn turns(
    ways: &mut [WaitMethod],
    rooms: &mut Rooms,
    time: Duration,
    energy: &mut EnergyMeter,
) -> Result<(), BenchError> {
    let slice = time / (TURNS * u32::try_from(ways.len()).unwrap_or(1));
    // Not measured: first touch of the pages, and the operations from which the prediction learns.
    for way in &mut *ways {
        for _ in 0..LESSONS {
            way.copy(rooms)?;
        }
    }
    let begin = Instant::now();
    while ways[0].wall.len() < FEWEST || begin.elapsed() < time {
        ways.iter_mut().try_for_each(|way| way.turn(rooms, slice, energy))?;
    }
    Ok(())
}

/// Copies before the first measured one. Source: chosen; an estimate settles after about twenty.
const LESSONS: u32 = 32;

fn rows(ways: &[WaitMethod]) -> Vec<Row> {
    let ratio = |of: &[f64], by: &[f64]| median(&mut of.iter().zip(by).map(|(of, by)| of / by).collect::<Vec<_>>());
    let (spin, others) = ways.split_first().expect("there is a first way");
    let time = |values: &[f64]| units::time(median(&mut values.to_vec()));
    let mut rows = Vec::new();
    for (way, (name, wait)) in others.iter().zip(&WAYS[1..]) {
        let must = *wait == Wait::Predicted;
        rows.push(Row::new(
            format!("{name}: CPU time while a 4 MiB copy is under way, by spinning's"),
            100.0 * ratio(&way.cpu, &spin.cpu),
            "%",
            must.then_some(Goal::AtMost(CPU)),
            format!(
                "of the submitting thread, cold buffers, threaded device; {} against {} a copy",
                time(&way.cpu),
                time(&spin.cpu)
            ),
        ));
        rows.push(Row::new(
            format!("{name}: until its end is seen, by spinning's"),
            ratio(&way.wall, &spin.wall),
            "of its time",
            must.then_some(Goal::AtMost(LATENCY)),
            format!("one at a time; {} against {}", time(&way.wall), time(&spin.wall)),
        ));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_energy_is_by_method_or_has_a_reason() {
        let portal: Vec<Arc<dyn Portal>> = Vec::new();
        let ways: Vec<WaitMethod> = [2.0, 1.0]
            .map(|joules| {
                let mut energy = EnergyPerByte::default();
                energy.add(Some(joules), 5e8);
                let mover = Mover::new(portal.clone(), Policy::default());
                WaitMethod { mover, wall: Vec::new(), cpu: Vec::new(), energy }
            })
            .into();
        let rows = energy_rows(&ways, None);
        assert_eq!(rows.iter().map(|row| row.measured).collect::<Vec<_>>(), [4.0, 2.0]);
        assert!(rows[0].what.starts_with("spinning"));
        let rows = energy_rows(&ways, Some("no counters"));
        assert!(rows.len() == 1 && rows[0].measured.is_nan() && rows[0].how == "no counters");
    }

    #[test]
    fn methods_are_compared_with_spinning_turn_by_turn() {
        let portal: Vec<Arc<dyn Portal>> = Vec::new();
        let way = |wall: f64, cpu: f64| WaitMethod {
            mover: Mover::new(portal.clone(), Policy::default()),
            wall: vec![wall, 2.0 * wall],
            cpu: vec![cpu, 2.0 * cpu],
            energy: EnergyPerByte::default(),
        };
        let rows = rows(&[way(100.0, 100.0), way(108.0, 25.0), way(101.0, 100.0), way(150.0, 5.0)]);
        assert_eq!(rows.len(), 6);
        assert!((rows[0].measured - 25.0).abs() < 1e-9 && (rows[1].measured - 1.08).abs() < 1e-9);
        assert!(rows.iter().all(Row::reached) && rows[..2].iter().all(|row| row.goal.is_some()));
    }
}
