//! CRC32C by three interleaved streams of the `crc32` instruction, joined by carry-less multiplies. Source: Gopal et
//! al., *Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction*, Intel, 2011.

use super::super::crc::{self, Shift, shift};
use crate::arch::portable::crc32c::reversed;

pub(in crate::arch) use super::super::crc::skip;

/// Bytes of each of the three streams: large ones need few joins, small ones serve short messages.
const STREAMS: [usize; 3] = [1360, 336, 80];

#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(in crate::arch) fn feed<const REVERSE: bool>(mut state: u32, mut data: &[u8]) -> u32 {
    let joins = const { [joins(STREAMS[0]), joins(STREAMS[1]), joins(STREAMS[2])] };
    for (stream, (two, one)) in STREAMS.into_iter().zip(joins) {
        while let Some((block, rest)) = data.split_at_checked(3 * stream) {
            let (first, others) = block.split_at(stream);
            let (second, third) = others.split_at(stream);
            let mut crc = [state, 0, 0];
            for ((a, b), c) in words(first).zip(words(second)).zip(words(third)) {
                crc[0] = crc::word(crc[0], reversed::<REVERSE>(a));
                crc[1] = crc::word(crc[1], reversed::<REVERSE>(b));
                crc[2] = crc::word(crc[2], reversed::<REVERSE>(c));
            }
            state = crc::word(0, two.times(crc[0]) ^ one.times(crc[1])) ^ crc[2];
            data = rest;
        }
    }
    crc::short::<REVERSE>(state, data)
}

#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(in crate::arch) fn feed_copy<const REVERSE: bool>(mut state: u32, src: &[u8], dst: &mut [u8]) -> u32 {
    // A chunk stays in the first-level cache between its copy and its CRC.
    for (src, dst) in src.chunks(6 * STREAMS[0]).zip(dst.chunks_mut(6 * STREAMS[0])) {
        dst.copy_from_slice(src);
        state = feed::<REVERSE>(state, src);
    }
    state
}

/// The powers that move a register over two streams and over one.
const fn joins(stream: usize) -> (Shift, Shift) {
    (shift(2 * stream as u64), shift(stream as u64))
}

/// Returns the little-endian words of a slice.
fn words(data: &[u8]) -> impl Iterator<Item = u64> {
    data.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}
