//! Our own backend: a port, its copy mechanism, and the switch's forwarding loop on its own core.

use super::super::BenchError;
use super::guest::RING;
use crate::options::VhostTraffic;
use crate::point::Thread;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use telpher_device::{Config, ModelDevice, ModelOptions, Runner, WqMode};
use telpher_switch::End;
use telpher_switch::{Counts, Forwarder, Full, Mode, Settings, routes};
use telpher_vhost::{CopyPolicy, DmaQueue, DmaQueueStats, PacketPool, Port, PortOptions, QueueOptions, Role, Socket};

/// What makes the copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CopyBy {
    /// The forwarding thread.
    Cpu,
    /// An engine executed by the forwarding thread, for packets from a threshold on; the thread itself copies smaller
    /// ones.
    Inline(CopyPolicy),
    /// An engine with a thread on the given core, for packets from a threshold on.
    Thread(CopyPolicy, usize),
}

/// Capacity of a DMA queue in copies: both rings full of packets. Source: chosen.
const ROOM: u32 = 2 * RING as u32;
/// Entries of the work queue: all that the modelled device has. Fewer batches than this are in flight, so a batch never
/// waits for an entry. Source: SPEC §3.2, WQCAP of the first firmware.
const ENTRIES: u32 = 128;

/// A port, and the device that makes its copies.
pub(super) struct Ours {
    pub port: Arc<Port>,
    pool: PacketPool,
    dma_queue: Option<Arc<DmaQueue>>,
    /// Dropped after the port.
    _device: Option<ModelDevice>,
    socket: Option<Socket>,
}

impl Ours {
    /// Creates a port with one pair of queues. Its packets come from `pool`.
    pub(super) fn new(way: CopyBy, pool: &PacketPool) -> Result<Ours, BenchError> {
        let (device, hybrid) = match way {
            CopyBy::Cpu => (None, CopyPolicy::Cpu),
            CopyBy::Inline(hybrid) => (Some(start(Runner::Inline, None)?), hybrid),
            CopyBy::Thread(hybrid, core) => (Some(start(Runner::Threaded, Some(core))?), hybrid),
        };
        let dma_queue = match &device {
            None => None,
            Some(device) => {
                let dma_queue = DmaQueue::new(device.portal("wq0.0")?, ROOM);
                Some(Arc::new(dma_queue.map_err(|error| BenchError::Channel(error.0))?))
            }
        };
        let ring = QueueOptions { hybrid, dma_queues: dma_queue.iter().cloned().collect(), ..QueueOptions::default() };
        let port = Port::new(pool, PortOptions { rings: vec![ring], ..PortOptions::default() });
        Ok(Ours { port, pool: pool.clone(), dma_queue, _device: device, socket: None })
    }

    /// Serves the port at a socket.
    pub(super) fn serve(&mut self, path: &Path) -> Result<(), BenchError> {
        let served = Socket::serve(&self.port, path, Role::Server);
        self.socket = Some(served.map_err(|source| BenchError::Program { what: "serving a socket".into(), source })?);
        Ok(())
    }

    /// Returns the counters of the port's DMA queue, or zeros without a DMA queue.
    pub(super) fn dma_queue(&self) -> DmaQueueStats {
        self.dma_queue.as_ref().map(|dma_queue| dma_queue.stats()).unwrap_or_default()
    }

    /// Returns the bytes of packets whose copies began: those on the DMA queue, and all.
    pub(super) fn copied(&self) -> [u64; 2] {
        let stats = [0, 1].map(|ring| self.port.stats(ring));
        [stats.iter().map(|stats| stats.bytes_by_device).sum(), stats.iter().map(|stats| stats.bytes).sum()]
    }

    /// Returns the part of the bytes since `before` that the DMA queue copied; `None` without a DMA queue or without
    /// bytes.
    pub(super) fn share(&self, before: [u64; 2]) -> Option<f64> {
        let [rode, all] = self.copied();
        let (rode, all) = (rode - before[0], all - before[1]);
        (self.dma_queue.is_some() && all > 0).then(|| rode as f64 / all as f64)
    }

    /// Returns the forwarding loop over this port, the same as in `telpher vhost`.
    pub(super) fn forwarder(&self, traffic: VhostTraffic, len: u32) -> Forwarder {
        let mode = match traffic {
            VhostTraffic::B2f => Mode::TxOnly,
            VhostTraffic::F2b => Mode::RxOnly,
            VhostTraffic::Loop => Mode::Mac,
        };
        // The packets of a loop are made only once. They must not be dropped on a machine that takes cores away for
        // seconds.
        let retry_for = Duration::from_secs(60);
        let settings = Settings { mode, full: Full::Retry, retry_for, len, ..Settings::default() };
        let ends = [End::Guest(Arc::clone(&self.port))];
        Forwarder::new(&ends, &routes(&[self.port.pairs()], mode), &self.pool, settings)
    }

    /// Starts the forwarding loop on a core.
    pub(super) fn work(&self, traffic: VhostTraffic, len: u32, core: usize) -> Result<Working, BenchError> {
        let mut forwarder = self.forwarder(traffic, len);
        Working::start("bench-switch", core, move |stop| {
            forwarder.run(stop, &mut Counts::published(1).0);
        })
    }
}

/// Starts a device; its engine threads, if it has any, run on `core`.
fn start(runner: Runner, core: Option<usize>) -> Result<ModelDevice, BenchError> {
    let options = ModelOptions::default().with_config(Config::single(WqMode::Dedicated, ENTRIES, 1));
    let options = options.with_runner(runner);
    // A thread inherits the CPU affinity of the thread that starts it.
    let started = thread::scope(|scope| {
        let starter = scope
            .spawn(|| core.map_or(Ok(()), |core| telpher_os::run_on(&[core])).map(|()| ModelDevice::start(options)));
        starter.join().expect("starting a device does not panic")
    });
    let pinned = started.map_err(|source| BenchError::Program { what: "pinning an engine's thread".into(), source })?;
    pinned.map_err(|source| BenchError::Start { name: "model:spr".into(), source })
}

/// A thread that works on a core until this value is dropped.
pub(super) struct Working {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The thread, for a [`Watch`](crate::point::Watch).
    pub(super) watched: Option<Thread>,
}

impl Working {
    /// Starts `work` on `core`; it runs until its flag is set.
    pub(super) fn start(
        name: &str,
        core: usize,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> Result<Working, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let stopped = Arc::clone(&stop);
        let spawned = thread::Builder::new().name(name.into()).spawn(move || {
            let pinned = telpher_os::run_on(&[core]);
            let begun = pinned.is_ok();
            let _ = tell.send(pinned.map(|()| Thread::current()));
            if begun {
                work(&stopped);
            }
        });
        let failed = |source| BenchError::Program { what: "a thread of the bench".into(), source };
        let thread = Some(spawned.map_err(failed)?);
        let watched = told.recv().expect("it tells before it does anything that may fail").map_err(failed)?;
        Ok(Working { stop, thread, watched })
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // Relaxed: the flag publishes nothing; the join synchronises.
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "a thread of the bench panicked");
        }
    }
}
