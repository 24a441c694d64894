//! The bottleneck of a storage target is its cores, then its link.

use telpher_device::{Config, WqMode};
use telpher_sim::{App, DigestBy, Machine, Outcome, QueueId, Scenario, Storage, Workload};

fn run(bytes: u32, cores: u32, digest: DigestBy) -> Outcome {
    let app = Storage { bytes, cores, digest, reads: 6000, ..Storage::default() };
    let machine = Machine::built_in("spr-asplos").unwrap();
    let scenario = Scenario::on(machine, Config::single(WqMode::Shared, 128, 4));
    scenario.with("target", 1, Workload::App(App::Storage(app))).simulate().unwrap()
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
fn busy_cores_answer_as_many_reads_as_they_have_time_for() {
    for cores in [1, 3] {
        let reads = measure(&run(16 << 10, cores, DigestBy::None), "reads");
        near("reads", reads, f64::from(cores) / 3.64e-3, 2.0);
    }
}

#[test]
fn a_full_link_carries_its_rate_and_the_rest_waits() {
    let outcome = run(128 << 10, 8, DigestBy::None);
    near("GB/s", measure(&outcome, "bytes read"), 23.5, 1.0);
    // Little's law; the initiator's own time is not in the latency.
    let expected = 512.0 / (measure(&outcome, "reads") * 1e3) * 1e6 - 10.0;
    near("latency", measure(&outcome, "mean latency"), expected, 2.0);
}

#[test]
fn a_digest_costs_the_core_much_and_with_a_device_little() {
    for bytes in [16 << 10, 128 << 10] {
        let [none, by_device, by_core] =
            [DigestBy::None, device(), DigestBy::Core].map(|digest| measure(&run(bytes, 1, digest), "bytes read"));
        assert!(by_device > 0.85 * none && by_core < 0.6 * none, "{bytes} B: {none}, {by_device}, {by_core} GB/s");
    }
}

#[test]
fn every_answer_has_its_digest() {
    let outcome = run(16 << 10, 2, device());
    assert!(outcome.descriptors >= 9000, "{} digests of 9000 reads", outcome.descriptors);
}

#[test]
fn a_target_without_reads_ends() {
    let app = Storage { under_way: 0, ..Storage::default() };
    let machine = Machine::built_in("spr-asplos").unwrap();
    let scenario = Scenario::on(machine, Config::single(WqMode::Shared, 128, 4));
    let outcome = scenario.with("target", 1, Workload::App(App::Storage(app))).simulate().unwrap();
    assert_eq!(measure(&outcome, "reads"), 0.0);
}
