//! Marks which entries of the inter-domain permissions table a descriptor in progress uses, for code that must wait
//! until no descriptor uses old values of an entry: Update Window, and the commands that drain a PASID.
//!
//! A user marks its lane, then reads the entry. A writer writes the entry, then takes a ticket and waits until no lane
//! holds a mark with an older ticket. Either the user reads the new values, or the writer sees its mark.

use crate::sync::{AtomicU64, Ordering, fence};

/// Bits of a ticket in a mark; above them are wrapped differences. At 10 million descriptors a second they wrap after
/// 81 days, and no descriptor is in progress for half of that time.
const TICKET_BITS: u32 = 46;
const HANDLES: u64 = 0x3_ffff;

/// Numbers the uses of all lanes.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Tickets(AtomicU64);

impl Default for Tickets {
    fn default() -> Self {
        Tickets(AtomicU64::new(0))
    }
}

impl Tickets {
    /// Returns the ticket of a writer that has written an entry: users with a later ticket read what it wrote.
    pub(crate) fn after_write(&self) -> u64 {
        // SeqCst: pairs with the fence in `begin`. If that fence comes first, the writer sees the mark; otherwise the
        // user reads the new values.
        fence(Ordering::SeqCst);
        // Release: pairs with the Acquire in `begin`; a user with a later ticket reads the new values.
        self.0.fetch_add(1, Ordering::AcqRel)
    }
}

/// The mark of one lane: bits 63:18 the ticket, 17 and 8 whether a handle is used, 16:9 and 7:0 the handles. 0 if none.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct WindowUse(AtomicU64);

impl Default for WindowUse {
    fn default() -> Self {
        WindowUse(AtomicU64::new(0))
    }
}

impl WindowUse {
    /// Marks the handles of a descriptor as used; the caller reads their entries after this.
    pub(crate) fn begin(&self, tickets: &Tickets, handles: [Option<u8>; 2]) {
        // Acquire: pairs with the Release in `after_write`.
        let ticket = tickets.0.fetch_add(1, Ordering::AcqRel);
        let bits = |handle: Option<u8>| handle.map_or(0, |handle| u64::from(handle) | 1 << 8);
        self.0.store(ticket << 18 | bits(handles[1]) << 9 | bits(handles[0]), Ordering::Relaxed);
        // SeqCst: pairs with the fence in `after_write`.
        fence(Ordering::SeqCst);
    }

    /// Removes the mark, once the descriptor accesses nothing any more.
    pub(crate) fn end(&self) {
        // Release: pairs with the Acquire in `holds`; a thread that sees the mark gone sees the accesses done.
        self.0.store(0, Ordering::Release);
    }

    /// True if a descriptor that began before `ticket` uses the handle; without a handle, if it uses any.
    pub(crate) fn holds(&self, ticket: u64, handle: Option<u8>) -> bool {
        // Acquire: pairs with the Release in `end`.
        let mark = self.0.load(Ordering::Acquire);
        let age = ticket.wrapping_sub(mark >> 18) & ((1 << TICKET_BITS) - 1);
        let is_older = age != 0 && age < 1 << (TICKET_BITS - 1);
        let uses = |half: u64| half >> 8 == 1 && handle.is_none_or(|handle| u64::from(handle) == half & 0xff);
        mark & HANDLES != 0 && is_older && (uses(mark & 0x1ff) || uses(mark >> 9 & 0x1ff))
    }
}
