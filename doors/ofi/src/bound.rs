//! What address vectors, queues and counters need of the endpoints that are bound to them.

use std::fmt::Debug;
use telpher_fabric::{Address, Completion, FabricError};

/// Which operations a completion queue is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// Sends.
    Sends,
    /// Receives and probes.
    Receives,
}

/// An endpoint, as the objects see it that are bound to it.
pub(crate) trait BoundEndpoint: Debug + Send + Sync {
    /// Makes the peer known that the address vector numbers `number`.
    fn insert_peer(&self, number: u64, address: &Address) -> Result<(), FabricError>;

    /// Forgets a peer.
    fn remove_peer(&self, number: u64);

    /// Returns the number that the address vector gives an address.
    fn number_of(&self, address: &Address) -> Option<u64>;

    /// Moves messages, and takes completions for a queue that the endpoint is bound to in this direction.
    fn take(&self, direction: Direction, into: &mut Vec<Completion>, most: usize);

    /// Moves messages. The operations that end are counted.
    fn progress(&self);
}
