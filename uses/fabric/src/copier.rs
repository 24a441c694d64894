//! Copies bytes between the caller's buffers and the slots: by the CPU, or by a device through a channel of the mover.
//!
//! ```text
//! sender:    buffer ─► slot      CPU: the stores that are faster for this connection; see `stores`
//! receiver:  slot ─► buffer      CPU: plain stores, since this core reads the buffer next
//! device:    start ─► submit (one batch) ─► collect; the CPU does again what the device left undone.
//!            Several queues take turns, piece by piece
//! ```
//!
//! No address is checked before a copy: a copy that reaches memory that is not there reports the exact byte.

use crate::access::own_memory;
use crate::buffer::Segments;
use std::collections::VecDeque;
use std::sync::Arc;
use telpher_abi::Descriptor;
use telpher_mem::{Fault, Local, Space, WriteHint};
use telpher_mover::{Channel, ChannelError, ChannelPolicy, Finished, JobError};
use telpher_portal::Portal;

/// The mover's channel for copies. All its operations are raw descriptors, so it owns no buffers.
pub type CopyChannel = Channel<Vec<u8>, Vec<u8>>;

/// Pieces of fewer bytes are copied by the CPU. Source: assumed; a submission costs about as much as this copy.
pub const DEFAULT_SHORTEST: u64 = 4096;

/// The variable with the device that copies. Without it, and with `cpu`, the CPU copies.
pub const DEVICE_VARIABLE: &str = "TELPHER_FABRIC_DEVICE";

/// The most queues that copy in turn. Source: libfabric's own provider, which uses one of each of four devices.
pub const MOST_QUEUES: usize = 4;

/// Copies bytes for an endpoint.
#[derive(Debug)]
pub struct Copier {
    local: Local,
    queues: Vec<Queue>,
    /// The queue that is asked first for the next piece.
    next: usize,
    counts: Counts,
}

/// Pieces by what copied them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) by_cpu: u64,
    pub(crate) by_device: u64,
    /// By the reasons of [`FallbackReason`].
    pub(crate) by_fallback: [u64; FallbackReason::NAMES.len()],
}

/// Why the CPU copied a piece that was meant for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FallbackReason {
    PageFault,
    Queue,
    Device,
    Deadline,
}

impl FallbackReason {
    /// In the order of the variants.
    pub(crate) const NAMES: [&'static str; 4] = ["page fault", "queue full or stopped", "error of device", "deadline"];

    fn of(error: &JobError) -> FallbackReason {
        match error {
            JobError::Fault { .. } => FallbackReason::PageFault,
            JobError::QueueFull { .. } | JobError::Stopped { .. } | JobError::Unsupported { .. } => {
                FallbackReason::Queue
            }
            JobError::Deadline { .. } => FallbackReason::Deadline,
            _ => FallbackReason::Device,
        }
    }
}

/// The reasons of fallbacks, as values of a label.
pub(crate) const FALLBACK_REASONS: [&str; 4] = FallbackReason::NAMES;

/// One copy. The ranges are disjoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Copy {
    pub(crate) dst: u64,
    pub(crate) src: u64,
    pub(crate) len: u64,
    pub(crate) hint: WriteHint,
}

/// What became of a copy that was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Started {
    /// It has ended.
    Ended(Result<(), Fault>),
    /// A device works on it; [`Copier::collect`] reports its end.
    Pending,
}

/// What a copy was started for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyFor {
    /// A sender fills a slot, or empties one for an access.
    Sender {
        /// The sender's number in the endpoint.
        index: u32,
        slot: u16,
    },
    /// A receiver empties a slot, or reads a part of a message from a file of the sender.
    Receiver {
        /// The receiver's number in the endpoint.
        index: u32,
        slot: Option<u16>,
        /// The message.
        id: u32,
    },
    /// A member of a group copies a part of a chunk.
    Chunk { direction: Direction, number: u64 },
}

/// Where the bytes of a group's chunk go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Into the slot of this member.
    In,
    /// Into its buffer.
    Out,
}

/// A queue of a device.
#[derive(Debug)]
struct Queue {
    channel: CopyChannel,
    shortest: u64,
    /// The copies whose results are not fetched, in the order of their tickets.
    running: VecDeque<(Copy, CopyFor)>,
    /// Copies whose deadline has passed. The device may still write their destinations.
    late: Vec<(Copy, CopyFor)>,
    finished: Vec<Finished<Vec<u8>, Vec<u8>>>,
    is_prepared: bool,
}

impl Copier {
    /// A copier that uses the CPU alone.
    #[must_use]
    pub fn cpu() -> Copier {
        Copier { local: own_memory(), queues: Vec::new(), next: 0, counts: Counts::default() }
    }

    /// A copier that gives pieces of at least `shortest` bytes to a device, or to several queues in turn.
    ///
    /// A channel reports results in the order of submission ([`Order::Submitted`](telpher_mover::Order::Submitted)).
    /// Whatever the device refuses or leaves undone is done by the CPU.
    #[must_use]
    pub fn devices(channels: impl IntoIterator<Item = CopyChannel>, shortest: u64) -> Copier {
        let queue = |channel| Queue {
            channel,
            shortest: shortest.max(1),
            running: VecDeque::new(),
            late: Vec::new(),
            finished: Vec::new(),
            is_prepared: false,
        };
        Copier { queues: channels.into_iter().map(queue).collect(), ..Copier::cpu() }
    }

    /// A copier that gives pieces of at least `shortest` bytes to one queue; see [`devices`](Copier::devices).
    #[must_use]
    pub fn device(channel: CopyChannel, shortest: u64) -> Copier {
        Copier::devices([channel], shortest)
    }

    /// A copier that gives pieces of [`DEFAULT_SHORTEST`] bytes or more to the first [`MOST_QUEUES`] of these queues in
    /// turn, at most `in_flight` to each at once. Without queues, the CPU copies.
    ///
    /// # Errors
    /// A queue takes no channel.
    pub fn with_queues(
        portals: impl IntoIterator<Item = Arc<dyn Portal>>,
        in_flight: u32,
        policy: ChannelPolicy,
    ) -> Result<Copier, ChannelError> {
        let channels = portals.into_iter().take(MOST_QUEUES).map(|portal| Channel::new(portal, in_flight, policy));
        Ok(Copier::devices(channels.collect::<Result<Vec<_>, _>>()?, DEFAULT_SHORTEST))
    }

    /// Returns how many queues copy in turn.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns the memory that copies use.
    pub(crate) fn local(&self) -> Local {
        self.local
    }

    /// Reads bytes of a connection.
    pub(crate) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.local.read(address, into)
    }

    /// Writes bytes of a connection.
    pub(crate) fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.local.write(address, from, WriteHint::Cache)
    }

    /// Writes the first `len` bytes into the segments.
    #[inline]
    pub(crate) fn scatter(&self, bytes: &[u8], segments: &Segments, len: u64) -> Result<(), Fault> {
        self.scatter_at(bytes, segments, 0, len)
    }

    /// Writes the first `len` bytes to byte `offset` of the segments.
    #[inline]
    pub(crate) fn scatter_at(&self, bytes: &[u8], segments: &Segments, offset: u64, len: u64) -> Result<(), Fault> {
        let mut rest = bytes;
        for (to, part) in segments.pieces(offset, len) {
            let Some(part) = usize::try_from(part).ok().and_then(|part| rest.split_off(..part)) else { break };
            self.local.write(to, part, WriteHint::Cache)?;
        }
        Ok(())
    }

    /// Copies `len` bytes to the start of the segments with the CPU.
    #[inline]
    pub(crate) fn copy_out(&self, from: u64, segments: &Segments, len: u64) -> Result<(), Fault> {
        self.copy_out_at(from, segments, 0, len)
    }

    /// Copies `len` bytes to byte `offset` of the segments with the CPU.
    pub(crate) fn copy_out_at(&self, mut from: u64, segments: &Segments, offset: u64, len: u64) -> Result<(), Fault> {
        for (to, part) in segments.pieces(offset, len) {
            self.local.move_forward(to, from, part, WriteHint::Cache)?;
            from += part;
        }
        Ok(())
    }

    /// Copies `len` bytes from byte `offset` of the segments with the CPU.
    pub(crate) fn copy_in_from(&self, mut to: u64, segments: &Segments, offset: u64, len: u64) -> Result<(), Fault> {
        for (from, part) in segments.pieces(offset, len) {
            self.local.move_forward(to, from, part, WriteHint::Cache)?;
            to += part;
        }
        Ok(())
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Copies with the CPU, at once.
    pub(crate) fn copy(&self, copy: Copy) -> Result<(), Fault> {
        self.local.move_forward(copy.dst, copy.src, copy.len, copy.hint)
    }

    /// Starts the copy of a piece. A device gets it with the next [`submit`](Copier::submit).
    pub(crate) fn start(&mut self, copy: Copy, purpose: CopyFor) -> Started {
        if self.start_on_device(copy, purpose) {
            return Started::Pending;
        }
        self.counts.by_cpu += 1;
        Started::Ended(self.copy(copy))
    }

    /// Prepares a copy for the next queue that takes it; false if none does.
    pub(crate) fn start_on_device(&mut self, copy: Copy, purpose: CopyFor) -> bool {
        let count = self.queues.len();
        for turn in 0..count {
            let at = (self.next + turn) % count;
            if self.queues[at].start(copy, purpose) {
                self.next = (at + 1) % count;
                return true;
            }
        }
        false
    }

    /// Starts to copy `len` bytes from byte `offset` of the segments to an address. A device gets them if they are in
    /// one segment.
    pub(crate) fn start_in(
        &mut self,
        mut to: u64,
        segments: &Segments,
        offset: u64,
        len: u64,
        hint: WriteHint,
        purpose: CopyFor,
    ) -> Started {
        for (src, part) in segments.pieces(offset, len) {
            let copy = Copy { dst: to, src, len: part, hint };
            if part == len {
                return self.start(copy, purpose);
            }
            if let Err(fault) = self.copy(copy) {
                return Started::Ended(Err(fault));
            }
            to += part;
        }
        Started::Ended(Ok(()))
    }

    /// Starts to copy `len` bytes from an address to byte `offset` of the segments. A device gets them if they are in
    /// one segment.
    pub(crate) fn start_out(
        &mut self,
        from: u64,
        segments: &Segments,
        offset: u64,
        len: u64,
        purpose: CopyFor,
    ) -> Started {
        let first = segments.pieces(offset, len).next();
        match first {
            Some((dst, part)) if part == len => {
                self.start(Copy { dst, src: from, len, hint: WriteHint::Cache }, purpose)
            }
            _ => Started::Ended(self.copy_out_at(from, segments, offset, len)),
        }
    }

    /// Starts like [`start_out`](Copier::start_out); `None` if the bytes are for a device that has no room now.
    pub(crate) fn start_out_if_room(
        &mut self,
        from: u64,
        segments: &Segments,
        offset: u64,
        len: u64,
        purpose: CopyFor,
    ) -> Option<Started> {
        match segments.pieces(offset, len).next() {
            Some((dst, part)) if part == len && self.queues.iter().any(|queue| len >= queue.shortest) => {
                let copy = Copy { dst, src: from, len, hint: WriteHint::Cache };
                self.start_on_device(copy, purpose).then_some(Started::Pending)
            }
            _ => Some(self.start_out(from, segments, offset, len, purpose)),
        }
    }

    /// Gives the device what was started.
    pub(crate) fn submit(&mut self) {
        for queue in self.queues.iter_mut().filter(|queue| queue.is_prepared) {
            queue.is_prepared = false;
            queue.channel.submit();
        }
    }

    /// True if a device gets the longer pieces.
    #[inline]
    pub(crate) fn has_device(&self) -> bool {
        !self.queues.is_empty()
    }

    /// True if a device works on copies.
    pub(crate) fn is_busy(&self) -> bool {
        self.queues.iter().any(Queue::is_busy)
    }

    /// Reports the copies of the device that have ended.
    pub(crate) fn collect(&mut self, into: &mut Vec<(CopyFor, Result<(), Fault>)>) {
        for queue in self.queues.iter_mut().filter(|queue| queue.is_busy()) {
            queue.collect(self.local, &mut self.counts, into);
        }
    }
}

impl Queue {
    fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.late.is_empty()
    }

    fn collect(&mut self, local: Local, counts: &mut Counts, into: &mut Vec<(CopyFor, Result<(), Fault>)>) {
        let mut finished = std::mem::take(&mut self.finished);
        self.channel.completed(&mut finished);
        for end in finished.drain(..) {
            let Some((copy, purpose)) = self.running.pop_front() else { continue };
            match end.result {
                Ok(_) => {
                    counts.by_device += 1;
                    into.push((purpose, Ok(())));
                }
                // The device may still write the destination.
                Err(JobError::Deadline { .. }) => self.late.push((copy, purpose)),
                // The device has left the copy alone: its record says so, or its queue has stopped for good.
                Err(error) => {
                    counts.by_fallback[FallbackReason::of(&error) as usize] += 1;
                    into.push((purpose, local.move_forward(copy.dst, copy.src, copy.len, copy.hint)));
                }
            }
        }
        self.finished = finished;
        if !self.late.is_empty() && self.channel.quarantined() == 0 {
            for (copy, purpose) in self.late.drain(..) {
                counts.by_fallback[FallbackReason::Deadline as usize] += 1;
                into.push((purpose, local.move_forward(copy.dst, copy.src, copy.len, copy.hint)));
            }
        }
    }

    /// Prepares a copy; false if the CPU shall do it.
    #[allow(unsafe_code, reason = "passes on the promise of the callers of an endpoint")]
    fn start(&mut self, copy: Copy, purpose: CopyFor) -> bool {
        let Ok(len) = u32::try_from(copy.len) else { return false };
        if copy.len < self.shortest {
            return false;
        }
        // SAFETY: the slot and the caller's buffer belong to the operation until its end has been collected. The
        // endpoint completes no operation, and frees no slot or connection, before that. A dropped endpoint waits for
        // the device; if it does not answer, the endpoint keeps the memory of its connections for ever. A group returns
        // from no operation before that, nor unwinds.
        if unsafe { self.channel.raw(Descriptor::memory_move(copy.src, copy.dst, len)) }.is_err() {
            return false;
        }
        self.running.push_back((copy, purpose));
        self.is_prepared = true;
        true
    }
}
