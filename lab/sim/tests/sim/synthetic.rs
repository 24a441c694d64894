//! Operations of DSA 2.x and 3.0, whose times are synthetic, and the bandwidth limits of groups.

use telpher_abi::Opcode;
use telpher_device::{Bandwidth, Preset, WqMode};
use telpher_sim::{Layout, Machine, SYNTHETIC, Scenario, Stream, Workload};

/// A saturating load on one device of a preset.
fn scenario(preset: Preset, stream: Stream, bandwidth: [Bandwidth; 2]) -> Scenario {
    let capabilities = preset.capabilities();
    let layout = Layout { engines: 4, bandwidth, ..Layout::single(WqMode::Dedicated) };
    let mut scenario = Scenario::on(Machine::built_in("spr-asplos").unwrap(), layout.configs(&capabilities).remove(0));
    scenario.capabilities = capabilities;
    scenario.with("mine", 1, Workload::Stream(stream))
}

fn rate(preset: Preset, op: Opcode, size: u32, bandwidth: [Bandwidth; 2]) -> f64 {
    let stream = Stream { depth: 32, submissions: 400, ..Stream::of(op, size) };
    scenario(preset, stream, bandwidth).simulate().unwrap().loads[0].gigabytes_per_second()
}

const NONE: [Bandwidth; 2] = [Bandwidth::All; 2];

#[test]
fn each_operation_is_limited_by_the_bytes_that_it_reads_and_writes() {
    let costs = &Machine::built_in("spr-asplos").unwrap().device;
    let (read, write, copy) = (costs.read as f64, costs.write as f64, costs.through as f64);
    for (op, most) in [
        (Opcode::Reduce, read / 2.0),
        (Opcode::ReduceDualcast, (read / 2.0).min(write / 2.0)),
        (Opcode::TypeConversion, write / 2.0),
        (Opcode::GatherCopy, copy),
        (Opcode::ScatterCopy, copy),
        (Opcode::ScatterFill, write),
        (Opcode::DixGenerate, read),
    ] {
        let rate = rate(Preset::V3Full, op, 256 << 10, NONE) * 1e9;
        assert!(rate > 0.93 * most && rate < 1.001 * most, "{op}: {rate} B/s, at most {most}");
    }
    for (newer, older) in SYNTHETIC.iter().filter(|(newer, _)| newer.name().starts_with("inter-domain")) {
        let (own, other) = (rate(Preset::V2Full, *newer, 64 << 10, NONE), rate(Preset::V2Full, *older, 64 << 10, NONE));
        assert!((own / other - 1.0).abs() < 0.02, "{newer}: {own} GB/s, {older}: {other}");
    }
}

#[test]
fn a_handle_costs_its_lookup_in_the_front_end() {
    // With one engine, small operations in batches are limited by its front end.
    let period = |op| {
        let stream = Stream { depth: 16, batch: 16, submissions: 400, ..Stream::of(op, 64) };
        let mut scenario = scenario(Preset::V2Full, stream, NONE);
        scenario.devices[0].groups[0].grouped_engines.truncate(1);
        let outcome = scenario.simulate().unwrap();
        outcome.took.as_nanos_f64() / outcome.descriptors as f64
    };
    let more = period(Opcode::InterDomainCopy) - period(Opcode::MemoryMove);
    assert!((more - 20.0).abs() < 2.0, "{more} ns more with a handle");
}

#[test]
fn devices_without_the_capability_refuse_each_newer_operation() {
    for (op, _) in SYNTHETIC {
        let message = scenario(Preset::Spr, Stream::of(op, 4096), NONE).simulate().unwrap_err().to_string();
        let expected = format!("{} is not an operation of the device; the device answers: operation", op.name());
        assert!(message.contains(&expected), "{message}");
    }
    for op in [Opcode::TranslationFetch, Opcode::GatherReduce] {
        let message = scenario(Preset::V3Full, Stream::of(op, 4096), NONE).simulate().unwrap_err().to_string();
        assert!(message.ends_with(&format!("{} is not simulated", op.name())), "{message}");
    }
}

#[test]
fn half_of_the_bandwidth_gives_half_of_the_rate() {
    let copy = |read_bandwidth, write_bandwidth| {
        rate(Preset::V3Full, Opcode::MemoryMove, 1 << 20, [read_bandwidth, write_bandwidth])
    };
    let all = copy(Bandwidth::All, Bandwidth::All);
    for limits in [
        [Bandwidth::Half, Bandwidth::All],
        [Bandwidth::All, Bandwidth::Half],
        [Bandwidth::Quarter, Bandwidth::Half],
        [Bandwidth::All, Bandwidth::Eighth],
    ] {
        let least = limits.map(Bandwidth::code).into_iter().max().unwrap_or(0);
        let (rate, expected) = (copy(limits[0], limits[1]), all / f64::from(1_u32 << least));
        assert!((rate / expected - 1.0).abs() < 0.03, "{limits:?}: {rate} GB/s of {all}");
    }
    // A limit of the other direction has no effect.
    let fill = |limits| rate(Preset::V3Full, Opcode::Fill, 1 << 20, limits);
    assert!((fill([Bandwidth::Eighth, Bandwidth::All]) / fill(NONE) - 1.0).abs() < 0.01);
}

#[test]
fn a_limit_holds_for_its_group_only() {
    let capabilities = Preset::V3Full.capabilities();
    let layout = Layout { groups: 2, ..Layout::single(WqMode::Dedicated) };
    let mut config = layout.configs(&capabilities).remove(0);
    config.groups[0].read_bandwidth = Bandwidth::Eighth;
    let mut scenario = Scenario::on(Machine::built_in("spr-asplos").unwrap(), config);
    scenario.capabilities = capabilities;
    let stream = Stream { depth: 16, submissions: 300, ..Stream::of(Opcode::MemoryMove, 256 << 10) };
    for (name, queue) in ["limited", "free"].into_iter().zip(telpher_sim::queue_ids(&scenario.devices)) {
        scenario = scenario.with_lanes(name, 1, stream, vec![queue]);
    }
    let outcome = scenario.simulate().unwrap();
    let [limited, free] = [0, 1].map(|load| outcome.loads[load].gigabytes_per_second());
    let most = scenario.machine.device.read as f64 / 1e9;
    assert!(limited < 1.001 * most / 8.0 && limited > 0.9 * most / 8.0, "{limited} GB/s of {most}");
    assert!(free > 0.7 * most, "{free} GB/s of {most}");
}

#[test]
fn devices_without_limits_refuse_them() {
    let stream = Stream::of(Opcode::MemoryMove, 4096);
    let refused = scenario(Preset::Spr, stream, [Bandwidth::Half, Bandwidth::All]).simulate().unwrap_err();
    assert!(telpher_os::chain(&refused).contains("bandwidth limits"), "{}", telpher_os::chain(&refused));
}
