//! Options of `telpher vhost`.

use super::run::Runner;
use super::values::{ValueError, parse_seconds};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::str::FromStr;

/// Switch packets between virtual machines, with copies that ride a device.
///
/// A small software switch in the manner of DPDK's testpmd: each --socket is a vhost-user port that a virtual machine's network card, or
/// testpmd's virtio-user, connects to, and each --tap is an interface of this system. Ports work in pairs, the first with the second, the third
/// with the fourth; one without a partner sends back to where packets come from.
///
/// Packets are copied into and out of the guests' memory by the CPU or by a device, whichever is the cheaper for their size, and stay in order all
/// the same. Prints packets and bits per second, drops by reason and cycles by stage every second to standard error, and a summary at the end, after
/// --seconds or Ctrl-C. Guests may come, go and come again; nothing a guest does ends the switch or touches another one.
#[derive(Debug, Args)]
#[command(after_help = "\
Directions are the switch's, as testpmd has them: rx is what comes from a port's guest, tx is what
goes to it.

Examples:
  telpher vhost --socket /tmp/vm.sock                    what its guest sends comes back
  telpher vhost --socket a.sock --socket b.sock --forward mac
  telpher vhost --socket vm.sock --tap vm0               a guest and this system (root)
  telpher vhost --socket a.sock --device model:spr --map txq0@wq0.0,rxq0@wq0.1
  telpher vhost --socket a.sock,client --forward txonly --size 1518 --seconds 10
  telpher vhost --socket a.sock --socket b.sock --capture 0:port0.pcap --snap 96
  telpher vhost --show-features                          what guests are offered

A guest to try it with, once huge pages are reserved (echo 256 > /proc/sys/vm/nr_hugepages):
  dpdk-testpmd --in-memory --single-file-segments -m 256 --no-pci \\
    --vdev net_virtio_user0,path=/tmp/vm.sock,mrg_rxbuf=1 -- -i
QEMU's options, and what the numbers mean: docs/vhost.md")]
pub(crate) struct Vhost {
    /// A vhost-user port at this path, which waits there for its frontend (server, the default) or goes to it (client: also again whenever it is
    /// gone); with queues=N it has so many pairs of queues. A dead switch's socket is replaced; a living one, and a file that is none, is left
    /// alone. May stand several times.
    #[arg(long, value_name = "PATH[,server|client][,queues=N]")]
    pub(crate) socket: Vec<SocketArg>,
    /// A port that is a TAP interface of this system, made if there is none of that name; needs root. It has as many queues as the port it is
    /// paired with. May stand several times, and comes after all sockets.
    #[arg(long, value_name = "NAME")]
    pub(crate) tap: Vec<String>,
    /// What is done with packets.
    #[arg(long, value_enum, default_value_t = Forward::Io)]
    pub(crate) forward: Forward,
    /// Keep packets that a guest has no buffers for until it has, instead of dropping them. They wait for --retry-for at most.
    #[arg(long)]
    pub(crate) retry: bool,
    /// How many seconds packets wait with --retry while their guest takes none. Then they are dropped and counted, and so is what follows until the
    /// guest takes packets again, so that it does not block the port that sends to it.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = parse_seconds, requires = "retry")]
    pub(crate) retry_for: f64,
    /// Who copies beside the CPU: cpu (nobody), model:spr, model:spr-fw2, model:full, model:FILE (accel-config JSON), hw:wqM.N, or all (every
    /// hardware queue that this user may use).
    #[arg(long, value_name = "DEV", default_value = "cpu", value_parser = super::values::parse_device)]
    pub(crate) device: String,
    /// Who executes on a modelled device: the thread that forwards, or threads beside it.
    #[arg(long, value_enum, default_value_t = Runner::Inline)]
    pub(crate) runner: Runner,
    /// Which device queues a virtqueue's copies ride: rxqN@QUEUE or txqN@QUEUE, of several queues with + between; rxq and txq alone are all of
    /// a port, and PORT: in front says of which port. What is not named rides the device's queues in turn.
    #[arg(long, value_name = "MAP", value_delimiter = ',')]
    pub(crate) map: Vec<MapArg>,
    /// Which packets the device copies: learned (those for which it costs the forwarding thread less than to copy them itself, as it finds out
    /// meanwhile), all, off (none), or those of so many bytes and more [default: learned].
    #[arg(long, value_name = "learned|all|off|BYTES")]
    pub(crate) threshold: Option<Threshold>,
    /// Packets that are taken and submitted together.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) burst: u16,
    /// Bytes of packets that txonly and flowgen make.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(64..=9216))]
    pub(crate) size: u32,
    /// Destinations of packets that flowgen makes.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    pub(crate) flows: u32,
    /// Packets of a virtqueue that may be on their way at once.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=32_768))]
    pub(crate) in_flight: u32,
    /// Bytes of the longest packet that the switch can hold; longer ones are dropped and counted.
    #[arg(long, value_name = "BYTES", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(64..=65_535))]
    pub(crate) longest: u32,
    /// Packet buffers of the switch.
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(4096..=1_048_576))]
    pub(crate) buffers: u32,
    /// Processors for the forwarding threads, such as 2 or 2,3: one thread on each [default: one thread, anywhere].
    #[arg(long, value_name = "CPUS", value_delimiter = ',')]
    pub(crate) cpus: Vec<usize>,
    /// How long it runs [default: until Ctrl-C].
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Write what comes from and goes to a port into a file, in the classic pcap format with nanoseconds. May stand several times.
    #[arg(long, value_name = "PORT:FILE")]
    pub(crate) capture: Vec<CaptureArg>,
    /// Bytes of each packet that are captured at most.
    #[arg(long, value_name = "BYTES", default_value_t = 65_535, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) snap: u32,
    /// Show what guests are offered, bit by bit; with --socket, wait for a frontend and show what it agreed on.
    #[arg(long)]
    pub(crate) show_features: bool,
    /// Say nothing while it runs.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// The summary on standard output: text for people, or JSON.
    #[arg(long, value_enum, default_value_t = SummaryFormat::Text)]
    pub(crate) format: SummaryFormat,
}

/// How the summary is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum SummaryFormat {
    /// A table.
    Text,
    /// JSON.
    Json,
}

/// What is done with packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Forward {
    /// From one port of a pair to the other, as they are.
    Io,
    /// The same, with MAC addresses of the port they leave through.
    Mac,
    /// Taken from guests, and that was it.
    Rxonly,
    /// Made, for guests, as many as they take.
    Txonly,
    /// Both, with many destinations.
    Flowgen,
}

/// `PATH[,server|client][,queues=N]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SocketArg {
    pub(crate) path: PathBuf,
    /// This side goes to the frontend.
    pub(crate) client: bool,
    /// Pairs of queues.
    pub(crate) queues: u16,
}

impl FromStr for SocketArg {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err(ValueError(format!("'{text}' has no path; a port is PATH[,server|client][,queues=N]")));
        }
        let mut socket = SocketArg { path: path.into(), client: false, queues: 1 };
        for part in parts {
            match (part, part.strip_prefix("queues=").map(str::parse::<u16>)) {
                ("server", _) => socket.client = false,
                ("client", _) => socket.client = true,
                (_, Some(Ok(queues @ 1..=128))) => socket.queues = queues,
                _ => {
                    let said =
                        format!("'{part}' says nothing of a port; there are server, client and queues=1 to queues=128");
                    return Err(ValueError(said));
                }
            }
        }
        Ok(socket)
    }
}

/// `[PORT:]rxq[N]@QUEUE[+QUEUE…]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MapArg {
    /// All ports if none.
    pub(crate) port: Option<usize>,
    /// What comes from the guest.
    pub(crate) rx: bool,
    /// All queues if none.
    pub(crate) queue: Option<usize>,
    /// Names of device queues.
    pub(crate) lanes: Vec<String>,
}

impl FromStr for MapArg {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let bad = || {
            ValueError(format!(
                "'{text}' maps nothing; it is [PORT:]rxqN@QUEUE or txqN, such as txq0@wq0.1 or 1:rxq@wq0.0+wq0.1"
            ))
        };
        let (ring, lanes) = text.split_once('@').ok_or_else(bad)?;
        let (port, ring) = match ring.split_once(':') {
            Some((port, ring)) => (Some(port.parse().map_err(|_| bad())?), ring),
            None => (None, ring),
        };
        let (rx, queue) = match (ring.strip_prefix("rxq"), ring.strip_prefix("txq")) {
            (Some(queue), _) => (true, queue),
            (_, Some(queue)) => (false, queue),
            _ => return Err(bad()),
        };
        let queue = if queue.is_empty() { None } else { Some(queue.parse().map_err(|_| bad())?) };
        let lanes: Vec<String> = lanes.split('+').map(str::to_owned).collect();
        if lanes.iter().any(String::is_empty) {
            return Err(bad());
        }
        Ok(MapArg { port, rx, queue, lanes })
    }
}

/// Who copies which packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Threshold {
    Learned,
    From(u32),
    All,
    Off,
}

impl FromStr for Threshold {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match (text, text.parse()) {
            ("learned", _) => Ok(Threshold::Learned),
            ("all", _) => Ok(Threshold::All),
            ("off", _) => Ok(Threshold::Off),
            (_, Ok(bytes)) => Ok(Threshold::From(bytes)),
            _ => Err(ValueError(format!("'{text}' is no threshold; it is learned, all, off, or a number of bytes"))),
        }
    }
}

/// `PORT:FILE`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CaptureArg {
    pub(crate) port: usize,
    pub(crate) file: PathBuf,
}

impl FromStr for CaptureArg {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parts = text.split_once(':').and_then(|(port, file)| Some((port.parse().ok()?, file)));
        match parts {
            Some((port, file)) if !file.is_empty() => Ok(CaptureArg { port, file: file.into() }),
            _ => Err(ValueError(format!("'{text}' names no port and file; give PORT:FILE, such as 0:port0.pcap"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_path_and_what_follows() {
        let socket = |text: &str| text.parse::<SocketArg>();
        let plain = SocketArg { path: "/tmp/a".into(), client: false, queues: 1 };
        assert_eq!(socket("/tmp/a").unwrap(), plain);
        assert_eq!(socket("/tmp/a,server").unwrap(), plain);
        assert_eq!(socket("/tmp/a,queues=4,client").unwrap(), SocketArg { client: true, queues: 4, ..plain });
        for text in ["", ",client", "a,queues=0", "a,queues=129", "a,mode", "a,"] {
            assert!(socket(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_map_names_rings_and_queues() {
        let map = |text: &str| text.parse::<MapArg>();
        let all = MapArg { port: None, rx: false, queue: None, lanes: vec!["wq0.1".into()] };
        assert_eq!(map("txq@wq0.1").unwrap(), all);
        let one = MapArg { port: Some(1), rx: true, queue: Some(3), lanes: vec!["wq0.1".into(), "wq1.0".into()] };
        assert_eq!(map("1:rxq3@wq0.1+wq1.0").unwrap(), one);
        for text in ["", "txq0", "q0@wq0.0", "x:rxq0@wq0.0", "rxqx@wq0.0", "rxq0@", "rxq0@wq0.0+"] {
            assert!(map(text).unwrap_err().to_string().contains("such as"), "{text}");
        }
    }

    #[test]
    fn thresholds_and_captures_are_told_what_they_are() {
        assert_eq!("512".parse(), Ok(Threshold::From(512)));
        assert_eq!(("all".parse(), "off".parse()), (Ok(Threshold::All), Ok(Threshold::Off)));
        assert_eq!("learned".parse(), Ok(Threshold::Learned));
        assert!("some".parse::<Threshold>().is_err());
        assert_eq!("2:a:b".parse(), Ok(CaptureArg { port: 2, file: "a:b".into() }));
        assert!("a.pcap".parse::<CaptureArg>().is_err() && "0:".parse::<CaptureArg>().is_err());
    }
}
