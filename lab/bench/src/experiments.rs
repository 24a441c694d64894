//! The pairwise comparisons of `telpher bench ops`: each operation, its best alternative, and the ratio to reach.

use super::buffers::{Arena, Places, Temperature, fill_known, first_difference};
use super::measure::Implausible;
use super::pairwise::{PairResult, duel};
use super::protection::{BLOCK, DIF, TAGS, check_by, crc16_fast, crc16_naive, insert_by, protected, protected_len};
use crate::ffi::{self, Isal};
use std::hint::black_box;
use std::time::Duration;
use telpher_abi::{MAX_DELTA_TRANSFER, Opcode};
use telpher_ops::crc::CrcMode;
use telpher_ops::dif;
use telpher_ops::{Hint, delta};

/// The reason why a comparison has no result.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub(crate) enum ComparisonError {
    /// One side's bytes are wrong.
    #[error("first wrong byte at offset {0}")]
    Mismatch(usize),
    /// The numbers are implausible.
    #[error(transparent)]
    Implausible(#[from] Implausible),
}

/// The conditions of a comparison.
pub(crate) struct Ring<'a> {
    /// Memory for both sides.
    pub arena: &'a mut Arena,
    /// Bytes of one transfer.
    pub size: usize,
    /// Whether the buffers are in the cache.
    pub temperature: Temperature,
    /// Measuring time.
    pub time: Duration,
    /// ISA-L, if installed.
    pub isal: Option<Isal>,
}

/// One operation against one alternative.
#[derive(Clone, Copy)]
pub(crate) struct Experiment {
    /// The operation, as selected by `--op`.
    pub op: Opcode,
    /// The row's name.
    pub name: &'static str,
    /// The alternative's name.
    pub against: &'static str,
    /// Whether it needs ISA-L.
    pub isal: bool,
    /// Returns whether the comparison makes sense at a size.
    pub takes: fn(usize) -> bool,
    /// The ratio to reach at a size.
    pub goal: fn(usize) -> f64,
    /// Runs it.
    pub run: fn(&mut Ring<'_>) -> Result<PairResult, ComparisonError>,
}

const ANY: fn(usize) -> bool = |_| true;
const BLOCKS: fn(usize) -> bool = |size| size.is_multiple_of(BLOCK);
/// The goal is a median of 1.0 overall, and this at each size.
const PARITY: fn(usize) -> f64 = |_| 0.9;
const CRC_GOAL: fn(usize) -> f64 = |size| if size >= 4096 { 1.0 } else { 0.9 };
const ONE_PASS: fn(usize) -> f64 = |size| if size >= 16 << 10 { 1.3 } else { 0.9 };
pub(crate) const BANDWIDTH: fn(usize) -> f64 = |_| 0.7;

/// All comparisons with other implementations; `bandwidth` has those with copies.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        op: Opcode::MemoryMove,
        name: "move",
        against: "memcpy",
        isal: false,
        takes: ANY,
        goal: PARITY,
        run: copy,
    },
    Experiment {
        op: Opcode::MemoryMove,
        name: "move, overlapping",
        against: "memmove",
        isal: false,
        takes: ANY,
        goal: PARITY,
        run: overlap,
    },
    Experiment {
        op: Opcode::MemoryMove,
        name: "move to memory",
        against: "memcpy",
        isal: false,
        takes: |size| size >= telpher_ops::STREAM_BYTES,
        // Non-temporal stores are faster only beyond the caches.
        goal: |size| if size >= 32 << 20 { 1.2 } else { 0.9 },
        run: copy_to_memory,
    },
    Experiment { op: Opcode::Fill, name: "fill", against: "memset", isal: false, takes: ANY, goal: PARITY, run: fill },
    Experiment {
        op: Opcode::Compare,
        name: "compare",
        against: "memcmp",
        isal: false,
        takes: ANY,
        goal: PARITY,
        run: compare,
    },
    Experiment {
        op: Opcode::CrcGeneration,
        name: "crc",
        against: "ISA-L",
        isal: true,
        takes: ANY,
        goal: CRC_GOAL,
        run: crc_isal,
    },
    Experiment {
        op: Opcode::CrcGeneration,
        name: "crc",
        against: "crc-fast",
        isal: false,
        takes: ANY,
        goal: CRC_GOAL,
        run: crc_fast,
    },
    Experiment {
        op: Opcode::CopyCrc,
        name: "copy-crc",
        against: "memcpy, then ISA-L",
        isal: true,
        takes: ANY,
        goal: ONE_PASS,
        run: copy_crc_isal,
    },
    Experiment {
        op: Opcode::CopyCrc,
        name: "copy-crc",
        against: "memcpy, then crc-fast",
        isal: false,
        takes: ANY,
        goal: ONE_PASS,
        run: copy_crc_fast,
    },
    Experiment {
        op: Opcode::DifInsert,
        name: "dif-insert 512",
        against: "memcpy and ISA-L a block",
        isal: true,
        takes: BLOCKS,
        goal: BANDWIDTH,
        run: dif_insert_isal,
    },
    Experiment {
        op: Opcode::DifInsert,
        name: "dif-insert 512",
        against: "memcpy and crc-fast a block",
        isal: false,
        takes: BLOCKS,
        goal: BANDWIDTH,
        run: dif_insert_fast,
    },
    Experiment {
        op: Opcode::DifCheck,
        name: "dif-check 512",
        against: "ISA-L a block",
        isal: true,
        takes: BLOCKS,
        goal: BANDWIDTH,
        run: dif_check_isal,
    },
    Experiment {
        op: Opcode::DifCheck,
        name: "dif-check 512",
        against: "crc-fast a block",
        isal: false,
        takes: BLOCKS,
        goal: BANDWIDTH,
        run: dif_check_fast,
    },
    Experiment {
        op: Opcode::CreateDelta,
        name: "create-delta, equal data",
        against: "memcmp",
        isal: false,
        takes: |size| size % 8 == 0 && size <= MAX_DELTA_TRANSFER as usize,
        goal: BANDWIDTH,
        run: delta_equal,
    },
];

/// The state of both sides: memory and the next position.
pub(crate) struct State<'a> {
    pub(crate) arena: &'a mut Arena,
    pub(crate) places: Places,
}

impl<'a> State<'a> {
    fn new(ring: &'a mut Ring<'_>, dst_len: usize) -> Self {
        let places = ring.arena.places(ring.size, dst_len, ring.temperature);
        State { arena: ring.arena, places }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> (&[u8], &mut [u8]) {
        self.arena.next(&mut self.places)
    }

    /// Runs `step` once over an overwritten destination and compares it with `expected`, computed from the source.
    fn check(
        &mut self,
        step: impl Fn(&[u8], &mut [u8]),
        expected: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Result<(), ComparisonError> {
        let (src, dst) = self.next();
        fill_known(dst, 99);
        step(src, dst);
        first_difference(dst, &expected(src)).map_or(Ok(()), |at| Err(ComparisonError::Mismatch(at)))
    }
}

/// Compares two functions of source and destination; both are checked against `expected` before, ours also after.
fn between(
    ring: &mut Ring<'_>,
    dst_len: usize,
    ours: impl Fn(&[u8], &mut [u8]),
    theirs: impl Fn(&[u8], &mut [u8]),
    expected: impl Fn(&[u8]) -> Vec<u8>,
) -> Result<PairResult, ComparisonError> {
    let (time, bytes) = (ring.time, ring.size as u64);
    let mut state = State::new(ring, dst_len);
    state.check(&theirs, &expected)?;
    state.check(&ours, &expected)?;
    let mut step = |s: &mut State<'_>| {
        let (src, dst) = s.next();
        ours(src, dst);
    };
    let result = duel(time, bytes, &mut state, &mut step, |s| {
        let (src, dst) = s.next();
        theirs(src, dst);
    })?;
    step(&mut state);
    let (src, dst) = state.arena.last(&state.places);
    first_difference(dst, &expected(src)).map_or(Ok(result), |at| Err(ComparisonError::Mismatch(at)))
}

/// Compares two functions that read and return a number; both must return that of `expected`.
fn looking<T: PartialEq>(
    ring: &mut Ring<'_>,
    prepare: impl Fn(&mut Arena, &Places),
    dst_len: usize,
    ours: impl Fn(&[u8], &[u8]) -> T,
    theirs: impl Fn(&[u8], &[u8]) -> T,
    expected: impl Fn(&[u8], &[u8]) -> T,
) -> Result<PairResult, ComparisonError> {
    let (time, bytes) = (ring.time, ring.size as u64);
    let mut state = State::new(ring, dst_len);
    prepare(state.arena, &state.places);
    for _ in 0..2 {
        let (src, dst) = state.next();
        let right = expected(src, dst);
        if ours(src, dst) != right || theirs(src, dst) != right {
            return Err(ComparisonError::Mismatch(0));
        }
    }
    Ok(duel(
        time,
        bytes,
        &mut state,
        |s| {
            let (src, dst) = s.next();
            black_box(ours(src, dst));
        },
        |s| {
            let (src, dst) = s.next();
            black_box(theirs(src, dst));
        },
    )?)
}

fn copy(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let len = ring.size;
    between(ring, len, |s, d| telpher_ops::copy(s, d, Hint::Cache), |s, d| ffi::memcpy(d, s), <[u8]>::to_vec)
}

fn copy_to_memory(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let len = ring.size;
    between(ring, len, |s, d| telpher_ops::copy(s, d, Hint::Memory), |s, d| ffi::memcpy(d, s), <[u8]>::to_vec)
}

/// Copies up by an eighth of the size within one buffer, so that seven eighths overlap.
fn overlap(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let (size, time) = (ring.size, ring.time);
    let shift = (size / 8).max(1);
    let mut places = ring.arena.places(size, size + shift, ring.temperature);
    let (_, dst) = ring.arena.next(&mut places);
    fill_known(dst, 5);
    let mut right = dst.to_vec();
    right.copy_within(..size, shift);
    telpher_ops::copy_within(dst, 0..size, shift);
    if let Some(at) = first_difference(dst, &right) {
        return Err(ComparisonError::Mismatch(at));
    }
    let mut state = State { arena: ring.arena, places };
    Ok(duel(
        time,
        size as u64,
        &mut state,
        |s| telpher_ops::copy_within(s.next().1, 0..size, shift),
        |s| ffi::memmove_within(s.next().1, 0, shift, size),
    )?)
}

fn fill(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    // memset supports only such patterns.
    const BYTE: u8 = 0xa5;
    let len = ring.size;
    between(
        ring,
        len,
        |_, d| telpher_ops::fill(d, u64::from_ne_bytes([BYTE; 8]), Hint::Cache),
        |_, d| ffi::memset(d, BYTE),
        |s| vec![BYTE; s.len()],
    )
}

fn equal(arena: &mut Arena, places: &Places) {
    arena.equalise(places);
}

fn compare(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let len = ring.size;
    looking(ring, equal, len, |a, b| telpher_ops::compare(a, b).is_none(), ffi::memcmp_equal, |a, b| a == b)
}

fn delta_equal(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let len = ring.size;
    let ours = |a: &[u8], b: &[u8]| {
        let mut record = [0; 80];
        let created = delta::create(a, b, 0, &mut record);
        created.record_bytes == 0 && created.bytes_compared == a.len()
    };
    looking(ring, equal, len, ours, ffi::memcmp_equal, |a, b| a == b)
}

/// CRC32C bit by bit, from its definition.
fn crc32c_naive(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 })
    })
}

fn crc_against(ring: &mut Ring<'_>, theirs: impl Fn(&[u8]) -> u32) -> Result<PairResult, ComparisonError> {
    let len = ring.size;
    let ours = |s: &[u8], _: &[u8]| telpher_ops::crc::crc32c(0, s, CrcMode::default());
    looking(ring, |_, _| (), len, ours, |s, _| theirs(s), |s, _| crc32c_naive(s))
}

fn crc_isal(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let isal = ring.isal.expect("run only with ISA-L");
    crc_against(ring, |s| isal.crc32c(s))
}

fn crc_fast(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    crc_against(ring, crc_fast::crc32_iscsi)
}

fn copy_crc_against(ring: &mut Ring<'_>, theirs: impl Fn(&[u8]) -> u32) -> Result<PairResult, ComparisonError> {
    let len = ring.size;
    between(
        ring,
        len,
        |s, d| {
            black_box(telpher_ops::crc::copy_crc32c(s, d, 0, CrcMode::default(), Hint::Cache));
        },
        |s, d| {
            ffi::memcpy(d, s);
            black_box(theirs(s));
        },
        <[u8]>::to_vec,
    )
}

fn copy_crc_isal(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let isal = ring.isal.expect("run only with ISA-L");
    copy_crc_against(ring, |s| isal.crc32c(s))
}

fn copy_crc_fast(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    copy_crc_against(ring, crc_fast::crc32_iscsi)
}

fn dif_insert_against(ring: &mut Ring<'_>, guard: impl Fn(&[u8]) -> u16) -> Result<PairResult, ComparisonError> {
    let len = protected_len(ring.size);
    let ours = |s: &[u8], d: &mut [u8]| {
        dif::insert(&DIF, s, d, &mut TAGS.clone());
    };
    between(ring, len, ours, |s, d| insert_by(s, d, TAGS, &guard), |s| protected(s, TAGS, crc16_naive))
}

fn dif_insert_isal(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let isal = ring.isal.expect("run only with ISA-L");
    dif_insert_against(ring, |s| isal.crc16(s))
}

fn dif_insert_fast(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    dif_insert_against(ring, crc16_fast)
}

fn dif_check_against(ring: &mut Ring<'_>, guard: impl Fn(&[u8]) -> u16) -> Result<PairResult, ComparisonError> {
    let len = protected_len(ring.size);
    let prepare = |arena: &mut Arena, places: &Places| {
        let mut all = *places;
        for _ in 0..all.count() {
            let (src, dst) = arena.next(&mut all);
            insert_by(src, dst, TAGS, &guard);
        }
    };
    let ours = |_: &[u8], d: &[u8]| dif::check(&DIF, d, &mut TAGS.clone()).error.is_none();
    looking(ring, prepare, len, ours, |_, d| check_by(d, &guard), |_, d| check_by(d, crc16_naive))
}

fn dif_check_isal(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    let isal = ring.isal.expect("run only with ISA-L");
    dif_check_against(ring, |s| isal.crc16(s))
}

fn dif_check_fast(ring: &mut Ring<'_>) -> Result<PairResult, ComparisonError> {
    dif_check_against(ring, crc16_fast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_naive_checksum_has_its_check_value() {
        assert_eq!(crc32c_naive(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn every_contest_ends_with_a_ratio_warm_and_cold() {
        let mut arena = Arena::new(2 * telpher_ops::STREAM_BYTES).unwrap();
        let isal = Isal::open();
        for contest in EXPERIMENTS.iter().filter(|c| !c.isal || isal.is_some()) {
            for temperature in [Temperature::Warm, Temperature::Cold] {
                let size = if (contest.takes)(4096) { 4096 } else { telpher_ops::STREAM_BYTES };
                let mut ring = Ring { arena: &mut arena, size, temperature, time: Duration::ZERO, isal };
                let result = (contest.run)(&mut ring);
                let label = format!("{} against {}, {}", contest.name, contest.against, temperature.name());
                assert!(result.as_ref().is_ok_and(|d| d.ratio > 0.0), "{label}: {result:?}");
            }
        }
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let mut arena = Arena::new(4096).unwrap();
        let mut ring =
            Ring { arena: &mut arena, size: 256, temperature: Temperature::Warm, time: Duration::ZERO, isal: None };
        let spoil = |s: &[u8], d: &mut [u8]| {
            d.copy_from_slice(s);
            d[77] ^= 1;
        };
        let result = between(&mut ring, 256, spoil, |s, d| d.copy_from_slice(s), <[u8]>::to_vec);
        assert_eq!(result, Err(ComparisonError::Mismatch(77)));
    }
}
