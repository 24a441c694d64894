//! What `telpher run` is told, and why it may refuse.

use crate::hardware::{Hardware, HardwareError};
use crate::kernel::Abi;
use crate::trace::TraceError;
use crate::view::namespace::Reason;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use telpher_device::{Residency, Runner};
use telpher_launch::LaunchError;
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
    /// Which devices there are.
    pub hardware: Hardware,
    /// Whose kernel's driver.
    pub abi: Abi,
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
    /// Programs that are executed belong to the run, whatever environment they are given.
    pub follow: bool,
    /// Where every descriptor and record is written; `-` is standard error.
    pub trace: Option<PathBuf>,
    /// How.
    pub trace_format: TraceFormat,
    /// What shall go wrong.
    pub inject: Option<Inject>,
    /// Misuse that silicon would not notice is reported.
    pub check: bool,
    /// A summary is printed to standard error at exit.
    pub summary: bool,
    /// How long to wait after the first SIGTERM; [`GRACE`](telpher_launch::GRACE) is usual.
    pub grace: Duration,
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Nothing can be preloaded into the program, and the preloaded view was asked for.
    #[error(
        "{} {why}, so nothing can be preloaded into it; use --view namespace, in which it sees the device's files and \
         submits by write()",
        program.display()
    )]
    NotPreloadable {
        /// Which.
        program: PathBuf,
        /// Why not, as a verb phrase.
        why: &'static str,
    },
    /// There can be no mount namespace here, and it was asked for or the program needs it.
    #[error("no view for {}", program.display())]
    Namespace {
        /// For which program.
        program: PathBuf,
        /// Why not.
        #[source]
        source: Box<Reason>,
    },
    /// The hardware cannot be.
    #[error("cannot set the device up")]
    Hardware(#[from] HardwareError),
    /// The trace file could not be made.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl RunError {
    /// The exit code. As a shell's: 127 if there is no such program, and 126 if it cannot be executed here. 125 if the device could
    /// not be set up.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Launch(error) => error.exit_code(),
            RunError::NotPreloadable { .. } | RunError::Namespace { .. } => 126,
            RunError::Hardware(_) | RunError::Trace(_) => 125,
        }
    }

    /// What the system refused of the things the host needs.
    pub(super) fn system<E: Into<std::io::Error>>(attempt: &'static str) -> impl FnOnce(E) -> RunError {
        move |source| LaunchError::system(attempt)(source).into()
    }
}
