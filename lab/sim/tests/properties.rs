//! What holds of every scenario, whatever is asked: it ends, nothing is lost, nothing is used more than it is there.

use std::num::NonZeroU64;
use telpher_abi::Opcode;
use telpher_device::{Preset, WqMode};
use telpher_mover::{Route, Split};
use telpher_sim::{
    Arrivals, BUILT_IN, By, Chase, Layout, Library, Lines, Load, Machine, Moves, Outcome, Place, Ps, Scenario, Sizes,
    Stream, Through, Wait, Walk, What, lanes,
};

/// Seeded chance: xorshift.
struct Chance(NonZeroU64);

impl Chance {
    fn of(seed: u64) -> Self {
        Chance(NonZeroU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).unwrap())
    }

    fn below(&mut self, end: u64) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0 = NonZeroU64::new(x).unwrap();
        (x >> 16) % end
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    /// Once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

fn place(chance: &mut Chance, machine: &Machine, faults: bool) -> Place {
    Place {
        node: usize::try_from(chance.below(machine.nodes.len() as u64)).unwrap(),
        page: chance.one(&[4096, 4096, 2 << 20, 1 << 30]),
        lines: chance.one(&[Lines::Memory, Lines::Memory, Lines::Llc]),
        skew: chance.one(&[0, 0, 0, 32, 7]),
        present: !(faults && chance.once_in(2)),
        footprint: chance.one(&[0, 0, 1 << 16, 64 << 20, 1 << 34]),
    }
}

fn stream(chance: &mut Chance, machine: &Machine, lane: By) -> Stream {
    let ops = [
        Opcode::MemoryMove,
        Opcode::MemoryMove,
        Opcode::Fill,
        Opcode::Compare,
        Opcode::ComparePattern,
        Opcode::CrcGeneration,
        Opcode::CopyCrc,
        Opcode::Dualcast,
        Opcode::CreateDelta,
        Opcode::ApplyDelta,
        Opcode::DifInsert,
        Opcode::CacheFlush,
        Opcode::Nop,
        Opcode::Drain,
    ];
    let op = chance.one(&ops);
    let faults = chance.once_in(4);
    let by = match chance.below(8) {
        0 => By::Cpu,
        1 => By::Mover(Moves {
            threshold: chance.one(&[0, 4096, u64::MAX]),
            route: chance.one(&[Route::First, Route::RoundRobin, Route::LeastLoaded]),
            split: Split::NONE,
        }),
        _ => lane,
    };
    let size = chance.one(&[8, 64, 512, 520, 4096, 65536, 1 << 20]);
    Stream {
        sizes: if chance.once_in(4) { Sizes::new(&[(64, 9), (4160, 2), (65536, 1)]).unwrap() } else { Sizes::NONE },
        depth: chance.one(&[1, 1, 2, 8, 33]),
        batch: chance.one(&[1, 1, 2, 8, 31]),
        submissions: chance.below(60),
        arrivals: match chance.below(6) {
            0 => Arrivals::Even(chance.one(&[1_000, 10_000_000])),
            1 => Arrivals::Poisson(chance.one(&[100_000, 50_000_000])),
            _ => Arrivals::Closed,
        },
        seed: chance.below(1 << 40),
        by,
        through: chance.one(&[Through::Portal, Through::Portal, Through::Write]),
        core: usize::try_from(chance.below(machine.nodes.len() as u64)).unwrap(),
        walk: chance.one(&[Walk::Alone, Walk::Random, Walk::Sequential]),
        src: place(chance, machine, faults),
        dst: place(chance, machine, faults),
        cache_control: chance.once_in(3),
        readback: chance.once_in(3),
        block_on_fault: chance.once_in(2),
        cold_descriptors: chance.once_in(4),
        wait: chance.one(&[Wait::Poll, Wait::Umwait, Wait::Interrupt, Wait::Sleep]),
        library: chance.one(&[Library::Raw, Library::Lean, Library::Dml, Library::Kernel]),
        ..Stream::of(op, size)
    }
}

/// What a seed makes of it.
fn scenario(seed: u64) -> Scenario {
    let mut chance = Chance::of(seed);
    let (name, _) = chance.one(BUILT_IN);
    let machine = Machine::built_in(name).unwrap();
    let mode = chance.one(&[WqMode::Dedicated, WqMode::Shared]);
    let groups = u32::try_from(chance.below(2) + 1).unwrap();
    let layout = Layout {
        devices: u16::try_from(chance.below(machine.devices.len().min(4) as u64) + 1).unwrap(),
        groups,
        wqs: u32::try_from(chance.below(2) + 1).unwrap(),
        engines: u32::try_from(chance.below(u64::from(4 / groups)) + 1).unwrap(),
        mode,
        wq_size: chance.one(&[None, Some(1), Some(4), Some(16)]),
    };
    let capabilities = Preset::Spr.capabilities();
    let configs = layout.configs(&capabilities);
    // A dedicated queue has one client.
    let mut queues = lanes(&configs);
    let mut scenario = Scenario { machine, capabilities, devices: configs, loads: Vec::new() };
    for number in 0..=chance.below(3) {
        let threads = u32::try_from(chance.below(4) + 1).unwrap();
        let take = if mode == WqMode::Shared { queues.len() } else { queues.len().min(threads as usize) };
        let own = if mode == WqMode::Shared { queues.clone() } else { queues.drain(..take).collect() };
        let mut stream = match own.first() {
            Some(lane) => stream(&mut chance, &scenario.machine, By::Device(*lane)),
            None => stream(&mut chance, &scenario.machine, By::Cpu),
        };
        if matches!(stream.by, By::Mover(_)) {
            stream.batch = 1;
        }
        if mode == WqMode::Dedicated && matches!(stream.by, By::Mover(_)) {
            stream.by = By::Cpu;
        }
        let device = matches!(stream.by, By::Device(_));
        let threads =
            if device && mode == WqMode::Dedicated { threads.min(u32::try_from(own.len()).unwrap()) } else { threads };
        let lanes = if device { own } else { Vec::new() };
        scenario.loads.push(Load {
            name: format!("load {number}"),
            threads,
            what: What::Stream(stream),
            lanes,
            expect: None,
        });
        if chance.once_in(6) {
            scenario = scenario.with("chase", 1, What::Chase(Chase { loads: 10_000, ..Chase::of(1 << 26) }));
        }
    }
    scenario
}

/// What is wrong with an outcome.
fn wrong(scenario: &Scenario, outcome: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut claim = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    for used in &outcome.resources {
        claim(used.share <= 1.0 + 1e-6, format!("{} is used to {}", used.what, used.share));
    }
    let mut asked = 0;
    let mut repaired = false;
    for (load, of) in scenario.loads.iter().zip(&outcome.loads) {
        let What::Stream(stream) = &load.what else { continue };
        let (name, timeline, threads) = (&load.name, &of.timeline, u64::from(load.threads));
        let (submissions, operations) = (stream.submissions * threads, stream.submissions * threads);
        let batch = if matches!(stream.by, By::Device(_)) { u64::from(stream.batch) } else { 1 };
        claim(timeline.completed == submissions, format!("{name}: {} of {submissions} completed", timeline.completed));
        claim(of.latencies.count() == submissions, format!("{name}: {} latencies", of.latencies.count()));
        claim(of.operations == operations * batch, format!("{name}: {} operations", of.operations));
        asked += if matches!(stream.by, By::Device(_)) { operations * batch } else { 0 };
        repaired |= !stream.src.present || !stream.dst.present || matches!(stream.by, By::Mover(_));
        let mean = of.latencies.mean().as_nanos_f64();
        let parts = of.mean_latency_ns();
        claim((parts - mean).abs() <= 0.002 * mean + 1.0, format!("{name}: parts {parts} of latency {mean} ns"));
        let most = outcome.took * threads;
        let cycles = of.cycles;
        claim(cycles.total() <= most, format!("{name}: cycles {cycles:?} in {most:?}"));
        claim(timeline.until <= outcome.took, format!("{name}: ended {:?} of {:?}", timeline.until, outcome.took));
        claim(of.latencies.at(1.0) <= outcome.took + Ps(of.latencies.at(1.0).0 / 500), format!("{name}: latency"));
    }
    // A refused batch counts once, whatever its members did; what was repaired is executed again.
    let done = outcome.descriptors;
    claim(repaired || done <= asked, format!("{done} of {asked} executed"));
    claim(
        repaired || done + outcome.refused * 31 >= asked,
        format!("{done} of {asked} executed, {} refused", outcome.refused),
    );
    wrong
}

#[test]
fn whatever_is_asked_it_ends_and_adds_up() {
    let mut found = Vec::new();
    for seed in seeds(400) {
        let scenario = scenario(seed);
        let outcome = match scenario.simulate() {
            Ok(outcome) => outcome,
            Err(error) => {
                found.push(format!("seed {seed}: {error}"));
                continue;
            }
        };
        found.extend(wrong(&scenario, &outcome).into_iter().map(|what| format!("seed {seed}: {what}")));
        let again = scenario.simulate().unwrap();
        if format!("{outcome:?}") != format!("{again:?}") {
            found.push(format!("seed {seed}: not the same again"));
        }
    }
    assert!(found.is_empty(), "{} of them:\n{}", found.len(), found.join("\n"));
}

/// So many seeds; more, or others, where the environment says so: `TELPHER_SEEDS=1000..2000`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let told = std::env::var("TELPHER_SEEDS").ok();
    let range = told.as_deref().and_then(|told| told.split_once(".."));
    range.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?)).unwrap_or(0..count)
}
