//! What all handles of one mover share, and the way in and out of the air.

use super::table::{Leg, Table};
use crate::ask::Ask;
use crate::costs::{Costs, Worker};
use crate::forecast::{self, Awaited, Slept, WakeUp};
use crate::learn::{self, Choice, Judge, Learning};
use crate::policy::Policy;
use crate::route::{Lane, Lanes};
use crate::stripe::STRIPES;
use crate::time::{Clock, Moment, Rest};
use crate::topology::Topology;
use crate::tuning::{Measured, Tuning};
use crate::vigil::Vigil;
use crate::wait::{Pass, Wait, Waiter};
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use telpher_abi::{CompletionRecord, Descriptor, Opcode, Status};
use telpher_portal::{Offer, Portal, Submission};

/// One stripe of threads' way to what all share. Jobs hold it, and count themselves on a line of their own.
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
    /// The ways to a new mover's core: one for each stripe, or a single one if there is nothing to be in flight.
    pub(crate) fn new(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        policy: Policy,
        clock: Arc<dyn Clock>,
        topology: impl FnOnce() -> Arc<dyn Topology>,
    ) -> Arc<[Arc<Shared>]> {
        let core = Arc::new(Core::new(portals, policy, clock, topology));
        let ways = if core.lanes.all().is_empty() { 1 } else { STRIPES };
        if !core.lanes.all().is_empty() {
            crate::forks::attend(&core);
        }
        (0..ways).map(|_| Arc::new(Shared(Arc::clone(&core)))).collect()
    }
}

/// Queues, slots, policy and clock of one mover.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) lanes: Lanes,
    /// What operations cost, as far as somebody measured it.
    pub(crate) costs: Costs,
    /// What came of it for whether, if the policy learns.
    judge: Option<Box<Judge>>,
    /// What the clock shows between two readings with nothing in between, if the policy learns: no part of what is timed.
    reading: Duration,
    table: Table,
    /// How late sleeps end, for those who wake up early.
    pub(crate) wake_up: WakeUp,
    pub(crate) policy: Policy,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The least of some readings of the clock, one after the other.
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
        let lanes = Lanes::new(portals, topology);
        let capacity = if lanes.all().is_empty() { 0 } else { policy.capacity };
        let costs = Costs::new(lanes.all().len());
        let learns = policy.learning == Learning::On && !lanes.all().is_empty();
        let judge = learns.then(|| Box::new(Judge::new(&policy.threshold)));
        let reading = if learns { reading(&*clock) } else { Duration::ZERO };
        Core { lanes, costs, judge, reading, table: Table::new(capacity), wake_up: WakeUp::new(), policy, clock }
    }

    /// Who does an operation on its own, and whether it is to be timed. To be asked once for an operation.
    #[inline(always)]
    pub(crate) fn choose(&self, op: Opcode, bytes: u64) -> Choice {
        let from = self.policy.threshold.of(op);
        match &self.judge {
            // What has no size has no cost worth learning, and *never* is a rule.
            Some(judge) if bytes > 0 && from < u64::MAX => learn::choose(judge, &self.costs, op, bytes),
            _ => Choice { device: bytes >= from && !self.lanes.all().is_empty(), timed: false },
        }
    }

    /// Bytes from which an operation goes to a device, as far as is known now.
    pub(crate) fn threshold(&self, op: Opcode) -> u64 {
        let from = self.policy.threshold.of(op);
        match &self.judge {
            Some(judge) if from < u64::MAX => judge.least(op).unwrap_or(u64::MAX),
            _ => from,
        }
    }

    /// Takes over costs measured elsewhere.
    pub(crate) fn teach(&self, tuning: &Tuning) {
        for &Measured { op, bytes, cpu, device } in &tuning.measured {
            self.costs.teach(op, bytes, Worker::Cpu, cpu);
            // Whoever waited for each saw the device's time; with more in flight it is the caller's alone.
            if tuning.machine.in_flight == 1 {
                (0..self.lanes.all().len())
                    .for_each(|lane| self.costs.teach(op, bytes, Worker::Device { lane }, device));
            }
            if let Some(judge) = &self.judge {
                judge.teach(&self.costs, op, bytes, device);
            }
        }
    }

    /// What a timed operation cost its caller.
    pub(crate) fn learn(&self, op: Opcode, bytes: u64, device: bool, took: Duration) {
        if let Some(judge) = &self.judge {
            learn::learn(judge, &self.costs, op, bytes, device, took.saturating_sub(self.reading));
        }
    }

    /// The same for one that the calling thread did, or did nothing but wait for, since `begun`.
    pub(crate) fn learn_since(&self, op: Opcode, bytes: u64, device: bool, begun: Moment) {
        self.learn(op, bytes, device, self.clock.now().since(begun));
    }

    /// Offers a descriptor to a lane, asking for a record in a slot. Nothing means no slot, no credit, or `Retry`.
    ///
    /// # Safety
    ///
    /// As for [`Submission::vouch`]; the promise ends when the leg is landed or swept.
    pub(super) unsafe fn take_off(&self, lane: usize, descriptor: Descriptor, now: Moment) -> Option<Leg> {
        let mut leg = self.table.board(&self.lanes, lane)?;
        let descriptor = descriptor.with_record(self.table.record(&leg).address());
        // SAFETY: buffers by our caller's promise; the record is the slot's own, which nobody uses until the leg lands,
        // and which `Drop` leaks rather than frees while a slot is parked. A leg that is never landed belongs to a handle
        // that holds an `Arc` to this table or to a scope that waits.
        let submission = unsafe { Submission::vouch(descriptor) };
        match self.lanes.all()[lane].offer(&submission) {
            Offer::Taken => {
                // From here on nothing may unwind but with the leg: so no look at the clock.
                if self.policy.wait.has_a_target() {
                    leg.awaited = Some(self.awaited(&leg, &descriptor, now));
                }
                Some(leg)
            }
            Offer::Retry => {
                self.table.land(&self.lanes, leg);
                None
            }
        }
    }

    /// What was sent now, and when its record is expected.
    #[inline(never)]
    fn awaited(&self, leg: &Leg, descriptor: &Descriptor, now: Moment) -> Awaited {
        let (op, lane, slot) = (descriptor.opcode(), leg.lane, leg.slot);
        // A batch's size counts its members, whose own are not known here.
        let bytes = if op == Opcode::Batch { 0 } else { u64::from(descriptor.size()) };
        if self.policy.wait == Wait::Predicted {
            return self.expect(lane, slot, op, bytes, now);
        }
        Awaited { lane, slot, op, bytes, since: Moment::default(), due: Moment::default(), alone: false }
    }

    /// When the record of what is sent to a lane now is expected.
    pub(crate) fn expect(&self, lane: usize, slot: u32, op: Opcode, bytes: u64, now: Moment) -> Awaited {
        let takes = self.costs.predict(op, bytes, Worker::Device { lane });
        let (due, alone) = self.lanes.all()[lane].agenda.add(now, takes);
        Awaited { lane, slot, op, bytes, since: now, due, alone }
    }

    /// True if policy wants an ask in parts that are in flight together, as far as its length says.
    pub(super) fn is_long(&self, ask: &Ask) -> bool {
        let split = &self.policy.split;
        let shared_out = split.hybrid || split.ways > 1 && self.lanes.all().len() > 1;
        let long = ask.len() > self.lanes.max_transfer() || ask.len() >= split.above && shared_out;
        long && ask.is_divisible()
    }

    /// The lanes that the parts of an ask go to, and a part's longest; nothing if it is better done in one flight.
    pub(crate) fn fleet(&self, ask: &Ask, thread: impl Fn() -> usize) -> Option<(Vec<usize>, u64)> {
        if !self.is_long(ask) {
            return None;
        }
        let split = &self.policy.split;
        let lanes = self.lanes.several(self.policy.route, ask, split.ways, thread);
        let longest = lanes.iter().map(|&lane| self.lanes.all()[lane].limits.max_transfer).min()?;
        (lanes.len() > 1 || ask.len() > longest || split.hybrid).then_some((lanes, longest))
    }

    /// True once the leg's record is written.
    #[inline]
    pub(super) fn has_landed(&self, leg: &Leg) -> bool {
        let landed = self.table.record(leg).status().is_some();
        if let (false, Some(awaited)) = (landed, &leg.awaited) {
            forecast::note(awaited);
        }
        landed
    }

    /// To be asked after a look in vain. True once the leg's queue is out, so that the record, if it is still not there at the
    /// next look, never comes; now and then asks the queue itself, and at the policy's limit gives it up.
    #[inline]
    pub(super) fn has_gone_down(&self, leg: &Leg, vigil: &mut Vigil) -> bool {
        let lane = &self.lanes.all()[leg.lane];
        lane.looked(vigil.look(self.policy.bounds(), || self.clock.now()));
        lane.is_out()
    }

    /// Frees the slot of a leg whose record never comes, and tells why.
    pub(super) fn salvage(&self, leg: Leg) -> Arc<str> {
        let why = self.lanes.all()[leg.lane].why();
        self.table.land(&self.lanes, leg);
        why
    }

    /// Takes a written record and frees its slot.
    pub(super) fn land(&self, leg: Leg) -> CompletionRecord {
        let record = self.table.record(&leg).read().expect("a leg lands after its record was seen");
        let awaited = leg.awaited;
        self.table.land(&self.lanes, leg);
        // Behind the landing, because a clock may panic.
        if let Some(awaited) = awaited {
            self.arrived(&awaited, &record);
        }
        record
    }

    /// A record was seen. If the thread did nothing but wait for it, it is known how long it took.
    fn arrived(&self, awaited: &Awaited, record: &CompletionRecord) {
        let Some(slept) = forecast::attention() else { return };
        if self.policy.wait != Wait::Predicted {
            return;
        }
        self.learn_arrival(awaited, slept, self.clock.now(), record.status() == Status::Success);
    }

    /// A record was seen by a thread that did nothing but wait for it, and slept before that look or did not.
    pub(crate) fn learn_arrival(&self, awaited: &Awaited, slept: Option<Slept>, now: Moment, success: bool) {
        let agenda = &self.lanes.all()[awaited.lane].agenda;
        agenda.ended(awaited.due, now);
        if awaited.alone && awaited.bytes > 0 && success {
            let worker = Worker::Device { lane: awaited.lane };
            let in_a_row = agenda.seen(slept.is_some());
            self.costs.learn(awaited.op, awaited.bytes, worker, awaited.took(slept, in_a_row, now));
        }
    }

    /// Leaves `cargo` in the slots of these legs, of which there is one at least, until the last has its record.
    pub(super) fn park<T: Send + 'static>(&self, mut legs: Vec<Leg>, cargo: T, expired: bool) {
        let mut lanes: Vec<usize> = legs.iter().map(|leg| leg.lane).collect();
        let Some(last) = legs.pop() else { return };
        if legs.is_empty() {
            self.table.park(last, Box::new(cargo), expired);
        } else {
            // The lock is never taken: it makes the cargo something that several slots can hold, whatever its type.
            let cargo = Arc::new(Mutex::new(cargo));
            legs.into_iter().for_each(|leg| self.table.park(leg, Box::new(Arc::clone(&cargo)), expired));
            self.table.park(last, Box::new(cargo), expired);
        }
        if expired {
            // If the queue has stopped, the next sweep frees it. Behind all of the parking, because a portal may panic.
            lanes.sort_unstable();
            lanes.dedup();
            lanes.into_iter().for_each(|lane| self.lanes.all()[lane].ask());
        }
    }

    /// Jobs that were dropped, and jobs that expired, whose memory is still kept.
    pub(crate) fn parked(&self) -> (u32, u32) {
        self.table.parked()
    }

    /// Lets every executor without a thread work, and frees what parked jobs left.
    pub(crate) fn drive(&self) {
        self.lanes.all().iter().for_each(Lane::drive);
        self.sweep();
    }

    fn sweep(&self) {
        self.table.sweep(&self.lanes, self.policy.limit, || self.clock.now());
    }

    /// The same, and frees all that can be.
    pub(crate) fn reclaim(&self) {
        self.lanes.all().iter().for_each(Lane::drive);
        if self.parked() != (0, 0) {
            self.table.sweep_all(&self.lanes);
        }
    }

    /// Drives only the lane somebody waits for; sweeps as well.
    pub(crate) fn drive_lane(&self, lane: Option<usize>) {
        match lane.and_then(|lane| self.lanes.all().get(lane)) {
            Some(lane) => {
                lane.drive();
                self.sweep();
            }
            None => self.drive(),
        }
    }

    /// Looks again and again, resting as the policy says, until `look` has something.
    pub(crate) fn wait<T>(&self, look: impl FnMut() -> Poll<T>) -> T {
        self.wait_by(Waiter::new(self.policy.wait), look)
    }

    /// The same for who has something to do at `end`: no sleep is longer.
    pub(crate) fn wait_until<T>(&self, end: Moment, look: impl FnMut() -> Poll<T>) -> T {
        self.wait_by(Waiter::new(self.policy.wait).until(end), look)
    }

    fn wait_by<T>(&self, mut waiter: Waiter, mut look: impl FnMut() -> Poll<T>) -> T {
        let _ = forecast::noted();
        loop {
            // Only this thread's own looks count, and only until it does something else.
            let attention = forecast::attend(waiter.slept());
            let found = look();
            drop(attention);
            if let Poll::Ready(found) = found {
                return found;
            }
            self.pass(&mut waiter);
        }
    }

    /// Rests as a waiter's policy says.
    fn pass(&self, waiter: &mut Waiter) {
        let awaited = forecast::noted();
        match waiter.pass(awaited.as_ref(), || self.clock.now(), &self.wake_up) {
            Pass::Rest(Rest::Sleep(nap)) if self.policy.wait == Wait::Predicted => {
                let end = self.clock.now().after(nap);
                self.clock.rest(Rest::Sleep(nap));
                self.wake_up.learn(self.clock.now().since(end));
            }
            Pass::Rest(rest) => self.clock.rest(rest),
            Pass::Watch(how, at_most) => {
                // Only where to look: a signal handler that waits on this thread with a mover of its own may have left its own
                // numbers, which may be none of this one's.
                let watched = awaited.and_then(|Awaited { lane, slot, .. }| {
                    Some((self.lanes.all().get(lane)?, self.table.record_of(slot)?))
                });
                match watched {
                    Some((lane, record)) => self.clock.watch(&*lane.portal, record, how, at_most),
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
            self.lanes.all().iter().for_each(Lane::ask);
            self.table.sweep_all(&self.lanes);
        }
        self.parked()
    }

    /// True if a queue has something without a record yet.
    ///
    /// **Staleness**: others offer and land meanwhile.
    pub(crate) fn is_in_the_air(&self) -> bool {
        self.table.is_in_the_air()
    }

    /// The time, for those who need it; a moment nobody compares otherwise.
    pub(crate) fn now_if(&self, needed: bool) -> Moment {
        if needed { self.clock.now() } else { Moment::default() }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        /// Leaks the table unless told otherwise: settling runs a portal, a clock and payloads' drops, and if one of them
        /// unwinds the rest is still in flight.
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
        if !leak.0.lanes.all().iter().all(Lane::is_home) {
            // A child's copy: no device has it, and what a thread that is not here was about to free stays.
            leak.0.table.sweep_all(&leak.0.lanes);
            return;
        }
        let (dropped, expired) = leak.0.settle();
        if (dropped, expired) == (0, 0) {
            std::mem::forget(leak);
            return;
        }
        drop(leak);
        crate::report::say(format_args!(
            "{} jobs had no completion record {:?} after the last handle of their mover was dropped ({dropped} dropped, \
             {expired} past their deadline); their buffers and records are leaked, because the device may still write them",
            dropped.saturating_add(expired),
            self.policy.linger,
        ));
    }
}
