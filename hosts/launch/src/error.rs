//! Errors of starting a program, with or without a preloaded library.

use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// Why a program could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The program, or its interpreter, does not exist.
    #[error("cannot find {}; give its path, or the name of a program in PATH", program.display())]
    NotFound {
        /// The missing file.
        program: PathBuf,
    },
    /// The program may not be executed, or the system cannot execute it.
    #[error("cannot execute {}", program.display())]
    NotExecutable {
        /// The program.
        program: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The program is a 32-bit program.
    #[error("{} is a 32-bit program; telpher preloads its library into 64-bit programs only", program.display())]
    ThirtyTwoBit {
        /// The program.
        program: PathBuf,
    },
    /// The program is for another processor.
    #[error(
        "{} is for another processor (ELF machine {machine}); telpher runs x86-64 programs only",
        program.display()
    )]
    OtherMachine {
        /// The program.
        program: PathBuf,
        /// Its ELF machine number.
        machine: u16,
    },
    /// The program gains rights when it is executed.
    #[error(
        "{} gains rights when executed ({how}), so nothing can be preloaded into it; run telpher itself as the user \
         whose rights it needs",
        program.display()
    )]
    GainsRights {
        /// The program.
        program: PathBuf,
        /// setuid, setgid or capabilities.
        how: &'static str,
    },
    /// No directory is suitable for files that stay.
    #[error("cannot keep the library in a directory of this user: {tried}; name a file for it")]
    LastingDirectory {
        /// The tried directories, each with the reason.
        tried: String,
    },
    /// The library's file cannot be written.
    #[error("cannot write the library to {}", path.display())]
    Library {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The library's path cannot be preloaded.
    #[error("LD_PRELOAD cannot contain {}: leave out blanks, ':' and '$'", path.display())]
    LibraryPath {
        /// The path.
        path: PathBuf,
    },
    /// Nothing can be preloaded into the program, and the command needs a preloaded library.
    #[error("{} {why}, so nothing can be preloaded into it; link it dynamically", program.display())]
    Unpreloadable {
        /// The program.
        program: PathBuf,
        /// The reason, as a verb phrase.
        why: &'static str,
    },
    /// No directory is suitable for the files of this user's runs.
    #[error(
        "no suitable directory for the files of a run: {tried}; set TELPHER_RUNTIME_DIR to a directory that only you \
         may write to"
    )]
    Directory {
        /// Each directory that was tried, with the reason for refusing it.
        tried: String,
    },
    /// The directory that the user named is not suitable.
    #[error(
        "TELPHER_RUNTIME_DIR is not suitable for the files of a run: {tried}; name a directory that only you may \
         write to"
    )]
    NamedDirectory {
        /// The directory, with the reason for refusing it.
        tried: String,
    },
    /// The system refused another operation.
    #[error("cannot {attempt}")]
    System {
        /// The operation, as a verb phrase.
        attempt: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code. As in a shell, 127 if the program does not exist and 126 if it cannot be executed. 125 if telpher
    /// itself failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::NotFound { .. } => 127,
            LaunchError::NotExecutable { .. }
            | LaunchError::ThirtyTwoBit { .. }
            | LaunchError::OtherMachine { .. }
            | LaunchError::GainsRights { .. }
            | LaunchError::Unpreloadable { .. } => 126,
            LaunchError::Directory { .. }
            | LaunchError::NamedDirectory { .. }
            | LaunchError::LastingDirectory { .. }
            | LaunchError::Library { .. }
            | LaunchError::LibraryPath { .. }
            | LaunchError::System { .. } => 125,
        }
    }

    /// Builds the error for an operation that the system refused.
    pub fn system<E: Into<io::Error>>(attempt: &'static str) -> impl FnOnce(E) -> LaunchError {
        move |source| LaunchError::System { attempt, source: source.into() }
    }

    /// Makes an error of what the system answered to an attempt.
    pub fn errno(attempt: &'static str) -> impl FnOnce(Errno) -> LaunchError {
        LaunchError::system(attempt)
    }
}
