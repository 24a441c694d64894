//! `telpher qdp`: a query whose columns are fetched ahead, on this machine or a simulated one.
//!
//! ```text
//! options ──► data ──► input: files, or generated ──► Query ──► here: ways in turns ──► report::qdp
//! --profile ──► simulated ──► telpher-claims' tables and questions ──► report::prefetching
//! ```

pub(crate) mod data;
pub(crate) mod here;
mod input;
mod messages;
mod prefetching;
mod report;
mod room;
pub(crate) mod simulated;

use crate::args::Qdp;
use crate::sim::SimError;
use telpher_cache::ConfigError;
use telpher_cache::query::generate::GenerateError;
use telpher_cache::query::{PlanError, RunError, SqlError};
use telpher_device::{NameError, OpenError};
use telpher_mem::MapError;
use telpher_mover::TuningError;
use telpher_report::deliver::{DeliverError, deliver, writable};

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum QdpError {
    /// The text is not a query.
    #[error("--query '{text}' is neither thesis, q1 nor q6")]
    Text {
        /// As typed.
        text: String,
        /// Where it stops being one.
        source: SqlError,
    },
    /// The query does not fit the data.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A file gave no data.
    #[error(transparent)]
    Input(#[from] input::InputError),
    /// No table that is generated has all columns of the query.
    #[error("{}: there are {two}, or {lineitem}; give your own data with --input", missing(name.as_deref()))]
    NotGenerated {
        /// What none of them has; nothing if each has some of the query's.
        name: Option<String>,
        /// The thesis' columns.
        two: String,
        /// TPC-H's.
        lineitem: String,
    },
    /// Too little memory.
    #[error(transparent)]
    Room(#[from] room::RoomError),
    /// No data could be generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// No fast memory.
    #[error("no {len} bytes for the fast memory; give less with --tier-size, or another --tier-node")]
    Tier {
        /// Asked for.
        len: usize,
        /// The system's error.
        source: MapError,
    },
    /// No cache.
    #[error(transparent)]
    Cache(#[from] ConfigError),
    /// The device's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The tuning file that the environment names cannot be used.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// A setting is none.
    #[error("{0}")]
    Setting(String),
    /// It could not be executed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// One way of executing it gave another answer: a bug.
    #[error("wrong answer {way}: it differs from that of the engine alone; this is a bug in telpher")]
    Wrong {
        /// How it was executed.
        way: &'static str,
    },
    /// It could not be simulated.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The result could not be delivered.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

fn missing(name: Option<&str>) -> String {
    match name {
        Some(name) => format!("no column '{name}' is generated"),
        None => "the query's columns are not generated together".into(),
    }
}

const HTML: &str = "telpher-qdp.html";

/// Executes or simulates what the command line asks for.
pub(crate) fn run(args: &Qdp) -> Result<(), QdpError> {
    writable(&args.output.destination(), HTML)?;
    if let Some(profile) = &args.profile {
        let result = simulated::run(profile, &args.set)?;
        let (text, csv) = (|| prefetching::text(&result), || prefetching::csv(&result));
        return Ok(deliver(&args.output.destination(), HTML, &result, text, csv, || prefetching::html(&result))?);
    }
    let result = here::run(args)?;
    let (text, csv) = (|| report::text(&result), || report::csv(&result));
    Ok(deliver(&args.output.destination(), HTML, &result, text, csv, || report::html(&result))?)
}
