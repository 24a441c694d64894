//! Naive reference routines, a bit at a time, from the specification's appendices. They compute the larger expected
//! data; the published vectors in [`crate::cases`] are literals.

/// A CRC of `width` bits as the CRC operations compute it. Source: SPEC App. A.
fn crc(width: u32, polynomial: u64, seed: u64, plain_value: bool, plain_data: bool, data: &[u8]) -> u64 {
    let mask = u64::MAX >> (64 - width);
    let reverse = |value: u64| value.reverse_bits() >> (64 - width);
    let mut r = if plain_value { seed & mask } else { reverse(!seed & mask) };
    for byte in data {
        let byte = if plain_data { *byte } else { byte.reverse_bits() };
        r ^= u64::from(byte) << (width - 8);
        for _ in 0..8 {
            let top = r >> (width - 1) & 1 == 1;
            r = r << 1 & mask;
            if top {
                r ^= polynomial;
            }
        }
    }
    if plain_value { r } else { !reverse(r) & mask }
}

/// CRC32C; `plain_value` is flag 17 (no inversion and reflection of seed and result), `plain_data` flag 18.
pub(crate) fn crc32(seed: u32, plain_value: bool, plain_data: bool, data: &[u8]) -> u32 {
    u32::try_from(crc(32, 0x1edc_6f41, seed.into(), plain_value, plain_data, data)).expect("32 bits")
}

/// The 64-bit CRC of flag 19.
pub(crate) fn crc64(seed: u64, plain_value: bool, plain_data: bool, data: &[u8]) -> u64 {
    crc(64, 0xad93_d235_94c9_3659, seed, plain_value, plain_data, data)
}

/// Guard of a block: CRC-16/T10-DIF. Source: SPEC App. B.
pub(crate) fn guard(invert_seed: bool, invert_result: bool, data: &[u8]) -> u16 {
    let mut r: u16 = if invert_seed { 0xffff } else { 0 };
    for byte in data {
        r ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            let top = r & 0x8000 != 0;
            r <<= 1;
            if top {
                r ^= 0x8bb7;
            }
        }
    }
    if invert_result { !r } else { r }
}

/// How the tags of successive blocks change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tags {
    pub(crate) reference: u32,
    pub(crate) mask: u16,
    pub(crate) app: u16,
    /// The reference tag stays constant (flag bit 7 of source and destination flags).
    pub(crate) reference_fixed: bool,
    /// The application tag is incremented (flag bit 4).
    pub(crate) app_counts: bool,
}

impl Tags {
    /// Application and reference tag of block `k`, unmasked.
    pub(crate) fn raw(&self, k: u32) -> (u16, u32) {
        let app = if self.app_counts { self.app.wrapping_add((k & 0xffff) as u16) } else { self.app };
        let reference = if self.reference_fixed { self.reference } else { self.reference.wrapping_add(k) };
        (app, reference)
    }

    /// The six bytes behind the guard of block `k`.
    pub(crate) fn bytes(&self, k: u32) -> [u8; 6] {
        let (app, reference) = self.raw(k);
        let (a, r) = ((app & !self.mask).to_be_bytes(), reference.to_be_bytes());
        [a[0], a[1], r[0], r[1], r[2], r[3]]
    }
}

/// Blocks with their tuples.
pub(crate) fn protect(block: usize, invert_seed: bool, invert_result: bool, tags: Tags, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (k, chunk) in (0u32..).zip(data.chunks(block)) {
        out.extend_from_slice(chunk);
        out.extend_from_slice(&guard(invert_seed, invert_result, chunk).to_be_bytes());
        out.extend_from_slice(&tags.bytes(k));
    }
    out
}

/// The delta record of two buffers: ten bytes for every eight that differ, up to `room` bytes. Also whether all entries
/// fit, and the bytes compared.
pub(crate) fn delta(a: &[u8], b: &[u8], room: usize) -> (Vec<u8>, bool, usize) {
    let mut record = Vec::new();
    for (i, (x, y)) in a.chunks(8).zip(b.chunks(8)).enumerate() {
        if x == y {
            continue;
        }
        if record.len() + 10 > room {
            return (record, false, 8 * i);
        }
        record.extend_from_slice(&u16::try_from(i).expect("512 KiB at most").to_le_bytes());
        record.extend_from_slice(y);
    }
    (record, true, a.len())
}

/// Bytes that look random, the same for the same seed.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    telpher_os::Random::new(seed).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crcs_match_the_published_vectors() {
        let digits = b"123456789";
        assert_eq!(crc32(0, false, false, digits), 0xe306_9283);
        assert_eq!(crc32(0, false, true, digits), 0xa8f0_22a0);
        assert_eq!(crc32(0, true, false, digits), 0x045f_c71a);
        assert_eq!(crc32(0, true, true, digits), 0xc052_a8c8);
        assert_eq!(crc64(0, false, false, digits), 0xae8b_1486_0a79_9888);
        assert_eq!(crc64(0, false, true, digits), 0xa9af_4cb7_cb02_c703);
        assert_eq!(crc64(0, true, false, digits), 0x21ec_152b_2603_001e);
        assert_eq!(crc64(0, true, true, digits), 0xf016_cba8_aa19_24fe);
        assert_eq!(crc32(0, false, false, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32(0, false, false, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32(0, false, false, &[0; 4096]), 0x98f9_4189);
    }

    #[test]
    fn guards_match_the_published_vectors() {
        let digits = b"123456789";
        assert_eq!(
            [guard(false, false, digits), guard(true, false, digits), guard(false, true, digits)],
            [0xd0db, 0x8e3c, 0x2f24]
        );
        let count = |n: usize| (0..=255).cycle().take(n).collect::<Vec<u8>>();
        assert_eq!(guard(false, false, &count(512)), 0x4f10);
        assert_eq!(guard(true, false, &count(512)), 0x3dab);
        assert_eq!(guard(false, true, &count(512)), 0xb0ef);
        assert_eq!([520, 4096, 4104].map(|n| guard(false, false, &count(n))), [0x297a, 0x8f6d, 0x6a1a]);
    }

    #[test]
    fn a_crc_can_be_continued_in_all_modes() {
        let data = noise(7, 100);
        for (value, bytes) in [(false, false), (false, true), (true, false), (true, true)] {
            let first = crc32(5, value, bytes, &data[..33]);
            assert_eq!(crc32(first, value, bytes, &data[33..]), crc32(5, value, bytes, &data));
        }
    }
}
