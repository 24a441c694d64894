//! Why a port or a capture cannot be made.

use std::io;
use std::path::PathBuf;

/// Why a port or a capture cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// Not a name for an interface.
    #[error("--tap '{0}': an interface's name has 1 to 15 letters, digits, dots or dashes")]
    TapName(String),
    /// The kernel refuses an interface.
    #[error("no TAP interface {name}; {remedy}")]
    Tap {
        /// Its name.
        name: String,
        /// What helps.
        remedy: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot capture into {}; name another file with --capture", path.display())]
    Capture {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}
