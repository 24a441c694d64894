//! Kuper et al., §4.2 (Figure 6), §4.5 and §6.2: where the bytes lie.
//!
//! Node 0 is the device's own socket's memory, node 1 the other socket's, node 2 the CXL board's.

use super::measure::{SIZES, core_alone, crossover, gigabytes, one_by_one_gigabytes, submit_and_wait, three};
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::{alone, asplos, in_flight, one_by_one};
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{Lines, Place, Scenario, ScenarioError, Stream};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("K-034", remote_at_full_speed),
    ("K-035", break_even_of_latency),
    ("K-036", apart_or_together),
    ("K-037", to_cxl_and_from_it),
    ("K-038", within_cxl),
    ("K-064", synchronous_from_cache),
    ("K-065", asynchronous_from_cache),
    ("K-066", faster_writes),
];

const COPY: Opcode = Opcode::MemoryMove;
const LOCAL: Place = Place::on(0);
const REMOTE: Place = Place::on(1);
const CXL: Place = Place::on(2);
const CACHED: Place = Place { lines: Lines::Llc, ..LOCAL };

fn one() -> Scenario {
    asplos(1, WqMode::Dedicated, 1)
}

fn copies(size: u32, src: Place, dst: Place) -> Stream {
    Stream { src, dst, ..one_by_one(COPY, size, 1) }
}

/// Gigabytes a second of copies one after the other.
fn synchronous(lab: &Lab, size: u32, src: Place, dst: Place) -> Result<f64> {
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
    let placements =
        [("L,L", LOCAL, LOCAL), ("L,R", LOCAL, REMOTE), ("R,L", REMOTE, LOCAL), ("R,R", REMOTE, REMOTE)];
    let of = |(name, src, dst): (&str, Place, Place)| {
        let gain = |size| {
            let device = submit_and_wait(lab, &alone(one(), copies(size, src, dst)))?;
            Ok(core_alone(lab, one(), COPY, size, src, dst)? / device)
        };
        Ok((name.to_owned(), crossover(&SIZES, gain)?))
    };
    Ok(Found::Numbers(placements.into_iter().map(of).collect::<Result<_>>()?))
}

fn apart_or_together(lab: &Lab) -> Result {
    let together = synchronous(lab, 1 << 20, LOCAL, LOCAL)?;
    Ok(Found::Number(synchronous(lab, 1 << 20, LOCAL, REMOTE)? / together))
}

fn to_cxl_and_from_it(lab: &Lab) -> Result {
    let (from, to) = (synchronous(lab, 1 << 20, CXL, LOCAL)?, synchronous(lab, 1 << 20, LOCAL, CXL)?);
    Ok(Found::shape(from > to, format!("1 MB: from CXL {} GB/s, to CXL {}", three(from), three(to))))
}

fn within_cxl(lab: &Lab) -> Result {
    let rate = |src, dst| synchronous(lab, 1 << 20, src, dst);
    let (within, to) = (rate(CXL, CXL)?, rate(LOCAL, CXL)?);
    let core = f64::from(1 << 20) / core_alone(lab, one(), COPY, 1 << 20, CXL, CXL)?;
    Ok(Found::shape(
        within < to && within > 1.5 * core,
        format!("1 MB: within CXL {} GB/s, to CXL {}, a core within CXL {}", three(within), three(to), three(core)),
    ))
}

/// Source and destination of Figure 15: the last-level cache (L) or memory (D).
const CACHE_OR_MEMORY: [(&str, Place, Place); 4] =
    [("L,L", CACHED, CACHED), ("L,D", CACHED, LOCAL), ("D,L", LOCAL, CACHED), ("D,D", LOCAL, LOCAL)];

/// What is to land in the cache is asked to.
fn to_cache(stream: Stream) -> Stream {
    Stream { cache_control: stream.dst.lines == Lines::Llc, ..stream }
}

fn synchronous_from_cache(lab: &Lab) -> Result {
    let of = |(name, src, dst): (&str, Place, Place)| {
        let gain = |size| {
            let device = submit_and_wait(lab, &alone(one(), to_cache(copies(size, src, dst))))?;
            Ok(core_alone(lab, one(), COPY, size, src, dst)? / device)
        };
        Ok((name.to_owned(), crossover(&SIZES, gain)?))
    };
    Ok(Found::Numbers(CACHE_OR_MEMORY.into_iter().map(of).collect::<Result<_>>()?))
}

fn asynchronous_from_cache(lab: &Lab) -> Result {
    let of = |(name, src, dst): (&str, Place, Place)| {
        let gain = |size: u32| {
            let stream = to_cache(Stream { src, dst, ..in_flight(COPY, size, 32, 1) });
            let device = f64::from(size) / gigabytes(lab, &alone(one(), stream))?;
            Ok(core_alone(lab, one(), COPY, size, src, dst)? / device)
        };
        Ok((name.to_owned(), crossover(&SIZES, gain)?))
    };
    Ok(Found::Numbers(CACHE_OR_MEMORY.into_iter().map(of).collect::<Result<_>>()?))
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
