//! Why something of a backend could not be made, or was refused to a frontend.

use crate::RegionError;
use crate::inflight::RecordError;
use crate::log::LogError;
use crate::message::MessageError;
use crate::ring::RingError;
use crate::session::Refusal;
use telpher_mover::ChannelError;

/// Why a lane could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a DMA queue cannot be given a lane")]
pub struct LaneError(#[source] pub ChannelError);

/// Why a frontend's request was not done. The session goes on if the frontend asked to be told, and ends if not: it would go on as if it were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It is not among what there is.
    #[error("a frontend's request was refused")]
    Refused(#[from] Refusal),
    /// Memory that cannot be.
    #[error("a frontend's memory was refused")]
    Memory(#[from] RegionError),
    /// A ring that cannot be.
    #[error("a frontend's ring {ring} was refused")]
    Ring {
        /// Which.
        ring: usize,
        /// Why.
        #[source]
        source: RingError,
    },
    /// A log that cannot be.
    #[error("a frontend's dirty log was refused")]
    Log(#[from] LogError),
    /// A record of what is in flight that cannot be.
    #[error("a frontend's record of what is in flight was refused")]
    Record(#[from] RecordError),
    /// A file that counts no events.
    #[error("a frontend sent something else than an eventfd to be called through")]
    Event,
    /// Copies that do not land.
    #[error("copies of ring {ring} had not landed when its log was to begin; is its DMA queue at work?")]
    Busy {
        /// Which.
        ring: usize,
    },
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The frontend said something that makes no sense.
    #[error("a frontend does not keep to the protocol")]
    Message(#[from] MessageError),
    /// It asked for what cannot be, and not for an answer.
    #[error("a frontend goes on as if a request were done that was refused")]
    Request(#[from] RequestError),
    /// Copies that do not land: what their DMA queue may still write is not the guest's memory any more. The frontend may come again.
    #[error(
        "copies into the guest through ring {ring} had not landed when it was to stop; is its DMA queue at work? The session ends with the memory that they are to"
    )]
    Late {
        /// Which.
        ring: usize,
        /// Why the memory could not be taken away, if so.
        #[source]
        source: Option<RegionError>,
    },
    /// The connection is at its end.
    #[error("the connection to a frontend ended")]
    Socket(#[source] std::io::Error),
}

impl SessionError {
    /// Whether the session ends because the backend refused a message or a request.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, SessionError::Message(_) | SessionError::Request(_))
    }
}

/// Why something is no packet that is outside of its pool's rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LooseError {
    /// Zero, or a number that no packet of this pool can have.
    #[error("no packet of this pool has the number {id:#x}")]
    Unknown {
        /// The number.
        id: u32,
    },
    /// It came back before, and may be somebody else's by now.
    #[error("the packet of buffer {index} was given back before, or is of another pool; each is given back once")]
    Returned {
        /// Which buffer.
        index: u32,
    },
    /// Its bytes are not in its buffer.
    #[error(
        "the packet at {at:#x} with {len} bytes is not in its buffer {index}, which has room from {from:#x} to {end:#x}; or it is of another pool"
    )]
    Place {
        /// Which buffer.
        index: u32,
        /// Where the packet begins.
        at: u64,
        /// Its bytes.
        len: u32,
        /// Where it may begin at the earliest.
        from: u64,
        /// Where it may end at the latest.
        end: u64,
    },
}
