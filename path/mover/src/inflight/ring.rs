//! The slots of a channel: a ring of operations, their records, and the lists that bursts point to.
//!
//! Slots are taken and freed in ring order, so a burst is a run of neighbours whose descriptors already stand side by
//! side as a batch list. A slot is free again when its result was fetched and its burst's record was seen: a device may
//! read a batch list until then.

mod list;

use super::memory;
use super::owned_request::{BufferSlot, Buffers, InvalidRequest, Placed};
use crate::api::channel_policy::{ChannelPolicy, Order};
use crate::api::error::JobError;
use crate::api::outcome::{Outcome, Via};
use crate::api::policy::Policy;
use crate::inflight::recover::{Ending, Next};
use crate::inflight::room::Room;
use crate::plan::request::Request;
use crate::plan::route::{Entry, PortalQueue};
use crate::wait::stall_timer::StallTimer;
use crate::wait::time::{Clock, Moment};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use telpher_abi::{CompletionRecord, Descriptor, Opcode};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// The two records of a slot, on a cache line of their own.
#[repr(align(64))]
#[derive(Default)]
struct Records {
    /// The operation's record.
    own: RecordCell,
    /// The record of the batch that begins here.
    batch: RecordCell,
}

/// Operations that a queue took together and that have one record.
struct Burst {
    /// Position of the first slot.
    first: u64,
    /// Number of slots; more than one if they went as a batch.
    len: usize,
    /// It was submitted again, so bursts with later positions may be in front of it.
    again: bool,
    entry: Entry,
}

/// The stage of an operation.
enum Stage {
    /// Prepared, to be submitted.
    Waiting,
    /// Submitted.
    InFlight,
    /// Came back unfinished; the rest is to be submitted again.
    Again,
    /// Ended, to be fetched.
    Ended(Result<Outcome, JobError>, LastRecord),
    /// Fetched without its buffers, because the deadline passed; the record is still to come.
    Expired,
    /// Fetched, or never used.
    Fetched,
    /// A further slot of a list, whose first slot has its stage.
    Part,
}

/// The device's last record of an operation that has ended.
#[derive(Clone, Copy)]
enum LastRecord {
    /// There is none.
    None,
    /// It is in the slot's own cell.
    Own,
}

/// Where the memory of an operation is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In the slot's payload.
    Owned,
    /// Where the caller said; the CPU must not touch it.
    Raw,
    /// In the slot's sources: the operation is a list.
    List,
}

/// One slot of the ring.
struct RingSlot<S, D> {
    request: Request,
    stage: Stage,
    payload: BufferSlot<S, D>,
    /// The sources of a list; empty for other operations.
    sources: Vec<S>,
    /// The slots of the operation: one for each source of a list, otherwise 1.
    parts: usize,
    /// The burst's record is still to come.
    in_burst: bool,
    kind: Kind,
    /// When the operation is given up, if the policy has a deadline.
    deadline: Moment,
}

impl<S, D> RingSlot<S, D> {
    /// Returns true for the first slot of a list.
    #[inline]
    fn is_list(&self) -> bool {
        self.kind == Kind::List
    }
}

/// One operation fetched from the ring.
pub(crate) struct RingResult<S, D> {
    pub(crate) position: u64,
    pub(crate) result: Result<Outcome, JobError>,
    pub(crate) via: Via,
    pub(crate) buffers: Option<Buffers<S, D>>,
    pub(crate) sources: Vec<S>,
    pub(crate) record: Option<CompletionRecord>,
}

/// Why an operation was not put into the ring, and its buffers.
pub(crate) enum NotPut<P> {
    /// Every slot is taken.
    Full(P),
    /// The buffers do not fit the operation.
    Invalid(JobError, P),
}

impl<P> From<InvalidRequest<P>> for NotPut<P> {
    fn from(InvalidRequest { error, payload }: InvalidRequest<P>) -> Self {
        NotPut::Invalid(error, payload)
    }
}

/// Clones the sources of a list.
type CloneSources<S> = fn(&[S]) -> Vec<S>;

/// The ring of one channel. `Vec`s, because moving a `Vec` says nothing about its block (see `telpher_mem::StableBuf`).
/// Dropped by hand, because memory that a device may touch must stay if `drop` gives up or unwinds.
pub(crate) struct Ring<S, D> {
    queue: PortalQueue,
    /// Operations it holds; the number of slots is the next power of two, so that a position becomes an index by a
    /// mask.
    capacity: usize,
    policy: ChannelPolicy,
    /// The settings that the state machines below need; made from `policy` once.
    job_policy: Policy,
    clock: Arc<dyn Clock>,
    slots: ManuallyDrop<Vec<RingSlot<S, D>>>,
    records: ManuallyDrop<Vec<Records>>,
    list: ManuallyDrop<Vec<Descriptor>>,
    /// Bursts whose record is to come, oldest first; never more than slots.
    bursts: std::collections::VecDeque<Burst>,
    /// Oldest position that is not free.
    head: u64,
    /// Oldest position that an in-order fetch has not checked yet.
    fetch: u64,
    /// Oldest position that waits to be submitted.
    waiting: u64,
    /// The caller submitted the positions before this one; those from `waiting` on found the queue full.
    submitted: u64,
    /// Next position to take.
    tail: u64,
    /// Operations that are to be submitted again.
    again: usize,
    /// Operations that were given up and whose record is to come.
    expired: usize,
    /// Bursts that were submitted again and whose record is to come.
    resent: usize,
    /// How long no record has come.
    stall_timer: StallTimer,
    /// Whether the queue had room at the last offer.
    room: Room,
    /// The descriptor of a list's source, without addresses and size.
    crc_template: Descriptor,
    /// The most sources of a list; 0 if the queue has no CRC Generation.
    longest_list: usize,
    /// Clones the sources of a list that is given up while the device may still read them. Present after the first
    /// list.
    clone_sources: Option<CloneSources<S>>,
}

impl<S: Send + 'static, D: Send + 'static> Ring<S, D> {
    pub(crate) fn new(portal: Arc<dyn Portal>, capacity: u32, policy: ChannelPolicy, clock: Arc<dyn Clock>) -> Self {
        let capacity = capacity as usize;
        let n = capacity.next_power_of_two();
        let take_slot = |_| RingSlot {
            request: Request::new(Descriptor::nop(), 0),
            stage: Stage::Fetched,
            payload: BufferSlot::new(),
            sources: Vec::new(),
            parts: 1,
            in_burst: false,
            kind: Kind::Owned,
            deadline: Moment::default(),
        };
        let queue = PortalQueue::new(portal);
        let job_policy = Policy { hint: policy.hint, on_fault: policy.on_fault, ..Policy::default() };
        let crc = Descriptor::crc_generation(0, 0, 0);
        let longest_list = match queue.limits.operations.contains(Opcode::CrcGeneration) {
            true if policy.bursts => queue.limits.batch().max(1),
            true => 1,
            false => 0,
        };
        Ring {
            crc_template: crate::plan::flags::with_policy_flags(crc, &queue.limits, &job_policy, false),
            longest_list,
            queue,
            capacity,
            job_policy,
            policy,
            clock,
            slots: ManuallyDrop::new((0..n).map(take_slot).collect()),
            records: ManuallyDrop::new((0..n).map(|_| Records::default()).collect()),
            list: ManuallyDrop::new(vec![Descriptor::nop(); n]),
            bursts: std::collections::VecDeque::with_capacity(n),
            head: 0,
            fetch: 0,
            waiting: 0,
            submitted: 0,
            tail: 0,
            again: 0,
            expired: 0,
            resent: 0,
            stall_timer: StallTimer::default(),
            room: Room::new(),
            clone_sources: None,
        }
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        // Masked to the number of slots, which is a `usize`.
        usize::try_from(position & (self.slots.len() as u64 - 1)).unwrap_or(0)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.tail - self.head < self.capacity as u64
    }

    /// Returns the number of operations not yet fetched.
    pub(crate) fn pending(&self) -> usize {
        (self.head..self.tail)
            .filter(|&p| !matches!(self.slots[self.index(p)].stage, Stage::Fetched | Stage::Expired | Stage::Part))
            .count()
    }

    /// Returns the number of operations that were given up and whose buffers are kept.
    pub(crate) fn quarantined(&self) -> usize {
        self.expired
    }

    pub(crate) fn portal(&self) -> &Arc<dyn Portal> {
        &self.queue.portal
    }

    /// Takes a slot for the buffers that `make` puts into it, and for their request.
    #[inline(always)]
    pub(crate) fn put<M>(&mut self, make: M) -> Result<u64, NotPut<Buffers<S, D>>>
    where
        M: FnOnce(&mut BufferSlot<S, D>) -> Result<Placed, InvalidRequest<Buffers<S, D>>>,
    {
        let (position, has_room) = (self.tail, self.has_room());
        let i = self.index(position);
        let mut spare = BufferSlot::new();
        // In place, because moving buffers and request costs as much as all else here. One call for both cases, so that
        // the compiler inlines it.
        let request = make(if has_room { &mut self.slots[i].payload } else { &mut spare })?;
        if !has_room {
            return Err(NotPut::Full(spare.take().unwrap_or_default()));
        }
        let slot = &mut self.slots[i];
        slot.request = request.into_request();
        slot.stage = Stage::Waiting;
        slot.parts = 1;
        slot.kind = Kind::Owned;
        self.tail += 1;
        Ok(position)
    }

    /// Takes a slot for an unchanged descriptor; there must be room.
    ///
    /// # Safety
    ///
    /// As for [`Submission::vouch`], until the operation is fetched, or for ever if it is fetched as expired.
    pub(crate) unsafe fn put_raw(&mut self, descriptor: Descriptor) -> u64 {
        assert!(self.has_room(), "callers check for room first");
        let position = self.tail;
        let i = self.index(position);
        let slot = &mut self.slots[i];
        slot.request = Request::of(descriptor);
        slot.stage = Stage::Waiting;
        slot.parts = 1;
        slot.kind = Kind::Raw;
        self.tail += 1;
        position
    }

    /// Submits the waiting operations as far as the queue takes them. Returns how many were submitted.
    pub(crate) fn submit(&mut self) -> usize {
        if self.submitted < self.tail {
            if let Some(after) = self.policy.deadline {
                let deadline = self.clock.now().after(after);
                for position in self.submitted..self.tail {
                    let i = self.index(position);
                    self.slots[i].deadline = deadline;
                }
            }
            self.submitted = self.tail;
        }
        self.resend() + self.send_submitted()
    }

    /// Offers what the caller has submitted.
    fn send_submitted(&mut self) -> usize {
        let mut sent = 0;
        while self.waiting < self.submitted {
            let first = self.waiting;
            let mut len = self.prepare(first);
            if len == 0 {
                let i = self.index(first);
                len = self.slots[i].parts;
                let result = self.without_queue(i);
                self.end(i, result, LastRecord::None);
            } else if !self.send(first, len, false) {
                break;
            }
            self.waiting += len as u64;
            sent += len;
        }
        sent
    }

    /// Writes the descriptors of the longest run from `first` on that may go together; returns 0 if the first cannot be
    /// offered at all.
    fn prepare(&mut self, first: u64) -> usize {
        if self.queue.is_dead() {
            return 0;
        }
        let most = if self.policy.bursts { self.queue.limits.batch().max(1) } else { 1 };
        // A list does not wrap around the end of the ring.
        let room =
            (self.slots.len() - self.index(first)).min(usize::try_from(self.submitted - first).unwrap_or(usize::MAX));
        let most = most.min(room);
        let mut len = 0;
        while len < most {
            let i = self.index(first) + len;
            if self.slots[i].is_list() {
                // Its descriptors are written, and it was taken only because they fit into one batch.
                let parts = self.slots[i].parts;
                if len + parts > most {
                    break;
                }
                len += parts;
                continue;
            }
            let op = self.slots[i].request.opcode();
            // Not allowed in a batch (SPEC §3.8): offered alone.
            let alone = matches!(op, Opcode::Drain | Opcode::Batch | Opcode::UpdateWindow);
            if alone && len > 0 || !self.write(i) {
                break;
            }
            len += 1;
            if alone {
                break;
            }
        }
        len
    }

    /// Writes the next descriptor of a slot into the list.
    fn write(&mut self, i: usize) -> bool {
        let RingSlot { request, kind, .. } = &mut self.slots[i];
        let is_raw = *kind == Kind::Raw;
        let Some(d) = request.next_for(&self.queue.limits, is_raw) else { return false };
        let d = if is_raw {
            d
        } else {
            crate::plan::flags::with_policy_flags(d, &self.queue.limits, &self.job_policy, request.writes())
        };
        self.records[i].own.clear();
        let d = d.with_record(self.records[i].own.address());
        assert!(i < self.list.len(), "one entry for each slot");
        // SAFETY: in bounds by the line above. Entry `i` is in no burst, so no device reads it. By pointer, because a
        // reference to the whole list would claim entries that a device reads now.
        unsafe { self.list.as_mut_ptr().add(i).write(d) };
        true
    }

    /// Offers a prepared run, for the first time or again.
    fn send(&mut self, first: u64, len: usize, again: bool) -> bool {
        let Some(entry) = self.queue.enter_alone() else {
            self.room.none(&*self.clock);
            return false;
        };
        let i = self.index(first);
        let descriptor = if len == 1 {
            self.list[i]
        } else {
            self.records[i].batch.clear();
            let list = self.list.as_mut_ptr().wrapping_add(i).expose_provenance() as u64;
            // No longer than the queue's 32-bit limit.
            Descriptor::batch(list, u32::try_from(len).unwrap_or(u32::MAX)).with_record(self.records[i].batch.address())
        };
        // SAFETY: each descriptor names ranges of its slot's payload, which stays in the slot until the operation ended
        // (`fetch`, `drop`), or memory that the caller of `put_raw` vouched for. List and records stay until the
        // burst's record is seen (`head` does not pass it); otherwise `drop` leaks all of it.
        match self.queue.offer(&unsafe { Submission::vouch(descriptor) }) {
            Offer::Taken | Offer::Lost => {
                if self.bursts.is_empty() {
                    // The queue had nothing in flight until now, whatever it refused before.
                    self.stall_timer = StallTimer::default();
                }
                self.room.taken(&*self.clock);
                self.resent += usize::from(again);
                self.bursts.push_back(Burst { first, len, again, entry });
                for take_slot in &mut self.slots[i..i + len] {
                    if !matches!(take_slot.stage, Stage::Part) {
                        take_slot.stage = Stage::InFlight;
                    }
                    take_slot.in_burst = true;
                }
                true
            }
            Offer::Retry => {
                self.room.refused(&*self.clock);
                self.queue.leave_alone(entry);
                false
            }
        }
    }

    /// Submits unfinished operations again.
    fn resend(&mut self) -> usize {
        let mut sent = 0;
        if self.again == 0 {
            return sent;
        }
        for position in self.head..self.waiting {
            let i = self.index(position);
            // A batch list must not change until its record is written.
            if !matches!(self.slots[i].stage, Stage::Again) || self.slots[i].in_burst {
                continue;
            }
            if self.queue.is_dead() || !self.write(i) {
                let result = self.without_queue(i);
                self.end(i, result, LastRecord::None);
            } else if !self.send(position, 1, true) {
                break;
            }
            self.again -= 1;
            sent += 1;
        }
        sent
    }

    /// Reads the records that have been written. If there are none, lets the executor work first: as long as records
    /// come, it needs no help, and what it shares with waiting threads stays in its core's cache.
    pub(crate) fn poll(&mut self) {
        if !self.read_records() {
            self.queue.drive();
            self.read_records();
        }
        self.retire_bursts();
        // A stopped queue refuses for ever, even when it has nothing of ours.
        if !self.bursts.is_empty() || self.room.is_refused() {
            self.queue.on_stall(self.stall_timer.look(self.policy.bounds(), || self.clock.now()));
            self.end_all_bursts();
        }
        self.resend();
        self.send_submitted();
        if self.policy.deadline.is_some() {
            self.expire();
        }
    }

    /// Returns true if results are fetched in the order of the bursts. Then nothing behind an operation in flight can
    /// be fetched yet, so its record is read when its turn has come.
    fn is_in_order(&self) -> bool {
        self.policy.order == Order::Submitted && self.resent == 0
    }

    /// Reads the records of operations in flight. Returns whether there was one.
    fn read_records(&mut self) -> bool {
        let mut any = false;
        for b in 0..self.bursts.len() {
            let (first, len) = (self.bursts[b].first, self.bursts[b].len);
            // A burst does not wrap around the end of the ring.
            let (mut next, end) = (self.index(first), self.index(first) + len);
            while next < end {
                let i = next;
                next += self.slots[i].parts;
                if !matches!(self.slots[i].stage, Stage::InFlight) {
                    continue;
                }
                let has_arrived = if self.slots[i].is_list() {
                    self.list_arrived(i)
                } else if let Some(record) = self.records[i].own.read() {
                    self.arrived(i, &record);
                    true
                } else {
                    false
                };
                if !has_arrived && self.is_in_order() {
                    return any;
                }
                any |= has_arrived;
            }
        }
        any
    }

    /// Gives back the entries of bursts that are over.
    fn retire_bursts(&mut self) {
        let mut b = 0;
        while b < self.bursts.len() {
            let Burst { first, len, .. } = self.bursts[b];
            let i = self.index(first);
            let records = &self.records[i];
            let cell = if len == 1 { &records.own } else { &records.batch };
            if cell.status().is_none() {
                // With a deadline, this burst may be given up and its record may never come. It must not hold up those
                // behind it.
                if self.is_in_order() && self.policy.deadline.is_none() {
                    break;
                }
                b += 1;
                continue;
            }
            // Members that the device left out take the batch's record; an operation alone has no other than its own.
            let batch = if len == 1 { None } else { cell.read() };
            self.retire(b, batch.as_ref());
        }
        self.recycle();
    }

    /// Ends every burst of a dead queue: a missing record never comes.
    fn end_all_bursts(&mut self) {
        if !self.queue.is_dead() {
            return;
        }
        while !self.bursts.is_empty() {
            self.retire(0, None);
        }
        self.recycle();
    }

    /// Ends one burst: its record is written, or never comes.
    fn retire(&mut self, b: usize, batch: Option<&CompletionRecord>) {
        // Does not allocate: the deque only shrinks.
        let burst = if b == 0 { self.bursts.pop_front() } else { self.bursts.remove(b) };
        let Burst { first, len, again, entry } = burst.expect("the index is below the length");
        self.resent -= usize::from(again);
        self.stall_timer = StallTimer::default();
        self.queue.leave_alone(entry);
        self.settle_unread(first, len, batch);
        let i = self.index(first);
        let mut has_fetched = false;
        // A burst does not wrap around the end of the ring.
        for slot in &mut self.slots[i..i + len] {
            slot.in_burst = false;
            if matches!(slot.stage, Stage::Expired) {
                slot.stage = Stage::Fetched;
                self.expired -= 1;
            }
            has_fetched |= matches!(slot.stage, Stage::Fetched);
        }
        if !has_fetched {
            return;
        }
        // The burst is over, so the buffers of expired operations can be freed. Done last, because a payload's drop may
        // panic.
        for position in first..first + len as u64 {
            let i = self.index(position);
            if matches!(self.slots[i].stage, Stage::Fetched) {
                drop(self.slots[i].payload.take());
                drop(std::mem::take(&mut self.slots[i].sources));
            }
        }
    }

    /// Ends the operations of a finished burst that still count as in flight. A record may have been written after
    /// `read_records` ran; members of a batch without a record were never done; operations of a dead queue may be
    /// half done.
    fn settle_unread(&mut self, first: u64, len: usize, batch: Option<&CompletionRecord>) {
        for position in first..first + len as u64 {
            let i = self.index(position);
            if !matches!(self.slots[i].stage, Stage::InFlight) {
                continue;
            }
            if self.slots[i].is_list() {
                if !self.list_arrived(i) {
                    let outcome = self.list_on_cpu(i);
                    self.end(i, Ok(outcome), LastRecord::None);
                }
                continue;
            }
            match self.records[i].own.read() {
                Some(record) => self.arrived(i, &record),
                None => {
                    let op = self.slots[i].request.opcode();
                    let result = match batch {
                        Some(batch) => self.on_cpu(i, JobError::Refused { op, status: batch.status() }),
                        None if self.slots[i].request.may_be_done_again() => self.without_queue(i),
                        None => Err(JobError::Stopped { op, why: self.queue.why() }),
                    };
                    let last = match batch {
                        // No device writes the operation's own record any more, so it takes that of its batch.
                        Some(batch) => {
                            self.records[i].own.complete(batch);
                            LastRecord::Own
                        }
                        None => LastRecord::None,
                    };
                    self.end(i, result, last);
                }
            }
        }
    }

    #[inline]
    fn arrived(&mut self, i: usize, record: &CompletionRecord) {
        let RingSlot { request, stage, .. } = &mut self.slots[i];
        match request.ended_by(record) {
            Some(Ending::Done) => *stage = Stage::Ended(Ok(Outcome::Done), LastRecord::Own),
            Some(Ending::Crc(crc)) => *stage = Stage::Ended(Ok(Outcome::Crc(crc)), LastRecord::Own),
            None => self.go_on(i, record),
        }
    }

    /// Acts on a record that does not simply end an operation.
    #[inline(never)]
    fn go_on(&mut self, i: usize, record: &CompletionRecord) {
        let raw = self.slots[i].kind == Kind::Raw;
        let next = self.slots[i].request.arrived(record, self.policy.on_fault);
        let result = match next {
            Next::Finished(outcome) => Ok(outcome),
            Next::Refine(outcome) if raw => Ok(outcome),
            Next::More => return self.send_again(i),
            Next::Touch(fault) if !raw => match self.slots[i].request.touchable(&fault) {
                Some(range) => {
                    // SAFETY: the range lies in the payload of this slot; its operation has just come back.
                    unsafe { memory::touch(&range) };
                    return self.send_again(i);
                }
                None => self.on_cpu(i, crate::inflight::recover::Failure::Fault(fault).into()),
            },
            Next::Touch(fault) => Err(crate::inflight::recover::Failure::Fault(fault).into()),
            Next::OnCpu(status, fault) => {
                let op = self.slots[i].request.opcode();
                let otherwise = fault.map_or(JobError::Refused { op, status }, |fault| {
                    crate::inflight::recover::Failure::Fault(fault).into()
                });
                self.on_cpu(i, otherwise)
            }
            Next::Refine(outcome) => {
                self.on_cpu(i, JobError::Unsupported { op: Opcode::ComparePattern }).or(Ok(outcome))
            }
            Next::Failed(failure) => Err(failure.into()),
        };
        self.end(i, result, LastRecord::Own);
    }

    fn send_again(&mut self, i: usize) {
        self.slots[i].stage = Stage::Again;
        self.again += 1;
    }

    /// Ends an operation that this queue cannot do, or no longer does: the CPU does it if it may.
    fn without_queue(&mut self, i: usize) -> Result<Outcome, JobError> {
        if self.slots[i].is_list() {
            return Ok(self.list_on_cpu(i));
        }
        let op = self.slots[i].request.opcode();
        if !self.queue.is_dead() {
            return self.on_cpu(i, JobError::Unsupported { op });
        }
        if op == Opcode::Drain {
            // Nothing that the queue took is in flight any more, which is what a drain waits for.
            return Ok(Outcome::Done);
        }
        self.on_cpu(i, JobError::Stopped { op, why: self.queue.why() })
    }

    /// Does the rest on the CPU, unless the CPU must not touch the memory.
    fn on_cpu(&mut self, i: usize, otherwise: JobError) -> Result<Outcome, JobError> {
        let RingSlot { request, kind, .. } = &mut self.slots[i];
        if *kind == Kind::Raw || request.opcode() == Opcode::Drain {
            return Err(otherwise);
        }
        // SAFETY: the ranges lie in the payload of this slot, and no device has it: it was never submitted, or its
        // record is written, or its batch's record is written and it was left out, or the queue is dead.
        let outcome = unsafe { memory::finish(request, self.policy.hint) }?;
        request.cpu_did_the_rest();
        Ok(outcome)
    }

    fn end(&mut self, i: usize, result: Result<Outcome, JobError>, last: LastRecord) {
        self.slots[i].stage = Stage::Ended(result, last);
    }

    fn expire(&mut self) {
        let now = self.clock.now();
        for position in self.head..self.waiting {
            let i = self.index(position);
            if now >= self.slots[i].deadline && matches!(self.slots[i].stage, Stage::Again) {
                self.again -= 1;
                self.expire_unsent(i);
            }
        }
        // Submitted in this order, so their deadlines pass in this order.
        while self.waiting < self.submitted && now >= self.slots[self.index(self.waiting)].deadline {
            let i = self.index(self.waiting);
            self.expire_unsent(i);
            self.waiting += self.slots[i].parts as u64;
        }
    }

    /// Ends an operation that waited to be submitted and is late. No device has it, so it ends with its buffers.
    fn expire_unsent(&mut self, i: usize) {
        let after = self.policy.deadline.unwrap_or_default();
        self.end(i, Err(JobError::Deadline { after }), LastRecord::None);
    }

    /// Returns the next operation that has ended, in the channel's order.
    #[inline]
    pub(crate) fn fetch(&mut self) -> Option<RingResult<S, D>> {
        // Read at the first operation in flight, if there is one.
        let mut now = None;
        let mut position = self.fetch.max(self.head);
        while position < self.waiting {
            let i = self.index(position);
            match &self.slots[i].stage {
                Stage::Ended(..) => return Some(self.take(position, i)),
                Stage::InFlight
                    if self.policy.deadline.is_some()
                        && *now.get_or_insert_with(|| self.clock.now()) >= self.slots[i].deadline =>
                {
                    // In submission order `read_records` stops at the first one in flight, and its record may just have
                    // been written.
                    if self.slots[i].is_list() {
                        if self.list_arrived(i) {
                            continue;
                        }
                    } else if let Some(record) = self.records[i].own.read() {
                        self.arrived(i, &record);
                        if matches!(self.slots[i].stage, Stage::Again) {
                            self.again -= 1;
                            self.expire_unsent(i);
                        }
                        continue;
                    }
                    self.queue.check_health();
                    if self.queue.is_dead() {
                        self.end_all_bursts();
                        continue;
                    }
                    self.slots[i].stage = Stage::Expired;
                    self.expired += 1;
                    return Some(RingResult {
                        position,
                        result: Err(JobError::Deadline { after: self.policy.deadline.unwrap_or_default() }),
                        via: self.slots[i].request.via(),
                        buffers: None,
                        sources: self.clone_sources.map_or(Vec::new(), |clone| clone(&self.slots[i].sources)),
                        record: None,
                    });
                }
                Stage::Fetched | Stage::Expired | Stage::Part if position == self.fetch => self.fetch += 1,
                Stage::Fetched | Stage::Expired | Stage::Part => {}
                _ if self.policy.order == Order::Submitted => return None,
                _ => {}
            }
            position += 1;
        }
        None
    }

    #[inline]
    fn take(&mut self, position: u64, i: usize) -> RingResult<S, D> {
        let slot = &mut self.slots[i];
        let Stage::Ended(result, last) = std::mem::replace(&mut slot.stage, Stage::Fetched) else {
            unreachable!("callers checked the stage")
        };
        let record = match last {
            LastRecord::None => None,
            LastRecord::Own => self.records[i].own.read(),
        };
        let sources = if slot.is_list() { std::mem::take(&mut slot.sources) } else { Vec::new() };
        let (buffers, via) = (slot.payload.take(), slot.request.via());
        if position == self.fetch {
            self.fetch += 1;
        }
        RingResult { position, result, via, buffers, sources, record }
    }

    /// Frees the slots at the head that are done with. To be called after results were fetched.
    #[inline]
    pub(crate) fn recycle(&mut self) {
        while self.head < self.waiting {
            let i = self.index(self.head);
            if !matches!(self.slots[i].stage, Stage::Fetched) || self.slots[i].in_burst {
                break;
            }
            self.head += self.slots[i].parts as u64;
        }
        self.fetch = self.fetch.max(self.head);
    }
}

impl<S, D> Drop for Ring<S, D> {
    fn drop(&mut self) {
        let end = self.clock.now().after(self.policy.linger);
        let mut waiter = crate::wait::Waiter::new(self.job_policy.wait).until(end);
        let over = |ring: &Self, burst: &Burst| {
            let i = usize::try_from(burst.first & (ring.slots.len() as u64 - 1)).unwrap_or(0);
            let cell = if burst.len == 1 { &ring.records[i].own } else { &ring.records[i].batch };
            cell.status().is_some()
        };
        // If a clock or a portal panics in here, everything is leaked, as when giving up.
        while !self.queue.is_dead() && !self.bursts.iter().all(|burst| over(self, burst)) {
            if self.clock.now() >= end {
                self.queue.check_health();
                if self.queue.is_dead() {
                    break;
                }
                crate::report::say(format_args!(
                    "a channel to {} was dropped with operations in flight that had no completion record after {:?}; \
                     its buffers and records are leaked, because the device may still write them",
                    self.queue.portal.info().name,
                    self.policy.linger,
                ));
                return;
            }
            self.queue.drive();
            self.clock.rest(waiter.rest(|| self.clock.now()));
        }
        // SAFETY: every burst's record is written or the queue is dead, so no device has them; nothing uses them after
        // this. Slots last, because their payloads' drops may panic.
        unsafe {
            ManuallyDrop::drop(&mut self.records);
            ManuallyDrop::drop(&mut self.list);
            ManuallyDrop::drop(&mut self.slots);
        }
    }
}
