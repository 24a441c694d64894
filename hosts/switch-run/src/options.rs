//! What the caller of the switch chooses.

use std::path::PathBuf;
use telpher_device::Runner;
use telpher_switch::Settings;
use telpher_vhost::{CopyPolicy, Role};

/// The ports of the switch, and how they are served.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Ports of guests. They come first.
    pub sockets: Vec<SocketPort>,
    /// Names of TAP interfaces of this system, each a port.
    pub taps: Vec<String>,
    /// Names of network interfaces of this system, each a port.
    pub nics: Vec<String>,
    /// How packets are forwarded.
    pub settings: Settings,
    /// The device that copies besides the CPU, as `--device` names it.
    pub device: String,
    /// The thread that executes on a modelled device.
    pub runner: Runner,
    /// Device queues of single virtqueues; the last one that fits counts.
    pub maps: Vec<RingMap>,
    /// Packets that the device copies; learned if `None`.
    pub policy: Option<CopyPolicy>,
    /// Packets of a virtqueue in flight, at most.
    pub in_flight: u32,
    /// Bytes of the longest packet.
    pub longest: u32,
    /// Packet buffers.
    pub buffers: u32,
    /// CPUs of the forwarding threads, one thread on each. Empty: one thread, on any CPU.
    pub cpus: Vec<usize>,
    /// Seconds until the switch ends; without, it runs until a signal ends it.
    pub seconds: Option<f64>,
    /// Packets that are written to files.
    pub captures: Vec<Capture>,
    /// Captured bytes of each packet, at most.
    pub captured_bytes: u32,
}

/// A vhost-user port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SocketPort {
    /// Its socket.
    pub path: PathBuf,
    /// Which side connects.
    pub role: Role,
    /// Pairs of virtqueues.
    pub queues: u16,
}

/// The device queues that copy for some virtqueues.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingMap {
    /// The port; all ports if `None`.
    pub port: Option<usize>,
    /// True for packets from the guest, false for packets to it.
    pub rx: bool,
    /// The virtqueue; all virtqueues if `None`.
    pub queue: Option<usize>,
    /// Names of device queues.
    pub dma_queues: Vec<String>,
}

/// Packets of a port that are written to a pcap file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capture {
    /// The port.
    pub port: usize,
    /// The file.
    pub file: PathBuf,
}
