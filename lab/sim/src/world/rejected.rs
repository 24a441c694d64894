//! Submitters that a full shared queue refused, and that retry.
//!
//! A refused ENQCMD is executed again at once, so it reaches the portal once per instruction time. All attempts between
//! two descriptors that leave the queue have the same result; they are counted, not simulated. When the queue has room
//! again, the submitter whose attempt comes first gets the entry, so that only its attempt is simulated: the cost does
//! not depend on the number of submitters that retry.

use super::{Event, FlowOwner, World};
use crate::picos::Picos;
use crate::workload::QueueId;
use std::collections::VecDeque;
use telpher_model::Device;

/// A submitter whose core only retries.
#[derive(Clone, Copy, Debug)]
struct Rejected {
    /// The thread or program.
    owner: FlowOwner,
    /// The event of its next attempt.
    again: Event,
    /// When it was refused.
    since: Picos,
    /// Core time of an attempt.
    cost: Picos,
    /// Its turn: of attempts at equal times, those of earlier turns come first.
    turn: u64,
    /// The periods before `since`, and the remainder, which [`SamePeriod::add`] computes: a division for each refusal.
    periods: u64,
    phase: u64,
}

impl Rejected {
    /// Attempts until the first one at a time or later, which is this phase after whole periods. The first attempt
    /// comes one period after the refusal.
    fn attempts(&self, periods: u64, phase: u64) -> u64 {
        (periods + u64::from(phase > self.phase)).saturating_sub(self.periods).max(1)
    }
}

/// The most parts of a period, which has more than half as many. Source: chosen; a thousand submitters are then four to
/// eight in each.
const PARTS: usize = 256;

/// The submitters whose attempts have the same period, by the phase of their attempts. Finding, inserting and removing
/// one takes the same time for any number of them.
#[derive(Debug)]
struct SamePeriod {
    /// The time from one attempt to the next.
    period: Picos,
    /// A phase without this many of its low bits is its part.
    shift: u32,
    /// Those with phases in each part of the period, in the order of phases and then of turns. Attempts of many threads
    /// can have the same phase; then the first of a part is taken and a new one becomes the last.
    parts: Vec<VecDeque<Rejected>>,
    /// A bit for each part that has any.
    occupied: [u64; PARTS / 64],
}

impl SamePeriod {
    fn of(period: Picos) -> Self {
        let shift = (u64::BITS - period.0.leading_zeros()).saturating_sub(PARTS.ilog2());
        SamePeriod { period, shift, parts: vec![VecDeque::new(); PARTS], occupied: [0; PARTS / 64] }
    }

    /// The periods before a time, and the remainder.
    fn periods(&self, time: Picos) -> (u64, u64) {
        (time.0 / self.period.0, time.0 % self.period.0)
    }

    fn part(&self, phase: u64) -> usize {
        // A phase is less than the period, so its part is less than the number of parts.
        usize::try_from(phase >> self.shift).map_or(PARTS - 1, |part| part.min(PARTS - 1))
    }

    fn add(&mut self, mut rejected: Rejected) {
        (rejected.periods, rejected.phase) = self.periods(rejected.since);
        let number = self.part(rejected.phase);
        let part = &mut self.parts[number];
        let key = |one: &Rejected| (one.phase, one.turn);
        match part.back() {
            Some(last) if key(last) > key(&rejected) => {
                let at = part.partition_point(|other| key(other) < key(&rejected));
                part.insert(at, rejected);
            }
            _ => part.push_back(rejected),
        }
        self.occupied[number / 64] |= 1 << (number % 64);
    }

    /// The first part from `from` on that is not empty.
    fn occupied_from(&self, from: usize) -> Option<usize> {
        (from / 64..self.occupied.len()).find_map(|word| {
            let before = if word == from / 64 { (1 << (from % 64)) - 1 } else { 0 };
            let bits = self.occupied[word] & !before;
            (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
        })
    }

    /// Part and position in it of the submitter whose attempt is the first at `now` or later, if `now` is this phase
    /// after whole periods.
    fn first(&self, now: Picos, phase: u64) -> Option<(usize, usize)> {
        let number = self.part(phase);
        // The first attempt comes one period after the refusal.
        let soon = |one: &Rejected| one.since < now && one.phase >= phase;
        if let Some(at) = self.parts[number].iter().position(soon) {
            return Some((number, at));
        }
        // All in their first period, or those whose phase comes before that of `now`.
        let next = self.occupied_from(number + 1).or_else(|| self.occupied_from(0))?;
        Some((next, 0))
    }

    fn remove(&mut self, number: usize, at: usize) -> Option<Rejected> {
        let rejected = self.parts[number].remove(at);
        if self.parts[number].is_empty() {
            self.occupied[number / 64] &= !(1 << (number % 64));
        }
        rejected
    }
}

/// The submitters that retry one queue.
#[derive(Debug)]
struct Retrying {
    /// Entries of the queue that they may use.
    limit: u64,
    /// Those that wait, by the period of their attempts, which is equal for most.
    waiting: Vec<SamePeriod>,
    /// Their number.
    count: usize,
    /// The submitter whose attempt is scheduled, and its turn.
    next: Option<(FlowOwner, u64)>,
    /// The turn of the next submitter that is refused for the first time.
    turns: u64,
}

/// The submitters that retry the queues of one device.
#[derive(Debug)]
pub(super) struct DeviceRetries {
    queues: Vec<Retrying>,
    /// A bit for each queue at which submitters wait, and for which no attempt is scheduled. Almost always it is the
    /// only thing to look at when a descriptor has left a queue.
    waiting: u64,
}

impl DeviceRetries {
    /// None, for queues of which submitters may use these numbers of entries.
    pub(super) fn of(limits: impl Iterator<Item = u64>) -> Self {
        DeviceRetries { queues: limits.map(Retrying::of).collect(), waiting: 0 }
    }

    /// True if a shared queue is full, so that it refuses the next submission.
    #[inline]
    fn is_full(&self, model: &Device, wq: usize) -> bool {
        self.queues.get(wq).is_some_and(|queue| model.wq_occupancy(wq) >= queue.limit)
    }

    /// Sets or clears the bit of a queue.
    #[inline]
    fn note(&mut self, wq: usize) {
        // A device has far fewer queues than bits.
        let bit = 1 << (wq % 64);
        if self.queues.get(wq).is_some_and(Retrying::waits) {
            self.waiting |= bit;
        } else {
            self.waiting &= !bit;
        }
    }

    /// Removes the submitter with the first attempt at `now` or later, at a queue that has room and no scheduled
    /// attempt. Returns it with the time of that attempt, and the number of attempts since it was refused.
    fn take_first(&mut self, model: &Device, now: Picos) -> Option<(Rejected, Picos, u64)> {
        let mut left = self.waiting;
        while left != 0 {
            let wq = left.trailing_zeros() as usize;
            left &= left - 1;
            let queue = self.queues.get_mut(wq)?;
            if model.wq_occupancy(wq) >= queue.limit {
                continue;
            }
            let first = queue.take_first(now)?;
            queue.next = Some((first.0.owner, first.0.turn));
            self.note(wq);
            return Some(first);
        }
        None
    }
}

impl Retrying {
    fn of(limit: u64) -> Self {
        Retrying { limit, waiting: Vec::new(), count: 0, next: None, turns: 0 }
    }

    /// True if submitters wait, and no attempt is scheduled.
    fn waits(&self) -> bool {
        self.next.is_none() && self.count > 0
    }

    fn add(&mut self, period: Picos, mut rejected: Rejected) {
        rejected.turn = match self.next.take_if(|(owner, _)| *owner == rejected.owner) {
            // It keeps its turn before others whose attempts come at the same times.
            Some((_, turn)) => turn,
            None => {
                self.turns += 1;
                self.turns
            }
        };
        self.count += 1;
        let known = self.waiting.iter().position(|same| same.period == period);
        let number = known.unwrap_or_else(|| {
            self.waiting.push(SamePeriod::of(period));
            self.waiting.len() - 1
        });
        self.waiting[number].add(rejected);
    }

    /// Removes the submitter whose attempt is the first at `now` or later. Returns it with the time of that attempt,
    /// and the number of attempts since it was refused.
    fn take_first(&mut self, now: Picos) -> Option<(Rejected, Picos, u64)> {
        // Time, turn and number of the attempt, and where the submitter is.
        let mut first: Option<(Picos, u64, u64, [usize; 3])> = None;
        for (number, same) in self.waiting.iter().enumerate() {
            let (periods, phase) = same.periods(now);
            let Some((part, at)) = same.first(now, phase) else { continue };
            let rejected = &same.parts[part][at];
            let Rejected { since, turn, .. } = *rejected;
            let attempts = rejected.attempts(periods, phase);
            let time = since + same.period * attempts;
            if first.is_none_or(|(least, order, ..)| (time, turn) < (least, order)) {
                first = Some((time, turn, attempts, [number, part, at]));
            }
        }
        let (time, _, attempts, [number, part, at]) = first?;
        self.count -= 1;
        Some((self.waiting[number].remove(part, at)?, time, attempts))
    }
}

impl World {
    /// A full shared queue refuses a submission of a thread or program. An attempt takes `cost` of its core's time, and
    /// the next one follows after `period`.
    pub(super) fn reject(&mut self, queue: QueueId, owner: FlowOwner, again: Event, cost: Picos, period: Picos) {
        let since = self.events.now();
        let Some(device) = self.retrying.get_mut(usize::from(queue.device)) else { return };
        if let Some(retrying) = device.queues.get_mut(queue.wq) {
            retrying.add(period.max(Picos(1)), Rejected { owner, again, since, cost, turn: 0, periods: 0, phase: 0 });
            device.note(queue.wq);
        }
    }

    /// True if a shared queue is full, so that it refuses the next submission.
    #[inline]
    pub(super) fn is_full(&self, queue: QueueId) -> bool {
        let number = usize::from(queue.device);
        self.retrying.get(number).is_some_and(|device| device.is_full(&self.devices[number].model, queue.wq))
    }

    /// A queue took a submission of a thread or program: if that one had retried, the next one gets its turn.
    pub(super) fn admitted(&mut self, queue: QueueId, owner: FlowOwner) {
        let Some(device) = self.retrying.get_mut(usize::from(queue.device)) else { return };
        let Some(retrying) = device.queues.get_mut(queue.wq) else { return };
        if retrying.next.take_if(|(next, _)| *next == owner).is_some() {
            device.note(queue.wq);
            self.may_have_room(queue.device);
        }
    }

    /// A descriptor may have left a queue of this device: schedules the first attempt of those that retry.
    #[inline]
    pub(super) fn may_have_room(&mut self, device: u16) {
        if self.retrying.get(usize::from(device)).is_some_and(|device| device.waiting != 0) {
            self.retry(device);
        }
    }

    fn retry(&mut self, device: u16) {
        let (now, number) = (self.events.now(), usize::from(device));
        while let Some((one, time, attempts)) = self.retrying[number].take_first(&self.devices[number].model, now) {
            self.count_refused(one.owner, attempts - 1, one.cost);
            self.events.at(time, one.again);
        }
    }

    /// Counts attempts that were not simulated.
    fn count_refused(&mut self, owner: FlowOwner, attempts: u64, cost: Picos) {
        let time = cost * attempts;
        match owner {
            FlowOwner::Thread(number) => {
                let timeline = &mut self.threads[number as usize].timeline;
                timeline.retries += attempts;
                timeline.submitting += time;
                timeline.cycles.busy += time;
            }
            FlowOwner::Program(number) => self.did(number, |cycles| cycles.busy += time),
            FlowOwner::Engine(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// The chosen submitter is the one that a simulation of every attempt would find.
    #[test]
    fn the_first_attempt_at_a_time_or_later_is_found() {
        let mut rng = Rng::new(3, 0);
        for round in 0..500 {
            // Few phases, so that many are equal, and many.
            let scale = [1, 1000][round % 2];
            let mut retrying = Retrying::of(1);
            let mut all = Vec::new();
            for number in 0..1 + u32::try_from(rng.below(20)).unwrap() {
                let (since, period) = (Picos(rng.below(40 * scale)), Picos((5 + rng.below(2) * 6) * scale));
                let owner = FlowOwner::Thread(number);
                let again = Event::Thread(number);
                retrying.add(period, Rejected { owner, again, since, cost: Picos(1), turn: 0, periods: 0, phase: 0 });
                all.push((owner, since, period));
            }
            // Time does not go back behind a refusal.
            let now = Picos((40 + rng.below(30)) * scale);
            let next = |(owner, since, period): &(FlowOwner, Picos, Picos)| {
                let attempt = (1..).map(|attempt| *since + *period * attempt).find(|at| *at >= now).unwrap();
                (attempt, *owner)
            };
            let mut expected: Vec<_> = all.iter().map(next).collect();
            expected.sort_unstable();
            let mut seen = Vec::new();
            while let Some((one, at, _)) = retrying.take_first(now) {
                seen.push((at, one.owner));
            }
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_refused_attempt_keeps_its_turn_and_a_refusal_now_is_not_repeated_now() {
        let mut retrying = Retrying::of(1);
        let one = |number, since| Rejected {
            owner: FlowOwner::Thread(number),
            again: Event::Thread(number),
            since: Picos(since),
            cost: Picos(1),
            turn: 0,
            periods: 0,
            phase: 0,
        };
        retrying.add(Picos(10), one(1, 0));
        retrying.add(Picos(10), one(2, 0));
        let (first, at, attempts) = retrying.take_first(Picos(20)).unwrap();
        assert_eq!((first.owner, at, attempts), (FlowOwner::Thread(1), Picos(20), 2));
        retrying.next = Some((first.owner, first.turn));
        retrying.add(Picos(10), one(1, 20));
        // Both come at 30; the second one could come at 20 already.
        let (first, at, _) = retrying.take_first(Picos(20)).unwrap();
        assert_eq!((first.owner, at), (FlowOwner::Thread(2), Picos(20)));
        assert_eq!(retrying.take_first(Picos(20)).unwrap().1, Picos(30));
    }
}
