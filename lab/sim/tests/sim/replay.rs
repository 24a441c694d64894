//! A recorded program's calls: by cores as recorded, and by devices as a single copy takes.

use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{
    ExecutedBy, Library, Machine, Picos, ReplayCall, ReplayDevices, ReplaySection, Replayed, Scenario, Stream, Wait,
    Workload, replay,
};

fn machine() -> Machine {
    Machine::built_in("spr-asplos").unwrap()
}

fn devices(wq_size: u32) -> ReplayDevices {
    ReplayDevices {
        configs: vec![Config::single(WqMode::Shared, wq_size, 4)],
        retries: 1,
        threshold: 16384,
        to_cache: false,
        wait: Wait::Poll,
    }
}

fn call(index: usize) -> ReplayCall {
    ReplayCall {
        index,
        gap: Picos::from_nanos(10_000),
        op: Opcode::MemoryMove,
        bytes: 65536,
        by_core: Picos::from_nanos(6000),
        interrupted: Picos::ZERO,
        by_device: false,
        cached: false,
        aligned: true,
        overlaps: false,
        missing_pages: 0,
    }
}

/// One section of threads with the same calls.
fn section(threads: usize, calls: usize, of: impl Fn(usize) -> ReplayCall) -> ReplaySection {
    (0..threads).map(|thread| (0..calls).map(|at| of(thread * calls + at)).collect()).collect()
}

fn run(wq_size: u32, sections: Vec<ReplaySection>) -> Replayed {
    replay(&machine(), &devices(wq_size), sections).unwrap()
}

#[test]
fn without_a_device_the_replay_takes_the_recorded_time() {
    for threads in [1, 4] {
        let outcome = run(128, vec![section(threads, 50, call)]);
        assert!(outcome.took.iter().all(|took| *took == Picos::from_nanos(6000)));
        assert_eq!(outcome.sections, [Picos::from_nanos(50 * 16_000)], "{threads} threads");
        assert_eq!((outcome.by_device, outcome.queue_full), (0, 0));
    }
}

#[test]
fn a_device_s_copy_takes_as_long_as_a_single_copy_of_a_stream() {
    let by_device = |index| ReplayCall { by_device: true, ..call(index) };
    let outcome = run(128, vec![section(1, 50, by_device)]);
    let copies = Stream { by: ExecutedBy::SHARED, library: Library::Lean, ..Stream::of(Opcode::MemoryMove, 65536) };
    let scenario = Scenario::on(machine(), Config::single(WqMode::Shared, 128, 4));
    let alone = scenario.with("it", 1, Workload::Stream(copies)).simulate().unwrap().loads[0].mean_latency_ns();
    for took in &outcome.took {
        assert!((took.as_nanos_f64() / alone - 1.0).abs() < 0.02, "{took:?} in a replay, {alone} ns in a stream");
    }
    assert_eq!((outcome.by_device, outcome.faults, outcome.refused), (50, 0, 0));
}

#[test]
fn interruptions_cached_data_and_alignment_count_for_a_device() {
    let took = |of: fn(ReplayCall) -> ReplayCall, to_cache| {
        let settings = ReplayDevices { to_cache, ..devices(128) };
        let calls = section(1, 1, |index| of(ReplayCall { by_device: true, ..call(index) }));
        replay(&machine(), &settings, vec![calls]).unwrap().took[0].as_nanos_f64()
    };
    let plain = took(|call| call, false);
    let interrupted = took(|call| ReplayCall { interrupted: Picos::from_nanos(4_000_000), ..call }, false);
    assert!((interrupted - plain - 4e6).abs() < 1.0, "{plain} {interrupted}");
    assert!(took(|call| ReplayCall { cached: true, ..call }, false) < plain);
    // Two partial lines are merged; writes to the cache need no merge.
    let unaligned = |call| ReplayCall { aligned: false, ..call };
    assert!(took(unaligned, false) > plain + 300.0, "{plain}");
    assert!(took(unaligned, true) < plain + 100.0, "{plain}");
}

#[test]
fn threads_that_copy_together_wait_for_each_other() {
    let by_device = |index| ReplayCall { by_device: true, gap: Picos::ZERO, ..call(index) };
    let mean = |threads| {
        let outcome = run(128, vec![section(threads, 50, by_device)]);
        outcome.took.iter().map(|took| took.as_nanos_f64()).sum::<f64>() / outcome.took.len() as f64
    };
    let (one, eight) = (mean(1), mean(8));
    assert!(eight > 2.0 * one, "one device copies 30 GB/s for all: {one} and {eight} ns");
}

#[test]
fn a_full_queue_leaves_the_call_to_the_core() {
    let by_device = |index| ReplayCall { by_device: true, gap: Picos::ZERO, bytes: 1 << 20, ..call(index) };
    let outcome = run(1, vec![section(16, 20, by_device)]);
    assert_eq!(outcome.by_device + outcome.queue_full, 320);
    assert!(outcome.queue_full > 0 && outcome.by_device > 0, "{} by device", outcome.by_device);
}

#[test]
fn a_page_fault_costs_more_than_it_saves() {
    let fresh = |pages| move |index| ReplayCall { by_device: true, missing_pages: pages, ..call(index) };
    let mean = |pages| {
        let outcome = run(128, vec![section(1, 10, fresh(pages))]);
        assert_eq!(outcome.faults, if pages > 0 { 10 } else { 0 });
        outcome.took.iter().map(|took| took.as_nanos_f64()).sum::<f64>() / 10.0
    };
    let [none, one, all] = [0, 1, u64::MAX].map(mean);
    // The report, a page and a second submission; and sixteen pages.
    assert!((3000.0..8000.0).contains(&(one - none)), "{none} {one}");
    assert!(all > one + 14.0 * 1210.0, "{one} {all}");
    // A rest below twice the threshold is the core's.
    let short = |index| ReplayCall { bytes: 20_000, by_core: Picos::from_nanos(2000), ..fresh(u64::MAX)(index) };
    let outcome = run(128, vec![section(1, 10, short)]);
    assert_eq!((outcome.by_device, outcome.faults), (0, 10));
    assert!(outcome.took.iter().all(|took| *took > Picos::from_nanos(2000 + 1800)));
}

#[test]
fn pieces_of_an_overlapping_call_follow_each_other() {
    let long = |overlaps| {
        move |index| ReplayCall { by_device: true, overlaps, bytes: 8 << 20, gap: Picos::ZERO, ..call(index) }
    };
    let mut two = devices(128);
    two.configs[0].groups[0].grouped_workqueues[0].max_transfer_size = 2 << 20;
    two.configs.push(two.configs[0].clone());
    let took = |overlaps| replay(&machine(), &two, vec![section(1, 1, long(overlaps))]).unwrap().took[0];
    let (together, one_by_one) = (took(false).as_nanos_f64(), took(true).as_nanos_f64());
    assert!(one_by_one > 1.5 * together, "two devices: {together} ns, {one_by_one} ns one by one");
}

#[test]
fn empty_sections_threads_and_calls_are_replayed() {
    let empty = |index| ReplayCall { by_device: true, bytes: 0, missing_pages: 7, ..call(index) };
    let outcome = run(128, vec![Vec::new(), vec![Vec::new()], section(1, 3, empty)]);
    assert_eq!((outcome.sections.len(), outcome.took.len(), outcome.faults), (3, 3, 0));
    assert_eq!(outcome.sections[..2], [Picos::ZERO; 2]);
    let long = |index| ReplayCall { gap: Picos::from_nanos(2_600_000_000_000_000), ..call(index) };
    assert_eq!(run(128, vec![section(1, 2, long)]).sections, [Picos::from_nanos(2 * (2_600_000_000_000_000 + 6000))]);
}
