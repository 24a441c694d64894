//! The numbers of the compute operations: types, rounding, exceptions, and one element's arithmetic in integers.
//!
//! Everything here is exact integer arithmetic with one rounding or one range check at the end. It reads and changes no
//! floating-point state of the processor, so results do not depend on what a program set there. The vector kernels in
//! `arch` compute ordinary numbers faster, and pass every block with another number to this module.
//!
//! Sources: SPEC §8.1.9 to §8.1.14, Table 8-11 (exceptions), App. E (8-bit formats). Choices that the text leaves open:
//!
//! 1. Reduce converts, negates and computes exactly, and rounds or limits once, into the output type.
//! 2. A result underflows if it is not zero and, rounded with an unbounded exponent, below the smallest normal number.
//!    It need not be inexact.
//! 3. A number too large for E4M3 becomes NaN or the largest finite number ([`E4m3Overflow`]); so does an infinity.
//! 4. The sum of infinities with opposite signs is the negative quiet NaN without payload, as on x86-64.
//! 5. −0 is smaller than +0.
//! 6. A NaN keeps its sign and the high bits of its payload. E4M3 has one NaN of each sign, without payload.
//! 7. An unsigned integer is negated as a true value: what is below zero wraps, or becomes 0 with saturation.
#![forbid(unsafe_code)]

mod arithmetic;
pub(crate) mod float;
pub(crate) mod integer;

pub use arithmetic::{Arithmetic, E4m3Overflow};
pub(crate) use arithmetic::{Operand, size, when};
use telpher_abi::{ComputeResult, ComputeType};

/// Converts one element.
#[must_use]
pub(crate) fn convert(arithmetic: &Arithmetic, bits: u64) -> (u64, ComputeResult) {
    let operand = Operand::element(arithmetic.input, bits, arithmetic.negate1);
    if !arithmetic.output.is_float() {
        integer::convert(arithmetic, operand)
    } else {
        float::convert(arithmetic, operand)
    }
}

/// Computes one element of the result.
#[must_use]
pub(crate) fn combine(
    arithmetic: &Arithmetic,
    compute: ComputeType,
    left: Operand,
    right: Operand,
) -> (u64, ComputeResult) {
    if !arithmetic.output.is_float() {
        integer::combine(arithmetic, compute, left, right)
    } else {
        float::combine(arithmetic, compute, left, right)
    }
}
