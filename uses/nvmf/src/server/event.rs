//! What a loop learns from its sockets, and the numbers by which it knows them.

use crate::connection::{DataBuffer, Outgoing};
use rustix::event::epoll::EventFlags;
use std::io;

/// The epoll number of the handle's eventfd. Listeners follow, and then connections by their own number.
pub(super) const HANDLE: u64 = 0;
/// The first epoll number of a connection.
pub(super) const FIRST_CONNECTION: u64 = 1 << 16;

/// Where received bytes go.
#[derive(Debug)]
pub(super) enum Destination {
    /// To the beginning of a buffer.
    Buffer(Vec<u8>),
    /// To the place of a PDU's data.
    Data(DataBuffer),
}

/// What has happened.
#[derive(Debug)]
pub(super) enum Event {
    /// Another thread has used the handle.
    Handle,
    /// Connections wait at a listener.
    Listener(u64),
    /// Connections wait at some listener.
    Listeners,
    /// A socket can be read or written, or has closed.
    Ready { number: u64, flags: EventFlags },
    /// A receive has ended.
    Received { number: u64, into: Destination, result: io::Result<usize>, has_more: bool },
    /// An event that the loop has taken.
    Taken,
    /// A send has ended.
    Sent { number: u64, outgoing: Outgoing, result: io::Result<usize> },
    /// The socket may have room for these bytes.
    Room { number: u64, outgoing: Outgoing },
}
