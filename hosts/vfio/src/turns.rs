//! Which function executes next: turns at a number of places, shared by weight.
//!
//! Each function has a thread that steps its engines, and takes a turn at the pool before it does. A function's clock
//! advances by the work of its turns, divided by its weight. A free place goes to the waiting function whose clock is
//! furthest behind. A function that was idle joins at the time of the function that was served last, so that it does
//! not catch up on work that it did not have. Algorithm: start-time fair queueing (Goyal, Vin, Cheng, 1996).
//!
//! A function with a limit of bandwidth gets no place before its earlier work, at that bandwidth, would be over.

use crate::sync::{Condvar, Mutex, MutexGuard, clock_ns};
use std::sync::PoisonError;
use std::time::Duration;

/// The largest weight of a function.
pub(crate) const MOST_WEIGHT: u32 = 1000;

/// Clocks advance by work times this, divided by the weight.
const SCALE: u128 = MOST_WEIGHT as u128 * 1000;

/// Time that a function with a limit may make up for when it had less work. Source: chosen; some turns.
const BURST_NS: u64 = 10_000_000;

/// What a function may have of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allowance {
    /// Its share of the places, relative to the others'.
    pub(crate) weight: u32,
    /// Work a second, in bytes; `None` for no limit.
    pub(crate) bandwidth: Option<u64>,
}

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
    bandwidth: Option<u64>,
    /// When its limit lets it have the next turn.
    from_ns: u64,
}

impl Share {
    /// True if it waits, and its limit lets it have a turn.
    fn is_due(&self, now_ns: u64) -> bool {
        self.phase == Phase::Waits && self.from_ns <= now_ns
    }
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
    fn new(places: usize, allowances: &[Allowance]) -> Schedule {
        let share = |allowance: &Allowance| Share {
            weight: u128::from(allowance.weight.clamp(1, MOST_WEIGHT)),
            bandwidth: allowance.bandwidth,
            ..Share::default()
        };
        Schedule { free: places.max(1), now: 0, shares: allowances.iter().map(share).collect() }
    }

    fn wait(&mut self, member: usize) {
        let share = &mut self.shares[member];
        if share.phase == Phase::Idle {
            share.clock = share.clock.max(self.now);
        }
        share.phase = Phase::Waits;
    }

    fn charge(&mut self, member: usize, work: u64, now_ns: u64) {
        let share = &mut self.shares[member];
        share.clock = share.clock.saturating_add(u128::from(work) * SCALE / share.weight);
        if let Some(bandwidth) = share.bandwidth {
            let takes = u128::from(work) * 1_000_000_000 / u128::from(bandwidth.max(1));
            let from_ns = share.from_ns.max(now_ns.saturating_sub(BURST_NS));
            share.from_ns = from_ns.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
        }
    }

    /// True if another function that waits is further behind, or the function's limit is reached.
    fn must_leave(&self, member: usize, now_ns: u64) -> bool {
        let Share { clock, from_ns, .. } = self.shares[member];
        from_ns > now_ns || self.shares.iter().any(|share| share.is_due(now_ns) && share.clock < clock)
    }

    /// How long its limit keeps a function waiting, if it does.
    fn limited_for(&self, member: usize, now_ns: u64) -> Option<Duration> {
        let wait = self.shares[member].from_ns.saturating_sub(now_ns);
        (wait > 0).then(|| Duration::from_nanos(wait))
    }

    fn leave(&mut self, member: usize) {
        self.shares[member].phase = Phase::Idle;
        self.free += 1;
    }

    /// Gives a free place to the function that is furthest behind, if one waits.
    fn grant(&mut self, now_ns: u64) -> Option<usize> {
        let waiting = self.shares.iter().enumerate().filter(|(_, share)| share.is_due(now_ns));
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
    /// Creates a pool for as many functions as there are allowances.
    pub(crate) fn new(places: usize, allowances: &[Allowance]) -> EnginePool {
        let granted = allowances.iter().map(|_| Condvar::new()).collect();
        EnginePool { schedule: Mutex::new(Schedule::new(places, allowances)), granted }
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grant_all(&self, schedule: &mut Schedule, now_ns: u64) {
        while let Some(next) = schedule.grant(now_ns) {
            self.granted[next].notify_one();
        }
    }

    /// Waits for a place.
    pub(crate) fn take(&self, member: usize) {
        let mut schedule = self.lock();
        schedule.wait(member);
        self.until_granted(schedule, member);
    }

    /// Takes a place if one is free and no function waits for it.
    pub(crate) fn try_take(&self, member: usize) -> bool {
        let (mut schedule, now_ns) = (self.lock(), clock_ns());
        let is_limited = schedule.limited_for(member, now_ns).is_some();
        if is_limited || schedule.free == 0 || schedule.shares.iter().any(|share| share.is_due(now_ns)) {
            return false;
        }
        schedule.wait(member);
        schedule.grant(now_ns) == Some(member)
    }

    fn until_granted(&self, mut schedule: MutexGuard<'_, Schedule>, member: usize) {
        loop {
            // At one time: a function whose limit has just ended must not wait for a place that is free.
            let now_ns = clock_ns();
            self.grant_all(&mut schedule, now_ns);
            if schedule.shares[member].phase != Phase::Waits {
                return;
            }
            let granted = &self.granted[member];
            schedule = match schedule.limited_for(member, now_ns) {
                None => granted.wait(schedule).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => granted.wait_timeout(schedule, limit).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Lifts the limit of a function that is about to end, so that its thread does not wait for it.
    pub(crate) fn lift_limit(&self, member: usize) {
        let mut schedule = self.lock();
        let share = &mut schedule.shares[member];
        (share.bandwidth, share.from_ns) = (None, 0);
        self.granted[member].notify_one();
    }

    /// Accounts for work, and lets functions that are further behind go first.
    pub(crate) fn next_turn(&self, member: usize, work: u64) {
        let (mut schedule, now_ns) = (self.lock(), clock_ns());
        schedule.charge(member, work, now_ns);
        if schedule.must_leave(member, now_ns) {
            schedule.leave(member);
            schedule.shares[member].phase = Phase::Waits;
            self.until_granted(schedule, member);
        }
    }

    /// Accounts for work, and gives the place back.
    pub(crate) fn leave(&self, member: usize, work: u64) {
        let (mut schedule, now_ns) = (self.lock(), clock_ns());
        schedule.charge(member, work, now_ns);
        schedule.leave(member);
        self.grant_all(&mut schedule, now_ns);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn unlimited(weights: &[u32]) -> Vec<Allowance> {
        weights.iter().map(|weight| Allowance { weight: *weight, bandwidth: None }).collect()
    }

    /// Work of each function after this many turns, if all always have some; `piece` is the work of a turn by function.
    fn shares(places: usize, weights: &[u32], piece: &[u64], turns: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(places, &unlimited(weights));
        let mut work = vec![0; weights.len()];
        (0..weights.len()).for_each(|member| schedule.wait(member));
        let mut executing = std::collections::VecDeque::new();
        executing.extend(std::iter::from_fn(|| schedule.grant(0)));
        for _ in 0..turns {
            let member = executing.pop_front().unwrap();
            work[member] += piece[member];
            schedule.charge(member, piece[member], 0);
            if schedule.must_leave(member, 0) {
                schedule.leave(member);
                schedule.shares[member].phase = Phase::Waits;
                executing.extend(std::iter::from_fn(|| schedule.grant(0)));
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
        let mut schedule = Schedule::new(1, &unlimited(&[1, 1]));
        (0..2).for_each(|member| schedule.charge(member, u64::MAX, 0));
        (0..2).for_each(|member| schedule.wait(member));
        let first = schedule.grant(0).unwrap();
        schedule.charge(first, 1, 0);
        assert!(schedule.must_leave(first, 0));
    }

    #[test]
    fn a_function_that_was_idle_does_not_catch_up() {
        let mut schedule = Schedule::new(1, &unlimited(&[1, 1]));
        schedule.wait(0);
        assert_eq!(schedule.grant(0), Some(0));
        for _ in 0..100 {
            schedule.charge(0, 1000, 0);
        }
        schedule.leave(0);
        schedule.wait(0);
        assert_eq!(schedule.grant(0), Some(0));
        schedule.wait(1);
        assert_eq!(schedule.grant(0), None, "the place is taken");
        assert!(schedule.shares[1].clock >= schedule.now && !schedule.must_leave(0, 0));
    }

    /// Simulated time: two functions always have work, at one place that does a byte in a nanosecond.
    #[test]
    fn a_limited_function_has_its_bandwidth_and_leaves_the_rest() {
        let limited = Allowance { weight: 1, bandwidth: Some(200_000_000) };
        let mut schedule = Schedule::new(1, &[limited, Allowance { weight: 1, bandwidth: None }]);
        let (mut now_ns, mut work) = (0, [0_u64; 2]);
        (0..2).for_each(|member| schedule.wait(member));
        while now_ns < 1_000_000_000 {
            let member = schedule.grant(now_ns).expect("one of them has no limit");
            now_ns += 100_000;
            work[member] += 100_000;
            schedule.charge(member, 100_000, now_ns);
            schedule.leave(member);
            schedule.wait(member);
        }
        // The burst of the start comes on top.
        assert!((200_000_000..=203_000_000).contains(&work[0]), "{work:?}");
        assert!(work[1] >= 797_000_000, "{work:?}");
    }

    #[test]
    fn a_limit_lets_a_function_make_up_for_little_and_can_be_lifted() {
        let pool = EnginePool::new(1, &[Allowance { weight: 1, bandwidth: Some(1) }]);
        assert!(pool.try_take(0), "nothing was done before");
        pool.leave(0, 1 << 40);
        assert!(!pool.try_take(0));
        std::thread::scope(|scope| {
            // Waits for some thousand years if the limit is not lifted.
            let waits = scope.spawn(|| pool.take(0));
            pool.lift_limit(0);
            waits.join().unwrap();
        });
        pool.leave(0, 1 << 40);
        assert!(pool.try_take(0));
    }

    #[test]
    fn no_more_functions_execute_than_there_are_places() {
        let pool = EnginePool::new(2, &unlimited(&[1, 2, 3, 4]));
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
