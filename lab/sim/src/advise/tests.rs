//! No random plan is better than the advised one.

use super::*;
use crate::rng::Rng;
use crate::workload::Wait;
use telpher_abi::Opcode;
use telpher_device::{Preset, WqMode};

/// Fourteen questions.
fn questions() -> Vec<Vec<WorkRequest>> {
    let copy = |size| WorkRequest::of(Opcode::MemoryMove, size);
    let of = |threads, in_flight, demand: WorkRequest| vec![WorkRequest { threads, in_flight, ..demand }];
    vec![
        of(1, 32, copy(64)),
        of(1, 1, copy(512)),
        of(1, 32, copy(512)),
        of(4, 32, copy(4096)),
        of(12, 32, copy(4096)),
        of(8, 1, copy(65536)),
        of(2, 32, copy(1 << 20)),
        of(1, 32, WorkRequest::of(Opcode::CrcGeneration, 16384)),
        of(2, 128, WorkRequest::of(Opcode::Fill, 256)),
        of(3, 8, WorkRequest::of(Opcode::Compare, 2048)),
        vec![WorkRequest { rate: Some(500_000), ..copy(1500) }],
        vec![WorkRequest { src: 1, ..copy(4096) }],
        vec![WorkRequest { rate: Some(200_000), ..copy(1500) }, WorkRequest { in_flight: 4, ..copy(2 << 20) }],
        vec![WorkRequest { threads: 2, ..copy(256) }, WorkRequest { threads: 2, ..copy(65536) }],
    ]
}

fn random_plan(machine: &Machine, demands: &[WorkRequest], rng: &mut Rng) -> Plan {
    let mut one_of = |end: u32| u32::try_from(rng.below(end.into())).unwrap();
    let simplest = Plan::simplest(machine, demands);
    let ways = demands.iter().map(|demand| {
        let most = demand.in_flight.ilog2();
        let depth = one_of(most + 1);
        WorkPlan {
            device: one_of(8) > 0,
            depth: 1 << depth,
            batch: 1 << one_of(most - depth + 1),
            wait: [Wait::Poll, Wait::Umwait, Wait::Interrupt][one_of(3) as usize],
            cache: false,
        }
    });
    Plan {
        ways: ways.collect(),
        count: 1 + one_of(u32::try_from(machine.devices.len()).unwrap()) as usize,
        engines: 1 + one_of(4),
        mode: [WqMode::Dedicated, WqMode::Shared][one_of(2) as usize],
        apart: one_of(2) == 1,
        wq_size: [Some(8), Some(16), Some(32), Some(64), None][one_of(5) as usize],
        ..simplest
    }
}

#[test]
fn no_random_plan_is_better() {
    let (machine, capabilities) = (Machine::built_in("spr-asplos").unwrap(), Preset::Spr.capabilities());
    for (number, demands) in questions().iter().enumerate() {
        for objective in [Objective::Throughput, Objective::Cycles] {
            let mut search = Search::new(&machine, capabilities, demands, objective);
            let (plan, best) = search.best();
            let mut rng = Rng::new(1, number as u64);
            for _ in 0..40 {
                let other = random_plan(&machine, demands, &mut rng);
                let score = search.try_out(&other).unwrap_or(0.0);
                assert!(score < best * 1.04, "{demands:?}, {objective:?}: {other:?} gives {score}, {plan:?} {best}");
            }
        }
    }
}

/// Twenty pieces of work, the fastest to sweep first: the first eight have at most four operations in flight.
fn swept() -> Vec<WorkRequest> {
    let of = |op, size, threads, in_flight| WorkRequest { threads, in_flight, ..WorkRequest::of(op, size) };
    let ops = [Opcode::MemoryMove, Opcode::Fill, Opcode::Compare, Opcode::CrcGeneration];
    let sizes = [256, 1024, 4096, 16384, 65536];
    let shapes = [(1, 1), (1, 4), (2, 8), (1, 16), (4, 4)];
    let all = ops.into_iter().enumerate().flat_map(|(first, op)| {
        (0..sizes.len()).map(move |number| {
            let (threads, in_flight) = shapes[(first + number) % shapes.len()];
            of(op, sizes[number], threads, in_flight)
        })
    });
    let mut all: Vec<WorkRequest> = all.collect();
    all.sort_by_key(|demand| demand.in_flight * demand.threads);
    all
}

/// Every plan of every setting counts; those whose simulations are the same are simulated once. `./test` sweeps the
/// fastest eight, `./soak` all twenty.
#[test]
fn no_plan_of_an_exhaustive_sweep_is_better_by_more_than_two_per_cent() {
    let (machine, capabilities) = (Machine::built_in("spr-asplos").unwrap(), Preset::Spr.capabilities());
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    let count = if seconds.is_some_and(|seconds| seconds > 1) { 20 } else { 8 };
    assert_eq!(swept().len(), 20);
    for demand in swept().into_iter().take(count) {
        let demands = std::slice::from_ref(&demand);
        let objective = if demand.in_flight > 1 { Objective::Throughput } else { Objective::Latency };
        let mut search = Search::new(&machine, capabilities, demands, objective);
        let (plan, best) = search.best();
        let mut plans = vec![Plan::simplest(&machine, demands)];
        for turn in search.turns() {
            plans = plans.iter().flat_map(|plan| search.candidates(plan, turn)).collect();
        }
        for other in plans {
            let score = search.try_out(&other).unwrap_or(0.0);
            assert!(score <= best * 1.0201, "{demand:?}, {objective:?}: {other:?} gives {score}, {plan:?} {best}");
        }
    }
}
