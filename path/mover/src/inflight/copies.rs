//! A queue of plain copies between memory that is known by address only, for callers that keep the memory alive
//! themselves.
//!
//! A [`Channel`](crate::Channel) works for any operation, and its cost is higher than copying a packet. Here every slot
//! has its descriptor and its record from the start, and a copy writes three words into the descriptor. A burst goes as
//! one Batch descriptor. Its list is the slots themselves, and its members request no record if they succeed (SPEC
//! §5.4). One record covers all of them, and is written after all of them (SPEC §3.8). If that record says anything but
//! success, none of the copies counts as done.

use crate::api::channel::MAX_SLOTS;
use crate::api::error::ChannelError;
use crate::api::policy::{DEFAULT_LIMIT, DEFAULT_PATIENCE, Hint, Policy};
use crate::inflight::room::Room;
use crate::plan::route::{Entry, PortalQueue};
use crate::report;
use crate::wait::Waiter;
use crate::wait::stall_timer::{Bounds, StallTimer};
use crate::wait::time::{Clock, SystemClock};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;
use telpher_abi::{Descriptor, Flags, Status, StatusByte};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// The settings of a queue of copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiesPolicy {
    /// Where results are written: cache or memory.
    pub hint: Hint,
    /// How long no record may come before the queue is asked whether it still works, and then again each time.
    pub patience: Duration,
    /// How long no record may come from a queue that reports that it works, before the queue is given up for good. The
    /// portal must be able to guarantee that nothing touches memory any more; see
    /// [`Policy::limit`](crate::Policy::limit).
    pub limit: Duration,
    /// How long the drop waits for copies in flight, before the descriptors and records are leaked.
    pub linger: Duration,
}

impl CopiesPolicy {
    fn bounds(&self) -> Bounds {
        Bounds { patience: self.patience, limit: self.limit }
    }
}

impl Default for CopiesPolicy {
    fn default() -> Self {
        CopiesPolicy {
            hint: Hint::default(),
            patience: DEFAULT_PATIENCE,
            limit: DEFAULT_LIMIT,
            linger: Duration::from_secs(1),
        }
    }
}

/// How a copy ended. Nothing touches its memory any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CopyResult {
    /// The bytes are copied.
    Done,
    /// It is not known which bytes are copied: the caller copies them.
    Undone,
}

/// The records of a slot, on a cache line of their own.
#[repr(align(64))]
#[derive(Default)]
struct Records {
    /// The copy's record; written if the copy fails or is submitted alone.
    own: RecordCell,
    /// The record of the batch that begins here.
    batch: RecordCell,
}

/// Copies that a queue took together and that have one record.
struct Burst {
    /// Position of the first slot.
    first: u64,
    /// Number of slots; more than one if they went as a batch.
    len: usize,
    entry: Entry,
}

/// Lets one thread submit many copies to one queue: [`put`](Copies::put), [`submit`](Copies::submit),
/// [`completed`](Copies::completed).
///
/// Nothing blocks, and nothing is allocated after construction. A copy is identified by its slot, a number below
/// [`slots`](Copies::slots) that is reused after the copy has ended. Copies end in the order in which they were put.
///
/// Each copy ends once, done or undone, whatever happens to the queue. A full queue is asked again. If a queue stops,
/// is given up, or belongs to the process that this one was forked from, the copies it had end undone. A queue that
/// neither answers nor stops keeps its copies.
///
/// Dropping it with copies in flight waits for them, at most [`CopiesPolicy::linger`], and then leaks descriptors and
/// records with a message on standard error.
///
/// ```
/// use std::sync::Arc;
/// use telpher_mover::{Copies, CopiesPolicy, CopyResult};
/// # use telpher_device::{ModelDevice, ModelOptions};
/// # let portal = ModelDevice::start(ModelOptions::default())?.portal("wq0.0")?;
///
/// let (src, mut dst) = ([7_u8; 1500], [0_u8; 1500]);
/// let mut copies = Copies::new(portal, 32, CopiesPolicy::default())?;
/// // SAFETY: both stay alive, and no other code touches them, until the copy has ended.
/// let slot = unsafe { copies.put(src.as_ptr() as u64, dst.as_mut_ptr() as u64, 1500) };
/// copies.submit();
/// let mut ended = None;
/// while ended.is_none() {
///     copies.completed(|slot, how| ended = Some((slot, how)));
/// }
/// assert_eq!(ended, Some((slot.unwrap(), CopyResult::Done)));
/// assert_eq!(src, dst);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Copies {
    queue: PortalQueue,
    policy: CopiesPolicy,
    clock: Arc<dyn Clock>,
    /// Copies that may be pending at a time; the number of slots is the next power of two.
    capacity: u64,
    /// Copies that may be submitted together.
    most: usize,
    /// One descriptor for each slot; neighbours form batch lists. `Vec`s, because moving a `Vec` says nothing about its
    /// block. Dropped by hand, because memory that a device may touch must stay if `drop` gives up or unwinds.
    list: ManuallyDrop<Vec<Descriptor>>,
    records: ManuallyDrop<Vec<Records>>,
    /// Bursts in flight, oldest first; never more than slots.
    bursts: VecDeque<Burst>,
    /// Oldest position whose copy has not ended.
    head: u64,
    /// Oldest position that is not submitted yet.
    waiting: u64,
    /// Next position to put into.
    tail: u64,
    /// How long no record has come.
    stall_timer: StallTimer,
    /// Whether the queue had room at the last offer.
    room: Room,
}

impl Copies {
    /// A queue of copies with room for `capacity` pending copies.
    ///
    /// # Errors
    /// [`ChannelError::Capacity`]: for 0 or more than 2²³.
    pub fn new(portal: Arc<dyn Portal>, capacity: u32, policy: CopiesPolicy) -> Result<Copies, ChannelError> {
        Copies::with_clock(portal, capacity, policy, Arc::new(SystemClock::default()))
    }

    /// Like [`new`](Copies::new), with the caller's clock.
    ///
    /// # Errors
    /// As for [`Copies::new`].
    pub fn with_clock(
        portal: Arc<dyn Portal>,
        capacity: u32,
        policy: CopiesPolicy,
        clock: Arc<dyn Clock>,
    ) -> Result<Copies, ChannelError> {
        if !(1..=MAX_SLOTS).contains(&capacity) {
            return Err(ChannelError::Capacity { asked: capacity, max: MAX_SLOTS });
        }
        let queue = PortalQueue::new(portal);
        let slots = capacity.next_power_of_two() as usize;
        let records: Vec<Records> = (0..slots).map(|_| Records::default()).collect();
        let flags = Policy { hint: policy.hint, ..Policy::default() };
        let preset = |records: &Records| {
            let d =
                crate::plan::flags::with_policy_flags(Descriptor::memory_move(0, 0, 0), &queue.limits, &flags, true);
            let d = d.with_record(records.own.address());
            d.with_flags(d.flags().difference(Flags::REQUEST_COMPLETION_RECORD))
        };
        Ok(Copies {
            policy,
            clock,
            capacity: capacity.into(),
            most: queue.limits.batch().max(1),
            list: ManuallyDrop::new(records.iter().map(preset).collect()),
            records: ManuallyDrop::new(records),
            bursts: VecDeque::with_capacity(slots),
            head: 0,
            waiting: 0,
            tail: 0,
            stall_timer: StallTimer::default(),
            room: Room::new(),
            queue,
        })
    }

    /// Returns the number of slots; [`put`](Copies::put) returns numbers below it.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.list.len()
    }

    /// Returns the number of copies that were put and have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        // No more than slots.
        usize::try_from(self.tail - self.head).unwrap_or(usize::MAX)
    }

    /// Returns the queue's portal.
    #[must_use]
    pub fn portal(&self) -> &Arc<dyn Portal> {
        &self.queue.portal
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        // Masked to the number of slots, which is a `usize`.
        usize::try_from(position & (self.list.len() as u64 - 1)).unwrap_or(0)
    }

    /// Prepares a copy, which goes with the next [`submit`](Copies::submit). Returns its slot; `None` if all are taken.
    ///
    /// # Safety
    /// As for [`Submission::vouch`], until the copy has ended, and for ever if it never does: a device may read the
    /// source and write the destination at any time. Other code in this process touches them only by raw access that
    /// tolerates this.
    #[inline]
    pub unsafe fn put(&mut self, src: u64, dst: u64, len: u32) -> Option<usize> {
        if self.tail - self.head >= self.capacity {
            return None;
        }
        let slot = self.index(self.tail);
        self.tail += 1;
        // SAFETY: in bounds, because masked to the length. The slot is in no burst, so no device reads it. By pointer,
        // because a reference to the whole list would claim entries that a device reads now.
        unsafe {
            let entry = self.list.as_mut_ptr().add(slot);
            entry.write(entry.read().with_src(src).with_dst(dst).with_size(len));
        }
        Some(slot)
    }

    /// Submits the waiting copies as far as the queue takes them. Returns how many were submitted; the others go with
    /// the next `submit` or [`completed`](Copies::completed).
    pub fn submit(&mut self) -> usize {
        let before = self.waiting;
        while self.waiting < self.tail && !self.queue.is_dead() {
            let room = self.list.len() - self.index(self.waiting);
            // No more than slots, so it is a `usize`.
            let waiting = usize::try_from(self.tail - self.waiting).unwrap_or(usize::MAX);
            if !self.send(waiting.min(room).min(self.most)) {
                break;
            }
        }
        usize::try_from(self.waiting - before).unwrap_or(usize::MAX)
    }

    /// Offers the oldest `len` waiting copies, which are neighbours.
    fn send(&mut self, len: usize) -> bool {
        let Some(entry) = self.queue.enter_alone() else {
            self.room.none(&*self.clock);
            return false;
        };
        let i = self.index(self.waiting);
        let records = &self.records[i];
        let first = self.list.as_mut_ptr().wrapping_add(i);
        let descriptor = if len == 1 {
            records.own.clear();
            // SAFETY: in bounds. Only this thread has it until it is submitted, and a device then only reads it.
            unsafe { first.read() }.and_flags(Flags::REQUEST_COMPLETION_RECORD)
        } else {
            records.batch.clear();
            // No longer than the queue's 32-bit limit.
            Descriptor::batch(first.expose_provenance() as u64, u32::try_from(len).unwrap_or(u32::MAX))
                .with_record(records.batch.address())
        };
        // SAFETY: the caller of `put` vouched for each copy's memory until the copy has ended. The list and its records
        // stay as they are until the burst's record is seen or the queue is dead (`head` does not pass it); otherwise
        // `drop` leaks them.
        match self.queue.offer(&unsafe { Submission::vouch(descriptor) }) {
            Offer::Taken | Offer::Lost => {
                if self.bursts.is_empty() {
                    // The queue had nothing in flight until now, whatever it refused before.
                    self.stall_timer = StallTimer::default();
                }
                self.room.taken(&*self.clock);
                self.bursts.push_back(Burst { first: self.waiting, len, entry });
                self.waiting += len as u64;
                true
            }
            Offer::Retry => {
                self.room.refused(&*self.clock);
                self.queue.leave_alone(entry);
                false
            }
        }
    }

    /// Lets the executor work, calls `each` for every copy that has ended, in the order in which they were put, and
    /// submits waiting copies. Returns how many copies ended. If `each` panics, it is not called for the rest of the
    /// same burst.
    #[inline]
    pub fn completed(&mut self, mut each: impl FnMut(usize, CopyResult)) -> usize {
        if self.head == self.tail {
            return 0;
        }
        let before = self.head;
        self.queue.drive();
        while let Some(status) = self.first_status() {
            self.retire(Some(status), &mut each);
        }
        // A stopped queue refuses for ever, even when it has none of our copies.
        if self.head == before && (!self.bursts.is_empty() || self.room.is_refused()) {
            self.queue.on_stall(self.stall_timer.look(self.policy.bounds(), || self.clock.now()));
        }
        if self.queue.is_dead() {
            self.end_all_bursts(&mut each);
        } else if self.waiting < self.tail {
            self.submit();
        }
        usize::try_from(self.head - before).unwrap_or(usize::MAX)
    }

    /// Asks the queue now whether it still works, and does not wait for [`CopiesPolicy::patience`]. If it has stopped,
    /// the next [`completed`](Copies::completed) ends all copies. For callers that stop waiting.
    #[cold]
    pub fn check_health(&self) {
        self.queue.check_health();
    }

    /// Returns the status of the oldest burst, if its record is written.
    #[inline]
    fn first_status(&self) -> Option<StatusByte> {
        let burst = self.bursts.front()?;
        let records = &self.records[self.index(burst.first)];
        if burst.len == 1 { records.own.status() } else { records.batch.status() }
    }

    /// Ends the oldest burst: its record is written, or never comes.
    #[inline]
    fn retire(&mut self, status: Option<StatusByte>, each: &mut impl FnMut(usize, CopyResult)) {
        let Some(Burst { first, len, entry }) = self.bursts.pop_front() else { return };
        self.queue.leave_alone(entry);
        self.stall_timer = StallTimer::default();
        // Slots of a burst are neighbours and do not wrap around the end.
        let slots = self.index(first)..self.index(first) + len;
        self.head = first + len as u64;
        let ended = match status.map(|byte| byte.status()) {
            Some(Status::Success) => CopyResult::Done,
            _ => CopyResult::Undone,
        };
        slots.for_each(|slot| each(slot, ended));
    }

    /// Ends all copies: the queue is dead, so a missing record never comes.
    #[cold]
    fn end_all_bursts(&mut self, each: &mut impl FnMut(usize, CopyResult)) {
        while !self.bursts.is_empty() {
            self.retire(self.first_status(), each);
        }
        let waiting = self.waiting..self.tail;
        (self.head, self.waiting) = (self.tail, self.tail);
        waiting.for_each(|position| each(self.index(position), CopyResult::Undone));
    }
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies")
            .field("queue", &self.queue.portal.info().name)
            .field("slots", &self.slots())
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let end = self.clock.now().after(self.policy.linger);
        let mut waiter = Waiter::new(Policy::default().wait).until(end);
        // If a clock or a portal panics in here, everything is leaked, as when giving up.
        while !self.queue.is_dead() && !self.bursts.is_empty() {
            if self.first_status().is_some() {
                self.retire(None, &mut |_, _| ());
                continue;
            }
            if self.clock.now() >= end {
                self.queue.check_health();
                if self.queue.is_dead() {
                    break;
                }
                report::say(format_args!(
                    "copies by {} were dropped in flight and had no completion record after {:?}; their descriptors \
                     and records are leaked, because the device may still use them",
                    self.queue.portal.info().name,
                    self.policy.linger,
                ));
                return;
            }
            self.queue.drive();
            self.clock.rest(waiter.rest(|| self.clock.now()));
        }
        // SAFETY: every burst's record is written or the queue is dead, so no device has them; nothing uses them after
        // this.
        unsafe {
            ManuallyDrop::drop(&mut self.records);
            ManuallyDrop::drop(&mut self.list);
        }
    }
}
