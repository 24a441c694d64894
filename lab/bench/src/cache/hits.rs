//! The cost of an access to a block that is in the cache.

use super::interleaved::{InterleavedLoad, rates};
use super::sample_set::{Reader, SampleSet};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Experiment;
use std::time::Duration;
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment =
    Experiment { name: "hits", question: "What does a hit cost one thread?", cores: 1, weight: 1.0, measure };

/// Upper limit in nanoseconds of an access, a call of `location` and the drop of the handle. Source: goal of the
/// cache.
const HIT: f64 = 60.0;
/// Numbers of entries: all data and metadata within the first-level cache; the usual case; beyond the second-level
/// cache of most cores.
const FEW: usize = 16;
const SOME: usize = 1024;
const MANY: usize = 16_384;

type Step<'a> = dyn Fn(&mut Reader<'a>) -> Result<u64, BenchError> + Sync;

/// One thread that accesses all blocks of a shelf.
fn side<'a>(shelf: &'a SampleSet, step: &'a Step<'a>) -> InterleavedLoad<'a, Reader<'a>> {
    InterleavedLoad { states: vec![Reader::new(shelf, 0, shelf.blocks())], step }
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let full = |blocks| SampleSet::full(&EXPERIMENT, blocks);
    let (few, some, many) = (full(FEW)?, full(SOME)?, full(MANY)?);
    let mut sides = [
        side(&some, &Reader::access),
        side(&few, &Reader::access),
        side(&many, &Reader::access),
        side(&some, &Reader::part),
        side(&some, &Reader::peek),
    ];
    let seen = rates(machine, time, &mut sides)?;
    let what = |blocks: usize| format!("access and location of a present block, one of {blocks}");
    let names = [
        (what(SOME), Some(Goal::AtMost(HIT))),
        (what(FEW), Some(Goal::AtMost(HIT))),
        (what(MANY), None),
        (format!("the same of 64 B in the middle of a block, one of {SOME}"), None),
        (format!("peek (weak access) and location, one of {SOME}"), None),
    ];
    let rows = names.into_iter().zip(seen).map(|((what, goal), mut seen)| {
        let how = format!("in no order, the handle given back each time; {} turns", seen.len());
        Row::new(what, 1e9 / median(&mut seen), "ns", goal, how)
    });
    Ok(rows.collect())
}
