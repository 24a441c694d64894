//! Messages and sums through shared memory take the time of their copies and turns.

use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{
    AccessPattern, AllReduce, App, BufferPlacement, Copier, ExecutedBy, LineLocation, Machine, MessagePattern,
    Messages, Outcome, Scenario, SharedMemory, Stream, Workload,
};

/// A run with `devices` devices, each with a shared queue.
fn run(devices: usize, what: Workload) -> Outcome {
    let config = Config::single(WqMode::Shared, 128, 4);
    let mut scenario = Scenario::on(Machine::built_in("spr-asplos").unwrap(), config.clone()).with("app", 1, what);
    scenario.devices = vec![config; devices];
    scenario.simulate().unwrap()
}

fn measure(outcome: &Outcome, name: &str) -> f64 {
    outcome.loads[0].measures.iter().find(|measure| measure.name == name).unwrap().value
}

/// Microseconds of a message.
fn message(talk: MessagePattern, bytes: u64, devices: u16) -> f64 {
    let copier = if devices == 0 { Copier::Core } else { Copier::devices(devices) };
    let app = Messages { talk, bytes, copier, count: 20, ..Messages::default() };
    measure(&run(devices.max(1).into(), Workload::App(App::Messages(app))), "time per message")
}

fn sum(ranks: u32, bytes: u64, devices: u16) -> Outcome {
    let copier = if devices == 0 { Copier::Core } else { Copier::devices(devices) };
    let app = AllReduce { ranks, bytes, copier, count: 2, ..AllReduce::default() };
    run(devices.max(1).into(), Workload::App(App::AllReduce(app)))
}

#[test]
fn a_message_by_cores_takes_its_turns_and_two_copies() {
    let place = BufferPlacement { lines: LineLocation::Llc, ..BufferPlacement::on(0) };
    let segments = Stream {
        by: ExecutedBy::Cpu,
        walk: AccessPattern::Sequential,
        src: place,
        dst: place,
        ..Stream::of(Opcode::MemoryMove, 32 << 10)
    };
    let segment = run(1, Workload::Stream(segments)).loads[0].mean_latency_ns() / 1e3;
    for (bytes, shares) in [(32_u64 << 10, 1.0), (2 << 20, 1.0), (8 << 20, 4.0)] {
        let copies = 2.0 * (bytes >> 15) as f64 * segment;
        let expected = 0.3 + shares * 0.15 + copies;
        let deviation = (message(MessagePattern::PingPong, bytes, 0) / expected - 1.0) * 100.0;
        assert!(deviation.abs() < 5.0, "{bytes} B: {deviation:.1} % from {expected} us");
    }
}

#[test]
fn a_device_copies_twice_and_several_alternate() {
    for talk in [MessagePattern::PingPong, MessagePattern::Stream] {
        let bytes = 1 << 20;
        let by_core = message(talk, bytes, 0);
        let [one, two, four] = [1, 2, 4].map(|devices| message(talk, bytes, devices));
        let least = 2.0 * (1 << 20) as f64 / 31.64e3;
        assert!(one > least && one < 1.1 * least, "{talk:?}: {one} us, two copies at the device's rate {least}");
        assert!(by_core > one && one > 1.7 * two && two > 1.6 * four, "{talk:?}: {by_core}, {one}, {two}, {four} us");
    }
}

/// The same between two sockets, each with `devices` devices.
fn across(bytes: u64, devices: u16) -> f64 {
    let copier = if devices == 0 { Copier::Core } else { Copier::devices(2 * devices) };
    let shared = SharedMemory { sockets: 2, ..SharedMemory::default() };
    let app = Messages { talk: MessagePattern::Stream, bytes, copier, count: 20, shared };
    let mut scenario = two_sockets(devices.max(1).into());
    scenario.loads[0].what = Workload::App(App::Messages(app));
    measure(&scenario.simulate().unwrap(), "time per message")
}

/// A scenario with `each` devices at each of two sockets.
fn two_sockets(each: usize) -> Scenario {
    let config = Config::single(WqMode::Shared, 128, 4);
    let mut machine = Machine::built_in("spr-asplos").unwrap();
    machine.devices = [vec![0; each], vec![1; each]].concat();
    let nothing = Workload::Stream(Stream::of(Opcode::MemoryMove, 64));
    let mut scenario = Scenario::on(machine, config.clone()).with("app", 1, nothing);
    scenario.devices = vec![config; 2 * each];
    scenario
}

#[test]
fn between_sockets_cores_wait_for_the_link_and_each_side_uses_its_devices() {
    let bytes = 2 << 20;
    // The two misses of a copied line: 70 and 70 ns, or 70 and 70 + 90.
    let slower = across(bytes, 0) / message(MessagePattern::Stream, bytes, 0);
    assert!((slower / (230.0 / 140.0) - 1.0).abs() < 0.05, "{slower}");
    // Four devices, of which each side uses two: as fast as two.
    let [two, four] = [across(bytes, 1), across(bytes, 2)];
    let [one_here, two_here] = [1, 2].map(|devices| message(MessagePattern::Stream, bytes, devices));
    assert!((two / one_here - 1.0).abs() < 0.05 && (four / two_here - 1.0).abs() < 0.05, "{two}, {four}");
}

#[test]
fn devices_of_one_socket_fill_the_caches_of_both() {
    let shared = SharedMemory { sockets: 2, ..SharedMemory::default() };
    let app = AllReduce { ranks: 4, shared, copier: Copier::devices(2), count: 2, ..AllReduce::default() };
    let mut scenario = two_sockets(1);
    scenario.machine.devices = vec![0, 0];
    scenario.loads[0].what = Workload::App(App::AllReduce(app.clone()));
    let far = measure(&scenario.simulate().unwrap(), "time per sum");
    let near = run(2, Workload::App(App::AllReduce(AllReduce { shared: SharedMemory::default(), ..app })));
    let near = measure(&near, "time per sum");
    // Data that overflows the devices' ways of one cache finds twice as many in two.
    assert!(far > 0.5 * near && far < near, "{far} and {near} us");
}

#[test]
fn short_messages_stay_with_the_core() {
    let gain = |bytes| message(MessagePattern::PingPong, bytes, 0) / message(MessagePattern::PingPong, bytes, 4);
    let gains = [8, 64, 512, 2048].map(|kib| gain(kib << 10));
    assert!(gains[0] < 1.0 && gains.is_sorted_by(|a, b| a < b), "{gains:?}");
}

#[test]
fn a_ring_copies_the_expected_bytes() {
    for ranks in [2_u32, 4, 8] {
        let parts = 2 * (ranks - 1);
        let segments = (4 << 20) / ranks / (32 << 10);
        // Twice, into shared memory and out of it, and two sums.
        let expected = u64::from(ranks * parts * segments * 2 * 2);
        assert_eq!(sum(ranks, 4 << 20, 2).descriptors, expected, "{ranks} ranks");
    }
}

#[test]
fn more_ranks_add_cores_but_no_devices() {
    let gain = |ranks| {
        let [by_cores, by_devices] = [0, 4].map(|devices| measure(&sum(ranks, 4 << 20, devices), "time per sum"));
        by_cores / by_devices
    };
    let gains = [2, 4, 8].map(gain);
    assert!(gains[0] > 1.5 && gains.is_sorted_by(|a, b| a > b), "{gains:?}");
}

#[test]
fn a_training_step_gains_by_amdahls_law() {
    let step = |devices: u16| {
        let copier = if devices == 0 { Copier::Core } else { Copier::devices(devices) };
        let app = AllReduce { copier, compute_ms: 20.0, ..AllReduce::training(2, 2) };
        run(devices.max(1).into(), Workload::App(App::AllReduce(app)))
    };
    let (cores, devices) = (step(0), step(4));
    let of = |outcome: &Outcome, name| measure(outcome, name);
    let share = of(&cores, "share of time in sums") / 100.0;
    let gain = of(&cores, "time per sum") / of(&devices, "time per sum");
    // Amdahl's law.
    let expected = 1.0 / (1.0 - share + share / gain);
    let deviation = (of(&cores, "time per step") / of(&devices, "time per step") / expected - 1.0) * 100.0;
    assert!(gain > 1.5 && deviation.abs() < 0.5, "{gain}, {deviation:.2} % from {expected}");
}
