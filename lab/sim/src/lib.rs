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
mod latencies;
pub mod machine;
mod picos;
mod pipes;
mod places;
mod profile;
mod rng;
mod scenario;
mod simulated_portal;
mod submission;
pub mod tenants;
mod workload;
mod world;

pub use apps::{
    AllReduce, App, CacheBench, CacheLoad, Copier, CopyBy, DigestBy, DtoTuning, DtoVersion, Exchange, Fabric,
    FabricPattern, Gups, HbmCacheMode, LateCopy, MessagePattern, Messages, Migration, MigrationOffload, PagePlacement,
    Pages, PlanTraffic, Prefetch, Promotion, Query, ReplayCall, ReplayDevices, ReplaySection, Replayed, SharedMemory,
    Storage, StorageCosts, Vhost, VhostCosts, replay,
};
pub use latencies::{Latencies, enough};
pub use machine::{Machine, SYNTHETIC, is_synthetic};
pub use picos::Picos;
pub use places::{BufferPlacement, LineLocation, SimulatedMemory};
pub use profile::{BUILT_IN, ProfileError, TEMPLATE};
pub use scenario::{
    Bottleneck, Layout, Limit, Load, LoadOutcome, Measure, Outcome, RefusedOperation, ResourceUse, Scenario,
    ScenarioError, Workload, WorkloadError, WorkloadHeader, queue_ids,
};
pub use workload::{
    AccessPattern, Arrivals, ExecutedBy, Library, MoverSettings, NamedValue, QueueId, Sizes, Stream, SubmitBy, Wait,
};
pub use world::{
    Barrier, CacheUse, Chase, ChaseResult, Core, Cycles, DataState, EngineUse, PendingWork, PipeUse, Resource,
    Semaphore, TimeBreakdown, Translations, World,
};

/// The README's example runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
