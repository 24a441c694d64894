//! The options of `telpher run`, and its errors.

use crate::hardware::{Hardware, HardwareError};
use crate::kernel::Abi;
use crate::trace::{TraceError, TraceFormat};
use crate::view::namespace::NamespaceError;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use telpher_device::{Residency, Runner};
use telpher_launch::LaunchError;
use telpher_vdev_wire::message::Inject;

/// How the program sees the device's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum ViewChoice {
    /// The preloaded view if the program is dynamically linked, otherwise the namespace.
    #[default]
    Auto,
    /// The preloaded view.
    Preload,
    /// A private mount namespace.
    Namespace,
    /// The same, but for programs into which nothing can be preloaded, nodes are character devices that they can find
    /// and not open.
    Devices,
}

/// The options of `telpher run`.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The program; a name without a slash is searched for in PATH.
    pub program: OsString,
    /// Its arguments, without its own name.
    pub args: Vec<OsString>,
    /// The devices.
    pub hardware: Hardware,
    /// The kernel version whose driver is emulated.
    pub abi: Abi,
    /// Callers count as having CAP_SYS_RAWIO.
    pub rawio: bool,
    /// Nodes have the ioctls for windows between processes, as with Intel's driver outside of Linux.
    pub idpt: bool,
    /// How the program sees the device's files.
    pub view: ViewChoice,
    /// Which thread executes descriptors. `Auto` is inline, since the program itself waits for its records.
    pub runner: Runner,
    /// Whether absent pages fault.
    pub residency: Residency,
    /// Submission sites are rewritten after their first trap.
    pub rewrite: bool,
    /// Programs that are executed stay in the run, whatever environment they are given.
    pub follow: bool,
    /// The file for every descriptor and completion record; `-` is standard error.
    pub trace: Option<PathBuf>,
    /// The format of the trace.
    pub trace_format: TraceFormat,
    /// The faults to inject.
    pub inject: Option<Inject>,
    /// Misuse that hardware would not detect is reported.
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
    /// Nothing can be preloaded into the program, and the preloaded view was requested.
    #[error(
        "{} {why}, so nothing can be preloaded into it; use --view namespace, in which it sees the device's files and \
         submits by write()",
        program.display()
    )]
    NotPreloadable {
        /// The program.
        program: PathBuf,
        /// The reason, as a verb phrase.
        why: &'static str,
    },
    /// A mount namespace was requested, or the program needs one, and the system does not allow it.
    #[error("{} cannot see the device's files", program.display())]
    Namespace {
        /// The program.
        program: PathBuf,
        /// The reason.
        #[source]
        source: Box<NamespaceError>,
    },
    /// The hardware description is invalid.
    #[error("cannot set the device up")]
    Hardware(#[from] HardwareError),
    /// The trace file could not be created.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl RunError {
    /// The exit code. As in a shell, 127 if the program does not exist, and 126 if it cannot be executed here. 125 if
    /// the device could not be set up.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Launch(error) => error.exit_code(),
            RunError::NotPreloadable { .. } | RunError::Namespace { .. } => 126,
            RunError::Hardware(_) | RunError::Trace(_) => 125,
        }
    }

    /// Builds the error for an operation of the host that the system refused.
    pub(super) fn system<E: Into<std::io::Error>>(attempt: &'static str) -> impl FnOnce(E) -> RunError {
        move |source| LaunchError::system(attempt)(source).into()
    }
}
