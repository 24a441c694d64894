#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Heap       memory on several tiers: arenas, what a program has mapped itself, and migrate
//! Arena      memory of a heap, a slice of bytes; SharedArena, memory of files
//! Manager    a thread that looks at a heap's memory, and moves it; Report, what it has found and done
//! heat       how hot pages are: who looks, and what is kept of it
//! policy     what moves where
//! way        the ways in which pages change their tier, and which of them a heap goes
//! pooled     by way of pools: what goes together, and which places it is lent
//! by_kernel  by move_pages(2)
//! exchange   takes pages out to a pool, copies them, brings them back
//! book       whose each page is, on which tier, and which are on their way
//! flight     pages on their way
//! keeper     the thread that answers page faults and hears of forks, mremap, discards
//! slots      a tier's pool: places, with a free page or without
//! runs       numbers of places, as runs
//! shadows    old copies of pages that went to a faster tier
//! order      events of mappings that come otherwise than things happened
//! traps      pages that are out so that whoever touches one is told of
//! tracer     whether another process traces this one
//! gate       forks that the kernel does not tell of
//! clock      time of a core
//! sync       atomics of what is modelled
//! ```
#![deny(unsafe_code)]

mod arena;
mod book;
mod by_kernel;
mod clock;
mod config;
mod error;
mod exchange;
mod flight;
mod gate;
mod heap;
pub mod heat;
mod keeper;
mod manager;
mod marks;
mod order;
pub mod policy;
mod pooled;
mod runs;
mod shadows;
mod slots;
mod stats;
mod sync;
mod tracer;
mod traps;
mod way;

#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
#[cfg(test)]
#[path = "../tests/common/stress.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod stress;

pub use arena::Arena;
pub use arena::shared::SharedArena;
pub use config::{HeapOptions, MOST_TIERS, TierId, TierMemory, TierOptions};
pub use error::TierError;
pub use heap::Heap;
pub use heat::Advice;
pub use manager::{HotRow, Manager, ManagerOptions, Report, SourceKind, SourceReport, TierReport};
pub use stats::{Left, Moved, Stats};
pub use way::Mechanism;
