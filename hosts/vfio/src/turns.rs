//! Which function executes next: turns at a number of places, shared by weight.
//!
//! Each function has a thread that steps its engines, and takes a turn at the pool before it does. A function's clock
//! advances by the work of its turns, divided by its weight. A free place goes to the waiting function whose clock is
//! furthest behind. A function that was idle joins at the time of the function that was served last, so that it does
//! not catch up on work that it did not have. Algorithm: start-time fair queueing (Goyal, Vin, Cheng, 1996).

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;

/// The largest weight of a function.
pub(crate) const MOST_WEIGHT: u32 = 1000;

/// Clocks advance by work times this, divided by the weight.
const SCALE: u128 = MOST_WEIGHT as u128 * 1000;

/// What a function does at the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    /// It has nothing to execute.
    #[default]
    Idle,
    /// It waits for a place.
    Waits,
    /// It was given a place.
    Executes,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    weight: u128,
    /// 2^64 bytes of work at the smallest weight are far from its end.
    clock: u128,
    phase: Phase,
}

/// The decisions, without threads.
#[derive(Debug)]
struct Schedule {
    free: usize,
    /// The clock of the function that was given a place last.
    now: u128,
    shares: Vec<Share>,
}

impl Schedule {
    fn new(places: usize, weights: &[u32]) -> Schedule {
        let share = |weight: &u32| Share { weight: u128::from((*weight).clamp(1, MOST_WEIGHT)), ..Share::default() };
        Schedule { free: places.max(1), now: 0, shares: weights.iter().map(share).collect() }
    }

    fn wait(&mut self, member: usize) {
        let share = &mut self.shares[member];
        if share.phase == Phase::Idle {
            share.clock = share.clock.max(self.now);
        }
        share.phase = Phase::Waits;
    }

    fn charge(&mut self, member: usize, work: u64) {
        let share = &mut self.shares[member];
        share.clock = share.clock.saturating_add(u128::from(work) * SCALE / share.weight);
    }

    /// True if another function that waits is further behind.
    fn is_overtaken(&self, member: usize) -> bool {
        let clock = self.shares[member].clock;
        self.shares.iter().any(|share| share.phase == Phase::Waits && share.clock < clock)
    }

    fn leave(&mut self, member: usize) {
        self.shares[member].phase = Phase::Idle;
        self.free += 1;
    }

    /// Gives a free place to the function that is furthest behind, if one waits.
    fn grant(&mut self) -> Option<usize> {
        let waiting = self.shares.iter().enumerate().filter(|(_, share)| share.phase == Phase::Waits);
        let (next, share) = waiting.filter(|_| self.free > 0).min_by_key(|(_, share)| share.clock)?;
        self.now = self.now.max(share.clock);
        self.shares[next].phase = Phase::Executes;
        self.free -= 1;
        Some(next)
    }
}

/// Places for threads that execute, shared by the functions of one or of several virtual machines.
#[derive(Debug)]
pub(crate) struct EnginePool {
    schedule: Mutex<Schedule>,
    /// By function: notified when it gets a place.
    granted: Vec<Condvar>,
}

impl EnginePool {
    /// Creates a pool for as many functions as there are weights.
    pub(crate) fn new(places: usize, weights: &[u32]) -> EnginePool {
        let granted = weights.iter().map(|_| Condvar::new()).collect();
        EnginePool { schedule: Mutex::new(Schedule::new(places, weights)), granted }
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grant_all(&self, schedule: &mut Schedule) {
        while let Some(next) = schedule.grant() {
            self.granted[next].notify_one();
        }
    }

    /// Waits for a place.
    pub(crate) fn take(&self, member: usize) {
        let mut schedule = self.lock();
        schedule.wait(member);
        self.grant_all(&mut schedule);
        self.until_granted(schedule, member);
    }

    /// Takes a place if one is free and no function waits for it.
    pub(crate) fn try_take(&self, member: usize) -> bool {
        let mut schedule = self.lock();
        if schedule.free == 0 || schedule.shares.iter().any(|share| share.phase == Phase::Waits) {
            return false;
        }
        schedule.wait(member);
        schedule.grant() == Some(member)
    }

    fn until_granted(&self, mut schedule: MutexGuard<'_, Schedule>, member: usize) {
        while schedule.shares[member].phase == Phase::Waits {
            schedule = self.granted[member].wait(schedule).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Accounts for work, and lets functions that are further behind go first.
    pub(crate) fn next_turn(&self, member: usize, work: u64) {
        let mut schedule = self.lock();
        schedule.charge(member, work);
        if schedule.is_overtaken(member) {
            schedule.leave(member);
            schedule.shares[member].phase = Phase::Waits;
            self.grant_all(&mut schedule);
            self.until_granted(schedule, member);
        }
    }

    /// Accounts for work, and gives the place back.
    pub(crate) fn leave(&self, member: usize, work: u64) {
        let mut schedule = self.lock();
        schedule.charge(member, work);
        schedule.leave(member);
        self.grant_all(&mut schedule);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Work of each function after this many turns, if all always have some; `piece` is the work of a turn by function.
    fn shares(places: usize, weights: &[u32], piece: &[u64], turns: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(places, weights);
        let mut work = vec![0; weights.len()];
        (0..weights.len()).for_each(|member| schedule.wait(member));
        let mut executing = std::collections::VecDeque::new();
        executing.extend(std::iter::from_fn(|| schedule.grant()));
        for _ in 0..turns {
            let member = executing.pop_front().unwrap();
            work[member] += piece[member];
            schedule.charge(member, piece[member]);
            if schedule.is_overtaken(member) {
                schedule.leave(member);
                schedule.shares[member].phase = Phase::Waits;
                executing.extend(std::iter::from_fn(|| schedule.grant()));
            } else {
                executing.push_back(member);
            }
        }
        work
    }

    #[test]
    fn work_follows_the_weights_whatever_a_turn_costs() {
        for (weights, piece) in [([1, 1], [1 << 20, 512]), ([3, 1], [4096, 4096]), ([1, 10], [100_000, 7000])] {
            let work = shares(1, &weights, &piece, 100_000);
            #[allow(clippy::cast_precision_loss, reason = "a ratio")]
            let ratio = work[0] as f64 * f64::from(weights[1]) / (work[1] as f64 * f64::from(weights[0]));
            assert!((0.95..1.05).contains(&ratio), "{weights:?} {piece:?}: {work:?}");
        }
    }

    #[test]
    fn shares_stay_fair_after_any_work() {
        let mut schedule = Schedule::new(1, &[1, 1]);
        (0..2).for_each(|member| schedule.charge(member, u64::MAX));
        (0..2).for_each(|member| schedule.wait(member));
        let first = schedule.grant().unwrap();
        schedule.charge(first, 1);
        assert!(schedule.is_overtaken(first));
    }

    #[test]
    fn a_function_that_was_idle_does_not_catch_up() {
        let mut schedule = Schedule::new(1, &[1, 1]);
        schedule.wait(0);
        assert_eq!(schedule.grant(), Some(0));
        for _ in 0..100 {
            schedule.charge(0, 1000);
        }
        schedule.leave(0);
        schedule.wait(0);
        assert_eq!(schedule.grant(), Some(0));
        schedule.wait(1);
        assert_eq!(schedule.grant(), None, "the place is taken");
        assert!(schedule.shares[1].clock >= schedule.now && !schedule.is_overtaken(0));
    }

    #[test]
    fn no_more_functions_execute_than_there_are_places() {
        let pool = EnginePool::new(2, &[1, 2, 3, 4]);
        let (executing, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for member in 0..4 {
                let (pool, executing, most) = (&pool, &executing, &most);
                scope.spawn(move || {
                    for turn in 0..200 {
                        pool.take(member);
                        for _ in 0..turn % 4 {
                            most.fetch_max(executing.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            executing.fetch_sub(1, Ordering::SeqCst);
                            pool.next_turn(member, 1000);
                        }
                        pool.leave(member, 1);
                        if pool.try_take(member) {
                            pool.leave(member, 1);
                        }
                    }
                });
            }
        });
        assert!(most.into_inner() <= 2);
        let schedule = pool.lock();
        assert!(schedule.free == 2 && schedule.shares.iter().all(|share| share.phase == Phase::Idle));
    }
}
