//! The speed of the simulator: descriptors simulated in a second of processor time, and the peak memory.
//!
//! ```text
//! cargo run --release -p telpher-sim --example speed [runs] [part of a workload's name]
//! ```
//!
//! Workloads are interleaved, so that other load of the computer affects all of them. The output has the median with
//! the slowest and the fastest run, and a hash of all results, which is the same on every computer and for every build.

use std::error::Error;
use std::fs;
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{BufferPlacement, Layout, Machine, Scenario, Stream, queue_ids};

/// Descriptors of one run, approximately.
const DESCRIPTORS: u64 = 1_000_000;

struct Workload {
    name: &'static str,
    devices: u16,
    engines: u32,
    mode: WqMode,
    threads: u32,
    stream: Stream,
}

fn workloads() -> Vec<Workload> {
    let copies = |size, depth, batch| Stream { depth, batch, ..Stream::of(Opcode::MemoryMove, size) };
    let of = |name, devices, engines, threads, stream| Workload {
        name,
        devices,
        engines,
        mode: WqMode::Dedicated,
        threads,
        stream,
    };
    vec![
        of("4 KiB, one engine", 1, 1, 1, copies(4096, 32, 1)),
        of("512 B, four engines", 1, 4, 1, copies(512, 32, 1)),
        of("4 KiB, batches of 32", 1, 1, 1, copies(4096, 8, 32)),
        of("4 KiB, from the other socket", 1, 1, 1, Stream { src: BufferPlacement::on(1), ..copies(4096, 32, 1) }),
        of("64 KiB, four devices", 4, 4, 4, copies(65536, 32, 1)),
        of("4 KiB, 64 threads, four devices", 4, 4, 64, copies(4096, 32, 1)),
        Workload { mode: WqMode::Shared, ..of("4 KiB, shared by 8 threads", 1, 4, 8, copies(4096, 8, 1)) },
        Workload { mode: WqMode::Shared, ..of("4 KiB, shared by 64 threads", 1, 4, 64, copies(4096, 8, 1)) },
        // The queue is full nearly always.
        Workload { mode: WqMode::Shared, ..of("64 KiB, 32 threads retry", 1, 1, 32, copies(65536, 32, 1)) },
        Workload { mode: WqMode::Shared, ..of("4 KiB, 1,000 threads retry", 1, 1, 1000, copies(4096, 8, 1)) },
    ]
}

/// Seconds of processor time of this process so far.
fn processor_time() -> Result<f64, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/schedstat")?;
    Ok(text.split_whitespace().next().ok_or("no time in /proc/self/schedstat")?.parse::<f64>()? / 1e9)
}

/// The peak memory of this process, in MiB.
fn most_memory() -> Result<f64, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM in /proc/self/status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

impl Workload {
    /// Million descriptors and million events in a second of processor time; and a hash of the results (FNV-1a, 64
    /// bits).
    fn run(&self, machine: &Machine) -> Result<([f64; 2], u64), Box<dyn Error>> {
        let Workload { devices, engines, mode, threads, .. } = *self;
        let mut scenario = Scenario {
            devices: Vec::new(),
            ..Scenario::on(machine.clone(), telpher_device::Config::single(mode, 32, 1))
        };
        scenario.devices = Layout { devices, engines, ..Layout::single(mode) }.configs(&scenario.capabilities);
        let submissions = DESCRIPTORS / u64::from(self.stream.batch) / u64::from(threads);
        let queues = queue_ids(&scenario.devices);
        let scenario = scenario.with_lanes(self.name, threads, Stream { submissions, ..self.stream }, queues);
        let begun = processor_time()?;
        let outcome = scenario.simulate()?;
        let took = processor_time()? - begun;
        let hash = format!("{outcome:?}")
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Ok(([outcome.descriptors, outcome.events].map(|count| count as f64 / took / 1e6), hash))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let runs: usize = arguments.next().map_or(Ok(5), |runs| runs.parse())?;
    let part = arguments.next().unwrap_or_default();
    let machine = Machine::built_in("spr-asplos").ok_or("no such profile")?;
    let workloads: Vec<_> = workloads().into_iter().filter(|workload| workload.name.contains(&part)).collect();
    let (mut seen, mut hashes) = (vec![Vec::new(); workloads.len()], vec![0; workloads.len()]);
    for _ in 0..runs.max(1) {
        for ((workload, seen), hash) in workloads.iter().zip(&mut seen).zip(&mut hashes) {
            let (rates, its) = workload.run(&machine)?;
            seen.push(rates);
            *hash = its;
        }
    }
    println!(
        "{:<32} {:>14} {:>15} {:>12} {:>18}",
        "million a second", "descriptors", "slowest-fastest", "events", "outcome"
    );
    for ((workload, mut seen), hash) in workloads.iter().zip(seen).zip(hashes) {
        seen.sort_by(|one, other| one[0].total_cmp(&other[0]));
        let ([slowest, _], [median, events], [fastest, _]) = (seen[0], seen[seen.len() / 2], seen[seen.len() - 1]);
        let range = format!("{slowest:.2}-{fastest:.2}");
        println!("{:<32} {median:>14.2} {range:>15} {events:>12.1}   {hash:016x}", workload.name);
    }
    println!("most memory: {:.0} MiB", most_memory()?);
    Ok(())
}
