//! An engine with its own core: the switch and the guest's driver take turns on the other core, in one thread.
//!
//! So no thread on the two cores waits for another's turn. Our switch has our own guest; DPDK's has DPDK's guest,
//! `net_virtio_user`.

use super::super::BenchError;
use super::super::folder::Folder;
use super::asynchronous::Asynchronous;
use super::guest::Guest;
use super::ours::{CopyBy, Ours, Working};
use super::scene::{MIB, virtio};
use crate::options::{VhostRing, VhostTraffic};
use crate::point::{Cores, Seen, Watch};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use telpher_vhost::PacketPool;
use telpher_vhost::peers::{HugePages, Work};

/// A switch and its guest on one thread.
pub(super) enum Alone {
    /// Our switch and our guest.
    Ours(Box<(Ours, Option<Guest>)>),
    /// DPDK's switch and guest.
    Dpdk {
        /// The process with both.
        peer: Asynchronous,
        /// Freed after the process.
        _pages: HugePages,
        /// The folder of its socket.
        _folder: Folder,
    },
}

/// Time until packets flow evenly, and until the packets in flight have come back.
const SETTLE: Duration = Duration::from_millis(20);

impl Alone {
    /// Starts our switch, with copies made by `way`.
    pub(super) fn ours(way: CopyBy, ring: VhostRing, pool: &PacketPool) -> Result<Alone, BenchError> {
        let ours = Ours::new(way, pool)?;
        let guest = Guest::connect(&ours.port, virtio(ring).packed)?;
        Ok(Alone::Ours(Box::new((ours, Some(guest)))))
    }

    /// Starts DPDK's switch, with its DMA thread on the second core.
    pub(super) fn dpdk(ring: VhostRing, cores: Cores) -> Result<Alone, BenchError> {
        let folder = Folder::new()?;
        // The packets of both sides are in one process.
        let pages = HugePages::reserve(MIB)?;
        let socket = folder.file("socket");
        let device = virtio(ring).arguments(&socket);
        let peer = Asynchronous::start(folder.path(), &socket, Some(&device), cores.backend, cores.guest)?;
        Ok(Alone::Dpdk { peer, _pages: pages, _folder: folder })
    }

    /// Returns million packets per second in the guest's direction.
    pub(super) fn rate(
        &mut self,
        traffic: VhostTraffic,
        len: u32,
        time: Duration,
        cores: Cores,
    ) -> Result<Seen, BenchError> {
        match self {
            Alone::Ours(ours) => {
                let (ours, guest) = &mut **ours;
                our_rate(ours, guest, (traffic, len), time, cores)
            }
            Alone::Dpdk { peer, .. } => {
                peer.go(match traffic {
                    VhostTraffic::B2f => Work::Source(len),
                    VhostTraffic::F2b => Work::Numbered(len),
                    VhostTraffic::Loop => Work::Begin(len),
                })?;
                std::thread::sleep(SETTLE);
                let watch = Watch::begin(&peer.threads(), cores.all());
                let before = peer.count()?;
                std::thread::sleep(time);
                let after = peer.count()?;
                let counts = watch.end();
                // Removes the packets that circulate.
                peer.go(Work::Sink)?;
                std::thread::sleep(SETTLE);
                peer.rest()?;
                let value = 1e3 * (after.0 - before.0) / (after.1 - before.1);
                Ok(Seen { value, share: None, counts })
            }
        }
    }
}

fn our_rate(
    ours: &Ours,
    guest: &mut Option<Guest>,
    (traffic, len): (VhostTraffic, u32),
    time: Duration,
    cores: Cores,
) -> Result<Seen, BenchError> {
    let mut driver = guest.take().expect("given back after every rate");
    let mut forwarder = ours.forwarder(traffic, len);
    let packets = Arc::new(AtomicU64::new(0));
    let (shared, (give, back)) = (Arc::clone(&packets), mpsc::channel());
    let working = Working::start("bench-alone", cores.backend, move |stop| {
        driver.begin(traffic, len);
        let mut count = 0;
        // Relaxed, as below: a counter that publishes nothing.
        while !stop.load(Ordering::Relaxed) {
            forwarder.turn();
            count += driver.step(traffic, len);
            shared.store(count, Ordering::Relaxed);
        }
        let end = Instant::now() + SETTLE;
        while Instant::now() < end {
            forwarder.turn();
            driver.sent();
            driver.take_in(|_, _| false);
        }
        let _ = give.send(driver);
    })?;
    std::thread::sleep(SETTLE);
    let watch = Watch::begin(working.watched.as_slice(), cores.all());
    let (begun, before, copied) = (Instant::now(), packets.load(Ordering::Relaxed), ours.copied());
    std::thread::sleep(time);
    let (took, after, share) = (begun.elapsed(), packets.load(Ordering::Relaxed), ours.share(copied));
    let counts = watch.end();
    drop(working);
    *guest = back.try_recv().ok();
    Ok(Seen { value: (after - before) as f64 / took.as_secs_f64() / 1e6, share, counts })
}
