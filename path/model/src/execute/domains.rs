//! Copy and Compare between address spaces, and Translation Fetch. Source: SPEC §8.3.11, §8.3.28 to §8.3.31.

use super::{End, Ended, Pages, Scratch, copy, index};
use telpher_abi::OperandId;
use telpher_mem::WriteHint;

/// Copies forward through the buffer. Whether the ranges overlap is not known, as they are in different address spaces.
pub(super) fn copy(
    from: &mut Pages<'_>,
    to: &mut Pages<'_>,
    scratch: &mut Scratch,
    [src, dst]: [u64; 2],
    len: u64,
    hint: WriteHint,
) -> Ended {
    let mut done = 0;
    while done < len {
        let piece = index((len - done).min(scratch.a.len() as u64));
        let buffer = &mut scratch.a[..piece];
        let (valid, stopped) = match from.read(src.wrapping_add(done), buffer) {
            Ok(()) => (piece, None),
            Err((valid, stop)) => (valid, Some(stop)),
        };
        to.write(dst.wrapping_add(done), &buffer[..valid], hint)
            .map_err(|(written, stop)| stop.after(done + written as u64, OperandId::Destination1))?;
        done += valid as u64;
        if let Some(stop) = stopped {
            return Err(stop.after(done, OperandId::Source1));
        }
    }
    Ok(End::success())
}

/// Compares through the buffers. A difference before a fault wins over the fault.
pub(super) fn compare<'a>(
    first: &mut Pages<'a>,
    second: &mut Pages<'a>,
    scratch: &mut Scratch,
    [src1, src2]: [u64; 2],
    len: u64,
    expected: Option<u8>,
) -> Ended {
    let mut done = 0;
    while done < len {
        let mut valid = index((len - done).min(scratch.a.len() as u64));
        let mut stopped = None;
        for (pages, at, buffer, operand) in [
            (&mut *first, src1, &mut scratch.a, OperandId::Source1),
            (&mut *second, src2, &mut scratch.b, OperandId::Source2),
        ] {
            if let Err((read, stop)) = pages.read(at.wrapping_add(done), &mut buffer[..valid]) {
                valid = read;
                stopped = Some((stop, operand));
            }
        }
        if let Some(at) = telpher_ops::compare(&scratch.a[..valid], &scratch.b[..valid]) {
            return Ok(copy::compared(Some(done + at as u64), expected));
        }
        done += valid as u64;
        if let Some((stop, operand)) = stopped {
            return Err(stop.after(done, operand));
        }
    }
    Ok(copy::compared(None, expected))
}

/// Asks for the translation of a page for every stride of a region. Bytes completed are undefined, and 0 here.
pub(super) fn fetch_translations(pages: &mut Pages<'_>, address: u64, len: u64, stride: u64) -> Ended {
    let mut done = 0;
    while done < len {
        pages.read(address.wrapping_add(done), &mut [0]).map_err(|(_, stop)| stop.after(0, OperandId::Source1))?;
        // The last stride may end beyond 2^32; no address beyond the region is requested.
        done += stride.max(1);
    }
    Ok(End::success())
}
