//! What the control plane does to a virtqueue between two bursts: lets its copies land, moves it, has it logged.

use crate::GuestMemory;
use crate::log::RingLog;
use crate::packets::Packets;
use crate::ring::{Burst, Chain, Direction, RingError, RingSetup};
use crate::virtqueue::Virtqueue;
use crate::words::{Features, USED_ELEMENT_BYTES};
use std::sync::Arc;
use std::time::Instant;

impl Virtqueue {
    /// Lets all copies land, shows the driver what went back, and appends the packets to `landed`, `until` then at most. What the guest sent and has
    /// not landed by then is redone. True if nothing is in flight any more.
    pub(crate) fn drain(&mut self, landed: &mut Packets, until: Instant) -> bool {
        let mut late = false;
        self.landed.move_to(usize::MAX, landed);
        loop {
            self.look();
            while let Some((held, note)) = self.flights.land() {
                self.mark_writes(note.ranges);
                self.go_back(note.chains);
                landed.put_in(held);
            }
            self.show();
            if self.flights.len() == 0 {
                return true;
            }
            if late {
                return false;
            }
            late = Instant::now() >= until;
            if !late {
                std::thread::yield_now();
            } else if self.ring.setup().direction == Direction::Transmit {
                self.flights.redo(true);
            }
        }
    }

    /// Goes on in the memory of another table, and lets the one before go. Nothing is in flight.
    ///
    /// # Errors
    /// [`RingError`]: the ring is not in that memory; the virtqueue is where it was.
    pub(crate) fn move_to(&mut self, memory: &Arc<GuestMemory>) -> Result<(), RingError> {
        debug_assert_eq!(self.flights.len(), 0, "callers drain first");
        self.ring = self.ring.moved_to(memory)?;
        self.burst = Some(Box::new(Burst::with_capacity(self.ring.setup().size.into())));
        self.flights.leave();
        Ok(())
    }

    /// See [`Ring::want_kicks`](crate::ring::Ring::want_kicks).
    pub(crate) fn want_kicks(&mut self, wanted: bool) {
        self.ring.want_kicks(wanted);
        let RingSetup { size, features, addresses, .. } = *self.ring.setup();
        if let Some(RingLog { log, used: Some(_) }) = &self.log {
            // The device's words beside the ring: of a packed one its events, of a split one its flags and, last, its event.
            let elements = u64::from(USED_ELEMENT_BYTES) * u64::from(size);
            let event = if features.contains(Features::RING_PACKED) { 2 } else { 4 + elements };
            for address in [addresses.device, addresses.device.saturating_add(event)] {
                if let Some(guest) = self.ring.memory().guest_of_user(address) {
                    log.mark(guest, 2);
                }
            }
        }
    }

    /// Marks what is written from now on, or does not. Nothing is in flight.
    pub(crate) fn set_log(&mut self, log: Option<RingLog>) {
        debug_assert_eq!(self.flights.len(), 0, "callers drain first");
        self.log = log;
    }

    /// Notes what a packet of `len` bytes, header and all, writes into these chains. Returns in how many ranges.
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

    /// Marks what the oldest packet in flight has written: its copies have landed, and the driver does not know yet.
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
                // A split ring's used part is named by the frontend; a packed ring is one with its descriptors.
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
