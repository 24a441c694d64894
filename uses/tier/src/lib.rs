#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Heap          memory on several tiers: arenas, adopted mappings, and migrate
//! Arena         memory of a heap, a slice of bytes; SharedArena, memory of files
//! Manager       a thread that finds and moves a heap's hot pages; Report, what it has found and done
//! heat          how hot pages are: the sources that sample accesses, and the heat map
//! policy        which pages move where
//! mechanism     the mechanisms that move pages, and the choice of one for a heap
//!   userfault_move  UFFDIO_MOVE through pools: plans batches and lends slots
//!   move_pages      move_pages(2)
//! exchange      one batch: take_out to a pool, copy, bring_back
//! page_map      the owner, tier and state of each page
//! in_flight     the pages being moved
//! fault_handler the thread that answers page faults and reads events of forks, mremap and discards
//! slots         a tier's pool: slots with or without a free page
//! runs          sets of slot numbers, as runs
//! shadows       old copies of pages that moved to a faster tier
//! event_order   mapping events that arrive in another order than things happened
//! traps         pages that are taken out to notice the first touch
//! tracer        whether another process traces this one
//! fork_gate     forks that the kernel does not report
//! clock         CPU time of a thread
//! sync          atomics of the code that loom models
//! ```
#![deny(unsafe_code)]

mod arena;
mod clock;
mod config;
mod error;
mod event_order;
mod exchange;
mod fault_handler;
mod fork_gate;
mod heap;
pub mod heat;
mod in_flight;
mod manager;
mod mechanism;
mod page_map;
mod page_set;
pub mod policy;
mod runs;
mod shadows;
mod slots;
mod stats;
mod sync;
mod tracer;
mod traps;

#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
#[cfg(test)]
#[path = "../tests/common/stress.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod stress;

pub use arena::Arena;
pub use arena::shared::SharedArena;
pub use config::{HeapOptions, MAX_TIERS, Mechanism, TierId, TierMemory, TierOptions};
pub use error::TierError;
pub use heap::Heap;
pub use heat::Advice;
pub use manager::{HotRow, Manager, ManagerOptions, Report, SourceKind, SourceReport, TierReport};
pub use stats::{Moved, Stats, Unmoved};
