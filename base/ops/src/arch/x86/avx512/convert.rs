//! Conversions with 64-byte vectors: kernels of their own for the common floating-point formats, else the portable
//! loops, compiled with these instructions.

use super::{float8, floats};
use crate::arch::portable::compute as portable;
use crate::number::Arithmetic;
use telpher_abi::ComputeResult;

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
pub(in crate::arch) fn convert(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    let again = |src: &[u8], dst: &mut [u8]| portable::convert_any(arithmetic, src, dst);
    if let Some(seen) = floats::convert(arithmetic, &again, src, dst) {
        return seen;
    }
    if let Some(seen) = float8::convert(arithmetic, &again, src, dst) {
        return seen;
    }
    portable::convert_with(arithmetic, &again, src, dst)
}
