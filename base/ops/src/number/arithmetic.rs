//! Types and options of a computation, and its operands.
#![forbid(unsafe_code)]

use telpher_abi::{ComputeResult, DataType, Rounding};

/// What a number too large for E4M3 becomes, where another format has infinity. The specification's footnote on it is
/// not readable in the public text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum E4m3Overflow {
    /// NaN, by the convention of the Open Compute Project's 8-bit formats.
    #[default]
    Nan,
    /// The largest finite number, 448.
    Largest,
}

/// Returns `seen` if `condition` holds, else nothing.
#[inline]
pub(crate) const fn when(condition: bool, seen: ComputeResult) -> ComputeResult {
    if condition { seen } else { ComputeResult::empty() }
}

/// Returns the bytes of an element.
#[inline]
pub(crate) const fn size(data_type: DataType) -> usize {
    data_type.bytes() as usize
}

/// The types and options of a computation: a descriptor's data types and compute flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Arithmetic {
    /// The type of the sources.
    pub input: DataType,
    /// The type of the result.
    pub output: DataType,
    /// Negate the elements of source 1, and of every source of a [`fold`](crate::reduce::fold).
    pub negate1: bool,
    /// Negate the elements of source 2.
    pub negate2: bool,
    /// A floating-point result that underflows becomes zero.
    pub flush_to_zero: bool,
    /// A denormal operand counts as zero.
    pub denormals_are_zero: bool,
    /// How floating-point results are rounded.
    pub rounding: Rounding,
    /// Integers are signed.
    pub signed: bool,
    /// An integer result out of range becomes the nearest one in range; else its high bits are dropped.
    pub saturate: bool,
    /// What a number too large for E4M3 becomes.
    pub e4m3_overflow: E4m3Overflow,
}

impl Arithmetic {
    /// From `input` to `output` without options: unsigned, wrapping, rounding to the nearest.
    #[must_use]
    pub const fn new(input: DataType, output: DataType) -> Arithmetic {
        Arithmetic {
            input,
            output,
            negate1: false,
            negate2: false,
            flush_to_zero: false,
            denormals_are_zero: false,
            rounding: Rounding::NearestEven,
            signed: false,
            saturate: false,
            e4m3_overflow: E4m3Overflow::Nan,
        }
    }

    /// Returns true if both types are integers, or both are floating-point.
    #[must_use]
    pub const fn has_one_class(&self) -> bool {
        self.input.is_float() == self.output.is_float()
    }
}

/// One operand: its type, its bits, and whether it is negated and its denormals noticed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub(crate) data_type: DataType,
    pub(crate) bits: u64,
    pub(crate) negate: bool,
    /// True for the result of an earlier step: its denormals are used and not reported.
    pub(crate) intermediate: bool,
}

impl Operand {
    /// An element of a source.
    #[inline]
    pub(crate) fn element(data_type: DataType, bits: u64, negate: bool) -> Operand {
        Operand { data_type, bits, negate, intermediate: false }
    }
}
