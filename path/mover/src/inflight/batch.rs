//! A batch in flight: windows of members that one Batch descriptor carries, and ops of their own for the other members.
//!
//! ```text
//!   Choose ──two or more fit──► Window ──record──► Review ──► Choose …
//!     │  └── queue is full ──► Full                   │ a member faulted: finish it alone
//!     └── only one fits ──► Single ◄──────────────────┘
//! ```
//!
//! Copies that continue each other, in source and destination, are joined into one descriptor (guideline G1). If a
//! joined descriptor ends with anything but success, its unfinished members are done one by one, so that each has its
//! own faults and its own result.
//!
//! A member that is long enough to be split over several queues, or with the waiting thread, is in no list: it is
//! executed like a job of its own.
//!
//! A fence means what it means to a device (SPEC §3.8), but over the whole batch: behind a fence nothing begins before
//! every earlier member has succeeded, recovery included. If a member failed, the rest is abandoned.

use super::op::Op;
use super::owned_request::{Held, OwnedRequest};
use super::shared::Shared;
use super::table::{PaddedRecord, Slot};
use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use crate::inflight::recover::Next;
use crate::plan::request::Request;
use crate::stats::Work;
use crate::wait::stall_timer::StallTimer;
use crate::wait::time::Moment;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use telpher_abi::{CompletionRecord, Descriptor, Flags, Opcode};

/// One member: its request and its result.
pub(crate) struct Member {
    request: Request,
    /// The member waits for all earlier members.
    fence: bool,
    /// The policy lets a device do it.
    device: bool,
    /// Number of members that its descriptor does in the present window: itself and the members that continue it.
    joined: usize,
    /// It was joined with others, and the joined descriptor did not finish it: it gets a descriptor of its own from now
    /// on.
    apart: bool,
    /// Why it cannot be done at all.
    bad: Option<JobError>,
    result: Option<Result<Outcome, JobError>>,
    payload: Held<Box<dyn Any + Send>>,
}

impl Member {
    /// A member with a valid request; `device` is false if the policy keeps its operation on the CPU.
    pub(crate) fn new(request: OwnedRequest<Box<dyn Any + Send>>, fence: bool, device: bool) -> Self {
        let (payload, request) = request.into_parts();
        Member { request, fence, device, joined: 1, apart: false, bad: None, result: None, payload }
    }

    /// A member whose buffers do not fit its operation: it fails when its turn comes.
    pub(crate) fn failed_before(error: JobError, payload: Box<dyn Any + Send>, fence: bool) -> Self {
        let (payload, request) = super::owned_request::nop(payload).into_parts();
        Member { request, fence, device: false, joined: 1, apart: true, bad: Some(error), result: None, payload }
    }

    /// Returns the result, how it was executed, and the buffers. A member that has not ended has the error of a
    /// deadline.
    pub(crate) fn into_parts(self) -> (Result<Outcome, JobError>, Via, Box<dyn Any + Send>) {
        let result = self.result.unwrap_or(Err(JobError::Deadline { after: Duration::ZERO }));
        (result, self.request.via(), self.payload.into_inner())
    }

    /// Returns the joined request of this member and the next one, if one descriptor may do both: copies that have not
    /// begun, where the second begins where the first ends, and where neither reads a byte that either of them writes.
    fn joint(&self, joint: &Request, next: &Member, most: u64) -> Option<Request> {
        let (a, b) = (joint.template(), next.request.template());
        let free = next.device && !next.fence && !next.apart && next.result.is_none() && next.bad.is_none();
        let len = joint.len().checked_add(next.request.len()).filter(|&len| len <= most)?;
        // A durable copy has ended only at the end of its own descriptor.
        let alike = b.opcode() == Opcode::MemoryMove
            && a.opcode() == b.opcode()
            && a.flags() == b.flags()
            && !joint.is_durable();
        let goes_on =
            a.src().checked_add(joint.len()) == Some(b.src()) && a.dst().checked_add(joint.len()) == Some(b.dst());
        let fresh = !self.apart && self.request.is_fresh() && next.request.is_fresh() && next.request.len() > 0;
        let whole = Request::new(a, len);
        (free && alike && goes_on && fresh && !whole.overlaps()).then_some(whole)
    }

    /// Returns true for every status that a device counts as a failure: all but Success (SPEC §3.8).
    fn failed(&self) -> bool {
        let different = match self.result {
            Some(Ok(Outcome::Different { .. })) => 1,
            Some(Ok(Outcome::DifMismatch { .. }) | Err(_)) => return true,
            _ => 0,
        };
        self.request.expected().is_some_and(|expected| expected & 1 != different)
    }
}

/// The state machine of a batch.
pub(crate) struct BatchOp {
    members: Vec<Member>,
    /// The list that a Batch descriptor points to: it begins at the index of the window's first member, with one
    /// descriptor for each member or group of joined members.
    list: Vec<Descriptor>,
    /// Number of descriptors in the present window.
    listed: usize,
    /// Member `i`'s record, which is also the record of the members joined with it.
    records: Vec<PaddedRecord>,
    stage: Stage,
    /// The first member without a result.
    next: usize,
    /// The first member that did not succeed.
    failed: Option<usize>,
    queue: usize,
    queues_tried: usize,
    offers: u32,
    /// A Batch descriptor achieved nothing; go on one by one.
    one_by_one: bool,
    /// No queue had room; go on with the CPU.
    on_cpu: bool,
    /// How long the present window has been in flight.
    stall_timer: StallTimer,
    /// A thread waits for the batch.
    waited_for: bool,
}

/// The stage of a batch.
enum Stage {
    Choose,
    /// The queue has no room for a window; do not offer again before this moment.
    Full(Moment),
    /// A device has the members `from..to`.
    Window {
        slot: Slot,
        from: usize,
        to: usize,
    },
    /// The window's records are being read, from `at` on.
    Review {
        at: usize,
        to: usize,
    },
    /// One member alone. If this interrupted a review, `review` is the end of that review.
    Single {
        op: Box<Op>,
        index: usize,
        review: Option<usize>,
    },
    Over,
}

impl BatchOp {
    fn new(shared: &Shared, members: Vec<Member>) -> Self {
        let n = members.len();
        // The first member with buffers decides the route for all.
        let requests = || members.iter().map(|member| &member.request);
        let typical = requests().find(|request| request.transfer() > 0).or(requests().next());
        let queue = typical.map_or(0, |request| {
            shared.queues.first(shared.policy.route, request, crate::thread_stripe::of_this_thread)
        });
        BatchOp {
            members,
            list: vec![Descriptor::nop(); n],
            listed: 0,
            records: (0..n).map(|_| PaddedRecord::default()).collect(),
            stage: Stage::Choose,
            next: 0,
            failed: None,
            queue,
            queues_tried: 0,
            offers: 0,
            one_by_one: false,
            on_cpu: shared.queues.all().is_empty(),
            stall_timer: StallTimer::default(),
            waited_for: false,
        }
    }

    /// Takes one step: at most one record read or one descriptor offered. The CPU's share of a member is done in full.
    fn step(&mut self, shared: &Shared, now: Moment) -> Poll<()> {
        // The slot stays where `abort` finds it: clocks and portals may panic.
        if let Stage::Window { slot, .. } = &self.stage
            && !shared.is_complete(slot)
            && !shared.is_dead(slot, &mut self.stall_timer)
        {
            return Poll::Pending;
        }
        if let Stage::Single { op, .. } = &mut self.stage {
            let Poll::Ready(result) = op.step(shared) else { return Poll::Pending };
            return self.back(result);
        }
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Choose => self.choose(shared, now),
            Stage::Full(until) => {
                if now < until {
                    self.stage = Stage::Full(until);
                    return Poll::Pending;
                }
                self.choose(shared, now)
            }
            Stage::Window { slot, from, to } => {
                if !shared.is_complete(&slot) {
                    return self.lost(shared, now, slot, from..to);
                }
                let record = shared.complete(slot);
                if self.listed == 1 {
                    // One descriptor without a batch: the member has the descriptor's own record.
                    self.records[from].0.complete(&record);
                }
                let any = (from..to).any(|i| self.records[i].0.status().is_some());
                // The window achieved nothing: do not try the same again.
                self.one_by_one |= !any || record.status().code() >= telpher_abi::Status::BadOpcode.code();
                self.review(shared, now, from, to)
            }
            Stage::Review { at, to } => self.review(shared, now, at, to),
            Stage::Single { .. } | Stage::Over => Poll::Ready(()),
        }
    }

    /// Handles the end of the op of a single member.
    fn back(&mut self, result: Result<Outcome, JobError>) -> Poll<()> {
        if let Stage::Single { op, index, review } = std::mem::replace(&mut self.stage, Stage::Over) {
            self.members[index].request.was_done_by(op.via());
            self.ended(index, result);
            self.stage = match review {
                Some(to) => Stage::Review { at: index + 1, to },
                None => Stage::Choose,
            };
        }
        self.over()
    }

    /// Handles a window whose queue is dead, so that its record never comes. Members with a record are done. Each of
    /// the others may be half done, and is chosen again if repeating it does no harm. The order between members that no
    /// fence separates is free, and behind a fence no member has begun before those in front have their records.
    fn lost(&mut self, shared: &Shared, now: Moment, slot: Slot, members: Range<usize>) -> Poll<()> {
        let why = shared.release_dead(slot);
        for i in members.clone() {
            let request = &self.members[i].request;
            if self.records[i].0.status().is_none() && !request.may_be_done_again() {
                let op = request.opcode();
                self.ended(i, Err(JobError::Stopped { op, why: Arc::clone(&why) }));
            }
        }
        self.one_by_one = true;
        self.review(shared, now, members.start, members.end)
    }

    fn ended(&mut self, index: usize, result: Result<Outcome, JobError>) {
        self.members[index].result = Some(result);
        if self.members[index].failed() && self.failed.is_none_or(|first| index < first) {
            self.failed = Some(index);
        }
    }

    /// Returns ready if nothing is left to choose; otherwise the present stage goes on at the next step.
    fn over(&mut self) -> Poll<()> {
        while self.members.get(self.next).is_some_and(|member| member.result.is_some()) {
            self.next += 1;
        }
        if self.next == self.members.len() {
            self.stage = Stage::Over;
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn choose(&mut self, shared: &Shared, now: Moment) -> Poll<()> {
        self.stage = Stage::Choose;
        let from = loop {
            if self.over().is_ready() {
                return Poll::Ready(());
            }
            let from = self.next;
            if let (true, Some(because)) = (self.members[from].fence, self.failed) {
                for member in &mut self.members[from..] {
                    member.result = Some(Err(JobError::Abandoned { because }));
                }
                return self.over();
            }
            match self.members[from].bad.take() {
                Some(error) => self.ended(from, Err(error)),
                None => break from,
            }
        };
        let to = self.window(shared, from);
        // A single member does not need a list, unless its descriptor does the work of others.
        if self.listed == 0 || self.listed == 1 && to - from < 2 {
            return self.single(shared, now, from);
        }
        self.submit_window(shared, now, from, to)
    }

    /// Writes the list of the longest window that begins at `from`; returns its end.
    fn window(&mut self, shared: &Shared, from: usize) -> usize {
        self.listed = 0;
        let queues = shared.queues.all();
        if self.one_by_one || self.on_cpu || queues.is_empty() {
            return from;
        }
        let limits = &queues[self.queue % queues.len()].limits;
        let mut i = from;
        while i < self.members.len() && self.listed < limits.batch().max(1) {
            let member = &self.members[i];
            let barred = i > from && member.fence && self.failed.is_some();
            let request = &member.request;
            let alone = request.opcode() == Opcode::Drain || member.request.is_fresh() && shared.is_long(request);
            if barred || !member.device || member.result.is_some() || alone {
                return i;
            }
            let (mut joint, joined) = self.joined(shared, i, limits.max_transfer);
            let member = &mut self.members[i];
            let d = match joined {
                1 => member.request.next(limits).filter(|_| member.request.is_one_chunk()),
                _ => joint.next(limits),
            };
            let Some(d) = d else { return i };
            member.joined = joined;
            let d = crate::plan::flags::with_policy_flags(d, limits, &shared.policy, joint.writes());
            let fence = if member.fence && i > from { Flags::FENCE } else { Flags::empty() };
            self.records[i..i + joined].iter().for_each(|record| record.0.clear());
            self.list[from + self.listed] = d.and_flags(fence).with_record(self.records[i].0.address());
            self.listed += 1;
            i += joined;
        }
        i
    }

    /// Returns the joined request of member `i` and the members that continue it, and how many they are.
    fn joined(&self, shared: &Shared, i: usize, most: u64) -> (Request, usize) {
        let mut joint = self.members[i].request;
        let mut joined = 1;
        while let Some(next) = self.members.get(i + joined).filter(|_| shared.policy.coalesce)
            && let Some(longer) = self.members[i].joint(&joint, next, most)
        {
            joint = longer;
            joined += 1;
        }
        (joint, joined)
    }

    fn submit_window(&mut self, shared: &Shared, now: Moment, from: usize, to: usize) -> Poll<()> {
        let queue = self.queue % shared.queues.all().len();
        let list = &self.list[from..from + self.listed];
        let batch = match list {
            // The members of the window are one descriptor.
            [joint] => *joint,
            // A window is no longer than the queue's 32-bit limit.
            list => {
                let count = u32::try_from(list.len()).unwrap_or(u32::MAX);
                Descriptor::batch(list.as_ptr().expose_provenance() as u64, count)
            }
        };
        // SAFETY: the list and its records belong to `self` and stay put (`Vec`s that are not changed while a slot is
        // in flight). Each descriptor names ranges of the payloads of the members it stands for, held in `self` too.
        // `BatchInFlight` keeps all of it until the slot, kept in `self.stage`, completes or is parked with it. A
        // Batch's record is written after its members' (SPEC §3.8), so the one record ends the promise for all.
        if let Some(slot) = unsafe { shared.submit(queue, batch, now) } {
            (self.queues_tried, self.offers) = (0, 0);
            self.stall_timer = StallTimer::default();
            self.stage = Stage::Window { slot, from, to };
            return Poll::Pending;
        }
        if self.offers < shared.policy.retry.attempts && !shared.queues.all()[queue].is_dead() {
            self.offers += 1;
            self.stage = Stage::Full(now.after(shared.policy.retry.pause));
            return Poll::Pending;
        }
        self.offers = 0;
        self.queue += 1;
        self.queues_tried += 1;
        self.on_cpu = self.queues_tried >= shared.queues.all().len();
        self.stage = Stage::Choose;
        Poll::Pending
    }

    fn single(&mut self, shared: &Shared, now: Moment, index: usize) -> Poll<()> {
        let member = &self.members[index];
        let on_cpu = self.on_cpu || !member.device;
        if self.on_cpu && member.device && !shared.queues.all().is_empty() {
            shared.counts.add(Work::AT.queues_full, 1);
        }
        let op = if on_cpu || !member.request.is_fresh() {
            // SAFETY: the member's payload is held in `self`, as `submit_window` explains; its op is the only one.
            unsafe { Op::resumed(shared, member.request, on_cpu, None) }
        } else {
            // SAFETY: as above, its ops are the only ones.
            unsafe { Op::new(shared, member.request) }
        };
        self.go_alone(shared, now, op, index, None)
    }

    fn go_alone(&mut self, shared: &Shared, now: Moment, mut op: Op, index: usize, review: Option<usize>) -> Poll<()> {
        op.set_waited_for(self.waited_for);
        self.stage = Stage::Single { op: Box::new(op), index, review };
        self.step(shared, now)
    }

    /// Reads the window's records from `at` on, up to the first member that must go on alone.
    fn review(&mut self, shared: &Shared, now: Moment, at: usize, to: usize) -> Poll<()> {
        for i in at..to {
            if self.members[i].result.is_some() {
                continue;
            }
            // No record: the device abandoned the member at a fence or never began it. It is chosen again.
            let Some(record) = self.records[i].0.read() else { continue };
            if self.members[i].joined > 1 {
                self.end_joined(shared, i, &record);
                continue;
            }
            let bytes = self.members[i].request.transfer();
            if let Some(outcome) = self.finished_outcome(shared, i, &record) {
                shared.count(self.members[i].request.via(), bytes);
                self.ended(i, Ok(outcome));
                continue;
            }
            // SAFETY: as in `single`; the window has completed.
            let op = unsafe { Op::resumed(shared, self.members[i].request, self.on_cpu, Some(record)) };
            return self.go_alone(shared, now, op, i, Some(to));
        }
        self.stage = Stage::Choose;
        self.over()
    }

    /// Applies the record of a joined descriptor to its members. The members it finished are done; the others start
    /// again from their beginning, each alone. That does no harm: no byte that they read was written.
    fn end_joined(&mut self, shared: &Shared, first: usize, record: &CompletionRecord) {
        let joined = std::mem::replace(&mut self.members[first].joined, 1);
        let members = first..first + joined;
        let len: u64 = self.members[members.clone()].iter().map(|member| member.request.len()).sum();
        let mut joint = Request::new(self.members[first].request.template(), len);
        let done = match joint.arrived_whole(record, shared.policy.on_fault) {
            Next::Finished(_) => len,
            _ => joint.done_in_front(),
        };
        let mut end = 0;
        for i in members {
            end += self.members[i].request.len();
            if end <= done {
                self.members[i].request.was_done_by(Via::Device);
                shared.count(Via::Device, self.members[i].request.transfer());
                self.ended(i, Ok(Outcome::Done));
            } else {
                self.members[i].apart = true;
            }
        }
    }

    /// Returns the outcome of a member whose record leaves nothing to do.
    fn finished_outcome(&mut self, shared: &Shared, index: usize, record: &CompletionRecord) -> Option<Outcome> {
        let mut request = self.members[index].request;
        match request.arrived(record, shared.policy.on_fault) {
            Next::Finished(outcome) => {
                self.members[index].request = request;
                Some(outcome)
            }
            _ => None,
        }
    }

    /// Returns true if progress depends on a device or on a queue that gets room again.
    fn waits(&self) -> bool {
        match &self.stage {
            Stage::Window { .. } | Stage::Full(_) => true,
            Stage::Single { op, .. } => op.waits(),
            Stage::Choose | Stage::Review { .. } | Stage::Over => false,
        }
    }

    /// Lets executors without a thread do the work that the batch waits for.
    fn drive(&self, shared: &Shared) {
        match &self.stage {
            Stage::Window { slot, .. } => shared.drive_queue(Some(slot.queue)),
            Stage::Full(_) => shared.drive_queue(Some(self.queue)),
            Stage::Single { op, .. } => op.drive(shared),
            Stage::Choose | Stage::Review { .. } | Stage::Over => {}
        }
    }

    fn set_waited_for(&mut self, waited_for: bool) {
        self.waited_for = waited_for;
        if let Stage::Single { op, .. } = &mut self.stage {
            op.set_waited_for(waited_for);
        }
    }

    fn abort(&mut self) -> Vec<Slot> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Window { slot, .. } => vec![slot],
            Stage::Single { mut op, .. } => op.abort(),
            Stage::Choose | Stage::Full(_) | Stage::Review { .. } | Stage::Over => Vec::new(),
        }
    }
}

/// A batch in flight together with everything its ops need; the counterpart of [`InFlight`](super::InFlight).
pub(crate) struct BatchInFlight {
    /// `None` once it is over or parked.
    op: Option<Box<BatchOp>>,
    shared: Arc<Shared>,
}

impl BatchInFlight {
    pub(crate) fn new(shared: &Arc<Shared>, members: Vec<Member>) -> Self {
        BatchInFlight { op: Some(Box::new(BatchOp::new(shared, members))), shared: Arc::clone(shared) }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Sets whether the thread that steps it from now on waits for it and may do a part of a split member.
    pub(crate) fn set_waited_for(&mut self, waited_for: bool) {
        if let Some(op) = &mut self.op {
            op.set_waited_for(waited_for);
        }
    }

    /// Takes steps until the batch waits for a device or a queue, or is over: the CPU's share comes first.
    pub(crate) fn launch(&mut self) -> Poll<Vec<Member>> {
        loop {
            let step = self.step();
            if step.is_ready() || self.op.as_ref().is_some_and(|op| op.waits()) {
                return step;
            }
        }
    }

    /// Drives the queues that the batch waits for, then takes one step. Returns the members when the batch has ended.
    pub(crate) fn step(&mut self) -> Poll<Vec<Member>> {
        let op = self.op.as_mut().expect("a batch is present until it is over");
        op.drive(&self.shared);
        // Always the real time: a batch is long compared with one clock read.
        let now = self.shared.clock.now();
        match op.step(&self.shared, now) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(self.op.take().map(|op| op.members).unwrap_or_default()),
        }
    }

    /// Ends the batch at its deadline. Returns the members, with the unfinished ones marked, if no device has any of
    /// them; otherwise quarantines them.
    pub(crate) fn expire(mut self) -> Option<Vec<Member>> {
        self.leave(true)
    }

    fn leave(&mut self, expired: bool) -> Option<Vec<Member>> {
        let mut op = self.op.take()?;
        let slots = op.abort();
        if slots.is_empty() {
            return Some(op.members);
        }
        self.shared.park(slots, op, expired);
        None
    }
}

impl Drop for BatchInFlight {
    fn drop(&mut self) {
        self.leave(false);
    }
}

impl std::fmt::Debug for BatchInFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchInFlight").finish_non_exhaustive()
    }
}
