//! `telpher bench sim`: how fast the simulator is, and how much memory it needs.
//!
//! ```text
//! scenarios ──take turns──► Scenario::simulate ──► descriptors per second of processor time ──► rows
//! ```
//!
//! Speeds are compared with that of the simplest scenario, one thread with an engine of its own. A row's outcome is a
//! hash of everything that the simulation returned: it is the same on every computer and for every build.

use super::BenchError;
use super::questions::{self, Answers, Experiment};
use crate::ffi::thread_cpu;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::options::ExperimentOptions;
use std::time::{Duration, Instant};
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_report::machine::Machine;
use telpher_sim::{BufferPlacement, Layout, Scenario, Stream, queue_ids};

/// Every experiment, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[SPEED, MEMORY];

/// The first sentence of the report.
pub const LEAD: &str = "How many descriptors the simulator simulates in a second of processor time.";

const SPEED: Experiment = Experiment {
    name: "speed",
    question: "How many descriptors are simulated in a second of processor time, by scenario?",
    cores: 1,
    weight: 3.0,
    measure: speed,
};

const MEMORY: Experiment = Experiment {
    name: "memory",
    question: "How much memory does a long simulation need?",
    cores: 1,
    weight: 1.0,
    measure: memory,
};

/// Descriptors of one run of the first experiment, approximately. Source: chosen; a hundred for each of 1,000 threads.
const DESCRIPTORS: u64 = 100_000;

/// Descriptors of the long run. Source: the simulator's goal for its memory names seven millions.
const MANY: u64 = 7_000_000;

/// Goals for the speed, relative to one thread with its own engine: many threads at one shared queue, and threads that
/// submit again and again because the queue is full. Source: goals of the simulator.
const SHARED: f64 = 0.8;
const RETRIES: f64 = 0.2;

/// Most memory of the long run in MiB. Source: what the simulator needed before retries became cheap.
const MOST_MIB: f64 = 20.0;

/// The machine that is simulated.
const PROFILE: &str = "spr-asplos";

/// Runs the requested experiments.
///
/// # Errors
/// If a name is unknown, or a scenario cannot be simulated.
pub fn run(args: &ExperimentOptions, machine: Machine) -> Result<Answers, BenchError> {
    let remarks = vec![format!(
        "Simulated is the profile {PROFILE}. Times are this computer's processor time, and no simulated ones."
    )];
    questions::hold("sim", EXPERIMENTS, &args.only, args.seconds, machine, remarks)
}

/// A scenario to simulate.
struct Load {
    name: &'static str,
    devices: u16,
    engines: u32,
    mode: WqMode,
    threads: u32,
    stream: Stream,
    goal: Option<f64>,
}

/// What one run shows.
struct Run {
    /// Descriptors in a second of processor time.
    rate: f64,
    /// Events for each descriptor.
    events: f64,
    /// Retry answers for each descriptor.
    retries: f64,
    outcome: u64,
}

fn loads() -> Vec<Load> {
    let copies = |size, depth, batch| Stream { depth, batch, ..Stream::of(Opcode::MemoryMove, size) };
    let own = |name, devices, engines, threads, stream| Load {
        name,
        devices,
        engines,
        mode: WqMode::Dedicated,
        threads,
        stream,
        goal: None,
    };
    let shared = |name, engines, threads, stream, goal| Load {
        mode: WqMode::Shared,
        goal,
        ..own(name, 1, engines, threads, stream)
    };
    vec![
        own("4 KiB, one thread, one engine", 1, 1, 1, copies(4096, 32, 1)),
        own("512 B, four engines", 1, 4, 1, copies(512, 32, 1)),
        own("4 KiB, batches of 32", 1, 1, 1, copies(4096, 8, 32)),
        own("4 KiB, from the other socket", 1, 1, 1, Stream { src: BufferPlacement::on(1), ..copies(4096, 32, 1) }),
        own("64 KiB, four threads, four devices", 4, 4, 4, copies(65536, 32, 1)),
        own("4 KiB, 64 threads, four devices", 4, 4, 64, copies(4096, 32, 1)),
        shared("4 KiB, 8 threads share a queue", 4, 8, copies(4096, 8, 1), None),
        shared("4 KiB, 64 threads share a queue", 4, 64, copies(4096, 8, 1), Some(SHARED)),
        shared("64 KiB, 32 threads at a full queue", 1, 32, copies(65536, 32, 1), Some(RETRIES)),
        shared("4 KiB, 1,000 threads at a full queue", 1, 1000, copies(4096, 8, 1), Some(RETRIES)),
    ]
}

impl Load {
    fn run(&self, machine: &telpher_sim::Machine, descriptors: u64) -> Result<Run, BenchError> {
        let Load { devices, engines, mode, threads, .. } = *self;
        let mut scenario =
            Scenario { devices: Vec::new(), ..Scenario::on(machine.clone(), Config::single(mode, 32, 1)) };
        scenario.devices = Layout { devices, engines, ..Layout::single(mode) }.configs(&scenario.capabilities);
        let submissions = descriptors / u64::from(self.stream.batch) / u64::from(threads);
        let queues = queue_ids(&scenario.devices);
        let scenario = scenario.with_lanes(self.name, threads, Stream { submissions, ..self.stream }, queues);
        let start = thread_cpu();
        let outcome = scenario.simulate().map_err(|error| BenchError::Usage(telpher_os::chain(&error)))?;
        let took = thread_cpu().saturating_sub(start).as_secs_f64().max(1e-9);
        let retries: u64 = outcome.loads.iter().map(|load| load.timeline.retries).sum();
        let of = |count: u64| count as f64 / outcome.descriptors.max(1) as f64;
        // FNV-1a, 64 bits. Source: draft-eastlake-fnv, §5.
        let outcome_hash = format!("{outcome:?}")
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Ok(Run {
            rate: outcome.descriptors as f64 / took,
            events: of(outcome.events),
            retries: of(retries),
            outcome: outcome_hash,
        })
    }

    fn row(&self, rates: &mut [f64], first: f64, last: &Run) -> Row {
        let how = format!(
            "{:.2} M descriptors/s, {:.1} events and {:.1} Retry answers each; outcome {:016x}",
            median(rates) / 1e6,
            last.events,
            last.retries,
            last.outcome
        );
        Row::new(self.name, median(rates) / first, "× the first", self.goal.map(Goal::AtLeast), how)
    }
}

fn profile() -> Result<telpher_sim::Machine, BenchError> {
    telpher_sim::Machine::built_in(PROFILE).ok_or_else(|| BenchError::Usage(format!("there is no profile {PROFILE}")))
}

fn speed(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let (machine, loads, end) = (profile()?, loads(), Instant::now() + time);
    let mut rates = vec![Vec::new(); loads.len()];
    loop {
        let mut runs = Vec::new();
        for (load, rates) in loads.iter().zip(&mut rates) {
            let run = load.run(&machine, DESCRIPTORS)?;
            rates.push(run.rate);
            runs.push(run);
        }
        if Instant::now() >= end {
            let first = median(&mut rates[0].clone());
            let rows = loads.iter().zip(&mut rates).zip(&runs);
            return Ok(rows.map(|((load, rates), run)| load.row(rates, first, run)).collect());
        }
    }
}

/// Simulates one long stream, whatever the time is.
fn memory(_: &Machine, _: Duration) -> Result<Vec<Row>, BenchError> {
    let (machine, all) = (profile()?, loads());
    let peak = Peak::begin();
    let run = all[0].run(&machine, MANY)?;
    let mib = peak.map_or(f64::NAN, |peak| peak.end_mib());
    let how = format!("7,000,000 copies of 4 KiB at {:.2} M descriptors/s", run.rate / 1e6);
    Ok(vec![Row::new("memory beyond that before", mib, "MiB", Some(Goal::AtMost(MOST_MIB)), how)])
}

/// The memory that the process needs between two moments.
struct Peak {
    before_kib: f64,
}

impl Peak {
    /// Forgets earlier peaks; `None` if the kernel does not let it. Source: proc(5), `/proc/pid/clear_refs`.
    fn begin() -> Option<Peak> {
        std::fs::write("/proc/self/clear_refs", "5").ok()?;
        Some(Peak { before_kib: status_kib("VmRSS:")? })
    }

    /// Returns the highest need since then, beyond what was used before, in MiB; NaN if it is unknown.
    fn end_mib(&self) -> f64 {
        status_kib("VmHWM:").map_or(f64::NAN, |peak| (peak - self.before_kib).max(0.0) / 1024.0)
    }
}

/// Returns a number of `/proc/self/status`.
fn status_kib(name: &str) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_compared_with_the_first() {
        let rows = speed(&Machine::read(), Duration::ZERO).unwrap();
        assert_eq!((rows.len(), rows[0].measured), (loads().len(), 1.0));
        assert!(rows.iter().all(|row| row.measured > 0.0), "{rows:?}");
        // These scenarios are about Retry answers, so they must have them.
        let machine = profile().unwrap();
        for load in loads().iter().filter(|load| load.goal == Some(RETRIES)) {
            let run = load.run(&machine, 20_000).unwrap();
            assert!(run.retries > 1.0, "{}: {} Retry answers", load.name, run.retries);
        }
    }

    #[test]
    fn outcomes_are_the_same_each_time() {
        let (machine, loads) = (profile().unwrap(), loads());
        let [one, two] = [(); 2].map(|()| loads[1].run(&machine, 5_000).unwrap().outcome);
        assert_eq!(one, two);
        assert_ne!(one, loads[0].run(&machine, 5_000).unwrap().outcome);
    }

    #[test]
    fn memory_in_use_is_seen() {
        let peak = Peak::begin().unwrap();
        let used = vec![1_u8; 32 << 20];
        assert!(std::hint::black_box(&used)[1 << 20] == 1 && peak.end_mib() > 20.0);
    }
}
