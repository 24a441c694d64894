//! From the gate's pointer to the replica, and back to the heap: the two places that rely on who is inside.
#![allow(unsafe_code, reason = "the gate keeps what is entered alive, and gives it back once")]

use crate::gate::Inside;
use crate::replica::Replica;

/// The replica one is inside with.
#[inline]
pub(super) fn inside<'a>(inside: &'a Inside<'static, Replica>) -> &'a Replica {
    // SAFETY: `enter` answers for a replica that was put in from a Box, and `take_out` waits for this Inside to go before it
    // hands the replica to `end`.
    unsafe { &*inside.thing() }
}

/// Ends a replica that was taken out of its gate: its work is done first, and the driver hears the rest.
pub(super) fn end(replica: *mut Replica) {
    if replica.is_null() {
        return;
    }
    // SAFETY: put in from a Box, taken out by this caller alone, with nobody inside any more.
    let replica = unsafe { Box::from_raw(replica) };
    replica.drain();
}
