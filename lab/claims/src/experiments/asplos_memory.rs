//! Kuper et al., §4.2 (Figure 6), §4.5 and §6.2: the location of the data.
//!
//! Node 0 is the memory of the device's socket, node 1 of the other socket, node 2 the CXL board's.

use super::measure::{
    SIZES, core_alone, core_walks, crossover, gigabytes, one_by_one_gigabytes, submit_and_wait, three,
};
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::{alone, asplos, by_core, flushed, in_flight, one_by_one, through};
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{
    AccessPattern, BufferPlacement, Chase, LineLocation, Resource, ResourceUse, Scenario, ScenarioError, Stream,
    Workload,
};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("K-034", remote_at_full_speed),
    ("K-035", break_even_of_latency),
    ("K-036", apart_or_together),
    ("K-037", to_cxl_and_from_it),
    ("K-038", within_cxl),
    ("K-053", beside_copying_cores),
    ("K-054", beside_copying_devices),
    ("K-056", cache_held_by_copies),
    ("K-064", synchronous_from_cache),
    ("K-065", asynchronous_from_cache),
    ("K-066", faster_writes),
];

const COPY: Opcode = Opcode::MemoryMove;
const LOCAL: BufferPlacement = BufferPlacement::on(0);
const REMOTE: BufferPlacement = BufferPlacement::on(1);
const CXL: BufferPlacement = BufferPlacement::on(2);
const CACHED: BufferPlacement = BufferPlacement { lines: LineLocation::Llc, ..LOCAL };

fn one() -> Scenario {
    asplos(1, WqMode::Dedicated, 1)
}

fn copies(size: u32, src: BufferPlacement, dst: BufferPlacement) -> Stream {
    Stream { src, dst, ..one_by_one(COPY, size, 1) }
}

/// Gigabytes a second of copies one at a time.
fn synchronous(lab: &Lab, size: u32, src: BufferPlacement, dst: BufferPlacement) -> Result<f64> {
    one_by_one_gigabytes(lab, one(), copies(size, src, dst))
}

fn remote_at_full_speed(lab: &Lab) -> Result {
    let mut ratios = Vec::new();
    for size in [256 << 10, 1 << 20] {
        let local = synchronous(lab, size, LOCAL, LOCAL)?;
        for (name, src, dst) in [("remote to local", REMOTE, LOCAL), ("remote to remote", REMOTE, REMOTE)] {
            ratios.push((format!("{} KB {name}", size >> 10), synchronous(lab, size, src, dst)? / local));
        }
    }
    Ok(Found::Numbers(ratios))
}

fn break_even_of_latency(lab: &Lab) -> Result {
    let placements = [("L,L", LOCAL, LOCAL), ("L,R", LOCAL, REMOTE), ("R,L", REMOTE, LOCAL), ("R,R", REMOTE, REMOTE)];
    let size = |src, dst, stream: fn(Opcode, u32, u32) -> Stream| {
        crossover(&SIZES, |size| {
            let device = submit_and_wait(lab, &alone(one(), Stream { src, dst, ..stream(COPY, size, 1) }))?;
            Ok(core_alone(lab, one(), COPY, size, src, dst)? / device)
        })
    };
    let (mut sizes, mut beside) = (Vec::new(), Vec::new());
    for (name, src, dst) in placements {
        sizes.push((name.to_owned(), size(src, dst, flushed)?));
        beside.push((format!("{name}, descriptors in the cache"), size(src, dst, one_by_one)?));
    }
    Ok(Found::Numbers(sizes).beside(beside))
}

fn apart_or_together(lab: &Lab) -> Result {
    let one = |dst| synchronous(lab, 1 << 20, LOCAL, dst);
    // Where memory is the limit: four devices.
    let four = |dst| {
        let mut scenario = asplos(4, WqMode::Dedicated, 1);
        for device in 0..4 {
            let copies = Stream { dst, ..in_flight(COPY, 65536, 32, 1) };
            scenario = alone(scenario, through(device, 0, WqMode::Dedicated, copies));
        }
        gigabytes(lab, &scenario)
    };
    let beside = vec![("one device, one at a time".into(), one(REMOTE)? / one(LOCAL)?)];
    Ok(Found::Number(four(REMOTE)? / four(LOCAL)?).beside(beside))
}

fn to_cxl_and_from_it(lab: &Lab) -> Result {
    let (from, to) = (synchronous(lab, 1 << 20, CXL, LOCAL)?, synchronous(lab, 1 << 20, LOCAL, CXL)?);
    Ok(Found::shape(from > to, format!("1 MB: from CXL {} GB/s, to CXL {}", three(from), three(to))))
}

fn within_cxl(lab: &Lab) -> Result {
    let rate = |src, dst| synchronous(lab, 1 << 20, src, dst);
    let (within, to, from) = (rate(CXL, CXL)?, rate(LOCAL, CXL)?, rate(CXL, LOCAL)?);
    let core = f64::from(1 << 20) / core_alone(lab, one(), COPY, 1 << 20, CXL, CXL)?;
    Ok(Found::shape(
        within < to.min(from) && within > 1.5 * core,
        format!(
            "1 MB: within CXL {} GB/s, to CXL {}, from it {}, a core within CXL {}",
            three(within),
            three(to),
            three(from),
            three(core)
        ),
    ))
}

/// Source and destination of Figure 15: the last-level cache (L) or memory (D).
const CACHE_OR_MEMORY: [(&str, BufferPlacement, BufferPlacement); 4] =
    [("L,L", CACHED, CACHED), ("L,D", CACHED, LOCAL), ("D,L", LOCAL, CACHED), ("D,D", LOCAL, LOCAL)];

/// Destinations in the cache get the cache hint.
fn to_cache(stream: Stream) -> Stream {
    Stream { cache_control: stream.dst.lines == LineLocation::Llc, ..stream }
}

fn synchronous_from_cache(lab: &Lab) -> Result {
    let size = |src, dst, from, to| {
        let gain = |size| {
            let stream = to_cache(Stream { src, dst, ..flushed(COPY, size, 1) });
            let device = submit_and_wait(lab, &alone(one(), stream))?;
            Ok(core_alone(lab, one(), COPY, size, from, to)? / device)
        };
        crossover(&SIZES, gain)
    };
    // The core's data was flushed (§4.1); the other reading has the core's data where the device's is.
    let (mut sizes, mut beside) = (Vec::new(), Vec::new());
    for (name, src, dst) in CACHE_OR_MEMORY {
        sizes.push((name.to_owned(), size(src, dst, LOCAL, LOCAL)?));
        beside.push((format!("{name} and the core likewise"), size(src, dst, src, dst)?));
    }
    Ok(Found::Numbers(sizes).beside(beside))
}

fn asynchronous_from_cache(lab: &Lab) -> Result {
    let size = |src, dst, walk| {
        let gain = |size: u32| {
            let stream = to_cache(Stream { src, dst, ..in_flight(COPY, size, 32, 1) });
            let device = f64::from(size) / gigabytes(lab, &alone(one(), stream))?;
            Ok(core_walks(lab, one(), COPY, size, walk)? / device)
        };
        crossover(&SIZES, gain)
    };
    let (mut sizes, mut beside) = (Vec::new(), Vec::new());
    for (name, src, dst) in CACHE_OR_MEMORY {
        sizes.push((name.to_owned(), size(src, dst, AccessPattern::Random)?));
        beside.push((format!("{name} and the core in sequence"), size(src, dst, AccessPattern::Sequential)?));
    }
    Ok(Found::Numbers(sizes).beside(beside))
}

fn faster_writes(lab: &Lab) -> Result {
    let rate = |src, dst| synchronous(lab, 65536, src, dst);
    let (near, far) = (rate(CXL, LOCAL)?, rate(CXL, CXL)?);
    let (local, cxl) = (rate(LOCAL, LOCAL)?, rate(LOCAL, CXL)?);
    Ok(Found::shape(
        near > far && local > cxl && near > cxl,
        format!(
            "64 KB, GB/s: from CXL to DRAM {}, to CXL {}; from DRAM to DRAM {}, to CXL {}",
            three(near),
            three(far),
            three(local),
            three(cxl)
        ),
    ))
}

/// Nanoseconds of a read of one of eight co-runners' working sets of 4 MB beside other loads; and the scenario.
fn chased(lab: &Lab, beside: Scenario) -> Result<f64> {
    let chases = beside.with("chases", 8, Workload::Chase(Chase::of(4 << 20)));
    let outcome = lab.run(&chases)?;
    Ok(outcome.loads.last().map_or(f64::NAN, |load| load.measures[0].value))
}

/// Work that lasts as long as the co-runners.
fn lasting(lab: &Lab, copies: Stream, alone_for: &Scenario) -> Result<Stream> {
    let outcome = lab.run(&alone(alone_for.clone(), Stream { submissions: 1000, ..copies }))?;
    let chases = lab.run(&one().with("chases", 8, Workload::Chase(Chase::of(4 << 20))))?.took;
    // Twice as long as the co-runners alone, because they are slowed down.
    let submissions = (2.0 * 1000.0 * chases.as_secs_f64() / outcome.took.as_secs_f64()).ceil();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
    Ok(Stream { submissions: (submissions as u64).max(1000), ..copies })
}

/// A place for sequential copies that is larger than any cache.
const WALK: BufferPlacement = BufferPlacement { footprint: 1 << 30, ..LOCAL };

/// Four processes that repeat copies of 4 KB, one at a time.
fn copying_cores(lab: &Lab, walk: AccessPattern) -> Result<Scenario> {
    let copies = Stream { src: WALK, dst: WALK, walk, ..by_core(COPY, 4096) };
    let copies = lasting(lab, copies, &one())?;
    Ok(one().with("copies", 4, Workload::Stream(copies)))
}

fn copying_devices(lab: &Lab) -> Result<Scenario> {
    let mut scenario = one();
    let group = |number: u32| {
        let mut group = Config::single(WqMode::Dedicated, 32, 1).groups.remove(0);
        group.dev = format!("group0.{number}");
        group.grouped_workqueues[0].dev = format!("wq0.{number}");
        group.grouped_engines[0].dev = format!("engine0.{number}");
        group
    };
    scenario.devices = vec![Config::of_groups((0..4).map(group).collect())];
    let copies = Stream { src: WALK, dst: WALK, ..in_flight(COPY, 4096, 2, 128) };
    let copies = lasting(lab, copies, &scenario)?;
    for wq in 0..4 {
        scenario = alone(
            scenario,
            through(0, wq, WqMode::Dedicated, Stream { submissions: copies.submissions / 4, ..copies }),
        );
    }
    Ok(scenario)
}

/// Increase of the co-runners' read time, in per cent.
fn longer(lab: &Lab, beside: Scenario) -> Result<f64> {
    Ok((chased(lab, beside)? / chased(lab, one())? - 1.0) * 100.0)
}

fn beside_copying_cores(lab: &Lab) -> Result {
    let of = |walk| longer(lab, copying_cores(lab, walk)?);
    // The paper's benchmark (dsa-perf-micros) copies adjacent buffers.
    let beside = vec![("at random places".into(), of(AccessPattern::Random)?)];
    Ok(Found::Number(of(AccessPattern::Sequential)?).beside(beside))
}

fn beside_copying_devices(lab: &Lab) -> Result {
    Ok(Found::Number(longer(lab, copying_devices(lab)?)?))
}

fn cache_held_by_copies(lab: &Lab) -> Result {
    let held = |beside: Scenario| {
        let outcome = lab.run(&beside.with("chases", 8, Workload::Chase(Chase::of(4 << 20))))?;
        let chases = outcome.loads.len() - 1;
        let of_copies = |it: &&ResourceUse| matches!(it.what, Resource::Cache { load } if load != Some(chases));
        Ok::<_, ScenarioError>(outcome.resources.iter().filter(of_copies).map(|it| it.share * 100.0).sum::<f64>())
    };
    let (cores, devices) = (held(copying_cores(lab, AccessPattern::Sequential)?)?, held(copying_devices(lab)?)?);
    Ok(Found::shape(
        cores > 50.0 && devices < 2.0,
        format!("of the last-level cache: copies by cores {} %, by devices {} %", three(cores), three(devices)),
    ))
}
