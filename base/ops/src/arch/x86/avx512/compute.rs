//! Conversions and reductions with 64-byte vectors: kernels of their own for the common floating-point formats, else
//! the portable loops, compiled with these instructions.

pub(in crate::arch) use super::convert::convert;

use super::{floats, wider};
use crate::arch::portable::compute as portable;
use crate::arch::portable::step::Step;
use telpher_abi::ComputeResult;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(in crate::arch) fn combine(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
    match floats::combine(step, left, right, dst) {
        Some(seen) => seen,
        None if step.arithmetic.input.is_float() && !step.has_loop() => wider::combine(step, left, right, dst),
        None => portable::combine(step, left, right, dst),
    }
}
