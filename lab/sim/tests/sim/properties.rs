//! Properties of all scenarios: a simulation ends, nothing is lost, no resource is used beyond its capacity.

use telpher_abi::Opcode;
use telpher_device::{Preset, WqMode};
use telpher_mover::{Route, Split};
use telpher_os::Random;
use telpher_sim::{
    AccessPattern, AllReduce, App, Arrivals, BUILT_IN, BufferPlacement, CacheBench, Chase, Copier, CopyBy, DigestBy,
    Exchange, ExecutedBy, Gups, Layout, Library, Limit, LineLocation, Load, Machine, Messages, Migration,
    MigrationOffload, MoverSettings, Outcome, Picos, QueueId, Scenario, Sizes, Storage, Stream, SubmitBy, Vhost, Wait,
    Workload, queue_ids,
};

/// Choices of a seeded generator.
struct Chance(Random);

impl Chance {
    fn of(seed: u64) -> Self {
        Chance(Random::new(seed))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    /// True with the probability 1 / `times`.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

fn place(chance: &mut Chance, machine: &Machine, faults: bool) -> BufferPlacement {
    BufferPlacement {
        node: usize::try_from(chance.below(machine.nodes.len() as u64)).unwrap(),
        page: chance.one(&[4096, 4096, 2 << 20, 1 << 30]),
        lines: chance.one(&[LineLocation::Memory, LineLocation::Memory, LineLocation::Llc]),
        skew: chance.one(&[0, 0, 0, 32, 7]),
        present: !(faults && chance.once_in(2)),
        footprint: chance.one(&[0, 0, 1 << 16, 64 << 20, 1 << 34]),
    }
}

fn stream(chance: &mut Chance, machine: &Machine, queue: ExecutedBy) -> Stream {
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
        0 => ExecutedBy::Cpu,
        1 => ExecutedBy::Mover(MoverSettings {
            threshold: chance.one(&[0, 4096, u64::MAX]),
            route: chance.one(&[Route::First, Route::RoundRobin, Route::LeastLoaded]),
            split: Split::NONE,
        }),
        _ => queue,
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
        through: chance.one(&[SubmitBy::Portal, SubmitBy::Portal, SubmitBy::Write]),
        core: usize::try_from(chance.below(machine.nodes.len() as u64)).unwrap(),
        walk: chance.one(&[AccessPattern::Alone, AccessPattern::Random, AccessPattern::Sequential]),
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

/// Changes what a device would refuse.
fn legal(mut stream: Stream) -> Stream {
    match stream.op {
        Opcode::Drain => stream.batch = 1,
        Opcode::DifInsert => (stream.size, stream.sizes) = (stream.size.next_multiple_of(512), Sizes::NONE),
        Opcode::CreateDelta | Opcode::ApplyDelta => {
            stream.size = stream.size.min(512 << 10);
            (stream.src.skew, stream.dst.skew) = (stream.src.skew & !7, stream.dst.skew & !7);
        }
        _ => {}
    }
    stream
}

/// The scenario of a seed.
fn scenario(seed: u64) -> Scenario {
    scenario_with(seed, |_| {})
}

/// The same with another layout of the devices.
fn scenario_with(seed: u64, change: impl FnOnce(&mut Layout)) -> Scenario {
    let mut chance = Chance::of(seed);
    let (name, _) = chance.one(BUILT_IN);
    let machine = Machine::built_in(name).unwrap();
    let mode = chance.one(&[WqMode::Dedicated, WqMode::Shared]);
    let groups = u32::try_from(chance.below(2) + 1).unwrap();
    let mut layout = Layout {
        devices: u16::try_from(chance.below(machine.devices.len().min(4) as u64) + 1).unwrap(),
        groups,
        wqs: u32::try_from(chance.below(2) + 1).unwrap(),
        engines: u32::try_from(chance.below(u64::from(4 / groups)) + 1).unwrap(),
        mode,
        wq_size: chance.one(&[None, Some(1), Some(4), Some(16)]),
        bandwidth: Default::default(),
    };
    change(&mut layout);
    let capabilities = Preset::Spr.capabilities();
    let configs = layout.configs(&capabilities);
    // A dedicated queue has one client.
    let mut queues = queue_ids(&configs);
    let mut scenario = Scenario { machine, capabilities, devices: configs, loads: Vec::new() };
    for number in 0..=chance.below(3) {
        let threads = u32::try_from(chance.below(4) + 1).unwrap();
        let take = if mode == WqMode::Shared { queues.len() } else { queues.len().min(threads as usize) };
        let own = if mode == WqMode::Shared { queues.clone() } else { queues.drain(..take).collect() };
        let mut stream = match own.first() {
            Some(queue) => legal(stream(&mut chance, &scenario.machine, ExecutedBy::Device(*queue))),
            None => stream(&mut chance, &scenario.machine, ExecutedBy::Cpu),
        };
        if matches!(stream.by, ExecutedBy::Mover(_)) {
            stream.batch = 1;
        }
        if mode == WqMode::Dedicated && matches!(stream.by, ExecutedBy::Mover(_)) {
            stream.by = ExecutedBy::Cpu;
        }
        let device = matches!(stream.by, ExecutedBy::Device(_));
        let threads =
            if device && mode == WqMode::Dedicated { threads.min(u32::try_from(own.len()).unwrap()) } else { threads };
        let queues = if device { own } else { Vec::new() };
        scenario.loads.push(Load {
            name: format!("load {number}"),
            threads,
            what: Workload::Stream(stream),
            queues,
            expect: None,
        });
        if chance.once_in(6) {
            scenario = scenario.with("chase", 1, Workload::Chase(Chase { loads: 10_000, ..Chase::of(1 << 26) }));
        }
    }
    // A generator of its own, so that the loads before are the same with and without.
    let mut chance = Chance::of(!seed);
    if chance.once_in(4) {
        let shared = if mode == WqMode::Shared { queue_ids(&scenario.devices) } else { Vec::new() };
        let app = app(&mut chance, &scenario.machine, &shared);
        scenario = scenario.with("app", 1, Workload::App(app));
    }
    scenario
}

/// A random application, by devices if there are queues for it.
fn app(chance: &mut Chance, machine: &Machine, shared: &[QueueId]) -> App {
    let queues = if chance.once_in(2) { shared.to_vec() } else { Vec::new() };
    let copier = if queues.is_empty() { Copier::Core } else { Copier::Devices(queues.clone()) };
    let bytes = chance.one(&[64, 4096, 65536, 1 << 20]);
    let some = chance.below(20) + 2;
    let few = u32::try_from(chance.below(3) + 2).unwrap();
    let node = usize::try_from(chance.below(machine.nodes.len() as u64)).unwrap();
    let [first, last] = [queues.first(), queues.last()].map(Option::<&QueueId>::copied);
    match chance.below(8) {
        0 => App::Messages(Messages { bytes, count: some, copier, ..Messages::default() }),
        1 => App::AllReduce(AllReduce { bytes, count: some, ranks: few, copier, ..AllReduce::default() }),
        2 => App::CacheBench(CacheBench {
            cores: few,
            threads: 2 * few,
            copies: some * 10,
            queues,
            ..CacheBench::default()
        }),
        3 => App::Storage(Storage {
            reads: some * 5,
            cores: few,
            digest: if queues.is_empty() { DigestBy::Core } else { DigestBy::Devices(queues) },
            ..Storage::default()
        }),
        4 => App::Vhost(Vhost {
            packets: some * 50,
            copies: first.zip(last).map_or(CopyBy::Core, |(enqueue, dequeue)| CopyBy::Device { enqueue, dequeue }),
            ..Vhost::default()
        }),
        5 => App::Exchange(Exchange {
            pages: some * 10,
            page: if chance.once_in(4) { 2 << 20 } else { 4096 },
            from: 0,
            to: node,
            queues,
            neighbours: chance.once_in(2),
            ..Exchange::promoting(few * 8)
        }),
        6 => App::Gups(Gups {
            threads: few,
            bytes: some << 21,
            fast_percent: few * 10,
            lasts: Picos::from_nanos(some * 50_000_000),
            slow: node,
            queues,
            ..Gups::default()
        }),
        _ => App::Migration(Migration {
            pages: some * 10,
            to: node,
            offload: first.map(|queue| MigrationOffload { above: few, queue }),
            ..Migration::compacting()
        }),
    }
}

/// Copies of a cache benchmark: with too few there is no 99.9th percentile.
fn copies(what: &Workload) -> u64 {
    match what {
        Workload::App(App::CacheBench(app)) => app.copies * u64::from(app.threads),
        _ => u64::MAX,
    }
}

/// The violated properties of an outcome.
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
    // Repaired descriptors are executed again, and descriptors of applications are not counted here.
    let mut repaired = false;
    for (load, of) in scenario.loads.iter().zip(&outcome.loads) {
        repaired |= matches!(load.what, Workload::App(_));
        for of in &of.measures {
            let is_told = !of.name.starts_with("latency, 99") || copies(&load.what) >= 1000;
            let is_number = of.value.is_finite() && of.value >= 0.0;
            let holds = match is_told {
                // Gets and sets are some of the copies, so they may be too few.
                _ if of.name.starts_with("latency of ") => of.value.is_nan() || is_number && copies(&load.what) >= 1000,
                true => is_number,
                false => of.value.is_nan(),
            };
            claim(holds, format!("{}: {of:?}", load.name));
        }
        let Workload::Stream(stream) = &load.what else { continue };
        let (name, timeline, threads) = (&load.name, &of.timeline, u64::from(load.threads));
        let (submissions, operations) = (stream.submissions * threads, stream.submissions * threads);
        let batch = if matches!(stream.by, ExecutedBy::Device(_)) { u64::from(stream.batch) } else { 1 };
        claim(timeline.completed == submissions, format!("{name}: {} of {submissions} completed", timeline.completed));
        claim(of.latencies.count() == submissions, format!("{name}: {} latencies", of.latencies.count()));
        claim(of.operations == operations * batch, format!("{name}: {} operations", of.operations));
        asked += if matches!(stream.by, ExecutedBy::Device(_)) { operations * batch } else { 0 };
        repaired |= !stream.src.present || !stream.dst.present || matches!(stream.by, ExecutedBy::Mover(_));
        let mean = of.latencies.mean().as_nanos_f64();
        let parts = of.mean_latency_ns();
        claim((parts - mean).abs() <= 0.002 * mean + 1.0, format!("{name}: parts {parts} of latency {mean} ns"));
        let most = outcome.took * threads;
        let cycles = of.cycles;
        claim(cycles.total() <= most, format!("{name}: cycles {cycles:?} in {most:?}"));
        claim(timeline.until <= outcome.took, format!("{name}: ended {:?} of {:?}", timeline.until, outcome.took));
        claim(of.latencies.at(1.0) <= outcome.took + Picos(of.latencies.at(1.0).0 / 500), format!("{name}: latency"));
    }
    // A refused batch counts once, whatever its members did; repaired descriptors are executed again.
    let done = outcome.descriptors;
    claim(repaired || done <= asked, format!("{done} of {asked} executed"));
    claim(
        repaired || done + outcome.refused * 31 >= asked,
        format!("{done} of {asked} executed, {} refused", outcome.refused),
    );
    wrong
}

#[test]
fn random_scenarios_end_and_add_up() {
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

/// A change of a machine, and its name.
type Change<T> = (&'static str, fn(&mut T));

/// Changes that increase a capacity or halve a cost.
const LESS: &[Change<Machine>] = &[
    ("a device's reads", |machine| machine.device.read *= 2),
    ("a device's writes", |machine| machine.device.write *= 2),
    ("a device's copies", |machine| machine.device.through *= 2),
    ("bytes on their way to a device", |machine| machine.device.in_flight *= 2),
    ("bytes on their way from a device", |machine| machine.device.writes_in_flight *= 2),
    ("descriptors ready", |machine| machine.device.ready *= 2),
    ("a descriptor's bytes", |machine| machine.device.descriptor_bytes /= 2),
    ("bubbles", |machine| machine.device.bubble.0 /= 2),
    ("lists", |machine| machine.device.list_fetch.0 /= 2),
    ("lines in part", |machine| machine.device.partial_line.0 /= 2),
    ("half lines", |machine| machine.device.half_line.0 /= 2),
    ("the path", |machine| machine.device.path.0 /= 2),
    ("engines' times", |machine| {
        for op in Opcode::ALL {
            let mut cost = *machine.device.ops.of(*op);
            for time in [&mut cost.front, &mut cost.front_per_doubling] {
                time.0 /= 2;
            }
            machine.device.ops = machine.device.ops.clone().with(*op, cost);
        }
    }),
    ("engines' latencies", |machine| {
        for op in Opcode::ALL {
            let mut cost = *machine.device.ops.of(*op);
            for time in [&mut cost.latency, &mut cost.per_doubling, &mut cost.per_page_doubling] {
                time.0 /= 2;
            }
            machine.device.ops = machine.device.ops.clone().with(*op, cost);
        }
    }),
    ("reads of memory", |machine| machine.nodes.iter_mut().for_each(|node| node.read *= 2)),
    ("writes of memory", |machine| machine.nodes.iter_mut().for_each(|node| node.write *= 2)),
    ("cores' reads", |machine| machine.nodes.iter_mut().for_each(|node| node.core_read *= 2)),
    ("links", |machine| machine.link = machine.link.map(|rate| rate * 2)),
    ("links' latency", |machine| machine.link_latency.0 /= 2),
    ("tiles", |machine| machine.memory.tile = machine.memory.tile.map(|rate| rate * 2)),
    ("no tiles", |machine| machine.memory.tile = None),
    ("waiting for memory", |machine| machine.memory.queue.0 /= 2),
    ("a core's bytes", |machine| machine.memory.core_in_flight *= 2),
    ("directories", |machine| machine.memory.directory /= 2),
    ("cache", |machine| machine.cache.llc *= 2),
    ("devices' ways", |machine| machine.cache.ddio_ways = (machine.cache.ddio_ways * 2).min(machine.cache.ways)),
    ("spilling", |machine| machine.cache.spill.0 /= 2),
    ("the cache's latency", |machine| machine.cache.llc_latency.0 /= 2),
    ("page tables", |machine| machine.translation.walk_bytes /= 2),
    ("pages known", |machine| machine.translation.known *= 2),
    ("page requests", |machine| machine.translation.page_request.0 /= 2),
    ("reports", |machine| machine.translation.report.0 /= 2),
    ("touching", |machine| machine.translation.touch.0 /= 2),
    ("submitting", |machine| {
        let submit = &mut machine.submit;
        for time in [&mut submit.movdir, &mut submit.enqcmd, &mut submit.system_call, &mut submit.transit] {
            time.0 /= 2;
        }
    }),
    ("waiting", |machine| {
        let wait = &mut machine.wait;
        for time in [
            &mut wait.poll,
            &mut wait.look,
            &mut wait.umwait_entry,
            &mut wait.umwait_exit,
            &mut wait.interrupt,
            &mut wait.wake_up,
        ] {
            time.0 /= 2;
        }
    }),
];

/// The first load of a scenario without randomness: all operations are done, and waiting threads poll. Latency under
/// load is left out: a flow that begins while a node is full keeps that latency until its end.
fn plain(mut scenario: Scenario) -> Scenario {
    scenario.loads.truncate(1);
    scenario.machine.memory.queue.0 = 0;
    if let Workload::Stream(stream) = &mut scenario.loads[0].what {
        (stream.wait, stream.arrivals) = (Wait::Poll, Arrivals::Closed);
        stream.size = stream.size.next_multiple_of(512);
        (stream.src.present, stream.dst.present) = (true, true);
    }
    scenario
}

/// Tolerance in percent for another order of the engines' turns.
const TURNS: u64 = 15;

/// True if `now` is no longer than `than`, within the tolerance.
fn no_longer(scenario: &Scenario, than: Picos, now: Picos) -> bool {
    let engines = scenario.devices.iter().flat_map(|config| &config.groups).map(|group| group.grouped_engines.len());
    let (most, parts) =
        if engines.max() == Some(1) && scenario.devices[0].groups.len() == 1 { (1, 200) } else { (TURNS, 100) };
    now.0 <= than.0 + than.0 * most / parts
}

fn describe(scenario: &Scenario) -> String {
    let Workload::Stream(stream) = &scenario.loads[0].what else { return String::new() };
    let Stream { op, size, depth, batch, submissions, by, .. } = stream;
    format!(
        "{} threads, {op:?} of {size}, {batch} at once, {depth} in flight, {submissions} in all, {by:?}",
        scenario.loads[0].threads
    )
}

#[test]
fn a_smaller_cost_never_takes_longer() {
    let mut found = Vec::new();
    for seed in seeds(100) {
        let before = plain(scenario(seed));
        let took = before.simulate().unwrap().took;
        for (what, less) in LESS {
            let mut after = before.clone();
            less(&mut after.machine);
            let then = after.simulate().unwrap().took;
            if !no_longer(&before, took, then) {
                found.push(format!("seed {seed}: {what}: {took:?}, then {then:?}: {}", describe(&before)));
            }
        }
    }
    assert!(found.is_empty(), "{} of them: {found:#?}", found.len());
}

/// A load that keeps every engine busy, on near devices with all of their entries.
fn busy(seed: u64, change: impl FnOnce(&mut Layout)) -> Scenario {
    let whole = |layout: &mut Layout| {
        layout.wq_size = None;
        change(layout);
    };
    let mut scenario = plain(scenario_with(seed, whole));
    let first = scenario.machine.devices[0];
    scenario.machine.devices.fill(first);
    if let Workload::Stream(stream) = &mut scenario.loads[0].what {
        (stream.depth, stream.submissions) = (32, 400);
    }
    scenario
}

#[test]
fn one_more_engine_or_device_is_never_slower() {
    let mut found = Vec::new();
    for seed in seeds(200) {
        let rate = |scenario: &Scenario| Some(scenario.simulate().ok()?.loads[0].operations_per_second());
        let before = busy(seed, |_| {});
        let alone = rate(&before).unwrap();
        let more: [Change<Layout>; 2] =
            [("engine", |layout| layout.engines += 1), ("device", |layout| layout.devices += 1)];
        for (what, more) in more {
            // A device has four engines, and not every machine has one more device.
            let Some(with) = rate(&busy(seed, more)) else { continue };
            if with < 0.99 * alone {
                found.push(format!(
                    "{} seed {seed}: {what}: {} {}",
                    with / alone,
                    before.machine.name,
                    describe(&before)
                ));
            }
        }
    }
    found.sort();
    assert!(found.is_empty(), "{} of them: {found:#?}", found.len());
}

/// Increases the reported resource.
fn more_of(limit: Limit, scenario: &mut Scenario) {
    let machine = &mut scenario.machine;
    let Workload::Stream(stream) = &mut scenario.loads[0].what else { return };
    match limit {
        Limit::Cpu => {
            let software = &mut machine.software;
            let mut op = *software.ops.of(stream.op);
            for time in [&mut op.call, &mut op.random, &mut op.line, &mut software.cached_line, &mut software.walk] {
                time.0 /= 2;
            }
            software.ops = software.ops.clone().with(stream.op, op);
            // Its misses are faster, too.
            let nodes = machine.nodes.iter_mut().map(|node| &mut node.latency);
            for time in nodes.chain([&mut machine.cache.llc_latency]) {
                time.0 /= 2;
            }
        }
        Limit::Submitting => {
            let library = &mut machine.library;
            for library in [&mut library.raw, &mut library.lean, &mut library.dml, &mut library.kernel] {
                for time in [&mut library.prepare, &mut library.prepare_member, &mut library.complete] {
                    time.0 /= 2;
                }
            }
            for time in [&mut machine.submit.movdir, &mut machine.submit.system_call] {
                time.0 /= 2;
            }
        }
        Limit::Enqcmd => {
            for time in [&mut machine.submit.enqcmd, &mut machine.submit.system_call, &mut machine.submit.transit] {
                time.0 /= 2;
            }
        }
        Limit::Entries => {
            let groups = scenario.devices.iter_mut().flat_map(|config| &mut config.groups);
            groups.flat_map(|group| &mut group.grouped_workqueues).for_each(|wq| wq.size *= 2);
        }
        Limit::FrontEnds => {
            let ops = &mut machine.device.ops;
            let mut cost = *ops.of(stream.op);
            (cost.front.0, cost.front_per_doubling.0) = (cost.front.0 / 2, cost.front_per_doubling.0 / 2);
            *ops = ops.clone().with(stream.op, cost);
            machine.device.list_fetch.0 /= 2;
        }
        Limit::DataPaths => {
            machine.device.partial_line.0 /= 2;
            machine.device.half_line.0 /= 2;
            machine.device.bubble.0 /= 2;
            machine.device.in_flight *= 2;
            machine.device.writes_in_flight *= 2;
        }
        Limit::Device => {
            machine.device.read *= 2;
            machine.device.write *= 2;
            machine.device.through *= 2;
        }
        Limit::Memory => {
            machine.memory.tile = machine.memory.tile.map(|rate| rate * 2);
            for node in &mut machine.nodes {
                for rate in [&mut node.read, &mut node.write, &mut node.core_read] {
                    *rate *= 2;
                }
            }
        }
        Limit::Link => machine.link = machine.link.map(|rate| rate * 2),
        Limit::Latency => stream.depth *= 2,
        _ => {}
    }
}

/// Everything that can be increased.
const ALL: [Limit; 10] = [
    Limit::Cpu,
    Limit::Submitting,
    Limit::Enqcmd,
    Limit::Entries,
    Limit::FrontEnds,
    Limit::DataPaths,
    Limit::Device,
    Limit::Memory,
    Limit::Link,
    Limit::Latency,
];

#[test]
fn relieving_the_reported_bottleneck_helps_in_random_scenarios() {
    let (mut found, mut named) = (Vec::new(), 0);
    for seed in seeds(200) {
        let mut before = plain(scenario(seed));
        let Workload::Stream(stream) = &mut before.loads[0].what else { continue };
        // Partially written lines block devices, and are not reported.
        (stream.submissions, stream.src.skew, stream.dst.skew) = (400, 0, 0);
        // Of a mover's operations only begin and end are known; one of these moves no bytes or writes a partial line.
        let unlike = [Opcode::Nop, Opcode::Drain, Opcode::CreateDelta];
        if unlike.contains(&stream.op) || matches!(stream.by, ExecutedBy::Mover(_)) {
            continue;
        }
        let outcome = before.simulate().unwrap();
        let limit = outcome.loads[0].bottleneck.as_ref().unwrap();
        named += 1;
        let gain = |limits: &[Limit]| {
            let mut after = before.clone();
            limits.iter().for_each(|limit| more_of(*limit, &mut after));
            // A device has no more entries.
            after.simulate().map_or(1.0, |after| outcome.took.as_secs_f64() / after.took.as_secs_f64())
        };
        let own = match limit.limit {
            Limit::Latency if limit.what.contains("preparing") => gain(&[Limit::Submitting]),
            Limit::Latency if limit.help.contains("queue") => gain(&[Limit::Latency, Limit::Entries]),
            limit => gain(&[limit]),
        };
        // Latency has many parts, and any of them may decrease.
        let waits = matches!(limit.limit, Limit::Latency | Limit::Entries);
        let better = ALL.into_iter().map(|other| (other, gain(&[other]))).find(|(_, gain)| !waits && *gain > own + 0.1);
        if own < 1.02 || better.is_some() {
            found.push(format!("seed {seed}: {limit}: {own:.3}, but {better:?}: {}", describe(&before)));
        }
    }
    // One in a hundred is between two bottlenecks.
    assert!(named > 50 && found.len() <= named / 100, "{} of {named}: {found:#?}", found.len());
}

/// A range of seeds; the environment may set another: `TELPHER_SEEDS=1000..2000`.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let text = std::env::var("TELPHER_SEEDS").ok();
    let range = text.as_deref().and_then(|text| text.split_once(".."));
    range.and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?)).unwrap_or(0..count)
}
