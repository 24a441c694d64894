//! Why the switch failed. The messages name the options of `telpher vhost`.

use std::io;
use std::path::PathBuf;
use telpher_switch::SwitchError;

/// Why the switch failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchRunError {
    /// No port was given.
    #[error("a switch needs a port; give --socket PATH for a guest, or --tap NAME or --nic IF for this system")]
    NoPorts,
    /// A socket cannot be created or used.
    #[error("cannot open a port at {}{}", path.display(), advice(source))]
    Socket {
        /// The path.
        path: PathBuf,
        /// The attempt and the system's error.
        source: io::Error,
    },
    /// The name is not valid for an interface.
    #[error("--tap '{0}': an interface's name has 1 to 15 letters, digits, dots or dashes")]
    TapName(String),
    /// A file cannot be written.
    #[error("cannot capture into {}; name another file with --capture", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An interface cannot be made or used.
    #[error(transparent)]
    Switch(SwitchError),
    /// A port does not exist.
    #[error("--{option} names port {port}; the ports are 0 to {last}: sockets, --tap, --nic, in the order given")]
    NoPort {
        /// The option.
        option: &'static str,
        /// The port that it names.
        port: usize,
        /// The last port.
        last: usize,
    },
    /// A device queue does not exist.
    #[error("--map names {dma_queue}; {device} has {known}")]
    NoDmaQueue {
        /// The queue that was named.
        dma_queue: String,
        /// The device.
        device: String,
        /// Its queues.
        known: String,
    },
    /// A threshold was given without a device.
    #[error("--threshold needs a device that copies; name one with --device, such as model:spr")]
    NoDevice,
    /// A processor is not available.
    #[error("cannot run on processor {cpu}: this process may use {allowed}; name one of them with --cpus")]
    Cpu {
        /// The one that was named.
        cpu: usize,
        /// The available processors.
        allowed: String,
    },
    /// There are more threads than queues.
    #[error("--cpus names {threads} processors, but there are only {routes} queues to forward; give at most {routes}")]
    Threads {
        /// Number of processors named.
        threads: usize,
        /// Number of queues.
        routes: usize,
    },
    /// Generated packets do not fit into a buffer.
    #[error("--size {size} exceeds the longest packet of {longest} bytes; give --longest {size}")]
    Size {
        /// The requested value.
        size: u32,
        /// The limit.
        longest: u32,
    },
    /// There is no memory for packets.
    #[error("no memory for {buffers} packet buffers; give fewer with --buffers")]
    Pool {
        /// The requested value.
        buffers: u32,
        /// The system's error.
        source: telpher_mem::MapError,
    },
    /// The device's name is invalid.
    #[error(transparent)]
    Name(#[from] telpher_device::NameError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] telpher_device::OpenError),
    /// No DMA queue can be created over its queue.
    #[error(transparent)]
    DmaQueue(#[from] telpher_vhost::DmaQueueError),
    /// The system refuses a thread or a file descriptor.
    #[error("cannot start the switch")]
    Start(#[source] io::Error),
    /// No frontend connected.
    #[error(
        "no frontend negotiated features within {seconds} s; start one at {path}, or omit --socket to see the offered \
         ones"
    )]
    NoFrontend {
        /// How long the switch waited.
        seconds: f64,
        /// The path.
        path: String,
    },
}

impl From<SwitchError> for SwitchRunError {
    /// Errors that an option of the command line can avoid name that option.
    fn from(error: SwitchError) -> Self {
        match error {
            SwitchError::NoPorts => SwitchRunError::NoPorts,
            SwitchError::TapName(name) => SwitchRunError::TapName(name),
            SwitchError::Capture { path, source } => SwitchRunError::Capture { path, source },
            SwitchError::Socket { path, source } => SwitchRunError::Socket { path, source },
            SwitchError::Threads { threads, routes } => SwitchRunError::Threads { threads, routes },
            SwitchError::Size { size, longest } => SwitchRunError::Size { size, longest },
            SwitchError::Pool { buffers, source } => SwitchRunError::Pool { buffers, source },
            SwitchError::Thread(source) => SwitchRunError::Start(source),
            other => SwitchRunError::Switch(other),
        }
    }
}

/// Returns advice for a socket that cannot be opened, unless its error has some.
fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::AlreadyExists => "",
        _ => "; give another path with --socket",
    }
}
