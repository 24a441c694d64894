//! Reductions of plain bytes by the CPU. A device that reduces by itself, as DSA 3 does, is not used.
#![allow(unsafe_code, reason = "calls a function that is compiled for AVX2")]

use crate::number::Number;

/// What joins two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reduction {
    /// The sum. Sums of integers wrap.
    Sum,
    /// The product. Products of integers wrap.
    Product,
    /// The lesser one; of two numbers that do not compare (NaN), the second.
    Least,
    /// The greater one; of two numbers that do not compare (NaN), the second.
    Greatest,
    /// The bits that both have.
    BitAnd,
    /// The bits that either has.
    BitOr,
    /// The bits that one of the two has.
    BitXor,
    /// 1 if both are not 0, else 0.
    And,
    /// 1 if either is not 0, else 0.
    Or,
    /// 1 if one of the two is 0, else 0.
    Xor,
}

impl Reduction {
    /// All reductions.
    pub const ALL: [Reduction; 10] = [
        Reduction::Sum,
        Reduction::Product,
        Reduction::Least,
        Reduction::Greatest,
        Reduction::BitAnd,
        Reduction::BitOr,
        Reduction::BitXor,
        Reduction::And,
        Reduction::Or,
        Reduction::Xor,
    ];

    /// Returns whether numbers of this type can be reduced so: bits and truth values are those of integers.
    #[must_use]
    pub const fn applies_to(self, number: Number) -> bool {
        matches!(self, Reduction::Sum | Reduction::Product | Reduction::Least | Reduction::Greatest)
            || number.is_integer()
    }
}

/// Replaces each number of `into` by its reduction with the number of `with` at the same place, which is the second
/// operand. Bytes that make no whole number stay. Nothing happens if the reduction does not apply to the type.
pub fn reduce_into(reduction: Reduction, number: Number, into: &mut [u8], with: &[u8]) {
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        return unsafe { reduce_with_avx2(reduction, number, into, with) };
    }
    reduce(reduction, number, into, with);
}

/// The same, compiled for vectors of 32 bytes. The results are the same: no additions are joined with products.
#[target_feature(enable = "avx2")]
fn reduce_with_avx2(reduction: Reduction, number: Number, into: &mut [u8], with: &[u8]) {
    reduce(reduction, number, into, with);
}

#[inline(always)]
fn reduce(reduction: Reduction, number: Number, into: &mut [u8], with: &[u8]) {
    macro_rules! arithmetic {
        ($number:ty, $sum:expr, $product:expr, $other:expr) => {{
            let number = <$number>::from_ne_bytes;
            let mut each = Numbers::<{ size_of::<$number>() }> { into, with };
            match reduction {
                Reduction::Sum => each.join(|a, b| $sum(number(a), number(b)).to_ne_bytes()),
                Reduction::Product => each.join(|a, b| $product(number(a), number(b)).to_ne_bytes()),
                Reduction::Least => each.join(|a, b| if number(a) < number(b) { a } else { b }),
                Reduction::Greatest => each.join(|a, b| if number(a) > number(b) { a } else { b }),
                other => $other(other, each),
            }
        }};
    }
    macro_rules! integers {
        ($number:ty) => {
            arithmetic!($number, <$number>::wrapping_add, <$number>::wrapping_mul, bits)
        };
    }
    macro_rules! floats {
        ($number:ty) => {
            arithmetic!($number, |a: $number, b| a + b, |a: $number, b| a * b, |_, _| ())
        };
    }
    match number {
        Number::I8 => integers!(i8),
        Number::U8 => integers!(u8),
        Number::I16 => integers!(i16),
        Number::U16 => integers!(u16),
        Number::I32 => integers!(i32),
        Number::U32 => integers!(u32),
        Number::I64 => integers!(i64),
        Number::U64 => integers!(u64),
        Number::F32 => floats!(f32),
        Number::F64 => floats!(f64),
    }
}

/// Reductions of bits and truth values, which do not depend on the sign.
#[inline(always)]
fn bits<const BYTES: usize>(reduction: Reduction, mut each: Numbers<'_, BYTES>) {
    let truth = |value: bool| {
        let mut bytes = [0; BYTES];
        // The processor is little-endian: the first byte is the lowest.
        bytes[0] = u8::from(value);
        bytes
    };
    let is_true = |bytes: [u8; BYTES]| bytes != [0; BYTES];
    match reduction {
        Reduction::BitAnd => each.join(|a, b| std::array::from_fn(|at| a[at] & b[at])),
        Reduction::BitOr => each.join(|a, b| std::array::from_fn(|at| a[at] | b[at])),
        Reduction::BitXor => each.join(|a, b| std::array::from_fn(|at| a[at] ^ b[at])),
        Reduction::And => each.join(|a, b| truth(is_true(a) && is_true(b))),
        Reduction::Or => each.join(|a, b| truth(is_true(a) || is_true(b))),
        Reduction::Xor => each.join(|a, b| truth(is_true(a) != is_true(b))),
        Reduction::Sum | Reduction::Product | Reduction::Least | Reduction::Greatest => {}
    }
}

/// Two ranges of numbers.
struct Numbers<'a, const BYTES: usize> {
    into: &'a mut [u8],
    with: &'a [u8],
}

impl<const BYTES: usize> Numbers<'_, BYTES> {
    /// Joins the numbers in pairs. The compiler turns this loop into vector instructions.
    #[inline(always)]
    fn join(&mut self, join: impl Fn([u8; BYTES], [u8; BYTES]) -> [u8; BYTES]) {
        let (into, _) = self.into.as_chunks_mut::<BYTES>();
        let (with, _) = self.with.as_chunks::<BYTES>();
        for (into, with) in into.iter_mut().zip(with) {
            *into = join(*into, *with);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reduces two numbers.
    fn two<const N: usize>(reduction: Reduction, number: Number, a: [u8; N], b: [u8; N]) -> [u8; N] {
        // Enough for the widest vectors and a rest.
        let mut into: Vec<u8> = a.repeat(37);
        reduce_into(reduction, number, &mut into, &b.repeat(37));
        let (numbers, rest) = into.as_chunks::<N>();
        assert!(rest.is_empty() && numbers.iter().all(|number| *number == numbers[0]));
        numbers[0]
    }

    #[test]
    fn numbers_are_reduced_as_their_type_says() {
        use Reduction as R;
        let i32s = |reduction, a: i32, b: i32| {
            i32::from_ne_bytes(two(reduction, Number::I32, a.to_ne_bytes(), b.to_ne_bytes()))
        };
        assert_eq!((i32s(R::Sum, i32::MAX, 1), i32s(R::Product, -3, 5)), (i32::MIN, -15));
        assert_eq!((i32s(R::Least, -1, 1), i32s(R::Greatest, -1, 1)), (-1, 1));
        let u8s = |reduction, a, b| two(reduction, Number::U8, [a], [b])[0];
        assert_eq!((u8s(R::Least, 255, 1), u8s(R::Greatest, 255, 1), u8s(R::Sum, 255, 2)), (1, 255, 1));
        assert_eq!((u8s(R::BitAnd, 6, 3), u8s(R::BitOr, 6, 3), u8s(R::BitXor, 6, 3)), (2, 7, 5));
        let u64s = |reduction, a: u64, b: u64| {
            u64::from_ne_bytes(two(reduction, Number::U64, a.to_ne_bytes(), b.to_ne_bytes()))
        };
        for (a, b) in [(0, 0), (0, 1 << 40), (7, 0), (1 << 63, 9)] {
            let (x, y) = (a != 0, b != 0);
            let expected = (u64::from(x && y), u64::from(x || y), u64::from(x != y));
            assert_eq!((u64s(R::And, a, b), u64s(R::Or, a, b), u64s(R::Xor, a, b)), expected);
        }
        let f64s = |reduction, a: f64, b: f64| {
            f64::from_ne_bytes(two(reduction, Number::F64, a.to_ne_bytes(), b.to_ne_bytes()))
        };
        assert_eq!((f64s(R::Sum, 0.5, 0.25), f64s(R::Product, 0.5, -4.0)), (0.75, -2.0));
        assert_eq!((f64s(R::Least, -0.5, 4.0), f64s(R::Greatest, -0.5, 4.0)), (-0.5, 4.0));
        assert!(f64s(R::Sum, f64::NAN, 1.0).is_nan());
    }

    #[test]
    fn a_reduction_without_meaning_changes_nothing() {
        for number in [Number::F32, Number::F64] {
            for reduction in [Reduction::BitAnd, Reduction::BitXor, Reduction::Or] {
                assert!(!reduction.applies_to(number));
                assert_eq!(two(reduction, number, [1; 8], [2; 8]), [1; 8]);
            }
        }
    }
}
