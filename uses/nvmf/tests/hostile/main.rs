//! Hostile hosts at a real server, while a good host verifies its data: the cases of `tests/protocol` with sockets, and
//! those that only sockets have. The server answers each case, serves the good host, and gives everything back.
//!
//! One test, alone in its process: it compares the process's memory and descriptors before and after.
#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

mod attacks;
#[path = "../protocol/cases.rs"]
mod cases;
#[path = "../common/engines.rs"]
mod engines;
#[path = "../common/host.rs"]
mod host;
#[path = "../common/serving.rs"]
#[allow(dead_code, reason = "other tests use all of it")]
mod serving;
#[path = "../../../../ci/skip.rs"]
mod skip;

use attacks::Attacker;
use host::Host;
use serving::Serving;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telpher_nvmf::command::io;
use telpher_nvmf::digest::Digests;
use telpher_nvmf::initiator::{Transfer, requests};
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::server::SocketEngine;
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::{Limits, MemoryStorage, Target};
use telpher_os::Random;

/// The subsystem of the hostile hosts, and that of the good one.
const HOSTILE: &str = "nqn.2026-01.org.example:hostile";
const GOOD: &str = "nqn.2026-01.org.example:good";
/// Blocks of a namespace.
const BLOCKS: u64 = 8192;
/// Bytes by which the process may have grown: the allocator keeps some memory.
const GROWTH: u64 = 4 << 20;
/// How long connections may take to end.
const SETTLED: Duration = Duration::from_secs(60);

fn target() -> Arc<Target> {
    // Each attack has its own queue identifier, so that none depends on how fast an earlier queue ended.
    let target = Target::new(Limits { h2c_bytes: 16384, io_queues: 60_000, ..Limits::default() }).unwrap();
    for nqn in [HOSTILE, GOOD] {
        let options = SubsystemOptions { nqn: nqn.into(), serial: "1".into(), model: "test".into(), hosts: None };
        target.add_subsystem(options).unwrap();
        let storage = Arc::new(MemoryStorage::new(BLOCKS * cases::BLOCK as u64));
        let options = serving::namespace(1, storage);
        target.add_namespace(nqn, NamespaceOptions { block_bytes: cases::BLOCK as u32, ..options }).unwrap();
    }
    target
}

/// A host that writes, reads and compares until it is stopped.
struct GoodHost {
    is_stopping: Arc<AtomicBool>,
    passes: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl GoodHost {
    fn start(address: SocketAddr) -> GoodHost {
        let (is_stopping, passes) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stops, counts) = (Arc::clone(&is_stopping), Arc::clone(&passes));
        let thread = std::thread::spawn(move || {
            let digests = Digests { header: true, data: true };
            let (_admin, controller) = Host::admin(address, GOOD, digests);
            let mut queue = Host::queue(address, GOOD, digests, controller, 1);
            let mut random = Random::new(1);
            while !stops.load(Ordering::Relaxed) {
                let (first, blocks) = (random.below(BLOCKS - 256), 1 + random.below(256) as u32);
                let mut data = vec![0; blocks as usize * cases::BLOCK];
                random.fill(&mut data);
                let write = requests::blocks(io::WRITE, queue.cid(), 1, first, blocks);
                let in_capsule = data.len() <= 8192;
                let transfer = if in_capsule { Transfer::InCapsule } else { Transfer::OnRequest };
                queue.ok(write, transfer(data.clone()));
                let read = requests::blocks(io::READ, queue.cid(), 1, first, blocks);
                assert!(queue.ok(read, Transfer::ToHost(data.len() as u32)).1 == data);
                counts.fetch_add(1, Ordering::Relaxed);
            }
        });
        GoodHost { is_stopping, passes, thread }
    }

    /// Waits for one more pass: the server still serves.
    fn works(&self) {
        let before = self.passes.load(Ordering::Relaxed);
        wait_until("the good host is served", || {
            self.thread.is_finished() || self.passes.load(Ordering::Relaxed) > before
        });
        assert!(!self.thread.is_finished(), "the good host has failed");
    }

    fn stop(self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.thread.join().expect("the good host's data is right");
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + SETTLED;
    while !is_so() {
        assert!(Instant::now() < end, "not within {SETTLED:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The number of this process's open files.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}

/// The bytes of this process's memory. Source: proc(5), `statm`, in pages of 4096 bytes.
fn memory() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * 4096
}

#[test]
fn hostile_hosts_harm_neither_the_server_nor_a_good_host() {
    for engine in [SocketEngine::Epoll, SocketEngine::Uring] {
        engines::run_with(engine, attack_a_server);
    }
}

fn attack_a_server() {
    let serving = Serving::with(&target(), "127.0.0.1:0".parse().expect("an address"), engines::engine());
    let good = GoodHost::start(serving.address);
    good.works();
    let descriptors_before = descriptors();
    let mut sizes = Vec::new();
    // The allocator and lazily created tables have their final size after the first round.
    for round in 0..3 {
        for (name, attack) in attacks::ALL {
            let mut attacker = Attacker::new(serving.address);
            attack(&mut attacker);
            drop(attacker);
            good.works();
            wait_until(&format!("round {round}, {name}: all connections have ended"), || {
                descriptors() == descriptors_before && serving.target.controllers().len() == 1
            });
        }
        sizes.push(memory());
    }
    assert!(sizes[2] < sizes[0] + GROWTH, "the process grows: {sizes:?} bytes after each round");
    good.stop();
}
