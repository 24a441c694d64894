//! Errors when a switch, a port or a capture is created.

use std::io;
use std::path::PathBuf;

/// The reason why a switch, a port or a capture cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The configuration has no port.
    #[error("a switch needs at least one port")]
    NoPorts,
    /// A socket cannot be created or used.
    #[error("cannot open a port at {}", path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// The attempt and the system's error.
        source: io::Error,
    },
    /// There are more threads than queues.
    #[error(
        "{threads} threads were requested, but there are only {routes} queues to forward; request at most {routes}"
    )]
    Threads {
        /// The requested threads.
        threads: usize,
        /// The queues.
        routes: usize,
    },
    /// Generated packets do not fit into a buffer.
    #[error("generated packets of {size} bytes exceed the longest packet of {longest} bytes")]
    Size {
        /// The requested bytes.
        size: u32,
        /// The limit.
        longest: u32,
    },
    /// There is no memory for packets.
    #[error("no memory for {buffers} packet buffers")]
    Pool {
        /// The requested buffers.
        buffers: u32,
        /// The system's error.
        source: telpher_mem::MapError,
    },
    /// The system refuses a thread.
    #[error("cannot start a thread of the switch")]
    Thread(#[source] io::Error),
    /// The name is not valid for an interface.
    #[error("'{0}' is not valid for an interface: a name has 1 to 15 letters, digits, dots or dashes")]
    TapName(String),
    /// The kernel refuses an interface.
    #[error("no TAP interface {name}; {remedy}")]
    Tap {
        /// The interface's name.
        name: String,
        /// Advice.
        remedy: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A network interface cannot be used.
    #[error("cannot use the interface {name}; {remedy}")]
    Interface {
        /// The interface's name.
        name: String,
        /// Advice.
        remedy: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot capture into {}", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}
