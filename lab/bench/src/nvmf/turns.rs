//! Turns of the compared sides of a target.

use super::bare::BareLoop;
use super::driver::Driver;
use super::target::RunningTarget;
use crate::BenchError;
use crate::measure::{median, to_ns};
use std::time::{Duration, Instant};

/// Target number of turns of each side.
const TURNS: u32 = 15;
/// Minimum number of turns, even if the time is over.
const FEWEST: usize = 3;
/// Shortest turn: hundreds of commands.
const SHORTEST: Duration = Duration::from_millis(20);

/// A thread whose CPU time is measured.
pub(super) trait Served {
    /// The CPU time that it has used.
    fn cpu(&self) -> Duration;
    /// The ticks of each digest since the last call.
    fn digest_ticks(&self) -> Vec<u64>;
}

impl Served for RunningTarget {
    fn cpu(&self) -> Duration {
        RunningTarget::cpu(self)
    }

    fn digest_ticks(&self) -> Vec<u64> {
        self.take_digest_ticks()
    }
}

impl Served for BareLoop {
    fn cpu(&self) -> Duration {
        BareLoop::cpu(self)
    }

    fn digest_ticks(&self) -> Vec<u64> {
        Vec::new()
    }
}

/// What one turn has found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// Nanoseconds of the target's CPU time for one command.
    pub(super) cpu_ns: f64,
    /// Commands per second.
    pub(super) iops: f64,
    /// Ticks of one digest, the median; `NaN` without digests. The mean would have the time in which the thread did not
    /// run.
    pub(super) digest_ticks: f64,
}

/// A side: a host, and the thread that serves it.
pub(super) struct ServedHost<'a> {
    pub(super) driver: Driver,
    pub(super) served: &'a dyn Served,
}

impl ServedHost<'_> {
    fn turn(&mut self, time: Duration) -> Result<Turn, BenchError> {
        self.served.digest_ticks();
        let (cpu, begin) = (self.served.cpu(), Instant::now());
        let count = self.driver.run(time)? as f64;
        let (cpu, elapsed) = (self.served.cpu().saturating_sub(cpu), begin.elapsed());
        Ok(Turn {
            cpu_ns: to_ns(cpu) / count,
            iops: count / elapsed.as_secs_f64(),
            digest_ticks: median(&mut self.served.digest_ticks().iter().map(|ticks| *ticks as f64).collect::<Vec<_>>()),
        })
    }
}

/// Lets all sides work in turns, in rotating order, for about `time`. Returns the turns of each side.
pub(super) fn take(sides: &mut [ServedHost<'_>], time: Duration) -> Result<Vec<Vec<Turn>>, BenchError> {
    let count = sides.len();
    let slice = (time / (u32::try_from(count).unwrap_or(u32::MAX) * TURNS)).max(SHORTEST);
    for side in &mut *sides {
        side.turn(SHORTEST)?;
    }
    let mut turns = vec![Vec::new(); count];
    let begin = Instant::now();
    while turns[0].len() < FEWEST || begin.elapsed() < time {
        let first = turns[0].len();
        for place in 0..count {
            let index = (first + place) % count;
            turns[index].push(sides[index].turn(slice)?);
        }
    }
    Ok(turns)
}

/// One number of each turn.
pub(super) fn each(turns: &[Turn], number: fn(&Turn) -> f64) -> Vec<f64> {
    turns.iter().map(number).collect()
}
