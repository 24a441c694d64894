//! Options of `telpher vhost`.

use super::output::Printed;
use super::run::Runner;
use super::values::{ValueError, parse_seconds, parse_size};
use clap::{Args, ValueEnum};
use std::time::Duration;
use telpher_switch::{Full, Mode, Settings};
use telpher_switch_run::{Capture, RingMap, RunOptions, SocketPort, parse_policy};
use telpher_vhost::CopyPolicy;

/// Switch packets between virtual machines, with copies by the CPU or a device.
///
/// A small software switch, similar to DPDK's testpmd. Each --socket is a vhost-user port to which a virtual machine's
/// network card, or testpmd's virtio-user, connects; each --tap is an interface of this system, each --nic an existing
/// one. Ports work in pairs: first and second, third and fourth. A port without a peer sends its packets back.
///
/// The CPU or a device copies packets into and out of the guests' memory, whichever is cheaper for their size; packets
/// always stay in order. Every second the switch prints packets and bits per second, drops by reason and cycles by
/// stage to standard error; it prints a summary at the end, after --seconds or Ctrl-C. Guests may disconnect and
/// reconnect; no guest can end the switch or affect another guest's memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Directions are the switch's, as in testpmd: rx is traffic from a port's guest, tx is traffic to \
it.

Examples:
  telpher vhost --socket /tmp/vm.sock                    echoes packets
  telpher vhost --socket a.sock --socket b.sock --forward mac
  telpher vhost --socket vm.sock --tap vm0               with this system (root)
  telpher vhost --socket vm.sock,queues=2 --nic eth1     with a network (root)
  telpher vhost --socket a.sock --device model:spr --map txq0@wq0.0,rxq0@wq0.1
  telpher vhost --socket a.sock --socket b.sock --capture 0:port0.pcap --snap 96
  telpher vhost --show-features                          offered features

A guest to try it with, once huge pages are reserved (echo 256 > /proc/sys/vm/nr_hugepages):
  dpdk-testpmd --in-memory --single-file-segments -m 256 --no-pci \\
    --vdev net_virtio_user0,path=/tmp/vm.sock,mrg_rxbuf=1 -- -i
QEMU's options, and what the numbers mean: docs/vhost.md")]
pub(crate) struct Vhost {
    /// A vhost-user port at this path, with server, client or queues=N behind it; may be repeated.
    #[arg(long, help_heading = "Ports", value_name = "PATH[,OPTIONS]")]
    pub(crate) socket: Vec<SocketPort>,
    /// A port that is a TAP interface of this system (needs root); may be repeated.
    #[arg(long, help_heading = "Ports", value_name = "NAME")]
    pub(crate) tap: Vec<String>,
    /// A port on an existing network interface (needs root or CAP_NET_RAW); may be repeated.
    #[arg(long, help_heading = "Ports", value_name = "IF")]
    pub(crate) nic: Vec<String>,
    /// What to do with packets.
    #[arg(long, help_heading = "Forwarding", value_enum, default_value_t = Forward::Io)]
    forward: Forward,
    /// Keep the packets of a guest without buffers, for at most --retry-for, instead of dropping them.
    #[arg(long, help_heading = "Forwarding")]
    pub(crate) retry: bool,
    /// With --retry, the maximum seconds that packets wait.
    #[arg(
        long,
        help_heading = "Forwarding",
        value_name = "S",
        default_value_t = 1.0,
        value_parser = parse_seconds,
        requires = "retry"
    )]
    pub(crate) retry_for: f64,
    /// Device that copies besides the CPU: cpu (none), model:spr, model:FILE, hw:wqM.N, or all.
    #[arg(
        short,
        long,
        help_heading = "Device",
        value_name = "DEV",
        default_value = "cpu",
        value_parser = super::values::parse_device
    )]
    pub(crate) device: String,
    /// Thread that executes on a modelled device: the forwarding thread, or separate threads.
    #[arg(long, help_heading = "Device", value_enum, default_value_t = Runner::Auto)]
    pub(crate) runner: Runner,
    /// Device queues for a virtqueue's copies, such as txq0@wq0.0 or 1:rxq@wq0.0+wq0.1.
    #[arg(long, help_heading = "Device", value_name = "MAP", value_delimiter = ',')]
    pub(crate) map: Vec<RingMap>,
    /// Packets that the device copies: learned, all, off, or from BYTES on [default: learned].
    #[arg(long, help_heading = "Device", value_name = "BYTES", value_parser = parse_policy)]
    threshold: Option<CopyPolicy>,
    /// Packets that are received and submitted together.
    #[arg(
        long,
        help_heading = "Forwarding",
        value_name = "N",
        default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..=512)
    )]
    pub(crate) burst: u16,
    /// Bytes of the packets that txonly and flowgen generate.
    #[arg(
        short,
        long,
        help_heading = "Forwarding",
        value_name = "SIZE",
        default_value = "64",
        value_parser = parse_packet
    )]
    pub(crate) size: u32,
    /// Destinations of the packets that flowgen generates.
    #[arg(
        long,
        help_heading = "Forwarding",
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=32_768)
    )]
    pub(crate) flows: u32,
    /// Maximum packets of a virtqueue in flight.
    #[arg(
        short,
        long,
        help_heading = "Forwarding",
        value_name = "N",
        default_value_t = 1024,
        value_parser = clap::value_parser!(u32).range(1..=32_768)
    )]
    pub(crate) in_flight: u32,
    /// Bytes of the longest packet; longer ones are dropped and counted.
    #[arg(
        long,
        help_heading = "Forwarding",
        value_name = "BYTES",
        default_value_t = 2048,
        value_parser = clap::value_parser!(u32).range(64..=65_535)
    )]
    pub(crate) longest: u32,
    /// Number of packet buffers of the switch.
    #[arg(
        long,
        help_heading = "Forwarding",
        value_name = "N",
        default_value_t = 32_768,
        value_parser = clap::value_parser!(u32).range(4096..=1_048_576)
    )]
    pub(crate) buffers: u32,
    /// CPUs for the forwarding threads, one thread on each [default: one thread, anywhere].
    #[arg(long, help_heading = "Forwarding", value_name = "CPUS", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// Run time in seconds [default: until Ctrl-C].
    #[arg(long, help_heading = "Forwarding", value_name = "S", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Write the packets from and to a port to a pcap file; may be repeated.
    #[arg(long, help_heading = "Output", value_name = "PORT:FILE")]
    pub(crate) capture: Vec<Capture>,
    /// Maximum captured bytes of each packet.
    #[arg(
        long,
        help_heading = "Output",
        value_name = "BYTES",
        default_value_t = 65_535,
        value_parser = clap::value_parser!(u32).range(1..=65_535)
    )]
    pub(crate) snap: u32,
    /// Show the feature bits offered to guests, or negotiated with the guest of --socket.
    #[arg(long, help_heading = "Output")]
    pub(crate) show_features: bool,
    /// Print nothing while the switch runs.
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) printed: Printed,
}

/// Bytes of the shortest and the longest packet that the switch generates. Source: Ethernet's minimum, jumbo frames.
const PACKET: std::ops::RangeInclusive<u64> = 64..=9216;

/// Parses the bytes of a generated packet.
fn parse_packet(text: &str) -> Result<u32, ValueError> {
    let bytes = parse_size(text)?;
    match u32::try_from(bytes) {
        Ok(short) if PACKET.contains(&bytes) => Ok(short),
        _ => Err(ValueError(format!(
            "'{text}' is out of range; packets have {} to {} bytes",
            PACKET.start(),
            PACKET.end()
        ))),
    }
}

/// What the switch does with packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Forward {
    /// Forward unchanged from one port of a pair to the other.
    Io,
    /// Forward with the MAC addresses of the sending port.
    Mac,
    /// Receive packets from guests and drop them.
    Rxonly,
    /// Generate packets for guests, as many as they take.
    Txonly,
    /// Receive packets and generate others with many destinations.
    Flowgen,
}

impl Vhost {
    /// Returns the options of the switch.
    pub(crate) fn run_options(&self) -> RunOptions {
        let mode = match self.forward {
            Forward::Io => Mode::Io,
            Forward::Mac => Mode::Mac,
            Forward::Rxonly => Mode::RxOnly,
            Forward::Txonly => Mode::TxOnly,
            Forward::Flowgen => Mode::FlowGen,
        };
        RunOptions {
            sockets: self.socket.clone(),
            taps: self.tap.clone(),
            nics: self.nic.clone(),
            settings: Settings {
                mode,
                burst: self.burst.into(),
                full: if self.retry { Full::Retry } else { Full::Drop },
                retry_for: Duration::from_secs_f64(self.retry_for),
                len: self.size,
                flows: if mode == Mode::FlowGen { self.flows } else { 1 },
            },
            device: self.device.clone(),
            runner: self.runner.into(),
            maps: self.map.clone(),
            policy: self.threshold,
            in_flight: self.in_flight,
            longest: self.longest,
            buffers: self.buffers,
            cpus: self.cpus.clone(),
            seconds: self.seconds,
            captures: self.capture.clone(),
            captured_bytes: self.snap,
        }
    }
}
