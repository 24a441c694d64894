//! What an endpoint knows of other processes and of its connections with them.

use crate::address::Address;
use crate::events::ConnectionId;
use crate::matching::Source;
use crate::receiver::Receiver;
use crate::request::PeerId;
use crate::sender::Sender;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Passes without a move between two looks at the clock. Source: assumed; a look costs about as much as a pass.
const PASSES_PER_LOOK: u32 = 64;
/// A peer is woken when this side has waited for it so long. Source: chosen.
const STALL: Duration = Duration::from_millis(1);
/// How often the time between two wakes doubles. Source: chosen; a wake a second costs nothing.
const DOUBLINGS: u32 = 10;

/// A process that messages go to or come from.
#[derive(Debug)]
pub(crate) struct Party {
    pub(crate) address: Address,
    pub(crate) peer: Option<PeerId>,
    pub(crate) sender: Option<u32>,
    /// Connections from it that have not ended.
    pub(crate) receivers: usize,
    /// True if it cannot be reached, or if a connection to it has ended.
    pub(crate) is_unreachable: bool,
    /// True if a connection from it has ended.
    pub(crate) has_left: bool,
    /// Connections from it that are read when the ones before have ended.
    pub(crate) later: VecDeque<u32>,
}

/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) sender: Sender,
    pub(crate) party: Source,
    pub(crate) connection: ConnectionId,
    pub(crate) is_busy: bool,
    pub(crate) stall: Stall,
}

/// A connection from a peer.
#[derive(Debug)]
pub(crate) struct In {
    pub(crate) receiver: Receiver,
    pub(crate) connection: ConnectionId,
    pub(crate) stall: Stall,
    /// False while an earlier connection from the same process has not ended.
    pub(crate) is_polled: bool,
    /// True if the peer waits, and shall be woken when something has moved.
    pub(crate) peer_waits: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Half {
    Out(u32),
    In(u32),
}

/// How long this side has waited for a peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    passes: u32,
    since: Option<Instant>,
    wakes: u32,
}

impl Stall {
    /// Counts a pass without a move; true if the peer shall be woken. It is woken again, since it may have been unable
    /// to move anything at the first time.
    pub(crate) fn passed(&mut self) -> bool {
        self.passes = self.passes.wrapping_add(1);
        if !self.passes.is_multiple_of(PASSES_PER_LOOK) {
            return false;
        }
        let now = Instant::now();
        let is_late = now.duration_since(*self.since.get_or_insert(now)) >= STALL * (1 << self.wakes.min(DOUBLINGS));
        if is_late {
            self.since = Some(now);
            self.wakes += 1;
        }
        is_late
    }
}

impl Party {
    /// True if no more messages will come from it.
    pub(crate) fn is_silent(&self) -> bool {
        self.receivers == 0 && (self.is_unreachable || (self.has_left && self.sender.is_none()))
    }
}
