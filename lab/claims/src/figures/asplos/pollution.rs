//! Effects on other programs of the machine: Figures 12 and 13.

use crate::figures::sweep::{axis, lines, measured, simulated};
use crate::figures::{Panel, Result, Scale, Shape, level_mark};
use crate::lab::Lab;
use crate::setups::{asplos, through};
use std::rc::Rc;
use telpher_abi::Opcode;
use telpher_device::{Config, EngineConfig, GroupConfig, WqConfig, WqMode};
use telpher_sim::{
    AccessPattern, BufferPlacement, Chase, ExecutedBy, Outcome, Picos, Resource, Scenario, Stream, Workload,
};

/// Instances of the latency benchmark, and copiers beside them. Source: KUPER §4.5.
const INSTANCES: u32 = 8;
const COPIERS: u32 = 4;
/// Bytes of a copy, and copies of a batch. Source: KUPER §4.5.
const SIZE: u32 = 4096;
const BATCH: u32 = 128;
/// Duration of the benchmark: the last-level cache is filled several times by then.
const READING: Picos = Picos::from_nanos(12_000_000);
/// Footprint of the copiers: much larger than any cache.
const WALK: u64 = 1 << 30;

/// What copies meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Beside {
    NoCopies,
    Cores,
    Device,
}

const ALL: [(&str, Beside); 3] =
    [("no copies", Beside::NoCopies), ("four cores copy", Beside::Cores), ("the device copies", Beside::Device)];

/// Four groups of one dedicated queue and one engine.
fn machine() -> Scenario {
    let group = |number: u32| GroupConfig {
        dev: format!("group0.{number}"),
        grouped_workqueues: vec![WqConfig::new(number, WqMode::Dedicated, 32)],
        grouped_engines: vec![EngineConfig { dev: format!("engine0.{number}") }],
        ..GroupConfig::default()
    };
    let mut scenario = asplos(1, WqMode::Dedicated, 1);
    scenario.devices = vec![Config::of_groups((0..COPIERS).map(group).collect())];
    scenario
}

/// Benchmark instances with working sets of that many bytes for about that time, and copiers that copy until after
/// them.
fn scenario(working_set: u64, loads: u64, beside: Beside) -> Scenario {
    let place = BufferPlacement { footprint: WALK, ..BufferPlacement::on(0) };
    let copies = Stream { src: place, dst: place, ..Stream::of(Opcode::MemoryMove, SIZE) };
    // Long enough if reads become half as slow again: a core copies at most 10 GB/s, a device 32.
    let bytes = |per_second: u64| READING.0 / 1_000_000 * 2 * per_second / 1_000_000;
    let read = Workload::Chase(Chase { loads, ..Chase::of(working_set) });
    let scenario = machine().with("reads", INSTANCES, read);
    match beside {
        Beside::NoCopies => scenario,
        Beside::Cores => {
            let submissions = bytes(10_000_000_000) / u64::from(SIZE);
            let copies = Stream { by: ExecutedBy::Cpu, walk: AccessPattern::Sequential, submissions, ..copies };
            scenario.with("copies", COPIERS, Workload::Stream(copies))
        }
        Beside::Device => (0..COPIERS as usize).fold(scenario, |scenario, wq| {
            let submissions = bytes(8_000_000_000) / u64::from(SIZE * BATCH);
            let copies = Stream { batch: BATCH, depth: 4, submissions, ..copies };
            scenario.with("copies", 1, Workload::Stream(through(0, wq, WqMode::Dedicated, copies)))
        }),
    }
}

/// The number of reads for about that time, at any latency.
fn read(lab: &Lab, working_set: u64, beside: Beside) -> Result<Rc<Outcome>> {
    let few = lab.run(&scenario(working_set, 20_000, Beside::NoCopies))?;
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a count")]
    let loads = (READING.as_nanos_f64() / latency(&few).max(0.1)) as u64;
    lab.run(&scenario(working_set, loads, beside))
}

/// Nanoseconds of a read.
fn latency(outcome: &Outcome) -> f64 {
    let measures = &outcome.loads[0].measures;
    measures.iter().find(|measure| measure.unit == "ns").map_or(f64::NAN, |measure| measure.value)
}

pub(super) fn figure_12(lab: &Lab) -> Result<Vec<Panel>> {
    let mut parts = [Vec::new(), Vec::new()];
    for (place, (_, beside)) in (0u8..).map(f64::from).zip(ALL) {
        let outcome = read(lab, 4 << 20, beside)?;
        let share = |load| 100.0 * outcome.share(Resource::Cache { load });
        let others: f64 = (1..outcome.loads.len()).map(|load| share(Some(load))).sum();
        parts[0].push((place, share(Some(0))));
        parts[1].push((place, others + share(None)));
    }
    let names = ["eight instances that read", "copiers"];
    Ok(vec![Panel {
        title: String::new(),
        x: axis(
            "copies next to eight instances with 4 MiB each",
            "",
            Scale::Names(ALL.map(|it| it.0.to_owned()).into()),
        ),
        y: axis("last-level cache in use", "%", Scale::Linear),
        shape: Shape::Stacks,
        series: names.into_iter().zip(parts).map(|(name, points)| simulated(name, points)).collect(),
        marks: Vec::new(),
    }])
}

pub(super) fn figure_13(lab: &Lab) -> Result<Vec<Panel>> {
    let sets = || (18..=26).map(|power| 1u32 << power);
    let mut latencies = Vec::new();
    for (name, beside) in ALL {
        latencies.push(measured(name, sets(), |set| Ok(latency(&*read(lab, set.into(), beside)?)))?);
    }
    let more = latencies.iter().map(|series| {
        let more = series
            .points
            .iter()
            .zip(&latencies[0].points)
            .map(|(with, none)| (with.0, 100.0 * (with.1 / none.1 - 1.0)));
        simulated(series.name.clone(), more)
    });
    let more = more.collect();
    let x = || axis("working set of each instance", "B", Scale::Binary);
    let nanos = axis("latency of a read", "ns", Scale::Linear);
    let increase = axis("latency added by copiers", "%", Scale::Linear);
    Ok(vec![
        lines("latency", x(), nanos, latencies, Vec::new()),
        lines("increase", x(), increase, more, vec![level_mark("K-053")]),
    ])
}
