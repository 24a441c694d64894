//! The calibrated machine reproduces the series of its calibration.

use telpher_abi::Opcode;
use telpher_device::{Config, Preset, WqMode};
use telpher_sim::{ExecutedBy, Machine, Stream, World};

/// Microseconds for one operation of 64 B, 128 B … 1 MiB, with one descriptor at a time, one engine, one shared queue, and
/// polling.
///
/// Source: LightDSA artifact repository (EuroSys 2026), raw result files, chapter 3.4, 64-byte aligned.
const SERIES: [(Opcode, [f64; 15]); 4] = [
    (Opcode::MemoryMove, [0.75, 0.79, 0.84, 0.9, 0.96, 1.07, 1.14, 1.36, 1.83, 2.39, 3.51, 5.71, 9.91, 18.31, 35.06]),
    (Opcode::Fill, [0.49, 0.51, 0.53, 0.55, 0.6, 0.68, 0.75, 0.89, 1.15, 1.7, 2.76, 4.83, 8.96, 17.12, 33.58]),
    (Opcode::Compare, [0.72, 0.75, 0.78, 0.83, 0.91, 1.05, 1.15, 1.42, 1.98, 3.09, 5.18, 9.31, 17.52, 34.05, 67.12]),
    (Opcode::ComparePattern, [0.67, 0.7, 0.73, 0.8, 0.83, 0.94, 1.0, 1.19, 1.48, 2.06, 3.1, 5.16, 9.26, 17.54, 34.08]),
];

fn alone(op: Opcode, size: u32, submissions: u64) -> World {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let mut world = World::new(machine, Preset::Spr.capabilities(), &[Config::single(WqMode::Shared, 128, 1)]).unwrap();
    world.add(Stream { submissions, by: ExecutedBy::SHARED, ..Stream::of(op, size) });
    world
}

#[test]
fn one_descriptor_at_a_time_takes_the_measured_time() {
    for (op, measured) in SERIES {
        let mut sum = 0.0;
        for (power, us) in measured.into_iter().enumerate() {
            let size = 64 << power;
            let mut world = alone(op, size, 50);
            world.run();
            let timeline = world.timeline(0);
            assert_eq!(timeline.completed, 50);
            let deviation = timeline.latency().as_nanos_f64() / 50.0 / (us * 1e3) - 1.0;
            assert!(deviation.abs() < 0.06, "{op:?} of {size}: {:.1} % from {us} us", deviation * 100.0);
            sum += deviation.abs();
        }
        let mean = sum / 15.0;
        assert!(mean < 0.02, "{op:?}: {:.1} % on average", mean * 100.0);
    }
}

#[test]
fn the_same_workload_gives_the_same_trace() {
    let trace = || {
        let mut world = alone(Opcode::MemoryMove, 4096, 1000);
        (world.run(), world.events(), world.timeline(0).clone())
    };
    assert_eq!(trace(), trace());
}
