//! One copy shared between a device and the thread that waits for it, against one thread alone.
//!
//! The device's engine is a thread on a core of its own, the waiting thread has another: two cores do the work of one copy. What
//! they can reach at most is what two threads reach that copy a half each, and that is measured too: it is the memory's limit
//! where it is below twice one thread. Buffers take turns over more than the caches hold, as those of a program that moves bulk.

use super::Contest;
use super::turns::{Contestant, rates, ratio};
use crate::bench::BenchError;
use crate::bench::buffers::{fill_known, first_difference};
use crate::bench::machine::Machine;
use crate::bench::measure::median;
use crate::bench::row::{Goal, Row};
use crate::ffi;
use crate::report::units;
use std::thread;
use std::time::Duration;
use telpher_device::{Config, ModelDevice, ModelOptions, Runner, WqMode};
use telpher_mover::{Mover, Outcome, Policy, Split};

/// The contest.
pub(super) const CONTEST: Contest = Contest {
    name: "hybrid",
    question: "How much faster is a copy that a device and the waiting thread share than memcpy on one thread?",
    cores: 2,
    weight: 3.0,
    measure,
};

/// Least speed of a shared copy by that of one thread. Source: promise of the mover.
const SHARED: f64 = 1.5;
/// Part of what two threads reach that counts as the memory's limit.
const LIMIT: f64 = 0.9;
/// Bytes of one copy.
const SIZES: [usize; 4] = [1 << 20, 4 << 20, 16 << 20, 64 << 20];

/// Who copies, and the buffers that take turns.
struct Side {
    /// None for the plain memcpy.
    mover: Option<Mover>,
    /// The next to be copied is the last.
    pairs: std::collections::VecDeque<(Vec<u8>, Vec<u8>)>,
}

impl Side {
    fn new(mover: Option<&Mover>, bytes: usize, room: u64, seed: u64) -> Self {
        let count = (usize::try_from(room).unwrap_or(usize::MAX) / (2 * bytes)).max(1);
        let mut src = vec![0; bytes];
        fill_known(&mut src, seed);
        let pairs = (0..count).map(|_| (src.clone(), vec![0; bytes])).collect();
        Side { mover: mover.cloned(), pairs }
    }

    /// Copies one pair; how many bytes that were.
    fn copy(&mut self) -> Result<u64, BenchError> {
        let (src, mut dst) = self.pairs.pop_back().expect("the buffers came back");
        let bytes = src.len() as u64;
        let (result, src, dst) = match &self.mover {
            Some(mover) => mover.copy(src, dst).wait().into_parts(),
            None => {
                dst.copy_from_slice(&src);
                (Ok(Outcome::Done), src, dst)
            }
        };
        self.pairs.push_front((src, dst));
        match result {
            Ok(Outcome::Done) => Ok(bytes),
            Ok(_) => Err(BenchError::Wrong { op: "move".into(), route: CONTEST.name.into() }),
            Err(source) => Err(BenchError::Job { op: "move".into(), route: CONTEST.name.into(), source }),
        }
    }

    /// The pair copied last, and whether any is wrong.
    fn check(&self) -> Result<(), BenchError> {
        let (src, dst) = self.pairs.front().expect("the buffers came back");
        first_difference(dst, src).map_or(Ok(()), |at| {
            let (op, route) = ("move".into(), CONTEST.name.into());
            Err(BenchError::Mismatch { op, route, size: src.len() as u64, offset: at as u64 })
        })
    }
}

/// A device whose one engine has a thread on the second core; two policies over its one queue.
fn movers(machine: &Machine) -> Result<[Mover; 2], BenchError> {
    let options =
        ModelOptions::default().with_config(Config::single(WqMode::Shared, 64, 1)).with_runner(Runner::Threaded);
    // A thread inherits where it may run from who starts it.
    let started = thread::scope(|scope| {
        let starter = scope.spawn(|| {
            let _ = ffi::pin(&machine.engine_cores(1));
            ModelDevice::start(options)
        });
        starter.join().expect("starting a device does not panic")
    });
    let device = started.map_err(|source| BenchError::Start { name: "model:spr".into(), source })?;
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

/// The rows of one size.
fn at(machine: &Machine, time: Duration, bytes: usize, [alone, shared]: [&Mover; 2]) -> Result<[Row; 2], BenchError> {
    let room = machine.cold_bytes();
    let one = |mover| Contestant { states: vec![Side::new(mover, bytes, room, 1)], step: &Side::copy };
    let halves = (0..2).map(|seed| Side::new(None, bytes / 2, room / 2, seed)).collect();
    let mut sides = [one(Some(shared)), one(None), one(Some(alone)), Contestant { states: halves, step: &Side::copy }];
    let seen = rates(machine, time, &mut sides)?;
    sides.iter().flat_map(|side| &side.states).try_for_each(Side::check)?;
    let speed = |side: usize| units::rate(median(&mut seen[side].clone()));
    let (size, limit) = (units::size(bytes as u64), ratio(&seen[3], &seen[1]));
    // Where two threads do not reach it either, the memory is the limit.
    let goal = SHARED.min(LIMIT * limit);
    let how = format!(
        "cold buffers; {} shared, {} memcpy, {} device alone; two threads with a half each: {} ({limit:.2} of one)",
        speed(0),
        speed(1),
        speed(2),
        speed(3),
    );
    Ok([
        Row::new(
            format!("{size} copies, device and waiting thread: against memcpy on one thread"),
            ratio(&seen[0], &seen[1]),
            "of its speed",
            Some(Goal::AtLeast(goal)),
            how,
        ),
        Row::new(
            format!("{size} copies, device and waiting thread: against two threads with a half each"),
            ratio(&seen[0], &seen[3]),
            "of their speed",
            None,
            "the same turns",
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_have_a_share_and_a_wrong_byte_is_found() {
        let [_, shared] = movers(&Machine::read()).unwrap();
        let mut side = Side::new(Some(&shared), 4 << 20, 0, 1);
        assert_eq!(side.copy().unwrap(), 4 << 20);
        side.check().unwrap();
        side.pairs[0].1[1_234_567] ^= 1;
        assert!(matches!(side.check(), Err(BenchError::Mismatch { offset: 1_234_567, .. })));
    }
}
