//! Converts a number to any field type, and back.

use telpher_abi::Flags;

/// The type that a field's getter returns and its setter takes.
pub(crate) trait Value {
    /// Converts the low bits of `v` that fit.
    fn from_u64(v: u64) -> Self;
    /// Returns the value as a number.
    fn into_u64(self) -> u64;
}

impl Value for bool {
    fn from_u64(v: u64) -> Self {
        v % 2 == 1
    }
    fn into_u64(self) -> u64 {
        self.into()
    }
}

macro_rules! low_bytes {
    ($($t:ty: $($byte:literal)*;)*) => {$(
        impl Value for $t {
            fn from_u64(v: u64) -> Self {
                let bytes = v.to_le_bytes();
                <$t>::from_le_bytes([$(bytes[$byte]),*])
            }
            fn into_u64(self) -> u64 {
                self.into()
            }
        }
    )*};
}
low_bytes! { u8: 0; u16: 0 1; u32: 0 1 2 3; u64: 0 1 2 3 4 5 6 7; }

impl Value for Flags {
    fn from_u64(v: u64) -> Self {
        Flags::from_bits_retain(u32::from_u64(v))
    }
    fn into_u64(self) -> u64 {
        self.bits().into()
    }
}
