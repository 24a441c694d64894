//! Reduce: two arrays, or many, become one. Source of the meaning: SPEC §8.3.20 to §8.3.22; the choices that the text
//! leaves open are listed in [`crate::number`].
#![forbid(unsafe_code)]

use crate::arch::Step;
use crate::dispatch::Kernels;
use crate::number::{Arithmetic, size};
use telpher_abi::{ComputeResult, ComputeType};

/// Computes each element of `dst` from those of `src1` and `src2`, and returns what happened to any of them.
///
/// ```
/// use telpher_abi::{ComputeResult, ComputeType, DataType};
/// use telpher_ops::{Arithmetic, reduce};
///
/// let add = Arithmetic { saturate: true, ..Arithmetic::new(DataType::Int8, DataType::Int8) };
/// let mut sums = [0; 2];
/// assert_eq!(reduce(&add, ComputeType::Add, &[1, 200], &[2, 100], &mut sums), ComputeResult::OVERFLOW);
/// assert_eq!(sums, [3, 255]);
/// ```
///
/// # Panics
/// If one type is an integer and the other is not, if a logical computation has floating-point elements, or if the
/// slices have not the same number of whole elements.
pub fn reduce(
    arithmetic: &Arithmetic,
    compute: ComputeType,
    src1: &[u8],
    src2: &[u8],
    dst: &mut [u8],
) -> ComputeResult {
    Kernels::best().reduce(arithmetic, compute, src1, src2, dst)
}

/// Computes each element of `dst`, the result of earlier blocks, with that of one more block, `src`.
///
/// The first block is [converted](fn@crate::convert); then every other one is folded, in their order.
///
/// # Panics
/// As for [`reduce`](fn@reduce).
pub fn fold(arithmetic: &Arithmetic, compute: ComputeType, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    Kernels::best().fold(arithmetic, compute, src, dst)
}

/// Bytes of the earlier result that [`fold`] copies at a time.
const PIECE: usize = 4096;

fn check(arithmetic: &Arithmetic, compute: ComputeType, src: &[u8], dst: &[u8]) {
    assert!(arithmetic.has_one_class(), "integers become integers, and floating point becomes floating point");
    assert!(compute.is_arithmetic() || !arithmetic.input.is_float(), "only integers have logical computations");
    let (size, result) = (size(arithmetic.input), size(arithmetic.output));
    assert!(src.len().is_multiple_of(size) && dst.len().is_multiple_of(result), "slices hold whole elements");
    assert_eq!(src.len() / size, dst.len() / result, "all slices have the same number of elements");
}

impl Kernels {
    /// [`reduce`](fn@reduce) with these kernels.
    ///
    /// # Panics
    /// As for [`reduce`](fn@reduce).
    pub fn reduce(
        self,
        arithmetic: &Arithmetic,
        compute: ComputeType,
        src1: &[u8],
        src2: &[u8],
        dst: &mut [u8],
    ) -> ComputeResult {
        check(arithmetic, compute, src1, dst);
        assert_eq!(src1.len(), src2.len(), "both sources have the same length");
        self.combine_elements(&Step { arithmetic, compute, folds: false }, src1, src2, dst)
    }

    /// [`fold`] with these kernels.
    ///
    /// # Panics
    /// As for [`fold`].
    pub fn fold(self, arithmetic: &Arithmetic, compute: ComputeType, src: &[u8], dst: &mut [u8]) -> ComputeResult {
        check(arithmetic, compute, src, dst);
        let step = Step { arithmetic, compute, folds: true };
        let (size, result) = (size(arithmetic.input), size(arithmetic.output));
        let mut earlier = [0; PIECE];
        let mut seen = ComputeResult::empty();
        for (src, dst) in src.chunks(PIECE / result * size).zip(dst.chunks_mut(PIECE)) {
            let earlier = &mut earlier[..dst.len()];
            earlier.copy_from_slice(dst);
            seen |= self.combine_elements(&step, earlier, src, dst);
        }
        seen
    }
}
