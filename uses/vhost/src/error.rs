//! Why a part of the backend could not be created, or why a frontend's request was refused.

use crate::RegionError;
use crate::inflight_fd::InflightRecordError;
use crate::log::LogError;
use crate::message::MessageError;
use crate::ring::RingError;
use crate::session::Refusal;
use telpher_mover::ChannelError;

/// Why a [`DmaQueue`](crate::DmaQueue) could not be created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the DMA queue cannot be used for packets")]
pub struct DmaQueueError(#[source] pub ChannelError);

/// Why a frontend's request was not carried out. If the frontend asked for a reply, it is told and the session
/// continues. Otherwise the session ends, because the frontend would continue as if the request had succeeded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The session refused it.
    #[error("a frontend's request was refused")]
    Refused(#[from] Refusal),
    /// Invalid memory.
    #[error("a frontend's memory was refused")]
    Memory(#[from] RegionError),
    /// An invalid ring.
    #[error("a frontend's ring {ring} was refused")]
    Ring {
        /// The ring's index.
        ring: usize,
        /// The reason.
        #[source]
        source: RingError,
    },
    /// An invalid dirty log.
    #[error("a frontend's dirty log was refused")]
    Log(#[from] LogError),
    /// An invalid inflight record.
    #[error("a frontend's inflight record was refused")]
    Record(#[from] InflightRecordError),
    /// A file that is not an eventfd.
    #[error("a frontend sent a file that is not an eventfd for its notifications")]
    Event,
    /// Copies did not complete in time.
    #[error("copies of ring {ring} were not complete in time to start its log; check that its DMA queue works")]
    Busy {
        /// The ring's index.
        ring: usize,
    },
}

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The frontend sent an invalid message.
    #[error("a frontend violated the protocol")]
    Message(#[from] MessageError),
    /// A request was refused for which the frontend did not ask for a reply.
    #[error("a request was refused, and the frontend asked for no reply to it")]
    Request(#[from] RequestError),
    /// Copies did not complete in time. Their DMA queue may still write, so the guest's memory was revoked from it. The
    /// frontend may reconnect.
    #[error(
        "copies into the guest through ring {ring} were not complete when it had to stop; check that its DMA queue \
         works. The session ends, and the guest's memory is revoked"
    )]
    Late {
        /// The ring's index.
        ring: usize,
        /// Why the memory could not be revoked, if that failed.
        #[source]
        source: Option<RegionError>,
    },
    /// The connection ended.
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

/// Why a [`DetachedPacket`](crate::DetachedPacket) packet was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetachedPacketError {
    /// Zero, or an id that no packet of this pool can have.
    #[error("no packet of this pool has the id {id:#x}")]
    Unknown {
        /// The id.
        id: u32,
    },
    /// It was returned before, and its buffer may be in use elsewhere by now.
    #[error("the packet of buffer {index} was returned before, or is of another pool; return each packet once")]
    Returned {
        /// The buffer's index.
        index: u32,
    },
    /// Its bytes are not inside its buffer.
    #[error(
        "the packet at {at:#x} with {len} bytes is not inside its buffer {index}, from {from:#x} to {end:#x}, or is of \
         another pool"
    )]
    Place {
        /// The buffer's index.
        index: u32,
        /// Address of the packet's first byte.
        at: u64,
        /// The packet's length in bytes.
        len: u32,
        /// The lowest address allowed.
        from: u64,
        /// The end of the buffer.
        end: u64,
    },
}
