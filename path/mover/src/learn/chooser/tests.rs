//! Compares learned verdicts with every fixed threshold, on simulated machines with seeded randomness.
#![allow(clippy::cast_precision_loss, reason = "sizes and shares")]

use super::{Choice, DeviceChooser, Sampler};
use crate::learn::costs::Kind;
use crate::learn::costs::{Costs, Worker};
use crate::learn::estimate::{STEPS, smallest};
use crate::plan::threshold::Threshold;
use crate::sync::Ordering;
use std::time::Duration;
use telpher_abi::Opcode;

/// Random numbers, the same in every run.
struct Random(telpher_os::Random);

impl Random {
    /// Returns a number from 0 to just below 1.
    fn share(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a size whose logarithm is uniformly distributed.
    fn size(&mut self, from: u64, to: u64) -> u64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two sizes")]
        let size = (from as f64 * (to as f64 / from as f64).powf(self.share())) as u64;
        size
    }
}

/// What an operation costs its caller, in nanoseconds.
struct Machine {
    name: &'static str,
    cpu: fn(f64) -> f64,
    device: fn(f64) -> f64,
}

const MACHINES: [Machine; 6] = [
    // A device waited for: 1 µs and 31.4 GB/s; a core copies cold 4 KiB at 4.1 GB/s, larger sizes at 9.7 GiB/s.
    Machine { name: "waited for", cpu: |n| 30.0 + n / 10.4, device: |n| 1000.0 + n / 31.4 },
    // A device with much in flight: the caller pays for submitting and fetching, and from 256 KiB on for its bandwidth.
    Machine { name: "kept busy", cpu: |n| 10.0 + n / 10.4, device: |n| (130.0_f64).max(n / 31.4) },
    // The model on a thread: a hand-over, then the same copy.
    Machine { name: "model", cpu: |n| 20.0 + n / 12.0, device: |n| 4000.0 + n / 11.5 },
    // A model with one core: the same costs, and more.
    Machine { name: "hopeless", cpu: |n| 20.0 + n / 12.0, device: |n| 30_000.0 + n / 5.0 },
    // A device a hundred times better than expected.
    Machine { name: "miracle", cpu: |n| 100.0 + n / 2.0, device: |n| 60.0 + n / 300.0 },
    // A device that is better only while the data fits some buffer, so that no threshold is right.
    Machine {
        name: "window",
        cpu: |n| 20.0 + n / 8.0,
        device: |n| 800.0 + if n < 262_144.0 { n / 30.0 } else { n / 4.0 },
    },
];

/// Draws the next operation's size.
type Mix = fn(&mut Random) -> u64;

const MIXES: [(&str, Mix); 5] = [
    ("small", |random| random.size(64, 2048)),
    ("pages", |random| if random.share() < 0.9 { 4096 } else { 4096 * (1 + random.0.below(16)) }),
    ("messages", |random| if random.share() < 0.95 { random.size(64, 512) } else { random.size(32 << 10, 256 << 10) }),
    ("everything", |random| random.size(64, 4 << 20)),
    ("large", |random| random.size(64 << 10, 16 << 20)),
];

const OPERATIONS: usize = 10_000;

/// The cost of one sample, in nanoseconds.
const SAMPLE_COST: f64 = 200.0;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time within a second")]
fn nanoseconds(nanos: f64) -> Duration {
    Duration::from_nanos(nanos as u64)
}

/// Returns the time of a mix: learned (while learning, then after), and with the best fixed threshold.
fn run(machine: &Machine, mix: Mix, seed: u64) -> [f64; 3] {
    let mut random = Random(telpher_os::Random::new(seed));
    let (costs, sampler) = (Costs::new(1), Sampler::new());
    let chooser = DeviceChooser::new(&Threshold::default());
    let mut time = [0.0; 2];
    let mut fixed = [0.0; STEPS + 1];
    for i in 0..2 * OPERATIONS {
        let bytes = mix(&mut random);
        let choice = chooser.choose(&costs, Opcode::MemoryMove, bytes, &sampler);
        // A tenth up and down; one in a hundred meets a page fault, an interrupt or worse.
        let noise = 0.9 + random.share() * 0.2;
        let noise = if random.share() < 0.01 { noise * 30.0 } else { noise };
        let [on_cpu, on_device] = [machine.cpu, machine.device].map(|cost| cost(bytes as f64));
        let nanos = if choice.device { on_device } else { on_cpu };
        time[i / OPERATIONS] += nanos;
        if choice.timed {
            time[i / OPERATIONS] += SAMPLE_COST;
            chooser.learn(&costs, Opcode::MemoryMove, bytes, choice.device, nanoseconds(nanos * noise), &sampler);
        }
        if i >= OPERATIONS {
            for (at, fixed) in fixed.iter_mut().enumerate() {
                let threshold = if at == STEPS { u64::MAX } else { smallest(at) };
                *fixed += if bytes >= threshold { on_device } else { on_cpu };
            }
        }
    }
    [time[0], time[1], fixed.into_iter().fold(f64::INFINITY, f64::min)]
}

fn each_mix(machine: &Machine, seed: u64, mut each: impl FnMut(&str, [f64; 3])) {
    for (name, mix) in MIXES {
        each(name, run(machine, mix, seed));
    }
}

/// With some seeds, the first samples mislead for longer. Source of the bounds: sixty seeds for each machine and mix;
/// every median was at least 0.97, and at least 57 of the 60 ratios were above 0.9.
#[test]
fn after_ten_thousand_operations_no_fixed_threshold_is_usually_five_per_cent_better() {
    for machine in &MACHINES {
        for (mix, draw) in MIXES {
            let ratio = |seed| {
                let [_, learned, best] = run(machine, draw, seed);
                best / learned
            };
            let mut ratios: Vec<f64> = (0..30).map(ratio).collect();
            ratios.sort_by(f64::total_cmp);
            let (tenth, median) = (ratios[3], ratios[15]);
            assert!(tenth >= 0.9 && median >= 0.95, "{}, {mix}: {tenth:.3} and {median:.3}", machine.name);
        }
    }
}

#[test]
fn learning_costs_little_unless_the_device_is_hopeless() {
    for machine in MACHINES.iter().filter(|machine| machine.name != "hopeless") {
        each_mix(machine, 7, |mix, [learning, _, best]| {
            assert!(best / learning >= 0.85, "{}, {mix}: {:.3}", machine.name, best / learning);
        });
    }
}

#[test]
fn a_window_of_sizes_is_learned_that_no_threshold_can_express() {
    let [_, learned, best] = run(&MACHINES[5], MIXES[3].1, 7);
    assert!(best / learned > 1.0, "{}", best / learned);
}

#[test]
fn hopeless_sizes_are_not_sampled_until_larger_sizes_change_the_limit() {
    let (chooser, costs, sampler) = (DeviceChooser::new(&Threshold::DEVICE), Costs::new(1), Sampler::new());
    let learned = |nanos: fn(u64) -> [u64; 2], rounds: usize| {
        for _ in 0..rounds {
            for bytes in [64, 128, 256, 512, 1024, 2048, 4096, 16384] {
                run_one_size(&chooser, &costs, &sampler, bytes, nanos(bytes), 20);
            }
        }
        let small = chooser.choose(&costs, Opcode::Fill, 100, &sampler);
        (chooser.floors[Kind::Fill as usize].load(Ordering::Relaxed), small)
    };
    let (hopeless, small) = learned(|bytes| [10 + bytes / 10, 1000], 1000);
    assert!((256..=512).contains(&hopeless), "62 ns is a sixteenth of 1000: {hopeless}");
    assert_eq!(small, Choice::SMALL);
    // Samples become rare when they find nothing new, so many rounds pass before the change is seen.
    let (better, _) = learned(|bytes| [10 + bytes / 10, 20], 20_000);
    assert!(better < hopeless, "{better} after {hopeless}");
}

/// Runs `operations` operations of one size; returns how many of the last hundred went to the device.
fn run_one_size(
    chooser: &DeviceChooser,
    costs: &Costs,
    sampler: &Sampler,
    bytes: u64,
    nanos: [u64; 2],
    operations: usize,
) -> usize {
    let mut late = 0;
    for i in 0..operations {
        let choice = chooser.choose(costs, Opcode::Fill, bytes, sampler);
        if choice.timed {
            let took = Duration::from_nanos(nanos[usize::from(choice.device)]);
            chooser.learn(costs, Opcode::Fill, bytes, choice.device, took, sampler);
        }
        late += usize::from(choice.device && i + 100 >= operations);
    }
    late
}

#[test]
fn a_machine_that_changes_is_followed() {
    let (chooser, costs, sampler) = (DeviceChooser::new(&Threshold::default()), Costs::new(1), Sampler::new());
    assert!(run_one_size(&chooser, &costs, &sampler, 100_000, [9_000, 3_000], 2_000) > 95);
    // The device gets busy with the work of others.
    assert!(run_one_size(&chooser, &costs, &sampler, 100_000, [9_000, 60_000], 2_000) < 5);
    // The device is free again.
    assert!(run_one_size(&chooser, &costs, &sampler, 100_000, [9_000, 3_000], 20_000) > 95);
    assert_eq!(chooser.least(Opcode::Fill).map(|least| least <= 100_000), Some(true));
}

#[test]
fn a_loaded_cost_is_used_at_once_and_can_still_change() {
    let (chooser, costs, sampler) = (DeviceChooser::new(&Threshold::default()), Costs::new(1), Sampler::new());
    costs.load(Opcode::Fill, 1 << 20, Worker::Cpu, Duration::from_micros(50));
    chooser.load(&costs, Opcode::Fill, 1 << 20, Duration::from_micros(500));
    assert!(run_one_size(&chooser, &costs, &sampler, 1 << 20, [50_000, 500_000], 100) <= 1);
    assert!(run_one_size(&chooser, &costs, &sampler, 1 << 20, [50_000, 5_000], 5_000) > 95);
}
