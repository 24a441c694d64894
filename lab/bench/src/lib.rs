//! Measurements: what runs, for how long, and what is computed from the numbers.
//!
//! ```text
//! options ──► sweep | ops | pollution | mover | cache | cachelike | tier | run | offload | query | vhost | nvmf
//!         │        │   | telemetry | sim | vfio | dml
//!         │        └──► results ──► report
//!         ├─► fabric: programs in C, compiled here ──► report::fabric
//!         ├─► tune: a sweep, for a tuning file
//!         ├─► prefetch ──► telpher-report's query
//!         └─► all: these benches as programs ──► report::all
//! ```
#![deny(unsafe_code)]

pub mod all;
mod bandwidth;
pub mod buffers;
pub mod cache;
pub mod cachelike;
mod chase;
mod copy_route;
pub mod costs;
pub mod crossover;
pub mod devices;
pub mod distance;
pub mod dml;
mod energy;
mod experiments;
pub mod fabric;
mod ffi;
mod folder;
pub mod goal;
mod hybrid_case;
mod interleaved;
pub mod listing;
pub mod measure;
mod measured_program;
pub mod mover;
pub mod nvmf;
pub mod nvmf_load;
pub mod offload;
pub mod ops;
pub mod options;
mod pairwise;
mod point;
pub mod pollution;
pub mod prefetch;
mod progress;
mod protection;
pub mod query;
pub mod questions;
pub mod report;
pub mod results;
pub mod run;
pub mod simulated;
pub mod simulator;
mod submitter;
pub mod sweep;
pub mod telemetry;
pub mod tier;
pub mod tune;
pub mod vfio;
pub mod vhost;
pub mod waiting;

use measure::Implausible;
use std::io;

/// The reason why a benchmark ended without results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A result's bytes are wrong.
    #[error("wrong result of {op} ({route}) at a size of {size} bytes: first wrong byte at offset {offset}")]
    Mismatch {
        /// The operation.
        op: String,
        /// The route by which it was done.
        route: String,
        /// Bytes of the transfer.
        size: u64,
        /// Offset of the first wrong byte.
        offset: u64,
    },
    /// A result that is not bytes is wrong: a checksum, an outcome.
    #[error("wrong result of {op} ({route})")]
    Wrong {
        /// The operation.
        op: String,
        /// The route by which it was done.
        route: String,
    },
    /// An operation failed.
    #[error("{op} ({route}) failed")]
    Job {
        /// The operation.
        op: String,
        /// The route by which it was done.
        route: String,
        /// The error.
        source: telpher_mover::JobError,
    },
    /// The device does not answer.
    #[error("no answer to {op} ({route}) within {} seconds; this is a bug in the device or its runner",
            copy_route::PATIENCE.as_secs())]
    NoAnswer {
        /// The operation.
        op: String,
        /// The route by which it was done.
        route: String,
    },
    /// A channel rejected an operation.
    #[error("{op} ({route}) was not taken")]
    Rejected {
        /// The operation.
        op: String,
        /// The route by which it was done.
        route: String,
        /// The reason.
        source: telpher_mover::RejectReason,
    },
    /// The CPU executed work meant for the device.
    #[error("{op} ({route}) was not done by the device alone, so its numbers would not be the device's")]
    NotByDevice {
        /// The operation.
        op: String,
        /// The route by which it was done.
        route: String,
    },
    /// The device does not exist.
    #[error(transparent)]
    Name(#[from] telpher_device::NameError),
    /// A file is not a valid configuration.
    #[error(transparent)]
    Config(#[from] telpher_device::ConfigError),
    /// A device does not start.
    #[error("cannot start {name}")]
    Start {
        /// The device.
        name: String,
        /// The error.
        source: telpher_device::StartError,
    },
    /// A queue's portal cannot be opened.
    #[error(transparent)]
    Portal(#[from] telpher_device::PortalError),
    /// Hardware cannot be used.
    #[error(transparent)]
    Open(#[from] telpher_device::OpenError),
    /// A channel cannot be created.
    #[error(transparent)]
    Channel(#[from] telpher_mover::ChannelError),
    /// Memory cannot be allocated on a node.
    #[error("cannot place buffers on the NUMA node asked for")]
    Placement {
        /// The system's error.
        source: io::Error,
    },
    /// A number is implausible.
    #[error("the measurement of {what} is refused as implausible")]
    Implausible {
        /// What was measured.
        what: String,
        /// The reason.
        source: Implausible,
    },
    /// There is no memory for the buffers.
    #[error("no memory for the bench's buffers")]
    Memory(#[from] telpher_mem::MapError),
    /// Tables cannot be generated.
    #[error(transparent)]
    Generate(#[from] telpher_query::generate::GenerateError),
    /// A measured program did not start or did not answer.
    #[error("{what} failed")]
    Program {
        /// The program or the attempted action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A cache cannot be created.
    #[error(transparent)]
    Cache(#[from] telpher_cache::ConfigError),
    /// The configuration of a cache under load is invalid.
    #[error(transparent)]
    CacheLike(#[from] cachelike::ConfigError),
    /// A block cannot be accessed.
    #[error(transparent)]
    Access(#[from] telpher_cache::AccessError),
    /// Memory on tiers cannot be allocated or moved.
    #[error(transparent)]
    Tier(#[from] telpher_tier::TierError),
    /// A query failed.
    #[error(transparent)]
    Query(#[from] telpher_query::RunError),
    /// A load on an NVMe/TCP target failed.
    #[error(transparent)]
    Load(#[from] telpher_nvmf::load::LoadError),
    /// A peer program failed.
    #[error(transparent)]
    Peer(#[from] telpher_vhost::peers::PeerError),
    /// A device cannot be simulated.
    #[error(transparent)]
    Simulated(#[from] telpher_sim::ScenarioError),
    /// The command line asks for something that exists on no machine.
    #[error("{0}")]
    Usage(String),
    /// The request cannot be met on this machine.
    #[error("{0}")]
    NotHere(String),
    /// Standard output is closed.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
