//! Data types, compute operations and scatter-gather list formats of 3.0. Source: SPEC §8.1.9 to §8.1.14.

macro_rules! four_bit_codes {
    ($(#[$tdoc:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)* }) => {
        $(#[$tdoc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
        pub enum $type {
            $($(#[$doc])* $name = $code,)*
        }

        impl $type {
            /// All values, ascending by code.
            pub const ALL: &'static [$type] = &[$($type::$name),*];

            /// Decodes a field; `None` for a reserved code.
            #[must_use]
            #[inline]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some($type::$name),)*
                    _ => None,
                }
            }

            /// Returns the code.
            #[must_use]
            #[inline]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// Returns its name in options, tables and files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$name => $text,)*
                }
            }
        }
    };
}

four_bit_codes! {
    /// The type of array elements. Integers are signed if [`ComputeFlags::SIGNED`] is set.
    DataType {
        /// 8-bit integer.
        Int8 = 0, "int8";
        /// 16-bit integer.
        Int16 = 1, "int16";
        /// 32-bit integer.
        Int32 = 2, "int32";
        /// 64-bit integer.
        Int64 = 3, "int64";
        /// 8-bit floating point, 5 exponent and 2 fraction bits.
        Fp8E5M2 = 4, "fp8-e5m2";
        /// 8-bit floating point, 4 exponent and 3 fraction bits.
        Fp8E4M3 = 5, "fp8-e4m3";
        /// IEEE half precision.
        Fp16 = 6, "fp16";
        /// The upper half of single precision.
        Bf16 = 7, "bf16";
        /// IEEE single precision.
        Fp32 = 8, "fp32";
        /// IEEE double precision.
        Fp64 = 9, "fp64";
    }
}

impl DataType {
    /// Returns the bytes of one element.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u32 {
        match self {
            DataType::Int8 | DataType::Fp8E5M2 | DataType::Fp8E4M3 => 1,
            DataType::Int16 | DataType::Fp16 | DataType::Bf16 => 2,
            DataType::Int32 | DataType::Fp32 => 4,
            DataType::Int64 | DataType::Fp64 => 8,
        }
    }

    /// True for the floating-point types.
    #[must_use]
    #[inline]
    pub const fn is_float(self) -> bool {
        self.code() >= DataType::Fp8E5M2.code()
    }
}

four_bit_codes! {
    /// What Reduce does with two elements.
    ComputeType {
        /// Sum.
        Add = 1, "add";
        /// Bitwise and; integers only.
        And = 3, "and";
        /// Bitwise or; integers only.
        Or = 4, "or";
        /// Bitwise exclusive or; integers only.
        Xor = 5, "xor";
        /// The smaller one.
        Min = 6, "min";
        /// The larger one.
        Max = 7, "max";
    }
}

impl ComputeType {
    /// True for the operations that floating-point elements have, too.
    #[must_use]
    pub const fn is_arithmetic(self) -> bool {
        matches!(self, ComputeType::Add | ComputeType::Min | ComputeType::Max)
    }
}

four_bit_codes! {
    /// How a result is rounded (compute flags, bits 6:4).
    Rounding {
        /// To the nearest value, ties to the even one.
        NearestEven = 0, "nearest-even";
        /// Toward minus infinity.
        Down = 1, "down";
        /// Toward plus infinity.
        Up = 2, "up";
        /// Toward zero.
        TowardZero = 3, "toward-zero";
    }
}

four_bit_codes! {
    /// What the entries of a scatter-gather list are.
    SglFormat {
        /// 64-bit byte offsets from the base.
        Offset64 = 1, "offset64";
        /// 32-bit indexes of blocks from the base.
        Index32 = 2, "index32";
        /// 64-bit indexes of blocks from the base.
        Index64 = 3, "index64";
    }
}

impl SglFormat {
    /// Returns the bytes of one entry.
    #[must_use]
    pub const fn entry_bytes(self) -> u32 {
        match self {
            SglFormat::Index32 => 4,
            SglFormat::Offset64 | SglFormat::Index64 => 8,
        }
    }
}

bitflags::bitflags! {
    /// The 12 compute flags of a descriptor.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct ComputeFlags: u16 {
        /// Negate source 1.
        const NEGATE_1 = 1 << 0;
        /// Negate source 2.
        const NEGATE_2 = 1 << 1;
        /// Results below the normal range become zero.
        const FLUSH_TO_ZERO = 1 << 2;
        /// Operands below the normal range count as zero.
        const DENORMALS_ARE_ZERO = 1 << 3;
        /// A [`Rounding`] code.
        const ROUNDING = 0b111 << 4;
        /// Integers are signed.
        const SIGNED = 1 << 7;
        /// Integer results saturate.
        const SATURATE = 1 << 8;
        const _ = 0xffff;
    }
}

impl ComputeFlags {
    /// Returns the code of the rounding field.
    #[must_use]
    pub const fn rounding_code(self) -> u8 {
        (self.bits() >> 4 & 0b111) as u8
    }

    /// Replaces the rounding field.
    #[must_use]
    pub const fn with_rounding(self, rounding: Rounding) -> Self {
        let others = self.bits() & !ComputeFlags::ROUNDING.bits();
        ComputeFlags::from_bits_retain(others | (rounding.code() as u16) << 4)
    }
}

bitflags::bitflags! {
    /// What happened to any element of a compute operation: the result byte of its record. Source: SPEC §8.2.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct ComputeResult: u8 {
        /// A result is not a number.
        const INVALID = 1 << 0;
        /// An operand was below the normal range.
        const DENORMAL = 1 << 1;
        /// A result was above the type's range.
        const OVERFLOW = 1 << 2;
        /// A result was below the type's normal range.
        const UNDERFLOW = 1 << 3;
        const _ = 0xff;
    }
}
