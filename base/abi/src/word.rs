//! Converts bit fields to values: the only module that shifts and masks.

/// A value that a bit field can hold.
pub(crate) trait FieldValue: Copy {
    /// Converts a field's bits, right-aligned; bits above the field are already zero.
    fn from_bits(bits: u64) -> Self;
    /// Returns the bits to store, right-aligned.
    fn into_bits(self) -> u64;
}

impl FieldValue for bool {
    #[inline]
    fn from_bits(bits: u64) -> Self {
        bits & 1 == 1
    }
    #[inline]
    fn into_bits(self) -> u64 {
        self.into()
    }
}

macro_rules! unsigned {
    ($($t:ty),*) => {$(
        impl FieldValue for $t {
            #[inline]
            #[allow(clippy::cast_possible_truncation, reason = "the field's width, checked by the macro, fits the type")]
            fn from_bits(bits: u64) -> Self {
                bits as $t
            }
            #[inline]
            fn into_bits(self) -> u64 {
                self.into()
            }
        }
    )*};
}
unsigned!(u8, u16, u32, u64);

/// Reads bits `lo..=hi` of little-endian 64-bit `words`; the field must not straddle a word.
#[inline]
pub(crate) const fn read<const N: usize>(words: &[u64; N], lo: usize, hi: usize) -> u64 {
    words[lo / 64] >> (lo % 64) & mask(lo, hi)
}

/// Replaces bits `lo..=hi` by the low bits of `value`.
#[inline]
pub(crate) fn write<const N: usize>(words: &mut [u64; N], lo: usize, hi: usize, value: u64) {
    let word = &mut words[lo / 64];
    *word = *word & !(mask(lo, hi) << (lo % 64)) | (value & mask(lo, hi)) << (lo % 64);
}

#[inline]
const fn mask(lo: usize, hi: usize) -> u64 {
    u64::MAX >> (63 - (hi - lo))
}

/// Declares a register or record as little-endian 64-bit words with named bit fields:
/// `getter / with_setter: type [lo..hi]`, bits numbered from 0 over the whole register, both ends included.
macro_rules! bit_fields {
    ($name:ident { $($(#[$doc:meta])* $get:ident / $with:ident : $ty:ty [$lo:literal .. $hi:literal];)* }) => {
        impl $name {
            $(
                $(#[$doc])*
                #[must_use]
                #[inline]
                pub fn $get(&self) -> $ty {
                    const { assert!($lo / 64 == $hi / 64 && $hi - $lo < 8 * size_of::<$ty>()) };
                    <$ty as $crate::word::FieldValue>::from_bits($crate::word::read(&self.0, $lo, $hi))
                }
                #[doc = concat!("Replaces [`", stringify!($get), "`](Self::", stringify!($get), "); excess high bits are dropped.")]
                #[must_use]
                #[inline]
                pub fn $with(mut self, value: $ty) -> Self {
                    $crate::word::write(&mut self.0, $lo, $hi, $crate::word::FieldValue::into_bits(value));
                    self
                }
            )*
        }
    };
}

/// Declares a register: the words, `Default` zero, and its bit fields.
macro_rules! register {
    ($(#[$doc:meta])* $name:ident [$n:literal] { $($fields:tt)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        #[repr(transparent)]
        pub struct $name(/** The raw little-endian words. */ pub [u64; $n]);
        bit_fields!($name { $($fields)* });
    };
}
