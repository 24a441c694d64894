//! The state of the manager's thread, and what it does next.

use super::ManagerOptions;
use super::choice::Choice;
use crate::clock::{inverse_share, thread_cpu_time as cpu};
use crate::error::TierError;
use crate::heap::Heap;
use crate::heat::{Cost, HeatMap, Source};
use crate::policy::{Move, Policy};
use crate::stats::{Moved, Unmoved};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Decisions cost at most this fraction of a source's share. Source: chosen, so that two sources and the decisions stay
/// below 2 % of a core by default.
const PART: f64 = 0.7;
/// How often a paused manager checks whether to continue.
pub(super) const PAUSED: Duration = Duration::from_millis(50);
/// The period of a rate. Source: chosen.
const RATED: Duration = Duration::from_secs(1);

/// A source, and its cost.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) source: Box<dyn Source>,
    pub(super) cost: Cost,
    /// The part of it that is CPU time of this thread.
    here: Duration,
    due: Duration,
    /// NotTaken it no longer works.
    pub(super) failed: Option<String>,
}

impl Running {
    pub(super) fn new(source: Box<dyn Source>) -> Running {
        Running { source, cost: Cost::default(), here: Duration::ZERO, due: Duration::ZERO, failed: None }
    }

    /// Makes one step of the source.
    fn step(&mut self, now: Duration, heat: &mut HeatMap) {
        let start = cpu();
        match self.source.step(now, heat) {
            Ok(next) => self.due = now + next,
            Err(error) => self.failed = Some(telpher_os::chain(&error)),
        }
        self.here += cpu().saturating_sub(start);
        let (faults, waited) = self.source.faults();
        self.cost = Cost {
            cpu: self.here + self.source.elsewhere(),
            steps: self.cost.steps + 1,
            bytes: self.source.bytes(),
            faults,
            waited,
            lost: self.source.lost(),
        };
    }
}

/// Pages that moved, in all and in a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    pub(super) total: u64,
    /// Pages a second, over the latest complete period.
    pub(super) rate: f64,
    since: Duration,
    before: u64,
}

impl Rate {
    fn pass(&mut self, now: Duration) {
        let time = now.saturating_sub(self.since);
        if time >= RATED {
            self.rate = (self.total - self.before) as f64 / time.as_secs_f64();
            (self.since, self.before) = (now, self.total);
        }
    }
}

/// The state of a manager.
#[derive(Debug)]
pub(super) struct State {
    pub(super) heat: HeatMap,
    pub(super) sources: Vec<Running>,
    /// The sources that may replace these.
    pub(super) choice: Choice,
    pub(super) policy: Policy,
    moves: bool,
    pass: Duration,
    pass_due: Duration,
    /// The inverse of the fraction of a core that decisions may take.
    of_core: u32,
    pub(super) queue: VecDeque<Move>,
    pub(super) promoted: Rate,
    pub(super) demoted: Rate,
    pub(super) left: Unmoved,
    /// The cost of decisions and of moves.
    pub(super) deciding: Cost,
    pub(super) moving: Cost,
    /// When the present pause began, and the total of earlier pauses.
    paused: Option<Duration>,
    pauses: Duration,
    /// NotTaken the thread has ended.
    pub(super) failed: Option<String>,
}

impl State {
    pub(super) fn new(options: &ManagerOptions, sources: Vec<Box<dyn Source>>, choice: Choice) -> State {
        State {
            heat: HeatMap::new(),
            sources: sources.into_iter().map(Running::new).collect(),
            choice,
            policy: Policy::new(options.policy.clone()),
            moves: options.moves,
            pass: options.pass,
            of_core: inverse_share(options.share * PART),
            pass_due: Duration::ZERO,
            queue: VecDeque::new(),
            promoted: Rate::default(),
            demoted: Rate::default(),
            left: Unmoved::default(),
            deciding: Cost::default(),
            moving: Cost::default(),
            paused: None,
            pauses: Duration::ZERO,
            failed: None,
        }
    }

    /// Makes a step of each source that is due.
    pub(super) fn look(&mut self, now: Duration, heap: &Heap) {
        if self.deciding.steps == 0 {
            // Finds the memory to sample.
            self.heat.follow(heap);
        }
        if self.choice.consider(&mut self.sources, &self.heat, heap) {
            self.heat.hand_over();
        }
        for running in self.sources.iter_mut().filter(|running| running.failed.is_none() && running.due <= now) {
            running.step(now, &mut self.heat);
        }
    }

    /// Updates the map: which memory there is, on which tiers it is, and the advice.
    pub(super) fn follow(&mut self, heap: &Heap) -> io::Result<()> {
        self.heat.follow(heap);
        self.heat.refresh(heap)?;
        self.heat.apply(heap.inner.hints.take());
        Ok(())
    }

    /// Decides what moves, if that is due and no move is waiting.
    pub(super) fn decide(&mut self, now: Duration, heap: &Heap) {
        self.promoted.pass(now);
        self.demoted.pass(now);
        if now < self.pass_due || !self.queue.is_empty() {
            return;
        }
        let start = cpu();
        // If the page tables cannot be read now, nothing moves; the next decision tries again.
        if self.follow(heap).is_ok() {
            let moves = self.policy.decide(now, &self.heat.strips());
            if self.moves {
                self.queue.extend(moves);
            }
        }
        let cost = cpu().saturating_sub(start);
        self.deciding.cpu += cost;
        self.deciding.steps += 1;
        self.deciding.bytes = self.heat.bytes();
        self.pass_due = now + self.pass.max(cost * self.of_core);
    }

    /// Returns the next move.
    pub(super) fn next_move(&mut self) -> Option<Move> {
        self.queue.pop_front()
    }

    /// Notes what became of a move.
    pub(super) fn moved(&mut self, now: Duration, what: &Move, moved: Result<Moved, TierError>, cost: Duration) {
        self.moving.cpu += cost;
        self.moving.steps += 1;
        // A failed move moves nothing; the next decision tries again.
        let moved = moved.unwrap_or_default();
        if moved.left.held > 0 {
            // All pages are held, so the other moves would fail too: they are decided anew.
            self.queue.clear();
        }
        let rate = if what.is_promotion() { &mut self.promoted } else { &mut self.demoted };
        rate.total += moved.pages;
        self.left += moved.left;
        if moved.left.held == 0 {
            self.policy.done(now, what, moved.pages);
        }
    }

    /// Returns when something is due.
    pub(super) fn due(&self) -> Duration {
        if !self.queue.is_empty() {
            return Duration::ZERO;
        }
        let sources = self.sources.iter().filter(|running| running.failed.is_none()).map(|running| running.due);
        sources.fold(self.pass_due, Duration::min)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    pub(super) fn pause(&mut self, now: Duration) {
        if self.paused.is_none() {
            self.paused = Some(now);
            self.rest();
        }
    }

    pub(super) fn resume(&mut self, now: Duration) {
        if let Some(since) = self.paused.take() {
            self.pauses += now.saturating_sub(since);
        }
    }

    /// Returns the time without pauses.
    pub(super) fn awake(&self, now: Duration) -> Duration {
        let pause = self.paused.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        now.saturating_sub(self.pauses + pause)
    }

    /// Ends everything that is under way.
    pub(super) fn rest(&mut self) {
        self.sources.iter_mut().for_each(|running| running.source.rest());
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heat::DamonError;
    use rustix::io::Errno;

    /// A source that always fails.
    #[derive(Debug)]
    struct Refused;

    impl Source for Refused {
        fn name(&self) -> &'static str {
            "refused"
        }

        fn sees(&self) -> &'static str {
            "nothing"
        }

        fn step(&mut self, _: Duration, _: &mut HeatMap) -> io::Result<Duration> {
            Err(io::Error::other(DamonError::Forbidden(Errno::PERM.into())))
        }
    }

    #[test]
    fn the_error_of_a_failed_source_includes_the_systems_error() {
        let mut running = Running::new(Box::new(Refused));
        running.step(Duration::ZERO, &mut HeatMap::new());
        let why = running.failed.unwrap();
        assert!(why.contains("run as root") && why.contains(&io::Error::from(Errno::PERM).to_string()), "{why}");
    }
}
