//! Pairwise comparisons of the operations of DSA 2.x and 3.0 with a copy that reads and writes as many bytes together.
//! There is no other implementation of them, so the bandwidth of the copy is the measure.

use super::buffers::{fill_known, first_difference};
use super::experiments::{BANDWIDTH, ComparisonError, Experiment, Ring, State};
use super::pairwise::{PairResult, duel};
use super::protection::{BLOCK, DIF, TAGS, TUPLE, crc16_fast, protected};
use crate::ffi;
use std::hint::black_box;
use telpher_abi::{ComputeType, DataType, Opcode, Rounding, SglFormat};
use telpher_ops::crc::CrcMode;
use telpher_ops::{Arithmetic, Hint, Kernels, crc64, dif, sgl};
use telpher_os::Random;

/// Sizes of these comparisons. The blocks and elements of all of them divide such a size.
const LARGE: fn(usize) -> bool = |size| size >= 64 << 10 && size.is_multiple_of(4096);

const fn row(op: Opcode, name: &'static str, run: fn(&mut Ring<'_>) -> Compared) -> Experiment {
    Experiment { op, name, against: "memcpy of the same bytes", isal: false, takes: LARGE, goal: BANDWIDTH, run }
}

type Compared = Result<PairResult, ComparisonError>;

/// Converts from one type to another.
macro_rules! conversion {
    ($name:literal, $from:ident => $to:ident) => {
        row(Opcode::TypeConversion, $name, |ring| convert(ring, DataType::$from, DataType::$to))
    };
}

/// Reduces two arrays of a type to one of a type.
macro_rules! reduction {
    ($name:literal, $compute:ident, $from:ident => $to:ident $(, $option:ident: $value:expr)*) => {
        row(Opcode::Reduce, $name, |ring| {
            let arithmetic = Arithmetic { $($option: $value,)* ..Arithmetic::new(DataType::$from, DataType::$to) };
            reduce(ring, &arithmetic, ComputeType::$compute)
        })
    };
}

/// All comparisons with copies.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    row(Opcode::CrcGeneration, "crc64", crc64_alone),
    row(Opcode::CopyCrc, "copy-crc64", copy_crc64),
    row(Opcode::Fill, "fill 16-byte pattern", fill16),
    row(Opcode::DixGenerate, "dix-generate 512", dix_generate),
    row(Opcode::GatherCopy, "gather 64 B", |ring| gather(ring, 64)),
    row(Opcode::GatherCopy, "gather 1 KiB", |ring| gather(ring, 1024)),
    row(Opcode::ScatterCopy, "scatter 64 B", |ring| scatter(ring, 64)),
    row(Opcode::ScatterCopy, "scatter 1 KiB", |ring| scatter(ring, 1024)),
    row(Opcode::ScatterFill, "scatter-fill 1 KiB", |ring| scatter_fill(ring, 1024)),
    row(Opcode::GatherReduce, "gather-reduce add fp32", |ring| gather_reduce(ring, DataType::Fp32, DataType::Fp32)),
    row(Opcode::GatherReduce, "gather-reduce add bf16 to fp32", |ring| {
        gather_reduce(ring, DataType::Bf16, DataType::Fp32)
    }),
    reduction!("add int8", Add, Int8 => Int8),
    reduction!("add int8, saturated", Add, Int8 => Int8, signed: true, saturate: true),
    reduction!("add int32", Add, Int32 => Int32),
    reduction!("add int64, saturated", Add, Int64 => Int64, signed: true, saturate: true),
    reduction!("add int8 to int32", Add, Int8 => Int32, signed: true),
    reduction!("minimum int16", Min, Int16 => Int16, signed: true),
    reduction!("xor int32", Xor, Int32 => Int32),
    reduction!("add fp32", Add, Fp32 => Fp32),
    reduction!("add fp32, rounded down", Add, Fp32 => Fp32, rounding: Rounding::Down),
    reduction!("subtract fp32", Add, Fp32 => Fp32, negate2: true),
    reduction!("minimum fp32", Min, Fp32 => Fp32),
    reduction!("add bf16", Add, Bf16 => Bf16),
    reduction!("add bf16 to fp32", Add, Bf16 => Fp32),
    reduction!("add fp16", Add, Fp16 => Fp16),
    reduction!("maximum fp16", Max, Fp16 => Fp16),
    reduction!("add fp64", Add, Fp64 => Fp64),
    reduction!("add fp8-e4m3", Add, Fp8E4M3 => Fp8E4M3),
    row(Opcode::ReduceDualcast, "reduce-dualcast add fp32", reduce_dualcast),
    conversion!("convert fp32 to bf16", Fp32 => Bf16),
    conversion!("convert bf16 to fp32", Bf16 => Fp32),
    conversion!("convert fp32 to fp16", Fp32 => Fp16),
    conversion!("convert fp16 to fp32", Fp16 => Fp32),
    conversion!("convert fp64 to fp32", Fp64 => Fp32),
    conversion!("convert fp32 to fp64", Fp32 => Fp64),
    conversion!("convert fp32 to fp8-e4m3", Fp32 => Fp8E4M3),
    conversion!("convert bf16 to fp8-e5m2", Bf16 => Fp8E5M2),
    conversion!("convert fp8-e4m3 to fp32", Fp8E4M3 => Fp32),
    conversion!("convert fp8-e5m2 to fp16", Fp8E5M2 => Fp16),
    conversion!("convert int32 to int16", Int32 => Int16),
    conversion!("convert int64 to int8", Int64 => Int8),
    conversion!("convert int8 to int32", Int8 => Int32),
];

/// Compares an operation that reads and writes these numbers of bytes with a copy. `ours` and `expected` return the
/// result that is not in memory, too: a checksum, or exceptions.
fn against_copy<T: PartialEq>(
    ring: &mut Ring<'_>,
    (read, written): (usize, usize),
    ours: impl Fn(&[u8], &mut [u8]) -> T,
    expected: impl Fn(&[u8]) -> (Vec<u8>, T),
) -> Compared {
    let time = ring.time;
    let copied = (read + written) / 2;
    let arena = ring.arena.with_numbers();
    let places = arena.places(read.max(copied), written.max(copied), ring.temperature);
    let mut state = State { arena, places };
    let check = |state: &mut State<'_>| {
        let (src, dst) = state.next();
        let (bytes, number) = expected(&src[..read]);
        fill_known(dst, 99);
        if ours(&src[..read], &mut dst[..written]) != number {
            return Err(ComparisonError::Mismatch(0));
        }
        first_difference(&dst[..written], &bytes).map_or(Ok(()), |at| Err(ComparisonError::Mismatch(at)))
    };
    check(&mut state)?;
    let result = duel(
        time,
        copied as u64,
        &mut state,
        |s| {
            let (src, dst) = s.next();
            black_box(ours(&src[..read], &mut dst[..written]));
        },
        |s| {
            let (src, dst) = s.next();
            ffi::memcpy(&mut dst[..copied], &src[..copied]);
        },
    )?;
    check(&mut state)?;
    Ok(result)
}

/// The 64-bit CRC by another implementation.
fn crc64_fast(data: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, data)
}

fn crc64_alone(ring: &mut Ring<'_>) -> Compared {
    let size = ring.size;
    let ours = |src: &[u8], _: &mut [u8]| crc64::crc64(0, src, CrcMode::default());
    against_copy(ring, (size, 0), ours, |src| (Vec::new(), crc64_fast(src)))
}

fn copy_crc64(ring: &mut Ring<'_>) -> Compared {
    let size = ring.size;
    let ours = |src: &[u8], dst: &mut [u8]| crc64::copy_crc64(src, dst, 0, CrcMode::default(), Hint::Cache);
    against_copy(ring, (size, size), ours, |src| (src.to_vec(), crc64_fast(src)))
}

fn fill16(ring: &mut Ring<'_>) -> Compared {
    const PATTERN: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    let size = ring.size;
    let filled = || (0..size).map(|at| (at % 16).to_le_bytes()[0]).collect();
    against_copy(ring, (0, size), |_, dst| telpher_ops::fill16(dst, PATTERN, Hint::Cache), |_| (filled(), ()))
}

fn dix_generate(ring: &mut Ring<'_>) -> Compared {
    let size = ring.size;
    let ours = |src: &[u8], dst: &mut [u8]| dif::generate(&DIF, src, dst, &mut TAGS.clone());
    against_copy(ring, (size, size / BLOCK * TUPLE), ours, |src| {
        let blocks = protected(src, TAGS, crc16_fast);
        let tuples = blocks.chunks_exact(BLOCK + TUPLE).flat_map(|block| block[BLOCK..].to_vec());
        (tuples.collect(), size / BLOCK)
    })
}

/// A list of all blocks of `size` bytes, in a random order.
fn list(size: usize, block: usize) -> Vec<u8> {
    let blocks = size / block;
    let mut indexes: Vec<u32> = (0..u32::try_from(blocks).expect("a size has fewer blocks")).collect();
    let mut random = Random::new(7);
    for at in (1..blocks).rev() {
        indexes.swap(at, usize::try_from(random.below(at as u64 + 1)).expect("an index"));
    }
    indexes.iter().flat_map(|index| index.to_le_bytes()).collect()
}

/// Returns the offsets of a list's blocks.
fn offsets(list: &[u8], block: usize) -> impl Iterator<Item = u64> + Clone + '_ {
    sgl::addresses(SglFormat::Index32, 0, list, block as u64)
}

/// Returns each offset of a list as an index, and its place in the order.
fn places(list: &[u8], block: usize) -> impl Iterator<Item = (usize, usize)> + Clone + '_ {
    offsets(list, block)
        .enumerate()
        .map(move |(at, offset)| (at * block, usize::try_from(offset).expect("an offset in a buffer")))
}

fn gather(ring: &mut Ring<'_>, block: usize) -> Compared {
    let size = ring.size;
    let list = list(size, block);
    let ours = |src: &[u8], dst: &mut [u8]| sgl::gather(src, offsets(&list, block), block, dst);
    against_copy(ring, (size, size), ours, |src| {
        let mut dst = vec![0; size];
        places(&list, block).for_each(|(at, offset)| dst[at..at + block].copy_from_slice(&src[offset..offset + block]));
        (dst, Ok(()))
    })
}

fn scatter(ring: &mut Ring<'_>, block: usize) -> Compared {
    let size = ring.size;
    let list = list(size, block);
    let ours = |src: &[u8], dst: &mut [u8]| sgl::scatter(src, dst, offsets(&list, block), block);
    against_copy(ring, (size, size), ours, |src| {
        let mut dst = vec![0; size];
        places(&list, block).for_each(|(at, offset)| dst[offset..offset + block].copy_from_slice(&src[at..at + block]));
        (dst, Ok(()))
    })
}

fn scatter_fill(ring: &mut Ring<'_>, block: usize) -> Compared {
    const PATTERN: u64 = 0x0706_0504_0302_0100;
    let size = ring.size;
    let list = list(size, block);
    let filled = || (0..size).map(|at| (at % 8).to_le_bytes()[0]).collect();
    let ours = |_: &[u8], dst: &mut [u8]| sgl::scatter_fill(PATTERN, dst, offsets(&list, block), block);
    against_copy(ring, (0, size), ours, |_| (filled(), Ok(())))
}

/// Adds all blocks of 1 KiB, the largest ones of the published capabilities.
fn gather_reduce(ring: &mut Ring<'_>, input: DataType, output: DataType) -> Compared {
    const BYTES: usize = 1024;
    let size = ring.size;
    let arithmetic = Arithmetic::new(input, output);
    let (block, written) = (BYTES / output.bytes() as usize * input.bytes() as usize, BYTES);
    let list = list(size, block);
    let by = |kernels: Kernels, src: &[u8], dst: &mut [u8]| {
        let blocks = places(&list, block).map(|(_, offset)| &src[offset..offset + block]);
        kernels.reduce_blocks(&arithmetic, ComputeType::Add, blocks, dst)
    };
    against_copy(
        ring,
        (size, written),
        |src, dst| by(Kernels::best(), src, dst),
        |src| {
            let mut dst = vec![0; written];
            let seen = by(Kernels::PORTABLE, src, &mut dst);
            (dst, seen)
        },
    )
}

/// Converts by the fastest kernels; the expected results are those of the portable ones, which the tests of
/// `telpher-ops` compare with an oracle.
fn convert(ring: &mut Ring<'_>, input: DataType, output: DataType) -> Compared {
    let size = ring.size;
    let arithmetic = Arithmetic::new(input, output);
    let written = size / input.bytes() as usize * output.bytes() as usize;
    let ours = |src: &[u8], dst: &mut [u8]| Kernels::best().convert(&arithmetic, src, dst);
    against_copy(ring, (size, written), ours, |src| {
        let mut dst = vec![0; written];
        let seen = Kernels::PORTABLE.convert(&arithmetic, src, &mut dst);
        (dst, seen)
    })
}

/// Reduces one half of the source with the other.
fn reduce(ring: &mut Ring<'_>, arithmetic: &Arithmetic, compute: ComputeType) -> Compared {
    let (size, half) = (ring.size, ring.size / 2);
    let written = half / arithmetic.input.bytes() as usize * arithmetic.output.bytes() as usize;
    let ours = |src: &[u8], dst: &mut [u8]| {
        let (left, right) = src.split_at(half);
        Kernels::best().reduce(arithmetic, compute, left, right, dst)
    };
    against_copy(ring, (size, written), ours, |src| {
        let mut dst = vec![0; written];
        let (left, right) = src.split_at(half);
        let seen = Kernels::PORTABLE.reduce(arithmetic, compute, left, right, &mut dst);
        (dst, seen)
    })
}

fn reduce_dualcast(ring: &mut Ring<'_>) -> Compared {
    let (size, half) = (ring.size, ring.size / 2);
    let arithmetic = Arithmetic::new(DataType::Fp32, DataType::Fp32);
    let ours = |src: &[u8], dst: &mut [u8]| {
        let ((left, right), (dst1, dst2)) = (src.split_at(half), dst.split_at_mut(half));
        telpher_ops::reduce_dualcast(&arithmetic, ComputeType::Add, [left, right], [dst1, dst2])
    };
    against_copy(ring, (size, size), ours, |src| {
        let mut dst = vec![0; half];
        let (left, right) = src.split_at(half);
        let seen = Kernels::PORTABLE.reduce(&arithmetic, ComputeType::Add, left, right, &mut dst);
        (dst.repeat(2), seen)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::{Arena, Temperature};
    use std::time::Duration;

    #[test]
    fn every_comparison_ends_with_a_ratio_warm_and_cold() {
        let size = 64 << 10;
        let mut arena = Arena::new(4 * size).unwrap();
        for contest in EXPERIMENTS {
            for temperature in [Temperature::Warm, Temperature::Cold] {
                let mut ring = Ring { arena: &mut arena, size, temperature, time: Duration::ZERO, isal: None };
                let result = (contest.run)(&mut ring);
                assert!(result.as_ref().is_ok_and(|d| d.ratio > 0.0), "{}, {temperature:?}: {result:?}", contest.name);
            }
        }
    }

    #[test]
    fn a_wrong_byte_and_a_wrong_number_are_found() {
        let size = 64 << 10;
        let mut arena = Arena::new(4 * size).unwrap();
        let mut ring =
            Ring { arena: &mut arena, size, temperature: Temperature::Warm, time: Duration::ZERO, isal: None };
        let copied = |s: &[u8], d: &mut [u8]| {
            d.copy_from_slice(s);
            5
        };
        let against = |ring: &mut Ring<'_>, wrong: usize, number: i32| {
            against_copy(ring, (size, size), copied, |src| {
                let mut expected = src.to_vec();
                expected[wrong] ^= u8::from(wrong > 0);
                (expected, number)
            })
        };
        assert!(against(&mut ring, 0, 5).is_ok());
        assert_eq!(against(&mut ring, 777, 5), Err(ComparisonError::Mismatch(777)));
        assert_eq!(against(&mut ring, 0, 6), Err(ComparisonError::Mismatch(0)));
    }

    #[test]
    fn a_list_names_every_block_once_and_in_no_order() {
        let mut offsets: Vec<u64> = offsets(&list(64 << 10, 1024), 1024).collect();
        assert!(!offsets.is_sorted());
        offsets.sort_unstable();
        assert!(offsets.iter().copied().eq((0..64).map(|at| at * 1024)));
    }
}
