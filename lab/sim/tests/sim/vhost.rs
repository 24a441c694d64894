//! A switch's core follows its parameters and its cache, and its packets arrive whole and in order.

use telpher_abi::Opcode;
use telpher_device::{Config, WqConfig, WqMode};
use telpher_sim::{App, CopyBy, ExecutedBy, Machine, Outcome, QueueId, Scenario, Stream, Vhost, Workload};

fn run(app: Vhost) -> Outcome {
    let mut config = Config::single(WqMode::Dedicated, 64, 4);
    config.groups[0].grouped_workqueues.push(WqConfig::new(1, WqMode::Dedicated, 64));
    let machine = Machine::built_in("xeon-8471n").unwrap();
    Scenario::on(machine, config).with("switch", 1, Workload::App(App::Vhost(app))).simulate().unwrap()
}

fn measure(outcome: &Outcome, name: &str) -> f64 {
    outcome.loads[0].measures.iter().find(|measure| measure.name == name).unwrap().value
}

/// Million packets a second.
fn rate(app: Vhost) -> f64 {
    measure(&run(app), "forwarding rate")
}

fn of(packet_bytes: u32, copies: CopyBy) -> Vhost {
    Vhost { packet_bytes, copies, ..Vhost::default() }
}

#[test]
fn calibrated_rates_are_reproduced() {
    for (bytes, copies, published) in [
        (64, CopyBy::Core, 7.19),
        (256, CopyBy::Core, 6.44),
        (512, CopyBy::Core, 4.08),
        (1518, CopyBy::Core, 2.04),
        (512, CopyBy::DEVICE, 4.64),
    ] {
        let simulated = rate(of(bytes, copies));
        let deviation = (simulated / published - 1.0) * 100.0;
        assert!(deviation.abs() < 0.6, "{bytes} B, {copies:?}: {simulated} Mpps, {deviation:.2} %");
    }
}

#[test]
fn the_knee_is_where_buffers_exceed_the_cores_cache() {
    let lost = |packet_bytes, l2_bytes| {
        let app = Vhost { l2_bytes, ..of(packet_bytes, CopyBy::Core) };
        measure(&run(app), "payload lines not in the core's cache")
    };
    assert!(lost(256, 2 << 20) < 0.1, "256 B fit");
    assert!(lost(512, 2 << 20) > 2.0, "512 B do not");
    assert!(lost(512, 8 << 20) < 0.1, "they fit a larger cache");
    assert!(lost(256, 1 << 20) > 1.0, "and 256 B do not fit half of it");
}

#[test]
fn with_a_device_the_rate_does_not_depend_on_packet_size() {
    let app = Vhost::default();
    // Two batches a round: 32 members prepared (5 ns each) and submitted (60 ns) at 1.8 GHz.
    let cycles = (app.costs.round + 2.0 * 220.0 * 1.8) / 32.0 + app.costs.packet + 2.0 * app.costs.offload;
    for bytes in [64, 512, 1518] {
        let outcome = run(of(bytes, CopyBy::DEVICE));
        let deviation = (measure(&outcome, "cycles per packet") / cycles - 1.0) * 100.0;
        assert!(deviation.abs() < 1.0, "{bytes} B: {deviation:.2} % from {cycles} cycles");
        assert!(outcome.descriptors > 2 * 30_000 - 64, "every packet was copied twice: {}", outcome.descriptors);
    }
}

#[test]
fn short_bursts_cost() {
    let of = |burst, copies| rate(Vhost { burst, packets: 5000, warm_up: 5000, ..of(64, copies) });
    for copies in [CopyBy::Core, CopyBy::DEVICE] {
        let rates = [1, 4, 32].map(|burst| of(burst, copies));
        assert!(rates.is_sorted_by(|a, b| a < b), "{copies:?}: {rates:?}");
    }
    let gain = |burst| of(burst, CopyBy::DEVICE) / of(burst, CopyBy::Core);
    assert!(gain(1) < gain(32), "a batch of one gains less: {} against {}", gain(1), gain(32));
}

#[test]
fn a_port_without_packets_ends_the_simulation() {
    assert_eq!(rate(Vhost { offered_mbit_s: 0, ..Vhost::default() }), 0.0);
}

#[test]
fn the_rate_does_not_exceed_the_offered_load() {
    let app = Vhost { offered_mbit_s: 1000, packets: 2000, warm_up: 2000, ..of(512, CopyBy::DEVICE) };
    let line = 1000.0 / (532.0 * 8.0);
    let deviation = (rate(app) / line - 1.0) * 100.0;
    assert!(deviation.abs() < 1.0, "{deviation:.2} % from {line} Mpps");
}

/// The core below 300 bytes, the device from that size on.
fn hybrid() -> CopyBy {
    let CopyBy::Device { enqueue, dequeue } = CopyBy::DEVICE else { panic!("the device") };
    CopyBy::Hybrid { from: 300, enqueue, dequeue }
}

#[test]
fn the_threshold_selects_core_or_device() {
    for (bytes, copies) in [(64, CopyBy::Core), (256, CopyBy::Core), (512, CopyBy::DEVICE), (1518, CopyBy::DEVICE)] {
        let outcome = run(of(bytes, hybrid()));
        let by_device = if copies == CopyBy::Core { 0.0 } else { 100.0 };
        assert_eq!(measure(&outcome, "copies by the device"), by_device, "{bytes} B");
        let (hybrid, one) = (measure(&outcome, "forwarding rate"), rate(of(bytes, copies)));
        assert!((hybrid / one - 1.0).abs() < 1e-9, "{bytes} B: {hybrid} Mpps, {one} of {copies:?}");
    }
}

/// Fails if packets overtook others, their bytes were missing when the guest or the port checked them, or chains were
/// lost.
fn assert_whole_and_in_order(outcome: &Outcome, context: &str) {
    for what in ["packets out of order", "packets not whole", "chains dropped"] {
        assert_eq!(measure(outcome, what), 0.0, "{context}: {what}");
    }
}

#[test]
fn packets_arrive_whole_and_in_order() {
    for copies in [CopyBy::Core, CopyBy::DEVICE, hybrid()] {
        for bytes in [64, 1518, 9000] {
            let outcome = run(Vhost { packets: 5000, warm_up: 0, ..of(bytes, copies) });
            assert!(measure(&outcome, "forwarding rate") > 0.1);
            assert_whole_and_in_order(&outcome, &format!("{bytes} B, {copies:?}"));
        }
    }
}

#[test]
fn overtaking_batches_do_not_reorder_packets() {
    let mut config = Config::single(WqMode::Dedicated, 32, 4);
    for queue in [1, 2] {
        config.groups[0].grouped_workqueues.push(WqConfig::new(queue, WqMode::Dedicated, 32));
    }
    // Another user's long copies, behind which batches wait in one engine and not in another.
    let other = ExecutedBy::Device(QueueId { device: 0, wq: 2, shared: false });
    let long = Stream { by: other, depth: 2, submissions: 500, ..Stream::of(Opcode::MemoryMove, 1 << 20) };
    let app = Vhost { packets: 20_000, warm_up: 0, ..of(1518, CopyBy::DEVICE) };
    let scenario = Scenario::on(Machine::built_in("xeon-8471n").unwrap(), config);
    let outcome = scenario
        .with("switch", 1, Workload::App(App::Vhost(app)))
        .with("long", 1, Workload::Stream(long))
        .simulate()
        .unwrap();
    assert!(measure(&outcome, "batches that overtook another") > 10.0, "{:?}", outcome.loads[0].measures);
    assert_whole_and_in_order(&outcome, "behind long copies");
}
