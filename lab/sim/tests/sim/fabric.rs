//! Messages by `telpher-fabric` in simulated time arrive whole, and take the time of their pieces.

use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{
    AccessPattern, App, BufferPlacement, Copier, ExecutedBy, Fabric, FabricPattern, LineLocation, Machine,
    MessagePattern, Messages, Outcome, Scenario, SharedMemory, Stream, Workload,
};

fn simulate(devices: usize, what: Workload) -> Outcome {
    let config = Config::single(WqMode::Shared, 128, 4);
    let machine = Machine::built_in("spr-asplos").unwrap();
    let mut scenario = Scenario::on(machine, config.clone()).with("app", 1, what);
    scenario.devices = vec![config; devices];
    scenario.simulate().unwrap()
}

fn run(app: Fabric) -> Outcome {
    simulate(4, Workload::App(App::Fabric(app)))
}

fn measure(outcome: &Outcome, name: &str) -> f64 {
    outcome.loads[0].measures.iter().find(|measure| measure.name == name).unwrap().value
}

fn copier(devices: u16) -> Copier {
    if devices == 0 { Copier::Core } else { Copier::devices(devices) }
}

/// Ten messages of `bytes` in one direction, between processes with `devices` devices in all, one for each.
fn stream(bytes: u64, devices: u16) -> Fabric {
    Fabric { pattern: FabricPattern::Stream, bytes, count: 10, copier: copier(devices), ..Fabric::default() }
}

/// Microseconds of a message.
fn message(app: Fabric) -> f64 {
    measure(&run(app), "time per message")
}

/// Microseconds of a core for a copy of 16 KiB.
fn piece(src: LineLocation, dst: LineLocation) -> f64 {
    let [src, dst] = [src, dst].map(|lines| BufferPlacement { lines, ..BufferPlacement::on(0) });
    let walk = AccessPattern::Sequential;
    let copies = Stream { by: ExecutedBy::Cpu, walk, src, dst, ..Stream::of(Opcode::MemoryMove, 16 << 10) };
    simulate(1, Workload::Stream(copies)).loads[0].mean_latency_ns() / 1e3
}

#[test]
fn every_word_arrives_whatever_copies() {
    for pattern in [FabricPattern::PingPong, FabricPattern::Stream, FabricPattern::Exchange, FabricPattern::Sum] {
        for (devices, streaming, spread) in [(0, true, false), (0, false, false), (4, true, false), (4, true, true)] {
            for (ranks, bytes) in [(2, 4 << 10), (2, 100_000), (5, 3 << 20)] {
                let copier = copier(devices);
                let app = Fabric { pattern, ranks, bytes, count: 3, copier, streaming, spread, ..Fabric::default() };
                let outcome = run(app);
                let ranks = if pattern == FabricPattern::Sum { f64::from(ranks) } else { 2.0 };
                let context = format!("{pattern:?}, {ranks} processes, {bytes} B, {devices} devices");
                assert_eq!(measure(&outcome, "processes that ended"), ranks, "{context}");
                assert_eq!(measure(&outcome, "wrong words"), 0.0, "{context}");
                let by_device = measure(&outcome, "pieces by the device");
                assert_eq!(by_device > 0.0, devices > 0 && bytes > 50_000, "{context}: {by_device} %");
            }
        }
    }
}

/// The part of an exchange that costs no time while both processes compute for twice as long, in per cent.
fn hidden(devices: u16, helper: bool) -> f64 {
    let app = |compute_ms| {
        let (pattern, copier) = (FabricPattern::Exchange, copier(devices));
        let outcome = run(Fabric { pattern, helper, compute_ms, copier, count: 3, ..Fabric::default() });
        assert_eq!(measure(&outcome, "wrong words"), 0.0);
        measure(&outcome, "time per exchange")
    };
    let alone = app(0.0);
    (3.0 * alone - app(2.0 * alone / 1e3)) / alone * 100.0
}

#[test]
fn a_helper_thread_on_a_core_of_its_own_hides_an_exchange() {
    for devices in [0, 2] {
        let [by_helper, by_calls] = [hidden(devices, true), hidden(devices, false)];
        assert!(by_helper > 95.0, "{devices} devices: {by_helper} %");
        // A send announces its message. The copies, also those of a device, begin with the next call after computing.
        assert!((-5.0..5.0).contains(&by_calls), "{devices} devices: {by_calls} %");
    }
}

#[test]
fn the_same_scenario_takes_the_same_time() {
    let sums = || Fabric { pattern: FabricPattern::Sum, ranks: 4, count: 2, copier: copier(2), ..Fabric::default() };
    assert_eq!(run(sums()).loads[0].measures, run(sums()).loads[0].measures);
}

#[test]
fn halves_of_a_message_overlap() {
    use LineLocation::{Llc, Memory, Streamed};
    let bytes = 4 << 20;
    let pieces = (bytes >> 14) as f64;
    for (streaming, halves) in
        [(true, [piece(Llc, Streamed), piece(Memory, Llc)]), (false, [piece(Llc, Llc), piece(Llc, Llc)])]
    {
        // The slower half of each piece, with its entry, and the faster half of the last piece.
        let slower = halves[0].max(halves[1]);
        let expected = pieces * (slower + 0.07);
        let deviation = (message(Fabric { streaming, ..stream(bytes, 0) }) / expected - 1.0) * 100.0;
        assert!(deviation.abs() < 5.0, "streaming {streaming}: {deviation:.1} % from {expected} us");
    }
    // The provider's halves take turns: as long as both.
    let talk = MessagePattern::Stream;
    let sar = Workload::App(App::Messages(Messages { talk, bytes, count: 10, ..Messages::default() }));
    let sar = measure(&simulate(4, sar), "time per message");
    let gain = sar / message(Fabric { streaming: false, ..stream(bytes, 0) });
    assert!((1.7..2.0).contains(&gain), "{gain}");
}

#[test]
fn a_device_moves_each_byte_twice() {
    let bytes = 4 << 20;
    let once = bytes as f64 / 31.64e3;
    // One device does both halves; two have one half each.
    for (devices, copies) in [(1, 2.0), (2, 1.0), (4, 1.0)] {
        let time = message(stream(bytes, devices));
        let deviation = (time / (copies * once) - 1.0) * 100.0;
        assert!((0.0..10.0).contains(&deviation), "{devices} devices: {time} us, {deviation:.1} % more than the bytes");
    }
    let spread = message(Fabric { spread: true, ..stream(bytes, 4) });
    assert!(spread < 0.8 * once, "over four devices: {spread} us, {once} us by one");
}

#[test]
fn a_device_leaves_the_core_time() {
    let core = |devices| measure(&run(stream(4 << 20, devices)), "core time per message");
    let [by_core, by_device] = [core(0), core(2)];
    assert!(by_device < 0.2 * by_core, "{by_core} and {by_device} us");
}

#[test]
fn short_messages_are_copied_by_the_cores() {
    let of = |devices| {
        let outcome = run(stream(8 << 10, devices));
        (measure(&outcome, "time per message"), measure(&outcome, "pieces by the device"))
    };
    let ((by_core, _), (with_device, pieces)) = (of(0), of(2));
    assert_eq!(pieces, 0.0);
    assert!(with_device < 1.1 * by_core, "{by_core} and {with_device} us");
}

#[test]
fn a_full_channel_leaves_pieces_to_the_core() {
    let sums = |in_flight| {
        let pattern = FabricPattern::Sum;
        let outcome =
            run(Fabric { pattern, bytes: 8 << 20, count: 2, copier: copier(2), in_flight, ..Fabric::default() });
        measure(&outcome, "pieces by the device")
    };
    let (few, many) = (sums(64), sums(256));
    assert!(few < 95.0 && many == 100.0, "{few} and {many} %");
}

#[test]
fn between_sockets_copies_take_longer() {
    let across = |sockets| {
        let shared = SharedMemory { sockets, ..SharedMemory::default() };
        message(Fabric { shared, streaming: false, ..stream(1 << 20, 0) })
    };
    assert!(across(2) > 1.4 * across(1), "{} and {} us", across(1), across(2));
}
