//! Conversions between the gate's pointer and the replica: the two places that rely on the gate's count.
#![allow(unsafe_code, reason = "the gate keeps an entered object alive, and returns it once")]

use crate::replica::Replica;
use crate::user_count::Inside;

/// The replica that an [`Inside`] keeps alive.
#[inline]
pub(super) fn inside<'a>(inside: &'a Inside<'static, Replica>) -> &'a Replica {
    // SAFETY: `enter` returns only replicas that were put in from a Box, and `take_out` waits until this Inside is
    // dropped before the replica is passed to `end`.
    unsafe { &*inside.object() }
}

/// Ends a replica that was taken out of its gate: waits for its work and sends the remaining reports to the driver.
pub(super) fn end(replica: *mut Replica) {
    if replica.is_null() {
        return;
    }
    // SAFETY: put in from a Box, taken out only by this caller, and no user is inside any more.
    let replica = unsafe { Box::from_raw(replica) };
    replica.drain();
}
