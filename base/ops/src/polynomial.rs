//! Powers of x modulo the CRC generators, at compile time: the source of all folding constants.
//!
//! A CRC is a remainder. Moving a part of the message forward by `n` bits multiplies it by xⁿ. Only the remainder
//! counts, so it may be multiplied by xⁿ mod P instead, which is short. The carry-less folding kernels are based on
//! this.
//! Source: Gopal et al., *Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction*, Intel, 2009.
#![forbid(unsafe_code)]
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only the x86-64 kernels fold"))]

/// Castagnoli's generator without its x³² term, highest power in the top bit. Source: SPEC App. A; RFC 3720.
pub(crate) const CRC32C: u32 = 0x1EDC_6F41;
/// The smallest power of x, above 0, whose remainder is 1.
#[cfg_attr(not(test), allow(dead_code, reason = "only kernels with carry-less multiplies use it"))]
pub(crate) const CRC32C_ORDER: u64 = (1 << 31) - 1;
/// The NVMe (Rocksoft) generator without its x⁶⁴ term, highest power in the top bit. Source: SPEC App. A
/// (0x1AD93D23594C93659).
pub(crate) const CRC64: u64 = 0xAD93_D235_94C9_3659;
/// The T10-DIF generator without its x¹⁶ term, highest power in the top bit. Source: SPEC App. B (0x18BB7).
pub(crate) const T10_DIF: u16 = 0x8BB7;

/// Returns xⁿ mod P for a generator of `width` (≤ 32) bits without its top term; the highest power is the top bit.
const fn power_of_x(n: u64, generator: u32, width: u32) -> u32 {
    let mut result = 1;
    let mut bit = u64::BITS - n.leading_zeros();
    while bit > 0 {
        bit -= 1;
        result = multiply(result, result, generator, width);
        if n >> bit & 1 == 1 {
            result = times_x(result, generator, width);
        }
    }
    result
}

const fn times_x(value: u32, generator: u32, width: u32) -> u32 {
    let carry = value >> (width - 1) & 1;
    let kept = if width == 32 { value << 1 } else { value << 1 & ((1 << width) - 1) };
    if carry == 1 { kept ^ generator } else { kept }
}

/// Returns the product of two remainders; a generator of `width` bits as in [`power_of_x`].
pub(crate) const fn multiply(a: u32, b: u32, generator: u32, width: u32) -> u32 {
    let mut result = 0;
    let mut bit = width;
    while bit > 0 {
        bit -= 1;
        result = times_x(result, generator, width);
        if b >> bit & 1 == 1 {
            result ^= a;
        }
    }
    result
}

/// Returns xⁿ mod P for CRC32C, bit-reflected: bit 0 is x³¹.
pub(crate) const fn crc32c_power(n: u64) -> u32 {
    power_of_x(n, CRC32C, 32).reverse_bits()
}

/// The multipliers that move a 128-bit lane forward by `bytes`: for its low half and for its high half. A reflected
/// product is one power of x too high, hence the odd exponents; both are kept in the upper half of the word.
pub(crate) const fn crc32c_forward(bytes: u64) -> [u64; 2] {
    [(crc32c_power(8 * bytes + 63) as u64) << 32, (crc32c_power(8 * bytes - 1) as u64) << 32]
}

/// Returns xⁿ mod P for CRC64, bit-reflected: bit 0 is x⁶³.
pub(crate) const fn crc64_power(n: u64) -> u64 {
    let (mut result, mut bit) = (1, u64::BITS - n.leading_zeros());
    while bit > 0 {
        bit -= 1;
        result = multiply_crc64(result, result);
        if n >> bit & 1 == 1 {
            result = times_x_crc64(result);
        }
    }
    result.reverse_bits()
}

const fn times_x_crc64(value: u64) -> u64 {
    if value >> 63 == 1 { value << 1 ^ CRC64 } else { value << 1 }
}

const fn multiply_crc64(a: u64, b: u64) -> u64 {
    let (mut result, mut bit) = (0, u64::BITS);
    while bit > 0 {
        bit -= 1;
        result = times_x_crc64(result);
        if b >> bit & 1 == 1 {
            result ^= a;
        }
    }
    result
}

/// The multipliers that move a 128-bit lane forward by `bytes`, as [`crc32c_forward`] does.
pub(crate) const fn crc64_forward(bytes: u64) -> [u64; 2] {
    [crc64_power(8 * bytes + 63), crc64_power(8 * bytes - 1)]
}

/// Returns xⁿ mod P for T10-DIF, not reflected: bit 15 is x¹⁵.
#[allow(clippy::cast_possible_truncation, reason = "the remainder has 16 bits")]
pub(crate) const fn t10_power(n: u64) -> u16 {
    power_of_x(n, T10_DIF as u32, 16) as u16
}

/// Returns ⌊x⁶⁴ / P⌋ for T10-DIF, the 49-bit quotient of Barrett's reduction.
pub(crate) const T10_QUOTIENT: u64 = {
    let (mut remainder, mut quotient, mut step) = (1u32 << 16, 0u64, 0);
    // Schoolbook division: the dividend is a one followed by 64 zeros; the first 17 bits are in `remainder` at the
    // start.
    while step <= 48 {
        let take = remainder >> 16 & 1;
        quotient = quotient << 1 | take as u64;
        if take == 1 {
            remainder ^= 1 << 16 | T10_DIF as u32;
        }
        remainder <<= 1;
        step += 1;
    }
    quotient
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the remainder of xⁿ by shifting one bit at a time.
    fn naive(n: u64, generator: u64, width: u32) -> u64 {
        (0..n).fold(1, |value, _| if value >> (width - 1) & 1 == 1 { value << 1 ^ generator } else { value << 1 })
    }

    #[test]
    fn powers_equal_shifting_one_bit_at_a_time() {
        for n in (0..200).chain([511, 4096, 33_000]) {
            assert_eq!(u64::from(crc32c_power(n).reverse_bits()), naive(n, 0x1_1EDC_6F41, 32), "x^{n} mod CRC32C");
            assert_eq!(u64::from(t10_power(n)), naive(n, 0x1_8BB7, 16), "x^{n} mod T10-DIF");
        }
    }

    #[test]
    fn powers_of_the_wide_generator_equal_shifting_one_bit_at_a_time() {
        let mut value = 1_u64;
        for n in 0..4000 {
            assert_eq!(crc64_power(n).reverse_bits(), value, "x^{n} mod CRC64");
            value = if value >> 63 == 1 { value << 1 ^ 0xAD93_D235_94C9_3659 } else { value << 1 };
        }
    }

    #[test]
    fn powers_repeat_after_the_order_of_x() {
        assert_eq!(crc32c_power(CRC32C_ORDER), crc32c_power(0));
    }

    #[test]
    fn quotient_times_generator_misses_x64_by_less_than_the_generator() {
        let product = (0..49).filter(|bit| T10_QUOTIENT >> bit & 1 == 1).fold(0u128, |sum, bit| sum ^ 0x1_8BB7 << bit);
        assert!(product ^ 1 << 64 < 1 << 16, "{product:#x}");
    }
}
