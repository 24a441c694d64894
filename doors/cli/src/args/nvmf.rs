//! Options of `telpher nvmf`.

use super::output::{Printed, Updates};
use super::values::parse_seconds;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use telpher_bench::nvmf_load::{Digests, End, LoadOptions, MOST_DEPTH, Pattern, ServerOptions};
use telpher_nvmf_run::config::{
    Config, ConfigError, DEFAULT_APPLICATION_TAG, DEFAULT_NQN, Listener, NamespaceConfig, PORT, SubsystemConfig,
};
use telpher_nvmf_run::values::{Backend, Device, Identifier, Protected, Size, ValueError};

/// Serve disks over NVMe/TCP, with digests by the CPU or a device.
///
/// An NVMe/TCP target for Linux and other hosts, in place of SPDK's or the kernel's. Each --memory, --memory-file,
/// --file and --null is a disk (a namespace); --config reads subsystems, hosts and limits from a file. The command
/// prints the lines that connect a Linux machine. Data digests of long transfers can be computed by a device.
///
/// There is no TLS and no authentication: the server listens on loopback unless --listen says otherwise. Ctrl-C or
/// SIGTERM completes the commands that hosts have sent, for at most 5 s, and flushes the files; a second one ends the
/// server at once. -v prints each host that connects and disconnects.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  telpher nvmf --memory 1g                        a disk in memory
  telpher nvmf --file /tmp/disk.img,size=10g      a disk in a file
  telpher nvmf --memory 1g --device model:spr --threshold 16k --loops 2
  telpher nvmf --null 1t --listen [::1]:4421 --control /tmp/nvmf.sock
  telpher nvmf --memory 1g --print-config > nvmf.json
  telpher nvmf --config nvmf.json
  telpher nvmf check nvmf.json
  telpher nvmf bench --seconds 1                  measure

Then, as root on Linux:
  nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-01.io.telpher:disk
Configuration, statistics and what survives what: docs/nvmf.md"
)]
pub(crate) struct Nvmf {
    #[command(subcommand)]
    pub(crate) kind: Option<NvmfKind>,
    /// Serve a disk of this size in memory, which is gone when the command ends (SIZE,pages=transparent or
    /// SIZE,pages=reserved: in huge pages); may be repeated.
    #[arg(long, help_heading = "Disks", value_name = "SIZE", value_parser = memory)]
    memory: Vec<Backend>,
    /// Serve a file on tmpfs or hugetlbfs, which outlives the command; may be repeated.
    #[arg(long, help_heading = "Disks", value_name = "PATH[,size=SIZE]", value_parser = memory_file)]
    memory_file: Vec<Backend>,
    /// Serve a file or a block device; SIZE creates a file that does not exist; may be repeated.
    #[arg(long, help_heading = "Disks", value_name = "PATH[,size=SIZE]", value_parser = file)]
    file: Vec<Backend>,
    /// Serve a disk that reads zeroes and forgets what is written; may be repeated.
    #[arg(long, help_heading = "Disks", value_name = "SIZE", value_parser = null)]
    null: Vec<Backend>,
    /// NQN of the subsystem of these disks [default: nqn.2026-01.io.telpher:disk].
    #[arg(long, help_heading = "Disks", value_name = "NQN")]
    nqn: Option<String>,
    /// Read the configuration from this file; other options win over it.
    #[arg(long, help_heading = "Server", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the configuration for these options, and serve nothing.
    #[arg(long, help_heading = "Server")]
    pub(crate) print_config: bool,
    /// Address to listen at; may be repeated [default: 127.0.0.1:4420].
    #[arg(long, help_heading = "Server", value_name = "ADDRESS[:PORT]", value_parser = listener)]
    listen: Vec<Listener>,
    /// Threads that serve connections [default: 1].
    #[arg(long, help_heading = "Server", value_name = "N")]
    loops: Option<u16>,
    /// Path of the control socket [default: one in the user's directory for run files].
    #[arg(long, help_heading = "Server", value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Device that computes data digests: cpu, model:spr, model:FILE, hw:wqM.N, or all [default: cpu].
    #[arg(short, long, help_heading = "Device", value_name = "DEV", value_parser = super::values::parse_device)]
    device: Option<String>,
    /// Digests of data with fewer bytes are computed by the CPU [default: 8k].
    #[arg(long, help_heading = "Device", value_name = "BYTES")]
    threshold: Option<Size>,
}

// Without a subcommand, the server runs. No doc comment: the help text is at the subcommand.
#[derive(Debug, Subcommand)]
pub(crate) enum NvmfKind {
    Bench(Box<NvmfBench>),
    Check(NvmfCheck),
    Ctl(Box<NvmfCtl>),
}

/// Check a configuration, and serve nothing.
///
/// Prints what it serves, or the first error with line, column and key. Files and devices are not opened.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher nvmf --memory 1g --print-config > nvmf.json
  telpher nvmf check nvmf.json")]
pub(crate) struct NvmfCheck {
    /// The file, in JSON.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Measure an NVMe/TCP target, and verify what it returns.
///
/// With ADDRESS, the command measures the target that listens there, telpher's or another one. Without, it starts
/// servers of telpher with 1, 2, ... loops, one after the other, with a disk in memory that it fills; the same load
/// runs on each.
///
/// The patterns write-verify and mixed, and --fill, overwrite up to 1 GiB of the namespace: its data is lost. What they
/// write has a checksum in each block, and every read verifies it; wrong data ends the connection. If a connection ends
/// early, the exit code is 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Patterns:
  randread-4k, -16k  reads at random places
  seqread-128k       reads of 128 KiB in rising order
  write-verify       writes of up to 128 KiB, each read back; data is lost
  mixed              7 reads for 3 writes, with flushes; data is lost

Examples:
  telpher nvmf bench --seconds 1
  telpher nvmf bench --data-digest --device model:spr --seconds 1
  telpher nvmf bench --loops 2 --connections 4 --seconds 1 --format csv
With a target of your own, such as telpher nvmf --memory 1g:
  telpher nvmf bench 127.0.0.1 --pattern mixed --seconds 1
  telpher nvmf bench 127.0.0.1:4420 --in-flight 1 --idle 100 --seconds 1")]
pub(crate) struct NvmfBench {
    /// Address of the target [default: servers that this command starts].
    #[arg(value_name = "ADDRESS[:PORT]", help_heading = "Target", value_parser = address)]
    pub(crate) address: Option<SocketAddr>,
    /// NQN of the subsystem.
    #[arg(long, help_heading = "Target", value_name = "NQN", default_value = DEFAULT_NQN, requires = "address")]
    nqn: String,
    /// Number of the namespace.
    #[arg(long, help_heading = "Target", value_name = "N", default_value_t = 1, requires = "address")]
    nsid: u32,
    /// What the load does.
    #[arg(long, help_heading = "Load", value_name = "NAME", default_value = "randread-16k", value_parser = patterns())]
    pattern: Pattern,
    /// I/O queues, each on its own connection [default: 1, or --loops without ADDRESS].
    #[arg(long, help_heading = "Load", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: Option<u16>,
    /// Threads that send commands [default: one for each connection, at most the CPUs].
    #[arg(
        short,
        long,
        help_heading = "Load",
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    threads: Option<u16>,
    /// Commands in flight on each connection.
    #[arg(
        short,
        long,
        help_heading = "Load",
        value_name = "N",
        default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_DEPTH))
    )]
    in_flight: u16,
    /// Measuring time of each load in seconds.
    #[arg(long, help_heading = "Load", value_name = "S", default_value_t = 10.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Protect headers by CRC32C.
    #[arg(long, help_heading = "Load")]
    header_digest: bool,
    /// Protect data by CRC32C.
    #[arg(long, help_heading = "Load")]
    data_digest: bool,
    /// Ask for queues without flow control by the submission queue's head.
    #[arg(long, help_heading = "Load")]
    no_flow_control: bool,
    /// Further connections that only stay open.
    #[arg(long, help_heading = "Load", value_name = "N", default_value_t = 0)]
    idle: u16,
    /// Write every block before the measurement, so that all reads are verified (data is lost).
    #[arg(long, help_heading = "Load")]
    fill: bool,
    /// The largest number of loops [default: the CPUs].
    #[arg(
        long,
        help_heading = "Servers without ADDRESS",
        value_name = "N",
        conflicts_with = "address",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_BENCH_LOOPS))
    )]
    loops: Option<u16>,
    /// Size of their disk in memory.
    #[arg(
        long,
        help_heading = "Servers without ADDRESS",
        value_name = "SIZE",
        default_value_t = Size(256 << 20),
        conflicts_with = "address"
    )]
    memory: Size,
    /// Device that computes their data digests, as for telpher nvmf.
    #[arg(
        short,
        long,
        help_heading = "Servers without ADDRESS",
        value_name = "DEV",
        default_value = "cpu",
        conflicts_with = "address",
        value_parser = super::values::parse_device
    )]
    device: String,
    /// Digests of data with fewer bytes are computed by the CPU [default: 8k].
    #[arg(long, help_heading = "Servers without ADDRESS", value_name = "BYTES", conflicts_with = "address")]
    threshold: Option<Size>,
    #[command(flatten)]
    pub(crate) printed: Printed,
}

/// The most loops of a server that is measured: with a connection for each, a server's limit of 256 is kept.
const MOST_BENCH_LOOPS: u16 = 128;

/// Change a running server, or show its statistics.
///
/// Hosts that are connected learn at once of namespaces that are added, removed or resized. Changes are not written to
/// the configuration.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher nvmf ctl add-namespace memory:1g
  telpher nvmf ctl statistics --format json
  telpher nvmf ctl --control /tmp/nvmf.sock show")]
pub(crate) struct NvmfCtl {
    /// The server's control socket [default: as for telpher nvmf].
    #[arg(long, help_heading = "Server", value_name = "PATH", global = true)]
    pub(crate) control: Option<PathBuf>,
    /// NQN of the subsystem; needed if there are several.
    #[arg(long, help_heading = "Server", value_name = "NQN", global = true)]
    pub(crate) subsystem: Option<String>,
    #[command(subcommand)]
    pub(crate) kind: NvmfCtlKind,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NvmfCtlKind {
    AddNamespace(NvmfAddNamespace),
    /// Remove a namespace; commands that were accepted still complete.
    #[command(after_help = "Examples:\n  telpher nvmf ctl remove-namespace 2")]
    RemoveNamespace {
        /// NSID.
        nsid: u32,
    },
    /// Change the size of a namespace; a file is cut or extended.
    #[command(after_help = "Examples:\n  telpher nvmf ctl resize-namespace 2 2g")]
    ResizeNamespace {
        /// NSID.
        nsid: u32,
        /// The new size.
        size: Size,
    },
    /// Allow a host to connect.
    #[command(after_help = "Examples:\n  telpher nvmf ctl add-host nqn.2026-01.org.example:host")]
    AddHost {
        /// NQN of the host, as in its /etc/nvme/hostnqn.
        host: String,
    },
    /// Refuse a host from now on; connections that it has are kept.
    #[command(after_help = "Examples:\n  telpher nvmf ctl remove-host nqn.2026-01.org.example:host")]
    RemoveHost {
        /// NQN of the host.
        host: String,
    },
    /// Print the counters of the server, its subsystems, controllers, queues and loops.
    #[command(after_help = "Examples:\n  telpher nvmf ctl statistics\n  telpher nvmf ctl statistics --format json")]
    Statistics(Printed),
    /// Print the counters again and again, until the server ends.
    #[command(after_help = "Examples:\n  telpher nvmf ctl top\n  telpher nvmf ctl top --every 5 --count 3")]
    Top(Updates),
    /// Print what is served, as JSON.
    #[command(after_help = "Examples:\n  telpher nvmf ctl show")]
    Show,
}

/// Add a namespace.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  telpher nvmf ctl add-namespace memory:1g
  telpher nvmf ctl add-namespace file:/tmp/second.img,size=10g --nsid 2")]
pub(crate) struct NvmfAddNamespace {
    /// memory:SIZE[,pages=PAGES], memory-file:PATH[,size=SIZE], file:PATH[,size=SIZE] or null:SIZE.
    #[arg(value_name = "BACKEND")]
    pub(crate) backend: Backend,
    /// Its number [default: the lowest free one].
    #[arg(long, help_heading = "Namespace", value_name = "N")]
    pub(crate) nsid: Option<u32>,
    /// Bytes of a block: 512 or 4096.
    #[arg(long, help_heading = "Namespace", value_name = "BYTES", default_value_t = 4096)]
    pub(crate) block_bytes: u32,
    /// Its UUID [default: derived from NQN and NSID].
    #[arg(long, help_heading = "Namespace", value_name = "ID")]
    pub(crate) uuid: Option<Identifier>,
    /// Its NGUID [default: derived from NQN and NSID].
    #[arg(long, help_heading = "Namespace", value_name = "ID")]
    pub(crate) nguid: Option<Identifier>,
    /// Refuse writes.
    #[arg(long, help_heading = "Namespace")]
    pub(crate) read_only: bool,
    /// Protection information of stored blocks: none or insert-strip.
    #[arg(long, help_heading = "Namespace", value_name = "KIND", default_value = "none")]
    pub(crate) protection: Protected,
    /// Application tag of protected blocks.
    #[arg(long, help_heading = "Namespace", value_name = "N", default_value_t = DEFAULT_APPLICATION_TAG)]
    pub(crate) application_tag: u16,
}

fn memory(size: &str) -> Result<Backend, ValueError> {
    format!("memory:{size}").parse()
}

fn memory_file(path: &str) -> Result<Backend, ValueError> {
    format!("memory-file:{path}").parse()
}

fn file(path: &str) -> Result<Backend, ValueError> {
    format!("file:{path}").parse()
}

fn null(size: &str) -> Result<Backend, ValueError> {
    format!("null:{size}").parse()
}

/// Parses an address with or without a port.
fn address(text: &str) -> Result<SocketAddr, super::values::ValueError> {
    let plain = text.trim_start_matches('[').trim_end_matches(']');
    let whole = text.parse().or_else(|_| plain.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT)));
    whole.map_err(|_| {
        let sentence = format!("'{text}' is not an address; use 127.0.0.1, 10.0.0.1:4420, ::1 or [::1]:4420");
        super::values::ValueError(sentence)
    })
}

fn listener(text: &str) -> Result<Listener, super::values::ValueError> {
    address(text).map(|address| Listener { address: address.ip(), port: address.port() })
}

fn patterns() -> impl TypedValueParser<Value = Pattern> {
    PossibleValuesParser::new(Pattern::ALL.map(Pattern::name)).try_map(|name| name.parse::<Pattern>())
}

impl NvmfBench {
    /// Returns the load; without an address, the bench sets that of each server.
    pub(crate) fn load(&self) -> LoadOptions {
        let address = self.address.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
        let alone = if self.address.is_none() { self.most_loops() } else { 1 };
        let connections = self.connections.unwrap_or(alone);
        LoadOptions {
            nsid: self.nsid,
            connections,
            threads: self.threads.unwrap_or_else(|| connections.min(cpus())),
            depth: self.in_flight,
            digests: Digests { header: self.header_digest, data: self.data_digest },
            flow_control: !self.no_flow_control,
            idle_connections: self.idle,
            fill: self.fill,
            end: End::After(Duration::from_secs_f64(self.seconds)),
            ..LoadOptions::new(address, &self.nqn, self.pattern)
        }
    }

    /// Returns the servers of a bench without an address.
    pub(crate) fn servers(&self) -> ServerOptions {
        ServerOptions {
            memory_bytes: self.memory.0,
            most_loops: self.most_loops(),
            device: self.device.clone(),
            threshold_bytes: self.threshold.map(|bytes| bytes.0),
        }
    }

    fn most_loops(&self) -> u16 {
        self.loops.unwrap_or_else(|| cpus().min(MOST_BENCH_LOOPS))
    }
}

/// The CPUs of this process.
fn cpus() -> u16 {
    std::thread::available_parallelism().map_or(1, |count| u16::try_from(count.get()).unwrap_or(u16::MAX))
}

impl Nvmf {
    /// Returns true if the options name no disk and no file.
    pub(crate) fn serves_nothing(&self) -> bool {
        self.config.is_none()
            && [&self.memory, &self.memory_file, &self.file, &self.null].iter().all(|disks| disks.is_empty())
    }

    /// Returns the configuration: that of the file, with the options.
    pub(crate) fn configuration(&self) -> Result<Config, ConfigError> {
        let mut config = self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
        let disks = self.memory.iter().chain(&self.memory_file).chain(&self.file).chain(&self.null);
        let namespaces: Vec<NamespaceConfig> =
            disks.map(|disk| NamespaceConfig { backend: Some(disk.clone()), ..NamespaceConfig::default() }).collect();
        if !namespaces.is_empty() {
            let nqn = self.nqn.clone().unwrap_or_else(|| DEFAULT_NQN.into());
            config.subsystems.push(SubsystemConfig { nqn, namespaces, ..SubsystemConfig::default() });
        }
        if !self.listen.is_empty() {
            config.listeners.clone_from(&self.listen);
        }
        config.loops = self.loops.unwrap_or(config.loops);
        config.control_socket = self.control.clone().or(config.control_socket);
        config.digests.threshold = self.threshold.unwrap_or(config.digests.threshold);
        if let Some(name) = self.device.as_ref().and_then(|name| name.parse::<Device>().ok()) {
            config.digests.device = name;
        }
        config.checked()
    }
}
