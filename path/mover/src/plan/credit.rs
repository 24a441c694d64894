//! Credits of one dedicated queue: never more descriptors in flight than the queue has entries.
//!
//! A counting semaphore without waiting (Dijkstra's P that may fail, and V). A descriptor written to a full dedicated
//! queue is lost without an answer (SPEC §3.3). So the count must be exact at every moment, and a credit may come back
//! only after the record of its descriptor was seen.

use crate::sync::{AtomicU32, Ordering};

/// The credits of one queue.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Credits that are not taken.
    free: AtomicU32,
}

/// The right to have one descriptor in flight. Must be returned by [`Credits::give`]; forgetting it loses a queue
/// entry.
#[must_use = "a credit that is not given back is a queue entry lost for ever"]
#[derive(Debug)]
pub(crate) struct Credit(());

impl Credits {
    pub(crate) fn new(entries: u32) -> Self {
        Credits { free: AtomicU32::new(entries) }
    }

    /// Takes a credit, if there is one.
    pub(crate) fn take(&self) -> Option<Credit> {
        // Relaxed: only a first guess, the exchange decides.
        let mut free = self.free.load(Ordering::Relaxed);
        while free > 0 {
            // Acquire: pairs with the Release in `give`; the completion that freed this entry happened before our
            // offer.
            match self.free.compare_exchange_weak(free, free - 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Credit(())),
                Err(now) => free = now,
            }
        }
        None
    }

    /// Like [`take`](Credits::take), for the only user of the queue.
    #[inline]
    pub(crate) fn take_alone(&mut self) -> Option<Credit> {
        // Relaxed, also below: no other thread takes or gives credits meanwhile.
        let free = self.free.load(Ordering::Relaxed).checked_sub(1)?;
        self.free.store(free, Ordering::Relaxed);
        Some(Credit(()))
    }

    /// Like [`give`](Credits::give), for the only user of the queue.
    #[inline]
    pub(crate) fn give_alone(&mut self, credit: Credit) {
        let Credit(()) = credit;
        // Cannot overflow because every credit came from this count.
        self.free.store(self.free.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Gives a credit back after its descriptor's record was seen, or after the queue refused the descriptor.
    pub(crate) fn give(&self, credit: Credit) {
        let Credit(()) = credit;
        // Release: pairs with the Acquire in `take`. Cannot overflow because every credit came from this count.
        self.free.fetch_add(1, Ordering::Release);
    }
}
