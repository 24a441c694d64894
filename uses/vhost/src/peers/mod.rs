//! Peers: unmodified programs at the other end of a socket, started and typed at by tests and benches.
//!
//! ```text
//! Testpmd       DPDK's testpmd, as a guest with DPDK's virtio driver or as the rival backend; its commands and its statistics
//! Terminal      any program at a terminal of its own: typed at, listened to, gone when it is dropped
//! HugePages     pages of 2 MiB, reserved until they are dropped, also when this process is killed
//! ```
//!
//! They are killed when they are dropped, and by the kernel should the thread that started them end before.

mod pages;
mod terminal;
mod testpmd;

pub use pages::HugePages;
pub use terminal::Terminal;
pub use testpmd::{Counts, LOOPING, Memory, Seat, Testpmd, VhostPort, Virtio, WORKER, Work, missing};

use std::path::PathBuf;
use std::time::Duration;

/// Why a peer is of no use.
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
    /// It takes no commands any more.
    #[error("{name} took no {line:?}; it said: {said}")]
    Deaf {
        /// Its name.
        name: String,
        /// What was typed.
        line: String,
        /// The end of what it had said.
        said: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It ended, or has not said what was waited for in time.
    #[error("{name} did not say {wanted:?} within {within:?}; it said: {said}")]
    Silent {
        /// Its name.
        name: String,
        /// What was waited for.
        wanted: String,
        /// For how long.
        within: Duration,
        /// The end of what it had said.
        said: String,
    },
    /// It answered a command otherwise than its guide says.
    #[error("{name} answered {command:?} with: {answer}")]
    Answer {
        /// Its name.
        name: String,
        /// What was typed.
        command: String,
        /// What it answered.
        answer: String,
    },
}

/// True if PATH leads to the program.
fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|folder| folder.join(program).is_file())
}

/// The first of these programs that this machine lacks, by what it is needed for: each comes with the name of its Debian package.
#[must_use]
pub fn lacking(programs: &[(&str, &str)]) -> Option<String> {
    let (program, package) = programs.iter().find(|(program, _)| !have(program))?;
    Some(format!("no {program} (Debian package {package})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_named_with_its_package() {
        assert_eq!(lacking(&[("sh", "dash")]), None);
        let lacks = lacking(&[("sh", "dash"), ("no-such-program", "no-such-package")]);
        assert_eq!(lacks.as_deref(), Some("no no-such-program (Debian package no-such-package)"));
    }
}
