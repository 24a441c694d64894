//! The type of ioctl(2)'s numbers.

/// The number of an ioctl(2) in the type of the C library's function: glibc has `unsigned long`, musl has `int`. The
/// kernel takes 32 bits.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "the kernel takes 32 bits, which both types hold"
)]
pub const fn ioctl_number(number: u64) -> libc::Ioctl {
    number as libc::Ioctl
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_its_32_bits() {
        // Bit 31 says that the kernel writes.
        let both = ioctl_number(0xc060_6610);
        let bytes = both.to_le_bytes();
        assert_eq!(bytes[..4], [0x10, 0x66, 0x60, 0xc0]);
    }
}
