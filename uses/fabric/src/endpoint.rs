//! An endpoint: the operations of its callers, its peers, and the progress of all messages.

use crate::address::Address;
use crate::completion::Completion;
use crate::config::Config;
use crate::copier::Copier;
use crate::error::FabricError;
use crate::request::{PeerId, ProbeRequest, ReceiveRequest, SendRequest};
use crate::stats::Stats;

/// Which thread moves messages on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProgressBy {
    /// The callers of [`Endpoint::progress`] and [`Endpoint::completions`].
    #[default]
    Caller,
    /// Also the endpoint's helper thread, when a peer waits.
    HelperThread,
}

/// One address of this process: it sends and receives messages, and ends each operation with one [`Completion`].
///
/// Any thread may call it. Its lock is never held while a thread waits.
#[derive(Debug)]
pub struct Endpoint {}

#[allow(clippy::todo, clippy::missing_panics_doc, unused, reason = "the bodies follow")]
impl Endpoint {
    /// Opens an endpoint with a new address.
    ///
    /// # Errors
    ///
    /// [`FabricError::System`] if the system refuses a socket or a thread.
    pub fn open(config: Config, copier: Copier, progress: ProgressBy) -> Result<Endpoint, FabricError> {
        todo!()
    }

    /// Returns the address that peers insert.
    #[must_use]
    pub fn address(&self) -> Address {
        todo!()
    }

    /// Makes a peer known. The same address has the same number until it is removed. The connection is opened by the
    /// first send.
    ///
    /// # Errors
    ///
    /// [`FabricError::OtherMachine`] or [`FabricError::OtherUser`].
    pub fn insert_peer(&self, address: &Address) -> Result<PeerId, FabricError> {
        todo!()
    }

    /// Forgets a peer. Its number is never used again. Its unfinished sends, and unmatched receives that name it, end
    /// with [`Failure::Canceled`](crate::Failure::Canceled). Its messages still match receives from any sender.
    ///
    /// # Errors
    ///
    /// [`FabricError::UnknownPeer`].
    pub fn remove_peer(&self, peer: PeerId) -> Result<(), FabricError> {
        todo!()
    }

    /// Returns the address of a peer.
    #[must_use]
    pub fn peer_address(&self, peer: PeerId) -> Option<Address> {
        todo!()
    }

    /// Returns the number of an inserted address.
    #[must_use]
    pub fn peer_of(&self, address: &Address) -> Option<PeerId> {
        todo!()
    }

    /// Starts a send. The buffer belongs to the endpoint until the completion, or until the call returns if
    /// [`inject`](SendRequest::inject) is set.
    ///
    /// # Errors
    ///
    /// [`FabricError::Full`] if too many sends to the peer wait, [`FabricError::Unreachable`] if its process has ended,
    /// [`FabricError::UnknownPeer`], [`FabricError::Forked`]. Nothing was started then, and no completion follows.
    pub fn send(&self, request: SendRequest) -> Result<(), FabricError> {
        todo!()
    }

    /// Starts a receive. The buffer belongs to the endpoint until the completion.
    ///
    /// # Errors
    ///
    /// [`FabricError::UnknownPeer`], [`FabricError::Forked`]. Nothing was started then, and no completion follows.
    pub fn receive(&self, request: ReceiveRequest) -> Result<(), FabricError> {
        todo!()
    }

    /// Looks for a message that has arrived; makes progress before. The answer is a completion, with
    /// [`Failure::NoMessage`](crate::Failure::NoMessage) if there is none.
    ///
    /// # Errors
    ///
    /// [`FabricError::UnknownPeer`], [`FabricError::Forked`].
    pub fn probe(&self, request: ProbeRequest) -> Result<(), FabricError> {
        todo!()
    }

    /// Receives the message that the probe with the context `claim` has claimed. Sender and tags of the request are
    /// not looked at; a buffer for many messages is used for this message alone.
    ///
    /// # Errors
    ///
    /// [`FabricError::NotClaimed`], [`FabricError::Forked`].
    pub fn receive_claimed(&self, claim: u64, request: ReceiveRequest) -> Result<(), FabricError> {
        todo!()
    }

    /// Drops the message that the probe with the context `claim` has claimed. There is no completion.
    ///
    /// # Errors
    ///
    /// [`FabricError::NotClaimed`], [`FabricError::Forked`].
    pub fn discard_claimed(&self, claim: u64) -> Result<(), FabricError> {
        todo!()
    }

    /// Cancels the oldest receive with this context that no message has matched. True if there is one; it ends with
    /// [`Failure::Canceled`](crate::Failure::Canceled). A buffer for many messages ends with its last message.
    #[must_use]
    pub fn cancel(&self, context: u64) -> bool {
        todo!()
    }

    /// Moves all messages on as far as possible without waiting.
    pub fn progress(&self) {
        todo!()
    }

    /// Makes progress, then moves at most `most` completions to the end of `into`. Failures are among them.
    pub fn completions(&self, into: &mut Vec<Completion>, most: usize) {
        todo!()
    }

    /// Returns the counters.
    #[must_use]
    pub fn statistics(&self) -> Stats {
        todo!()
    }
}
