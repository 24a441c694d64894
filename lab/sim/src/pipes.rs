//! Bandwidth sharing: transfers that use the same pipe share its rate.
//!
//! A *pipe* has a rate in bytes per second: a device's reads, a memory node's channels, a link. A *flow* is one
//! transfer through all pipes of its *class* at once; all flows of a class have the same rate. Rates are max-min fair:
//! all flows grow together until a pipe is full; the flows through it then stay, and the others continue to grow.
//! Algorithm: weighted progressive filling (Bertsekas and Gallager, *Data Networks*, §6.5.2); within a class the
//! virtual clock of fair queueing, so the cost of a start or an end does not depend on the number of flows. Of the
//! pipes that only one class uses, only the tightest can limit it, whatever flows: one comparison covers them all.
//!
//! Left out: the order of single cache lines, and bursts shorter than a transfer.

use crate::picos::Picos;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Grains in one byte: rates in grains per picosecond then resolve 1 kB/s.
const GRAIN_BITS: u32 = 30;

/// The rate of a class's flows is a level times the class's weight; levels are in 2^-12 grains per picosecond.
const LEVEL_BITS: u32 = 12;

/// The unit of a pipe's share in a class: bytes through the pipe for each byte of the transfer, in 1/256.
pub(crate) const WHOLE: u64 = 256;

/// The largest share of a pipe, so that sums over classes fit into 64 bits.
const MOST_SHARE: u64 = 1 << 34;

/// A pipe's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub(crate) struct Pipe(usize);

/// A class's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub(crate) struct Class(usize);

/// Converts a rate in bytes per second to grains per picosecond.
fn grains(bytes_per_second: u64) -> u64 {
    let grains = (u128::from(bytes_per_second) << GRAIN_BITS) / 1_000_000_000_000;
    u64::try_from(grains).unwrap_or(u64::MAX).max(1)
}

#[derive(Debug)]
struct PipeState {
    /// Grains per picosecond.
    capacity: u64,
    /// True while nothing may flow through it.
    held: bool,
    /// The number of classes that use it, and the last of them.
    classes: usize,
    class: usize,
    /// If several classes use it: its unused rate, during and after the computation of rates.
    left: u64,
    /// If several classes use it: the shares of the flows whose rate is not computed yet, times [`WHOLE`]; 0 when all
    /// are.
    load: u64,
}

impl PipeState {
    /// The rate that can flow through it.
    #[inline]
    fn room(&self) -> u64 {
        if self.held { 0 } else { self.capacity }
    }
}

#[derive(Debug)]
struct ClassState<T> {
    /// Pipes and their shares: first the `shared` pipes that other classes use, too, then its own.
    pipes: Vec<(usize, u64)>,
    shared: usize,
    /// Rate and share of the tightest of its own pipes.
    own: (u64, u64),
    /// Highest rate of one flow, in grains per picosecond; and the level at which it is reached.
    most: u64,
    ceiling: u64,
    /// Share of its flows at a full pipe, relative to flows of weight 1.
    weight: u64,
    /// Bytes of all flows started so far.
    carried: u128,
    /// Grains that a flow would have received if it had been active all the time.
    served: u128,
    /// During the computation of rates: the level at which it is limited, and its next rate.
    level: u64,
    next: u64,
    /// Grains per picosecond of each flow, and the time up to which `served` is valid.
    rate: u64,
    since: Picos,
    /// When its next flow ends at this rate.
    due: Picos,
    /// For each flow: the value of `served` at its end; its number; its owner.
    flows: BinaryHeap<Reverse<(u128, u64, T)>>,
}

/// All pipes of a machine, and their flows.
#[derive(Debug)]
pub(crate) struct Pipes<T> {
    pipes: Vec<PipeState>,
    classes: Vec<ClassState<T>>,
    /// Classes with flows; and, during the computation of rates, those whose rate is not known yet.
    busy: Vec<usize>,
    open: Vec<usize>,
    started: u64,
    /// When the next flow ends, and its class.
    due: Option<(Picos, usize)>,
}

impl<T: Ord + Copy> Default for Pipes<T> {
    fn default() -> Self {
        Pipes { pipes: Vec::new(), classes: Vec::new(), busy: Vec::new(), open: Vec::new(), started: 0, due: None }
    }
}

impl<T: Ord + Copy> Pipes<T> {
    /// Adds a pipe with a rate in bytes per second.
    pub(crate) fn pipe(&mut self, bytes_per_second: u64) -> Pipe {
        self.pipes.push(PipeState {
            capacity: grains(bytes_per_second),
            held: false,
            classes: 0,
            class: 0,
            left: grains(bytes_per_second),
            load: 0,
        });
        Pipe(self.pipes.len() - 1)
    }

    /// Adds a class: its pipes with its share in each (in 1/[`WHOLE`]), and the highest rate of one of its flows.
    pub(crate) fn class(&mut self, through: &[(Pipe, u64)], most_bytes_per_second: Option<u64>) -> Class {
        self.classes.push(ClassState {
            pipes: through.iter().map(|(pipe, share)| (pipe.0, (*share).min(MOST_SHARE))).collect(),
            shared: 0,
            own: UNLIMITED,
            most: most_bytes_per_second.map_or(u64::MAX, grains),
            ceiling: 0,
            weight: 1,
            carried: 0,
            served: 0,
            level: 0,
            next: 0,
            rate: 0,
            since: Picos::ZERO,
            due: Picos::ZERO,
            flows: BinaryHeap::new(),
        });
        let class = Class(self.classes.len() - 1);
        self.weigh(class, 1);
        for (pipe, _) in through {
            let (_, left) = self.in_use(*pipe);
            let state = &mut self.pipes[pipe.0];
            let before = std::mem::replace(&mut state.class, class.0);
            (state.left, state.classes) = (left, state.classes + 1);
            if state.classes == 2 {
                self.sort(before);
            }
        }
        self.sort(class.0);
        class
    }

    /// Determines which pipes a class uses alone, and the tightest of them.
    fn sort(&mut self, class: usize) {
        let state = &mut self.classes[class];
        state.pipes.sort_by_key(|(pipe, _)| self.pipes[*pipe].classes < 2);
        state.shared = state.pipes.partition_point(|(pipe, _)| self.pipes[*pipe].classes > 1);
        let own = state.pipes[state.shared..].iter().map(|(pipe, share)| (self.pipes[*pipe].room(), *share));
        state.own = own.fold(UNLIMITED, tighter);
    }

    /// Sets a class's weight: the share of its flows at a full pipe, relative to weight 1. It stands for outstanding
    /// requests.
    pub(crate) fn weigh(&mut self, class: Class, weight: u64) {
        let state = &mut self.classes[class.0];
        state.weight = weight.clamp(1, 1 << 16);
        state.ceiling = state.most.saturating_mul(1 << LEVEL_BITS) / state.weight;
    }

    /// Changes the highest rate of a class's flows, from the next start or end of a flow on.
    pub(crate) fn limit(&mut self, class: Class, most_bytes_per_second: u64) {
        let state = &mut self.classes[class.0];
        state.most = grains(most_bytes_per_second);
        state.ceiling = state.most.saturating_mul(1 << LEVEL_BITS) / state.weight;
    }

    /// The number of flows of a class.
    pub(crate) fn flows(&self, class: Class) -> u64 {
        self.classes[class.0].flows.len() as u64
    }

    /// The rate of a pipe in bytes per second.
    pub(crate) fn rate(&self, pipe: Pipe) -> u64 {
        let rate = (u128::from(self.pipes[pipe.0].capacity) * 1_000_000_000_000) >> GRAIN_BITS;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Used and unused rate of a pipe if one more flow joins a class and each of its flows has this rate; both in the
    /// same unit.
    pub(crate) fn if_joined(&self, pipe: Pipe, class: Class, bytes_per_second: u64) -> (u64, u64) {
        let (class, pipe_state) = (&self.classes[class.0], &self.pipes[pipe.0]);
        let share = class.pipes.iter().find(|(its, _)| *its == pipe.0).map_or(0, |(_, share)| *share);
        let flows = class.flows.len() as u64;
        let take = |flows: u64, rate: u64| rate.saturating_mul(share.saturating_mul(flows)) / WHOLE;
        let others =
            (pipe_state.capacity - pipe_state.left.min(pipe_state.capacity)).saturating_sub(take(flows, class.rate));
        let used = others.saturating_add(take(flows + 1, grains(bytes_per_second)));
        (used, pipe_state.capacity.saturating_sub(used))
    }

    /// Changes the share of a class in one of its pipes, from the next start or end of a flow on.
    pub(crate) fn share(&mut self, class: Class, pipe: Pipe, share: u64) {
        let share = share.min(MOST_SHARE);
        let its = self.classes[class.0].pipes.iter_mut().find(|(its, old)| *its == pipe.0 && *old != share);
        if let Some((_, old)) = its {
            *old = share;
            self.sort(class.0);
        }
    }

    /// Used and unused rate of a pipe, in the same unit.
    pub(crate) fn in_use(&self, pipe: Pipe) -> (u64, u64) {
        let state = &self.pipes[pipe.0];
        let left = match state.classes {
            1 => {
                let class = &self.classes[state.class];
                let share = class.pipes.iter().find(|(its, _)| *its == pipe.0).map_or(0, |(_, share)| *share);
                state.room().saturating_sub(class.takes(class.rate, share))
            }
            _ => state.left,
        };
        (state.capacity.saturating_sub(left), left)
    }

    /// Starts a flow of `bytes` now; zero bytes take no time.
    pub(crate) fn start(&mut self, now: Picos, class: Class, bytes: u64, owner: T) {
        let state = &mut self.classes[class.0];
        state.carried += u128::from(bytes);
        if state.flows.is_empty() {
            self.busy.push(class.0);
            (state.served, state.since) = (0, now);
        }
        state.serve(now);
        state.flows.push(Reverse((state.served + (u128::from(bytes) << GRAIN_BITS), self.started, owner)));
        state.rate = 0;
        self.started += 1;
        self.share_out(now);
    }

    /// Bytes that have flowed through a pipe by `now`.
    #[must_use]
    pub(crate) fn carried(&self, pipe: Pipe, now: Picos) -> u128 {
        let through = |class: &ClassState<T>| {
            let shares = class.pipes.iter().filter(|(other, _)| *other == pipe.0).map(|(_, share)| u128::from(*share));
            class.carried.saturating_sub(class.left(now)) * shares.sum::<u128>() / u128::from(WHOLE)
        };
        self.classes.iter().map(through).sum()
    }

    /// Blocks a pipe from now on, or unblocks it.
    pub(crate) fn hold(&mut self, now: Picos, pipe: Pipe, held: bool) {
        let state = &mut self.pipes[pipe.0];
        state.held = held;
        if state.classes == 1 {
            let class = state.class;
            self.sort(class);
        }
        self.share_out(now);
    }

    /// When the next flow ends.
    #[must_use]
    #[inline]
    pub(crate) fn due(&self) -> Option<Picos> {
        self.due.map(|(time, _)| time)
    }

    /// Removes the flow that ends next; returns its end and its owner.
    pub(crate) fn finish(&mut self) -> Option<(Picos, T)> {
        let (now, class) = self.due?;
        let state = &mut self.classes[class];
        let Reverse((_, _, owner)) = state.flows.pop()?;
        state.serve(now);
        state.rate = 0;
        if state.flows.is_empty() {
            self.busy.retain(|busy| *busy != class);
            for (pipe, _) in &state.pipes[..state.shared] {
                self.pipes[*pipe].left = self.pipes[*pipe].room();
            }
        }
        self.share_out(now);
        Some((now, owner))
    }

    /// Recomputes every rate, and the next flow to end.
    fn share_out(&mut self, now: Picos) {
        for class in &self.busy {
            let state = &mut self.classes[*class];
            let demand = state.demand();
            for (pipe, share) in &state.pipes[..state.shared] {
                let pipe = &mut self.pipes[*pipe];
                pipe.left = pipe.room();
                pipe.load += share * demand;
            }
        }
        if let [class] = self.busy[..] {
            // It waits for no other class.
            let state = &mut self.classes[class];
            let level = state.fastest(&self.pipes);
            state.settle(level, &mut self.pipes);
        } else {
            self.open.clone_from(&self.busy);
        }
        while !self.open.is_empty() {
            // The level at which the next pipe is full, or the next class reaches its limit.
            let mut level = u64::MAX;
            for class in &self.open {
                let state = &mut self.classes[*class];
                state.level = state.fastest(&self.pipes);
                level = level.min(state.level);
            }
            self.open.retain(|class| {
                let state = &mut self.classes[*class];
                if state.level > level {
                    return true;
                }
                state.settle(level, &mut self.pipes);
                false
            });
        }
        self.due = None;
        for class in &self.busy {
            let state = &mut self.classes[*class];
            // A flow whose rate does not change ends at the same time as before.
            if state.next != state.rate {
                state.serve(now);
                state.rate = state.next;
                state.due = state.end(now);
            }
            let due = (state.due, *class);
            self.due = Some(self.due.map_or(due, |first| first.min(due)));
        }
    }
}

impl<T: Ord> ClassState<T> {
    /// The number of its flows, times its weight.
    #[inline]
    fn demand(&self) -> u64 {
        self.weight * self.flows.len() as u64
    }

    /// Adds the grains served up to now at the current rate.
    #[inline]
    fn serve(&mut self, now: Picos) {
        self.served += u128::from(self.rate) * u128::from(now.since(self.since).0);
        self.since = now;
    }

    /// Bytes of its flows that have not flowed by `now`.
    fn left(&self, now: Picos) -> u128 {
        let served = self.served + u128::from(self.rate) * u128::from(now.since(self.since).0);
        self.flows.iter().map(|Reverse((end, _, _))| end.saturating_sub(served)).sum::<u128>() >> GRAIN_BITS
    }

    /// When its next flow ends, if it is served up to now.
    fn end(&self, now: Picos) -> Picos {
        let Some(Reverse((end, _, _))) = self.flows.peek() else { return now };
        let left = end.saturating_sub(self.served);
        // Usually fits into 64 bits, which divide much faster.
        let time = u64::try_from(left).map_or_else(
            |_| u64::try_from(left.div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX),
            |left| left.div_ceil(self.rate),
        );
        now + Picos(time)
    }

    /// Its flows stay at a level: takes their rate from its shared pipes.
    #[inline]
    fn settle(&mut self, level: u64, pipes: &mut [PipeState]) {
        self.next = (level.saturating_mul(self.weight) >> LEVEL_BITS).clamp(1, self.most);
        let demand = self.demand();
        for (pipe, share) in &self.pipes[..self.shared] {
            let pipe = &mut pipes[*pipe];
            pipe.load -= share * demand;
            pipe.left = pipe.left.saturating_sub(self.takes(self.next, *share));
        }
    }

    /// The part of a pipe that all its flows use at a rate.
    #[inline]
    fn takes(&self, rate: u64, share: u64) -> u64 {
        rate.saturating_mul(share * self.flows.len() as u64) / WHOLE
    }

    /// The level at which one of its pipes is full, or its flows reach their limit.
    #[inline]
    fn fastest(&self, pipes: &[PipeState]) -> u64 {
        // A single division, because it takes longer than everything else here.
        let own = (self.own.0, self.own.1 * self.demand());
        let shared = self.pipes[..self.shared].iter().map(|(pipe, _)| (pipes[*pipe].left, pipes[*pipe].load));
        let (left, load) = shared.fold(own, tighter);
        left.saturating_mul(WHOLE << LEVEL_BITS).checked_div(load).unwrap_or(u64::MAX).min(self.ceiling)
    }
}

/// No limit.
const UNLIMITED: (u64, u64) = (u64::MAX, 0);

/// Of two limits (free rate and demand), the one with less free rate per unit of demand.
#[inline]
fn tighter(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    let less = u128::from(other.0) * u128::from(one.1) < u128::from(one.0) * u128::from(other.1);
    if less { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    fn end_of_all(pipes: &mut Pipes<u32>) -> Vec<(u64, u32)> {
        std::iter::from_fn(|| pipes.finish()).map(|(at, owner)| (at.0 / 1000, owner)).collect()
    }

    #[test]
    fn a_single_flow_gets_the_full_rate() {
        let mut pipes = Pipes::default();
        let pipe = pipes.pipe(10 * GB);
        let class = pipes.class(&[(pipe, WHOLE)], None);
        pipes.start(Picos::ZERO, class, 1000, 1);
        assert_eq!(end_of_all(&mut pipes), [(100, 1)]);
    }

    #[test]
    fn a_later_flow_gets_a_fair_share() {
        let mut pipes = Pipes::default();
        let pipe = pipes.pipe(10 * GB);
        let class = pipes.class(&[(pipe, WHOLE)], None);
        pipes.start(Picos::ZERO, class, 1000, 1);
        // Half of the first is done when the second begins; both then flow at half the rate.
        pipes.start(Picos::from_nanos(50), class, 1000, 2);
        assert_eq!(end_of_all(&mut pipes), [(150, 1), (200, 2)]);
    }

    #[test]
    fn rate_unused_by_a_slow_class_goes_to_others() {
        let mut pipes = Pipes::default();
        let (wide, narrow) = (pipes.pipe(10 * GB), pipes.pipe(2 * GB));
        let slow = pipes.class(&[(wide, WHOLE), (narrow, WHOLE)], None);
        let fast = pipes.class(&[(wide, WHOLE)], None);
        pipes.start(Picos::ZERO, slow, 200, 1);
        pipes.start(Picos::ZERO, fast, 800, 2);
        let mut ends = end_of_all(&mut pipes);
        ends.sort_unstable();
        assert_eq!(ends, [(100, 1), (100, 2)]);
    }

    #[test]
    fn a_double_share_takes_twice_the_rate() {
        let mut pipes = Pipes::default();
        let pipe = pipes.pipe(10 * GB);
        let class = pipes.class(&[(pipe, 2 * WHOLE)], None);
        pipes.start(Picos::ZERO, class, 1000, 1);
        assert_eq!(end_of_all(&mut pipes), [(200, 1)]);
    }

    #[test]
    fn carried_bytes_are_those_that_have_flowed() {
        let mut pipes = Pipes::default();
        let (both, one) = (pipes.pipe(10 * GB), pipes.pipe(10 * GB));
        let twice = pipes.class(&[(both, 2 * WHOLE)], None);
        let once = pipes.class(&[(both, WHOLE), (one, WHOLE)], None);
        pipes.start(Picos::ZERO, twice, 1000, 1);
        pipes.start(Picos::ZERO, once, 500, 2);
        let carried = |pipes: &Pipes<u32>, ns| [both, one].map(|pipe| pipes.carried(pipe, Picos::from_nanos(ns)));
        assert_eq!(carried(&pipes, 0), [0, 0]);
        // Both flow at the same rate, so the shared pipe gives a third of its 10 bytes a nanosecond to each transfer.
        let [half, third] = carried(&pipes, 60);
        assert!(half.abs_diff(600) <= 3 && third.abs_diff(200) <= 3, "{half} {third}");
        end_of_all(&mut pipes);
        assert_eq!(carried(&pipes, 250), [2500, 500]);
    }

    #[test]
    fn a_held_pipe_stops_its_flows_only() {
        let mut pipes = Pipes::default();
        let (held, free) = (pipes.pipe(10 * GB), pipes.pipe(10 * GB));
        let (behind, beside) = (pipes.class(&[(held, WHOLE)], None), pipes.class(&[(free, WHOLE)], None));
        pipes.start(Picos::ZERO, behind, 1000, 1);
        pipes.start(Picos::ZERO, beside, 1000, 2);
        pipes.hold(Picos::from_nanos(40), held, true);
        assert_eq!(pipes.finish().map(|(at, owner)| (at.0 / 1000, owner)), Some((100, 2)));
        pipes.hold(Picos::from_nanos(200), held, false);
        assert_eq!(end_of_all(&mut pipes), [(260, 1)]);
    }

    #[test]
    fn a_flow_respects_its_class_limit() {
        let mut pipes = Pipes::default();
        let pipe = pipes.pipe(10 * GB);
        let class = pipes.class(&[(pipe, WHOLE)], Some(GB));
        pipes.start(Picos::ZERO, class, 1000, 1);
        assert_eq!(end_of_all(&mut pipes), [(1000, 1)]);
    }

    #[test]
    fn a_full_pipe_is_shared_by_weight_and_unused_rate_is_redistributed() {
        let mut pipes = Pipes::default();
        let pipe = pipes.pipe(10 * GB);
        let (heavy, light) = (pipes.class(&[(pipe, WHOLE)], None), pipes.class(&[(pipe, WHOLE)], None));
        pipes.weigh(heavy, 4);
        pipes.start(Picos::ZERO, heavy, 800, 1);
        pipes.start(Picos::ZERO, light, 200, 2);
        let mut ends = end_of_all(&mut pipes);
        ends.sort_unstable();
        assert_eq!(ends, [(100, 1), (100, 2)]);
        let slow = pipes.class(&[(pipe, WHOLE)], Some(2 * GB));
        pipes.weigh(slow, 4);
        let begin = Picos::from_nanos(100);
        pipes.start(begin, slow, 200, 1);
        pipes.start(begin, light, 800, 2);
        let mut ends = end_of_all(&mut pipes);
        ends.sort_unstable();
        assert_eq!(ends, [(200, 1), (200, 2)]);
    }

    /// Rates of one flow of each class by definition: all grow together until a pipe is full or a class reaches its
    /// limit.
    fn fair(pipes: &Pipes<u32>) -> Vec<f64> {
        let mut rates = vec![None; pipes.classes.len()];
        let is_open =
            |rates: &[Option<f64>], class: usize| rates[class].is_none() && !pipes.classes[class].flows.is_empty();
        let demand = |class: usize| pipes.classes[class].demand() as f64;
        while (0..rates.len()).any(|class| is_open(&rates, class)) {
            let level_of_pipe = |pipe: usize| {
                let (mut left, mut wanted) = (pipes.pipes[pipe].room() as f64, 0.0);
                for (number, class) in pipes.classes.iter().enumerate() {
                    let share: u64 = class.pipes.iter().filter(|(its, _)| *its == pipe).map(|(_, share)| share).sum();
                    let share = share as f64 / WHOLE as f64;
                    left -= rates[number].map_or(0.0, |rate: f64| rate * share * class.flows.len() as f64);
                    wanted += if is_open(&rates, number) { share * demand(number) } else { 0.0 };
                }
                if wanted > 0.0 { left.max(0.0) / wanted } else { f64::INFINITY }
            };
            let level_of = |class: usize| {
                let state = &pipes.classes[class];
                let levels = state.pipes.iter().map(|(pipe, _)| level_of_pipe(*pipe));
                levels.fold(state.most as f64 / state.weight as f64, f64::min)
            };
            let levels: Vec<_> = (0..rates.len())
                .filter(|class| is_open(&rates, *class))
                .map(|class| (class, level_of(class)))
                .collect();
            let least = levels.iter().map(|(_, level)| *level).fold(f64::INFINITY, f64::min);
            for (class, _) in levels.into_iter().filter(|(_, level)| *level <= least * (1.0 + 1e-9)) {
                rates[class] = Some(least * pipes.classes[class].weight as f64);
            }
        }
        rates.into_iter().map(|rate| rate.unwrap_or(0.0)).collect()
    }

    #[test]
    fn random_flows_are_max_min_fair_and_usage_adds_up() {
        let mut rng = crate::rng::Rng::new(8, 0);
        let mut pipes = Pipes::default();
        let all: Vec<Pipe> = (0..6).map(|_| pipes.pipe((1 + rng.below(20)) * GB)).collect();
        let (mut now, mut classes) = (Picos::ZERO, Vec::new());
        for step in 0..3000 {
            // Sometimes a new class, through pipes that other classes may have used alone.
            if step % 250 == 0 {
                let mut through = Vec::new();
                for pipe in &all {
                    if rng.below(3) == 0 {
                        through.push((*pipe, 64 << rng.below(4)));
                    }
                }
                let most = (rng.below(3) == 0 || through.is_empty()).then(|| (1 + rng.below(9)) * GB);
                classes.push(pipes.class(&through, most));
                pipes.weigh(classes[classes.len() - 1], 1 + rng.below(4));
            }
            let mut any = |end: usize| usize::try_from(rng.below(end as u64)).unwrap();
            let (class, pipe) = (classes[any(classes.len())], all[any(all.len())]);
            match any(8) {
                0 => pipes.hold(now, pipe, any(2) == 0),
                1 => {
                    pipes.share(class, pipe, 32 << any(5));
                    pipes.hold(now, pipe, false);
                }
                2..=4 => pipes.start(now, class, 1 + any(100_000) as u64, 0),
                _ => now = pipes.finish().map_or(now, |(at, _)| at),
            }
            let mut taken = vec![0.0; all.len()];
            for (state, fair) in pipes.classes.iter().zip(fair(&pipes)) {
                let rate = if state.flows.is_empty() { 0.0 } else { state.rate as f64 };
                assert!((rate - fair).abs() <= 2.0 + fair * 1e-3, "step {step}: {rate} of {fair}");
                for (pipe, share) in &state.pipes {
                    taken[*pipe] += rate * *share as f64 / WHOLE as f64 * state.flows.len() as f64;
                }
            }
            for (pipe, taken) in all.iter().zip(taken).filter(|(pipe, _)| !pipes.pipes[pipe.0].held) {
                let (used, left) = pipes.in_use(*pipe);
                assert_eq!(used + left, pipes.pipes[pipe.0].capacity);
                assert!(
                    (used as f64 - taken).abs() <= 100.0 + taken * 1e-3,
                    "step {step}: {used} in use, {taken} flow"
                );
            }
        }
    }
}
