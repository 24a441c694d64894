//! Scatter-gather lists: many small buffers named by one list, relative to a base. Source of the meaning: SPEC §8.1.13,
//! §8.3.22 to §8.3.25.
#![forbid(unsafe_code)]

use telpher_abi::SglFormat;

/// Returns the address of the buffer that a little-endian entry names, for buffers of `buffer_bytes`. Addresses wrap
/// modulo 2⁶⁴.
#[must_use]
#[inline]
pub fn address(format: SglFormat, base: u64, entry: &[u8], buffer_bytes: u64) -> u64 {
    let value = match *entry {
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => entry.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)),
    };
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
) -> impl ExactSizeIterator<Item = u64> + Clone + '_ {
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
#[inline]
fn buffer(memory: usize, entry: usize, offset: u64, len: usize) -> Result<std::ops::Range<usize>, OutsideError> {
    let start = usize::try_from(offset).ok();
    let range = start.and_then(|start| Some(start..start.checked_add(len)?));
    range.filter(|range| range.end <= memory).ok_or(OutsideError { entry, offset })
}

/// Copies or fills a buffer of up to this many bytes by inlined instructions: a call takes longer.
const SHORT: usize = 256;

/// Copies a buffer to a place of the same length.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_buffer(src: &[u8], dst: &mut [u8]) {
    assert_eq!(src.len(), dst.len(), "source and destination have the same length");
    if src.len() > SHORT {
        return dst.copy_from_slice(src);
    }
    let ((lines, rest), (to_lines, to_rest)) = (src.as_chunks::<64>(), dst.as_chunks_mut::<64>());
    for (line, to) in lines.iter().zip(to_lines) {
        *to = *line;
    }
    let ((words, rest), (to_words, to_rest)) = (rest.as_chunks::<8>(), to_rest.as_chunks_mut::<8>());
    for (word, to) in words.iter().zip(to_words) {
        *to = *word;
    }
    for (byte, to) in rest.iter().zip(to_rest) {
        *to = *byte;
    }
}

/// Fills a buffer with a pattern.
#[inline]
pub fn fill_buffer(dst: &mut [u8], pattern: u64) {
    if dst.len() > SHORT {
        return crate::fill(dst, pattern, crate::Hint::Cache);
    }
    let bytes = pattern.to_le_bytes();
    let (words, rest) = dst.as_chunks_mut::<8>();
    for word in words {
        *word = bytes;
    }
    for (byte, of) in rest.iter_mut().zip(bytes) {
        *byte = of;
    }
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
    match block {
        64 => gather_fixed::<64>(memory, offsets, dst),
        128 => gather_fixed::<128>(memory, offsets, dst),
        256 => gather_fixed::<256>(memory, offsets, dst),
        _ => {
            for (entry, (offset, dst)) in offsets.into_iter().zip(dst.chunks_exact_mut(block)).enumerate() {
                copy_buffer(&memory[buffer(memory.len(), entry, offset, block)?], dst);
            }
            Ok(())
        }
    }
}

/// [`gather`] of buffers whose length is known to the compiler.
fn gather_fixed<const BLOCK: usize>(
    memory: &[u8],
    offsets: impl IntoIterator<Item = u64>,
    dst: &mut [u8],
) -> Result<(), OutsideError> {
    for (entry, (offset, dst)) in offsets.into_iter().zip(dst.as_chunks_mut::<BLOCK>().0).enumerate() {
        let place = buffer(memory.len(), entry, offset, BLOCK)?;
        dst.copy_from_slice(&memory[place]);
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
    match block {
        64 => scatter_fixed::<64>(src, memory, offsets),
        128 => scatter_fixed::<128>(src, memory, offsets),
        256 => scatter_fixed::<256>(src, memory, offsets),
        _ => {
            for (entry, (offset, src)) in offsets.into_iter().zip(src.chunks_exact(block)).enumerate() {
                let place = buffer(memory.len(), entry, offset, block)?;
                copy_buffer(src, &mut memory[place]);
            }
            Ok(())
        }
    }
}

/// [`scatter`] to buffers whose length is known to the compiler.
fn scatter_fixed<const BLOCK: usize>(
    src: &[u8],
    memory: &mut [u8],
    offsets: impl IntoIterator<Item = u64>,
) -> Result<(), OutsideError> {
    for (entry, (offset, src)) in offsets.into_iter().zip(src.as_chunks::<BLOCK>().0).enumerate() {
        let place = buffer(memory.len(), entry, offset, BLOCK)?;
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
        fill_buffer(&mut memory[place], pattern);
    }
    Ok(())
}
