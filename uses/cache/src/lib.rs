#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Cache ── access ──► Tier ── Index: which entry contains the range? ──► Handle ── wait, location
//!   │  ╲ prefetch       ╲ Pool: memory, made free by evicting unused entries
//!   │   ╲                ╲
//!   │    Schedule ───────► Entry: a SharedCopy, advanced by any thread that waits ──► Mover ──► a device, or the CPU
//!   invalidate, flush, clear
//!
//! Versioned   data that changes: readers have blocks, a writer has exclusive access
//! WriteBack   a block that is modified in fast memory and copied back; WrittenPages says which pages
//! Replicas    durable copies of blocks in a file, found again by their keys
//! VersionGate the same permits as Versioned, for bytes that another language owns
//! ```
#![deny(unsafe_code)]

mod cache;
mod config;
mod entry;
mod error;
mod handle;
mod index;
mod prefetch;
mod reads;
mod replicas;
mod schedule;
mod shared_copy;
mod source;
mod stats;
mod sync;
mod tier;
mod version_gate;
mod versioned;
mod write_back;
mod written_pages;

pub use cache::Cache;
pub use config::{Config, Eviction, Placement, PlacementRequest, Resident, TierConfig};
pub use error::{AccessError, ConfigError};
pub use handle::{Arrival, Handle, Location, WaitCopy};
pub use prefetch::Prefetch;
pub use replicas::{ReplicaError, Replicas};
pub use schedule::Priority;
pub use source::{Readable, Source};
pub use stats::Stats;
pub use version_gate::{ReadPermit, ReadProbe, VersionGate, WaitingWriter, WritePermit};
pub use versioned::{Reading, Versioned, VersionedHandle, Writing};
pub use write_back::{FetchError, WriteBack};
pub use written_pages::{Find, SyncHome, Synced, WrittenPages};
