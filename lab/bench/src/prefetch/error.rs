//! Why a query with prefetched columns has no result.

use telpher_cache::ConfigError;
use telpher_mem::MapError;
use telpher_query::generate::GenerateError;
use telpher_query::{PlanError, RunError, SqlError};

/// Why a query has no result. Messages name the options of `telpher qdp`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrefetchError {
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
    /// The query could not be executed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// One configuration returned another answer: a bug.
    #[error("wrong answer {way}: it differs from that of the engine alone; this is a bug in telpher")]
    Wrong {
        /// The configuration.
        way: &'static str,
    },
}

impl PrefetchError {
    /// Returns true if the options are wrong on every machine.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, PrefetchError::Text { .. })
    }
}

fn missing(name: Option<&str>) -> String {
    match name {
        Some(name) => format!("no column '{name}' is generated"),
        None => "the query's columns are not generated together".into(),
    }
}
