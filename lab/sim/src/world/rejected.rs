//! Submitters that a full shared queue refused, and that retry.
//!
//! A refused ENQCMD is executed again at once, so it reaches the portal once per instruction time. All attempts between
//! two descriptors that leave the queue have the same result; they are counted, not simulated. When the queue has room
//! again, the submitter whose attempt comes first gets the entry, so that only its attempt is simulated: the cost does
//! not depend on the number of submitters that retry.

use super::{Event, FlowOwner, World};
use crate::picos::Picos;
use crate::workload::QueueId;
use std::collections::BTreeMap;

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
}

/// The submitters that retry one queue.
#[derive(Debug)]
pub(super) struct Retrying {
    /// Entries of the queue that they may use.
    limit: u64,
    /// By the time from one attempt to the next, which is equal for most. Of equal ones, by the phase of their attempts
    /// in this time, and then by their turn.
    waiting: BTreeMap<Picos, BTreeMap<(Picos, u64), Rejected>>,
    /// The submitter whose attempt is scheduled, and its turn.
    next: Option<(FlowOwner, u64)>,
    /// The turn of the next submitter that is refused for the first time.
    turns: u64,
}

impl Retrying {
    pub(super) fn of(limit: u64) -> Self {
        Retrying { limit, waiting: BTreeMap::new(), next: None, turns: 0 }
    }

    fn add(&mut self, period: Picos, rejected: Rejected) {
        let turn = match self.next.take_if(|(owner, _)| *owner == rejected.owner) {
            // It keeps its turn before others whose attempts come at the same times.
            Some((_, turn)) => turn,
            None => {
                self.turns += 1;
                self.turns
            }
        };
        let phase = Picos(rejected.since.0 % period.0);
        self.waiting.entry(period).or_default().insert((phase, turn), rejected);
    }

    /// Removes the submitter whose attempt is the first at `now` or later. Returns it with its turn, the time of that
    /// attempt, and the number of attempts since it was refused.
    fn take_first(&mut self, now: Picos) -> Option<(Rejected, u64, Picos, u64)> {
        let mut first: Option<(Picos, u64, Picos, Picos)> = None;
        for (period, by_phase) in &self.waiting {
            let phase = Picos(now.0 % period.0);
            // The first attempt comes one period after the refusal.
            let later = |(_, one): &(&(Picos, u64), &Rejected)| one.since < now;
            let soon = by_phase.range((phase, 0)..).find(later);
            // All in their first period, or those whose phase comes before that of `now`.
            let Some((&(at, turn), one)) = soon.or_else(|| by_phase.iter().next()) else { continue };
            let time = one.since + *period * attempts(one.since, now, *period);
            if first.is_none_or(|(least, order, ..)| (time, turn) < (least, order)) {
                first = Some((time, turn, *period, at));
            }
        }
        let (time, turn, period, phase) = first?;
        let by_phase = self.waiting.get_mut(&period)?;
        let one = by_phase.remove(&(phase, turn))?;
        if by_phase.is_empty() {
            self.waiting.remove(&period);
        }
        Some((one, turn, time, attempts(one.since, now, period)))
    }
}

/// Attempts until the first one at `now` or later.
fn attempts(since: Picos, now: Picos, period: Picos) -> u64 {
    now.since(since).0.div_ceil(period.0).max(1)
}

impl World {
    /// A full shared queue refuses a submission of a thread or program. An attempt takes `cost` of its core's time, and
    /// the next one follows after `period`.
    pub(super) fn reject(&mut self, queue: QueueId, owner: FlowOwner, again: Event, cost: Picos, period: Picos) {
        let since = self.events.now();
        if let Some(retrying) = self.retrying_of(queue.device, queue.wq) {
            retrying.add(period.max(Picos(1)), Rejected { owner, again, since, cost });
        }
    }

    /// A queue took a submission of a thread or program: if that one had retried, the next one gets its turn.
    pub(super) fn admitted(&mut self, queue: QueueId, owner: FlowOwner) {
        let Some(retrying) = self.retrying_of(queue.device, queue.wq) else { return };
        if retrying.next.take_if(|(next, _)| *next == owner).is_some() {
            self.may_have_room(queue.device);
        }
    }

    /// A descriptor may have left a queue of this device: schedules the first attempt of those that retry.
    pub(super) fn may_have_room(&mut self, device: u16) {
        let now = self.events.now();
        for wq in 0..self.retrying.get(usize::from(device)).map_or(0, Vec::len) {
            let model = &self.devices[usize::from(device)].model;
            let retrying = &mut self.retrying[usize::from(device)][wq];
            let waits = retrying.next.is_none() && !retrying.waiting.is_empty();
            if !waits || model.wq_occupancy(wq) >= retrying.limit {
                continue;
            }
            let Some((one, turn, time, attempts)) = retrying.take_first(now) else { continue };
            retrying.next = Some((one.owner, turn));
            self.count_refused(one.owner, attempts - 1, one.cost);
            self.events.at(time, one.again);
        }
    }

    fn retrying_of(&mut self, device: u16, wq: usize) -> Option<&mut Retrying> {
        self.retrying.get_mut(usize::from(device))?.get_mut(wq)
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
        for _ in 0..500 {
            let mut retrying = Retrying::of(1);
            let mut all = Vec::new();
            for number in 0..1 + u32::try_from(rng.below(20)).unwrap() {
                let (since, period) = (Picos(rng.below(40)), Picos(1 + rng.below(2) * 6 + 4));
                let owner = FlowOwner::Thread(number);
                retrying.add(period, Rejected { owner, again: Event::Thread(number), since, cost: Picos(1) });
                all.push((owner, since, period));
            }
            // Time does not go back behind a refusal.
            let now = Picos(40 + rng.below(30));
            let next = |(owner, since, period): &(FlowOwner, Picos, Picos)| {
                let attempt = (1..).map(|attempt| *since + *period * attempt).find(|at| *at >= now).unwrap();
                (attempt, *owner)
            };
            let mut expected: Vec<_> = all.iter().map(next).collect();
            expected.sort_unstable();
            let mut seen = Vec::new();
            while let Some((one, _, at, _)) = retrying.take_first(now) {
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
        };
        retrying.add(Picos(10), one(1, 0));
        retrying.add(Picos(10), one(2, 0));
        let (first, turn, at, attempts) = retrying.take_first(Picos(20)).unwrap();
        assert_eq!((first.owner, at, attempts), (FlowOwner::Thread(1), Picos(20), 2));
        retrying.next = Some((first.owner, turn));
        retrying.add(Picos(10), one(1, 20));
        // Both come at 30; the second one could come at 20 already.
        let (first, _, at, _) = retrying.take_first(Picos(20)).unwrap();
        assert_eq!((first.owner, at), (FlowOwner::Thread(2), Picos(20)));
        assert_eq!(retrying.take_first(Picos(20)).unwrap().2, Picos(30));
    }
}
