//! `telpher qdp`: executes a query with prefetched columns, on this machine or on a simulated one.
//!
//! ```text
//! options ──► data: files, or generated ──► Query ──► here: runs in turns ──► telpher-report's query
//! --profile ──► telpher-claims' thesis_query: tables and questions, simulated
//! ```

mod data;
mod here;

use crate::args::Qdp;
use crate::sim::{SimError, machine};
use crate::{log, version};
use telpher_cache::ConfigError;
use telpher_claims::thesis_query::{self, tables};
use telpher_device::{NameError, OpenError};
use telpher_mem::MapError;
use telpher_mover::TuningError;
use telpher_query::generate::GenerateError;
use telpher_query::{PlanError, RunError, SqlError};
use telpher_report::deliver::{DeliverError, deliver, writable};
use telpher_report::query::tables as report;

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum QdpError {
    /// The text is not a query.
    #[error("--query '{text}' is neither thesis, q1 nor q6")]
    Text {
        /// The option's value.
        text: String,
        /// The position of the error in the text.
        source: SqlError,
    },
    /// The query does not fit the data.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A file cannot be read as columns.
    #[error(transparent)]
    Input(#[from] telpher_query::files::FileError),
    /// No generated table has all columns of the query.
    #[error("{}: there are {two}, or {lineitem}; give your own data with --input", missing(name.as_deref()))]
    NotGenerated {
        /// A column that no generated table has; `None` if each column is in some table.
        name: Option<String>,
        /// The thesis' columns.
        two: String,
        /// TPC-H's columns.
        lineitem: String,
    },
    /// Too little memory.
    #[error(transparent)]
    Room(#[from] telpher_os::MemoryError),
    /// The data could not be generated.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The fast memory could not be allocated.
    #[error("no {len} bytes for the fast memory; give less with --tier-size, or another --tier-node")]
    Tier {
        /// The requested bytes.
        len: usize,
        /// The system's error.
        source: MapError,
    },
    /// The cache could not be created.
    #[error(transparent)]
    Cache(#[from] ConfigError),
    /// The device's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The tuning file that the environment names cannot be used.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// A `--policy` setting is invalid.
    #[error("{0}")]
    Setting(String),
    /// The query could not be executed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// One configuration returned another answer: a bug.
    #[error("wrong answer {way}: it differs from that of the engine alone; this is a bug in telpher")]
    Wrong {
        /// The configuration.
        way: &'static str,
    },
    /// The query could not be simulated.
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

/// Executes or simulates the query, and writes the result.
pub(crate) fn run(args: &Qdp) -> Result<(), QdpError> {
    writable(&args.output.destination(), HTML)?;
    log::info(|| format!("kernels: {}", version::kernels()));
    if let Some(profile) = &args.profile {
        let machine = machine(profile, &args.set)?;
        let result = thesis_query::simulate(machine, !args.set.is_empty()).map_err(SimError::from)?;
        let (text, csv) = (|| tables::text(&result), || tables::csv(&result));
        return Ok(deliver(&args.output.destination(), HTML, &result, text, csv, || tables::html(&result))?);
    }
    let result = here::run(args)?;
    let (text, csv) = (|| report::text(&result), || report::csv(&result));
    Ok(deliver(&args.output.destination(), HTML, &result, text, csv, || report::html(&result))?)
}
