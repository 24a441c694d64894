//! Why the servers failed. The messages name the options of `telpher vfio`.

use std::io;
use std::path::PathBuf;

/// Why the servers failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfioRunError {
    /// No socket was given.
    #[error("a device needs a virtual machine; give --socket PATH")]
    NoMachine,
    /// A socket cannot be created.
    #[error("cannot serve a virtual machine at {}; give another path with --socket", path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// The attempt and the system's error.
        source: io::Error,
    },
    /// The model refuses the device.
    #[error("the model does not support this device; give another --preset")]
    Capabilities(#[from] telpher_model::CapabilityError),
    /// The system refuses a thread or a descriptor.
    #[error("cannot start the servers; give fewer sockets")]
    Start(#[source] io::Error),
}
