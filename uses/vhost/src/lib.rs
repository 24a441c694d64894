#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Socket        a port's socket: listens or connects, one frontend after another
//! Port          the virtqueues of one frontend after another; what a switch polls
//! Control       one frontend's hold on a port: does what its messages ask for
//! Session       what a frontend said, and what follows from the next it says; pure
//! message       what it says: words of the protocol, and what they mean
//! Virtqueue     one virtqueue's data path: enqueue, dequeue, in order whatever order copies land in
//! Lane          one DMA queue, shared by virtqueues
//! GuestMemory   a frontend's memory: one table of regions, never changed, followed by the next
//! ring          virtqueues from the device's side, split and packed: take chains, put them back
//! packets       buffers handed around by the burst, without counts; or outside of rows as plain words, for programs in other languages
//! peers         unmodified programs at the other end, typed at (feature `peers`)
//! words         the layouts of rings and net headers, and the feature bits
//! ```
#![deny(unsafe_code)]

mod board;
mod control;
mod dequeue;
mod drain;
mod enqueue;
mod error;
mod flight;
mod inflight;
mod lane;
mod learn;
mod log;
mod memory;
pub mod message;
mod packets;
#[cfg(feature = "peers")]
pub mod peers;
mod port;
pub mod ring;
mod session;
mod socket;
mod stats;
mod sync;
mod virtqueue;
pub mod words;

pub use control::Control;
pub use error::{LaneError, LooseError, RequestError, SessionError};
pub use inflight::RecordError;
pub use lane::{Lane, LaneStats};
pub use log::LogError;
pub use memory::{GuestMemory, MOST_REGIONS, MemoryError, Piece, Region, RegionError};
pub use packets::{HEADROOM, Loose, MOST_LOOSE, PacketPool, Packets, PoolOptions};
pub use port::{Port, PortOptions};
pub use session::{Change, MOST_RINGS, Offer, Outcome, Refusal, Session, Step};
pub use socket::{Role, Socket, SocketState};
pub use stats::{Clocked, Drop, Stats};
pub use virtqueue::{Hybrid, QueueOptions, Virtqueue};
