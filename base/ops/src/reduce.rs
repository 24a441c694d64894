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

/// Bytes of results that are computed before they are copied to the second destination, from the first-level cache.
const DUALCAST_PIECE: usize = 8192;

/// [`reduce`](fn@reduce) of `sources` to both destinations.
///
/// # Panics
/// As for [`reduce`](fn@reduce), and if the destinations differ in length.
pub fn reduce_dualcast(
    arithmetic: &Arithmetic,
    compute: ComputeType,
    sources: [&[u8]; 2],
    destinations: [&mut [u8]; 2],
) -> ComputeResult {
    Kernels::best().reduce_dualcast(arithmetic, compute, sources, destinations)
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

/// Computes each element of `dst` from those of all `blocks`, in their order: Gather Reduce. Without blocks, `dst`
/// stays as it is.
///
/// # Panics
/// As for [`reduce`](fn@reduce), for any block.
pub fn reduce_blocks<'a>(
    arithmetic: &Arithmetic,
    compute: ComputeType,
    blocks: impl Iterator<Item = &'a [u8]> + Clone,
    dst: &mut [u8],
) -> ComputeResult {
    Kernels::best().reduce_blocks(arithmetic, compute, blocks, dst)
}

/// Bytes of the earlier result that [`fold`] copies at a time.
const PIECE: usize = 1024;
/// Bytes of the result that [`reduce_blocks`] computes at a time, from all blocks.
const BLOCKS_PIECE: usize = 4096;

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

    /// [`reduce_dualcast`] with these kernels.
    ///
    /// # Panics
    /// As for [`reduce_dualcast`].
    pub fn reduce_dualcast(
        self,
        arithmetic: &Arithmetic,
        compute: ComputeType,
        [src1, src2]: [&[u8]; 2],
        [dst1, dst2]: [&mut [u8]; 2],
    ) -> ComputeResult {
        check(arithmetic, compute, src1, dst1);
        assert_eq!(src1.len(), src2.len(), "both sources have the same length");
        assert_eq!(dst1.len(), dst2.len(), "both destinations have the same length");
        let step = Step { arithmetic, compute, folds: false };
        let piece = DUALCAST_PIECE / size(arithmetic.output) * size(arithmetic.input);
        let sources = src1.chunks(piece).zip(src2.chunks(piece));
        let destinations = dst1.chunks_mut(DUALCAST_PIECE).zip(dst2.chunks_mut(DUALCAST_PIECE));
        let mut seen = ComputeResult::empty();
        for ((src1, src2), (dst1, dst2)) in sources.zip(destinations) {
            seen |= self.combine_elements(&step, src1, src2, dst1);
            dst2.copy_from_slice(dst1);
        }
        seen
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
    /// [`reduce_blocks`] with these kernels.
    ///
    /// # Panics
    /// As for [`reduce_blocks`].
    pub fn reduce_blocks<'a>(
        self,
        arithmetic: &Arithmetic,
        compute: ComputeType,
        blocks: impl Iterator<Item = &'a [u8]> + Clone,
        dst: &mut [u8],
    ) -> ComputeResult {
        let step = Step { arithmetic, compute, folds: true };
        let block_piece = BLOCKS_PIECE / size(arithmetic.output) * size(arithmetic.input);
        let block_bytes = dst.len() / size(arithmetic.output) * size(arithmetic.input);
        // The result so far, and with one more block; a block's step swaps both.
        let mut results = [[0; BLOCKS_PIECE]; 2];
        let mut seen = ComputeResult::empty();
        for (at, dst) in dst.chunks_mut(BLOCKS_PIECE).enumerate() {
            let [mut earlier, mut later] = results.each_mut().map(|result| &mut result[..dst.len()]);
            let from = at * block_piece;
            let len = dst.len() / size(arithmetic.output) * size(arithmetic.input);
            let mut any = false;
            for block in blocks.clone() {
                assert_eq!(block.len(), block_bytes, "every block has as many elements as the result");
                let block = &block[from..from + len];
                if any {
                    seen |= self.combine_elements(&step, earlier, block, later);
                    std::mem::swap(&mut earlier, &mut later);
                } else {
                    check(arithmetic, compute, block, earlier);
                    seen |= self.convert_elements(arithmetic, block, earlier);
                    any = true;
                }
            }
            if any {
                dst.copy_from_slice(earlier);
            }
        }
        seen
    }
}
