//! Copies bytes between the caller's buffers and the slots: by the CPU, or by a device through a channel of the mover.
//!
//! ```text
//! sender:    buffer ─► slot      CPU: non-temporal stores for longer pieces, since another core reads the slot
//! receiver:  slot ─► buffer      CPU: plain stores, since this core reads the buffer next
//! device:    start ─► submit (one batch) ─► collect; the CPU does again what the device left undone
//! ```
//!
//! No address is checked before a copy: a copy that reaches memory that is not there reports the exact byte.
#![allow(unsafe_code, reason = "copies between addresses that the callers of an endpoint vouch for")]

use std::collections::VecDeque;
use telpher_abi::Descriptor;
use telpher_mem::{Fault, Local, Space, WriteHint};
use telpher_mover::{Channel, Finished, JobError};

/// The mover's channel for copies. All its operations are raw descriptors, so it owns no buffers.
pub type CopyChannel = Channel<Vec<u8>, Vec<u8>>;

/// Pieces of fewer bytes are copied by the CPU. Source: assumed; a submission costs about as much as this copy.
pub const DEFAULT_SHORTEST: u64 = 4096;

/// Copies bytes for an endpoint.
#[derive(Debug)]
pub struct Copier {
    local: Local,
    device: Option<Device>,
    counts: Counts,
}

/// Pieces by what copied them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) by_cpu: u64,
    pub(crate) by_device: u64,
    pub(crate) by_fallback: u64,
}

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
    /// A device works on it; [`Copier::collect`] reports its end under this number.
    Pending(CopyId),
}

/// Numbers the copies of a device, counting up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct CopyId(u64);

#[derive(Debug)]
struct Device {
    channel: CopyChannel,
    shortest: u64,
    /// The copies whose results are not fetched, in the order of their tickets.
    running: VecDeque<Copy>,
    /// The ticket of the first of them.
    first: u64,
    /// Copies whose deadline has passed. The device may still write their destinations.
    late: Vec<(CopyId, Copy)>,
    finished: Vec<Finished<Vec<u8>, Vec<u8>>>,
    is_prepared: bool,
}

impl Copier {
    /// A copier that uses the CPU alone.
    #[must_use]
    pub fn cpu() -> Copier {
        // SAFETY: copies touch the slots of connections and the buffers that callers have vouched for with
        // `Buffer::vouch`. Handlers of SIGSEGV that programs install later must call the ones before them, as the
        // crate's documentation says.
        let local = unsafe { Local::new() };
        Copier { local, device: None, counts: Counts::default() }
    }

    /// A copier that gives pieces of at least `shortest` bytes to a device.
    ///
    /// The channel reports results in the order of submission ([`Order::Submitted`](telpher_mover::Order::Submitted)).
    /// Whatever the device refuses or leaves undone is done by the CPU.
    #[must_use]
    pub fn device(channel: CopyChannel, shortest: u64) -> Copier {
        let device = Device {
            channel,
            shortest: shortest.max(1),
            running: VecDeque::new(),
            first: 0,
            late: Vec::new(),
            finished: Vec::new(),
            is_prepared: false,
        };
        Copier { device: Some(device), ..Copier::cpu() }
    }

    /// Returns the memory that copies use.
    pub(crate) fn local(&self) -> Local {
        self.local
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Copies with the CPU, at once.
    pub(crate) fn copy(&self, copy: Copy) -> Result<(), Fault> {
        self.local.move_forward(copy.dst, copy.src, copy.len, copy.hint)
    }

    /// Starts the copy of a piece. A device gets it with the next [`submit`](Copier::submit).
    pub(crate) fn start(&mut self, copy: Copy) -> Started {
        if let Some(id) = self.device.as_mut().and_then(|device| device.start(copy)) {
            return Started::Pending(id);
        }
        self.counts.by_cpu += 1;
        Started::Ended(self.copy(copy))
    }

    /// Gives the device what was started.
    pub(crate) fn submit(&mut self) {
        if let Some(device) = &mut self.device
            && device.is_prepared
        {
            device.is_prepared = false;
            device.channel.submit();
        }
    }

    /// True if a device works on copies.
    pub(crate) fn is_busy(&self) -> bool {
        self.device.as_ref().is_some_and(|device| !device.running.is_empty() || !device.late.is_empty())
    }

    /// Reports the copies of the device that have ended.
    pub(crate) fn collect(&mut self, into: &mut Vec<(CopyId, Result<(), Fault>)>) {
        let Some(device) = &mut self.device else { return };
        if device.running.is_empty() && device.late.is_empty() {
            return;
        }
        let mut finished = std::mem::take(&mut device.finished);
        device.channel.completed(&mut finished);
        for end in finished.drain(..) {
            let Some((id, copy)) = device.take(end.ticket.number()) else { continue };
            match end.result {
                Ok(_) => {
                    self.counts.by_device += 1;
                    into.push((id, Ok(())));
                }
                // The device may still write the destination.
                Err(JobError::Deadline { .. }) => device.late.push((id, copy)),
                // The device has left the copy alone: its record says so, or its queue has stopped for good.
                Err(_) => {
                    self.counts.by_fallback += 1;
                    into.push((id, self.local.move_forward(copy.dst, copy.src, copy.len, copy.hint)));
                }
            }
        }
        device.finished = finished;
        if !device.late.is_empty() && device.channel.quarantined() == 0 {
            for (id, copy) in device.late.drain(..) {
                self.counts.by_fallback += 1;
                into.push((id, self.local.move_forward(copy.dst, copy.src, copy.len, copy.hint)));
            }
        }
    }
}

impl Device {
    /// Prepares a copy; `None` if the CPU shall do it.
    fn start(&mut self, copy: Copy) -> Option<CopyId> {
        let len = u32::try_from(copy.len).ok().filter(|&len| u64::from(len) >= self.shortest)?;
        // SAFETY: the slot and the caller's buffer belong to the operation until its end has been collected. The
        // endpoint completes no operation, and frees no slot or connection, before that. A dropped endpoint drops its
        // channel before its connections, and the channel waits for the device.
        let ticket = unsafe { self.channel.raw(Descriptor::memory_move(copy.src, copy.dst, len)) }.ok()?;
        if self.running.is_empty() {
            self.first = ticket.number();
        }
        self.running.push_back(copy);
        self.is_prepared = true;
        Some(CopyId(ticket.number()))
    }

    /// Removes the copy with this ticket. Results come in the order of tickets, so it is the first.
    fn take(&mut self, ticket: u64) -> Option<(CopyId, Copy)> {
        debug_assert_eq!(ticket, self.first);
        let copy = self.running.pop_front()?;
        let id = CopyId(self.first);
        self.first += 1;
        Some((id, copy))
    }
}
