//! Peers: unmodified programs at the other end of a socket, started and controlled by tests and benches.
//!
//! ```text
//! Testpmd       DPDK's testpmd, as a guest with DPDK's virtio driver or as the competing backend; its commands and its
//! statistics
//! Terminal      a program on its own terminal: input, output, killed on drop
//! HugePages     pages of 2 MiB, reserved until dropped, released even if this process is killed
//! ```
//!
//! Peers are killed when they are dropped. The kernel kills them if the thread that started them ends earlier.

mod pages;
mod terminal;
mod testpmd;

pub use pages::HugePages;
pub use terminal::Terminal;
pub use testpmd::{Counts, LOOPING, Memory, Testpmd, TestpmdSetup, VhostPort, Virtio, WORKER, Work, missing};

use std::path::PathBuf;
use std::time::Duration;

/// Why a peer cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The machine lacks something.
    #[error("{0}")]
    Missing(String),
    /// It could not be started.
    #[error("cannot start {name} at a terminal")]
    Start {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It accepts no more commands.
    #[error("{name} did not accept {line:?}; its output: {output}")]
    Deaf {
        /// Its name.
        name: String,
        /// The line that was typed.
        line: String,
        /// The end of its output.
        output: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It ended, or did not print the expected text in time.
    #[error("{name} did not print {wanted:?} within {within:?}; its output: {output}")]
    Silent {
        /// Its name.
        name: String,
        /// The expected text.
        wanted: String,
        /// The time limit.
        within: Duration,
        /// The end of its output.
        output: String,
    },
    /// Its answer to a command differs from its documentation.
    #[error("{name} answered {command:?} with: {answer}")]
    Answer {
        /// Its name.
        name: String,
        /// The command.
        command: String,
        /// The answer.
        answer: String,
    },
}

/// Returns whether PATH contains the program.
fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|folder| folder.join(program).is_file())
}

/// The first of these programs that this machine lacks, as a message; each program comes with the name of its Debian
/// package.
#[must_use]
pub fn lacking(programs: &[(&str, &str)]) -> Option<String> {
    let (program, package) = programs.iter().find(|(program, _)| !have(program))?;
    Some(format!("no {program} (Debian package {package})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        assert_eq!(lacking(&[("sh", "dash")]), None);
        let lacks = lacking(&[("sh", "dash"), ("no-such-program", "no-such-package")]);
        assert_eq!(lacks.as_deref(), Some("no no-such-program (Debian package no-such-package)"));
    }
}
