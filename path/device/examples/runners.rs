//! Measures copies on the modelled device with each runner, in turns: the median latency of one copy at a time, and the
//! median time for each of 16 copies in flight.
//!
//! ```sh
//! cargo run --release -p telpher-device --example runners
//! stress-ng --cpu 2 --timeout 60 & cargo run --release -p telpher-device --example runners    # on busy cores
//! ```
#![allow(unsafe_code, reason = "copies between buffers of its own, by address")]

use std::sync::Arc;
use std::time::Instant;
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

    /// Submits the first `count` copies, waits for all, and returns the nanoseconds for each.
    fn copy(&mut self, portal: &dyn Portal, count: usize) -> f64 {
        let begun = Instant::now();
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
        for record in &self.records[..count] {
            let mut checks = 0;
            let record = loop {
                if let Some(record) = record.read() {
                    break record;
                }
                portal.drive();
                checks += 1;
                if checks > PAUSES { std::thread::yield_now() } else { std::hint::spin_loop() }
            };
            assert_eq!(record.status(), Status::Success);
        }
        #[allow(clippy::cast_precision_loss, reason = "a small count")]
        let copies = count as f64;
        begun.elapsed().as_secs_f64() * 1e9 / copies
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let portals: Vec<Arc<dyn Portal>> = RUNNERS
        .iter()
        .map(|runner| {
            let device = ModelDevice::start(ModelOptions::default().with_runner(*runner)).expect("the model starts");
            device.portal("wq0.0").expect("the model has this queue")
        })
        .collect();
    println!("median ns for each copy     inline   threaded       auto   auto / better");
    for in_flight in [1, IN_FLIGHT] {
        for len in [64, 4 << 10, 32 << 10, 64 << 10, 128 << 10, 1 << 20] {
            let mut buffers = Buffers::new(len);
            let mut times = vec![Vec::new(); RUNNERS.len()];
            let turns = (BYTES / len).min(COPIES) / in_flight;
            for _ in 0..ROUNDS {
                for (portal, times) in portals.iter().zip(&mut times) {
                    // The engine threads wake up, or fall asleep, before the measured copies.
                    buffers.copy(&**portal, in_flight);
                    times.extend((0..turns).map(|_| buffers.copy(&**portal, in_flight)));
                }
            }
            let [inline, threaded, auto] = [0, 1, 2].map(|runner| median(&mut times[runner]));
            println!(
                "{len:8} B, {in_flight:2} in flight {inline:9.0}  {threaded:9.0}  {auto:9.0}   {:.2}",
                auto / inline.min(threaded)
            );
        }
    }
}
