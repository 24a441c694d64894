//! A queue of plain copies between memory that is known by address only, for callers that keep it alive themselves.
//!
//! What a [`Channel`](crate::Channel) does for any operation costs more than a packet's copy takes. Here every place has its descriptor
//! and its record from the beginning, and a copy is three words written into the one. A burst goes as one Batch descriptor, whose
//! list are the places themselves, and whose members ask for no record if they succeed (SPEC §5.4): one record tells of all of them, after all
//! of them (SPEC §3.8). Whatever else it says, none of its copies counts as done.

use crate::channel::MOST;
use crate::error::ChannelError;
use crate::policy::{DEFAULT_LIMIT, DEFAULT_PATIENCE, Hint, Policy};
use crate::report;
use crate::route::{Entry, Lane};
use crate::time::{Clock, SystemClock};
use crate::vigil::{Bounds, Vigil};
use crate::wait::Waiter;
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;
use telpher_abi::{Descriptor, Flags, Status, StatusByte};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// What a queue of copies decides by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopiesPolicy {
    /// Where results land.
    pub hint: Hint,
    /// How long nothing may come before the queue is asked whether it still works, and then again each time.
    pub patience: Duration,
    /// How long nothing may come from a queue that says it works before it is given up for good, if its portal can make sure that nothing
    /// touches memory any more; see [`Policy::limit`](crate::Policy::limit).
    pub limit: Duration,
    /// How long the drop waits for what is in flight, before the descriptors and records are given up for good.
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
pub enum Ended {
    /// The bytes are there.
    Done,
    /// Nobody knows which bytes are there: the caller copies them.
    Undone,
}

/// The records of a place, on a line of their own.
#[repr(align(64))]
#[derive(Default)]
struct Records {
    /// Of the copy; written if it fails, or if it goes alone.
    own: RecordCell,
    /// Of the batch that begins here.
    batch: RecordCell,
}

/// What a queue owes a record for.
struct Burst {
    /// Position of the first place.
    first: u64,
    /// Places; more than one if they went as a batch.
    len: usize,
    entry: Entry,
}

/// One thread's way to have one queue copy, many at a time: [`put`](Copies::put), [`submit`](Copies::submit), [`landed`](Copies::landed).
///
/// Nothing blocks, and nothing is allocated after construction. A copy is known by its place, a number below [`places`](Copies::places)
/// that is another's when the copy has ended. Copies end in the order in which they were put.
///
/// Each copy that was put ends once, done or undone, whatever becomes of the queue: one that is full is asked again, one that stops or is given
/// up, and one of a process that this one was forked off, leave what they had undone. A queue that neither answers nor stops keeps what it has, as
/// it must.
///
/// Dropping it with copies in flight waits for them, at most [`CopiesPolicy::linger`], and then leaks descriptors and records with a
/// message on standard error.
///
/// ```
/// use std::sync::Arc;
/// use telpher_mover::{Copies, CopiesPolicy, Ended};
/// # use telpher_device::{ModelDevice, ModelOptions};
/// # let portal = ModelDevice::start(ModelOptions::default())?.portal("wq0.0")?;
///
/// let (src, mut dst) = ([7_u8; 1500], [0_u8; 1500]);
/// let mut copies = Copies::new(portal, 32, CopiesPolicy::default())?;
/// // SAFETY: both are there, and nobody touches them, until the copy has ended.
/// let place = unsafe { copies.put(src.as_ptr() as u64, dst.as_mut_ptr() as u64, 1500) };
/// copies.submit();
/// let mut ended = None;
/// while ended.is_none() {
///     copies.landed(|place, how| ended = Some((place, how)));
/// }
/// assert_eq!(ended, Some((place.unwrap(), Ended::Done)));
/// assert_eq!(src, dst);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Copies {
    lane: Lane,
    policy: CopiesPolicy,
    clock: Arc<dyn Clock>,
    /// Copies that may be under way; the places are the next power of two.
    capacity: u64,
    /// Copies that may go together.
    most: usize,
    /// One descriptor a place; side by side, they are batch lists. `Vec`s, because moving a `Vec` says nothing about its block; dropped by
    /// hand, because whatever a device may touch stays if `drop` gives up or unwinds.
    list: ManuallyDrop<Vec<Descriptor>>,
    records: ManuallyDrop<Vec<Records>>,
    /// What is out, oldest first; never more than places.
    bursts: VecDeque<Burst>,
    /// Oldest position whose copy has not ended.
    head: u64,
    /// Oldest position that waits to be sent.
    waiting: u64,
    /// Next position to put into.
    tail: u64,
    /// How long nothing has come.
    vigil: Vigil,
    /// The queue refused what was offered last.
    refused: bool,
}

impl Copies {
    /// Room for `capacity` copies under way over a queue.
    ///
    /// # Errors
    /// [`ChannelError::Capacity`]: for 0 or more than 2²³.
    pub fn new(portal: Arc<dyn Portal>, capacity: u32, policy: CopiesPolicy) -> Result<Copies, ChannelError> {
        Copies::with_clock(portal, capacity, policy, Arc::new(SystemClock::default()))
    }

    /// The same with a clock of one's own.
    ///
    /// # Errors
    /// As for [`Copies::new`].
    pub fn with_clock(
        portal: Arc<dyn Portal>,
        capacity: u32,
        policy: CopiesPolicy,
        clock: Arc<dyn Clock>,
    ) -> Result<Copies, ChannelError> {
        if !(1..=MOST).contains(&capacity) {
            return Err(ChannelError::Capacity { asked: capacity, max: MOST });
        }
        let lane = Lane::new(portal);
        let places = capacity.next_power_of_two() as usize;
        let records: Vec<Records> = (0..places).map(|_| Records::default()).collect();
        let flags = Policy { hint: policy.hint, ..Policy::default() };
        let preset = |records: &Records| {
            let d = crate::route::with_policy_flags(Descriptor::memory_move(0, 0, 0), &lane.limits, &flags, true);
            let d = d.with_record(records.own.address());
            d.with_flags(d.flags().difference(Flags::REQUEST_COMPLETION_RECORD))
        };
        Ok(Copies {
            policy,
            clock,
            capacity: capacity.into(),
            most: lane.limits.batch().max(1),
            list: ManuallyDrop::new(records.iter().map(preset).collect()),
            records: ManuallyDrop::new(records),
            bursts: VecDeque::with_capacity(places),
            head: 0,
            waiting: 0,
            tail: 0,
            vigil: Vigil::default(),
            refused: false,
            lane,
        })
    }

    /// How many places there are: [`put`](Copies::put) gives numbers below.
    #[must_use]
    pub fn places(&self) -> usize {
        self.list.len()
    }

    /// Copies that were put and have not ended.
    #[must_use]
    pub fn pending(&self) -> usize {
        // No more than places.
        usize::try_from(self.tail - self.head).unwrap_or(usize::MAX)
    }

    /// The queue.
    #[must_use]
    pub fn portal(&self) -> &Arc<dyn Portal> {
        &self.lane.portal
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        // Masked to the number of places, which is a `usize`.
        usize::try_from(position & (self.list.len() as u64 - 1)).unwrap_or(0)
    }

    /// Prepares a copy, which goes with the next [`submit`](Copies::submit). Its place; `None` if all are taken.
    ///
    /// # Safety
    /// As for [`Submission::vouch`], until the copy has ended, and for ever if it never does: the source may be read and the destination
    /// written at any time, by a device, and nobody else in this process touches them other than by raw access that tolerates it.
    #[inline]
    pub unsafe fn put(&mut self, src: u64, dst: u64, len: u32) -> Option<usize> {
        if self.tail - self.head >= self.capacity {
            return None;
        }
        let place = self.index(self.tail);
        self.tail += 1;
        // SAFETY: in bounds, because masked to the length; the place is in no burst, so no device reads it. By pointer, because a reference
        // to the whole list would claim entries that one reads now.
        unsafe {
            let entry = self.list.as_mut_ptr().add(place);
            entry.write(entry.read().with_src(src).with_dst(dst).with_size(len));
        }
        Some(place)
    }

    /// Sends what waits, as far as the queue takes it. Returns how many copies left; the others go with the next `submit` or
    /// [`landed`](Copies::landed).
    pub fn submit(&mut self) -> usize {
        let before = self.waiting;
        while self.waiting < self.tail && !self.lane.is_out() {
            let room = self.list.len() - self.index(self.waiting);
            // No more than places, so it is a `usize`.
            let waiting = usize::try_from(self.tail - self.waiting).unwrap_or(usize::MAX);
            if !self.send(waiting.min(room).min(self.most)) {
                break;
            }
        }
        usize::try_from(self.waiting - before).unwrap_or(usize::MAX)
    }

    /// Offers the oldest `len` that wait, which are neighbours.
    fn send(&mut self, len: usize) -> bool {
        let Some(entry) = self.lane.enter() else { return false };
        let i = self.index(self.waiting);
        let records = &self.records[i];
        let first = self.list.as_mut_ptr().wrapping_add(i);
        let descriptor = if len == 1 {
            records.own.clear();
            // SAFETY: in bounds; nobody but us has it, until it is sent, and then it is read at most.
            unsafe { first.read() }.and_flags(Flags::REQUEST_COMPLETION_RECORD)
        } else {
            records.batch.clear();
            // No longer than the queue's 32-bit limit.
            Descriptor::batch(first.expose_provenance() as u64, u32::try_from(len).unwrap_or(u32::MAX))
                .with_record(records.batch.address())
        };
        // SAFETY: each copy's memory is vouched for by who put it, until it has ended; the list and its records stay as they are until the
        // burst's record is seen or the queue is out (`head` does not pass it), and `drop` leaks them otherwise.
        match self.lane.offer(&unsafe { Submission::vouch(descriptor) }) {
            Offer::Taken => {
                if self.bursts.is_empty() {
                    // Whatever it refused before, it has had nothing for so long.
                    self.vigil = Vigil::default();
                }
                self.refused = false;
                self.bursts.push_back(Burst { first: self.waiting, len, entry });
                self.waiting += len as u64;
                true
            }
            Offer::Retry => {
                self.refused = true;
                self.lane.leave(entry);
                false
            }
        }
    }

    /// Lets the executor work, tells `each` of what has ended since, in the order in which it was put, and sends what still waits. Returns how
    /// many copies ended. If `each` panics, those behind in the same burst are not told of.
    #[inline]
    pub fn landed(&mut self, mut each: impl FnMut(usize, Ended)) -> usize {
        if self.head == self.tail {
            return 0;
        }
        let before = self.head;
        self.lane.drive();
        while let Some(status) = self.first_status() {
            self.retire(Some(status), &mut each);
        }
        // A queue that has stopped refuses for ever, also one that nothing of ours is in.
        if self.head == before && (!self.bursts.is_empty() || self.refused) {
            self.lane.looked(self.vigil.look(self.policy.bounds(), || self.clock.now()));
        }
        if self.lane.is_out() {
            self.salvage(&mut each);
        } else if self.waiting < self.tail {
            self.submit();
        }
        usize::try_from(self.head - before).unwrap_or(usize::MAX)
    }

    /// What the record of the oldest burst says, if it is there.
    #[inline]
    fn first_status(&self) -> Option<StatusByte> {
        let burst = self.bursts.front()?;
        let records = &self.records[self.index(burst.first)];
        if burst.len == 1 { records.own.status() } else { records.batch.status() }
    }

    /// Ends the oldest burst: its record is here, or never comes.
    #[inline]
    fn retire(&mut self, status: Option<StatusByte>, each: &mut impl FnMut(usize, Ended)) {
        let Some(Burst { first, len, entry }) = self.bursts.pop_front() else { return };
        self.lane.leave(entry);
        self.vigil = Vigil::default();
        // Places are neighbours and do not go around the end.
        let places = self.index(first)..self.index(first) + len;
        self.head = first + len as u64;
        let ended = match status.map(|byte| byte.status()) {
            Some(Status::Success) => Ended::Done,
            _ => Ended::Undone,
        };
        places.for_each(|place| each(place, ended));
    }

    /// Ends everything: the queue is out, so what has no record now never gets one.
    #[cold]
    fn salvage(&mut self, each: &mut impl FnMut(usize, Ended)) {
        while !self.bursts.is_empty() {
            self.retire(self.first_status(), each);
        }
        let waiting = self.waiting..self.tail;
        (self.head, self.waiting) = (self.tail, self.tail);
        waiting.for_each(|position| each(self.index(position), Ended::Undone));
    }
}

impl std::fmt::Debug for Copies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copies")
            .field("queue", &self.lane.portal.info().name)
            .field("places", &self.places())
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        let end = self.clock.now().after(self.policy.linger);
        let mut waiter = Waiter::new(Policy::default().wait).until(end);
        // A clock or a portal that panics in here leaks everything, as giving up does.
        while !self.lane.is_out() && !self.bursts.is_empty() {
            if self.first_status().is_some() {
                self.retire(None, &mut |_, _| ());
                continue;
            }
            if self.clock.now() >= end {
                self.lane.ask();
                if self.lane.is_out() {
                    break;
                }
                report::say(format_args!(
                    "copies by {} were dropped in flight, and had no completion record {:?} later; their descriptors and records are leaked, \
                     because the device may still use them",
                    self.lane.portal.info().name,
                    self.policy.linger,
                ));
                return;
            }
            self.lane.drive();
            self.clock.rest(waiter.rest(|| self.clock.now()));
        }
        // SAFETY: every burst's record is there or the queue is out, so no device has them; nothing uses them after this.
        unsafe {
            ManuallyDrop::drop(&mut self.records);
            ManuallyDrop::drop(&mut self.list);
        }
    }
}
