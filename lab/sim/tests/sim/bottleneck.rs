//! The reported bottleneck is the right one: relieving it helps, and relieving anything else does not.

use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::machine::Node;
use telpher_sim::{BufferPlacement, ExecutedBy, Library, Limit, Machine, Outcome, Scenario, Stream, Wait, Workload};

const COPY: Opcode = Opcode::MemoryMove;

/// Everything that can be increased.
const ALL: [Limit; 8] = [
    Limit::Submitting,
    Limit::Enqcmd,
    Limit::Entries,
    Limit::FrontEnds,
    Limit::Device,
    Limit::Memory,
    Limit::Link,
    Limit::Latency,
];

/// A case: one load, its bottleneck, and a part of the text that says what would help.
struct Case {
    mode: WqMode,
    wq_size: u32,
    engines: u32,
    stream: Stream,
    machine: fn(&mut Machine),
    limit: Limit,
    help: &'static str,
}

fn plain() -> Case {
    Case {
        mode: WqMode::Dedicated,
        wq_size: 64,
        engines: 1,
        stream: stream(COPY, 4096, 1, 1),
        machine: |_| {},
        limit: Limit::Latency,
        help: "more in flight",
    }
}

fn stream(op: Opcode, size: u32, depth: u32, batch: u32) -> Stream {
    Stream { depth, batch, submissions: 400, ..Stream::of(op, size) }
}

/// A second socket with memory of its own, behind a narrow link.
fn narrow_link(machine: &mut Machine) {
    machine.nodes.push(Node { socket: 1, ..machine.nodes[0].clone() });
    machine.link = Some(10_000_000_000);
}

fn slow_memory(machine: &mut Machine) {
    machine.nodes[0].read = 8_000_000_000;
}

fn cases() -> Vec<Case> {
    let remote = Stream { src: BufferPlacement::on(1), ..stream(COPY, 65536, 16, 1) };
    let shared = Stream { by: ExecutedBy::SHARED, ..stream(COPY, 64, 32, 1) };
    let built = Stream { library: Library::Lean, ..stream(COPY, 64, 8, 64) };
    vec![
        plain(),
        Case { stream: stream(COPY, 256, 1, 4), ..plain() },
        Case { stream: stream(COPY, 64, 32, 1), limit: Limit::Submitting, help: "batches", ..plain() },
        Case { stream: built, engines: 4, limit: Limit::Submitting, help: "reused", ..plain() },
        Case { stream: stream(COPY, 4096, 32, 1), wq_size: 1, limit: Limit::Entries, help: "larger queue", ..plain() },
        Case { stream: shared, mode: WqMode::Shared, limit: Limit::Enqcmd, help: "a dedicated queue", ..plain() },
        Case { stream: stream(COPY, 64, 8, 64), limit: Limit::FrontEnds, help: "more engines", ..plain() },
        Case { stream: stream(COPY, 65536, 16, 1), limit: Limit::Device, help: "another device", ..plain() },
        Case { stream: stream(Opcode::Fill, 65536, 16, 1), limit: Limit::Device, help: "another device", ..plain() },
        Case {
            stream: stream(Opcode::Compare, 65536, 16, 1),
            limit: Limit::Device,
            engines: 4,
            help: "another device",
            ..plain()
        },
        Case {
            stream: stream(COPY, 65536, 16, 1),
            machine: slow_memory,
            limit: Limit::Memory,
            help: "faster memory",
            ..plain()
        },
        Case { stream: remote, machine: narrow_link, limit: Limit::Link, help: "socket", ..plain() },
    ]
}

fn simulated(case: &Case, more: Option<Limit>) -> Outcome {
    let mut machine = Machine::built_in("spr-asplos").unwrap();
    (case.machine)(&mut machine);
    let (mut stream, mut wq_size) = (case.stream, case.wq_size);
    match more {
        None => {}
        Some(Limit::Submitting) => {
            machine.submit.movdir.0 /= 2;
            machine.library.raw.prepare.0 /= 2;
            machine.library.lean.prepare.0 /= 2;
            machine.library.lean.prepare_member.0 /= 2;
        }
        Some(Limit::Enqcmd) => machine.submit.enqcmd.0 /= 2,
        Some(Limit::Entries) => wq_size *= 2,
        Some(Limit::FrontEnds) => {
            let mut cost = *machine.device.ops.of(stream.op);
            cost.front.0 /= 2;
            machine.device.ops = machine.device.ops.with(stream.op, cost);
        }
        Some(Limit::Device) => {
            machine.device.read *= 2;
            machine.device.write *= 2;
            machine.device.through *= 2;
        }
        Some(Limit::Memory) => {
            machine.nodes.iter_mut().for_each(|node| (node.read, node.write) = (node.read * 2, node.write * 2))
        }
        Some(Limit::Link) => machine.link = machine.link.map(|rate| rate * 2),
        Some(_) => stream.depth *= 2,
    }
    let config = Config::single(case.mode, wq_size, case.engines);
    Scenario::on(machine, config).with("load", 1, Workload::Stream(stream)).simulate().unwrap()
}

#[test]
fn relieving_the_reported_bottleneck_helps() {
    for case in cases() {
        let Stream { op, size, depth, batch, .. } = case.stream;
        let before = simulated(&case, None);
        let found = before.bottleneck().unwrap();
        let description = format!("{op:?} of {size}, {depth} times {batch}: {found}");
        assert_eq!(found.limit, case.limit, "{description}");
        assert!(found.help.contains(case.help), "{description}");
        let gain = |more| {
            simulated(&case, Some(more)).loads[0].gigabytes_per_second() / before.loads[0].gigabytes_per_second()
        };
        let named = gain(case.limit);
        assert!(named > 1.05, "{description}; but more of it gives only {named} times as much");
        for other in ALL.into_iter().filter(|other| *other != case.limit) {
            let gain = gain(other);
            assert!(gain < named, "{description}, which gives {named} times as much; but {other:?} gives {gain} times");
        }
    }
}

#[test]
fn shares_are_at_most_one_and_percentiles_are_ordered() {
    for case in cases() {
        let outcome = simulated(&case, None);
        for used in &outcome.resources {
            assert!((0.0..=1.001).contains(&used.share), "{}: {}", used.what, used.share);
        }
        let load = &outcome.loads[0];
        assert_eq!(load.latencies.count(), 400);
        let [half, most, all] = [0.5, 0.999, 1.0].map(|part| load.latencies.at(part));
        assert!(half <= most && most <= all);
        let mean = load.mean_latency_ns();
        assert!(mean <= all.as_nanos_f64() * 1.001, "{mean} ns on average, {all:?} at most");
    }
}

/// A thread that sleeps submits nothing, so more in flight do not help.
#[test]
fn a_sleeping_thread_with_several_in_flight_is_told_to_wait_otherwise() {
    let copies = |wait, depth| Stream { wait, ..stream(COPY, 4096, depth, 1) };
    let of = |wait, depth| {
        let machine = Machine::built_in("spr-asplos").unwrap();
        let scenario = Scenario::on(machine, Config::single(WqMode::Dedicated, 64, 1));
        let outcome = scenario.with("copies", 1, Workload::Stream(copies(wait, depth))).simulate().unwrap();
        (outcome.loads[0].gigabytes_per_second(), outcome.bottleneck().unwrap().clone())
    };
    let (slow, found) = of(Wait::Sleep, 32);
    assert_eq!(found.limit, Limit::Latency);
    assert!(found.what.starts_with("the thread's sleep, ") && found.help.contains("polling"), "{found}");
    assert!(of(Wait::Poll, 32).0 > slow * 2.0);
    for (wait, depth) in [(Wait::Poll, 2), (Wait::Sleep, 1)] {
        assert!(of(wait, depth).1.help.starts_with("more in flight"), "{wait:?}, {depth}");
    }
}
