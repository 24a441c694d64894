//! Builds a target from a configuration, serves it, and ends it in order.

use crate::backend::Backends;
use crate::commands::Shared;
use crate::config::Config;
use crate::control::{Control, default_socket};
use crate::engines;
use crate::error::NvmfRunError;
use crate::log::{Level, Log};
use crate::published::Published;
use crate::statistics::Statistics;
use crate::values::{Engine, Sockets};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telpher_nvmf::file::{FileEngine, FileOptions, FilePool};
use telpher_nvmf::flush::{NotFlushed, flush_all};
use telpher_nvmf::server::{Handle, Observer, Server, SocketEngine};
use telpher_nvmf::target::Target;
use telpher_os::{Termination, spawn_unsignalled};

/// How long commands that are under way may take after a signal to stop.
pub const STOP_WITHIN: Duration = Duration::from_secs(5);
/// How long the backends may take to flush after that.
pub const FLUSH_WITHIN: Duration = Duration::from_secs(60);
/// How often other processes get new statistics to read.
const PUBLISHED_EVERY: Duration = Duration::from_secs(1);
/// How often a second signal is looked for while the server stops.
const LOOK: Duration = Duration::from_millis(20);

/// A server that listens and does not serve yet.
#[derive(Debug)]
pub struct NvmfRun {
    servers: Vec<Server>,
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    control: Control,
}

/// A server that serves.
#[derive(Debug)]
pub struct Running {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    control: Control,
}

impl NvmfRun {
    /// Opens backends, device, listeners and control socket. `print` gets the lines of the log, and remarks about
    /// what is not used.
    ///
    /// # Errors
    /// [`NvmfRunError`] for what cannot be opened.
    pub fn open(
        config: &Config,
        print: impl Fn(Level, String) + Send + Sync + 'static,
    ) -> Result<NvmfRun, NvmfRunError> {
        // An address that is in use should not cost the time to open everything else.
        let listeners: Vec<TcpListener> = config.addresses().into_iter().map(listen).collect::<Result<_, _>>()?;
        let target = Target::new(config.limits.limits())?;
        let files = FileOptions {
            engine: match config.file_engine {
                Engine::Auto => FileEngine::Auto,
                Engine::Uring => FileEngine::Uring,
                Engine::Threads => FileEngine::Threads,
            },
            threads: config.file_threads.into(),
            direct: config.file_direct,
        };
        let pool = FilePool::with_options(files, target.loops()).map_err(NvmfRunError::Start)?;
        let backends = Backends::new(pool);
        for subsystem in &config.subsystems {
            target.add_subsystem(subsystem.options())?;
            let nqn = &subsystem.nqn;
            for (nsid, namespace) in subsystem.numbered() {
                let opened = backends.open(nqn, nsid, namespace);
                let opened = opened.map_err(|source| NvmfRunError::Backend { nqn: nqn.clone(), nsid, source })?;
                if let Some(remark) = opened.remark() {
                    print(Level::Warning, format!("namespace {nsid} of {nqn}: {remark}"));
                }
                let added = backends.add(&target, nqn, opened);
                added.map_err(|source| NvmfRunError::Namespace { nqn: nqn.clone(), nsid, source })?;
            }
        }
        let loops = usize::from(config.loops);
        let engines = engines::open(&config.digests, loops, &mut |remark| print(Level::Warning, remark))?;
        let log: Arc<dyn Observer> = Arc::new(Log::new(print));
        // One loop accepts and hands the connections over. With a listening socket for each loop (SO_REUSEPORT), the
        // kernel would choose by a hash of the addresses and not by load, and a second server could take the port.
        let mut listeners = Some(listeners);
        let mut servers = Vec::with_capacity(loops);
        let sockets = match config.socket_engine {
            Sockets::Auto => SocketEngine::Auto,
            Sockets::Uring => SocketEngine::Uring,
            Sockets::Epoll => SocketEngine::Epoll,
        };
        let mut in_use = String::new();
        for engine in engines.engines {
            let own = listeners.take().unwrap_or_default();
            let most = usize::try_from(config.limits.connections).unwrap_or(usize::MAX);
            let mut server = Server::new(&target, own, most, engine).map_err(NvmfRunError::Start)?;
            in_use = server.use_sockets(sockets).map_err(NvmfRunError::Start)?.to_string();
            server.observe_by(Arc::clone(&log));
            servers.push(server);
        }
        let handles: Vec<_> = servers.iter().map(Server::handle).collect();
        servers[0].share_with(handles.iter().skip(1).cloned());
        let addresses = servers[0].addresses().map_err(NvmfRunError::Start)?;
        let changing = Mutex::new(());
        let shared =
            Arc::new(Shared { target, backends, loops: handles, rule: engines.rule, sockets: in_use, changing });
        let path = config.control_socket.clone().map_or_else(default_socket, Ok)?;
        let control = Control::serve(&path, Arc::clone(&shared))?;
        Ok(NvmfRun { servers, shared, addresses, control })
    }

    /// Serves on a thread for each loop.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start(self) -> Result<Running, NvmfRunError> {
        let mut threads = Vec::with_capacity(self.servers.len());
        for (index, mut server) in self.servers.into_iter().enumerate() {
            let started = spawn_unsignalled(&format!("nvmf-loop-{index}"), move || {
                if let Err(error) = server.run() {
                    // It cannot serve its connections any more: the server ends as by a signal.
                    eprintln!("telpher: loop {index} has failed: {error}");
                    let own = rustix::process::getpid();
                    let _ = rustix::process::kill_process(own, rustix::process::Signal::TERM);
                }
            });
            threads.push(started.map_err(NvmfRunError::Start)?);
        }
        Ok(Running { threads, shared: self.shared, addresses: self.addresses, control: self.control })
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener, NvmfRunError> {
    // The standard library sets SO_REUSEADDR: a restarted server gets the port at once.
    TcpListener::bind(address).map_err(|source| NvmfRunError::Listen { address, source })
}

impl Running {
    /// The addresses at which it listens, with the ports that the kernel chose.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The path of the control socket.
    #[must_use]
    pub fn control_socket(&self) -> &Path {
        self.control.path()
    }

    /// What computes the digests, as a sentence.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.shared.rule
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> &Arc<Target> {
        &self.shared.target
    }

    /// The statistics; `None` if a loop does not answer.
    #[must_use]
    pub fn statistics(&self) -> Option<Statistics> {
        self.shared.reports().ok().map(|reports| Statistics::of(&reports))
    }

    /// Serves until a signal arrives, and stops in order; a second signal ends that at once. `stopping` is called after
    /// the first signal.
    ///
    /// # Errors
    /// [`NvmfRunError::NotFlushed`] if a backend could not be flushed.
    pub fn run(self, signals: &Termination, stopping: impl FnOnce(&Running)) -> Result<(), NvmfRunError> {
        let published = Published::new();
        while !signals.take(PUBLISHED_EVERY) {
            // A loop that does not answer in time leaves the values of before.
            if let (Some(published), Ok(reports)) = (&published, self.shared.reports()) {
                published.store(&reports);
            }
        }
        stopping(&self);
        self.stop(|| signals.take(LOOK))
    }

    /// Stops in order: takes no more connections and commands, completes those that were accepted, closes the
    /// connections, and flushes the backends. `is_hurried` waits for a moment, and returns true to stop at once.
    ///
    /// # Errors
    /// [`NvmfRunError::NotFlushed`] if a backend could not be flushed.
    pub fn stop(self, mut is_hurried: impl FnMut() -> bool) -> Result<(), NvmfRunError> {
        let Running { threads, shared, control, .. } = self;
        Handle::finish_all(&shared.loops, STOP_WITHIN);
        let mut hurried = false;
        // A loop ends by itself at the limit; the sum is for the case that it hangs in a backend.
        let until = Instant::now() + 2 * STOP_WITHIN;
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            if !hurried && is_hurried() {
                hurried = true;
                shared.loops.iter().for_each(Handle::stop);
            }
            if hurried {
                std::thread::sleep(LOOK);
            }
        }
        drop(control);
        if hurried {
            return Err(NvmfRunError::NotFlushed("a second signal came".into()));
        }
        let target = Arc::clone(&shared.target);
        let flush = spawn_unsignalled("nvmf-flush", move || flush_all(&target, FLUSH_WITHIN));
        let flush = flush.map_err(NvmfRunError::Start)?;
        while !flush.is_finished() {
            if !is_hurried() {
                continue;
            }
            return Err(NvmfRunError::NotFlushed("a second signal came".into()));
        }
        let failed = flush.join().unwrap_or_default();
        if failed.is_empty() {
            return Ok(());
        }
        let texts = failed.iter().map(|NotFlushed { subsystem, nsid, status }| match status {
            Some(status) => format!("namespace {nsid} of {subsystem} ({status:?})"),
            None => format!("namespace {nsid} of {subsystem} (no answer)"),
        });
        Err(NvmfRunError::NotFlushed(texts.collect::<Vec<_>>().join(", ")))
    }
}
