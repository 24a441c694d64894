//! The types of numbers that atomic operations and reductions know.

use telpher_mem::WordWidth;

/// A type of numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names of Rust's types")]
pub enum Number {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

impl Number {
    /// All types, by their numbers in entries.
    pub const ALL: [Number; 10] = [
        Number::I8,
        Number::U8,
        Number::I16,
        Number::U16,
        Number::I32,
        Number::U32,
        Number::I64,
        Number::U64,
        Number::F32,
        Number::F64,
    ];

    /// Returns the bytes of a number.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.width().bytes()
    }

    pub(crate) const fn width(self) -> WordWidth {
        match self {
            Number::I8 | Number::U8 => WordWidth::One,
            Number::I16 | Number::U16 => WordWidth::Two,
            Number::I32 | Number::U32 | Number::F32 => WordWidth::Four,
            Number::I64 | Number::U64 | Number::F64 => WordWidth::Eight,
        }
    }

    /// True for integers.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        !matches!(self, Number::F32 | Number::F64)
    }
}
