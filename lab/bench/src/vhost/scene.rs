//! One guest and its backends: DPDK's testpmd with a device at each backend's socket, or our own guest. One backend
//! works at a time.

use super::super::BenchError;
use super::super::folder::Folder;
use super::asynchronous::Asynchronous;
use super::guest::Guest;
use super::ours::{CopyBy, Ours, Working};
use crate::options::{VhostRing, VhostTraffic};
use crate::point::{Cores, Seen, Thread, Watch};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telpher_vhost::PacketPool;
use telpher_vhost::peers::{HugePages, Memory, Testpmd, TestpmdSetup, VhostPort, Virtio, WORKER, Work};

/// A backend that forwards packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BackendKind {
    /// Our backend, with copies made by this mechanism.
    Ours(CopyBy),
    /// DPDK's testpmd with `net_vhost`.
    NetVhost,
    /// DPDK's asynchronous vhost, with its software DMA's thread on this core.
    DpdkAsync(usize),
}

/// The guest, from which rates are read.
enum Frontend {
    Testpmd(Testpmd),
    /// One guest per backend; it moves to the thread that steps it and back.
    Own(Vec<Option<Guest>>),
}

enum Backend {
    Ours(Ours),
    Testpmd(Testpmd),
    Asynchronous(Asynchronous),
}

/// A guest and its backends.
pub(super) struct Scene {
    cores: Cores,
    // Dropped in this order: users of a socket or of the huge pages before their owners.
    frontend: Frontend,
    backends: Vec<Backend>,
    /// For each backend, the core of an engine's thread, if any; the other thread on this core cannot have all of it.
    shared: Vec<Option<usize>>,
    _pages: Option<HugePages>,
    _folder: Folder,
}

/// Time until packets flow evenly. Source: chosen, some hundred rings of packets.
const SETTLE: Duration = Duration::from_millis(20);
/// Time for packets in flight to arrive.
const DRAIN: Duration = Duration::from_millis(5);
/// Buffers of each testpmd, and its memory in MiB. Source: those of the peer's published rates, in the smallest memory
/// that can hold them.
const BUFFERS: u32 = 32_768;
pub(super) const MIB: u64 = 128;

impl Scene {
    /// Starts the guest and the backends. A missing peer is an error; callers check for it first.
    pub(super) fn start(
        kinds: &[BackendKind],
        ring: VhostRing,
        own_guest: bool,
        cores: Cores,
        pool: &PacketPool,
    ) -> Result<Scene, BenchError> {
        let folder = Folder::new()?;
        let sockets: Vec<PathBuf> = (0..kinds.len()).map(|number| folder.file(&format!("socket{number}"))).collect();
        let testpmds =
            kinds.iter().filter(|kind| !matches!(kind, BackendKind::Ours(_))).count() as u64 + u64::from(!own_guest);
        let pages = if testpmds > 0 { Some(HugePages::reserve(testpmds * MIB / 2)?) } else { None };
        let mut backends = Vec::new();
        for (kind, socket) in kinds.iter().zip(&sockets) {
            backends.push(match kind {
                BackendKind::Ours(way) => {
                    let mut ours = Ours::new(*way, pool)?;
                    if !own_guest {
                        ours.serve(socket)?;
                    }
                    Backend::Ours(ours)
                }
                BackendKind::NetVhost => {
                    let port = VhostPort { socket: socket.clone(), queues: 1, client: false };
                    Backend::Testpmd(Testpmd::backend(&seat("net-vhost", cores.backend, folder.path()), &[port])?)
                }
                BackendKind::DpdkAsync(dma) => {
                    Backend::Asynchronous(Asynchronous::start(folder.path(), socket, None, cores.backend, *dma)?)
                }
            });
        }
        let frontend = if own_guest {
            let guests = backends.iter().map(|backend| match backend {
                Backend::Ours(ours) => Guest::connect(&ours.port, virtio(ring).packed).map(Some),
                _ => Err(BenchError::NotHere("our own guest has no socket; DPDK's backends need testpmd".into())),
            });
            Frontend::Own(guests.collect::<Result<_, _>>()?)
        } else {
            let sockets: Vec<&Path> = sockets.iter().map(PathBuf::as_path).collect();
            Frontend::Testpmd(Testpmd::guest(&seat("guest", cores.guest, folder.path()), &virtio(ring), &sockets)?)
        };
        let shared = kinds.iter().map(|kind| match kind {
            BackendKind::Ours(CopyBy::Thread(_, core)) | BackendKind::DpdkAsync(core) => Some(*core),
            _ => None,
        });
        Ok(Scene { cores, frontend, backends, shared: shared.collect(), _pages: pages, _folder: folder })
    }

    /// Returns the rate of one backend, in million packets per second as the guest counts them, over about `time`.
    pub(super) fn rate(
        &mut self,
        backend: usize,
        traffic: VhostTraffic,
        len: u32,
        time: Duration,
    ) -> Result<Seen, BenchError> {
        match &mut self.frontend {
            Frontend::Own(guests) => {
                let Backend::Ours(ours) = &self.backends[backend] else { unreachable!("checked when it started") };
                own_rate(ours, &mut guests[backend], (self.cores, self.shared[backend]), (traffic, len), time)
            }
            Frontend::Testpmd(guest) => {
                guest.command(&format!("set portlist {backend}"))?;
                let side = &mut self.backends[backend];
                // Packets that an earlier point left in flight, perhaps of another length, are removed first.
                let working = side.work(Work::Sink, self.cores)?;
                guest.work(Work::Sink)?;
                std::thread::sleep(DRAIN);
                drop(working);
                let (theirs, its) = match traffic {
                    VhostTraffic::B2f => (Work::Sink, Work::Source(len)),
                    VhostTraffic::F2b => (Work::Source(len), Work::Sink),
                    VhostTraffic::Loop => (Work::Begin(len), Work::Return),
                };
                let working = side.work(its, self.cores)?;
                guest.work(theirs)?;
                std::thread::sleep(SETTLE);
                let guests = workers(guest.pid())?;
                let threads = watched(side.threads(working.as_ref())?, guests, self.cores, self.shared[backend]);
                let show = format!("show port stats {backend}");
                guest.command(&show)?;
                let copied = side.copied();
                let watch = Watch::begin(&threads, self.cores.all());
                std::thread::sleep(time);
                let counts = watch.end();
                let shown = guest.command(&show)?;
                let share = side.share(copied);
                drop(working);
                side.rest()?;
                guest.rest()?;
                let name = if traffic == VhostTraffic::F2b { "Tx-pps:" } else { "Rx-pps:" };
                Ok(Seen { value: per_second(&shown, name)? / 1e6, share, counts })
            }
        }
    }
}

impl Backend {
    fn work(&mut self, work: Work, cores: Cores) -> Result<Option<Working>, BenchError> {
        match self {
            Backend::Ours(ours) => {
                let (traffic, len) = match work {
                    Work::Source(len) => (VhostTraffic::B2f, len),
                    Work::Return => (VhostTraffic::Loop, 64),
                    _ => (VhostTraffic::F2b, 64),
                };
                ours.work(traffic, len, cores.backend).map(Some)
            }
            Backend::Testpmd(testpmd) => Ok(testpmd.work(work).map(|()| None)?),
            Backend::Asynchronous(peer) => peer.work(work).map(|()| None),
        }
    }

    fn rest(&mut self) -> Result<(), BenchError> {
        match self {
            Backend::Ours(_) => Ok(()),
            Backend::Testpmd(testpmd) => Ok(testpmd.rest()?),
            Backend::Asynchronous(peer) => peer.rest(),
        }
    }

    /// Returns the forwarding threads.
    fn threads(&self, working: Option<&Working>) -> Result<Vec<Thread>, BenchError> {
        Ok(match self {
            Backend::Ours(_) => working.and_then(|working| working.watched.clone()).into_iter().collect(),
            Backend::Testpmd(testpmd) => workers(testpmd.pid())?,
            Backend::Asynchronous(peer) => peer.threads(),
        })
    }

    /// See [`Ours::copied`].
    fn copied(&self) -> [u64; 2] {
        if let Backend::Ours(ours) = self { ours.copied() } else { [0; 2] }
    }

    /// See [`Ours::share`].
    fn share(&self, before: [u64; 2]) -> Option<f64> {
        if let Backend::Ours(ours) = self { ours.share(before) } else { None }
    }
}

/// Returns the polling threads of a testpmd. Without them a point is invalid, because their CPU time is unknown.
fn workers(pid: u32) -> Result<Vec<Thread>, BenchError> {
    let found = Thread::of(pid, WORKER);
    let why = || format!("testpmd has no thread {WORKER:?} here, so it is unknown whether it had its core");
    if found.is_empty() { Err(BenchError::NotHere(why())) } else { Ok(found) }
}

/// Returns the threads that must have their cores: not a thread that shares its core with an engine.
fn watched(switch: Vec<Thread>, guest: Vec<Thread>, cores: Cores, shared: Option<usize>) -> Vec<Thread> {
    let of = |threads: Vec<Thread>, core| if shared == Some(core) { Vec::new() } else { threads };
    [of(switch, cores.backend), of(guest, cores.guest)].concat()
}

/// Measures a rate with our own guest on its own thread.
fn own_rate(
    ours: &Ours,
    guest: &mut Option<Guest>,
    (cores, shared_core): (Cores, Option<usize>),
    (traffic, len): (VhostTraffic, u32),
    time: Duration,
) -> Result<Seen, BenchError> {
    let mut driver = guest.take().expect("given back after every rate");
    let working = ours.work(traffic, len, cores.backend)?;
    let (packets, back) = (Arc::new(AtomicU64::new(0)), std::sync::mpsc::channel());
    let (shared, give) = (Arc::clone(&packets), back.0);
    let driving = Working::start("bench-guest", cores.guest, move |stop| {
        driver.begin(traffic, len);
        let mut count = 0;
        // Relaxed, as below: a counter that publishes nothing.
        while !stop.load(Ordering::Relaxed) {
            count += driver.step(traffic, len);
            shared.store(count, Ordering::Relaxed);
        }
        // The circulating packets come back, so that the next point begins with an empty ring.
        let end = Instant::now() + DRAIN;
        while Instant::now() < end {
            driver.sent();
            driver.take_in(|_, _| false);
        }
        let _ = give.send(driver);
    })?;
    std::thread::sleep(SETTLE);
    let [switch, guests] = [&working, &driving].map(|one| one.watched.clone().into_iter().collect());
    let threads = watched(switch, guests, cores, shared_core);
    let watch = Watch::begin(&threads, cores.all());
    let (begun, before, copied) = (Instant::now(), packets.load(Ordering::Relaxed), ours.copied());
    std::thread::sleep(time);
    let (took, after, share) = (begun.elapsed(), packets.load(Ordering::Relaxed), ours.share(copied));
    let counts = watch.end();
    drop(driving);
    drop(working);
    *guest = back.1.try_recv().ok();
    Ok(Seen { value: (after - before) as f64 / took.as_secs_f64() / 1e6, share, counts })
}

/// Reads a rate since the last query. Source: "Testpmd Application User Guide", `show port stats`.
fn per_second(shown: &str, name: &str) -> Result<f64, BenchError> {
    let number = shown.split_once(name).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| BenchError::NotHere(format!("testpmd shows no {name} here: {shown}")))
}

fn seat<'a>(name: &'a str, cpu: usize, folder: &'a Path) -> TestpmdSetup<'a> {
    TestpmdSetup { memory: Memory::Huge, mib: MIB, buffers: BUFFERS, ..TestpmdSetup::new(name, cpu, folder) }
}

/// Returns the virtio device for a `--ring` value.
pub(super) fn virtio(ring: VhostRing) -> Virtio {
    match ring {
        VhostRing::Split => Virtio::SPLIT,
        VhostRing::Packed => Virtio::PACKED,
        VhostRing::SplitInorder => Virtio { in_order: true, ..Virtio::SPLIT },
        VhostRing::PackedInorder => Virtio { in_order: true, mergeable: false, ..Virtio::PACKED },
        VhostRing::SplitVec => Virtio { mergeable: false, vectorised: true, ..Virtio::SPLIT },
        VhostRing::PackedVec => Virtio { in_order: true, mergeable: false, vectorised: true, ..Virtio::PACKED },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_from_testpmd_s_output() {
        let shown =
            "  Throughput (since last show)\n  Rx-pps:     21719348          Rx-bps:  11120306472\n  Tx-pps:  7";
        assert_eq!(per_second(shown, "Rx-pps:").unwrap(), 21_719_348.0);
        assert_eq!(per_second(shown, "Tx-pps:").unwrap(), 7.0);
        assert!(per_second("nothing", "Rx-pps:").is_err());
    }
}
