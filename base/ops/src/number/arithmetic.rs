//! Types and options of a computation, and its operands.
#![forbid(unsafe_code)]

use telpher_abi::{ComputeFlags, ComputeResult, DataType, Descriptor, Rounding};

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

    /// Returns the types and options of a descriptor; `None` if a type does not exist.
    #[must_use]
    pub fn of(d: &Descriptor) -> Option<Arithmetic> {
        let flags = ComputeFlags::from_bits_retain(d.compute_flags());
        Some(Arithmetic {
            input: DataType::from_code(d.input_type_code())?,
            output: DataType::from_code(d.output_type_code())?,
            negate1: flags.contains(ComputeFlags::NEGATE_1),
            negate2: flags.contains(ComputeFlags::NEGATE_2),
            flush_to_zero: flags.contains(ComputeFlags::FLUSH_TO_ZERO),
            denormals_are_zero: flags.contains(ComputeFlags::DENORMALS_ARE_ZERO),
            rounding: Rounding::from_code(flags.rounding_code()).unwrap_or(Rounding::NearestEven),
            signed: flags.contains(ComputeFlags::SIGNED),
            saturate: flags.contains(ComputeFlags::SATURATE),
            e4m3_overflow: E4m3Overflow::Nan,
        })
    }

    /// Writes types and options into a descriptor. A descriptor cannot say what a number too large for E4M3 becomes.
    #[must_use]
    pub fn write_to(&self, d: Descriptor) -> Descriptor {
        let mut flags = ComputeFlags::empty().with_rounding(self.rounding);
        flags.set(ComputeFlags::NEGATE_1, self.negate1);
        flags.set(ComputeFlags::NEGATE_2, self.negate2);
        flags.set(ComputeFlags::FLUSH_TO_ZERO, self.flush_to_zero);
        flags.set(ComputeFlags::DENORMALS_ARE_ZERO, self.denormals_are_zero);
        flags.set(ComputeFlags::SIGNED, self.signed);
        flags.set(ComputeFlags::SATURATE, self.saturate);
        d.with_input_type_code(self.input.code())
            .with_output_type_code(self.output.code())
            .with_compute_flags(flags.bits())
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
