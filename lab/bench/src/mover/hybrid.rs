//! One copy shared between a device and the thread that waits for it, against one thread alone.
//!
//! The device's engine thread and the waiting thread run on two cores, so two cores work on one copy. The upper limit
//! is what two plain threads reach with one half of the same copy each. The first thread hands a half to the second and
//! spins until that half is back. This limit is measured too: if it is below twice one thread, memory is the limit. The
//! buffers rotate over more memory than the caches hold, for one half as for both, like those of a program that moves
//! bulk data.

use super::Experiment;
use super::interleaved::{InterleavedLoad, rates, ratio};
use crate::BenchError;
use crate::devices::start_beside;
use crate::goal::{Goal, Row};
use crate::hybrid_case::{CopyBy, HybridCase};
use crate::measure::median;
use std::time::Duration;
use telpher_device::{Config, ModelOptions, Runner, WqMode};
use telpher_mover::{Mover, Policy, Split};
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "hybrid",
    question: "How much faster than memcpy on one thread is a copy shared by a device and the waiting thread?",
    cores: 2,
    weight: 3.0,
    measure,
};

/// Minimum speed of a shared copy, divided by that of one thread. Source: goal of the mover.
const SHARED: f64 = 1.5;
/// Fraction of the speed of two threads from which on memory counts as the limit.
const LIMIT: f64 = 0.95;
/// Bytes of one copy.
const SIZES: [usize; 4] = [1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// Starts a device whose engine thread runs on the second core; returns two movers on its queue, without and with
/// sharing.
fn movers(machine: &Machine) -> Result<[Mover; 2], BenchError> {
    let options =
        ModelOptions::default().with_config(Config::single(WqMode::Shared, 64, 1)).with_runner(Runner::Threaded);
    let device = start_beside(options, 1, "model:spr", machine)?;
    let queue = device.portal("wq0.0")?;
    let with = |hybrid| Policy { split: Split { hybrid, ..Split::default() }, ..Policy::default() };
    Ok([false, true].map(|hybrid| Mover::new([queue.clone()], with(hybrid))))
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let [alone, shared] = movers(machine)?;
    let each = time / u32::try_from(SIZES.len()).unwrap_or(1);
    let mut rows = Vec::new();
    for bytes in SIZES {
        rows.extend(at(machine, each, bytes, [&alone, &shared])?);
    }
    Ok(rows)
}

/// Returns the rows of one size.
fn at(machine: &Machine, time: Duration, bytes: usize, [alone, shared]: [&Mover; 2]) -> Result<[Row; 2], BenchError> {
    // The buffers must be cold for one half too, because its thread may have its own cache.
    let room = 2 * machine.cold_bytes();
    let one = |copy_by| InterleavedLoad {
        states: vec![HybridCase::new(&EXPERIMENT, copy_by, bytes, room)],
        step: &HybridCase::copy,
    };
    let halves = InterleavedLoad { states: HybridCase::halves(&EXPERIMENT, bytes, room), step: &HybridCase::copy };
    let mut sides = [one(CopyBy::By(shared.clone())), one(CopyBy::Alone), one(CopyBy::By(alone.clone())), halves];
    let seen = rates(machine, time, &mut sides)?;
    sides.iter().flat_map(|side| &side.states).try_for_each(HybridCase::check)?;
    let speed = |side: usize| units::rate(median(&mut seen[side].clone()));
    let size = units::size(bytes as u64);
    let (of_one, of_two) = (ratio(&seen[0], &seen[1]), ratio(&seen[0], &seen[3]));
    let limited = of_one < SHARED && of_two >= LIMIT;
    let how = format!(
        "cold buffers; {} shared, {} memcpy, {} device alone; two threads with a half each: {} ({:.2} of one){}",
        speed(0),
        speed(1),
        speed(2),
        speed(3),
        ratio(&seen[3], &seen[1]),
        if limited { "; limit reached" } else { "" },
    );
    Ok([
        Row::new(
            format!("{size} copies, device and waiting thread: against memcpy on one thread"),
            of_one,
            "of its speed",
            // If two threads are no faster either, memory is the limit; the next row shows it.
            (!limited).then_some(Goal::AtLeast(SHARED)),
            how,
        ),
        Row::new(
            format!("{size} copies, device and waiting thread: against two threads with a half each"),
            of_two,
            "of their speed",
            (of_one < SHARED).then_some(Goal::AtLeast(LIMIT)),
            "the same turns",
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_copy_is_complete_and_a_wrong_byte_is_found() {
        let [_, shared] = movers(&Machine::read()).unwrap();
        let mut side = HybridCase::new(&EXPERIMENT, CopyBy::By(shared), 4 << 20, 0);
        assert_eq!(side.copy().unwrap(), 4 << 20);
        side.check().unwrap();
        side.pairs[0].1[1_234_567] ^= 1;
        assert!(matches!(side.check(), Err(BenchError::Mismatch { offset: 1_234_567, .. })));
    }
}
