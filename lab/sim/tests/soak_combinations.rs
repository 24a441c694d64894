//! No impossible number: over the combinations of operation, size, depth, batch and engines, more engines do not lose
//! throughput, no rate exceeds the profile's caps, nothing is refused, and batches are not slower than single
//! descriptors with as many in flight. That holds from eight batches in flight on. With fewer, a batch's latency
//! decides: the device waits for the next list, and for the tail of the last member.
//!
//! `./test` checks a sample, `./soak` all of them.

use std::collections::BTreeMap;
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_os::Random;
use telpher_sim::{Machine, Scenario, Stream, Workload};

const OPS: [Opcode; 6] = [
    Opcode::MemoryMove,
    Opcode::Fill,
    Opcode::Compare,
    Opcode::ComparePattern,
    Opcode::Dualcast,
    Opcode::CrcGeneration,
];
const SIZES: [u32; 9] = [64, 128, 256, 512, 1024, 2048, 4096, 16384, 65536];
const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const BATCHES: [u32; 5] = [1, 2, 4, 8, 32];
const ENGINES: [u32; 4] = [1, 2, 3, 4];

/// Part of its throughput that a device may lose with more engines. Source: the worst of all combinations loses 2.8 %.
const LOSS: f64 = 0.03;

/// Part of its throughput that a device may lose by batches. Source: the worst of all combinations loses 0.3 %.
const LOSS_BY_BATCHES: f64 = 0.005;

/// Batches in flight from which on throughput, not latency, decides.
const ENOUGH: u32 = 8;

/// Combinations of `./test`, with those of fewer engines and of single descriptors to which they are compared.
const SAMPLES: usize = 75;

/// An operation, its size, the number in flight, and in a batch.
type Case = (usize, u32, u32, u32);

/// Gigabytes a second of one thread on a dedicated queue.
#[derive(Default)]
struct Rates(BTreeMap<(Case, u32), f64>);

impl Rates {
    fn of(&mut self, machine: &Machine, case: Case, engines: u32) -> f64 {
        *self.0.entry((case, engines)).or_insert_with(|| rate(machine, case, engines))
    }
}

fn rate(machine: &Machine, (op, size, depth, batch): Case, engines: u32) -> f64 {
    let submissions = u64::from(600 / batch).max(10 * u64::from(depth));
    let stream = Stream { depth, batch, submissions, ..Stream::of(OPS[op], size) };
    let scenario = Scenario::on(machine.clone(), Config::single(WqMode::Dedicated, 128, engines));
    let outcome = scenario.with("one", 1, Workload::Stream(stream)).simulate();
    let outcome = outcome.unwrap_or_else(|error| panic!("{}: {error}", named((op, size, depth, batch))));
    assert_eq!(outcome.refused, 0, "{}", named((op, size, depth, batch)));
    outcome.loads[0].gigabytes_per_second()
}

fn named((op, size, depth, batch): Case) -> String {
    format!("--op {} --size {size} --in-flight {depth} --batch {batch}", OPS[op].name())
}

/// What is wrong with a case, if anything.
fn wrong(machine: &Machine, rates: &mut Rates, case: Case) -> Vec<String> {
    let (op, size, depth, batch) = case;
    let device = &machine.device;
    // An operation's bytes are those of its size; it reads and writes at least as many.
    let cap = device.read.max(device.write) as f64 / 1e9;
    let (mut wrong, mut best) = (Vec::new(), 0.0_f64);
    for engines in ENGINES {
        let rate = rates.of(machine, case, engines);
        if rate > cap * 1.001 {
            wrong.push(format!("{}: {engines} engines {rate:.2} GB/s, more than {cap:.2}", named(case)));
        }
        if rate < best * (1.0 - LOSS) {
            let lost = (rate / best - 1.0) * 100.0;
            wrong.push(format!("{}: {engines} engines {rate:.2} GB/s, fewer {best:.2}: {lost:.1} %", named(case)));
        }
        best = best.max(rate);
        if batch > 1 && depth >= ENOUGH {
            let single = rates.of(machine, (op, size, depth * batch, 1), engines);
            if rate < single * (1.0 - LOSS_BY_BATCHES) {
                let lost = (rate / single - 1.0) * 100.0;
                let in_words = format!("{engines} engines {rate:.2} GB/s, single {single:.2}: {lost:.1} %");
                wrong.push(format!("{}: {in_words}", named(case)));
            }
        }
    }
    wrong
}

#[test]
fn more_engines_and_batches_lose_nothing_and_no_rate_exceeds_the_caps() {
    let machine = Machine::built_in("spr-asplos").unwrap();
    let mut cases: Vec<Case> = Vec::new();
    for op in 0..OPS.len() {
        for size in SIZES {
            for depth in DEPTHS {
                cases.extend(BATCHES.map(|batch| (op, size, depth, batch)));
            }
        }
    }
    assert_eq!(cases.len() * ENGINES.len(), 6480);
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    let everything = seconds.is_some_and(|seconds| seconds > 1);
    let mut random = Random::new(28);
    if !everything {
        cases = (0..SAMPLES).map(|_| cases[usize::try_from(random.below(cases.len() as u64)).unwrap()]).collect();
    }
    let mut rates = Rates::default();
    let wrong: Vec<String> = cases.into_iter().flat_map(|case| wrong(&machine, &mut rates, case)).collect();
    println!("{} combinations simulated", rates.0.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rates.0.len(), wrong.join("\n"));
}
