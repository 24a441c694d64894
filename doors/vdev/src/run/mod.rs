//! Runs a program on the virtual device: `telpher run -- PROGRAM`.

use std::ffi::OsString;
use std::path::PathBuf;
use telpher_device::{Residency, Runner};
use telpher_vdev_wire::message::Inject;

/// How the program shall see the device's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ViewChoice {
    /// Preloaded if the program is dynamically linked, else the namespace.
    #[default]
    Auto,
    /// Preloaded.
    Preload,
    /// A private mount namespace.
    Namespace,
}

/// How trace entries are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum TraceFormat {
    /// Lines to read.
    #[default]
    Text,
    /// A JSON object a line.
    JsonLines,
}

/// Everything `telpher run` was told.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// What to execute; searched in PATH if it has no slash.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// Callers count as CAP_SYS_RAWIO.
    pub rawio: bool,
    /// How files are seen.
    pub view: ViewChoice,
    /// Who executes descriptors.
    pub runner: Runner,
    /// Whether absent pages fault.
    pub residency: Residency,
    /// Submission sites are rewritten after their first trap.
    pub rewrite: bool,
    /// Where every descriptor and record is written.
    pub trace: Option<PathBuf>,
    /// How.
    pub trace_format: TraceFormat,
    /// What shall go wrong.
    pub inject: Option<Inject>,
    /// Misuse that silicon would not notice is reported.
    pub check: bool,
    /// A summary is printed to standard error at exit.
    pub summary: bool,
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no such program.
    #[error("cannot find {}; give its path, or one that PATH leads to", program.display())]
    NotFound {
        /// Asked for.
        program: PathBuf,
    },
}

impl RunError {
    /// What a shell would answer: 127 if there is no such program, 126 if it cannot be executed, 125 if the device failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::NotFound { .. } => 127,
        }
    }
}

/// Runs the program to its end and returns its exit code; 128 + N if signal N ended it.
///
/// # Errors
/// If the program cannot be run on the virtual device.
pub fn run(options: &RunOptions) -> Result<u8, RunError> {
    Err(RunError::NotFound { program: PathBuf::from(&options.program) })
}
