//! The benchmarks: dispatch, errors and delivery of results.

pub(crate) mod buffers;
pub(crate) mod cache;
mod chase;
mod contests;
pub(crate) mod costs;
pub(crate) mod crossover;
pub(crate) mod devices;
pub(crate) mod distance;
mod duel;
mod folder;
mod lane;
pub(crate) mod machine;
pub(crate) mod measure;
pub(crate) mod mover;
pub(crate) mod ops;
pub(crate) mod pollution;
mod progress;
mod protection;
pub(crate) mod query;
pub(crate) mod questions;
pub(crate) mod results;
pub(crate) mod row;
pub(crate) mod run;
pub(crate) mod sweep;
pub(crate) mod tier;
mod turns;
pub(crate) mod vhost;
mod work;

use crate::args::{Bench, BenchKind, Contests};
use crate::report;
use crate::report::deliver::{DeliverError, deliver, writable};
use machine::Machine;
use measure::Implausible;
use std::io;

/// Why a bench ended without results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum BenchError {
    /// A result's bytes are wrong.
    #[error("wrong result of {op} ({route}) at a size of {size} bytes: first wrong byte at offset {offset}")]
    Mismatch {
        /// The operation.
        op: String,
        /// The route.
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
        /// The route.
        route: String,
    },
    /// An operation failed.
    #[error("{op} ({route}) failed")]
    Job {
        /// The operation.
        op: String,
        /// The route.
        route: String,
        /// Why.
        source: telpher_mover::JobError,
    },
    /// The device does not answer.
    #[error("no answer to {op} ({route}) within {} seconds; this is a bug in the device or its runner", lane::PATIENCE.as_secs())]
    NoAnswer {
        /// The operation.
        op: String,
        /// The route.
        route: String,
    },
    /// A channel did not take an operation.
    #[error("{op} ({route}) was not taken")]
    Rejected {
        /// The operation.
        op: String,
        /// The route.
        route: String,
        /// Why.
        source: telpher_mover::RejectReason,
    },
    /// The CPU did the device's work.
    #[error("{op} ({route}) was not done by the device alone, so its numbers would not be the device's")]
    NotByDevice {
        /// The operation.
        op: String,
        /// The route.
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
    /// A queue cannot be opened.
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
        /// The system's error.
        source: io::Error,
    },
    /// An implausible number.
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
        /// The system's error.
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
    /// The command line is wrong on every machine.
    #[error("{0}")]
    Usage(String),
    /// The request is not possible on this machine.
    #[error("{0}")]
    NotHere(String),
    /// The result could not be delivered.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
    /// Standard output cannot be written.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
}

/// Runs the benchmark that the command line names.
pub(crate) fn run(args: &Bench) -> Result<(), BenchError> {
    let machine = Machine::read();
    match &args.kind {
        None => {
            writable(&args.sweep.output, SWEEP_HTML)?;
            let result = sweep::run(&args.sweep, machine)?;
            let (text, csv) = (|| report::sweep::text(&result), || report::sweep::csv(&result));
            Ok(deliver(&args.sweep.output, SWEEP_HTML, &result, text, csv, || report::sweep::html(&result))?)
        }
        Some(BenchKind::Ops(ops)) => {
            writable(&ops.output, OPS_HTML)?;
            let result = ops::run(ops, machine)?;
            let (text, csv) = (|| report::ops::text(&result), || report::ops::csv(&result));
            Ok(deliver(&ops.output, OPS_HTML, &result, text, csv, || report::ops::html(&result))?)
        }
        Some(BenchKind::Pollution(pollution)) => {
            writable(&pollution.output, POLLUTION_HTML)?;
            let result = pollution::run(pollution, machine)?;
            let (text, csv) = (|| report::pollution::text(&result), || report::pollution::csv(&result));
            Ok(deliver(&pollution.output, POLLUTION_HTML, &result, text, csv, || report::pollution::html(&result))?)
        }
        Some(BenchKind::Mover(args)) => answer(args, MOVER_HTML, mover::LEAD, || mover::run(args, machine)),
        Some(BenchKind::Tier(args)) => answer(&args.contests, TIER_HTML, tier::LEAD, || tier::run(args, machine)),
        Some(BenchKind::Cache(args)) => answer(args, CACHE_HTML, cache::LEAD, || cache::run(args, machine)),
        Some(BenchKind::Run(run)) if run.program => run::program::obey().map_err(BenchError::Output),
        Some(BenchKind::Run(run)) => {
            writable(&run.output, RUN_HTML)?;
            let result = run::run(run, machine)?;
            let (text, csv) = (|| report::run::text(&result), || report::run::csv(&result));
            Ok(deliver(&run.output, RUN_HTML, &result, text, csv, || report::run::html(&result))?)
        }
        Some(BenchKind::Query(query)) => {
            writable(&query.output, QUERY_HTML)?;
            let result = query::run(query, machine)?;
            let (text, csv) = (|| report::query::text(&result), || report::query::csv(&result));
            Ok(deliver(&query.output, QUERY_HTML, &result, text, csv, || report::query::html(&result))?)
        }
        Some(BenchKind::Vhost(vhost)) => {
            writable(&vhost.output, VHOST_HTML)?;
            let result = vhost::run(vhost, machine)?;
            let (text, csv) = (|| report::vhost::text(&result), || report::vhost::csv(&result));
            Ok(deliver(&vhost.output, VHOST_HTML, &result, text, csv, || report::vhost::html(&result))?)
        }
    }
}

/// Runs experiments, and delivers their results.
fn answer(
    args: &Contests,
    html: &str,
    lead: &str,
    hold: impl FnOnce() -> Result<questions::Answers, BenchError>,
) -> Result<(), BenchError> {
    writable(&args.output, html)?;
    let answers = hold()?;
    let (text, csv) = (|| report::questions::text(&answers), || report::questions::csv(&answers));
    Ok(deliver(&args.output, html, &answers, text, csv, || report::questions::html(&answers, lead))?)
}

const SWEEP_HTML: &str = "telpher-bench.html";
const OPS_HTML: &str = "telpher-bench-ops.html";
const POLLUTION_HTML: &str = "telpher-bench-pollution.html";
const MOVER_HTML: &str = "telpher-bench-mover.html";
const CACHE_HTML: &str = "telpher-bench-cache.html";
const TIER_HTML: &str = "telpher-bench-tier.html";
const RUN_HTML: &str = "telpher-bench-run.html";
const QUERY_HTML: &str = "telpher-bench-query.html";
const VHOST_HTML: &str = "telpher-bench-vhost.html";
