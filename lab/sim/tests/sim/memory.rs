//! Memory and the last-level cache: the mechanisms of `docs/memory.md` and `docs/cache.md` against formulas and orders.

use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{
    AccessPattern, BufferPlacement, Chase, ExecutedBy, LineLocation, Machine, Outcome, QueueId, Resource, Scenario,
    Stream, Workload,
};

fn machine(name: &str) -> Machine {
    Machine::built_in(name).unwrap()
}

fn with_devices(machine: Machine, devices: usize) -> Scenario {
    let mut scenario = Scenario::on(machine, Config::single(WqMode::Dedicated, 128, 4));
    scenario.devices = vec![scenario.devices[0].clone(); devices];
    scenario
}

fn on_device(device: u16, stream: Stream) -> Workload {
    Workload::Stream(Stream { by: ExecutedBy::Device(QueueId { device, wq: 0, shared: false }), ..stream })
}

/// GB/s of copies by several devices with the same load.
fn rate(machine: Machine, devices: &[u16], stream: Stream) -> f64 {
    let mut scenario = with_devices(machine, usize::from(devices.iter().max().unwrap() + 1));
    for device in devices {
        scenario = scenario.with("copies", 1, on_device(*device, stream));
    }
    let outcome = scenario.simulate().unwrap();
    outcome.loads.iter().map(|load| load.bytes).sum::<u64>() as f64 / outcome.took.as_secs_f64() / 1e9
}

fn one_by_one(src: usize, dst: usize, size: u32) -> Stream {
    Stream {
        src: BufferPlacement::on(src),
        dst: BufferPlacement::on(dst),
        submissions: 100,
        ..Stream::of(Opcode::MemoryMove, size)
    }
}

fn deep(src: usize, dst: usize, size: u32) -> Stream {
    Stream { depth: 32, submissions: 300, ..one_by_one(src, dst, size) }
}

#[test]
fn another_socket_adds_its_latency_once_for_reads_and_once_for_writes() {
    let nanos = |src, dst, size: u32| f64::from(size) / rate(machine("spr-asplos"), &[0], one_by_one(src, dst, size));
    for size in [64, 4096, 65536, 1 << 20] {
        let near = nanos(0, 0, size);
        for ((src, dst), links) in [((1, 0), 1.0), ((0, 1), 1.0), ((1, 1), 2.0)] {
            let farther = nanos(src, dst, size) - near;
            assert!((farther - 90.0 * links).abs() < 2.0, "{size} B from {src} to {dst}: {farther} ns longer");
        }
    }
    assert!(nanos(1, 0, 1 << 20) / nanos(0, 0, 1 << 20) < 1.005, "negligible for a large copy");
}

#[test]
fn bytes_in_flight_over_latency_is_a_limit() {
    let with = |in_flight| {
        let mut machine = machine("spr-asplos");
        machine.device.in_flight = in_flight;
        rate(machine, &[0], deep(1, 0, 1 << 20))
    };
    // From the other socket: 125 ns, 90 of the link, 75 of the device's own path.
    let formula = 6144.0 / 290.0;
    let deviation = with(6144) / formula - 1.0;
    assert!(deviation.abs() < 0.02, "{:.1} % from {formula:.1} GB/s", deviation * 100.0);
    assert!(with(16384) > 31.0);
}

#[test]
fn two_nodes_carry_more_than_one_if_memory_is_the_limit() {
    let gain = |devices: &[u16]| {
        let of = |dst| rate(machine("spr-asplos"), devices, deep(0, dst, 65536));
        of(1) / of(0)
    };
    assert!((gain(&[0]) - 1.0).abs() < 0.003, "one device is its own limit: {}", gain(&[0]));
    let four = gain(&[0, 1, 2, 3]);
    assert!((1.01..1.15).contains(&four), "four share channels for reads and writes: {four}");
}

#[test]
fn memory_with_slow_writes_is_better_as_source() {
    const CXL: usize = 2;
    for size in [64, 4096, 65536, 1 << 20] {
        let of = |src, dst| rate(machine("spr-asplos"), &[0], one_by_one(src, dst, size));
        let (near, from, to, within) = (of(0, 0), of(CXL, 0), of(0, CXL), of(CXL, CXL));
        assert!(near > from && from > to && to > within, "{size} B: {near} > {from} > {to} > {within} GB/s");
    }
    // Reads and writes take turns: 18 and 12 GB/s make 7.2.
    let within = rate(machine("spr-asplos"), &[0], deep(CXL, CXL, 1 << 20));
    assert!((within / 7.2 - 1.0).abs() < 0.02, "{within} GB/s");
}

#[test]
fn devices_beyond_the_channels_gain_nothing_and_far_ones_cost() {
    let of = |dst, devices: &[u16]| {
        let gib = rate(machine("xeon-max-9468"), devices, Stream { submissions: 60, ..deep(0, dst, 1 << 20) });
        gib * 1e9 / f64::from(1 << 30)
    };
    let (near, far) = ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]);
    let (one, two, four, eight) = (of(11, &near[..1]), of(11, &near[..2]), of(11, &near), of(11, &far));
    assert!((two / one - 2.0).abs() < 0.02, "{one} and {two} GiB/s");
    assert!((four / 64.0 - 1.0).abs() < 0.02, "the node's channels: {four} GiB/s");
    assert!(
        (0.95..0.999).contains(&(eight / four)),
        "bytes that cross sockets cost the home node more: {eight} of {four} GiB/s"
    );
    assert!((of(8, &near[..1]) / one - 1.0).abs() < 0.01, "one device is its own limit");
    assert!(of(8, &near[..2]) < 0.99 * two, "reads and writes within one tile share its path");
    assert!((0.95..0.999).contains(&(of(8, &far) / of(8, &near))), "and far devices use more of it");
}

#[test]
fn cores_of_a_busy_node_are_limited_by_bytes_in_flight() {
    let machine = machine("xeon-max-9468");
    let (nodes, costs) = (&machine.nodes, &machine.memory);
    for (dst, link) in [(8, 0.0), (15, machine.link_latency.as_nanos_f64())] {
        let copies = Stream {
            by: ExecutedBy::Cpu,
            walk: AccessPattern::Sequential,
            submissions: 200,
            ..one_by_one(0, dst, 1 << 18)
        };
        let scenario = with_devices(machine.clone(), 1).with("copies", 12, Workload::Stream(copies));
        let outcome = scenario.simulate().unwrap();
        let seen = outcome.loads[0].bytes as f64 / outcome.took.as_nanos_f64();
        // Each line is read from node 0 and from the other before it is written; twelve cores, 48 lines each; solved by
        // bisection.
        let idle = (nodes[0].latency + nodes[dst].latency).as_nanos_f64() + link;
        let queue = |used: f64| costs.queue.as_nanos_f64() * used / (1.0 - used);
        let other = |used: f64| {
            used * nodes[0].core_read as f64 * (1.0 / nodes[dst].core_read as f64 + 1.0 / nodes[dst].write as f64)
        };
        let (mut low, mut high) = (0.5, 0.999);
        for _ in 0..40 {
            let used = (low + high) / 2.0;
            let little = 12.0 * costs.core_in_flight as f64 / (idle + queue(used) + queue(other(used)));
            if little > used * nodes[0].core_read as f64 / 1e9 { low = used } else { high = used }
        }
        let formula = low * nodes[0].core_read as f64 / 1e9;
        assert!((seen / formula - 1.0).abs() < 0.02, "to node {dst}: {seen} GB/s, by formula {formula}");
    }
}

#[test]
fn a_tile_reports_its_utilization() {
    let busy = |dst| {
        let mut scenario = with_devices(machine("xeon-max-9468"), 2);
        for device in [0, 1] {
            scenario =
                scenario.with("copies", 1, on_device(device, Stream { submissions: 60, ..deep(0, dst, 1 << 20) }));
        }
        let outcome = scenario.simulate().unwrap();
        [0, 3].map(|tile| outcome.share(Resource::Tile(tile)))
    };
    let (within, between) = (busy(8), busy(11));
    assert!(within[0] > 0.95 && within[1] == 0.0, "{within:?}");
    assert!((between[0] - between[1]).abs() < 0.01 && (0.4..0.6).contains(&between[0]), "{between:?}");
}

fn cached(size: u32) -> Stream {
    Stream { cache_control: true, ..deep(0, 0, size) }
}

#[test]
fn device_writes_spill_when_they_exceed_their_ways() {
    let room = machine("spr-asplos").cache.ddio();
    for devices in 1..=4u16 {
        let all: Vec<u16> = (0..devices).collect();
        for size in [65536, 131_072, 262_144, 524_288] {
            let fits = u64::from(devices) * u64::from(size) * 32 <= room;
            let each = rate(machine("spr-asplos"), &all, cached(size)) / f64::from(devices);
            assert_eq!(each > 30.0, fits, "{devices} devices, {size} B: {each} GB/s each");
        }
    }
    // Without the hint nothing is written to the cache: only the channels are a limit.
    assert!(rate(machine("spr-asplos"), &[0, 1, 2, 3], deep(0, 0, 524_288)) > 120.0);
}

#[test]
fn a_spilled_write_waits_for_the_evicted_line() {
    // Rate of each device by Little's law, with the queue that all together cause at the node: solved by hand.
    let machine = machine("spr-asplos");
    let idle = machine.nodes[0].write_latency + machine.device.path + machine.cache.spill;
    for devices in [3u16, 4] {
        let mut each: f64 = 20.0;
        for _ in 0..50 {
            let used = 2.0 * f64::from(devices) * each / 245.0;
            let time = idle.as_nanos_f64() + machine.memory.queue.as_nanos_f64() * used / (1.0 - used);
            each = machine.device.writes_in_flight as f64 / time;
        }
        let all: Vec<u16> = (0..devices).collect();
        let deviation = rate(machine.clone(), &all, cached(1 << 20)) / (f64::from(devices) * each) - 1.0;
        assert!(deviation.abs() < 0.02, "{devices} devices: {:.1} %", deviation * 100.0);
    }
}

#[test]
fn more_ways_for_devices_never_make_copies_slower() {
    let with = |ways| {
        let mut machine = machine("spr-asplos");
        machine.cache.ddio_ways = ways;
        rate(machine, &[0, 1, 2, 3], Stream { submissions: 150, ..cached(262_144) })
    };
    let rates = [1, 2, 4, 6, 8, 15].map(with);
    assert!(rates.is_sorted_by(|few, many| *many > few * 0.999), "{rates:?}");
    assert!(rates[5] > 1.3 * rates[0]);
}

#[test]
fn a_cached_source_is_nearer_and_uses_no_channel() {
    let of = |lines| {
        let src = BufferPlacement { lines, ..BufferPlacement::on(0) };
        let scenario = with_devices(machine("spr-asplos"), 1);
        let stream = Stream { src, op: Opcode::ComparePattern, ..one_by_one(0, 0, 4096) };
        let outcome = scenario.with("compares", 1, on_device(0, stream)).simulate().unwrap();
        (outcome.loads[0].mean_latency_ns(), outcome.share(Resource::Node(0)))
    };
    let ((far, used), (near, unused)) = (of(LineLocation::Memory), of(LineLocation::Llc));
    assert!((far - near - 55.0).abs() < 1.0, "125 against 70 ns: {far} and {near} ns");
    assert!(used > 0.0 && unused == 0.0);
}

const SET: u64 = 4 << 20;

/// Eight chases in 4 MiB each, beside other loads.
fn beside(others: Vec<(u32, Workload)>) -> Outcome {
    let chase = Chase { loads: 300_000, ..Chase::of(SET) };
    let mut scenario = with_devices(machine("spr-asplos"), 4).with("chases", 8, Workload::Chase(chase));
    for (threads, what) in others {
        scenario = scenario.with("others", threads, what);
    }
    scenario.simulate().unwrap()
}

fn nanos(outcome: &Outcome) -> f64 {
    outcome.loads[0].measures[0].value
}

fn streaming(submissions: u64) -> Stream {
    let place = BufferPlacement { footprint: 1 << 30, ..BufferPlacement::on(0) };
    Stream { src: place, dst: place, submissions, ..Stream::of(Opcode::MemoryMove, 4096) }
}

#[test]
fn a_single_chase_reads_from_its_caches() {
    // Half of the set is in the second-level cache: 4.5 ns; the rest in the last: 70.
    let alone = nanos(&beside(vec![]));
    assert!((alone / 37.25 - 1.0).abs() < 0.01, "{alone} ns");
}

#[test]
fn copies_by_cores_evict_a_chase_as_the_fluid_model_says() {
    let copies = Stream { by: ExecutedBy::Cpu, walk: AccessPattern::Random, ..streaming(40_000) };
    let outcome = beside(vec![(4, Workload::Stream(copies))]);
    assert!(
        outcome.loads[1].elapsed.as_nanos_f64() > 300_000.0 * nanos(&outcome),
        "they copy during the whole measurement"
    );
    let (seen, alone) = (nanos(&outcome), nanos(&beside(vec![])));
    // The part h of the lines that left the second-level cache is in the last: touch rate against eviction rate. The
    // lines that the copies read are not inserted.
    let put_in = outcome.loads[1].gigabytes_per_second();
    let driven_out = put_in * 1e9 / (105.0 * f64::from(1 << 20));
    let mut time: f64 = 50.0;
    for _ in 0..50 {
        let touched = 1e9 / time / (SET / 64) as f64;
        let here = touched / (touched + driven_out);
        time = 0.5 * 4.5 + 0.5 * (here * 70.0 + (1.0 - here) * 130.0);
    }
    // In the formula all chases run as long as the copies; here the first to end leave more cache to the others.
    assert!((seen / time - 1.0).abs() < 0.07, "{seen} ns, by formula {time} ns, alone {alone} ns");
    assert!(outcome.share(Resource::Cache { load: Some(1) }) > 5.0 * outcome.share(Resource::Cache { load: Some(0) }));
}

#[test]
fn data_read_once_by_cores_evicts_nothing() {
    let with = |op| {
        let stream = Stream { op, by: ExecutedBy::Cpu, walk: AccessPattern::Sequential, ..streaming(60_000) };
        let outcome = beside(vec![(4, Workload::Stream(stream))]);
        (nanos(&outcome), outcome.share(Resource::Cache { load: Some(1) }))
    };
    let alone = nanos(&beside(vec![]));
    let ((reads, held), (writes, filled)) = (with(Opcode::ComparePattern), with(Opcode::Fill));
    assert!(held == 0.0 && reads / alone < 1.1, "only the node is busier: {reads} of {alone} ns, {held}");
    assert!(filled > 0.3 && writes / alone > 1.3, "{writes} of {alone} ns, {filled}");
    // Data that fits the cache is found again, so it stays there.
    let place = BufferPlacement { footprint: 32 << 20, ..BufferPlacement::on(0) };
    let again = Stream { op: Opcode::ComparePattern, by: ExecutedBy::Cpu, src: place, ..streaming(60_000) };
    let outcome = beside(vec![(1, Workload::Stream(again))]);
    assert!(outcome.share(Resource::Cache { load: Some(1) }) > 0.1);
}

#[test]
fn copies_by_devices_do_not_affect_a_chase() {
    let copies = |cache_control| {
        let stream = Stream { batch: 128, depth: 4, cache_control, ..streaming(600) };
        beside((0..4).map(|device| (1, on_device(device, stream))).collect())
    };
    let alone = nanos(&beside(vec![]));
    let (to_memory, to_cache) = (copies(false), copies(true));
    assert!(nanos(&to_memory) / alone < 1.1, "{} against {alone} ns", nanos(&to_memory));
    assert!(nanos(&to_cache) / alone < 1.2, "only the devices' ways are lost: {} ns", nanos(&to_cache));
    let theirs = |outcome: &Outcome| outcome.share(Resource::Cache { load: None });
    assert!(theirs(&to_memory) == 0.0 && (0.01..0.14).contains(&theirs(&to_cache)), "{}", theirs(&to_cache));
}

#[test]
fn a_faster_device_is_not_slower_with_nearly_full_memory() {
    let two_readers = |times: u64| {
        let mut machine = machine("xeon-max-9468");
        (machine.device.read, machine.device.through) = (machine.device.read * times, machine.device.through * times);
        let place = BufferPlacement::on(4);
        let reads =
            Stream { op: Opcode::CrcGeneration, batch: 31, depth: 1, submissions: 6, ..one_by_one(4, 4, 1 << 20) };
        rate(machine, &[0, 1], Stream { src: place, dst: place, ..reads })
    };
    let (as_they_are, faster) = (two_readers(1), two_readers(2));
    assert!(faster > as_they_are, "{as_they_are} and {faster} GB/s");
}
