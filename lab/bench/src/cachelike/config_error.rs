//! Why the configuration of a cache is refused.

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}; name a file in CacheBench's JSON format, or paper")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not JSON.
    #[error("{path} is not JSON")]
    Parse {
        /// The file.
        path: String,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A field has an invalid value.
    #[error("{path}: {field}: {problem}")]
    Field {
        /// The file.
        path: String,
        /// The field with the names of the objects around it, such as `test_config.numKeys`.
        field: String,
        /// What is wrong, and what is accepted.
        problem: String,
    },
}
