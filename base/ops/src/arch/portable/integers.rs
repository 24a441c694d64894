//! Conversions and computations on integers, in loops without branches. None of their elements is exceptional.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::inline_always,
    reason = "moves bits between widths; the vector levels compile these loops with their own instructions"
)]

use super::step::{Step, convert_slowly};
use crate::number::{Arithmetic, size, when};
use telpher_abi::{ComputeResult, ComputeType, DataType};

/// Converts integers of one type to another.
macro_rules! convert_integers {
    ($src:ident, $dst:ident, $saturate:expr, $from:ty => $to:ty) => {{
        let mut lost = false;
        let sources = $src.as_chunks::<{ size_of::<$from>() }>().0;
        for (src, dst) in sources.iter().zip($dst.as_chunks_mut::<{ size_of::<$to>() }>().0) {
            let value = <$from>::from_le_bytes(*src);
            let kept = if size_of::<$to>() < size_of::<$from>() && $saturate {
                // Only evaluated for the narrower type, whose limits the wider one holds.
                value.clamp(<$to>::MIN as $from, <$to>::MAX as $from) as $to
            } else {
                value as $to
            };
            lost |= kept as $from != value;
            *dst = kept.to_le_bytes();
        }
        when(lost, ComputeResult::OVERFLOW)
    }};
}

/// Selects the loop of two integer types.
macro_rules! integer_pairs {
    (
        $arithmetic:ident, $src:ident, $dst:ident:
        $($from:pat, $to:pat => $u:ty, $s:ty => $v:ty, $t:ty;)*
    ) => {
        match ($arithmetic.input, $arithmetic.output) {
            $(($from, $to) => match ($arithmetic.signed, $arithmetic.saturate) {
                (false, false) => convert_integers!($src, $dst, false, $u => $v),
                (false, true) => convert_integers!($src, $dst, true, $u => $v),
                (true, false) => convert_integers!($src, $dst, false, $s => $t),
                (true, true) => convert_integers!($src, $dst, true, $s => $t),
            },)*
            _ => {
                $dst.copy_from_slice($src);
                ComputeResult::empty()
            }
        }
    };
}

/// Converts whole elements; both slices have the same number of them.
#[inline(always)]
pub(super) fn convert(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    if arithmetic.negate1 { convert_negated(arithmetic, src, dst) } else { convert_integers(arithmetic, src, dst) }
}

/// Converts integers without negation.
#[inline(always)]
fn convert_integers(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    use DataType::{Int8, Int16, Int32, Int64};
    integer_pairs! {
        arithmetic, src, dst:
        Int8, Int16 => u8, i8 => u16, i16;
        Int8, Int32 => u8, i8 => u32, i32;
        Int8, Int64 => u8, i8 => u64, i64;
        Int16, Int8 => u16, i16 => u8, i8;
        Int16, Int32 => u16, i16 => u32, i32;
        Int16, Int64 => u16, i16 => u64, i64;
        Int32, Int8 => u32, i32 => u8, i8;
        Int32, Int16 => u32, i32 => u16, i16;
        Int32, Int64 => u32, i32 => u64, i64;
        Int64, Int8 => u64, i64 => u8, i8;
        Int64, Int16 => u64, i64 => u16, i16;
        Int64, Int32 => u64, i64 => u32, i32;
    }
}

/// Converts negated integers: those of up to 32 bits as 64-bit ones, which hold every true value.
#[inline(always)]
fn convert_negated(arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
    if size(arithmetic.input) > 4 {
        return convert_slowly(arithmetic, src, dst);
    }
    let negated = Step { arithmetic, compute: ComputeType::Add, folds: false };
    negated.in_64_bits(src, None, dst)
}

/// Elements of a piece that is computed in a wider type.
const PIECE: usize = 512;

/// Returns the smallest and largest integer of a type, within those of 64 bits.
fn limits(data_type: DataType, signed: bool) -> (i64, i64) {
    let unused = 64 - 8 * size(data_type);
    match (signed, unused) {
        (true, _) => (i64::MIN >> unused, i64::MAX >> unused),
        (false, 0) => (0, i64::MAX),
        (false, _) => (0, (u64::MAX >> unused).cast_signed()),
    }
}

impl Step<'_> {
    /// Computes on integers of up to 32 bits as 64-bit ones, which hold every true value. Without right operands, only
    /// negates the left ones.
    #[inline(always)]
    fn in_64_bits(&self, left: &[u8], right: Option<&[u8]>, dst: &mut [u8]) -> ComputeResult {
        let Arithmetic { output, signed, saturate, .. } = *self.arithmetic;
        let (left_type, right_type) = (self.left(), self.arithmetic.input);
        let (negate_left, negate_right) = self.negated();
        let (least, most) = limits(output, signed);
        // −x is the complement of x, plus one.
        let sign = |negate: bool| -i64::from(negate);
        let (sign_left, sign_right) = (sign(negate_left), sign(negate_right));
        // The bits of a negated unsigned operand are its two's complement in the output type.
        let whole = signed || self.compute.is_arithmetic();
        let bits = |negate: bool| if whole || !negate { -1 } else { most };
        let (bits_left, bits_right) = (bits(negate_left), bits(negate_right));
        let narrow = Arithmetic { signed, ..Arithmetic::new(DataType::Int64, output) };
        let widen = |data_type| Arithmetic { signed, ..Arithmetic::new(data_type, DataType::Int64) };
        let mut pieces = [[[0; 8]; PIECE]; 2];
        let mut lost = false;
        for (at, dst) in dst.chunks_mut(PIECE * size(output)).enumerate() {
            let count = dst.len() / size(output);
            let part = |all: &'_ [u8], data_type| {
                let from = at * PIECE * size(data_type);
                from..(from + count * size(data_type)).min(all.len())
            };
            let [a, b] = &mut pieces;
            let sides = [(Some(left), left_type), (right, right_type)];
            for ((side, data_type), piece) in sides.into_iter().zip([&mut *a, &mut *b]) {
                if let Some(side) = side {
                    let values = piece[..count].as_flattened_mut();
                    convert_integers(&widen(data_type), &side[part(side, data_type)], values);
                }
            }
            macro_rules! each {
                (|$x:ident, $y:ident| $result:expr) => {
                    for (left, right) in a[..count].iter_mut().zip(&b[..count]) {
                        let $x = (i64::from_le_bytes(*left) ^ sign_left).wrapping_sub(sign_left) & bits_left;
                        let $y = (i64::from_le_bytes(*right) ^ sign_right).wrapping_sub(sign_right) & bits_right;
                        let value: i64 = $result;
                        let limited = value.max(least).min(most);
                        lost |= limited != value;
                        *left = (if saturate { limited } else { value }).to_le_bytes();
                    }
                };
            }
            match self.compute {
                // Two integers of 32 bits have a sum of 33.
                ComputeType::Add => each!(|x, y| x.wrapping_add(y)),
                ComputeType::And => each!(|x, y| x & y),
                ComputeType::Or => each!(|x, y| x | y),
                ComputeType::Xor => each!(|x, y| x ^ y),
                ComputeType::Min => each!(|x, y| x.min(y)),
                ComputeType::Max => each!(|x, y| x.max(y)),
            }
            convert_integers(&narrow, a[..count].as_flattened(), dst);
        }
        when(lost, ComputeResult::OVERFLOW)
    }

    /// Computes on integers that become wider: as on those of the wider type, without negation.
    #[inline(always)]
    fn widened(&self, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
        let Arithmetic { input, output, signed, .. } = *self.arithmetic;
        let arithmetic = Arithmetic { input: output, ..*self.arithmetic };
        let step = Step { arithmetic: &arithmetic, ..*self };
        let widen = Arithmetic { signed, ..Arithmetic::new(input, output) };
        let mut pieces = [[[0; 8]; PIECE]; 2];
        let mut seen = ComputeResult::empty();
        let sources = left.chunks(PIECE * size(self.left())).zip(right.chunks(PIECE * size(input)));
        for ((left, right), dst) in sources.zip(dst.chunks_mut(PIECE * size(output))) {
            let [a, b] = pieces.each_mut().map(|piece| &mut piece.as_flattened_mut()[..dst.len()]);
            for (source, piece) in [(left, &mut *a), (right, &mut *b)] {
                if source.len() == dst.len() {
                    piece.copy_from_slice(source);
                } else {
                    convert_integers(&widen, source, piece);
                }
            }
            seen |= combine_same_integers(&step, a, b, dst);
        }
        seen
    }
}

/// Computes on integers of one type: the result, and a value that is negative, or in the unsigned type has its highest
/// bit, if the true value is out of range.
macro_rules! combine_integers {
    ($left:ident, $right:ident, $dst:ident, $type:ty, |$a:ident, $b:ident| $result:expr) => {{
        let (lefts, rights) =
            ($left.as_chunks::<{ size_of::<$type>() }>().0, $right.as_chunks::<{ size_of::<$type>() }>().0);
        let mut lost: $type = 0;
        for ((left, right), dst) in lefts.iter().zip(rights).zip($dst.as_chunks_mut::<{ size_of::<$type>() }>().0) {
            let ($a, $b) = (<$type>::from_le_bytes(*left), <$type>::from_le_bytes(*right));
            let (result, overflow): ($type, $type) = $result;
            *dst = result.to_le_bytes();
            lost |= overflow;
        }
        when(lost >> (<$type>::BITS - 1) != 0, ComputeResult::OVERFLOW)
    }};
}

/// Selects the loop of an integer type and its signedness.
macro_rules! integer_types {
    ($step:ident, $left:ident, $right:ident, $dst:ident, |$a:ident, $b:ident| $unsigned:expr, $signed:expr) => {
        match ($step.arithmetic.output, $step.arithmetic.signed) {
            (DataType::Int8, false) => combine_integers!($left, $right, $dst, u8, |$a, $b| $unsigned),
            (DataType::Int8, true) => combine_integers!($left, $right, $dst, i8, |$a, $b| $signed),
            (DataType::Int16, false) => combine_integers!($left, $right, $dst, u16, |$a, $b| $unsigned),
            (DataType::Int16, true) => combine_integers!($left, $right, $dst, i16, |$a, $b| $signed),
            (DataType::Int32, false) => combine_integers!($left, $right, $dst, u32, |$a, $b| $unsigned),
            (DataType::Int32, true) => combine_integers!($left, $right, $dst, i32, |$a, $b| $signed),
            (_, false) => combine_integers!($left, $right, $dst, u64, |$a, $b| $unsigned),
            (_, true) => combine_integers!($left, $right, $dst, i64, |$a, $b| $signed),
        }
    };
}

/// Computes on whole elements; all slices have the same number of them.
#[inline(always)]
pub(super) fn combine(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
    let Arithmetic { input, output, signed, .. } = *step.arithmetic;
    match step.negated() {
        (false, false) if input == output => combine_same_integers(step, left, right, dst),
        (false, false) if size(input) < size(output) => step.widened(left, right, dst),
        (false, true) if input == output && step.compute == ComputeType::Add => subtract(step, left, right, dst),
        // The result's bits of a negated unsigned operand do not fit 64 bits and a sign.
        negated
            if size(step.left()).max(size(input)) <= 4
                && (output != DataType::Int64
                    || signed
                    || step.compute.is_arithmetic()
                    || negated == (false, false)) =>
        {
            step.in_64_bits(left, Some(right), dst)
        }
        _ => step.slowly(left, right, dst),
    }
}

/// Subtracts integers of one type.
#[inline(always)]
fn subtract(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
    if step.arithmetic.saturate {
        integer_types!(
            step,
            left,
            right,
            dst,
            |a, b| {
                let difference = a.wrapping_sub(b);
                (a.saturating_sub(b), (!a & b) | (!(a ^ b) & difference))
            },
            { (a.saturating_sub(b), (a ^ b) & (a ^ a.wrapping_sub(b))) }
        )
    } else {
        integer_types!(
            step,
            left,
            right,
            dst,
            |a, b| {
                let difference = a.wrapping_sub(b);
                (difference, (!a & b) | (!(a ^ b) & difference))
            },
            {
                let difference = a.wrapping_sub(b);
                (difference, (a ^ b) & (a ^ difference))
            }
        )
    }
}

/// Computes on integers of one type, without negation.
#[inline(always)]
fn combine_same_integers(step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
    match (step.compute, step.arithmetic.saturate) {
        (ComputeType::Add, false) => integer_types!(
            step,
            left,
            right,
            dst,
            |a, b| {
                let sum = a.wrapping_add(b);
                (sum, (a & b) | ((a | b) & !sum))
            },
            {
                let sum = a.wrapping_add(b);
                (sum, (a ^ sum) & (b ^ sum))
            }
        ),
        (ComputeType::Add, true) => integer_types!(
            step,
            left,
            right,
            dst,
            |a, b| {
                let sum = a.wrapping_add(b);
                (a.saturating_add(b), (a & b) | ((a | b) & !sum))
            },
            {
                let sum = a.wrapping_add(b);
                (a.saturating_add(b), (a ^ sum) & (b ^ sum))
            }
        ),
        // The bits of each byte are independent of its neighbours.
        (ComputeType::And, _) => combine_integers!(left, right, dst, u8, |a, b| (a & b, 0)),
        (ComputeType::Or, _) => combine_integers!(left, right, dst, u8, |a, b| (a | b, 0)),
        (ComputeType::Xor, _) => combine_integers!(left, right, dst, u8, |a, b| (a ^ b, 0)),
        (ComputeType::Min, _) => integer_types!(step, left, right, dst, |a, b| (a.min(b), 0), (a.min(b), 0)),
        (ComputeType::Max, _) => integer_types!(step, left, right, dst, |a, b| (a.max(b), 0), (a.max(b), 0)),
    }
}
