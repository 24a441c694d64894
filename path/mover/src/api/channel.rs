//! The poll-mode layer: one thread, one queue, a fixed number of operations. Nothing blocks and nothing is allocated.

use crate::api::channel_policy::ChannelPolicy;
use crate::api::error::{ChannelError, JobError};
use crate::api::operation::operations;
use crate::api::outcome::{Outcome, Via};
use crate::inflight::{BufferSlot, Buffers, InvalidRequest, NotPut, Placed, Ring, placed, side};
use crate::wait::time::{Clock, SystemClock};
use std::sync::Arc;
use telpher_abi::{CompletionRecord, Descriptor};
use telpher_mem::{StableBuf, StableBufMut};
use telpher_portal::Portal;

/// Identifies an operation of a channel; counts up from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// Returns the operation's number, from 0.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Finished<S, D> {
    /// The operation's ticket.
    pub ticket: Ticket,
    /// The outcome, or why there is none.
    pub result: Result<Outcome, JobError>,
    /// Whether a device or the CPU did it.
    pub via: Via,
    /// Its buffers. `None` if its deadline passed and the device may still write them, and for raw descriptors.
    pub buffers: Option<Buffers<S, D>>,
    /// The sources of [`Channel::crc_list`]. If its deadline passed and the device may still read them, these are
    /// clones.
    pub sources: Vec<S>,
    /// The device's last record, if there is one.
    pub record: Option<CompletionRecord>,
}

/// An operation that a channel did not take, and its buffers.
#[derive(Debug, thiserror::Error)]
#[error("the operation was not taken")]
pub struct Rejected<S, D> {
    /// Why it was not taken.
    #[source]
    pub reason: RejectReason,
    /// The buffers, returned.
    pub buffers: Buffers<S, D>,
}

/// Why a channel did not take an operation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RejectReason {
    /// Every slot is taken; fetch results first.
    #[error("all {capacity} slots of the channel are taken")]
    Full {
        /// Slots of the channel.
        capacity: usize,
    },
    /// The buffers do not fit the operation.
    #[error("the buffers do not fit the operation")]
    Buffers(#[source] JobError),
}

/// A poll-mode interface to one queue for one thread.
///
/// Prepare operations (each gives a [`Ticket`]), [`submit`](Channel::submit) them, and fetch results with
/// [`completed`](Channel::completed). Nothing blocks, and nothing is allocated after construction as long as the vector
/// given to `completed` has room. Sources are of one type, destinations of another. The channel owns both while the
/// device may touch them. Slots are freed in ring order, so a result that is not fetched keeps the slots behind it from
/// being reused once the ring has wrapped around.
///
/// Dropping a channel with operations in flight waits for them, at most [`ChannelPolicy::linger`], and then leaks their
/// buffers with a message on standard error.
///
/// ```
/// use std::sync::Arc;
/// use telpher_mover::{Channel, ChannelPolicy, Outcome};
/// # use telpher_portal::{QueueInfo, QueueMode, Portal, mock::MockPortal};
/// # let mock = MockPortal::new(QueueMode::Shared, 8);
/// # let portal = Arc::new(MockPortal::with_info(QueueInfo { operations: Default::default(), ..mock.info().clone() }));
///
/// let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(portal, 32, ChannelPolicy::default())?;
/// let ticket = channel.copy(vec![7; 4096], vec![0; 4096]).map_err(|rejected| rejected.reason)?;
/// channel.fill(vec![0; 100], 0x0101_0101_0101_0101).map_err(|rejected| rejected.reason)?;
/// assert_eq!(channel.submit(), 2);
///
/// let mut done = Vec::with_capacity(32);
/// while done.len() < 2 {
///     channel.completed(&mut done);
/// }
/// assert_eq!((done[0].ticket, &done[0].result), (ticket, &Ok(Outcome::Done)));
/// let buffers = done[0].buffers.take().expect("no deadline passed");
/// assert_eq!(buffers.src, buffers.dst);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Channel<S: StableBuf, D: StableBufMut> {
    ring: Ring<S, D>,
}

/// The largest number of slots of a channel: a ring of 64-byte descriptors with 64-byte records then fills a gigabyte.
pub(crate) const MAX_SLOTS: u32 = 1 << 23;

impl<S: StableBuf, D: StableBufMut> Channel<S, D> {
    /// A channel with `capacity` slots.
    ///
    /// A dedicated queue has **one** client (SPEC §3.3): a full one drops descriptors without an answer. This channel's
    /// own count of credits prevents that. Two movers or channels over the same dedicated queue overfill it, and the
    /// dropped operations never complete. A shared queue may have any number of clients.
    ///
    /// # Errors
    ///
    /// [`ChannelError::Capacity`] for 0 or more than 2²³ slots.
    pub fn new(portal: Arc<dyn Portal>, capacity: u32, policy: ChannelPolicy) -> Result<Self, ChannelError> {
        Self::with_clock(portal, capacity, policy, Arc::new(SystemClock::default()))
    }

    /// Like [`new`](Channel::new), with the caller's clock.
    ///
    /// # Errors
    ///
    /// As for [`Channel::new`].
    pub fn with_clock(
        portal: Arc<dyn Portal>,
        capacity: u32,
        policy: ChannelPolicy,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ChannelError> {
        if capacity == 0 || capacity > MAX_SLOTS {
            return Err(ChannelError::Capacity { asked: capacity, max: MAX_SLOTS });
        }
        Ok(Channel { ring: Ring::new(portal, capacity, policy, clock) })
    }

    /// Submits the prepared operations as far as the queue takes them: as one Batch descriptor if there are two or more
    /// and the queue takes batches, otherwise as single descriptors. Returns how many operations were submitted.
    /// Operations that found the queue full are submitted by the next calls of [`completed`](Channel::completed) or of
    /// this function. The CPU does here what the queue cannot do at all.
    pub fn submit(&mut self) -> usize {
        self.ring.submit()
    }

    /// Appends the operations that have ended, in the policy's order, and returns how many. If no record has come, it
    /// first lets an executor without a thread work. It submits again what came back unfinished or was refused by a
    /// full queue.
    pub fn completed(&mut self, out: &mut Vec<Finished<S, D>>) -> usize {
        self.each_completed(|finished| out.push(finished))
    }

    /// Like [`completed`](Channel::completed), but calls `act` with each operation.
    #[inline]
    pub fn each_completed(&mut self, mut act: impl FnMut(Finished<S, D>)) -> usize {
        self.ring.poll();
        let mut count = 0;
        while let Some(result) = self.ring.fetch() {
            count += 1;
            act(Finished {
                ticket: Ticket(result.position),
                result: result.result,
                via: result.via,
                buffers: result.buffers,
                sources: result.sources,
                record: result.record,
            });
        }
        self.ring.recycle();
        count
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Returns the number of operations that were prepared and not yet fetched.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.ring.pending()
    }

    /// Returns the number of operations that were fetched after their deadline and whose buffers are kept until the
    /// device has written its record.
    #[must_use]
    pub fn quarantined(&self) -> usize {
        self.ring.quarantined()
    }

    /// Returns the queue's portal.
    #[must_use]
    pub fn portal(&self) -> &Arc<dyn Portal> {
        self.ring.portal()
    }

    /// Prepares a no-op.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Full`].
    pub fn nop(&mut self) -> Result<Ticket, Rejected<S, D>> {
        self.put(placed::nop)
    }

    /// Prepares a drain: it ends when everything that this queue took before it has ended.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Full`].
    pub fn drain(&mut self) -> Result<Ticket, Rejected<S, D>> {
        self.put(placed::drain)
    }

    #[inline(always)]
    fn put<M>(&mut self, make: M) -> Result<Ticket, Rejected<S, D>>
    where
        M: FnOnce(&mut BufferSlot<S, D>) -> Result<Placed, InvalidRequest<Buffers<S, D>>>,
    {
        match self.ring.put(make) {
            Ok(position) => Ok(Ticket(position)),
            Err(not_put) => Err(self.rejected(not_put)),
        }
    }

    #[cold]
    fn rejected(&self, not_put: NotPut<Buffers<S, D>>) -> Rejected<S, D> {
        match not_put {
            NotPut::Full(buffers) => {
                Rejected { reason: RejectReason::Full { capacity: self.ring.capacity() }, buffers }
            }
            NotPut::Invalid(error, buffers) => Rejected { reason: RejectReason::Buffers(error), buffers },
        }
    }
}

#[allow(unsafe_code, reason = "passes on a promise only the caller can make")]
impl<S: StableBuf, D: StableBufMut> Channel<S, D> {
    /// Prepares a descriptor with addresses that the caller vouches for. Its completion record address and flags are
    /// replaced. For programs whose buffers no type of this crate describes (a guest's memory, a shared segment).
    ///
    /// The channel never touches that memory with the CPU. What the device leaves undone ends with [`JobError::Fault`]
    /// (bytes done, address, direction) or [`JobError::Refused`], together with the record.
    ///
    /// # Errors
    ///
    /// [`RejectReason::Full`].
    ///
    /// # Safety
    ///
    /// From now until the operation's [`Finished`] is fetched — if it is fetched with [`JobError::Deadline`], until
    /// [`Channel::quarantined`] no longer counts it —
    /// - every mapped byte of its source ranges may be read, and of its destination ranges written, at any time: no
    ///   Rust reference to a destination exists, none to a source is exclusive, and other code that touches them uses
    ///   atomics or volatile access that tolerates it;
    /// - for a Batch the same holds for the list, its members' ranges, and their completion records;
    /// - the descriptor names no memory that belongs to other code in this process.
    pub unsafe fn raw(&mut self, descriptor: Descriptor) -> Result<Ticket, Rejected<S, D>> {
        if !self.ring.has_room() {
            let reason = RejectReason::Full { capacity: self.ring.capacity() };
            return Err(Rejected { reason, buffers: Buffers::default() });
        }
        // SAFETY: our caller's promise is the callee's.
        Ok(Ticket(unsafe { self.ring.put_raw(descriptor) }))
    }
}

impl<S: StableBuf + Clone, D: StableBufMut> Channel<S, D> {
    /// Prepares the CRC32C of the bytes of all sources, in their order. The device gets a descriptor for each source,
    /// in one batch and without an order among them, and the CRCs are joined. The outcome is one
    /// [`Crc`](Outcome::Crc), and [`Finished::sources`] has the sources. What the device does not do, the CPU does.
    ///
    /// The list takes as many slots and ticket numbers as it has sources, from that of the ticket on.
    ///
    /// # Errors
    ///
    /// The sources, if the channel does not take them as a list: there are none or more than a batch may have, one is
    /// empty or too long for a descriptor, the queue has no CRC Generation, or fewer slots are free side by side.
    #[inline]
    pub fn crc_list(&mut self, sources: Vec<S>) -> Result<Ticket, Vec<S>> {
        self.ring.put_list(sources).map(Ticket)
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($buf:ident: $T:ident [$bound:ident]),*)($($arg:ident: $A:ty),*);)*) => {
        /// The operations. Each is prepared only; [`submit`](Channel::submit) sends it.
        impl<S: StableBuf, D: StableBufMut> Channel<S, D> {
            $($(#[$doc])*
            ///
            /// # Errors
            ///
            /// [`Rejected`] if every slot is taken or the buffers do not fit.
            #[inline(always)]
            pub fn $name(&mut self, $($buf: side!($bound, S, D),)* $($arg: $A),*) -> Result<Ticket, Rejected<S, D>> {
                self.put(|place| placed::$name(place, $($buf,)* $($arg),*))
            })*
        }
    };
}
operations!(methods);

impl<S: StableBuf, D: StableBufMut> std::fmt::Debug for Channel<S, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("portal", self.ring.portal()).field("pending", &self.pending()).finish()
    }
}
