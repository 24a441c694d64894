#![allow(unsafe_code, reason = "nothing executes a descriptor that is vouched for here")]
//! The promise about a descriptor's addresses that a portal requires.

use telpher_abi::Descriptor;
use telpher_portal::Submission;

/// A descriptor for a device in simulated time.
pub(crate) fn submission(descriptor: Descriptor) -> Submission {
    // SAFETY: the descriptor is offered to simulated devices only, and their engines do not execute: the simulator only
    // charges time for what an engine returns. No byte is read or written at its addresses, so the owner of that
    // memory, if any, is not affected.
    unsafe { Submission::vouch(descriptor) }
}
