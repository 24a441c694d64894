//! Conversions and reductions with 32-byte vectors: the portable loops, compiled with these instructions.

use crate::arch::portable::compute as portable;
use crate::arch::portable::step::Step;
use crate::number::Arithmetic;
use telpher_abi::ComputeResult;

#[target_feature(enable = "avx2")]
pub(in crate::arch) fn convert(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    portable::convert_with(arithmetic, &|src, dst| portable::convert_any(arithmetic, src, dst), src, dst)
}

#[target_feature(enable = "avx2")]
pub(in crate::arch) fn combine(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
    portable::combine(step, left, right, dst)
}
