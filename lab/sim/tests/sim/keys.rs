//! Every parameter of a profile has an effect, and no possible value panics, overflows or hangs.

use std::collections::{BTreeMap, BTreeSet};
use telpher_abi::Opcode;
use telpher_device::{Capabilities, Config, Preset, WqMode};
use telpher_mover::{Route, Split};
use telpher_sim::{
    AccessPattern, AllReduce, App, Arrivals, BUILT_IN, BufferPlacement, CacheBench, Chase, Copier, Exchange,
    ExecutedBy, Gups, Layout, Library, LineLocation, Machine, Messages, Migration, MigrationOffload, MoverSettings,
    Picos, QueueId, Scenario, Storage, Stream, SubmitBy, Vhost, Wait, Workload, queue_ids,
};

/// A number of a profile: its line and its name.
#[derive(Clone, Debug)]
struct Number {
    line: usize,
    name: String,
    value: f64,
}

/// All numbers of a profile's text.
fn numbers(text: &str) -> Vec<Number> {
    let mut section = String::new();
    let mut found = Vec::new();
    for (line, line_text) in text.lines().enumerate() {
        if line_text.starts_with('[') {
            section = line_text.trim_matches(['[', ']']).to_owned() + ".";
        } else if let Some((key, value)) = line_text.split_once(" = ")
            && let Ok(value) = value.replace('_', "").parse()
        {
            found.push(Number { line, name: format!("{section}{key}"), value });
        }
    }
    found
}

/// The text with another number in that line.
fn with(text: &str, number: &Number, value: &str) -> String {
    let line = |(at, line_text): (usize, &str)| match line_text.split_once(" = ") {
        Some((key, _)) if at == number.line => format!("{key} = {value}\n"),
        _ => format!("{line_text}\n"),
    };
    text.lines().enumerate().map(line).collect()
}

/// Every kind of number: those of the first profile, and those that only another profile sets.
fn every_number() -> Vec<(&'static str, &'static str, Number)> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for (profile, text) in BUILT_IN {
        for number in numbers(text) {
            // Cores of a socket are named in remarks only.
            if number.name == "software.cores" {
                continue;
            }
            // In the first profile each node counts separately.
            if seen.insert(number.name.clone()) || *profile == BUILT_IN[0].0 {
                all.push((*profile, *text, number));
            }
        }
    }
    all
}

const SHARED: QueueId = QueueId { device: 1, wq: 0, shared: true };

/// Scenarios that together use every part of a machine; the first device's queue is dedicated, the second's is shared.
fn probes(machine: &Machine) -> Vec<(String, Scenario)> {
    let capabilities = Preset::Spr.capabilities();
    let (last, far) = (machine.nodes.len() - 1, machine.nodes.len().min(2) - 1);
    let mut probes = Vec::new();
    let mut probe = |name: String, what: Workload| {
        let scenario = Scenario {
            machine: machine.clone(),
            capabilities,
            devices: devices(machine, &capabilities),
            loads: Vec::new(),
        };
        probes.push((name, scenario.with("it", 1, what)));
    };
    let mut stream = |name: &str, stream: Stream| probe(format!("{name} {:?}", stream.op), Workload::Stream(stream));
    let copy = |size| Stream { submissions: 20, ..Stream::of(Opcode::MemoryMove, size) };
    let many = |size| Stream { depth: 16, submissions: 60, ..copy(size) };
    let ops = Opcode::ALL.iter().filter(|op| capabilities.op_cap.contains(**op) && **op != Opcode::Batch);
    let walks = [AccessPattern::Alone, AccessPattern::Random, AccessPattern::Sequential];
    for op in ops {
        // DIF operations have whole blocks.
        let size = match op {
            Opcode::DifInsert => 512,
            Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate => 520,
            _ => 576,
        };
        stream("device", Stream { op: *op, ..copy(size) });
        stream("core", Stream { op: *op, by: ExecutedBy::Cpu, walk: AccessPattern::Random, ..copy(size) });
    }
    for (size, walk) in [64, 8192].into_iter().flat_map(|size| walks.map(|walk| (size, walk))) {
        stream("core", Stream { by: ExecutedBy::Cpu, walk, ..copy(size) });
        for op in [Opcode::MemoryMove, Opcode::Fill, Opcode::Compare, Opcode::ComparePattern, Opcode::CopyCrc] {
            stream("device", Stream { op, ..copy(size) });
        }
    }
    for library in [Library::Raw, Library::Lean, Library::Dml, Library::Kernel] {
        stream("library", Stream { library, ..copy(64) });
        stream("batches", Stream { library, batch: 64, ..many(64) });
    }
    for wait in [Wait::Umwait, Wait::Interrupt, Wait::Sleep] {
        stream("wait", Stream { wait, ..copy(1 << 20) });
    }
    for node in [far, last] {
        let (src, dst) = (BufferPlacement::on(node), BufferPlacement::on(node));
        stream("from afar", Stream { src, ..many(65536) });
        stream("to afar", Stream { dst, ..many(65536) });
        stream("by a core from afar", Stream { src, by: ExecutedBy::Cpu, ..copy(65536) });
        stream("by a core to afar", Stream { dst, by: ExecutedBy::Cpu, ..copy(65536) });
    }
    let place = BufferPlacement::on(0);
    let (cached, uneven) =
        (BufferPlacement { lines: LineLocation::Llc, ..place }, BufferPlacement { skew: 7, ..place });
    let (wide, new) = (BufferPlacement { footprint: 24 << 20, ..place }, BufferPlacement { present: false, ..place });
    stream("cached", Stream { src: cached, dst: cached, by: ExecutedBy::Cpu, ..copy(4096) });
    stream(
        "small and cached",
        Stream { src: cached, dst: cached, by: ExecutedBy::Cpu, walk: AccessPattern::Sequential, ..copy(4096) },
    );
    stream("uneven", Stream { dst: uneven, ..copy(4096) });
    stream("read back", Stream { readback: true, ..copy(4096) });
    stream("half a line", Stream { dst: BufferPlacement { skew: 32, ..place }, ..copy(4096) });
    stream("many pages", Stream { src: wide, dst: wide, ..many(65536) });
    stream("new pages", Stream { dst: new, block_on_fault: true, ..copy(4096) });
    stream("new pages, reported", Stream { dst: new, ..copy(4096) });
    stream("by write", Stream { through: SubmitBy::Write, ..copy(64) });
    stream("shared", Stream { by: ExecutedBy::Device(SHARED), ..copy(64) });
    stream("in flight", Stream { depth: 32, ..many(65536) });
    stream(
        "spilled",
        Stream { cache_control: true, dst: BufferPlacement { footprint: 1 << 34, ..place }, ..many(65536) },
    );
    stream("at a rate", Stream { arrivals: Arrivals::Poisson(1_000_000), ..many(4096) });
    for threshold in [0, 65536, u64::MAX] {
        let split = Split { above: 1 << 20, ways: 2, hybrid: true };
        let by = ExecutedBy::Mover(MoverSettings { threshold, route: Route::LeastLoaded, split });
        stream("mover", Stream { by, wait: Wait::Sleep, depth: 2, submissions: 3, ..copy(4 << 20) });
        stream("mover", Stream { by, depth: 2, ..copy(65536) });
    }
    for footprint in [1 << 20, 8 << 20, 1 << 30] {
        let chase = Chase { loads: 20_000, ..Chase::of(footprint) };
        probe(format!("chase of {footprint}"), Workload::Chase(chase));
    }
    let copier = || Copier::Devices(vec![SHARED]);
    let offload = Some(MigrationOffload { above: 1, queue: QueueId { device: 0, wq: 0, shared: false } });
    for app in [
        App::Messages(Messages { count: 1, bytes: 64 << 10, copier: copier(), ..Messages::default() }),
        App::AllReduce(AllReduce { count: 1, bytes: 64 << 10, ranks: 2, copier: copier(), ..AllReduce::default() }),
        App::CacheBench(CacheBench {
            cores: 2,
            threads: 4,
            copies: 200,
            queues: vec![SHARED],
            ..CacheBench::default()
        }),
        App::Storage(Storage { reads: 50, ..Storage::default() }),
        App::Vhost(Vhost { packets: 200, ..Vhost::default() }),
        App::Migration(Migration { pages: 200, offload, ..Migration::compacting() }),
        App::Migration(Migration { pages: 200, offload: None, ..Migration::compacting() }),
        App::Exchange(Exchange { pages: 200, ..Exchange::promoting(64) }),
        App::Gups(Gups { bytes: 4 << 20, lasts: Picos::from_nanos(400_000_000), ..Gups::default() }),
    ] {
        probe(format!("{app:?}"), Workload::App(app));
    }
    // Cores that read data written by a device, through one cache and one memory; and all devices together, within a
    // tile.
    let mut beside = probes[0].1.clone();
    beside.loads.clear();
    let mut together = Scenario { devices: shared_devices(machine, &capabilities), ..beside.clone() };
    let within = Stream { dst: BufferPlacement::on(machine.nodes.len() / 2), ..many(65536) };
    for queue in queue_ids(&together.devices) {
        together = together.with("copies", 1, Workload::Stream(Stream { by: ExecutedBy::Device(queue), ..within }));
    }
    probes.push(("together".into(), together));
    let chase = Chase { loads: 20_000, ..Chase::of(64 << 20) };
    let by_core = Stream { by: ExecutedBy::Cpu, walk: AccessPattern::Sequential, src: wide, dst: wide, ..many(65536) };
    // The core copies them backwards.
    let short = Stream { by: ExecutedBy::Cpu, walk: AccessPattern::Sequential, ..many(1024) };
    let to_cache = Stream { cache_control: true, dst: BufferPlacement { footprint: 1 << 30, ..place }, ..many(65536) };
    let beside = beside.with("reads", 2, Workload::Chase(chase)).with("cores", 8, Workload::Stream(by_core));
    let beside = beside.with("short", 1, Workload::Stream(short));
    probes.push(("beside".into(), beside.with("device", 1, Workload::Stream(to_cache))));
    probes
}

fn devices(machine: &Machine, capabilities: &Capabilities) -> Vec<Config> {
    let layout = |mode| Layout { devices: 2, engines: 4, wq_size: Some(16), ..Layout::single(mode) };
    let [dedicated, shared] = [WqMode::Dedicated, WqMode::Shared].map(|mode| layout(mode).configs(capabilities));
    let both = [dedicated[0].clone(), shared[1].clone()];
    both.into_iter().take(machine.devices.len()).collect()
}

/// At most four devices, each with one shared queue.
fn shared_devices(machine: &Machine, capabilities: &Capabilities) -> Vec<Config> {
    let all = Layout { devices: 4, ..Layout::single(WqMode::Shared) }.configs(capabilities);
    all.into_iter().take(machine.devices.len()).collect()
}

/// The outcome of a probe, without the profile's hash.
fn outcome(scenario: &Scenario) -> String {
    let mut outcome = scenario.simulate().unwrap_or_else(|error| panic!("{error}"));
    outcome.hash = 0;
    format!("{outcome:?}")
}

#[test]
fn every_number_of_a_profile_has_an_effect() {
    let mut idle = Vec::new();
    let mut known = BTreeMap::new();
    for (profile, text, number) in every_number() {
        let before: &Vec<String> = known.entry(profile).or_insert_with(|| {
            let probes = probes(&Machine::parse(profile, text).unwrap());
            probes.iter().map(|(_, probe)| outcome(probe)).collect()
        });
        let others = [number.value * 2.0, number.value / 2.0, number.value * 40.0, number.value + 1.0, 100.0];
        let machines = others.iter().filter_map(|other| {
            let text = with(text, &number, &other.to_string());
            Machine::parse(profile, &text).ok()
        });
        let differs = |machine: Machine| {
            let after = probes(&machine);
            before.iter().zip(after).any(|(before, (_, after))| *before != outcome(&after))
        };
        if !machines.into_iter().any(differs) {
            idle.push(format!("{profile}: {}", number.name));
        }
    }
    assert!(idle.is_empty(), "{idle:#?}");
}

#[test]
fn extreme_profile_values_do_not_panic_overflow_or_hang() {
    let mut found = Vec::new();
    for (profile, text, number) in every_number() {
        let parse = |value: &str| Machine::parse(profile, &with(text, &number, value));
        let mut values = vec!["0".to_owned(), "1".to_owned()];
        // Impossible values are refused with the possible range; test its limits.
        if let Err(error) = parse(&u64::MAX.to_string()) {
            let error = error.to_string();
            let (_, range) = error.split_once(" from ").unwrap_or_else(|| panic!("{error}"));
            let bounds = range.split([' ', ',']).filter(|word| word.parse::<f64>().is_ok());
            values.extend(bounds.take(2).map(str::to_owned));
        }
        values.dedup();
        for value in values {
            let Ok(machine) = parse(&value) else { continue };
            for (name, probe) in probes(&machine) {
                let done = std::panic::catch_unwind(|| probe.simulate().map(|outcome| outcome.events));
                match done {
                    Ok(Ok(events)) if events < 2_000_000 => {}
                    Ok(Ok(events)) => found.push(format!("{} = {value}: {name} takes {events} events", number.name)),
                    Ok(Err(error)) => found.push(format!("{} = {value}: {name}: {error}", number.name)),
                    Err(_) => found.push(format!("{} = {value}: {name} panics", number.name)),
                }
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
