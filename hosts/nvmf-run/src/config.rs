//! The configuration of a server: a JSON file, or what a command line says.

use crate::keys::{Check, part};
use crate::values::{Backend, Device, Engine, Identifier, Protected, Size, Sockets};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use telpher_device::DeviceName;
use telpher_nvmf::device_engine::DEFAULT_SHORTEST;
use telpher_nvmf::limits::{Limits, MOST_NAMESPACES};
pub use telpher_nvmf::protection::DEFAULT_APPLICATION_TAG;
use telpher_nvmf::subsystem::{Subsystem, SubsystemOptions, is_nqn};

/// The port of NVMe/TCP. Source: IANA.
pub const PORT: u16 = 4420;

/// The NQN of the subsystem that is made from a command line.
pub const DEFAULT_NQN: &str = "nqn.2026-01.io.telpher:disk";

/// The model number that hosts see.
pub const DEFAULT_MODEL: &str = "telpher";

/// Threads of a server. Source: chosen; more than any machine has cores for.
const MOST_LOOPS: u16 = 256;

/// Bytes of a configuration file. Source: chosen; 1024 namespaces need about 200 KiB.
const LONGEST_FILE: u64 = 4 << 20;

part! {
    /// The configuration of a server.
    pub struct Config {
        /// The addresses at which the server listens.
        pub listeners: Vec<Listener> = vec![Listener::default()],
        /// The subsystems.
        pub subsystems: Vec<SubsystemConfig> = Vec::new(),
        /// The limits.
        pub limits: LimitsConfig = LimitsConfig::default(),
        /// What computes the digests of data.
        pub digests: DigestsConfig = DigestsConfig::default(),
        /// The threads that serve connections.
        pub loops: u16 = 1,
        /// How bytes are moved through sockets: `auto`, `io_uring` or `epoll`.
        pub socket_engine: Sockets = Sockets::Auto,
        /// How files are read and written: `auto`, `io_uring` or `threads`.
        pub file_engine: Engine = Engine::Auto,
        /// Files are read and written without the page cache (O_DIRECT), where the file system permits it.
        pub file_direct: bool = true,
        /// Threads that read and write files where io_uring is not used.
        pub file_threads: u16 = 8,
        /// The control socket; by default one in the user's directory for run files.
        pub control_socket: Option<PathBuf> = None,
    }
}

part! {
    /// An address at which the server listens.
    pub struct Listener {
        /// An IPv4 or IPv6 address; `0.0.0.0` or `::` for all.
        pub address: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST),
        /// The port; 0 for any free one.
        pub port: u16 = PORT,
    }
}

part! {
    /// A subsystem.
    pub struct SubsystemConfig {
        /// Its NQN.
        pub nqn: String = String::new(),
        /// Its serial number; by default derived from the NQN.
        pub serial: Option<String> = None,
        /// Its model number.
        pub model: String = DEFAULT_MODEL.into(),
        /// The NQNs of the hosts that may use it; any host if the key is missing or null.
        pub hosts: Option<Vec<String>> = None,
        /// Its namespaces.
        pub namespaces: Vec<NamespaceConfig> = Vec::new(),
    }
}

part! {
    /// A namespace.
    pub struct NamespaceConfig {
        /// NSID; by default the lowest free one.
        pub nsid: Option<u32> = None,
        /// Where its blocks are; must be given.
        pub backend: Option<Backend> = None,
        /// Bytes of a block: 512 or 4096.
        pub block_bytes: u32 = 4096,
        /// Its UUID; by default derived from NQN and NSID.
        pub uuid: Option<Identifier> = None,
        /// Its NGUID; by default derived from NQN and NSID.
        pub nguid: Option<Identifier> = None,
        /// Writes are refused.
        pub read_only: bool = false,
        /// `insert-strip`: stored blocks have 8 more bytes, a guard and tags, which reads check. Or `none`.
        pub protection: Protected = Protected::No,
        /// The application tag of protected blocks; 1 to 65534.
        pub application_tag: u16 = DEFAULT_APPLICATION_TAG,
    }
}

part! {
    /// What computes the digests of data.
    pub struct DigestsConfig {
        /// The device: `cpu`, `model:spr`, `model:FILE`, `hw:wqM.N` or `all`.
        pub device: Device = Device(DeviceName::Cpu),
        /// Data of fewer bytes is left to the CPU.
        pub threshold: Size = Size(DEFAULT_SHORTEST as u64),
        /// Operations that a loop has at the device at once.
        pub in_flight: u32 = 128,
    }
}

part! {
    /// The limits of the target; docs/nvmf.md has the memory that follows from them.
    pub struct LimitsConfig {
        /// Connections of all loops together.
        pub connections: u32 = 1024,
        /// Entries of the admin queue.
        pub admin_depth: u16 = Limits::default().admin_depth,
        /// Entries of an I/O queue.
        pub queue_depth: u16 = Limits::default().queue_depth,
        /// I/O queues of a controller.
        pub io_queues: u16 = Limits::default().io_queues,
        /// Controllers of the target.
        pub controllers: u16 = Limits::default().controllers,
        /// The smallest controller identifier.
        pub least_controller_id: u16 = Limits::default().least_controller_id,
        /// The largest controller identifier.
        pub most_controller_id: u16 = Limits::default().most_controller_id,
        /// Bytes of one command's data.
        pub transfer_bytes: u32 = Limits::default().transfer_bytes,
        /// Bytes of data in a capsule of an I/O queue.
        pub capsule_bytes: u32 = Limits::default().capsule_bytes,
        /// MAXH2CDATA.
        pub h2c_bytes: u32 = Limits::default().h2c_bytes,
        /// The largest range that one R2T asks for.
        pub r2t_bytes: u32 = Limits::default().r2t_bytes,
        /// Bytes of a connection that were asked for by R2T and are not yet written.
        pub receive_bytes: u32 = Limits::default().receive_bytes,
        /// Bytes of replies waiting for the host, above which no more commands are taken.
        pub send_bytes: usize = Limits::default().send_bytes,
        /// Milliseconds within which a host must send ICReq, and then Connect.
        pub connect_ms: u64 = Limits::default().connect_ms,
        /// Milliseconds within which the host must close after an error of its own.
        pub terminate_ms: u64 = Limits::default().terminate_ms,
        /// The smallest keep alive time-out in milliseconds.
        pub least_keep_alive_ms: u32 = Limits::default().least_keep_alive_ms,
        /// Milliseconds for which a controller may stay disabled.
        pub disabled_ms: u64 = Limits::default().disabled_ms,
    }
}

impl LimitsConfig {
    /// The limits for the target.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            admin_depth: self.admin_depth,
            queue_depth: self.queue_depth,
            io_queues: self.io_queues,
            controllers: self.controllers,
            least_controller_id: self.least_controller_id,
            most_controller_id: self.most_controller_id,
            transfer_bytes: self.transfer_bytes,
            capsule_bytes: self.capsule_bytes,
            h2c_bytes: self.h2c_bytes,
            r2t_bytes: self.r2t_bytes,
            receive_bytes: self.receive_bytes,
            send_bytes: self.send_bytes,
            connect_ms: self.connect_ms,
            terminate_ms: self.terminate_ms,
            least_keep_alive_ms: self.least_keep_alive_ms,
            disabled_ms: self.disabled_ms,
        }
    }
}

impl Check for LimitsConfig {
    fn check(&self) -> Result<(), String> {
        if self.connections == 0 {
            return Err("connections is 0; it must be at least 1".into());
        }
        self.limits().check().map_err(|error| error.to_string())
    }
}

impl Check for Listener {}

impl Check for DigestsConfig {
    fn check(&self) -> Result<(), String> {
        match self.in_flight {
            1..=4096 => Ok(()),
            other => Err(format!("in_flight is {other}; it must be 1 to 4096")),
        }
    }
}

impl Check for NamespaceConfig {
    fn check(&self) -> Result<(), String> {
        if self.nsid.is_some_and(|nsid| nsid == 0 || nsid > MOST_NAMESPACES) {
            return Err(format!("nsid must be 1 to {MOST_NAMESPACES}"));
        }
        if self.block_bytes != 512 && self.block_bytes != 4096 {
            return Err(format!("block_bytes is {}; it must be 512 or 4096", self.block_bytes));
        }
        if self.application_tag == 0 || self.application_tag == u16::MAX {
            return Err(format!("application_tag is {}; it must be 1 to 65534", self.application_tag));
        }
        let bytes = match &self.backend {
            None => return Err("a namespace needs the key 'backend', such as \"memory:1g\"".into()),
            Some(Backend::Memory { bytes, .. } | Backend::Null { bytes }) => Some(*bytes),
            Some(Backend::File { create_bytes, .. } | Backend::MemoryFile { create_bytes, .. }) => *create_bytes,
        };
        match bytes {
            Some(bytes) if bytes < self.block_bytes.into() => {
                Err(format!("a backend of {bytes} bytes is less than one block"))
            }
            _ => Ok(()),
        }
    }
}

impl SubsystemConfig {
    /// The options for the target.
    #[must_use]
    pub fn options(&self) -> SubsystemOptions {
        SubsystemOptions {
            nqn: self.nqn.clone(),
            serial: self.serial.clone().unwrap_or_else(|| crate::identity::serial(&self.nqn)),
            model: self.model.clone(),
            hosts: self.hosts.as_ref().map(|hosts| hosts.iter().cloned().collect()),
        }
    }

    /// The namespaces with their identifiers: those without one get the lowest free one, in their order.
    #[must_use]
    pub fn numbered(&self) -> Vec<(u32, &NamespaceConfig)> {
        let mut used: BTreeSet<u32> = self.namespaces.iter().filter_map(|namespace| namespace.nsid).collect();
        let numbered = self.namespaces.iter().map(|namespace| {
            let nsid = namespace.nsid.unwrap_or_else(|| lowest_free(&used));
            used.insert(nsid);
            (nsid, namespace)
        });
        numbered.collect()
    }
}

/// The lowest identifier that is not used.
pub(crate) fn lowest_free(used: &BTreeSet<u32>) -> u32 {
    (1..).find(|nsid| !used.contains(nsid)).unwrap_or(u32::MAX)
}

/// Checks the NQN of a host.
pub(crate) fn check_host(nqn: &str) -> Result<(), String> {
    if is_nqn(nqn) {
        return Ok(());
    }
    Err(format!("{nqn:?} is not the NQN of a host; /etc/nvme/hostnqn has it, or `nvme show-hostnqn`"))
}

impl Check for SubsystemConfig {
    fn check(&self) -> Result<(), String> {
        if self.nqn.is_empty() {
            return Err("a subsystem needs the key 'nqn', such as \"nqn.2026-01.org.example:disk\"".into());
        }
        Subsystem::new(self.options()).map_err(|error| error.to_string())?;
        self.hosts.iter().flatten().try_for_each(|host| check_host(host))?;
        let mut seen = BTreeSet::new();
        for (nsid, _) in self.numbered() {
            if nsid > MOST_NAMESPACES {
                return Err(format!("a subsystem has at most {MOST_NAMESPACES} namespaces"));
            }
            if !seen.insert(nsid) {
                return Err(format!("two namespaces of {} have the nsid {nsid}", self.nqn));
            }
        }
        Ok(())
    }
}

impl Check for Config {
    fn check(&self) -> Result<(), String> {
        if self.listeners.is_empty() {
            return Err("listeners is empty; the server needs an address".into());
        }
        if !(1..=MOST_LOOPS).contains(&self.loops) {
            return Err(format!("loops is {}; it must be 1 to {MOST_LOOPS}", self.loops));
        }
        if !(1..=MOST_LOOPS).contains(&self.file_threads) {
            return Err(format!("file_threads is {}; it must be 1 to {MOST_LOOPS}", self.file_threads));
        }
        let mut seen = BTreeSet::new();
        match self.subsystems.iter().find(|subsystem| !seen.insert(&subsystem.nqn)) {
            Some(subsystem) => Err(format!("two subsystems have the NQN {}", subsystem.nqn)),
            None => Ok(()),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is too long.
    #[error("the configuration {} has more than {LONGEST_FILE} bytes", path.display())]
    Long {
        /// The file.
        path: PathBuf,
    },
    /// Values do not fit together.
    #[error("{0}")]
    Values(String),
    /// The text is not a configuration.
    #[error("{}:{line}:{column}: {what}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The keys, and what is wrong.
        what: String,
    },
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`], with the position and the key of the first error.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        use std::io::Read as _;
        let failed = |source| ConfigError::Read { path: path.into(), source };
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(LONGEST_FILE + 1).read_to_string(&mut text).map_err(failed)?;
        if text.len() as u64 > LONGEST_FILE {
            return Err(ConfigError::Long { path: path.into() });
        }
        Config::parse(&text, path)
    }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// [`ConfigError::Text`], which names `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        serde_json::from_str(text).map_err(|error| {
            let whole = error.to_string();
            let position = format!(" at line {} column {}", error.line(), error.column());
            let what = whole.strip_suffix(&position).unwrap_or(&whole).to_owned();
            ConfigError::Text { path: path.into(), line: error.line(), column: error.column(), what }
        })
    }

    /// Returns it, or why its values do not fit together. A configuration that was read has been checked.
    ///
    /// # Errors
    /// [`ConfigError::Values`] with a sentence.
    pub fn checked(self) -> Result<Config, ConfigError> {
        let parts = self.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces).map(Check::check);
        let result: Result<(), String> = parts
            .chain(self.subsystems.iter().map(Check::check))
            .chain([self.digests.check(), self.limits.check(), self.check()])
            .collect();
        result.map(|()| self).map_err(ConfigError::Values)
    }

    /// The text of a file with this configuration.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a configuration is plain data with string keys") + "\n"
    }

    /// The addresses of the listeners.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|listener| SocketAddr::new(listener.address, listener.port)).collect()
    }
}
