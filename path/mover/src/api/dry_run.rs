//! A mover's routing and waiting decisions without executing anything, for simulators.
//!
//! Nothing is decided in this file. It calls the same code as a [`Mover`](crate::Mover), with an interface that needs
//! neither memory nor a device.

use crate::api::policy::Policy;
use crate::inflight::{Core, StubPortal};
use crate::learn::Learning;
use crate::plan::request::Request;
use crate::plan::route::Entry;
use crate::plan::split::{BULK, DEPTH, Remainder};
use crate::plan::topology::Topology;
use crate::wait::forecast::{Awaited, Slept};
use crate::wait::time::{ManualClock, Moment, Rest};
use crate::wait::{Pass, Wait, Waiter};
use std::sync::Arc;
use std::time::Duration;
use telpher_abi::{Descriptor, Opcode};
use telpher_portal::{Portal, QueueInfo};

/// A mover's decisions without executing anything. Costs that a mover would measure are passed in by the caller
/// ([`arrived`](DryRun::arrived)).
#[derive(Debug)]
pub struct DryRun {
    core: Core,
}

/// The right to one descriptor of a queue, as a mover counts them; given back by [`DryRun::leave`].
#[must_use = "an entry that is not given back is a queue entry lost for ever"]
#[derive(Debug)]
pub struct QueueEntry(Entry);

/// A completion record that is expected.
#[derive(Clone, Copy, Debug)]
pub struct Expected(Awaited);

impl Expected {
    /// Returns the time at which the record is expected.
    #[must_use]
    pub fn due(&self) -> Moment {
        self.0.due
    }
}

/// One wait for a record, sleep by sleep.
#[derive(Debug)]
pub struct Waiting(Waiter);

/// The parts of one long operation. The devices and the waiting thread each take the next part.
#[derive(Clone, Debug)]
pub struct Parts {
    remainder: Remainder,
    queues: Vec<usize>,
    longest: u64,
    hybrid: bool,
    bulk: bool,
}

impl DryRun {
    /// The decisions of a mover with these queues and this policy. Learning is off: the threshold stays as given.
    #[must_use]
    pub fn new(queues: impl IntoIterator<Item = QueueInfo>, policy: Policy, topology: Arc<dyn Topology>) -> Self {
        let portals = queues.into_iter().map(|queue| Arc::new(StubPortal(queue)) as Arc<dyn Portal>);
        let clock = Arc::new(ManualClock::new(Duration::ZERO));
        DryRun { core: Core::new(portals, Policy { learning: Learning::Off, ..policy }, clock, || topology) }
    }

    /// Returns true if an operation of `bytes` goes to a device ([`Policy::threshold`]).
    #[must_use]
    pub fn goes_to_a_device(&self, op: Opcode, bytes: u64) -> bool {
        self.core.choose(op, bytes).device
    }

    /// Returns the index of the queue to ask first ([`Policy::route`]); if it is full, the others follow in their
    /// order. `thread` tells apart threads that are on one node.
    #[must_use]
    pub fn first(&self, operation: &Descriptor, thread: usize) -> usize {
        self.core.queues.first(self.core.policy.route, &Request::of(*operation), || thread)
    }

    /// Returns how an operation of `bytes` is split ([`Policy::split`]); `None` if it stays whole.
    #[must_use]
    pub fn parts(&self, operation: &Descriptor, bytes: u64, thread: usize) -> Option<Parts> {
        let request = Request::new(*operation, bytes);
        let (queues, longest) = self.core.split_plan(&request, || thread)?;
        Some(Parts {
            remainder: Remainder::of(&request),
            queues,
            longest,
            hybrid: self.core.policy.split.hybrid,
            bulk: bytes >= BULK,
        })
    }

    /// Takes room for one descriptor in a queue; `None` if the mover knows of none.
    #[must_use]
    pub fn enter(&self, queue: usize) -> Option<QueueEntry> {
        self.core.queues.all().get(queue)?.enter().map(QueueEntry)
    }

    /// Gives an entry back after its record was seen.
    pub fn leave(&self, queue: usize, entry: QueueEntry) {
        if let Some(queue) = self.core.queues.all().get(queue) {
            queue.leave(entry.0);
        }
    }

    /// Returns when the record of a descriptor sent to a queue now is expected; `None` if there is no such queue.
    #[must_use]
    pub fn expect(&self, queue: usize, op: Opcode, bytes: u64, now: Moment) -> Option<Expected> {
        (queue < self.core.queues.all().len()).then(|| Expected(self.core.expect(queue, 0, op, bytes, now)))
    }

    /// Begins a wait for a record.
    #[must_use]
    pub fn wait(&self) -> Waiting {
        Waiting(Waiter::new(Wait::Predicted))
    }

    /// After a check that found no record: returns how long to sleep until the next one; `None` means do not sleep.
    #[must_use]
    pub fn nap(&self, waiting: &mut Waiting, expected: &Expected, now: Moment) -> Option<Duration> {
        match waiting.0.pass(Some(&expected.0), || now, &self.core.wake_up) {
            Pass::Rest(Rest::Sleep(nap)) => Some(nap),
            _ => None,
        }
    }

    /// Reports that a sleep ended `late` after its intended end.
    pub fn woke(&self, late: Duration) {
        self.core.wake_up.learn(late);
    }

    /// Reports that a thread that did nothing but wait has seen a record.
    pub fn arrived(&self, waiting: &Waiting, expected: &Expected, now: Moment) {
        let slept: Option<Slept> = waiting.0.slept();
        self.core.learn_arrival(&expected.0, slept, now, true);
    }
}

impl Parts {
    /// Returns how many parts are in flight at the same time.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.queues.len() * DEPTH
    }

    /// Returns the queue for the parts at one of these positions.
    #[must_use]
    pub fn queue(&self, position: usize) -> usize {
        self.queues[position % self.queues.len()]
    }

    /// Takes the next part for a device; returns its start and length. `is_busy` says whether the part's queue has
    /// another part of the operation.
    pub fn next_for_device(&mut self, is_busy: bool) -> Option<(u64, u64)> {
        let ways = self.queues.len();
        if self.hybrid {
            self.remainder.take_shared(ways, self.longest, is_busy)
        } else {
            self.remainder.take_front(ways, self.longest, false)
        }
    }

    /// Puts back the part that was taken last, because its queue has no room.
    pub fn put_back(&mut self, start: u64) {
        self.remainder.put_back(start);
    }

    /// Takes the next part for the thread that waits; `None` if that thread takes none.
    pub fn next_for_waiting_thread(&mut self) -> Option<(u64, u64)> {
        if self.hybrid { self.remainder.take_back(self.queues.len(), self.bulk) } else { None }
    }

    /// Takes the next part for the CPU when the queues have no room.
    pub fn next_for_cpu(&mut self) -> Option<(u64, u64)> {
        self.remainder.take_back(self.queues.len(), self.bulk)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::plan::route::Route;
    use crate::plan::split::Split;
    use crate::plan::threshold::Threshold;
    use crate::plan::topology::SystemTopology;
    use telpher_portal::QueueMode;
    use telpher_portal::mock::MockPortal;

    fn dry_run(queues: usize, policy: Policy) -> DryRun {
        let infos = (0..queues).map(|queue| QueueInfo {
            name: format!("wq{queue}.0"),
            ..MockPortal::new(QueueMode::Dedicated, 2).info().clone()
        });
        DryRun::new(infos, policy, Arc::new(SystemTopology::new()))
    }

    const AT: fn(u64) -> Moment = |micros| Moment { nanos: micros * 1000 };

    #[test]
    fn requests_below_the_threshold_or_without_queues_stay_on_the_cpu() {
        let policy = Policy { threshold: Threshold::all(8192), ..Policy::default() };
        let goes = |queues, bytes| dry_run(queues, policy).goes_to_a_device(Opcode::MemoryMove, bytes);
        assert_eq!([goes(1, 8191), goes(1, 8192), goes(0, 8192)], [false, true, false]);
    }

    #[test]
    fn queues_take_turns_and_hand_out_as_many_entries_as_they_have() {
        let dry_run = dry_run(3, Policy { route: Route::RoundRobin, ..Policy::default() });
        assert_eq!([0; 4].map(|_| dry_run.first(&Descriptor::nop(), 0)), [0, 1, 2, 0]);
        let (a, b) = (dry_run.enter(1).unwrap(), dry_run.enter(1).unwrap());
        assert!(dry_run.enter(1).is_none() && dry_run.enter(3).is_none());
        dry_run.leave(1, a);
        dry_run.leave(1, dry_run.enter(1).unwrap());
        dry_run.leave(1, b);
    }

    #[test]
    fn a_long_copy_is_split_over_several_queues_and_a_short_one_is_not() {
        let split = Split { above: 1 << 20, ways: 2, hybrid: true };
        let dry_run = dry_run(4, Policy { split, ..Policy::default() });
        let copy = Descriptor::memory_move(1 << 40, 2 << 40, 0);
        assert!(dry_run.parts(&copy, (1 << 20) - 1, 0).is_none());
        let mut parts = dry_run.parts(&copy, 4 << 20, 0).unwrap();
        assert_eq!(parts.depth(), 2 * DEPTH);
        assert_ne!(parts.queue(0), parts.queue(1));
        let mut left: u64 = 4 << 20;
        while let Some((_, len)) = parts.next_for_device(false) {
            left -= len;
            left -= parts.next_for_waiting_thread().map_or(0, |(_, len)| len);
        }
        assert_eq!((left, parts.next_for_cpu()), (0, None));
    }

    #[test]
    fn a_wait_sleeps_until_shortly_before_the_record_and_learns_from_it() {
        let dry_run = dry_run(1, Policy { wait: Wait::Predicted, ..Policy::default() });
        let sent = || dry_run.expect(0, Opcode::MemoryMove, 16 << 20, AT(0)).unwrap();
        let nap = |expected: &Expected| dry_run.nap(&mut dry_run.wait(), expected, AT(0)).unwrap();
        let expected = sent();
        let first = nap(&expected);
        // 16 MiB at 31 GB/s, less a sixteenth and the wake-up time.
        assert!((400..540).contains(&first.as_micros()), "{first:?}");
        dry_run.arrived(&dry_run.wait(), &expected, AT(2000));
        for _ in 0..20 {
            dry_run.arrived(&dry_run.wait(), &sent(), AT(2000));
        }
        assert!(nap(&sent()) > 2 * first, "the record was late many times");
        assert!(
            dry_run
                .nap(&mut dry_run.wait(), &dry_run.expect(0, Opcode::Fill, 64, AT(9000)).unwrap(), AT(9000))
                .is_none()
        );
    }
}
