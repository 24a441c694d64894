//! The costs of a simulation itself: memory, and events.

use std::fs;
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{Layout, Machine, Outcome, Scenario, Stream, queue_ids};

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
