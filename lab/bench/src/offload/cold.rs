//! Long copies of data in memory, shared by the modelled device on a free core and the waiting thread. The mover makes
//! them; the library of `telpher offload` starts no engine thread in a program.

use super::program::LONG;
use crate::BenchError;
use crate::devices::start_beside;
use crate::goal::{Goal, Row};
use crate::hybrid_case::{CopyBy, HybridCase};
use crate::interleaved::{InterleavedLoad, rates, ratio};
use crate::measure::median;
use crate::questions::Experiment;
use std::time::Duration;
use telpher_device::{Config, ModelOptions, Runner, WqMode};
use telpher_mover::{Mover, Policy, Split, Threshold};
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "cold",
    question: "How long does the calling thread need for 64 KiB of uncached data that a device on a free core shares?",
    cores: 2,
    weight: 1.5,
    measure,
};

/// Most time of the calling thread, by that of a copy by the CPU. Source: goal of `telpher offload`.
const SHARED: f64 = 0.65;

/// Starts a device whose engine thread runs on the second core; returns a mover that shares copies with it.
fn mover(machine: &Machine) -> Result<Mover, BenchError> {
    let options =
        ModelOptions::default().with_config(Config::single(WqMode::Shared, 64, 1)).with_runner(Runner::Threaded);
    let device = start_beside(options, 1, "model:spr", machine)?;
    let split = Split { above: LONG as u64, hybrid: true, ..Split::default() };
    let policy = Policy { split, threshold: Threshold::all(LONG as u64), ..Policy::default() };
    Ok(Mover::new([device.portal("wq0.0")?], policy))
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    // Source and destination together are larger than the caches, for one half too.
    let room = 2 * machine.cold_bytes();
    let one = |copy_by| InterleavedLoad {
        states: vec![HybridCase::new(&EXPERIMENT, copy_by, LONG, room)],
        step: &HybridCase::copy,
    };
    let halves = InterleavedLoad { states: HybridCase::halves(&EXPERIMENT, LONG, room), step: &HybridCase::copy };
    let mut sides = [one(CopyBy::By(mover(machine)?)), one(CopyBy::Alone), halves];
    let seen = rates(machine, time, &mut sides)?;
    sides.iter().flat_map(|side| &side.states).try_for_each(HybridCase::check)?;
    let per_copy = |side: usize| units::time(1e9 * LONG as f64 / median(&mut seen[side].clone()));
    let (shared, halves) = (1.0 / ratio(&seen[0], &seen[1]), 1.0 / ratio(&seen[2], &seen[1]));
    Ok(vec![
        Row::new(
            "64 KiB of uncached data, by the modelled device and the calling thread: its time by that of a CPU copy",
            shared,
            "of the time",
            Some(Goal::AtMost(SHARED)),
            format!(
                "{} by the mover and an engine thread, {} by memcpy; telpher offload has no such thread",
                per_copy(0),
                per_copy(1)
            ),
        ),
        Row::new(
            "64 KiB of uncached data, by two plain threads with a half each: their time by that of a CPU copy",
            halves,
            "of the time",
            None,
            format!("{}, the same turns; no device that is a thread can be faster", per_copy(2)),
        ),
    ])
}
