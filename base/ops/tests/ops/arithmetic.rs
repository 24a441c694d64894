//! What the tests of the arithmetic share: numbers to try, and the comparison with the oracle.
#![allow(unreachable_pub, reason = "a module of each test file")]
#![allow(dead_code, reason = "each test file uses its own part")]

use crate::exact::{self, LONG, SHORT};
use telpher_abi::{ComputeType, DataType, Rounding};
use telpher_ops::{Arithmetic, E4m3Overflow, Kernels};

pub const FLOATS: [DataType; 6] =
    [DataType::Fp8E5M2, DataType::Fp8E4M3, DataType::Fp16, DataType::Bf16, DataType::Fp32, DataType::Fp64];
pub const INTEGERS: [DataType; 4] = [DataType::Int8, DataType::Int16, DataType::Int32, DataType::Int64];
pub const SUMS_AND_ORDERS: [ComputeType; 3] = [ComputeType::Add, ComputeType::Min, ComputeType::Max];

pub fn bytes_of(data_type: DataType, elements: &[u64]) -> Vec<u8> {
    let size = data_type.bytes() as usize;
    elements.iter().flat_map(|bits| bits.to_le_bytes()[..size].to_vec()).collect()
}

pub fn elements_of(data_type: DataType, bytes: &[u8]) -> Vec<u64> {
    let size = data_type.bytes() as usize;
    bytes
        .chunks_exact(size)
        .map(|bytes| bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte)))
        .collect()
}

/// Compares a conversion of all `elements` with the oracle's, element by element, and the exceptions of all.
pub fn check_conversion(a: &Arithmetic, elements: &[u64]) {
    let expected: Vec<(u64, u8)> = elements
        .iter()
        .map(|bits| match () {
            () if !a.input.is_float() => exact::convert_integer(a, *bits),
            () if a.input == DataType::Fp64 || a.output == DataType::Fp64 => exact::convert::<LONG>(a, *bits),
            () => exact::convert::<SHORT>(a, *bits),
        })
        .collect();
    let seen = expected.iter().fold(0, |seen, (_, one)| seen | one);
    let src = bytes_of(a.input, elements);
    for kernels in Kernels::available() {
        let mut dst = vec![0xee; elements.len() * a.output.bytes() as usize];
        let result = kernels.convert(a, &src, &mut dst);
        let results = elements_of(a.output, &dst);
        for ((bits, (expected, _)), result) in elements.iter().zip(&expected).zip(results) {
            assert_eq!(result, *expected, "{bits:#x} to {result:#x} instead of {expected:#x}: {a:?} {kernels:?}");
        }
        assert_eq!(result.bits(), seen, "{a:?} {kernels:?}");
        // The exceptions of each element alone, by the careful path.
        for (bits, (expected, seen)) in elements.iter().zip(&expected).step_by(7) {
            let mut dst = vec![0; a.output.bytes() as usize];
            let result = kernels.convert(a, &bytes_of(a.input, &[*bits]), &mut dst);
            assert_eq!((elements_of(a.output, &dst)[0], result.bits()), (*expected, *seen), "{bits:#x} {a:?}");
        }
    }
}

pub fn check_reduction(a: &Arithmetic, compute: ComputeType, pairs: &[(u64, u64)]) {
    let reduced = |x, y| match () {
        () if !a.input.is_float() => exact::reduce_integers(a, compute, x, y),
        () if a.input == DataType::Fp64 || a.output == DataType::Fp64 => exact::reduce::<LONG>(a, compute, x, y),
        () => exact::reduce::<SHORT>(a, compute, x, y),
    };
    let expected: Vec<(u64, u8)> = pairs.iter().map(|(x, y)| reduced(*x, *y)).collect();
    let seen = expected.iter().fold(0, |seen, (_, one)| seen | one);
    let (left, right): (Vec<u64>, Vec<u64>) = pairs.iter().copied().unzip();
    for kernels in Kernels::available() {
        let mut dst = vec![0xee; pairs.len() * a.output.bytes() as usize];
        let result = kernels.reduce(a, compute, &bytes_of(a.input, &left), &bytes_of(a.input, &right), &mut dst);
        for (((x, y), (expected, _)), result) in pairs.iter().zip(&expected).zip(elements_of(a.output, &dst)) {
            assert_eq!(
                result, *expected,
                "{x:#x} {compute:?} {y:#x}: {result:#x} instead of {expected:#x}: {a:?} {kernels:?}"
            );
        }
        assert_eq!(result.bits(), seen, "{compute:?} {a:?} {kernels:?}");
    }
}

/// Bits with every exponent and the mantissas around the places where formats round.
pub fn edges(data_type: DataType) -> Vec<u64> {
    let (exponents, mantissa_bits) = match data_type {
        DataType::Fp8E5M2 | DataType::Fp8E4M3 => return (0..0x100).collect(),
        DataType::Fp16 => (1 << 5, 10),
        DataType::Bf16 => (1 << 8, 7),
        DataType::Fp32 => (1 << 8, 23),
        _ => (1 << 11, 52),
    };
    let mut bits = Vec::new();
    let ones = (1_u64 << mantissa_bits) - 1;
    let mut mantissas = vec![0, 1, 2, 3, ones, ones - 1, 0x5555_5555_5555_5555 & ones];
    // Ties and their neighbours at each number of bits that a narrower format keeps.
    for dropped in [1, 3, 13, 16, 20, 21, 29].into_iter().filter(|dropped| *dropped < mantissa_bits) {
        let half = 1 << (dropped - 1);
        for odd in [0, 2 * half] {
            mantissas.extend([half - 1, half, half + 1].map(|low: u64| (low + odd) & ones));
            mantissas.extend([half - 1, half, half + 1].map(|low: u64| ((ones & !(2 * half - 1)) - odd) & ones | low));
        }
    }
    mantissas.sort_unstable();
    mantissas.dedup();
    // All exponents of up to 8 bits; of 11 those at both ends, around 1 and around the limits of FP32.
    let near = |exponent: u64| {
        exponents <= 256 || [0_u64, 873, 897, 1023, 1151, 2046].iter().any(|e| e.abs_diff(exponent) < 3)
    };
    for exponent in (0..exponents).filter(|exponent| near(*exponent)) {
        for mantissa in &mantissas {
            let magnitude = exponent << mantissa_bits | mantissa;
            bits.extend([magnitude, magnitude | (exponents << mantissa_bits)]);
        }
    }
    bits
}

/// A few numbers of each kind, for pairs.
pub fn few(data_type: DataType) -> Vec<u64> {
    let (exponent_bits, mantissa_bits) = match data_type {
        DataType::Fp8E5M2 => (5, 2),
        DataType::Fp8E4M3 => (4, 3),
        DataType::Fp16 => (5, 10),
        DataType::Bf16 => (8, 7),
        DataType::Fp32 => (8, 23),
        _ => (11, 52),
    };
    let (top, one, ones) =
        ((1_u64 << exponent_bits) - 1, (1_u64 << (exponent_bits - 1)) - 1, (1_u64 << mantissa_bits) - 1);
    let mut bits = Vec::new();
    for exponent in
        [0, 1, 2, one - 1, one, one + mantissa_bits, one + mantissa_bits + 1, one + mantissa_bits + 2, top - 1, top]
    {
        for mantissa in [0, 1, 2, ones / 2, ones / 2 + 1, ones - 1, ones] {
            let magnitude = exponent.min(top) << mantissa_bits | mantissa;
            bits.extend([magnitude, magnitude | (top + 1) << mantissa_bits]);
        }
    }
    bits
}

pub fn pairs(elements: &[u64]) -> Vec<(u64, u64)> {
    elements.iter().flat_map(|x| elements.iter().map(move |y| (*x, *y))).collect()
}

pub fn options(a: Arithmetic, rounding: Rounding, number: usize) -> Arithmetic {
    Arithmetic {
        rounding,
        flush_to_zero: number & 1 != 0,
        denormals_are_zero: number & 2 != 0,
        negate1: number & 4 != 0,
        negate2: number & 8 != 0,
        e4m3_overflow: if number & 4 == 0 { E4m3Overflow::Nan } else { E4m3Overflow::Largest },
        ..a
    }
}
