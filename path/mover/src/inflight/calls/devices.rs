//! The queues and records of memory calls: submit a piece, and wait for its record.

use crate::api::policy::Policy;
use crate::inflight::calls::policy::MemoryCallsPolicy;
use crate::inflight::free_list::FreeList;
use crate::plan::flags::with_policy_flags;
use crate::plan::request::Request;
use crate::plan::route::{Entry, PortalQueue};
use crate::plan::topology::{NodeMap, Topology};
use crate::report::{self, AbortOnUnwind};
use crate::sync::{AtomicU8, Ordering};
use crate::wait::forecast::WakeUp;
use crate::wait::stall_timer::{Bounds, StallAction, StallTimer};
use crate::wait::time::Clock;
use crate::wait::{Pass, Wait, Waiter};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use telpher_abi::{CompletionRecord, Opcode};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// One completion record, on a cache line of its own.
#[derive(Default, Debug)]
#[repr(align(64))]
struct Slot(RecordCell);

/// One queue, and whether it was reported late.
#[derive(Debug)]
struct Queue {
    queue: PortalQueue,
    /// 1 once the queue was reported late.
    reported: AtomicU8,
}

/// The queues and records. Nothing here allocates or locks after construction, except inside the portals.
#[derive(Debug)]
pub(super) struct Devices {
    queues: Box<[Queue]>,
    /// The indexes of all queues.
    every: Box<[usize]>,
    /// The queues nearest to each node, if that makes a difference.
    node_map: Option<NodeMap>,
    pub(super) policy: MemoryCallsPolicy,
    /// The part of the policy that decides the descriptor's flags.
    flags: Policy,
    clock: Arc<dyn Clock>,
    free: FreeList,
    /// The records. Dropped by hand, because a record that a device may still write must stay.
    slots: ManuallyDrop<Vec<Slot>>,
}

/// A descriptor that a queue has taken.
#[derive(Debug)]
pub(super) struct InFlight {
    queue: usize,
    entry: Entry,
    slot: u32,
}

/// The answer to a submission.
#[derive(Debug)]
pub(super) enum Submitted {
    /// A queue has it.
    Taken(InFlight),
    /// The queues are full, or all slots are taken.
    Full,
    /// No working queue can do it.
    NoQueue,
}

impl Devices {
    pub(super) fn new(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        mut policy: MemoryCallsPolicy,
        slots: u32,
        clock: Arc<dyn Clock>,
        topology: impl FnOnce() -> Arc<dyn Topology>,
    ) -> Devices {
        if matches!(policy.wait, Wait::Sleep { .. } | Wait::Predicted) {
            policy.wait = Wait::default();
        }
        let mut queues: Vec<Queue> = Vec::new();
        for portal in portals {
            // A portal that is passed twice gets one set of credits. By address alone: it may come with two vtables.
            let is_known = |known: &Queue| std::ptr::addr_eq(Arc::as_ptr(&known.queue.portal), Arc::as_ptr(&portal));
            if !queues.iter().any(is_known) {
                queues.push(Queue { queue: PortalQueue::new(portal), reported: AtomicU8::new(0) });
            }
        }
        let nodes = || queues.iter().map(|queue| queue.queue.portal.info().numa_node).collect::<Vec<_>>();
        Devices {
            every: (0..queues.len()).collect(),
            node_map: policy.nearest.then(|| NodeMap::of(&nodes(), topology)).flatten(),
            queues: queues.into(),
            flags: Policy { hint: policy.hint, ..Policy::default() },
            policy,
            clock,
            free: FreeList::new(slots),
            slots: ManuallyDrop::new((0..slots).map(|_| Slot::default()).collect()),
        }
    }

    fn working(&self) -> impl Iterator<Item = &PortalQueue> {
        self.queues.iter().map(|queue| &queue.queue).filter(|queue| !queue.is_dead())
    }

    /// Returns the longest piece of an operation that every working queue with this operation takes; 0 if there is no
    /// such queue.
    pub(super) fn longest_piece(&self, op: Opcode) -> u64 {
        let able = self.working().map(|queue| &queue.limits).filter(|limits| limits.operations.contains(op));
        able.map(|limits| limits.max_transfer).filter(|&max| max > 0).min().unwrap_or(0)
    }

    /// Returns true if a working queue copies between ranges that overlap.
    pub(super) fn can_copy_overlapping(&self) -> bool {
        let able = |queue: &PortalQueue| {
            queue.limits.operations.contains(Opcode::MemoryMove) && queue.limits.gen_cap.overlapping_copy()
        };
        self.working().any(able)
    }

    /// Offers a request of one piece to the queues. Counts refusals in `retries`.
    ///
    /// # Safety
    ///
    /// The memory of `request` is as [`Submission::vouch`] demands until [`wait`](Devices::wait) has returned.
    pub(super) unsafe fn submit(&self, request: &mut Request, retries: &mut u32) -> Submitted {
        let guard = AbortOnUnwind("a panic while a descriptor was submitted; it may be in flight");
        let Some(slot) = self.free.pop() else {
            guard.disarm();
            return Submitted::Full;
        };
        // SAFETY: our caller's promise; the slot is ours.
        let answer = unsafe { self.offer(request, slot, retries) };
        if !matches!(answer, Submitted::Taken(_)) {
            self.free.push(slot);
        }
        guard.disarm();
        answer
    }

    /// # Safety
    ///
    /// As for [`submit`](Devices::submit); no other thread and no device uses the slot.
    unsafe fn offer(&self, request: &mut Request, slot: u32, retries: &mut u32) -> Submitted {
        let record = &self.slots[slot as usize].0;
        let mut offers = 0;
        let mut answer = Submitted::NoQueue;
        let near = self.node_map.as_ref().map_or(&self.every[..], NodeMap::near_thread);
        // Threads have different slots, so they begin at different queues.
        let in_turn = |queues: &[usize], turn: usize| queues[(slot as usize + turn) % queues.len()];
        // The nearest queues, then the others. If all are near, they are asked again, so that a single queue is asked
        // twice.
        for turn in 0..near.len() + self.every.len() {
            let index = match turn.checked_sub(near.len()) {
                None => in_turn(near, turn),
                Some(turn) => in_turn(&self.every, turn),
            };
            if turn >= near.len() && near.len() < self.every.len() && near.contains(&index) {
                continue;
            }
            let queue = &self.queues[index].queue;
            if queue.is_dead() {
                continue;
            }
            request.chunk = None;
            let Some(descriptor) = request.next(&queue.limits).filter(|d| u64::from(d.size()) == request.len()) else {
                continue;
            };
            answer = Submitted::Full;
            // Without a credit the queue is full too, as far as this process knows.
            if let Some(entry) = queue.enter() {
                let descriptor = with_policy_flags(descriptor, &queue.limits, &self.flags, request.writes());
                record.clear();
                // SAFETY: our caller's promise for the memory. The slot stays taken until its record was seen or the
                // queue is dead; `drop` leaks slots that are taken.
                match queue.offer(&unsafe { Submission::vouch(descriptor.with_record(record.address())) }) {
                    Offer::Taken => return Submitted::Taken(InFlight { queue: index, entry, slot }),
                    Offer::Retry => *retries += 1,
                    // The queue dropped it, so it is never executed.
                    Offer::Lost => {}
                }
                queue.leave(entry);
            }
            offers += 1;
            if offers == MemoryCallsPolicy::OFFERS {
                break;
            }
        }
        answer
    }

    /// Waits until nothing touches the memory of a descriptor any more, and frees its slot. Returns its record, or
    /// `None` if the queue has stopped without writing one. Never returns before; see
    /// [`MemoryCallsPolicy::fatal`].
    pub(super) fn wait(&self, in_flight: InFlight) -> Option<CompletionRecord> {
        let guard = AbortOnUnwind("a panic while a memory call waited for its device; memory may still be written");
        let InFlight { queue: index, entry, slot } = in_flight;
        let record = self.await_record(index, slot);
        // A dead queue writes no record any more, so the slot is free in both cases.
        self.queues[index].queue.leave(entry);
        self.free.push(slot);
        guard.disarm();
        record
    }

    fn await_record(&self, index: usize, slot: u32) -> Option<CompletionRecord> {
        let Queue { queue, reported } = &self.queues[index];
        let record = &self.slots[slot as usize].0;
        let bounds = Bounds { patience: self.policy.patience, limit: self.policy.fatal };
        let (mut waiter, mut stall_timer) = (Waiter::new(self.policy.wait), StallTimer::default());
        loop {
            queue.drive();
            if let Some(record) = record.read() {
                return Some(record);
            }
            if queue.is_dead() {
                // It may have written the record between the two checks.
                return record.read();
            }
            let action = stall_timer.look(bounds, || self.clock.now());
            queue.on_stall(action);
            if action != StallAction::LookAgain && !queue.is_dead() && record.status().is_none() {
                let name = &queue.portal.info().name;
                // Relaxed: only the exchange counts.
                if reported.swap(1, Ordering::Relaxed) == 0 {
                    (self.policy.late)(name);
                }
                if action == StallAction::GiveUp {
                    (self.policy.give_up)(format_args!(
                        "{name} has not completed a descriptor within {:?} and cannot be stopped; the descriptor may \
                         still change memory",
                        self.policy.fatal
                    ));
                }
            }
            match waiter.pass(None, || self.clock.now(), &WakeUp::new()) {
                Pass::Rest(rest) => self.clock.rest(rest),
                Pass::Watch(how, at_most) => self.clock.watch(&*queue.portal, record, how, at_most),
            }
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let mut taken = self.slots.len();
        while self.free.pop().is_some() {
            taken -= 1;
        }
        if taken == 0 || self.queues.iter().all(|queue| queue.queue.is_dead()) {
            // SAFETY: no descriptor is in flight, and nothing uses the records after this.
            unsafe { ManuallyDrop::drop(&mut self.slots) };
        } else {
            report::say(format_args!(
                "memory calls were left in flight by {taken} signal handlers that did not return; all {} records are \
                 leaked, because a device may still write them",
                self.slots.len()
            ));
        }
    }
}
