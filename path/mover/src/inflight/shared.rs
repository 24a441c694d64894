//! The state that all handles of one mover share: submitting descriptors, completing them, and parking memory.

use super::table::{Slot, Table};
use crate::api::outcome::Via;
use crate::api::policy::Policy;
use crate::learn::costs::{Costs, Worker};
use crate::learn::tuning::{Measured, Tuning};
use crate::learn::{self, Choice, DeviceChooser, Learning};
use crate::plan::request::Request;
use crate::plan::route::{PortalQueue, PortalQueues};
use crate::plan::topology::Topology;
use crate::stats::{Counts, Work};
use crate::thread_stripe::STRIPES;
use crate::wait::forecast::{self, Awaited, Slept, WakeUp};
use crate::wait::stall_timer::StallTimer;
use crate::wait::time::{Clock, Moment, Rest};
use crate::wait::{Pass, Wait, Waiter};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use telpher_abi::{CompletionRecord, Descriptor, Opcode, Status};
use telpher_portal::{Offer, Portal, Submission};

/// One stripe's handle to the core. Jobs hold it, so threads of different stripes write different reference counts.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Shared(Arc<Core>);

impl Deref for Shared {
    type Target = Core;

    #[inline(always)]
    fn deref(&self) -> &Core {
        &self.0
    }
}

impl Shared {
    /// The shared core itself.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0
    }

    /// The handles of a new mover's core: one for each stripe, or a single one if there are no queues.
    pub(crate) fn new(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        policy: Policy,
        clock: Arc<dyn Clock>,
        topology: impl FnOnce() -> Arc<dyn Topology>,
    ) -> Arc<[Arc<Shared>]> {
        let core = Arc::new(Core::new(portals, policy, clock, topology));
        let stripes = if core.queues.all().is_empty() { 1 } else { STRIPES };
        (0..stripes).map(|_| Arc::new(Shared(Arc::clone(&core)))).collect()
    }
}

/// Queues, slots, policy and clock of one mover.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) queues: PortalQueues,
    /// The measured costs of operations.
    pub(crate) costs: Costs,
    /// The verdicts (device or CPU) that follow from the costs, if the policy learns.
    chooser: Option<Box<DeviceChooser>>,
    /// The shortest time between two clock reads, if the policy learns; subtracted from measured times.
    reading: Duration,
    table: Table,
    /// How late sleeps end, so that threads wake up early enough.
    pub(crate) wake_up: WakeUp,
    pub(crate) policy: Policy,
    pub(crate) clock: Arc<dyn Clock>,
    /// What all movers of this process have done.
    pub(crate) counts: Counts,
}

/// Returns the shortest of several distances between two consecutive clock reads.
fn reading(clock: &dyn Clock) -> Duration {
    let pairs = (0..32).map(|_| (clock.now().nanos, clock.now().nanos));
    Duration::from_nanos(pairs.map(|(a, b)| b.saturating_sub(a)).min().unwrap_or(0))
}

impl Core {
    pub(crate) fn new(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        policy: Policy,
        clock: Arc<dyn Clock>,
        topology: impl FnOnce() -> Arc<dyn Topology>,
    ) -> Self {
        let queues = PortalQueues::new(portals, topology);
        let capacity = if queues.all().is_empty() { 0 } else { policy.capacity };
        let costs = Costs::new(queues.all().len());
        let learns = policy.learning == Learning::On && !queues.all().is_empty();
        let chooser = learns.then(|| Box::new(DeviceChooser::new(&policy.threshold)));
        let reading = if learns { reading(&*clock) } else { Duration::ZERO };
        let counts = Counts::of_this_process();
        let (table, wake_up) = (Table::new(capacity, counts), WakeUp::new());
        Core { queues, costs, chooser, reading, table, wake_up, policy, clock, counts }
    }

    /// Chooses device or CPU for a single operation, and whether to time it. Called once for each operation.
    #[inline(always)]
    pub(crate) fn choose(&self, op: Opcode, bytes: u64) -> Choice {
        let from = self.policy.threshold.of(op);
        match &self.chooser {
            // An operation without a size has no cost worth learning, and *never* is a rule.
            Some(chooser) if bytes > 0 && from < u64::MAX => learn::choose(chooser, &self.costs, op, bytes),
            _ => Choice { device: bytes >= from && !self.queues.all().is_empty(), timed: false },
        }
    }

    /// Returns the bytes from which an operation goes to a device, as far as is known now.
    pub(crate) fn threshold(&self, op: Opcode) -> u64 {
        let from = self.policy.threshold.of(op);
        match &self.chooser {
            Some(chooser) if from < u64::MAX => chooser.least(op).unwrap_or(u64::MAX),
            _ => from,
        }
    }

    /// Loads costs measured elsewhere.
    pub(crate) fn load_costs(&self, tuning: &Tuning) {
        for &Measured { op, bytes, cpu, device } in &tuning.measured {
            self.costs.load(op, bytes, Worker::Cpu, cpu);
            // With one operation in flight, the measured time is the device's latency; with more, it is only the
            // caller's time.
            if tuning.machine.in_flight == 1 {
                (0..self.queues.all().len())
                    .for_each(|queue| self.costs.load(op, bytes, Worker::Device { queue }, device));
            }
            if let Some(chooser) = &self.chooser {
                chooser.load(&self.costs, op, bytes, device);
            }
        }
    }

    /// Counts an operation that has ended.
    pub(crate) fn count(&self, via: Via, bytes: u64) {
        let (operations, of_bytes) = match via {
            Via::Device => (Work::AT.by_device, Work::AT.device_bytes),
            Via::Cpu => (Work::AT.by_cpu, Work::AT.cpu_bytes),
            Via::Both => (Work::AT.by_both, Work::AT.both_bytes),
        };
        self.counts.add(operations, 1);
        self.counts.add(of_bytes, bytes);
    }

    /// Learns what a timed operation cost its caller.
    pub(crate) fn learn(&self, op: Opcode, bytes: u64, device: bool, took: Duration) {
        if let Some(chooser) = &self.chooser {
            learn::learn(chooser, &self.costs, op, bytes, device, took.saturating_sub(self.reading));
        }
    }

    /// Learns the cost of an operation that the calling thread executed, or only waited for, since `begun`.
    pub(crate) fn learn_since(&self, op: Opcode, bytes: u64, device: bool, begun: Moment) {
        self.learn(op, bytes, device, self.clock.now().since(begun));
    }

    /// Offers a descriptor to a queue, with the record in a slot. `None` means no slot, no credit, or `Retry`.
    ///
    /// # Safety
    ///
    /// As for [`Submission::vouch`]; the promise ends when the slot is completed or swept.
    pub(super) unsafe fn submit(&self, queue: usize, descriptor: Descriptor, now: Moment) -> Option<Slot> {
        let mut slot = self.table.acquire(&self.queues, queue)?;
        let descriptor = descriptor.with_record(self.table.record(&slot).address());
        // SAFETY: the buffers are valid by our caller's promise. The record is the slot's own; no other code uses it
        // until the slot is completed, and `Drop` leaks it rather than frees it while a slot is parked. A slot that is
        // never completed belongs to a handle that holds an `Arc` to this table or to a scope that waits.
        let submission = unsafe { Submission::vouch(descriptor) };
        match self.queues.all()[queue].offer(&submission) {
            Offer::Taken | Offer::Lost => {
                // From here on, unwinding must not lose the slot: so no clock read.
                if self.policy.wait.has_a_target() {
                    slot.awaited = Some(self.awaited(&slot, &descriptor, now));
                }
                Some(slot)
            }
            Offer::Retry => {
                self.table.release(&self.queues, slot);
                self.counts.add(Work::AT.retries, 1);
                None
            }
        }
    }

    /// Returns what was sent now, and when its record is expected.
    #[inline(never)]
    fn awaited(&self, slot: &Slot, descriptor: &Descriptor, now: Moment) -> Awaited {
        let (op, queue, slot) = (descriptor.opcode(), slot.queue, slot.index);
        // A batch's size counts its members, whose own sizes are not known here.
        let bytes = if op == Opcode::Batch { 0 } else { u64::from(descriptor.size()) };
        if self.policy.wait == Wait::Predicted {
            return self.expect(queue, slot, op, bytes, now);
        }
        Awaited { queue, slot, op, bytes, since: Moment::default(), due: Moment::default(), alone: false }
    }

    /// Returns when the record of a descriptor sent to a queue now is expected.
    pub(crate) fn expect(&self, queue: usize, slot: u32, op: Opcode, bytes: u64, now: Moment) -> Awaited {
        let takes = self.costs.predict(op, bytes, Worker::Device { queue });
        let (due, alone) = self.queues.all()[queue].busy_until.add(now, takes);
        Awaited { queue, slot, op, bytes, since: now, due, alone }
    }

    /// Returns true if the policy splits a request of this length into parts that are in flight together.
    pub(super) fn is_long(&self, request: &Request) -> bool {
        let split = &self.policy.split;
        let shared_out = split.hybrid || split.ways > 1 && self.queues.all().len() > 1;
        let long = request.len() > self.queues.max_transfer() || request.len() >= split.above && shared_out;
        long && request.is_divisible()
    }

    /// Returns the queues for the parts of a request and the longest part; `None` if one op does it better.
    pub(crate) fn split_plan(&self, request: &Request, thread: impl Fn() -> usize) -> Option<(Vec<usize>, u64)> {
        if !self.is_long(request) {
            return None;
        }
        let split = &self.policy.split;
        let queues = self.queues.several(self.policy.route, request, split.ways, thread);
        let longest = queues.iter().map(|&queue| self.queues.all()[queue].limits.max_transfer).min()?;
        (queues.len() > 1 || request.len() > longest || split.hybrid).then_some((queues, longest))
    }

    /// Returns true once the slot's record is written.
    #[inline]
    pub(super) fn is_complete(&self, slot: &Slot) -> bool {
        let is_written = self.table.record(slot).status().is_some();
        if let (false, Some(awaited)) = (is_written, &slot.awaited) {
            forecast::note_missed(awaited);
        }
        is_written
    }

    /// To be called when the record was not written. Returns true once the slot's queue is dead; if the record is still
    /// missing at the next check, it never comes. Now and then this asks the queue itself, and at the policy's limit it
    /// gives the queue up.
    #[inline]
    pub(super) fn is_dead(&self, slot: &Slot, stall_timer: &mut StallTimer) -> bool {
        let queue = &self.queues.all()[slot.queue];
        queue.on_stall(stall_timer.look(self.policy.bounds(), || self.clock.now()));
        queue.is_dead()
    }

    /// Frees the slot of a descriptor whose record never comes; returns the reason.
    pub(super) fn release_dead(&self, slot: Slot) -> Arc<str> {
        let why = self.queues.all()[slot.queue].why();
        self.table.release(&self.queues, slot);
        why
    }

    /// Takes a written record and frees its slot.
    pub(super) fn complete(&self, slot: Slot) -> CompletionRecord {
        let record = self.table.record(&slot).read().expect("a slot is completed after its record was seen");
        let awaited = slot.awaited;
        self.table.release(&self.queues, slot);
        // After the slot is freed, because a clock may panic.
        if let Some(awaited) = awaited {
            self.arrived(&awaited, &record);
        }
        record
    }

    /// Learns from a record that was seen. If the thread did nothing but wait for it, its duration is known.
    fn arrived(&self, awaited: &Awaited, record: &CompletionRecord) {
        let Some(slept) = forecast::current_check() else { return };
        if self.policy.wait != Wait::Predicted {
            return;
        }
        self.learn_arrival(awaited, slept, self.clock.now(), record.status() == Status::Success);
    }

    /// Learns from a record that was seen by a thread that only waited for it; `slept` is that thread's sleep before
    /// this check, if it slept.
    pub(crate) fn learn_arrival(&self, awaited: &Awaited, slept: Option<Slept>, now: Moment, success: bool) {
        let busy_until = &self.queues.all()[awaited.queue].busy_until;
        busy_until.ended(awaited.due, now);
        if awaited.alone && awaited.bytes > 0 && success {
            let worker = Worker::Device { queue: awaited.queue };
            let in_a_row = busy_until.seen(slept.is_some());
            self.costs.learn(awaited.op, awaited.bytes, worker, awaited.took(slept, in_a_row, now));
        }
    }

    /// Leaves `payload` in these slots, of which there is at least one, until the last has its record.
    pub(super) fn park<T: Send + 'static>(&self, mut slots: Vec<Slot>, payload: T, expired: bool) {
        let mut queues: Vec<usize> = slots.iter().map(|slot| slot.queue).collect();
        let Some(last) = slots.pop() else { return };
        if slots.is_empty() {
            self.table.park(last, Box::new(payload), expired);
        } else {
            // The lock is never taken: it makes the payload shareable between several slots, whatever its type.
            let payload = Arc::new(Mutex::new(payload));
            slots.into_iter().for_each(|slot| self.table.park(slot, Box::new(Arc::clone(&payload)), expired));
            self.table.park(last, Box::new(payload), expired);
        }
        if expired {
            // If the queue has stopped, the next sweep frees the payload. Done after all parking, because a portal may
            // panic.
            queues.sort_unstable();
            queues.dedup();
            queues.into_iter().for_each(|queue| self.queues.all()[queue].check_health());
        }
    }

    /// Returns the number of dropped jobs and of expired jobs whose memory is still kept.
    pub(crate) fn parked(&self) -> (u32, u32) {
        self.table.parked()
    }

    /// Lets every executor without a thread work, and frees parked memory.
    pub(crate) fn drive(&self) {
        self.queues.all().iter().for_each(PortalQueue::drive);
        self.sweep();
    }

    fn sweep(&self) {
        self.table.sweep(&self.queues, self.policy.limit, || self.clock.now());
    }

    /// Like [`drive`](Core::drive), but frees all that can be freed.
    pub(crate) fn reclaim(&self) {
        self.queues.all().iter().for_each(PortalQueue::drive);
        if self.parked() != (0, 0) {
            self.table.sweep_all(&self.queues);
        }
    }

    /// Drives only the queue that the caller waits for; sweeps as well.
    pub(crate) fn drive_queue(&self, queue: Option<usize>) {
        match queue.and_then(|queue| self.queues.all().get(queue)) {
            Some(queue) => {
                queue.drive();
                self.sweep();
            }
            None => self.drive(),
        }
    }

    /// Calls `look` until it is ready, and rests between the calls as the policy says.
    pub(crate) fn wait<T>(&self, look: impl FnMut() -> Poll<T>) -> T {
        self.wait_by(Waiter::new(self.policy.wait), |nap| self.sleep(nap), look)
    }

    /// Like [`wait`](Core::wait), for a thread whose sleeps another thread may end: `sleep` sleeps for at most the
    /// given time, and returns false if it was ended early.
    pub(crate) fn wait_with<T>(&self, sleep: impl Fn(Duration) -> bool, look: impl FnMut() -> Poll<T>) -> T {
        self.wait_by(Waiter::new(self.policy.wait), sleep, look)
    }

    /// Like [`wait`](Core::wait), for a caller that has something to do at `end`: no sleep goes beyond it.
    pub(crate) fn wait_until<T>(&self, end: Moment, look: impl FnMut() -> Poll<T>) -> T {
        self.wait_by(Waiter::new(self.policy.wait).until(end), |nap| self.sleep(nap), look)
    }

    /// Sleeps for this long.
    fn sleep(&self, nap: Duration) -> bool {
        self.clock.rest(Rest::Sleep(nap));
        true
    }

    fn wait_by<T>(&self, mut waiter: Waiter, sleep: impl Fn(Duration) -> bool, mut look: impl FnMut() -> Poll<T>) -> T {
        let _ = forecast::take_missed();
        loop {
            // Only this thread's own checks count, and only until it does something else.
            let check = forecast::begin_check(waiter.slept());
            let found = look();
            drop(check);
            if let Poll::Ready(found) = found {
                return found;
            }
            self.pass(&mut waiter, &sleep);
        }
    }

    /// Rests as a waiter's policy says.
    fn pass(&self, waiter: &mut Waiter, sleep: impl Fn(Duration) -> bool) {
        let awaited = forecast::take_missed();
        match waiter.pass(awaited.as_ref(), || self.clock.now(), &self.wake_up) {
            Pass::Rest(Rest::Sleep(nap)) if self.policy.wait == Wait::Predicted => {
                let end = self.clock.now().after(nap);
                if sleep(nap) {
                    self.wake_up.learn(self.clock.now().since(end));
                }
            }
            Pass::Rest(Rest::Sleep(nap)) => {
                sleep(nap);
            }
            Pass::Rest(rest) => self.clock.rest(rest),
            Pass::Watch(how, at_most) => {
                // Only says where to look: a signal handler that waits on this thread with another mover may have left
                // its own numbers, which may not exist in this mover.
                let watched = awaited.and_then(|Awaited { queue, slot, .. }| {
                    Some((self.queues.all().get(queue)?, self.table.record_of(slot)?))
                });
                match watched {
                    Some((queue, record)) => self.clock.watch(&*queue.portal, record, how, at_most),
                    None => self.clock.rest(Rest::Pause),
                }
            }
        }
    }

    fn settle(&self) -> (u32, u32) {
        let end = self.clock.now().after(self.policy.linger);
        self.wait(|| {
            self.drive();
            let parked = self.parked();
            if parked == (0, 0) || self.clock.now() >= end { Poll::Ready(()) } else { Poll::Pending }
        });
        if self.parked() != (0, 0) {
            self.queues.all().iter().for_each(PortalQueue::check_health);
            self.table.sweep_all(&self.queues);
        }
        self.parked()
    }

    /// Returns true if a queue has a descriptor without a record.
    ///
    /// **Staleness**: other threads submit and complete meanwhile.
    pub(crate) fn has_in_flight(&self) -> bool {
        self.table.has_in_flight()
    }

    /// Returns the time if it is needed; otherwise a moment that is not compared.
    pub(crate) fn now_if(&self, needed: bool) -> Moment {
        if needed { self.clock.now() } else { Moment::default() }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        /// Leaks the table unless it is forgotten: settling runs a portal, a clock and payloads' drops, and if one of
        /// them unwinds, the rest is still in flight.
        struct Leak<'a>(&'a mut Core);
        impl Drop for Leak<'_> {
            fn drop(&mut self) {
                self.0.table.leak();
            }
        }
        if self.parked() == (0, 0) {
            return;
        }
        let leak = Leak(self);
        if !leak.0.queues.all().iter().all(PortalQueue::is_own_process) {
            // A forked child's copy: no device has it. A payload that a thread of the parent was about to free stays.
            leak.0.table.sweep_all(&leak.0.queues);
            return;
        }
        let (dropped, expired) = leak.0.settle();
        if (dropped, expired) == (0, 0) {
            std::mem::forget(leak);
            return;
        }
        drop(leak);
        crate::report::say(format_args!(
            "{} jobs had no completion record {:?} after the last handle of their mover was dropped \
             ({dropped} dropped, {expired} past their deadline); their buffers and records are leaked, because the \
             device may still write them",
            dropped.saturating_add(expired),
            self.policy.linger,
        ));
    }
}
