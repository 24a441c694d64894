//! The modelled device in simulated time.
//!
//! ```text
//! profile ──► Machine ──► World ◄── Stream (a thread's workload)
//!                           │  agenda: what happens next     pipes: bytes on their way
//!                           └► telpher_model::{Device, Engine}: queues, arbiter, checks, batches
//! ```
#![deny(unsafe_code)]

mod agenda;
pub mod machine;
mod pipes;
mod places;
mod profile;
mod ps;
mod vouch;
mod world;

pub use machine::Machine;
pub use places::{Place, Places};
pub use profile::{BUILT_IN, ProfileError};
pub use ps::Ps;
pub use world::{EngineUse, Lane, Stream, Timeline, Wait, World};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
