//! What the control plane does to a virtqueue between two bursts: drain its copies, move it to other memory, switch its
//! log.

use crate::GuestMemory;
use crate::layout::{Features, USED_ELEMENT_BYTES};
use crate::log::RingLog;
use crate::packets::Packets;
use crate::ring::{Burst, Chain, Direction, RingError, RingSetup};
use crate::virtqueue::Virtqueue;
use std::sync::Arc;
use std::time::Instant;

impl Virtqueue {
    /// Waits until all copies are complete, at most until `deadline`; publishes the used chains and appends the packets
    /// to `completed`. After the deadline, DMA queues that have stopped end their copies, and the CPU redoes incomplete
    /// packets from the guest. Returns true if no copy is in flight any more.
    pub(crate) fn drain(&mut self, completed: &mut Packets, deadline: Instant) -> bool {
        let mut timed_out = false;
        self.completed.move_to(usize::MAX, completed);
        loop {
            self.poll_copies();
            while let Some((held, note)) = self.in_flight.pop_completed() {
                self.mark_writes(note.ranges);
                self.queue_used(note.chains);
                completed.put_in(held);
            }
            self.publish_used();
            if self.in_flight.len() == 0 {
                return true;
            }
            if timed_out {
                return false;
            }
            timed_out = Instant::now() >= deadline;
            if !timed_out {
                std::thread::yield_now();
                continue;
            }
            self.in_flight.check_health();
            if self.ring.setup().direction == Direction::Transmit {
                self.in_flight.redo(true);
            }
        }
    }

    /// Continues in the memory of another table and releases the previous one. Nothing may be in flight.
    ///
    /// # Errors
    /// [`RingError`]: the ring does not lie in that memory; the virtqueue is unchanged.
    pub(crate) fn move_to(&mut self, memory: &Arc<GuestMemory>) -> Result<(), RingError> {
        debug_assert_eq!(self.in_flight.len(), 0, "callers drain first");
        self.ring = self.ring.moved_to(memory)?;
        self.burst = Some(Box::new(Burst::with_capacity(self.ring.setup().size.into())));
        self.in_flight.close_tenancy();
        Ok(())
    }

    /// See [`Ring::want_kicks`](crate::ring::Ring::want_kicks).
    pub(crate) fn want_kicks(&mut self, wanted: bool) {
        self.ring.want_kicks(wanted);
        let RingSetup { size, features, addresses, .. } = *self.ring.setup();
        if let Some(RingLog { log, used: Some(_) }) = &self.log {
            // The words that the device writes: in a packed ring its event structure, in a split ring its flags and, at
            // the end, its event index.
            let elements = u64::from(USED_ELEMENT_BYTES) * u64::from(size);
            let event = if features.contains(Features::RING_PACKED) { 2 } else { 4 + elements };
            for address in [addresses.device, addresses.device.saturating_add(event)] {
                if let Some(guest) = self.ring.memory().guest_of_user(address) {
                    log.mark(guest, 2);
                }
            }
        }
    }

    /// Sets the log in which later writes are marked, or none. Nothing may be in flight.
    pub(crate) fn set_log(&mut self, log: Option<RingLog>) {
        debug_assert_eq!(self.in_flight.len(), 0, "callers drain first");
        self.log = log;
    }

    /// Records the ranges that a packet of `len` bytes (with header) writes in these chains. Returns the number of
    /// ranges.
    #[cold]
    pub(crate) fn expect_writes(&mut self, burst: &Burst, chains: &[Chain], len: u32) -> usize {
        let (before, mut left) = (self.writes.len(), len);
        for piece in chains.iter().flat_map(|chain| burst.pieces(chain)) {
            let written = piece.len().min(left);
            left -= written;
            self.writes.push_back((piece.guest(), written));
        }
        self.writes.len() - before
    }

    /// Marks the ranges that the oldest packet in flight has written. Its copies are complete, and the driver has not
    /// been told yet.
    #[inline]
    pub(crate) fn mark_writes(&mut self, ranges: usize) {
        if ranges > 0 {
            for (guest, len) in self.writes.drain(..ranges) {
                if let Some(RingLog { log, .. }) = &self.log {
                    log.mark(guest, len.into());
                }
            }
        }
    }

    /// Marks what was just written to the ring itself.
    #[inline]
    pub(crate) fn mark_ring(&self) {
        if let Some(RingLog { log, used: Some(used) }) = &self.log {
            let setup = self.ring.setup();
            self.ring.written(|address, len| {
                // The frontend names the log address of a split ring's used part. A packed ring's used part is its
                // descriptor table.
                let guest = match address.checked_sub(setup.addresses.device) {
                    Some(at) if !setup.features.contains(Features::RING_PACKED) => used.checked_add(at),
                    _ => self.ring.memory().guest_of_user(address),
                };
                if let Some(guest) = guest {
                    log.mark(guest, len);
                }
            });
        }
    }
}
