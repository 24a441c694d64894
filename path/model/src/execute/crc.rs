//! CRC Generation and Copy with CRC. Source: SPEC §8.3.12, Appendix A.

use super::{End, Ended, Pages, Scratch};
use crate::action::{Action, Seed};
use telpher_abi::{CompletionRecord, OperandId};
use telpher_mem::{FOLDED_BYTES, Space, WriteHint};
use telpher_ops::crc::{CrcMode, Folding, crc32c};
use telpher_ops::crc64::crc64;

const _: () = assert!(FOLDED_BYTES == Folding::BYTES);

/// Computes the CRC of a whole range without a copy of its bytes. Returns `None` if the space or the mode does not
/// allow that, or if an access faults; then the caller goes through the range in pieces, which finds the exact byte.
#[inline]
pub(super) fn of_range(space: &dyn Space, src: u64, len: u64, seed: u32, mode: CrcMode) -> Option<u32> {
    let folding = Folding::new(seed, mode)?;
    let mut block = [0; FOLDED_BYTES];
    let rest = super::index(len % FOLDED_BYTES as u64);
    let whole = len - rest as u64;
    if whole == 0 {
        return None;
    }
    if !space.fold(src, whole, folding.register(), &Folding::MULTIPLIERS, &mut block) {
        return None;
    }
    let value = folding.finish(&block);
    if rest == 0 {
        return Some(value);
    }
    let rest = &mut block[..rest];
    space.read(src.wrapping_add(whole), rest).ok()?;
    Some(crc32c(value, rest, mode))
}

/// The range that a CRC is computed of, and where its bytes are copied to, if they are.
pub(super) struct Copy {
    pub(super) src: u64,
    pub(super) dst: Option<u64>,
    pub(super) len: u64,
    pub(super) hint: WriteHint,
}

pub(super) fn crc(pages: &mut Pages<'_>, scratch: &mut Scratch, action: &Action) -> Ended {
    let Action::Crc { src, dst, len, seed, wide, bypass_invert_reflect, bypass_data_reflect, hint } = *action else {
        return Ok(End::success());
    };
    let mode = CrcMode { bypass_invert_reflect, bypass_data_reflect };
    let seed = match seed {
        Seed::Value(seed) => seed,
        Seed::At(address) => {
            let mut bytes = [0; 8];
            let read = if wide { &mut bytes[..] } else { &mut bytes[..4] };
            pages.read(address, read).map_err(|(_, stop)| stop.after(0, OperandId::Source2))?;
            u64::from_le_bytes(bytes)
        }
    };
    let seed = Value::of(seed, wide);
    let in_one_pass = match seed {
        Value::Crc32(seed) if dst.is_none() => of_range(pages.space, src, len, seed, mode).map(Value::Crc32),
        _ => None,
    };
    let value = match in_one_pass {
        Some(value) => value,
        None => in_pieces(pages, scratch, Copy { src, dst, len, hint }, seed, mode)?,
    };
    Ok(End::success().map_record(|record| value.put(record)))
}

/// A CRC of either width, also the seed of the rest.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Crc32(u32),
    Crc64(u64),
}

impl Value {
    fn of(seed: u64, wide: bool) -> Self {
        // Cannot lose bits: the upper half of a narrow seed is zero.
        if wide { Value::Crc64(seed) } else { Value::Crc32((seed & 0xffff_ffff) as u32) }
    }

    /// Returns a 32-bit CRC, or the lower half of a wide one.
    pub(super) fn low(self) -> u32 {
        match self {
            Value::Crc32(value) => value,
            Value::Crc64(value) => (value & 0xffff_ffff) as u32,
        }
    }

    fn continued(self, data: &[u8], mode: CrcMode) -> Self {
        match self {
            Value::Crc32(seed) => Value::Crc32(crc32c(seed, data, mode)),
            Value::Crc64(seed) => Value::Crc64(crc64(seed, data, mode)),
        }
    }

    fn put(self, record: CompletionRecord) -> CompletionRecord {
        match self {
            Value::Crc32(value) => record.with_crc(value),
            Value::Crc64(value) => record.with_crc64(value),
        }
    }
}

/// Reads a range into the buffer piece by piece, and computes the CRC of each; returns the CRC of all of them.
pub(super) fn in_pieces(
    pages: &mut Pages<'_>,
    scratch: &mut Scratch,
    Copy { src, dst, len, hint }: Copy,
    seed: Value,
    mode: CrcMode,
) -> Result<Value, End> {
    let (mut value, mut done) = (seed, 0);
    while done < len {
        let piece = (len - done).min(scratch.a.len() as u64);
        let buffer = &mut scratch.a[..super::index(piece)];
        let (valid, mut stopped) = match pages.read(src.wrapping_add(done), buffer) {
            Ok(()) => (buffer.len(), None),
            Err((valid, stop)) => (valid, Some((stop, OperandId::Source1))),
        };
        let mut moved = &buffer[..valid];
        if let Some(dst) = dst
            && let Err((written, stop)) = pages.write(dst.wrapping_add(done), moved, hint)
        {
            moved = &moved[..written];
            stopped = Some((stop, OperandId::Destination1));
        }
        // The value so far is the seed of the rest, in every mode; at a stop it is reported for the continuation.
        value = value.continued(moved, mode);
        done += moved.len() as u64;
        if let Some((stop, operand)) = stopped {
            return Err(stop.after(done, operand).map_record(|record| value.put(record)));
        }
    }
    Ok(value)
}
