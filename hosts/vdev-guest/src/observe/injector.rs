//! Fault injection: decides for each descriptor what fails, only from the seed and the descriptor's number.

use super::delayed::DelayedCompletions;
use super::faulty_space::FaultySpace;
use super::file_log::DescriptorId;
use super::random::{Purpose, RandomStream};
use crate::sync::{AtomicU64, Ordering};
use telpher_abi::{Descriptor, Status};
use telpher_mem::Space;
use telpher_vdev_wire::message::Inject;

/// Longest wait of a completion for a later one, in nanoseconds; a later one may never come. Source: chosen; below the
/// shortest time-out in clients (observed clients: 65 536 pauses, about 3 ms).
const REORDER_NS: u64 = 1_000_000;

/// Low bits of [`Injector::storm`] with the count; the others are the submission's number.
const STORM_BITS: u32 = 20;

/// The fault injection of one open file.
#[derive(Debug)]
pub(super) struct Injector {
    inject: Inject,
    seed: u64,
    /// The submission that gets a series of Retry answers, and how many it has got.
    storm: AtomicU64,
    delayed: DelayedCompletions,
}

/// The delay of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CompletionDelay {
    /// No delay.
    OnTime,
    /// This many nanoseconds.
    Delay(u64),
    /// Until a later completion was written.
    Reorder,
}

impl Injector {
    /// Returns `None` if no fault is to be injected. `queue` gives each queue of a run its own random numbers.
    pub(super) fn new(inject: &Inject, queue: u64) -> Option<Self> {
        let Inject { seed, operations, status_operations, .. } = *inject;
        let nothing = Inject { seed, operations, status_operations, ..Inject::default() };
        (*inject != nothing).then(|| Injector {
            inject: *inject,
            seed: inject.seed ^ queue.rotate_left(32),
            storm: AtomicU64::new(0),
            delayed: DelayedCompletions::default(),
        })
    }

    /// True if completions may have to wait, so that engines need threads and several slots.
    pub(super) fn holds(inject: &Inject) -> bool {
        inject.delay_rate > 0 || inject.reorder_rate > 0
    }

    fn concerns(&self, descriptor: &Descriptor) -> bool {
        let operations = self.inject.operations;
        operations == 0 || operations >> (descriptor.opcode_code() & 0x3f) & 1 == 1
    }

    fn hits(&self, rate: u32, purpose: Purpose, id: DescriptorId, descriptor: &Descriptor) -> bool {
        rate > 0
            && self.concerns(descriptor)
            && RandomStream::of(self.seed, id.submission, id.member, purpose).hits(rate)
    }

    /// True if the device halts at this submission.
    pub(super) fn halts(&self, submission: u64) -> bool {
        self.inject.halt_at == submission
    }

    /// True if a deferrable write that would become this submission gets Retry: once, or for the length of a burst.
    pub(super) fn retries(&self, submission: u64, descriptor: &Descriptor) -> bool {
        let id = DescriptorId { submission, member: 0 };
        if !self.hits(self.inject.retry_rate, Purpose::Retry, id, descriptor) {
            return false;
        }
        let lasts = u64::from(self.inject.retry_burst.clamp(1, (1 << STORM_BITS) - 1));
        let key = submission << STORM_BITS;
        // Relaxed: the count publishes nothing. Concurrent threads share a burst.
        let counted = self.storm.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |storm| {
            let seen = if storm >> STORM_BITS << STORM_BITS == key { storm & ((1 << STORM_BITS) - 1) } else { 0 };
            (seen < lasts).then_some(key | (seen + 1))
        });
        counted.is_ok()
    }

    /// The status that a descriptor ends with instead of being executed.
    pub(super) fn status(&self, id: DescriptorId, descriptor: &Descriptor) -> Option<Status> {
        let own = self.inject.status_operations;
        let concerned = own == 0 || own >> (descriptor.opcode_code() & 0x3f) & 1 == 1;
        let hits = concerned && self.hits(self.inject.status_rate, Purpose::Status, id, descriptor);
        hits.then(|| Status::from_code(u8::try_from(self.inject.status & 0x3f).unwrap_or_default()))
    }

    /// True if the completion record is not written.
    pub(super) fn loses(&self, id: DescriptorId, descriptor: &Descriptor) -> bool {
        self.hits(self.inject.lose_rate, Purpose::Lose, id, descriptor)
    }

    /// The descriptor's memory with absent pages; `None` if no page can be absent.
    pub(super) fn faulty_space<'a>(
        &self,
        id: DescriptorId,
        descriptor: &Descriptor,
        space: &'a dyn Space,
        tell: &'a (dyn Fn(u64) + Sync),
    ) -> Option<FaultySpace<'a>> {
        let absent = self.inject.absent_first..self.inject.absent_end;
        let any = self.inject.fault_rate > 0 || !absent.is_empty();
        (any && self.concerns(descriptor)).then(|| {
            let random = RandomStream::of(self.seed, id.submission, id.member, Purpose::Fault);
            FaultySpace::new(space, self.inject.fault_rate, absent, random, tell)
        })
    }

    /// The delay of a completion.
    fn delay(&self, id: DescriptorId, descriptor: &Descriptor) -> CompletionDelay {
        if self.hits(self.inject.delay_rate, Purpose::Delay, id, descriptor) {
            CompletionDelay::Delay(self.inject.delay_ns)
        } else if self.hits(self.inject.reorder_rate, Purpose::Reorder, id, descriptor) {
            CompletionDelay::Reorder
        } else {
            CompletionDelay::OnTime
        }
    }

    /// True once a completion may be reported. `now` is called only if needed; `first` is called when a delay starts.
    pub(super) fn may_conclude(
        &self,
        id: DescriptorId,
        descriptor: &Descriptor,
        now: impl Fn() -> u64,
        first: impl FnOnce(CompletionDelay),
    ) -> bool {
        if !Self::holds(&self.inject) {
            return true;
        }
        let delay = self.delay(id, descriptor);
        let (wait, reorders) = match delay {
            CompletionDelay::OnTime => {
                self.delayed.record_reported(id.submission);
                return true;
            }
            CompletionDelay::Delay(wait) => (wait, false),
            CompletionDelay::Reorder => (REORDER_NS, true),
        };
        let may = self.delayed.is_due(id, now(), wait, reorders, || first(delay));
        if may {
            self.delayed.record_reported(id.submission);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const ALWAYS: u32 = u32::MAX;

    fn id(submission: u64) -> DescriptorId {
        DescriptorId { submission, member: 0 }
    }

    fn injector(inject: Inject) -> Injector {
        Injector::new(&inject, 0).unwrap()
    }

    #[test]
    fn without_faults_there_is_no_injector() {
        assert!(Injector::new(&Inject { seed: 5, operations: 8, ..Inject::default() }, 1).is_none());
        assert!(Injector::new(&Inject { absent_end: 8, ..Inject::default() }, 1).is_some());
    }

    #[test]
    fn retries_end_after_the_burst_and_each_submission_has_its_own_burst() {
        let injector = injector(Inject { retry_rate: ALWAYS, retry_burst: 3, ..Inject::default() });
        for submission in 1..4 {
            let answers: Vec<bool> = (0..5).map(|_| injector.retries(submission, &Descriptor::nop())).collect();
            assert_eq!(answers, [true, true, true, false, false]);
        }
    }

    #[test]
    fn faults_apply_only_to_the_named_operations() {
        let injector = injector(Inject { lose_rate: ALWAYS, operations: 1 << 3, ..Inject::default() });
        assert!(injector.loses(id(1), &Descriptor::memory_move(0, 0, 1)));
        assert!(!injector.loses(id(1), &Descriptor::fill(0, 0, 1)));
    }

    #[test]
    fn the_same_seed_gives_the_same_faults_and_another_queue_others() {
        let inject = Inject { status_rate: u32::MAX / 4, status: 0x13, seed: 42, ..Inject::default() };
        let fates = |queue| -> Vec<bool> {
            let injector = Injector::new(&inject, queue).unwrap();
            (1..200).map(|n| injector.status(id(n), &Descriptor::nop()) == Some(Status::TransferSizeRange)).collect()
        };
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
        assert!(fates(1).contains(&true) && fates(1).contains(&false));
    }

    #[test]
    fn a_delayed_completion_is_due_after_its_delay() {
        let injector = injector(Inject { delay_rate: ALWAYS, delay_ns: 100, ..Inject::default() });
        let begun = Cell::new(0);
        let ask = |now| injector.may_conclude(id(1), &Descriptor::nop(), || now, |_| begun.set(begun.get() + 1));
        assert_eq!([ask(1000), ask(1099), ask(1100)], [false, false, true]);
        assert_eq!(begun.get(), 1);
    }

    #[test]
    fn a_reordered_completion_waits_for_a_later_one_up_to_a_limit() {
        let injector = injector(Inject { reorder_rate: ALWAYS, ..Inject::default() });
        let ask = |n, now| injector.may_conclude(id(n), &Descriptor::nop(), || now, |_| ());
        assert!(!ask(1, 0) && !ask(2, 0));
        // No completion comes after the second one: its time limit ends the wait.
        assert!(!ask(2, REORDER_NS - 1) && ask(2, REORDER_NS));
        assert!(ask(1, 1));
    }
}
