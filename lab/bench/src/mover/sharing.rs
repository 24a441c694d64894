//! Two threads that share one mover, against two threads with a mover each.
//!
//! Below the threshold the threads share only memory that both read. Above it, every operation takes a slot, a credit
//! and a turn and returns them, so both cores write the same words. The devices are inline: the submitting thread also
//! executes, so two cores are enough for two threads.

use super::Experiment;
use super::interleaved::{InterleavedLoad, rates, ratio};
use crate::BenchError;
use crate::buffers::{fill_known, touched};
use crate::goal::{Goal, Row};
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{Config, ModelDevice, ModelOptions, WqMode};
use telpher_mem::{PageSize, Region};
use telpher_mover::{Mover, Policy, Threshold};
use telpher_portal::Portal;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "sharing",
    question: "How much do two threads lose that share one mover?",
    cores: 2,
    weight: 2.0,
    measure,
};

/// Minimum speed of two threads with one mover, divided by that of two threads with one each. Source: goal of the
/// mover.
const SHARED: f64 = 0.9;
/// Bytes below the threshold.
const SMALL: usize = 256;
/// Bytes at the threshold and well above it.
const LARGE: [usize; 2] = [4 << 10, 64 << 10];

/// One thread's mover and buffers.
struct MoverAndBuffers {
    mover: Mover,
    /// Source and destination; `None` while a copy runs. Each begins on its own page, so that the threads never share a
    /// cache line.
    buffers: Option<(Region, Region)>,
}

impl MoverAndBuffers {
    fn new(mover: Mover, bytes: usize, seed: u64) -> Result<Self, BenchError> {
        let (mut src, dst) = (touched(bytes, PageSize::Small)?, touched(bytes, PageSize::Small)?);
        fill_known(&mut src, seed);
        Ok(MoverAndBuffers { mover, buffers: Some((src, dst)) })
    }

    fn copy(&mut self) -> Result<u64, BenchError> {
        let (src, dst) = self.buffers.take().expect("the buffers came back");
        let (result, src, dst) = self.mover.copy(src, dst).wait().into_parts();
        self.buffers = Some((src, dst));
        EXPERIMENT.done(result).map(|()| 1)
    }

    fn check(&self) -> Result<(), BenchError> {
        let (src, dst) = self.buffers.as_ref().expect("the buffers came back");
        EXPERIMENT.arrived(src, dst)
    }
}

/// Creates an inline device and returns its queue.
fn queue(mode: WqMode) -> Result<Arc<dyn Portal>, BenchError> {
    let options = ModelOptions::default().with_config(Config::single(mode, 64, 1));
    let device =
        ModelDevice::start(options).map_err(|source| BenchError::Start { name: "model:spr".into(), source })?;
    Ok(device.portal("wq0.0")?)
}

fn mover(portals: &[Arc<dyn Portal>]) -> Mover {
    Mover::new(portals.to_vec(), Policy { threshold: Threshold::all(LARGE[0] as u64), ..Policy::default() })
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let each = time / 4;
    let own = [queue(WqMode::Dedicated)?, queue(WqMode::Dedicated)?];
    let common = [queue(WqMode::Shared)?];
    let mut rows = Vec::new();
    for bytes in LARGE {
        let movers = own.clone().map(|queue| mover(&[queue]));
        let one = mover(&own);
        rows.push(against(machine, each, bytes, "a device each", movers, &one)?);
    }
    let of_common = || mover(&common);
    rows.push(against(machine, each, LARGE[0], "one shared queue", [of_common(), of_common()], &of_common())?);
    let small = "below the threshold";
    rows.push(against(machine, each, SMALL, small, [of_common(), of_common()], &of_common())?);
    Ok(rows)
}

/// Compares two threads with `own` and two with clones of `one`; each copies `bytes` bytes, one copy at a time.
fn against(
    machine: &Machine,
    time: Duration,
    bytes: usize,
    how: &str,
    own: [Mover; 2],
    one: &Mover,
) -> Result<Row, BenchError> {
    let hands = |movers: [Mover; 2]| -> Result<Vec<MoverAndBuffers>, BenchError> {
        (1..).zip(movers).map(|(seed, mover)| MoverAndBuffers::new(mover, bytes, seed)).collect()
    };
    let mut sides = [
        InterleavedLoad { states: hands([one.clone(), one.clone()])?, step: &MoverAndBuffers::copy },
        InterleavedLoad { states: hands(own)?, step: &MoverAndBuffers::copy },
    ];
    let seen = rates(machine, time, &mut sides)?;
    sides.iter().flat_map(|side| &side.states).try_for_each(MoverAndBuffers::check)?;
    let speed = |seen: &[f64]| units::frequency(crate::measure::median(&mut seen.to_vec()));
    Ok(Row::new(
        format!("{} copies, {how}: sharing a mover, against one each", units::size(bytes as u64)),
        ratio(&seen[0], &seen[1]),
        "of its speed",
        Some(Goal::AtLeast(SHARED)),
        format!("two threads, inline, one at a time; {} against {} together", speed(&seen[0]), speed(&seen[1])),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found() {
        let mut hand = MoverAndBuffers::new(mover(&[queue(WqMode::Shared).unwrap()]), 8192, 1).unwrap();
        assert_eq!(hand.copy().unwrap(), 1);
        hand.check().unwrap();
        hand.buffers.as_mut().unwrap().1[4097] ^= 1;
        assert!(matches!(hand.check(), Err(BenchError::Mismatch { offset: 4097, .. })));
    }
}
