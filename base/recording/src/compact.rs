//! A recording without the parts of its tables that are not in use, for files that are kept or sent.

use crate::layout::{Extent, Header, Limits, Progress, Tables};
use crate::read::ReadError;
use crate::recording::Recording;
use crate::sampling::BLOCK;
use crate::thread_writer::NUMBER_SHIFT;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Returns the same recording with smaller tables. [`Recording::read`] returns the same for both.
///
/// # Errors
/// If the bytes are no recording.
pub fn compact(bytes: &[u8]) -> Result<Vec<u8>, ReadError> {
    let (mut header, old_limits, old) = checked(bytes)?;
    let progress = old.progress.part(bytes).and_then(|part| Progress::<U64>::ref_from_bytes(part).ok());
    let progress = progress.ok_or(ReadError::Damaged("a table is not inside the file"))?;
    let used = |claimed: U64, limit: u32| u32::try_from(claimed.get()).unwrap_or(limit).clamp(1, limit);
    let limits = Limits {
        // The last table is shared, and is in use only if all others are.
        threads: used(progress.threads_claimed, old_limits.threads),
        modules: used(progress.modules_claimed, old_limits.modules),
        trace_blocks: blocks_in_use(progress.long_calls.get() >> NUMBER_SHIFT, old_limits.trace_blocks),
        sites: old_limits.sites,
    };
    let new = Tables::of(limits).map_err(ReadError::Damaged)?;
    header.threads = U32::new(limits.threads);
    header.modules = U32::new(limits.modules);
    header.trace_blocks = U32::new(limits.trace_blocks);
    header.tables = new.all();
    header.bytes = U64::new(new.bytes);
    let mut out = vec![0; usize::try_from(new.bytes).map_err(|_| ReadError::Damaged("its tables are too large"))?];
    out[..size_of::<Header>()].copy_from_slice(header.as_bytes());
    for (from, to) in old.all().into_iter().zip(new.all()) {
        copy_table(bytes, from, &mut out, to);
    }
    Ok(out)
}

/// Returns the lengths in bytes of the recordings that a file has one after another, without reading their tables.
///
/// # Errors
/// If one of them is no recording.
pub fn lengths(mut bytes: &[u8]) -> Result<Vec<usize>, ReadError> {
    let mut lengths = Vec::new();
    while !bytes.is_empty() || lengths.is_empty() {
        let (_, _, tables) = checked(bytes)?;
        // At most the length of `bytes`.
        let length = usize::try_from(tables.bytes).map_err(|_| ReadError::Damaged("its tables are too large"))?;
        lengths.push(length);
        bytes = &bytes[length..];
    }
    Ok(lengths)
}

impl Recording {
    /// Reads a file that has several recordings one after another, as `telpher record merge` writes it.
    ///
    /// # Errors
    /// As for [`Recording::read`], for the first that cannot be read.
    pub fn read_all(bytes: &[u8]) -> Result<Vec<Recording>, ReadError> {
        let mut rest = bytes;
        let mut read = |length| {
            let (one, others) = rest.split_at(length);
            rest = others;
            Recording::read(one)
        };
        lengths(bytes)?.into_iter().map(&mut read).collect()
    }
}

/// Returns the blocks of the trace that hold calls. A trace that was full cannot become smaller: the place of a block
/// depends on the number of blocks.
fn blocks_in_use(long_calls: u64, blocks: u32) -> u32 {
    u32::try_from(long_calls.div_ceil(BLOCK)).unwrap_or(blocks).min(blocks)
}

/// Copies as many entries as both tables have.
fn copy_table(bytes: &[u8], from: Extent, out: &mut [u8], to: Extent) {
    let at = |extent: Extent| usize::try_from(extent.offset.get()).unwrap_or(usize::MAX);
    let entries = from.entries.get().min(to.entries.get());
    let len = usize::try_from(entries.saturating_mul(from.entry_bytes.get())).unwrap_or(usize::MAX);
    let part = |start: usize| Some(start..start.checked_add(len)?);
    let (Some(from), Some(to)) = (part(at(from)), part(at(to))) else { return };
    if let (Some(from), Some(to)) = (bytes.get(from), out.get_mut(to)) {
        to.copy_from_slice(from);
    }
}

/// Checks a recording's header; returns it with the places of its tables.
fn checked(bytes: &[u8]) -> Result<(Header, Limits, Tables), ReadError> {
    let (header, limits, tables) = crate::read::check_header(bytes)?;
    Ok((*header, limits, tables))
}
