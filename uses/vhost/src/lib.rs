#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Socket        a port's socket: listens or connects, serves one frontend after another
//! Port          the virtqueues of one frontend after another; polled by a switch
//! Control       one frontend's connection to a port: carries out its requests
//! Session       the state of one frontend's requests, and what the next request changes; no side effects
//! message       the protocol's messages: byte layout, and parsing into requests
//! Virtqueue     one virtqueue's data path: enqueue and dequeue, in order even if copies complete out of order
//! DmaQueue          one DMA queue, shared by virtqueues
//! GuestMemory   a frontend's memory: an immutable table of regions, replaced by the next table
//! ring          virtqueues from the device's side, split and packed: take chains, return them
//! packets       packet buffers, moved in bursts without reference counts; or as plain handles, for programs in other
//! languages
//! peers         unmodified programs at the other end of the socket (feature `peers`)
//! words         the layouts of rings and net headers, and the feature bits
//! feature_names the names and meanings of the feature bits
//! ```
#![deny(unsafe_code)]

mod control;
mod dequeue;
mod dma_queue;
mod drain;
mod enqueue;
mod error;
pub mod feature_names;
mod idle_time;
mod in_flight;
mod inflight_fd;
pub mod layout;
mod learn;
mod listener;
mod log;
mod memory;
pub mod message;
mod packets;
#[cfg(feature = "peers")]
pub mod peers;
mod port;
mod reorder_array;
pub mod ring;
mod session;
mod socket;
mod stats;
mod sync;
mod virtqueue;

pub use control::Control;
pub use dma_queue::DmaQueue;
pub use error::{DetachedPacketError, DmaQueueError, RequestError, SessionError};
pub use inflight_fd::InflightRecordError;
pub use listener::SocketListener;
pub use log::LogError;
pub use memory::{GuestMemory, MOST_REGIONS, MemoryError, Piece, Region, RegionError};
pub use packets::{DetachedPacket, HEADROOM, MAX_DETACHED, PacketPool, Packets, PoolOptions};
pub use port::{Port, PortOptions};
pub use session::{Change, MOST_RINGS, Offer, Outcome, Refusal, Session, Step};
pub use socket::{Role, Socket, SocketState};
pub use stats::{CopyTiming, DmaQueueStats, DropReason, Stats};
pub use virtqueue::{CopyPolicy, QueueOptions, Virtqueue};
