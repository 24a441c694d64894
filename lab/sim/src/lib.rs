//! The modelled device in simulated time.
//!
//! ```text
//! profile ──► Machine ──► World ◄── Stream (the workload of a thread), Program (a workload written as code)
//!                │          │  events: the event queue      pipes: bytes in flight
//!                │          └► telpher_model::{Device, Engine}: queues, arbiter, checks, batches
//!                └──► Scenario ──simulate──► Outcome
//! ```
#![deny(unsafe_code)]

pub mod advise;
mod apps;
mod event_queue;
mod gate;
mod latencies;
pub mod machine;
mod pipes;
mod places;
mod profile;
mod ps;
mod rng;
mod scenario;
mod vouch;
mod work;
mod world;

pub use apps::{
    AllReduce, App, CacheBench, Copier, Copies, Digest, Exchange, Gups, Late, MemorySide, Messages, Migration, Offload,
    Pages, Placing, Prefetch, Promotion, Query, SharedMemory, Storage, StorageCosts, Talk, Vhost, VhostCosts,
};
pub use latencies::{Latencies, enough};
pub use machine::Machine;
pub use places::{Lines, Place, Places};
pub use profile::{BUILT_IN, ProfileError, TEMPLATE};
pub use ps::Ps;
pub use scenario::{
    Bottleneck, Layout, Limit, Load, LoadOutcome, Measure, Outcome, Preface, ResourceUse, Scenario, ScenarioError,
    What, WorkloadError, lanes,
};
pub use work::{Arrivals, By, Lane, Library, Moves, Named, Sizes, Stream, Through, Wait, Walk};
pub use world::{
    Barrier, CacheUse, Chase, Chased, Core, Cycles, EngineUse, PipeUse, Resource, Signal, Ticket, Timeline,
    Translations, World,
};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
