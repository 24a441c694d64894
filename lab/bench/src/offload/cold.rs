//! Long copies of data in memory, shared by the modelled device on a free core and the waiting thread. The mover makes
//! them; the library of `telpher offload` starts no engine thread in a program.

use super::program::LONG;
use crate::BenchError;
use crate::buffers::{Arena, Places, Temperature};
use crate::devices::start_beside;
use crate::ffi;
use crate::goal::{Goal, Row};
use crate::interleaved::{Contestant, rates, ratio};
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

/// How 64 KiB are copied, and the buffers.
struct Copier {
    mover: Option<Mover>,
    arena: Arena,
    places: Places,
}

impl Copier {
    fn new(mover: Option<Mover>, machine: &Machine) -> Result<Copier, BenchError> {
        // Source and destination together are larger than the caches.
        let arena = Arena::new(usize::try_from(machine.cold_bytes() / 2).unwrap_or(usize::MAX))?;
        let places = arena.places(LONG, LONG, Temperature::Cold);
        Ok(Copier { mover, arena, places })
    }

    fn copy(&mut self) -> Result<u64, BenchError> {
        let (from, to) = self.arena.next(&mut self.places);
        match &self.mover {
            Some(mover) => EXPERIMENT.done(mover.copy_slices(from, to))?,
            None => ffi::memcpy(to, from),
        }
        Ok(1)
    }

    fn check(&self) -> Result<(), BenchError> {
        let (from, to) = self.arena.last(&self.places);
        EXPERIMENT.arrived(from, to)
    }
}

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
    let side =
        |mover| Ok::<_, BenchError>(Contestant { states: vec![Copier::new(mover, machine)?], step: &Copier::copy });
    let mut sides = [side(Some(mover(machine)?))?, side(None)?];
    let seen = rates(machine, time, &mut sides)?;
    sides.iter().flat_map(|side| &side.states).try_for_each(Copier::check)?;
    let per_copy = |side: usize| units::time(1e9 / median(&mut seen[side].clone()));
    Ok(vec![Row::new(
        "64 KiB of uncached data, by the modelled device and the calling thread: its time by that of a CPU copy",
        1.0 / ratio(&seen[0], &seen[1]),
        "of the time",
        Some(Goal::AtMost(SHARED)),
        format!(
            "{} by the mover with an engine thread on another core, {} by memcpy; telpher offload has no such thread",
            per_copy(0),
            per_copy(1)
        ),
    )])
}
