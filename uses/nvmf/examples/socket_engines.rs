//! Measures the engines of sockets against each other: 4 KiB random reads of a namespace in memory over loopback.
//!
//! `cargo run --release -p telpher-nvmf --example socket_engines -- [COMMANDS [ROUNDS]]`
//!
//! Each server has one loop, and the host has one thread, which verifies what it reads. The rounds of both engines
//! alternate; the medians of all rounds are printed: microseconds of the loop's processor time for each read, system
//! calls of the loop for each read, and reads for each send.

use std::error::Error;
use std::fs::read_to_string;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use telpher_nvmf::load::{self, End, LoadOptions, Pattern};
use telpher_nvmf::namespace::NamespaceOptions;
use telpher_nvmf::server::{Handle, Server, SocketEngine};
use telpher_nvmf::stats::LoopStats;
use telpher_nvmf::subsystem::SubsystemOptions;
use telpher_nvmf::{CpuEngine, Limits, MemoryStorage, Target};

const NQN: &str = "nqn.2026-01.org.example:disk";
const BYTES: u64 = 32 << 20;
const ENGINES: [(&str, SocketEngine); 2] = [("io_uring", SocketEngine::Uring), ("epoll", SocketEngine::Epoll)];
/// Connections, and commands of each in flight.
const CASES: [(u16, u16); 5] = [(1, 1), (1, 32), (4, 32), (8, 8), (16, 1)];

struct Serving {
    address: SocketAddr,
    handle: Handle,
    /// The kernel's number of the loop's thread.
    thread: i32,
}

impl Serving {
    fn start(engine: SocketEngine) -> Result<Serving, Box<dyn Error>> {
        let target = Target::new(Limits::default())?;
        target.add_subsystem(SubsystemOptions {
            nqn: NQN.into(),
            serial: "1".into(),
            model: "example".into(),
            hosts: None,
        })?;
        let (uuid, nguid, storage) = ([1; 16], [2; 16], Arc::new(MemoryStorage::new(BYTES)));
        let options = NamespaceOptions {
            nsid: 1,
            block_bytes: 4096,
            uuid,
            nguid,
            is_read_only: false,
            protection: None,
            storage,
        };
        target.add_namespace(NQN, options)?;
        let mut server = Server::bind(&target, &["127.0.0.1:0".parse()?], 64, Box::<CpuEngine>::default())?;
        server.use_sockets(engine)?;
        let (address, handle) = (server.addresses()?[0], server.handle());
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get());
            // An error ends the connections, and so the measurement.
            let _ = server.run();
        });
        let serving = Serving { address, handle, thread: receiver.recv()? };
        let fill = LoadOptions { fill: true, end: End::Commands(1), ..serving.options() };
        load::run(&fill)?;
        Ok(serving)
    }

    fn options(&self) -> LoadOptions {
        LoadOptions { threads: 1, ..LoadOptions::new(self.address, NQN, Pattern::RandRead4k) }
    }

    /// Nanoseconds of processor time of the loop. Source: proc(5), `schedstat`.
    fn cpu_ns(&self) -> Result<f64, Box<dyn Error>> {
        let text = read_to_string(format!("/proc/self/task/{}/schedstat", self.thread))?;
        Ok(text.split(' ').next().ok_or("schedstat is empty")?.parse()?)
    }

    fn stats(&self) -> Result<LoopStats, Box<dyn Error>> {
        Ok(self.handle.report().recv()?.stats)
    }
}

struct Measured {
    cpu_us: f64,
    calls: f64,
    reads_per_send: f64,
}

#[allow(clippy::cast_precision_loss, reason = "counts of some seconds")]
fn measure(serving: &Serving, (connections, depth): (u16, u16), commands: u64) -> Result<Measured, Box<dyn Error>> {
    let (cpu, before) = (serving.cpu_ns()?, serving.stats()?);
    let options =
        LoadOptions { connections, depth, end: End::Commands(commands / u64::from(connections)), ..serving.options() };
    let result = load::run(&options)?;
    if let Some(error) = result.errors.into_iter().next() {
        return Err(error.source.into());
    }
    let (cpu, after, reads) = (serving.cpu_ns()? - cpu, serving.stats()?, result.counts.reads as f64);
    Ok(Measured {
        cpu_us: cpu / reads / 1000.0,
        calls: (after.system_calls - before.system_calls) as f64 / reads,
        reads_per_send: reads / (after.sends - before.sends) as f64,
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let commands: u64 = arguments.next().map_or(Ok(20_000), |commands| commands.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(9), |rounds| rounds.parse())?;
    let servers = ENGINES.map(|(name, engine)| Serving::start(engine).map(|serving| (name, serving)));
    let servers = servers.into_iter().collect::<Result<Vec<_>, _>>()?;
    for case in CASES {
        let mut measured: Vec<Vec<Measured>> = servers.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for ((_, serving), measured) in servers.iter().zip(&mut measured) {
                measured.push(measure(serving, case, commands)?);
            }
        }
        println!("{} connections, {} reads in flight in each", case.0, case.1);
        for ((name, _), measured) in servers.iter().zip(&measured) {
            let cpu_us = median(measured.iter().map(|one| one.cpu_us));
            let calls = median(measured.iter().map(|one| one.calls));
            let reads_per_send = median(measured.iter().map(|one| one.reads_per_send));
            println!("  {name:8} {cpu_us:6.2} us  {calls:6.3} calls  {reads_per_send:6.1} reads for each send");
        }
    }
    Ok(())
}
