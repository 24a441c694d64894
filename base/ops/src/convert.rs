//! Type Conversion: elements of one type to another. Source of the meaning: SPEC §8.3.19; the choices that the text
//! leaves open are listed in [`crate::number`].
#![forbid(unsafe_code)]

use crate::dispatch::Kernels;
use crate::number::{Arithmetic, size};
use telpher_abi::ComputeResult;

/// Converts the elements of `src` to `dst`, and returns what happened to any of them.
///
/// ```
/// use telpher_abi::{ComputeResult, DataType};
/// use telpher_ops::{Arithmetic, convert};
///
/// let mut halves = [0; 4];
/// let singles = [1.0_f32.to_le_bytes(), 1e30_f32.to_le_bytes()];
/// let to_half = Arithmetic::new(DataType::Fp32, DataType::Fp16);
/// assert_eq!(convert(&to_half, singles.as_flattened(), &mut halves), ComputeResult::OVERFLOW);
/// assert_eq!(halves, [0x00, 0x3c, 0x00, 0x7c]); // 1 and infinity
/// ```
///
/// # Panics
/// If one type is an integer and the other is not, or if the slices have not the same number of whole elements.
pub fn convert(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    Kernels::best().convert(arithmetic, src, dst)
}

impl Kernels {
    /// [`convert`](fn@convert) with these kernels.
    ///
    /// # Panics
    /// As for [`convert`](fn@convert).
    pub fn convert(self, arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
        assert!(arithmetic.has_one_class(), "integers are converted to integers, and floating point to floating point");
        let (size, result) = (size(arithmetic.input), size(arithmetic.output));
        assert!(src.len().is_multiple_of(size) && dst.len().is_multiple_of(result), "slices hold whole elements");
        assert_eq!(src.len() / size, dst.len() / result, "both slices have the same number of elements");
        self.convert_elements(arithmetic, src, dst)
    }
}
