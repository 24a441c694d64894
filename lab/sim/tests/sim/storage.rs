//! The bottleneck of a storage target is its cores, then its links. Its digests are computed where the engine decides.

use telpher_device::{Config, WqMode};
use telpher_sim::{App, DigestBy, Machine, Outcome, QueueId, Scenario, Storage, StorageCosts, Workload};

fn simulate(app: Storage) -> Outcome {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let scenario = Scenario::on(machine, Config::single(WqMode::Shared, 128, 4));
    scenario.with("target", 1, Workload::App(App::Storage(app))).simulate().unwrap()
}

fn run(bytes: u32, cores: u32, digest: DigestBy) -> Outcome {
    simulate(Storage { bytes, cores, digest, reads: 6144, ..Storage::default() })
}

fn device() -> DigestBy {
    DigestBy::Devices(vec![QueueId { device: 0, wq: 0, shared: true }])
}

fn measure(outcome: &Outcome, name: &str) -> f64 {
    outcome.loads[0].measures.iter().find(|measure| measure.name == name).unwrap().value
}

fn near(what: &str, simulated: f64, expected: f64, per_cent: f64) {
    let deviation = (simulated / expected - 1.0) * 100.0;
    assert!(deviation.abs() < per_cent, "{what}: {simulated}, {deviation:.1} % from {expected}");
}

#[test]
fn busy_cores_send_as_many_replies_as_they_have_time_for() {
    for (cores, factor) in [(1, 1.0), (3, 1.0), (2, 2.0)] {
        let costs = StorageCosts::default().with_sockets(factor);
        let outcome = simulate(Storage { cores, costs, reads: 6144, ..Storage::default() });
        let calls = measure(&outcome, "system calls");
        let StorageCosts { call_ns, command_ns, send_ns, send_kib_ns, .. } = costs;
        let read_ns = command_ns + send_ns + 16.02 * send_kib_ns + calls * call_ns;
        near("reads", measure(&outcome, "reads"), f64::from(cores) / read_ns * 1e6, 2.0);
        near("cores busy", measure(&outcome, "cores busy"), 100.0, 2.0);
    }
}

/// A connection's replies that are ready at the same time go with one call.
#[test]
fn busy_cores_send_more_replies_with_each_call() {
    let at_once = |cores| measure(&run(16 << 10, cores, DigestBy::None), "replies sent at once");
    assert!(at_once(1) > 5.0 && at_once(12) < 1.5, "{}, {}", at_once(1), at_once(12));
}

#[test]
fn full_links_carry_their_rate_and_the_rest_waits() {
    let outcome = run(128 << 10, 8, DigestBy::None);
    near("GB/s", measure(&outcome, "bytes read"), 23.5, 1.0);
    // Little's law; the initiator's own time is not in the latency.
    let expected = 512.0 / (measure(&outcome, "reads") * 1e3) * 1e6 - 10.0;
    near("latency", measure(&outcome, "mean latency"), expected, 2.0);
}

#[test]
fn a_digest_costs_the_core_much_and_with_a_device_little() {
    for (bytes, by_core_at_most) in [(16 << 10, 0.75), (128 << 10, 0.45)] {
        let [none, by_device, by_core] =
            [DigestBy::None, device(), DigestBy::Core].map(|digest| measure(&run(bytes, 1, digest), "bytes read"));
        assert!(by_device > 0.85 * none, "{bytes} B: {none}, {by_device} GB/s");
        assert!(by_core < by_core_at_most * none, "{bytes} B: {none}, {by_core} GB/s");
    }
}

/// A core that waits for memory before it computes takes longer than one that does both at the same time.
#[test]
fn instructions_of_a_digest_take_time_unless_they_overlap() {
    let read_ns = |checksum_gb_s| {
        let costs = StorageCosts { checksum_gb_s, ..StorageCosts::default() };
        let app = Storage { cores: 1, digest: DigestBy::Core, reads: 6144, costs, ..Storage::default() };
        let outcome = simulate(app);
        1e6 / measure(&outcome, "reads") - measure(&outcome, "system calls") * costs.call_ns
    };
    let (overlapped, in_turn) = (read_ns(StorageCosts::default().checksum_gb_s), read_ns(8.0));
    near("nanoseconds of 16 KiB", in_turn - overlapped, 16384.0 / 8.0, 4.0);
}

#[test]
fn every_reply_has_the_right_digest_and_the_device_computes_each_once() {
    for digest in [DigestBy::None, DigestBy::Core, device()] {
        let outcome = run(16 << 10, 2, digest.clone());
        assert_eq!(measure(&outcome, "wrong digests"), 0.0, "{digest:?}");
        let by_device = digest == device();
        assert_eq!(measure(&outcome, "digests by the device"), if by_device { 100.0 } else { 0.0 });
        let all = 9216;
        // Digests of the last reads may still be in flight.
        let expected = if by_device { all..=all + 512 } else { 0..=0 };
        assert!(expected.contains(&outcome.descriptors), "{} descriptors, {digest:?}", outcome.descriptors);
    }
}

#[test]
fn the_core_computes_the_digests_of_short_reads() {
    let of = |digest| Storage { threshold: (16 << 10) + 1, digest, reads: 2048, ..Storage::default() };
    let (with_device, without) = (simulate(of(device())), simulate(of(DigestBy::Core)));
    assert_eq!(with_device.descriptors, 0);
    assert_eq!(with_device.loads[0].measures, without.loads[0].measures);
    let at_the_threshold = simulate(Storage { threshold: 16 << 10, ..of(device()) });
    assert_eq!(measure(&at_the_threshold, "digests by the device"), 100.0);
}

#[test]
fn the_core_computes_what_the_channel_has_no_room_for() {
    let app = Storage { cores: 1, digest: device(), under_way: 8192, reads: 16384, ..Storage::default() };
    let outcome = simulate(app);
    let fallbacks = measure(&outcome, "digests by the core in its place");
    assert!(fallbacks > 1.0 && fallbacks < 99.0, "{fallbacks} %");
    near("digests", fallbacks + measure(&outcome, "digests by the device"), 100.0, 0.1);
    assert_eq!(measure(&outcome, "wrong digests"), 0.0);
}

/// Digests that are due at the same time are one batch, from all connections of a core.
#[test]
fn busy_cores_submit_batches() {
    let at_once = |cores| measure(&run(16 << 10, cores, device()), "digests submitted at once");
    assert!(at_once(1) > 32.0 && at_once(12) < 2.0, "{}, {}", at_once(1), at_once(12));
}

#[test]
fn the_same_target_gives_the_same_numbers() {
    let of = || format!("{:?}", run(16 << 10, 5, device()).loads[0].measures);
    assert_eq!(of(), of());
}

#[test]
fn a_target_without_reads_ends() {
    let outcome = simulate(Storage { under_way: 0, ..Storage::default() });
    assert_eq!(measure(&outcome, "reads"), 0.0);
}

#[test]
fn sizes_that_are_no_blocks_and_cores_without_connections_are_served() {
    for bytes in [1, 513, 1 << 20] {
        let outcome = simulate(Storage { bytes, cores: 40, digest: device(), reads: 300, ..Storage::default() });
        assert!(measure(&outcome, "reads") > 0.0, "{bytes}");
        assert_eq!(measure(&outcome, "wrong digests"), 0.0, "{bytes}");
    }
}
