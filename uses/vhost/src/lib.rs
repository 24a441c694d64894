#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! GuestMemory   a frontend's memory: one table of regions, never changed, followed by the next
//! ring          virtqueues from the device's side, split and packed: take chains, put them back
//! words         the layouts of rings and net headers, and the feature bits
//! ```
#![deny(unsafe_code)]

mod memory;
pub mod ring;
pub mod words;

pub use memory::{GuestMemory, MOST_REGIONS, MemoryError, Piece, Region, RegionError};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
