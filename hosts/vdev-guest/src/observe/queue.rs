//! The queue that the stages of an observer submit to.

use telpher_abi::{Descriptor, Offer};
use telpher_vdev_wire::event::SubmitInstruction;

/// The queue that an observer submits to: the replica.
pub(crate) trait Queue {
    /// Submits a descriptor to the queue. Its first dword contains a number that must be preserved; the device ignores
    /// it.
    fn submit(&self, how: SubmitInstruction, descriptor: &Descriptor) -> Offer;
    /// True if the device ends a descriptor, or a batch's `member`, without accessing any memory but its record.
    fn refuses(&self, descriptor: &Descriptor, member: bool) -> bool;
    /// Makes the device halt, as after an internal error.
    fn halt(&self);
}
