#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Virtqueue     one virtqueue's data path: enqueue, dequeue, in order whatever order copies land in
//! Lane          one DMA queue, shared by virtqueues
//! GuestMemory   a frontend's memory: one table of regions, never changed, followed by the next
//! ring          virtqueues from the device's side, split and packed: take chains, put them back
//! packets       buffers handed around by the burst, without counts
//! words         the layouts of rings and net headers, and the feature bits
//! ```
#![deny(unsafe_code)]

mod board;
mod dequeue;
mod enqueue;
mod error;
mod flight;
mod lane;
mod memory;
mod packets;
pub mod ring;
mod stats;
mod sync;
mod virtqueue;
pub mod words;

pub use error::LaneError;
pub use lane::{Lane, LaneStats};
pub use memory::{GuestMemory, MOST_REGIONS, MemoryError, Piece, Region, RegionError};
pub use packets::{HEADROOM, PacketPool, Packets, PoolOptions};
pub use stats::{Drop, Stats};
pub use virtqueue::{Hybrid, QueueOptions, Virtqueue};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
