//! The memory of a cache entry besides its copy.

use super::sample_set::{BLOCK, SampleSet};
use crate::BenchError;
use crate::ffi;
use crate::goal::{Goal, Row};
use crate::questions::Experiment;
use std::time::Duration;
use telpher_mover::Mover;
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "memory",
    question: "How much memory does an entry take besides its copy?",
    cores: 1,
    weight: 0.2,
    measure,
};

/// Upper limit in bytes. Source: goal of the cache.
const ENTRY: f64 = 128.0;
/// Numbers of entries.
const COUNTS: [usize; 3] = [1024, 16_384, 65_536];

fn measure(_: &Machine, _: Duration) -> Result<Vec<Row>, BenchError> {
    COUNTS.into_iter().map(with).collect()
}

/// Measures a cache with `blocks` entries.
fn with(blocks: usize) -> Result<Row, BenchError> {
    // The blocks are small because only the memory besides them is counted.
    let shelf = SampleSet::empty(Mover::cpu(), BLOCK / 8, blocks, blocks)?;
    let held = || ffi::allocated_bytes() as f64;
    let before = held();
    for number in 0..blocks {
        shelf.access(number)?.wait_copy();
    }
    let measured = (held() - before) / blocks as f64;
    if shelf.check(&EXPERIMENT)? != blocks {
        return Err(BenchError::Wrong { op: "access".into(), route: EXPERIMENT.name.into() });
    }
    let how = "what the C library's allocator handed out meanwhile, its own words and the table's free places \
               included; sources are Arc<[u8]>";
    Ok(Row::new(format!("memory of an entry, one of {blocks}"), measured, "B", Some(Goal::AtMost(ENTRY)), how))
}
