//! Measures copies on the modelled device with each runner, in turns: on free cores, with one core kept busy by another
//! process, and with all cores kept busy. It prints the median time for each copy: one at a time, 16 in flight, and one
//! at a time while the submitting thread computes for as long as the copy takes inline.
//!
//! ```sh
//! cargo run --release -p telpher-device --example runners
//! ```
#![allow(unsafe_code, reason = "copies between buffers of its own, by address")]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{available_parallelism, sleep, spawn, yield_now};
use std::time::{Duration, Instant};
use telpher_abi::{Descriptor, Status};
use telpher_device::{ModelDevice, ModelOptions, Runner};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

const RUNNERS: [Runner; 3] = [Runner::Inline, Runner::Threaded, Runner::Auto];
const IN_FLIGHT: usize = 16;
/// Rounds in which each runner has its turn.
const ROUNDS: usize = 25;
/// Bytes that a runner copies in its turn, and the most copies for it.
const BYTES: usize = 16 << 20;
const COPIES: usize = 2000;
/// Checks of a record before the waiting thread yields its core: those of the mover's default policy.
const PAUSES: u32 = 256;
/// The argument of a process of this program that keeps a core busy.
const KEEP_BUSY: &str = "keep-busy";

/// Copies `IN_FLIGHT` buffers to others.
struct Buffers {
    sources: Vec<Vec<u8>>,
    targets: Vec<Vec<u8>>,
    records: Vec<RecordCell>,
}

impl Buffers {
    fn new(len: usize) -> Self {
        Buffers {
            sources: (0..IN_FLIGHT).map(|i| vec![u8::try_from(i).unwrap_or(1); len]).collect(),
            targets: (0..IN_FLIGHT).map(|_| vec![0; len]).collect(),
            records: (0..IN_FLIGHT).map(|_| RecordCell::new()).collect(),
        }
    }

    /// Submits the first `count` copies, computes for a while, waits for all, and returns the nanoseconds for each.
    fn copy(&mut self, portal: &dyn Portal, count: usize, compute: Duration) -> f64 {
        let start = Instant::now();
        for i in 0..count {
            let (source, target, record) = (&self.sources[i], &mut self.targets[i], &mut self.records[i]);
            *record = RecordCell::new();
            let len = u32::try_from(source.len()).expect("a short buffer");
            let copy = Descriptor::memory_move(source.as_ptr() as u64, target.as_mut_ptr() as u64, len);
            // SAFETY: the buffers and the record stay in place and unused until the record is seen below.
            let copy = unsafe { Submission::vouch(copy.with_record(record.address())) };
            while portal.offer(&copy) == Offer::Retry {
                portal.drive();
            }
        }
        if !compute.is_zero() {
            let submitted = Instant::now();
            while submitted.elapsed() < compute {}
        }
        for record in &self.records[..count] {
            let mut checks = 0;
            let record = loop {
                if let Some(record) = record.read() {
                    break record;
                }
                portal.drive();
                checks += 1;
                if checks > PAUSES { yield_now() } else { std::hint::spin_loop() }
            };
            assert_eq!(record.status(), Status::Success);
        }
        #[allow(clippy::cast_precision_loss, reason = "a small count")]
        let copies = count as f64;
        start.elapsed().as_secs_f64() * 1e9 / copies
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Processes that keep cores busy until this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn on(cores: usize) -> Self {
        let program = std::env::current_exe().expect("Linux knows the path of this program");
        // A process ends when its standard input is closed, even if this one is killed.
        let start = |_| Command::new(&program).arg(KEEP_BUSY).stdin(Stdio::piped()).spawn().expect("a process starts");
        Load((0..cores).map(start).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for process in &mut self.0 {
            drop(process.stdin.take());
            let _ = process.wait();
        }
    }
}

/// Keeps a core busy until the standard input is closed.
fn keep_busy() {
    let waits = spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    while !waits.is_finished() {
        std::hint::spin_loop();
    }
}

/// Measures each length with all runners, and prints a line for each length. If `computes` is true, the submitting
/// thread computes while a copy is in flight.
fn measure(portals: &[Arc<dyn Portal>], in_flight: usize, computes: bool) {
    for len in [64, 4 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20] {
        let mut buffers = Buffers::new(len);
        let turns = ((BYTES / len).min(COPIES) / in_flight).max(3);
        let mut compute = Duration::ZERO;
        if computes {
            let mut times: Vec<f64> = (0..turns).map(|_| buffers.copy(&*portals[0], 1, Duration::ZERO)).collect();
            compute = Duration::from_secs_f64(median(&mut times) / 1e9);
        }
        let mut times = vec![Vec::new(); RUNNERS.len()];
        for round in 0..ROUNDS {
            for turn in 0..RUNNERS.len() {
                // The order changes, because the scheduler remembers where the last engine thread ran.
                let runner = (round + turn) % RUNNERS.len();
                let portal = &*portals[runner];
                // The engine threads of the other devices fall asleep, and those of this one wake up.
                sleep(Duration::from_millis(1));
                buffers.copy(portal, in_flight, compute);
                times[runner].extend((0..turns).map(|_| buffers.copy(portal, in_flight, compute)));
            }
        }
        let [inline, threaded, auto] = [0, 1, 2].map(|runner| median(&mut times[runner]));
        let ratio = auto / inline.min(threaded);
        let while_computing = if computes { ", computing" } else { "" };
        let case = format!("{len} B, {in_flight} in flight{while_computing}");
        println!("{case:<36}{inline:9.0}{threaded:11.0}{auto:11.0}{ratio:11.2}");
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some(KEEP_BUSY) {
        return keep_busy();
    }
    let portals: Vec<Arc<dyn Portal>> = RUNNERS
        .iter()
        .map(|runner| {
            let device = ModelDevice::start(ModelOptions::default().with_runner(*runner)).expect("the model starts");
            device.portal("wq0.0").expect("the model has this queue")
        })
        .collect();
    let cores = available_parallelism().map_or(1, usize::from);
    println!("{}, {cores} cores; median ns for each copy", telpher_os::cpu_name().unwrap_or_default());
    for busy in [0, 1, cores] {
        let _load = Load::on(busy);
        println!("{:<36}   inline   threaded       auto   / better", format!("{busy} of {cores} cores busy"));
        measure(&portals, 1, false);
        measure(&portals, IN_FLIGHT, false);
        measure(&portals, 1, true);
    }
}
