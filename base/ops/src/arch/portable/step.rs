//! One computation on two operands, and the loops that compute it element by element.

use crate::number::{self, Arithmetic, Operand, size};
use telpher_abi::{ComputeResult, ComputeType, DataType, Rounding};

/// Reads an element of up to 8 bytes.
#[inline]
pub(super) fn load(element: &[u8]) -> u64 {
    element.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

/// Writes the low bytes of a result.
#[inline]
pub(super) fn store(bits: u64, element: &mut [u8]) {
    let len = element.len();
    element.copy_from_slice(&bits.to_le_bytes()[..len]);
}

/// Converts element by element.
#[cold]
pub(super) fn convert_slowly(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    let (size, result) = (size(arithmetic.input), size(arithmetic.output));
    let mut seen = ComputeResult::empty();
    for (src, dst) in src.chunks_exact(size).zip(dst.chunks_exact_mut(result)) {
        let (bits, exceptions) = number::convert(arithmetic, load(src));
        store(bits, dst);
        seen |= exceptions;
    }
    seen
}

/// The computation on the left and right operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'a> {
    pub(crate) arithmetic: &'a Arithmetic,
    pub(crate) compute: ComputeType,
    /// True if the left operand is the result of earlier steps: it has the output type, and is not negated.
    pub(crate) folds: bool,
}

impl Step<'_> {
    /// The type of the left operand.
    pub(in crate::arch) fn left(&self) -> DataType {
        if self.folds { self.arithmetic.output } else { self.arithmetic.input }
    }

    /// Returns whether the operands are negated.
    pub(in crate::arch) fn negated(&self) -> (bool, bool) {
        let Arithmetic { negate1, negate2, .. } = *self.arithmetic;
        if self.folds { (false, negate1) } else { (negate1, negate2) }
    }

    /// Returns true if [`combine`] has a loop for the computation on floating-point elements.
    pub(in crate::arch) fn has_loop(&self) -> bool {
        let Arithmetic { input, output, rounding, .. } = *self.arithmetic;
        match self.compute {
            ComputeType::Min | ComputeType::Max => input == output,
            ComputeType::Add => {
                rounding == Rounding::NearestEven
                    && (input == output || output == DataType::Fp32 && input != DataType::Fp64)
            }
            _ => false,
        }
    }

    /// Computes element by element.
    #[cold]
    pub(in crate::arch) fn slowly(&self, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
        let (negate_left, negate_right) = self.negated();
        let input = self.arithmetic.input;
        let elements = left.chunks_exact(size(self.left())).zip(right.chunks_exact(size(input)));
        let mut seen = ComputeResult::empty();
        for ((left, right), dst) in elements.zip(dst.chunks_exact_mut(size(self.arithmetic.output))) {
            let left = Operand { intermediate: self.folds, ..Operand::element(self.left(), load(left), negate_left) };
            let right = Operand::element(input, load(right), negate_right);
            let (bits, exceptions) = number::combine(self.arithmetic, self.compute, left, right);
            store(bits, dst);
            seen |= exceptions;
        }
        seen
    }
}
