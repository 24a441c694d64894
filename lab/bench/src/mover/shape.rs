//! Batch shape: many small adjacent copies, sent one by one, as one batch, and merged into one copy.
//!
//! Guideline G1 (Kuper et al., ASPLOS 2024, §6.1): small transfers are worth a device in batches, and adjacent ones in
//! a single descriptor. The modelled engine runs on its own core, so the result shows the cost of descriptors on both
//! sides.

use super::Experiment;
use super::interleaved::{InterleavedLoad, rates, ratio};
use crate::BenchError;
use crate::buffers::fill_known;
use crate::devices::{self, Shape};
use crate::goal::Row;
use crate::measure::median;
use crate::results::Runner;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{ModelSource, Preset};
use telpher_mover::{Job, JobError, Mover, Outcome, Policy, Threshold};
use telpher_portal::Portal;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "shape",
    question: "What do small copies gain as one batch, and merged into one copy?",
    cores: 2,
    weight: 1.0,
    measure,
};

/// Copies in a burst, and bytes of each.
const COPIES: usize = 32;
const BYTES: usize = 4 << 10;

/// A copy's buffers, adjacent to those of the copies before and after. They live as long as the process.
type Pair = (&'static [u8], &'static mut [u8]);

/// One way to send a burst. `pairs` is complete between two bursts.
struct BurstCase {
    mover: Mover,
    listed: bool,
    pairs: Vec<Pair>,
}

impl BurstCase {
    fn new(portal: &Arc<dyn Portal>, listed: bool, coalesce: bool, seed: u64) -> Self {
        let policy = Policy { coalesce, threshold: Threshold::DEVICE, ..Policy::default() };
        let mut src = vec![0; COPIES * BYTES];
        fill_known(&mut src, seed);
        let src: &'static [u8] = Vec::leak(src);
        let dst: &'static mut [u8] = Vec::leak(vec![0; COPIES * BYTES]);
        let pairs = src.chunks_exact(BYTES).zip(dst.chunks_exact_mut(BYTES)).collect();
        BurstCase { mover: Mover::new([Arc::clone(portal)], policy), listed, pairs }
    }

    fn burst(&mut self) -> Result<u64, BenchError> {
        let pairs = std::mem::take(&mut self.pairs);
        if self.listed {
            let mut batch = self.mover.batch();
            let keys: Vec<_> = pairs.into_iter().map(|(src, dst)| batch.copy(src, dst)).collect();
            let mut done = batch.submit().wait();
            for key in keys {
                let done = done.take(key);
                self.back(done.result, done.buffers)?;
            }
        } else {
            let jobs: Vec<Job<_>> = pairs.into_iter().map(|(src, dst)| self.mover.copy(src, dst)).collect();
            for job in jobs {
                let done = job.wait();
                self.back(done.result, done.buffers)?;
            }
        }
        Ok(COPIES as u64)
    }

    fn back(&mut self, result: Result<Outcome, JobError>, pair: Pair) -> Result<(), BenchError> {
        self.pairs.push(pair);
        EXPERIMENT.done(result)
    }

    fn check(&self) -> Result<(), BenchError> {
        self.pairs.iter().try_for_each(|(src, dst)| EXPERIMENT.arrived(src, dst))
    }
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let source = ModelSource::Preset(Preset::default());
    let device = devices::start("model:spr", &source, Shape::PLAIN, Runner::Threaded, machine)?;
    let portal = device.portals.first().expect("a plain device has a queue");
    let ways = [(false, false), (true, false), (true, true)];
    let sides = (1..).zip(ways).map(|(seed, (listed, joined))| BurstCase::new(portal, listed, joined, seed));
    let mut sides: Vec<_> = sides.map(|side| InterleavedLoad { states: vec![side], step: &BurstCase::burst }).collect();
    let seen = rates(machine, time, &mut sides)?;
    sides.iter().flat_map(|side| &side.states).try_for_each(BurstCase::check)?;
    let size = units::size(BYTES as u64);
    let row = |what: &str, of: usize, by: usize| {
        let speed = |side: usize| units::frequency(median(&mut seen[side].clone()));
        Row::new(
            format!("{COPIES} copies of {size} between neighbours: {what}"),
            ratio(&seen[of], &seen[by]),
            "of its speed",
            None,
            format!("all in flight together, threaded device; {} against {}", speed(of), speed(by)),
        )
    };
    Ok(vec![
        row("as one list, against one by one", 1, 0),
        row("joined into one copy, against one by one", 2, 0),
        row("joined into one copy, against one list", 2, 1),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_device::{ModelDevice, ModelOptions};

    #[test]
    fn every_variant_copies_the_burst_and_a_wrong_byte_is_found() {
        let portal = ModelDevice::start(ModelOptions::default()).unwrap().portal("wq0.0").unwrap();
        for (listed, joined) in [(false, false), (true, false), (true, true)] {
            let mut side = BurstCase::new(&portal, listed, joined, 1);
            assert_eq!(side.burst().unwrap(), COPIES as u64);
            side.check().unwrap();
            side.pairs[COPIES - 1].1[BYTES - 1] ^= 1;
            assert!(matches!(side.check(), Err(BenchError::Mismatch { offset, .. }) if offset == BYTES as u64 - 1));
        }
    }
}
