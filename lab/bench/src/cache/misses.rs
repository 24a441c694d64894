//! The cost of an access to a block that is not in the cache, without the copy that the access starts.

use super::sample_set::{BLOCK, SampleSet};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::measure::{median, to_ns};
use crate::questions::Experiment;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};
use telpher_cache::Priority;
use telpher_device::{Config, ModelDevice, ModelOptions, WqMode};
use telpher_mem::{Pool, PoolBuffer, PoolOptions};
use telpher_mover::{Mover, Policy, Threshold};
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "misses",
    question: "What does a miss cost in addition to the copy?",
    cores: 1,
    weight: 1.5,
    measure,
};

/// Upper limit in nanoseconds of an access that misses and of the drop of the handle, without the copy. Source: goal
/// of the cache.
const MISS: f64 = 1000.0;
/// Blocks in a turn. They, the cache's copies and the bare copies fit into the second-level cache of most cores, so
/// memory speed does not dominate.
const BLOCKS: usize = 64;
/// Bytes of a block that a device copies.
const LARGE: usize = 64 << 10;
/// Number of large blocks in a turn, for the same reason.
const LARGE_BLOCKS: usize = 4;
/// Blocks in a turn of the eviction case: more than the cache can hold, so it must search for blocks to evict.
const MORE: usize = 1024;
/// Minimum number of turns, even if the time is over.
const FEWEST: usize = 5;

/// One kind of access, and the copy that it contains.
struct AccessKind {
    shelf: SampleSet,
    /// Destinations of the bare copies.
    pieces: Vec<PoolBuffer>,
    /// The access to one block.
    step: fn(&SampleSet, usize) -> Result<(), BenchError>,
    /// Whether the cache is emptied before each turn.
    clears: bool,
    /// Words for what makes the copies (the CPU or the device).
    by: &'static str,
    /// Nanoseconds per access and per bare copy, one pair per turn.
    seen: Vec<(f64, f64)>,
}

impl AccessKind {
    /// Creates `blocks` blocks of `block` bytes and a cache for `room` of them. The cache is emptied before each turn
    /// if it has room for all.
    fn new(
        (mover, by): (Mover, &'static str),
        (block, blocks, room): (usize, usize, usize),
        step: fn(&SampleSet, usize) -> Result<(), BenchError>,
    ) -> Result<Self, BenchError> {
        let shelf = SampleSet::empty(mover, block, blocks, room)?;
        let pool = Pool::new(PoolOptions::new(blocks * block))?;
        let pieces = (0..blocks).map(|_| pool.obtain(block).expect("as much as there is")).collect();
        Ok(AccessKind { shelf, pieces, step, clears: room >= blocks, by, seen: Vec::new() })
    }

    /// Measures accesses and bare copies after a pass that is not measured: whichever came first would otherwise read
    /// the blocks from memory, and the other from the core's cache.
    fn turn(&mut self) -> Result<(), BenchError> {
        let _ = self.pass()?;
        let seen = self.pass()?;
        self.seen.push(seen);
        Ok(())
    }

    /// Makes all accesses, then all bare copies; returns the nanoseconds of each.
    fn pass(&mut self) -> Result<(f64, f64), BenchError> {
        if self.clears {
            self.shelf.cache.clear();
        }
        let each = |begun: Instant, blocks: usize| to_ns(begun.elapsed()) / blocks as f64;
        let blocks = self.shelf.blocks();
        let start = Instant::now();
        for number in 0..blocks {
            (self.step)(&self.shelf, number)?;
        }
        let steps = each(start, blocks);
        let start = Instant::now();
        for (number, piece) in self.pieces.iter_mut().enumerate() {
            let source = &self.shelf.source[self.shelf.range(number)];
            EXPERIMENT.done(self.shelf.cache.mover().copy_slices(source, black_box(piece)))?;
        }
        Ok((steps, each(start, blocks)))
    }

    fn row(&self, what: impl Into<String>, goal: Option<Goal>) -> Row {
        let of = |value: fn(&(f64, f64)) -> f64| median(&mut self.seen.iter().map(value).collect::<Vec<_>>());
        let [whole, copy, more] = [of(|pair| pair.0), of(|pair| pair.1), of(|pair| pair.0 - pair.1)];
        let block = units::size(self.shelf.block as u64);
        let by = self.by;
        let how = format!(
            "{} in all, a copy of {block} {by} alone {}; {} turns",
            units::time(whole),
            units::time(copy),
            self.seen.len()
        );
        Row::new(what.into(), more, "ns", goal, how)
    }
}

fn access(shelf: &SampleSet, number: usize) -> Result<(), BenchError> {
    black_box(shelf.access(number)?.location().bytes().as_ptr());
    Ok(())
}

fn wait(shelf: &SampleSet, number: usize) -> Result<(), BenchError> {
    black_box(shelf.access(number)?.wait().bytes().as_ptr());
    Ok(())
}

fn ahead(shelf: &SampleSet, number: usize) -> Result<(), BenchError> {
    let _ = shelf.cache.prefetch(&shelf.source, shelf.range(number), Priority::default())?;
    access(shelf, number)
}

fn peek(shelf: &SampleSet, number: usize) -> Result<(), BenchError> {
    black_box(shelf.cache.peek(&shelf.source, shelf.range(number))?.is_some());
    Ok(())
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let device = ModelDevice::start(ModelOptions::default().with_config(Config::single(WqMode::Dedicated, 64, 1)))
        .map_err(|source| BenchError::Start { name: "model:spr".into(), source })?;
    let policy = Policy { threshold: Threshold::all(0), ..Policy::default() };
    let device = Mover::new([device.portal("wq0.0")?], policy);
    let cpu = || (Mover::cpu(), "by the CPU");
    let all = (BLOCK, BLOCKS, BLOCKS);
    let mut sides = [
        AccessKind::new(cpu(), all, access)?,
        AccessKind::new(cpu(), (BLOCK, MORE, MORE / 2), access)?,
        AccessKind::new((device, "by the modelled device, inline"), (LARGE, LARGE_BLOCKS, LARGE_BLOCKS), wait)?,
        AccessKind::new(cpu(), all, ahead)?,
    ];
    let mut weak = AccessKind::new(cpu(), all, peek)?;
    let started = Instant::now();
    let work = || -> Result<(), BenchError> {
        let _ = telpher_os::run_on(&[machine.core(0)]);
        // One turn is not measured: it maps pages, warms the caches and grows the tables.
        for side in sides.iter_mut().chain([&mut weak]) {
            side.turn()?;
            side.seen.clear();
        }
        while weak.seen.len() < FEWEST || started.elapsed() < time {
            for side in sides.iter_mut().chain([&mut weak]) {
                side.turn()?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| scope.spawn(work).join().expect("measurements report their errors"))?;
    for side in &sides {
        if side.shelf.check(&EXPERIMENT)? == 0 {
            return Err(BenchError::Wrong { op: "access".into(), route: EXPERIMENT.name.into() });
        }
    }
    // Only the times of the accesses count here: none of them copies.
    let mut none: Vec<f64> = weak.seen.iter().map(|pair| pair.0).collect();
    let [miss, evicting, waited, fetched] = &sides;
    let goal = Some(Goal::AtMost(MISS));
    Ok(vec![
        miss.row("access and location of an absent block, beyond its copy", goal),
        evicting.row("the same if another block has to go for it", goal),
        waited.row("access and wait, copied by a device, beyond copying and waiting without a cache", goal),
        fetched.row("prefetch, then access and location, beyond the copy", None),
        Row::new("peek (weak access) of an absent block", median(&mut none), "ns", None, "nothing is copied"),
    ])
}
