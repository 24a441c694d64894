//! Errors when a port or a capture is created.

use std::io;
use std::path::PathBuf;

/// The reason why a port or a capture cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The name is not valid for an interface.
    #[error("--tap '{0}': an interface's name has 1 to 15 letters, digits, dots or dashes")]
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
    /// A file cannot be written.
    #[error("cannot capture into {}; name another file with --capture", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}
