//! Options of `telpher nvmf`.

use super::output::{Printed, Updates};
use clap::{Args, Subcommand};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use telpher_nvmf_run::config::{Config, ConfigError, DEFAULT_NQN, Listener, NamespaceConfig, PORT, SubsystemConfig};
use telpher_nvmf_run::values::{Backend, Device, Identifier, Size, ValueError};

/// Serve disks over NVMe/TCP, with digests by the CPU or a device.
///
/// An NVMe/TCP target for Linux and other hosts, in place of SPDK's or the kernel's. Each --memory, --file and --null
/// is a disk (a namespace); --config reads subsystems, hosts and limits from a file. The command prints the lines that
/// connect a Linux machine. Data digests of long transfers can be computed by a device.
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

Then, as root on Linux:
  nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-01.io.telpher:disk
Configuration, statistics and what survives what: docs/nvmf.md"
)]
pub(crate) struct Nvmf {
    #[command(subcommand)]
    pub(crate) kind: Option<NvmfKind>,
    /// Serve a disk of this size in memory, which is gone when the command ends; may be repeated.
    #[arg(long, help_heading = "Disks", value_name = "SIZE", value_parser = memory)]
    memory: Vec<Backend>,
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
    /// memory:SIZE, file:PATH, file:PATH,size=SIZE or null:SIZE.
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
}

fn memory(size: &str) -> Result<Backend, ValueError> {
    format!("memory:{size}").parse()
}

fn file(path: &str) -> Result<Backend, ValueError> {
    format!("file:{path}").parse()
}

fn null(size: &str) -> Result<Backend, ValueError> {
    format!("null:{size}").parse()
}

/// Parses an address with or without a port.
fn listener(text: &str) -> Result<Listener, super::values::ValueError> {
    let plain = text.trim_start_matches('[').trim_end_matches(']');
    let whole = text.parse().or_else(|_| plain.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT)));
    let address: SocketAddr = whole.map_err(|_| {
        let sentence = format!("'{text}' is not an address; use 127.0.0.1, 10.0.0.1:4420, ::1 or [::1]:4420");
        super::values::ValueError(sentence)
    })?;
    Ok(Listener { address: address.ip(), port: address.port() })
}

impl Nvmf {
    /// Returns true if the options name no disk and no file.
    pub(crate) fn serves_nothing(&self) -> bool {
        self.config.is_none() && [&self.memory, &self.file, &self.null].iter().all(|disks| disks.is_empty())
    }

    /// Returns the configuration: that of the file, with the options.
    pub(crate) fn configuration(&self) -> Result<Config, ConfigError> {
        let mut config = self.config.as_deref().map_or_else(|| Ok(Config::default()), Config::read)?;
        let disks = self.memory.iter().chain(&self.file).chain(&self.null);
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
