//! Kuper et al., §3, §4.2 to §4.4 and §6.1 to §6.3: one device and its configurations.
//!
//! One engine and one dedicated queue with all entries unless a claim says otherwise (§4.1: "a single PE for DSA"); 32
//! in flight where operations are asynchronous. The core that is compared with a device has cold caches (§4.1:
//! descriptors, sources and destinations were flushed, the software counterparts timed accordingly). Against
//! synchronous operations it does single operations, against asynchronous ones consecutive operations, each at another
//! address. The results of other readings are shown beside a claim's own.

use super::measure::{
    SIZES, core_alone, core_walks, crossover, gigabytes, listed, never_falls, one_by_one_gigabytes, submit_and_wait,
    three,
};
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::{alone, asplos, flushed, in_flight, one_by_one, threads, through};
use telpher_abi::Opcode;
use telpher_device::{Config, EngineConfig, GroupConfig, WqConfig, WqMode};
use telpher_sim::{AccessPattern, BufferPlacement, ExecutedBy, Scenario, ScenarioError, Stream, Wait};

type Result = std::result::Result<Found, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("K-003", batches_beat_singles),
    ("K-004", read_buffers),
    ("K-005", priority),
    ("K-006", submitting),
    ("K-021", synchronous_crossover),
    ("K-022", asynchronous_crossover),
    ("K-023", small_batches),
    ("K-024", large_batches),
    ("K-025", streaming_without_batches),
    ("K-026", batch_or_cores),
    ("K-027", synchronous_peak),
    ("K-028", asynchronous_peak),
    ("K-029", device_limit),
    ("K-030", queue_size),
    ("K-031", queue_size_of_others),
    ("K-032", batches_in_flight),
    ("K-033", parts_of_latency),
    ("K-039", page_size),
    ("K-040", one_engine_alone),
    ("K-041", more_engines),
    ("K-042", stalled_descriptor),
    ("K-043", queues_or_batches),
    ("K-044", shared_queue),
    ("K-045", shared_queue_with_threads),
    ("K-051", umwait),
    ("K-052", umwait_in_batches),
    ("K-060", larger_batches),
    ("K-061", best_batch),
    ("K-062", the_core_is_better_below),
    ("K-067", few_threads),
    ("K-068", more_threads_than_queues),
    ("K-069", queue_of_32),
];

const COPY: Opcode = Opcode::MemoryMove;
const NEAR: BufferPlacement = BufferPlacement::on(0);

fn dedicated(engines: u32) -> Scenario {
    asplos(1, WqMode::Dedicated, engines)
}

fn shared(engines: u32) -> Scenario {
    asplos(1, WqMode::Shared, engines)
}

/// A device with one queue of that size.
fn queue_of(size: u32, engines: u32) -> Scenario {
    let mut scenario = dedicated(engines);
    scenario.devices = vec![Config::single(WqMode::Dedicated, size, engines)];
    scenario
}

/// Gigabytes a second of one thread that keeps 32 in flight through a dedicated queue.
fn streaming(lab: &Lab, engines: u32, op: Opcode, size: u32, batch: u32) -> std::result::Result<f64, ScenarioError> {
    gigabytes(lab, &alone(dedicated(engines), in_flight(op, size, 32, batch)))
}

fn batches_beat_singles(lab: &Lab) -> Result {
    let (single, batch) = (streaming(lab, 1, COPY, 256, 1)?, streaming(lab, 1, COPY, 256, 32)?);
    let nanos = core_alone(lab, dedicated(1), COPY, 256, NEAR, NEAR)?;
    let core = 256.0 / nanos;
    Ok(Found::shape(
        batch > single && batch > core,
        format!("256 B: batches of 32 {} GB/s, singly {}, a core {}", three(batch), three(single), three(core)),
    ))
}

fn read_buffers(lab: &Lab) -> Result {
    let mut rates = Vec::new();
    for buffers in [8, 16, 32, 64, 96] {
        let mut config = Config::single(WqMode::Dedicated, 128, 1);
        config.groups[0].read_buffers_allowed = Some(buffers);
        let mut scenario = dedicated(1);
        scenario.devices = vec![config];
        rates.push(gigabytes(lab, &alone(scenario, in_flight(COPY, 65536, 32, 1)))?);
    }
    let grows = rates[0] < rates[4] * 0.95 && never_falls(&rates, 0.005) && rates[3] > rates[4] * 0.95;
    Ok(Found::shape(grows, format!("8, 16, 32, 64, 96 buffers: {} GB/s", listed(&rates))))
}

fn two_queues(priorities: [u32; 2]) -> Config {
    let queue = |number: u32, priority| WqConfig { priority, ..WqConfig::new(number, WqMode::Dedicated, 64) };
    group(vec![queue(0, priorities[0]), queue(1, priorities[1])], 1)
}

/// A device with one group of these queues and `engines` engines.
fn group(queues: Vec<WqConfig>, engines: u32) -> Config {
    let mut config = Config::single(WqMode::Dedicated, 128, engines);
    config.groups[0].grouped_workqueues = queues;
    config
}

/// A device with one group for each queue, one engine each.
fn groups(queues: u32, mode: WqMode, size: u32) -> Config {
    let group = |number: u32| GroupConfig {
        dev: format!("group0.{number}"),
        grouped_workqueues: vec![WqConfig::new(number, mode, size)],
        grouped_engines: vec![EngineConfig { dev: format!("engine0.{number}") }],
        ..GroupConfig::default()
    };
    Config::of_groups((0..queues).map(group).collect())
}

fn priority(lab: &Lab) -> Result {
    let mut scenario = dedicated(1);
    scenario.devices = vec![two_queues([10, 1])];
    for wq in 0..2 {
        let copies = Stream { submissions: 2000, ..in_flight(COPY, 16384, 48, 1) };
        scenario = alone(scenario, through(0, wq, WqMode::Dedicated, copies));
    }
    let outcome = lab.run(&scenario)?;
    // A descriptor that waits longer in its queue was picked less often; both loads ran to the end.
    let [high, low] = [0, 1].map(|load| outcome.loads[load].timeline.queue.as_nanos_f64() / 2000.0);
    Ok(Found::shape(
        high * 1.1 < low && low.is_finite(),
        format!("wait in the queue: priority 10 {} us, priority 1 {} us", three(high / 1e3), three(low / 1e3)),
    ))
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn submitting(lab: &Lab) -> Result {
    let of = |scenario: Scenario, by| {
        let outcome = lab.run(&alone(scenario, Stream { by, ..in_flight(COPY, 64, 8, 1) }))?;
        let timeline = &outcome.loads[0].timeline;
        Ok::<_, ScenarioError>(timeline.submitting.as_nanos_f64() / timeline.completed.max(1) as f64)
    };
    let (posted, deferrable) = (of(dedicated(1), ExecutedBy::DEDICATED)?, of(shared(1), ExecutedBy::SHARED)?);
    Ok(Found::shape(
        deferrable > posted,
        format!("a core's time: ENQCMD {} ns, MOVDIR64B {} ns", three(deferrable), three(posted)),
    ))
}

/// Microseconds of a 4 KB copy, one at a time, beside another thread's copies to missing pages with Block On Fault, and
/// without them; by one engine and by two.
pub(super) fn beside_faults(
    lab: &Lab,
    of: impl Fn(u32) -> Scenario,
) -> std::result::Result<[[f64; 2]; 2], ScenarioError> {
    let mut times = [[0.0; 2]; 2];
    for (times, engines) in times.iter_mut().zip([1, 2]) {
        let mut scenario = of(engines);
        scenario.devices = vec![group((0..2).map(|wq| WqConfig::new(wq, WqMode::Dedicated, 64)).collect(), engines)];
        for queue in &mut scenario.devices[0].groups[0].grouped_workqueues {
            queue.block_on_fault = 1;
        }
        let quick = one_by_one(COPY, 4096, 1);
        let dst = BufferPlacement { present: false, footprint: 16 << 20, ..NEAR };
        let faulting = Stream { block_on_fault: true, dst, ..one_by_one(COPY, 16384, 1) };
        let undisturbed = alone(scenario.clone(), quick);
        let disturbed = alone(undisturbed.clone(), through(0, 1, WqMode::Dedicated, faulting));
        for (time, scenario) in times.iter_mut().zip([undisturbed, disturbed]) {
            *time = submit_and_wait(lab, &scenario)? / 1e3;
        }
    }
    Ok(times)
}

fn stalled_descriptor(lab: &Lab) -> Result {
    let [one, two] = beside_faults(lab, dedicated)?;
    Ok(Found::shape(
        one[1] > 2.0 * one[0] && two[1] < 1.2 * two[0],
        format!(
            "4 KB copies without and beside faulting ones: one engine {} and {} us, two {} and {}",
            three(one[0]),
            three(one[1]),
            three(two[0]),
            three(two[1])
        ),
    ))
}

/// "Data streaming operations" of Figure 2 with measured costs in the profile.
const OPERATIONS: [Opcode; 4] = [COPY, Opcode::Fill, Opcode::Compare, Opcode::ComparePattern];

/// The size from which the device is faster than a core, with one operation of this kind at a time.
fn synchronous_crossover_of(
    lab: &Lab,
    op: Opcode,
    stream: fn(Opcode, u32, u32) -> Stream,
) -> std::result::Result<f64, ScenarioError> {
    crossover(&SIZES, |size| {
        let device = submit_and_wait(lab, &alone(dedicated(1), stream(op, size, 1)))?;
        Ok(core_alone(lab, dedicated(1), op, size, NEAR, NEAR)? / device)
    })
}

fn synchronous_crossover(lab: &Lab) -> Result {
    let of = |name: &str, stream| {
        let size = |op: Opcode| Ok((format!("{}{name}", op.name()), synchronous_crossover_of(lab, op, stream)?));
        OPERATIONS.into_iter().map(size).collect::<std::result::Result<Vec<_>, ScenarioError>>()
    };
    Ok(Found::Numbers(of("", flushed)?).beside(of(", descriptors in the cache", one_by_one)?))
}

fn asynchronous_crossover(lab: &Lab) -> Result {
    let of = |name: &str, core: &dyn Fn(Opcode, u32) -> std::result::Result<f64, ScenarioError>| {
        let size = |op: Opcode| {
            let gain = |size| Ok(streaming(lab, 1, op, size, 1)? * core(op, size)? / f64::from(size));
            Ok((format!("{}{name}", op.name()), crossover(&SIZES, gain)?))
        };
        OPERATIONS.into_iter().map(size).collect::<std::result::Result<Vec<_>, ScenarioError>>()
    };
    let walks = |walk| move |op, size| core_walks(lab, dedicated(1), op, size, walk);
    // With cached data, and without overlap.
    let mut beside = of(" in sequence", &walks(AccessPattern::Sequential))?;
    beside.extend(of(" each by itself", &|op, size| core_alone(lab, dedicated(1), op, size, NEAR, NEAR))?);
    Ok(Found::Numbers(of("", &walks(AccessPattern::Random))?).beside(beside))
}

/// Gigabytes a second of synchronous copies in batches.
fn synchronous(lab: &Lab, size: u32, batch: u32) -> std::result::Result<f64, ScenarioError> {
    one_by_one_gigabytes(lab, dedicated(1), one_by_one(COPY, size, batch))
}

fn small_batches(lab: &Lab) -> Result {
    let rates = [1, 4, 16, 64, 128].map(|batch| synchronous(lab, 1024, batch));
    let rates = rates.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(Found::shape(
        rates[2] > 4.0 * rates[0] && never_falls(&rates, 0.01),
        format!("1 KB, batches of 1, 4, 16, 64, 128: {} GB/s", listed(&rates)),
    ))
}

fn large_batches(lab: &Lab) -> Result {
    Ok(Found::Number(synchronous(lab, 262_144, 64)? / synchronous(lab, 262_144, 1)?))
}

fn streaming_without_batches(lab: &Lab) -> Result {
    let peak = streaming(lab, 4, COPY, 1 << 20, 1)?;
    let of = |engines: u32, size: u32| Ok::<_, ScenarioError>(streaming(lab, engines, COPY, size, 1)? / peak);
    // The whole device, because bandwidth is measured with the paper's benchmark (dsa-perf-micros, its sample command
    // lines).
    let mut best = 0.0_f64;
    for size in [512, 1024, 2048, 4096] {
        best = best.max(of(4, size)?);
    }
    let beside = [4096, 8192].map(|size| Ok(("one engine, ".to_owned() + &format!("{} KB", size >> 10), of(1, size)?)));
    Ok(Found::Number(best).beside(beside.into_iter().collect::<std::result::Result<_, ScenarioError>>()?))
}

fn batch_or_cores(lab: &Lab) -> Result {
    let mut ratios = Vec::new();
    for (size, n) in [(1024, 2), (1024, 4), (512, 4)] {
        let stream = |batch| Stream { by: ExecutedBy::SHARED, ..in_flight(COPY, size, 16, batch) };
        let batched = gigabytes(lab, &alone(shared(4), stream(n)))?;
        let cores = gigabytes(lab, &threads(shared(4), n, stream(1)))?;
        ratios.push((format!("{size} B, {n}"), batched / cores));
    }
    Ok(Found::Numbers(ratios))
}

fn synchronous_peak(lab: &Lab) -> Result {
    Ok(Found::Number(synchronous(lab, 262_144, 64)?))
}

fn asynchronous_peak(lab: &Lab) -> Result {
    Ok(Found::Number(streaming(lab, 1, COPY, 4096, 4)?))
}

fn device_limit(lab: &Lab) -> Result {
    Ok(Found::Number(streaming(lab, 4, COPY, 1 << 20, 1)?))
}

const QUEUES: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Gigabytes a second with queues of growing size, each kept full.
fn by_queue(lab: &Lab, op: Opcode, size: u32, batch: u32) -> std::result::Result<Vec<f64>, ScenarioError> {
    QUEUES
        .into_iter()
        .map(|queue| gigabytes(lab, &alone(queue_of(queue, 1), in_flight(op, size, queue, batch))))
        .collect()
}

fn queue_size(lab: &Lab) -> Result {
    let rates = by_queue(lab, COPY, 4096, 1)?;
    Ok(Found::shape(
        never_falls(&rates, 0.01) && rates[7] > rates[0] * 2.0,
        format!("4 KB, queues of 1 to 128: {} GB/s", listed(&rates)),
    ))
}

fn queue_size_of_others(lab: &Lab) -> Result {
    let (mut holds, mut shown) = (true, Vec::new());
    for op in [
        Opcode::Fill,
        Opcode::Compare,
        Opcode::ComparePattern,
        Opcode::CrcGeneration,
        Opcode::CopyCrc,
        Opcode::Dualcast,
    ] {
        let rates = by_queue(lab, op, 4096, 1)?;
        holds &= never_falls(&rates, 0.01) && rates[7] > rates[0] * 1.5;
        shown.push(format!("{} {} to {}", op.name(), three(rates[0]), three(rates[7])));
    }
    Ok(Found::shape(holds, format!("4 KB, queues of 1 and 128, GB/s: {}", shown.join(", "))))
}

fn batches_in_flight(lab: &Lab) -> Result {
    let of = |depth, batch| gigabytes(lab, &alone(dedicated(1), in_flight(COPY, 1024, depth, batch)));
    let (mut holds, mut shown) = (true, Vec::new());
    for n in [2, 4] {
        let (alone, deep, batched, both) = (of(1, 1)?, of(n, 1)?, of(1, n)?, of(n, n)?);
        holds &= both - alone >= (deep - alone) + (batched - alone) && deep > alone && batched > alone;
        shown.push(format!("{n}: {}", listed(&[alone, deep, batched, both])));
    }
    Ok(Found::shape(holds, format!("1 KB, GB/s singly, n in flight, batch of n, both, n = {}", shown.join("; "))))
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn parts_of_latency(lab: &Lab) -> Result {
    let (mut holds, mut shown) = (true, Vec::new());
    for batch in [1, 4, 16] {
        // KUPER §4.1: descriptors, too, are flushed between iterations.
        let copies = flushed(COPY, 4096, batch);
        let outcome = lab.run(&alone(dedicated(1), copies))?;
        let timeline = &outcome.loads[0].timeline;
        let per = |time: telpher_sim::Picos| time.as_nanos_f64() / timeline.completed.max(1) as f64;
        let wait = timeline.latency().since(timeline.prepare).since(timeline.submit);
        let (prepare, submit, wait) = (per(timeline.prepare), per(timeline.submit), per(wait));
        holds &= prepare < submit && submit < wait;
        shown.push(format!("batch {batch}: {} < {} < {}", three(prepare), three(submit), three(wait)));
    }
    Ok(Found::shape(holds, format!("prepare, submit, wait in ns: {}", shown.join("; "))))
}

fn page_size(lab: &Lab) -> Result {
    let (mut worst, mut all): (f64, Vec<f64>) = (1.0, Vec::new());
    for size in [1024, 4096, 65536, 1 << 20] {
        let mut rates = Vec::new();
        for page in [4096, 2 << 20, 1 << 30] {
            let place = BufferPlacement { page, ..NEAR };
            let copies = Stream { src: place, dst: place, ..in_flight(COPY, size, 32, 1) };
            rates.push(gigabytes(lab, &alone(dedicated(1), copies))?);
        }
        let (least, most) = rates.iter().fold((f64::INFINITY, 0.0_f64), |(l, m), rate| (l.min(*rate), m.max(*rate)));
        worst = worst.max(most / least);
        all.extend(rates);
    }
    Ok(Found::Number(worst))
}

fn one_engine_alone(lab: &Lab) -> Result {
    Ok(Found::Number(streaming(lab, 1, COPY, 262_144, 1)? / streaming(lab, 4, COPY, 262_144, 1)?))
}

fn more_engines(lab: &Lab) -> Result {
    let gain = |size| {
        let rates = [1, 2, 3, 4].map(|engines| streaming(lab, engines, COPY, size, 32));
        let rates = rates.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        Ok::<_, ScenarioError>((never_falls(&rates, 0.01), rates[3] / rates[0]))
    };
    let (small, page, large) = (gain(512)?, gain(4096)?, gain(65536)?);
    Ok(Found::shape(
        small.0 && page.0 && large.0 && small.1 > page.1 && page.1 > large.1 && large.1 < 1.05,
        format!("4 engines over 1, batches of 32, of 512 B, 4 KB, 64 KB: {}", listed(&[small.1, page.1, large.1])),
    ))
}

fn queues_or_batches(lab: &Lab) -> Result {
    let mut ratios = Vec::new();
    for (size, n) in [(4096, 4), (16384, 4), (65536, 4)] {
        let batched = streaming(lab, 4, COPY, size, n)?;
        let mut scenario = dedicated(1);
        scenario.devices = vec![groups(n, WqMode::Dedicated, 32)];
        for wq in 0..n as usize {
            scenario = alone(scenario, through(0, wq, WqMode::Dedicated, in_flight(COPY, size, 32, 1)));
        }
        ratios.push((format!("{size} B"), gigabytes(lab, &scenario)? / batched));
    }
    Ok(Found::Numbers(ratios))
}

fn shared_queue(lab: &Lab) -> Result {
    let ratio = |size: u32| {
        let copies = Stream { by: ExecutedBy::SHARED, ..in_flight(COPY, size, 32, 1) };
        let rate = gigabytes(lab, &alone(shared(1), copies))?;
        Ok::<_, ScenarioError>((format!("{} KB", size / 1024), rate / streaming(lab, 1, COPY, size, 1)?))
    };
    Ok(Found::Numbers(vec![ratio(1024)?, ratio(2048)?, ratio(4096)?]).beside(vec![ratio(8192)?]))
}

fn shared_queue_with_threads(lab: &Lab) -> Result {
    let mut ratios = Vec::new();
    for size in [4096, 16384, 65536] {
        let copies = Stream { by: ExecutedBy::SHARED, ..in_flight(COPY, size, 8, 1) };
        let rate = gigabytes(lab, &threads(shared(1), 8, copies))?;
        ratios.push((format!("{} KB", size / 1024), rate / streaming(lab, 1, COPY, size, 1)?));
    }
    Ok(Found::Numbers(ratios))
}

/// Share of a core's cycles in UMWAIT, for copies one at a time.
pub(crate) fn umwait_share(lab: &Lab, size: u32, batch: u32) -> std::result::Result<f64, ScenarioError> {
    let copies = Stream { wait: Wait::Umwait, ..one_by_one(COPY, size, batch) };
    let outcome = lab.run(&alone(dedicated(1), copies))?;
    let cycles = outcome.loads[0].cycles;
    let all = cycles.busy + cycles.polling + cycles.umwait + cycles.idle;
    Ok(cycles.umwait.as_secs_f64() / all.as_secs_f64().max(1e-15))
}

fn umwait(lab: &Lab) -> Result {
    let of = |size| Ok((format!("{} KB", size / 1024), umwait_share(lab, size, 1)?));
    Ok(Found::Numbers([4096, 16384, 65536, 262_144].into_iter().map(of).collect::<std::result::Result<_, _>>()?))
}

fn umwait_in_batches(lab: &Lab) -> Result {
    let mut shares = Vec::new();
    for size in [64, 256, 1024, 4096, 65536] {
        for batch in [2, 8, 32] {
            shares.push((format!("{size} B × {batch}"), umwait_share(lab, size, batch)?));
        }
    }
    Ok(Found::Numbers(shares))
}

fn larger_batches(lab: &Lab) -> Result {
    let mut shown = Vec::new();
    let mut holds = true;
    for (total, sync) in
        [(1 << 18, true), (1 << 18, false), (1 << 20, true), (1 << 20, false), (1 << 22, true), (1 << 22, false)]
    {
        let mut rates = Vec::new();
        for batch in [1u32, 64] {
            let size = total / batch;
            rates.push(if sync {
                synchronous(lab, size, batch)?
            } else {
                gigabytes(lab, &alone(dedicated(1), in_flight(COPY, size, 32, batch)))?
            });
        }
        holds &= rates[1] < rates[0];
        shown.push(format!("{} {} KB {}", if sync { "sync" } else { "async" }, total >> 10, listed(&rates)));
    }
    Ok(Found::shape(holds, format!("batch 1 and 64 of the same bytes, GB/s: {}", shown.join("; "))))
}

fn best_batch(lab: &Lab) -> Result {
    const BATCHES: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
    // The figure as a whole: each total's throughputs relative to its best, averaged.
    let mut means = [0.0; BATCHES.len()];
    let mut beside = Vec::new();
    for total in [64u32 << 10, 256 << 10, 1 << 20] {
        let rates = BATCHES.map(|batch| synchronous(lab, total / batch, batch));
        let rates = rates.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        let best = rates.iter().copied().fold(0.0, f64::max);
        for (mean, rate) in means.iter_mut().zip(&rates) {
            *mean += rate / best / 3.0;
        }
        beside.push((format!("{} KB in all", total >> 10), f64::from(highest(&BATCHES, &rates))));
    }
    Ok(Found::Number(highest(&BATCHES, &means).into()).beside(beside))
}

/// The entry with the highest value.
fn highest(of: &[u32], given: &[f64]) -> u32 {
    let most = of.iter().zip(given).max_by(|a, b| a.1.total_cmp(b.1));
    most.map_or(0, |(one, _)| *one)
}

fn the_core_is_better_below(lab: &Lab) -> Result {
    let beside = vec![("descriptors in the cache".into(), synchronous_crossover_of(lab, COPY, one_by_one)?)];
    Ok(Found::Number(synchronous_crossover_of(lab, COPY, flushed)?).beside(beside))
}

fn few_threads(lab: &Lab) -> Result {
    let (mut holds, mut shown) = (true, Vec::new());
    for size in [1024, 4096, 65536] {
        let of = |batch| {
            gigabytes(lab, &alone(shared(1), Stream { by: ExecutedBy::SHARED, ..in_flight(COPY, size, 32, batch) }))
        };
        let rates = [streaming(lab, 1, COPY, size, 1)?, of(8)?, of(1)?];
        holds &= rates[0] >= rates[2] * 0.99 && rates[1] >= rates[2] * 0.99;
        shown.push(format!("{} KB {}", size / 1024, listed(&rates)));
    }
    Ok(Found::shape(holds, format!("dedicated, batches of 8, shared, GB/s: {}", shown.join("; "))))
}

fn more_threads_than_queues(lab: &Lab) -> Result {
    // Sixteen threads and eight queues: only eight threads can have dedicated ones.
    let copies = |wq, mode| through(0, wq, mode, in_flight(COPY, 1024, 1, 1));
    let mut dedicated = dedicated(4);
    dedicated.devices = vec![group((0..8).map(|wq| WqConfig::new(wq, WqMode::Dedicated, 16)).collect(), 4)];
    for wq in 0..8 {
        dedicated = alone(dedicated, copies(wq, WqMode::Dedicated));
    }
    let eight = gigabytes(lab, &dedicated)?;
    let sixteen = gigabytes(lab, &threads(shared(4), 16, copies(0, WqMode::Shared)))?;
    Ok(Found::shape(
        sixteen > eight,
        format!(
            "1 KB, one at a time: 16 threads on a shared queue {} GB/s, 8 on dedicated ones {}",
            three(sixteen),
            three(eight)
        ),
    ))
}

fn queue_of_32(lab: &Lab) -> Result {
    let mut ratios = Vec::new();
    for (size, batch) in [(1024, 1), (4096, 1), (65536, 1), (4096, 8)] {
        let rates = by_queue(lab, COPY, size, batch)?;
        ratios.push((format!("{size} B × {batch}"), rates[5] / rates[7]));
    }
    Ok(Found::Numbers(ratios))
}
