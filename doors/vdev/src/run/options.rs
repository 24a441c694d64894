//! What `telpher run` is told, and why it may refuse.

use crate::hardware::{Hardware, HardwareError};
use crate::kernel::Abi;
use crate::trace::TraceError;
use crate::tree::Errno;
use crate::view::namespace::Reason;
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
}

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no such program, or no interpreter for it.
    #[error("cannot find {}; give its path, or a name that PATH leads to", program.display())]
    NotFound {
        /// What was looked for.
        program: PathBuf,
    },
    /// It may not be executed, or cannot be.
    #[error("cannot execute {}", program.display())]
    NotExecutable {
        /// What was tried.
        program: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A 32-bit program.
    #[error("{} is a 32-bit program; what would be preloaded is for 64-bit programs", program.display())]
    ThirtyTwoBit {
        /// Which.
        program: PathBuf,
    },
    /// A program for another processor.
    #[error("{} is for another processor (ELF machine {machine}); this is for x86-64", program.display())]
    OtherMachine {
        /// Which.
        program: PathBuf,
        /// Its ELF machine number.
        machine: u16,
    },
    /// A program that gains rights when it is executed.
    #[error(
        "{} gains rights when executed ({how}), so nothing can be preloaded into it; run telpher itself as the user \
         whose rights it needs",
        program.display()
    )]
    GainsRights {
        /// Which.
        program: PathBuf,
        /// setuid, setgid or capabilities.
        how: &'static str,
    },
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
    /// Nothing can be preloaded into the program, and nothing else will do.
    #[error("{} {why}, so nothing can be preloaded into it; link it dynamically", program.display())]
    Unpreloadable {
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
    /// No directory could be made for the run.
    #[error("cannot make a directory for the run in any of {tried}; set XDG_RUNTIME_DIR to one that can be written")]
    Directory {
        /// Where.
        tried: String,
        /// What the system said to the last.
        #[source]
        source: std::io::Error,
    },
    /// The trace file could not be made.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The system refused something the host needs.
    #[error("cannot {attempt}")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// What it said.
        #[source]
        source: std::io::Error,
    },
}

impl RunError {
    /// The exit code: as of a shell, 127 if there is no such program and 126 if it cannot be executed here; 125 if the device
    /// could not be set up.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::NotFound { .. } => 127,
            RunError::NotExecutable { .. }
            | RunError::ThirtyTwoBit { .. }
            | RunError::OtherMachine { .. }
            | RunError::GainsRights { .. }
            | RunError::NotPreloadable { .. }
            | RunError::Unpreloadable { .. }
            | RunError::Namespace { .. } => 126,
            RunError::Hardware(_) | RunError::Directory { .. } | RunError::Trace(_) | RunError::System { .. } => 125,
        }
    }

    /// What the system refused of the things the host needs.
    pub(super) fn system<E: Into<std::io::Error>>(attempt: &'static str) -> impl FnOnce(E) -> RunError {
        move |source| RunError::System { attempt, source: source.into() }
    }

    pub(super) fn errno(attempt: &'static str, errno: Errno) -> RunError {
        RunError::System { attempt, source: errno.into() }
    }
}
