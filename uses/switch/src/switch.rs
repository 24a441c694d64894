//! The switch: its ports, its captures, and the threads that forward packets between the ports.

use crate::capture::Capture;
use crate::config::{PortConfig, PortKind, SwitchConfig};
use crate::endpoint::End;
use crate::error::SwitchError;
use crate::forward::{Forwarder, Mode, Settings, interface_queues, partner, routes, shares};
use crate::nic::Nic;
use crate::snapshot::{PortSnapshot, Snapshot};
use crate::stats::{Counts, PortCounts, PortStats};
use crate::tap::Tap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use telpher_metrics::Published;
use telpher_vhost::{PacketPool, PoolOptions, Port, Socket};

/// Interval at which interfaces adopt their guests' queues. Source: chosen; a driver that enables a queue takes as
/// long.
const FOLLOWED: Duration = Duration::from_millis(100);

/// A packet switch. Dropping it stops it.
#[derive(Debug)]
pub struct Switch {
    ports: Box<[SwitchPort]>,
    pool: PacketPool,
    settings: Settings,
    /// The most bytes of each packet that a capture writes.
    captured_bytes: u32,
    threads: usize,
    cpus: Vec<usize>,
    /// The counts of each forwarding thread.
    counts: Vec<Arc<Published>>,
    stop: Arc<AtomicBool>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

/// A port of a switch.
#[derive(Debug)]
pub struct SwitchPort {
    end: End,
    socket: Option<Socket>,
    name: String,
    config: PortConfig,
    capture: Option<Arc<Capture>>,
}

impl SwitchPort {
    /// The guest's port, or the interface.
    pub fn end(&self) -> &End {
        &self.end
    }

    /// The socket that serves the guest's frontend; `None` for an interface.
    pub fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// The socket's path, or the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The capture of its packets, if there is one and the switch was started.
    pub fn capture(&self) -> Option<&Arc<Capture>> {
        self.capture.as_ref()
    }
}

impl Switch {
    /// Creates the ports and serves their sockets. Packets are forwarded from [`start`](Switch::start) on.
    ///
    /// # Errors
    /// If the configuration has no ports, too many threads, generated packets that are too long, or no memory for its
    /// packets; or if a socket or an interface cannot be opened.
    pub fn new(config: SwitchConfig) -> Result<Switch, SwitchError> {
        let SwitchConfig { ports, settings, buffers, longest, captured_bytes, threads, cpus } = config;
        if ports.is_empty() {
            return Err(SwitchError::NoPorts);
        }
        if matches!(settings.mode, Mode::TxOnly | Mode::FlowGen) && settings.len > longest {
            return Err(SwitchError::Size { size: settings.len, longest });
        }
        // One byte more, with which interfaces recognise frames that are too long.
        let options = PoolOptions { buffers, longest: longest.saturating_add(1) };
        let pool = PacketPool::new(options).map_err(|source| SwitchError::Pool { buffers, source })?;
        let queues = interface_queues(&ports.iter().map(|port| port.kind.pairs()).collect::<Vec<_>>());
        let ports = ports.into_iter().zip(queues).map(|(port, queues)| open(port, queues, &pool, longest));
        let ports = ports.collect::<Result<_, _>>()?;
        let threads = threads.max(1);
        let switch = Switch {
            ports,
            pool,
            settings,
            captured_bytes,
            threads,
            cpus,
            counts: Vec::new(),
            stop: Arc::default(),
            running: Mutex::default(),
        };
        match switch.shares().len() {
            routes if routes < threads => Err(SwitchError::Threads { threads, routes }),
            _ => Ok(switch),
        }
    }

    /// Creates the captures and starts the forwarding threads. A second call does nothing.
    ///
    /// # Errors
    /// If a capture's file cannot be written or the system refuses a thread. The switch is then stopped.
    pub fn start(&mut self) -> Result<(), SwitchError> {
        if !self.counts.is_empty() {
            return Ok(());
        }
        for port in &mut self.ports {
            if let Some(path) = &port.config.capture {
                port.capture = Some(Capture::begin(path, self.captured_bytes)?);
            }
        }
        let ends: Vec<End> = self.ports.iter().map(|port| port.end.clone()).collect();
        let captures: Vec<_> = self.ports.iter().map(|port| port.capture.clone()).collect();
        let shares = self.shares();
        let (publishers, counts): (Vec<_>, _) = shares.iter().map(|_| Counts::published(ends.len())).unzip();
        self.counts = counts;
        for ((index, share), mut publisher) in shares.iter().enumerate().zip(publishers) {
            let mut forwarder = Forwarder::new(&ends, share, &self.pool, self.settings).captured(&captures);
            let stop = Arc::clone(&self.stop);
            let cpu = self.cpus.get(index).copied();
            self.spawn(format!("forward-{index}"), move || {
                if let Some(cpu) = cpu {
                    // If the system refuses the processor, the thread runs where the system puts it.
                    let _ = telpher_os::run_on(&[cpu]);
                }
                forwarder.run(&stop, &mut publisher);
            })?;
        }
        let interfaces: Vec<(Interface, Option<Arc<Port>>)> =
            (0..ends.len()).filter_map(|index| interface_and_peer(&ends, index)).collect();
        if !interfaces.is_empty() {
            let stop = Arc::clone(&self.stop);
            self.spawn("interfaces".into(), move || {
                // Relaxed: the flag publishes no other data.
                while !stop.load(Ordering::Relaxed) {
                    for (interface, port) in &interfaces {
                        let runs = |queue: usize| port.as_ref().is_some_and(|port| port.is_running(2 * queue));
                        match interface {
                            Interface::Tap(tap) => tap.follow(runs),
                            Interface::Nic(nic) => {
                                nic.watch();
                                nic.follow(runs);
                            }
                        }
                    }
                    thread::park_timeout(FOLLOWED);
                }
            })?;
        }
        Ok(())
    }

    /// Starts a thread; if the system refuses it, stops the switch.
    fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> Result<(), SwitchError> {
        match thread::Builder::new().name(name).spawn(work) {
            Ok(thread) => {
                self.running().push(thread);
                Ok(())
            }
            Err(error) => {
                // The caller gets the first error.
                let _ = self.stop();
                Err(SwitchError::Thread(error))
            }
        }
    }

    /// Stops the forwarding threads, waits for packets in flight, and completes the captures. The sockets stay open
    /// until the switch is dropped. A second call does nothing.
    ///
    /// # Errors
    /// If a capture could not be written completely.
    ///
    /// # Panics
    /// If a forwarding thread panicked.
    pub fn stop(&self) -> Result<(), SwitchError> {
        // Held until the end, so that a second caller returns after the threads have ended.
        let mut running = self.running();
        // Relaxed: joining the threads orders their counts.
        self.stop.store(true, Ordering::Relaxed);
        let mut panicked = None;
        for thread in running.drain(..) {
            thread.thread().unpark();
            panicked = thread.join().err().or(panicked);
        }
        drop(running);
        let mut ended = Ok(());
        // All captures end; the caller gets the first error.
        for capture in self.ports.iter().filter_map(|port| port.capture.as_ref()) {
            ended = ended.and(capture.end());
        }
        if let Some(panic) = panicked {
            std::panic::resume_unwind(panic);
        }
        ended
    }

    /// The ports, in the order of the configuration.
    pub fn ports(&self) -> &[SwitchPort] {
        &self.ports
    }

    /// Returns the counts so far, over all forwarding threads. They are a few turns old while the threads run, and
    /// exact after [`stop`](Switch::stop).
    pub fn counts(&self) -> Counts {
        let mut all = Counts::default();
        for counts in &self.counts {
            all += &Counts::read(counts, self.ports.len());
        }
        all.ports.resize(self.ports.len(), PortCounts::default());
        all
    }

    /// Returns the counters of a port; `None` if there is no such port.
    pub fn stats(&self, port: usize) -> Option<PortStats> {
        let SwitchPort { end, capture, .. } = self.ports.get(port)?;
        // The counts come first: a packet counted as refused was counted as submitted before.
        let counts = self.counts().ports[port];
        let (captured, not_captured) = capture.as_ref().map_or((0, 0), |capture| capture.counts());
        let connected = (0..end.queues()).any(|queue| end.is_there(queue));
        Some(PortStats { counts, refused: end.refused(), captured, not_captured, connected })
    }

    /// Returns the present state of all ports, and the counts of [`counts`](Switch::counts).
    pub fn snapshot(&self) -> Snapshot {
        let counts = self.counts();
        let port = |port: &SwitchPort| {
            PortSnapshot::new(port.name(), port.end(), port.socket().map(Socket::state), port.capture())
        };
        let ports = self.ports.iter().map(port).collect();
        Snapshot { at: Instant::now(), ticks: telpher_os::ticks(), counts, ports }
    }

    /// Returns the routes of each thread.
    fn shares(&self) -> Vec<Vec<crate::Route>> {
        let queues: Vec<usize> = self.ports.iter().map(|port| port.end.queues()).collect();
        shares(&routes(&queues, self.settings.mode), self.threads)
    }

    fn running(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.running().drain(..) {
            thread.thread().unpark();
            // A panic of the thread was printed by that thread.
            let _ = thread.join();
        }
        for capture in self.ports.iter().filter_map(|port| port.capture.as_ref()) {
            // A caller that wants the error calls `stop`.
            let _ = capture.end();
        }
    }
}

/// Opens a port; an interface gets `queues` queues.
fn open(config: PortConfig, queues: usize, pool: &PacketPool, longest: u32) -> Result<SwitchPort, SwitchError> {
    let (end, socket, name) = match &config.kind {
        PortKind::Socket { path, role, options } => {
            let port = Port::new(pool, options.clone());
            let served = Socket::serve(&port, path, *role)
                .map_err(|source| SwitchError::Socket { path: path.clone(), source })?;
            (End::Guest(port), Some(served), path.display().to_string())
        }
        PortKind::Nic { name } => {
            let nic = Nic::open(name, queues, pool, longest)?;
            let name = format!("nic {}", nic.name());
            (End::Nic(Arc::new(nic)), None, name)
        }
        PortKind::Tap { name } => {
            let tap = Tap::open(name, queues, pool, longest)?;
            let name = format!("tap {}", tap.name());
            (End::Tap(Arc::new(tap)), None, name)
        }
    };
    Ok(SwitchPort { end, socket, name, config, capture: None })
}

/// An interface that the switch looks after.
enum Interface {
    Tap(Arc<Tap>),
    Nic(Arc<Nic>),
}

/// Returns the interface at `index`, if it is one, and its peer's port, if that is a guest's. A TAP interface without
/// such a peer has nothing to follow.
fn interface_and_peer(ends: &[End], index: usize) -> Option<(Interface, Option<Arc<Port>>)> {
    let peer = match &ends[partner(index, ends.len())] {
        End::Guest(port) => Some(Arc::clone(port)),
        End::Tap(_) | End::Nic(_) => None,
    };
    match &ends[index] {
        End::Tap(tap) if peer.is_some() => Some((Interface::Tap(Arc::clone(tap)), peer)),
        End::Nic(nic) => Some((Interface::Nic(Arc::clone(nic)), peer)),
        End::Guest(_) | End::Tap(_) => None,
    }
}

#[cfg(test)]
mod tests;
