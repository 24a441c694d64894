//! Integers: the true value in 128 bits, then one range check.
#![forbid(unsafe_code)]

use super::arithmetic::{Arithmetic, Operand, size, when};
use telpher_abi::{ComputeResult, ComputeType, DataType};

/// Bits of a type.
fn width(data_type: DataType) -> usize {
    8 * size(data_type)
}

/// Returns an operand's true value; fits 65 bits and a sign.
fn value(signed: bool, operand: Operand) -> i128 {
    let unused = 64 - width(operand.data_type);
    let shifted = operand.bits << unused;
    let value = if signed { i128::from(shifted.cast_signed() >> unused) } else { i128::from(shifted >> unused) };
    if operand.negate { -value } else { value }
}

/// Brings a true value into the range of the output type.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "keeps the low bits on purpose")]
fn in_range(arithmetic: &Arithmetic, value: i128) -> (u64, ComputeResult) {
    let width = width(arithmetic.output);
    let (least, most) =
        if arithmetic.signed { (-(1 << (width - 1)), (1 << (width - 1)) - 1) } else { (0, (1 << width) - 1) };
    let limited = value.clamp(least, most);
    let kept = if arithmetic.saturate { limited } else { value };
    (kept as u64 & (u64::MAX >> (64 - width)), when(limited != value, ComputeResult::OVERFLOW))
}

pub(crate) fn convert(arithmetic: &Arithmetic, operand: Operand) -> (u64, ComputeResult) {
    in_range(arithmetic, value(arithmetic.signed, operand))
}

pub(crate) fn combine(
    arithmetic: &Arithmetic,
    compute: ComputeType,
    left: Operand,
    right: Operand,
) -> (u64, ComputeResult) {
    let [a, b] = [left, right].map(|operand| {
        let value = value(arithmetic.signed, operand);
        // The bits of a negated unsigned operand are its two's complement in the output type.
        let bits = !compute.is_arithmetic() && operand.negate && !arithmetic.signed;
        if bits { value & ((1 << width(arithmetic.output)) - 1) } else { value }
    });
    let value = match compute {
        ComputeType::Add => a + b,
        ComputeType::And => a & b,
        ComputeType::Or => a | b,
        ComputeType::Xor => a ^ b,
        ComputeType::Min => a.min(b),
        ComputeType::Max => a.max(b),
    };
    in_range(arithmetic, value)
}
