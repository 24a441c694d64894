#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Heap       memory on several tiers: arenas, and migrate
//! Arena      memory of a heap, a slice of bytes; SharedArena, memory of files
//! way        the ways in which pages change their tier, and which of them a heap goes
//! pooled     by way of pools: what goes together, and which places it is lent
//! by_kernel  by move_pages(2)
//! exchange   takes pages out to a pool, copies them, brings them back
//! book       whose each page is, on which tier, and which are on their way
//! keeper     the thread that answers page faults and hears of forks, mremap, discards
//! slots      a tier's pool: places, with a free page or without
//! runs       numbers of places, as runs
//! shadows    old copies of pages that went to a faster tier
//! gate       forks that the kernel does not tell of
//! ```
#![deny(unsafe_code)]

mod arena;
mod book;
mod by_kernel;
mod config;
mod error;
mod exchange;
mod gate;
mod heap;
mod keeper;
mod pooled;
mod runs;
mod shadows;
mod slots;
mod stats;
mod way;

#[cfg(test)]
#[path = "../tests/common/stress.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod stress;

pub use arena::Arena;
pub use arena::shared::SharedArena;
pub use config::{HeapOptions, MOST_TIERS, TierId, TierOptions};
pub use error::TierError;
pub use heap::Heap;
pub use stats::{Left, Moved, Stats};
pub use way::Mechanism;
