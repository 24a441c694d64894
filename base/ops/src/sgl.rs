//! Scatter-gather lists: many small buffers named by one list, relative to a base. Source of the meaning: SPEC §8.1.13,
//! §8.3.22 to §8.3.25.
#![forbid(unsafe_code)]

use telpher_abi::SglFormat;

/// Returns the address of the buffer that a little-endian entry names, for buffers of `buffer_bytes`. Addresses wrap
/// modulo 2⁶⁴.
#[must_use]
pub fn address(format: SglFormat, base: u64, entry: &[u8], buffer_bytes: u64) -> u64 {
    let value = entry.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    let distance = if format == SglFormat::Offset64 { value } else { value.wrapping_mul(buffer_bytes) };
    base.wrapping_add(distance)
}

/// Returns the addresses that the entries of `list` name, in its order; an incomplete entry at the end is ignored.
///
/// ```
/// use telpher_abi::SglFormat;
/// use telpher_ops::sgl;
///
/// let list = [4_u32, 0, 9].map(u32::to_le_bytes);
/// let buffers: Vec<u64> = sgl::addresses(SglFormat::Index32, 0x10_0000, list.as_flattened(), 12).collect();
/// assert_eq!(buffers, [0x10_0030, 0x10_0000, 0x10_006c]);
/// ```
pub fn addresses(
    format: SglFormat,
    base: u64,
    list: &[u8],
    buffer_bytes: u64,
) -> impl ExactSizeIterator<Item = u64> + '_ {
    let entries = list.chunks_exact(format.entry_bytes() as usize);
    entries.map(move |entry| address(format, base, entry, buffer_bytes))
}

/// Error: a buffer does not lie in the memory given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the buffer of entry {entry} at offset {offset} does not lie in the memory; the {entry} before it are done")]
pub struct OutsideError {
    /// The entry.
    pub entry: usize,
    /// The offset it names.
    pub offset: u64,
}

/// Returns the position of a buffer of `len` bytes.
fn buffer(memory: usize, entry: usize, offset: u64, len: usize) -> Result<std::ops::Range<usize>, OutsideError> {
    let start = usize::try_from(offset).ok();
    let range = start.and_then(|start| Some(start..start.checked_add(len)?));
    range.filter(|range| range.end <= memory).ok_or(OutsideError { entry, offset })
}

/// Copies the buffers at `offsets` of `memory` to `dst`, one after the other, `block` bytes each.
///
/// # Errors
/// At the first buffer that does not lie in `memory`; the buffers before it are copied.
///
/// # Panics
/// If `block` is zero or `dst` is no multiple of it.
pub fn gather(
    memory: &[u8],
    offsets: impl IntoIterator<Item = u64>,
    block: usize,
    dst: &mut [u8],
) -> Result<(), OutsideError> {
    assert!(dst.len().is_multiple_of(block), "the destination holds whole buffers");
    for (entry, (offset, dst)) in offsets.into_iter().zip(dst.chunks_exact_mut(block)).enumerate() {
        dst.copy_from_slice(&memory[buffer(memory.len(), entry, offset, block)?]);
    }
    Ok(())
}

/// Copies successive blocks of `src` to the buffers at `offsets` of `memory`, in their order.
///
/// # Errors
/// At the first buffer that does not lie in `memory`; the buffers before it are written.
///
/// # Panics
/// If `block` is zero or `src` is no multiple of it.
pub fn scatter(
    src: &[u8],
    memory: &mut [u8],
    offsets: impl IntoIterator<Item = u64>,
    block: usize,
) -> Result<(), OutsideError> {
    assert!(src.len().is_multiple_of(block), "the source holds whole buffers");
    for (entry, (offset, src)) in offsets.into_iter().zip(src.chunks_exact(block)).enumerate() {
        let place = buffer(memory.len(), entry, offset, block)?;
        memory[place].copy_from_slice(src);
    }
    Ok(())
}

/// Fills the buffers at `offsets` of `memory`, `block` bytes each, with a pattern that begins anew in each.
///
/// # Errors
/// At the first buffer that does not lie in `memory`; the buffers before it are filled.
pub fn scatter_fill(
    pattern: u64,
    memory: &mut [u8],
    offsets: impl IntoIterator<Item = u64>,
    block: usize,
) -> Result<(), OutsideError> {
    for (entry, offset) in offsets.into_iter().enumerate() {
        let place = buffer(memory.len(), entry, offset, block)?;
        crate::fill(&mut memory[place], pattern, crate::Hint::Cache);
    }
    Ok(())
}
