//! Why a server does not start. The messages name the keys of the configuration.

use crate::backend::BackendError;
use crate::config::ConfigError;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use telpher_nvmf::limits::LimitsError;
use telpher_nvmf::namespace::NamespaceError;
use telpher_nvmf::subsystem::SubsystemError;

/// Why a server does not start, or does not end in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NvmfRunError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The limits are invalid.
    #[error("the limits are invalid")]
    Limits(#[from] LimitsError),
    /// A subsystem is invalid.
    #[error(transparent)]
    Subsystem(#[from] SubsystemError),
    /// A namespace cannot be added.
    #[error("cannot add namespace {nsid} of {nqn}")]
    Namespace {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: u32,
        /// Why.
        source: NamespaceError,
    },
    /// The backend of a namespace cannot be used.
    #[error("cannot open the backend of namespace {nsid} of {nqn}")]
    Backend {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: u32,
        /// Why.
        source: BackendError,
    },
    /// An address cannot be used.
    #[error("cannot listen at {address}{}", if source.kind() == io::ErrorKind::AddrInUse {
        "; another program listens there, or a listener at :: already takes its IPv4 connections"
    } else { "" })]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] telpher_device::OpenError),
    /// No channel can be made on the device's queue.
    #[error(transparent)]
    Channel(#[from] telpher_mover::ChannelError),
    /// The control socket cannot be used.
    #[error("cannot serve the control socket {}; name another with --control", path.display())]
    Control {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No directory for the control socket.
    #[error("no place for the control socket; name one with --control, or with the key control_socket")]
    NoDirectory(#[source] Box<telpher_launch::LaunchError>),
    /// The system refuses a thread or a descriptor.
    #[error("cannot start the server")]
    Start(#[source] io::Error),
    /// Backends failed to make acknowledged data durable when the server stopped.
    #[error("not flushed at the end: {0}")]
    NotFlushed(String),
}
