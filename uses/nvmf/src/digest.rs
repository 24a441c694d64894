//! CRC32C digests of headers and data. Source: NVMe/TCP Transport 1.1 §3.3.1.1; the polynomial is RFC 3720's.

use telpher_ops::crc::{CrcMode, crc32c, crc32c_join};

/// Bytes of a digest on the wire, little-endian.
pub const DIGEST_BYTES: usize = 4;

/// Which digests a connection uses. Header and data digests are independent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digests {
    /// Headers have digests.
    pub header: bool,
    /// Data has digests.
    pub data: bool,
}

impl Digests {
    /// All four combinations.
    pub const ALL: [Digests; 4] = [
        Digests { header: false, data: false },
        Digests { header: true, data: false },
        Digests { header: false, data: true },
        Digests { header: true, data: true },
    ];

    /// Parses the DGST field of ICReq or ICResp; reserved bits are ignored.
    #[must_use]
    pub fn from_bits(bits: u8) -> Digests {
        Digests { header: bits & 1 != 0, data: bits & 2 != 0 }
    }

    /// The DGST field.
    #[must_use]
    pub fn bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }
}

/// The digest of `bytes`.
#[must_use]
pub fn digest(bytes: &[u8]) -> u32 {
    digest_after(0, bytes)
}

/// The digest of the bytes that gave `seed`, followed by `bytes`. A device chains segments in the same way.
#[must_use]
pub fn digest_after(seed: u32, bytes: &[u8]) -> u32 {
    crc32c(seed, bytes, CrcMode::default())
}

/// The digest of bytes whose first part has the digest `first`, and whose other `len` bytes have the digest `second`.
#[must_use]
#[inline]
pub fn join(first: u32, second: u32, len: usize) -> u32 {
    crc32c_join(first, second, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: RFC 3720 B.4, and the check value of CRC-32C.
    #[test]
    fn published_values_are_computed() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        let cases: [(&[u8], u32); 6] = [
            (b"123456789", 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&rising, 0x46dd_794e),
            (&falling, 0x113f_db5c),
            (&[0; 4096], 0x98f9_4189),
        ];
        for (bytes, expected) in cases {
            assert_eq!(digest(bytes), expected);
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            assert_eq!(digest_after(digest(head), tail), expected);
            assert_eq!(join(digest(head), digest(tail), tail.len()), expected);
        }
    }
}
