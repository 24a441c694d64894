//! CRC Generation and Copy with CRC. Source: SPEC §8.3.12, Appendix A.

use super::{End, Ended, Pages, Scratch};
use crate::action::{Action, Seed};
use telpher_abi::OperandId;
use telpher_ops::crc::{CrcMode, crc32c};

pub(super) fn crc(pages: &mut Pages<'_>, scratch: &mut Scratch, action: &Action) -> Ended {
    let Action::Crc { src, dst, len, seed, bypass_invert_reflect, bypass_data_reflect, hint } = *action else {
        return Ok(End::success());
    };
    let mode = CrcMode { bypass_invert_reflect, bypass_data_reflect };
    let mut value = match seed {
        Seed::Value(seed) => seed,
        Seed::At(address) => {
            let mut bytes = [0; 4];
            pages.read(address, &mut bytes).map_err(|(_, stop)| stop.after(0, OperandId::Source2))?;
            u32::from_le_bytes(bytes)
        }
    };
    let mut done = 0;
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
        value = crc32c(value, moved, mode);
        done += moved.len() as u64;
        if let Some((stop, operand)) = stopped {
            return Err(stop.after(done, operand).map_record(|record| record.with_crc(value)));
        }
    }
    Ok(End::success().map_record(|record| record.with_crc(value)))
}
