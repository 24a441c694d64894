//! The costs of a simulation itself: memory, and events.

use std::fs;
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{ExecutedBy, Layout, Machine, Outcome, Scenario, Stream, Workload, queue_ids};

/// Copies of 4 KiB by `threads` threads on four devices with four engines each.
fn four_devices(threads: u32, submissions: u64) -> Outcome {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let mut scenario = Scenario::on(machine, Config::single(WqMode::Dedicated, 32, 1));
    let layout = Layout { devices: 4, engines: 4, ..Layout::single(WqMode::Dedicated) };
    scenario.devices = layout.configs(&scenario.capabilities);
    let copies = Stream { depth: 32, submissions, ..Stream::of(Opcode::MemoryMove, 4096) };
    let queues = queue_ids(&scenario.devices);
    scenario.with_lanes("copies", threads, copies, queues).simulate().unwrap()
}

/// The peak memory of this process.
fn most_mebibytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn four_devices_and_64_threads_take_less_than_a_gibibyte() {
    assert_eq!(four_devices(64, 1000).descriptors, 64_000);
    assert!(most_mebibytes() < 1024, "{} MiB", most_mebibytes());
}

#[test]
fn thousands_of_threads_are_cheap() {
    assert_eq!(four_devices(4096, 10).descriptors, 40_960);
    assert!(most_mebibytes() < 1024, "{} MiB", most_mebibytes());
}

/// The events are the cost of a simulation that is the same on every machine; `examples/speed.rs` measures the time.
#[test]
fn a_descriptor_takes_few_events() {
    let outcome = four_devices(64, 2000);
    let events = outcome.events as f64 / outcome.descriptors as f64;
    assert!(events < 9.0, "{events:.2} events for each descriptor");
}

/// Events for each descriptor, of copies by threads that share one queue of a device with one engine.
fn shared_by(threads: u32, size: u32, depth: u32) -> f64 {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let submissions = u64::from(32_000 / threads);
    let copies = Stream { by: ExecutedBy::SHARED, depth, submissions, ..Stream::of(Opcode::MemoryMove, size) };
    let scenario = Scenario::on(machine, Config::single(WqMode::Shared, 32, 1));
    let outcome = scenario.with("copies", threads, Workload::Stream(copies)).simulate().unwrap();
    assert_eq!(outcome.descriptors, submissions * u64::from(threads));
    let retries = outcome.loads[0].timeline.retries;
    assert!(threads == 1 || retries > outcome.descriptors, "no storm: {retries} retries");
    outcome.events as f64 / outcome.descriptors as f64
}

/// Retries cost no event each: the cost of a descriptor does not depend on the number of threads that retry.
#[test]
fn a_storm_of_retries_takes_few_events() {
    let alone = shared_by(1, 4096, 8);
    for (threads, size, depth) in [(32, 65536, 32), (64, 4096, 8), (64, 65536, 1), (1000, 4096, 8), (1000, 65536, 2)] {
        let events = shared_by(threads, size, depth);
        assert!(events < 1.25 * alone, "{threads} threads of {size} B: {events:.2} events, one thread {alone:.2}");
    }
}
