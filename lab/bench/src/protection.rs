//! Blocks with integrity tuples, made and checked as in a program without DIF operations. Pairwise comparisons use them
//! as the alternative, and sweeps as the reference.

use crate::ffi;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};
use telpher_ops::dif::{DifConfig, Tags};

/// The configuration: 512-byte blocks, plain guards, and a reference tag that counts from the seed.
pub(crate) const DIF: DifConfig = DifConfig {
    block: DifBlock::B512,
    flags: DifFlags::empty(),
    source: SourceDifFlags::empty(),
    dest: DestDifFlags::empty(),
};
/// Data bytes in a block.
pub(crate) const BLOCK: usize = 512;
/// Bytes of its tuple.
pub(crate) const TUPLE: usize = 8;
/// Tags of the first block.
pub(crate) const TAGS: Tags = Tags { ref_tag: 0x1000, app_mask: 0, app_tag: 0x5aa5 };
/// Tags that an update sets.
pub(crate) const NEW_TAGS: Tags = Tags { ref_tag: 0x2000, app_mask: 0, app_tag: 0x1234 };

/// Returns the length of `len` data bytes with their tuples.
pub(crate) fn protected_len(len: usize) -> usize {
    len / BLOCK * (BLOCK + TUPLE)
}

/// Computes the guard with the crc-fast crate.
pub(crate) fn crc16_fast(data: &[u8]) -> u16 {
    u16::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc16T10Dif, data)).expect("a 16-bit CRC")
}

/// Computes the guard bit by bit, from its definition.
pub(crate) fn crc16_naive(data: &[u8]) -> u16 {
    data.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |c, _| if c & 0x8000 == 0 { c << 1 } else { c << 1 ^ 0x8bb7 })
    })
}

/// Copies each block, computes its guard and appends the tuple.
#[inline]
pub(crate) fn insert_by(src: &[u8], dst: &mut [u8], tags: Tags, guard: impl Fn(&[u8]) -> u16) {
    let mut reference = tags.ref_tag;
    for (from, to) in src.chunks_exact(BLOCK).zip(dst.chunks_exact_mut(BLOCK + TUPLE)) {
        let (data, tuple) = to.split_at_mut(BLOCK);
        ffi::memcpy(data, from);
        tuple[..2].copy_from_slice(&guard(from).to_be_bytes());
        tuple[2..4].copy_from_slice(&tags.app_tag.to_be_bytes());
        tuple[4..].copy_from_slice(&reference.to_be_bytes());
        reference = reference.wrapping_add(1);
    }
}

/// Computes each guard and compares the tuples.
#[inline]
pub(crate) fn check_by(protected: &[u8], guard: impl Fn(&[u8]) -> u16) -> bool {
    let mut reference = TAGS.ref_tag;
    protected.chunks_exact(BLOCK + TUPLE).all(|block| {
        let (data, tuple) = block.split_at(BLOCK);
        let good = tuple[..2] == guard(data).to_be_bytes()
            && tuple[2..4] == TAGS.app_tag.to_be_bytes()
            && tuple[4..] == reference.to_be_bytes();
        reference = reference.wrapping_add(1);
        good
    })
}

/// Returns `src` with its tuples.
pub(crate) fn protected(src: &[u8], tags: Tags, guard: impl Fn(&[u8]) -> u16) -> Vec<u8> {
    let mut dst = vec![0; protected_len(src.len())];
    insert_by(src, &mut dst, tags, guard);
    dst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_guards_have_the_check_value() {
        // CRC-16/T10-DIF of "123456789" in the CRC catalogue.
        assert_eq!((crc16_naive(b"123456789"), crc16_fast(b"123456789")), (0xd0db, 0xd0db));
    }

    #[test]
    fn inserted_tuples_pass_the_check_and_corrupted_ones_fail() {
        let mut blocks = protected(&[7; 1024], TAGS, crc16_naive);
        assert!(check_by(&blocks, crc16_fast));
        blocks[600] ^= 1;
        assert!(!check_by(&blocks, crc16_fast));
    }
}
