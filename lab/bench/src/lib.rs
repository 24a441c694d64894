//! Measurements: what runs, for how long, and what is computed from the numbers.
//!
//! ```text
//! options ──► sweep | ops | pollution | mover | cache | tier | run | query | vhost ──► results ──► report
//! ```
#![deny(unsafe_code)]

pub mod buffers;
pub mod cache;
mod chase;
mod contests;
pub mod costs;
pub mod crossover;
pub mod devices;
pub mod distance;
mod duel;
mod ffi;
mod folder;
mod lane;
pub mod measure;
pub mod mover;
pub mod ops;
pub mod options;
pub mod pollution;
mod progress;
mod protection;
pub mod query;
pub mod questions;
pub mod report;
pub mod results;
pub mod row;
pub mod run;
pub mod sweep;
pub mod tier;
mod turns;
pub mod vhost;
mod work;

use measure::Implausible;
use std::io;

/// Why a bench ended without results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A result's bytes are wrong.
    #[error("wrong result of {op} ({route}) at a size of {size} bytes: first wrong byte at offset {offset}")]
    Mismatch {
        /// The operation.
        op: String,
        /// How it was done.
        route: String,
        /// Bytes of the transfer.
        size: u64,
        /// Of the first wrong byte.
        offset: u64,
    },
    /// A result that is not bytes is wrong: a checksum, an outcome.
    #[error("wrong result of {op} ({route})")]
    Wrong {
        /// The operation.
        op: String,
        /// How it was done.
        route: String,
    },
    /// An operation failed.
    #[error("{op} ({route}) failed")]
    Job {
        /// The operation.
        op: String,
        /// How it was done.
        route: String,
        /// Why.
        source: telpher_mover::JobError,
    },
    /// The device is silent.
    #[error("no answer to {op} ({route}) within {} seconds; this is a bug in the device or its runner", lane::PATIENCE.as_secs())]
    NoAnswer {
        /// The operation.
        op: String,
        /// How it was done.
        route: String,
    },
    /// A channel did not take an operation.
    #[error("{op} ({route}) was not taken")]
    Rejected {
        /// The operation.
        op: String,
        /// How it was done.
        route: String,
        /// Why.
        source: telpher_mover::RejectReason,
    },
    /// The CPU did what the device should have.
    #[error("{op} ({route}) was not done by the device alone, so its numbers would not be the device's")]
    NotByDevice {
        /// The operation.
        op: String,
        /// How it was done.
        route: String,
    },
    /// No such device.
    #[error(transparent)]
    Name(#[from] telpher_device::NameError),
    /// A file is no configuration.
    #[error(transparent)]
    Config(#[from] telpher_device::ConfigError),
    /// A device does not start.
    #[error("cannot start {name}")]
    Start {
        /// The device.
        name: String,
        /// Why.
        source: telpher_device::StartError,
    },
    /// No way into a queue.
    #[error(transparent)]
    Portal(#[from] telpher_device::PortalError),
    /// Hardware cannot be used.
    #[error(transparent)]
    Open(#[from] telpher_device::OpenError),
    /// No channel.
    #[error(transparent)]
    Channel(#[from] telpher_mover::ChannelError),
    /// Memory cannot be put on a node.
    #[error("cannot place buffers on the NUMA node asked for")]
    Placement {
        /// What the system said.
        source: io::Error,
    },
    /// A number that cannot be.
    #[error("the measurement of {what} is refused as implausible")]
    Implausible {
        /// What was measured.
        what: String,
        /// Why it cannot be.
        source: Implausible,
    },
    /// No memory for the buffers.
    #[error("no memory for the bench's buffers")]
    Memory(#[from] telpher_mem::MapError),
    /// No tables to ask about.
    #[error(transparent)]
    Generate(#[from] telpher_cache::query::generate::GenerateError),
    /// A program that was to be measured did not start or did not answer.
    #[error("{what} failed")]
    Program {
        /// Which.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// No cache.
    #[error(transparent)]
    Cache(#[from] telpher_cache::ConfigError),
    /// No part of a source.
    #[error(transparent)]
    Access(#[from] telpher_cache::AccessError),
    /// No memory on tiers.
    #[error(transparent)]
    Tier(#[from] telpher_tier::TierError),
    /// A query did not run.
    #[error(transparent)]
    Query(#[from] telpher_cache::query::RunError),
    /// A program at the other end of a socket.
    #[error(transparent)]
    Peer(#[from] telpher_vhost::peers::PeerError),
    /// The command line asks for what there is nowhere.
    #[error("{0}")]
    Usage(String),
    /// What was asked for does not exist here.
    #[error("{0}")]
    NotHere(String),
    /// Standard output is gone.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

#[cfg(test)]
#[path = "../../../ci/skip.rs"]
mod skip;
