//! Why a program could not be started, or not with a library preloaded.

use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// Why a program could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
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
        source: io::Error,
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
    /// Nothing can be preloaded into the program, and nothing else will do.
    #[error("{} {why}, so nothing can be preloaded into it; link it dynamically", program.display())]
    Unpreloadable {
        /// Which.
        program: PathBuf,
        /// Why not, as a verb phrase.
        why: &'static str,
    },
    /// No directory is fit for what this user's runs keep.
    #[error(
        "cannot keep what a run needs in any of: {tried}; set TELPHER_RUNTIME_DIR to a directory that you alone may write to"
    )]
    Directory {
        /// Each place with the reason.
        tried: String,
    },
    /// The directory that the user has named is not fit.
    #[error(
        "cannot keep what a run needs in TELPHER_RUNTIME_DIR: {tried}; name a directory that you alone may write to"
    )]
    NamedDirectory {
        /// The place with the reason.
        tried: String,
    },
    /// The system refused something else.
    #[error("cannot {attempt}")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code. As a shell's: 127 if there is no such program, and 126 if it cannot be executed. 125 if telpher failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::NotFound { .. } => 127,
            LaunchError::NotExecutable { .. }
            | LaunchError::ThirtyTwoBit { .. }
            | LaunchError::OtherMachine { .. }
            | LaunchError::GainsRights { .. }
            | LaunchError::Unpreloadable { .. } => 126,
            LaunchError::Directory { .. } | LaunchError::NamedDirectory { .. } | LaunchError::System { .. } => 125,
        }
    }

    /// What the system refused.
    pub fn system<E: Into<io::Error>>(attempt: &'static str) -> impl FnOnce(E) -> LaunchError {
        move |source| LaunchError::System { attempt, source: source.into() }
    }

    /// Makes an error of what the system answered to an attempt.
    pub fn errno(attempt: &'static str) -> impl FnOnce(Errno) -> LaunchError {
        LaunchError::system(attempt)
    }
}
