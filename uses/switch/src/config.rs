//! The configuration of a switch.

use crate::forward::Settings;
use std::path::PathBuf;
use telpher_vhost::{PortOptions, Role};

/// The configuration of a [`Switch`](crate::Switch).
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// The ports. They work in pairs: 0 with 1, 2 with 3; the last of an odd number is its own peer.
    pub ports: Vec<PortConfig>,
    /// How packets are handled.
    pub settings: Settings,
    /// The number of packet buffers.
    pub buffers: u32,
    /// Bytes of the longest packet.
    pub longest: u32,
    /// The most bytes of each packet that a capture writes.
    pub captured_bytes: u32,
    /// The number of forwarding threads, at least 1.
    pub threads: usize,
    /// The processor of each forwarding thread. Threads without one run where the system puts them.
    pub cpus: Vec<usize>,
}

impl Default for SwitchConfig {
    /// No ports, one thread, 32,768 buffers of 2048 bytes, and captures of whole packets. Source of the numbers: the
    /// defaults of `telpher vhost`.
    fn default() -> Self {
        SwitchConfig {
            ports: Vec::new(),
            settings: Settings::default(),
            buffers: 32_768,
            longest: 2048,
            captured_bytes: u32::from(u16::MAX),
            threads: 1,
            cpus: Vec::new(),
        }
    }
}

/// The configuration of one port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// What the port connects to.
    pub kind: PortKind,
    /// The file for a capture of its packets.
    pub capture: Option<PathBuf>,
}

/// What a port connects to.
#[derive(Clone, Debug)]
pub enum PortKind {
    /// A guest, through a vhost-user socket.
    Socket {
        /// The socket's path.
        path: PathBuf,
        /// Which side listens.
        role: Role,
        /// The offered features, and the DMA queues of each virtqueue.
        options: PortOptions,
    },
    /// A TAP interface of this system. It has as many queues as its peer has queue pairs.
    Tap {
        /// The interface's name.
        name: String,
    },
    /// An existing network interface of this system. It has as many queues as its peer has queue pairs.
    Nic {
        /// The interface's name.
        name: String,
    },
}

impl PortKind {
    /// Returns the number of queue pairs of a socket; an interface adopts its peer's.
    pub(crate) fn pairs(&self) -> Option<usize> {
        match self {
            PortKind::Socket { options, .. } => Some(usize::from(options.offer.rings) / 2),
            PortKind::Tap { .. } | PortKind::Nic { .. } => None,
        }
    }
}
