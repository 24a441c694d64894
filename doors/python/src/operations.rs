//! The operations: one list for the three interfaces, `Mover.crc`, `Mover.crc_async` and `Batch.crc`. Copy is separate,
//! because its buffers may overlap.

use crate::arithmetic::{BlockList, Compute, ListFormat, Numbers};
use crate::dif::Dif;
use crate::result::DifTags;
use crate::view::{View, ViewMut};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use telpher_mem::StableBuf;

/// Calls a macro with the list: names, arguments, their Python signature, the buffers read and written, and the Rust
/// call, which is the same for a mover and a batch.
macro_rules! operations {
    ($with:ident) => {
        $with! {
            /// Copies `length` bytes from offset `start` to offset `to` of the same buffer; the ranges may overlap.
            copy_within, copy_within_async (dst: ViewMut, start: usize, length: usize, to: usize)
                = (dst, start, length, to), reads [], writes [dst],
                |front| front.copy_within(dst, start..start.saturating_add(length), to);
            /// Copies `src` to `dst`, which must have the same length, and ends when the bytes are in memory and not
            /// only in a cache, so that those of persistent memory are durable.
            copy_durable, copy_durable_async (src: View, dst: ViewMut)
                = (src, dst), reads [src], writes [dst],
                |front| front.copy_durable(src, dst);
            /// Fills the buffer with a pattern: a byte from 0 to 255 as in `memset`, or 1, 2, 4, 8 or 16 bytes (any
            /// object with a buffer) repeated, truncated at the end of the buffer. Zero by default.
            fill, fill_async (dst: ViewMut, pattern: Pattern)
                = (dst, pattern=Pattern([0; 2])), reads [], writes [dst],
                |front| front.fill16(dst, pattern.0);
            /// The offset of the first byte in which two buffers of the same length differ, or `None` if they are
            /// equal. A difference at offset 0 is `0`: test with `is None`, or use `equal`.
            compare, compare_async (a: View, b: View)
                = (a, b), reads [a, b], writes [],
                |front| front.compare(a, b);
            /// The offset of the first byte that differs from the repeated pattern (a byte, or 1, 2, 4 or 8 bytes; zero
            /// by default), or `None`.
            compare_pattern, compare_pattern_async (src: View, pattern: ShortPattern)
                = (src, pattern=ShortPattern(0)), reads [src], writes [],
                |front| front.compare_pattern(src, pattern.0);
            /// Writes to `delta` the changes from `old` to `new`, in 10-byte entries. `old` and `new` have the same
            /// length, a multiple of 8 bytes, at most 512 KiB. Returns a `Delta`.
            create_delta, create_delta_async (old: View, new: View, delta: ViewMut)
                = (old, new, delta), reads [old, new], writes [delta],
                |front| front.create_delta(old, new, delta);
            /// Copies `src` to two destinations of the same length. Devices only accept destinations whose addresses
            /// agree in their low 12 bits; the CPU handles others.
            dualcast, dualcast_async (src: View, dst: ViewMut, dst2: ViewMut)
                = (src, dst, dst2), reads [src], writes [dst, dst2],
                |front| front.dualcast(src, dst, dst2);
            /// The CRC32C of `data`, continued from `seed`.
            crc, crc_async (data: View, seed: u32)
                = (data, seed=0), reads [data], writes [],
                |front| front.crc(data, seed, CrcMode::default());
            /// Copies `src` to `dst` and returns its CRC32C, in one pass.
            copy_crc, copy_crc_async (src: View, dst: ViewMut, seed: u32)
                = (src, dst, seed=0), reads [src], writes [dst],
                |front| front.copy_crc(src, dst, seed, CrcMode::default());
            /// The CRC of 64 bits that NVMe uses of `data`, continued from `seed`.
            crc64, crc64_async (data: View, seed: u64)
                = (data, seed=0), reads [data], writes [],
                |front| front.crc64(data, seed, CrcMode::default());
            /// Copies `src` to `dst` and returns that CRC, in one pass.
            copy_crc64, copy_crc64_async (src: View, dst: ViewMut, seed: u64)
                = (src, dst, seed=0), reads [src], writes [dst],
                |front| front.copy_crc64(src, dst, seed, CrcMode::default());
            /// Converts the numbers of `src` to those of `dst`, which has as many. Returns what happened to any of
            /// them: a set of "invalid", "denormal", "overflow", "underflow".
            convert, convert_async (src: View, dst: ViewMut, arithmetic: Numbers)
                = (src, dst, arithmetic), reads [src], writes [dst],
                |front| front.convert(src, dst, arithmetic.0);
            /// Computes each number of `dst` from those of `a` and `b`: "add", "min" or "max", and for integers "and",
            /// "or" or "xor". Returns what happened to any of them, like `convert`.
            reduce, reduce_async (a: View, b: View, dst: ViewMut, compute: Compute, arithmetic: Numbers)
                = (a, b, dst, compute, arithmetic), reads [a, b], writes [dst],
                |front| front.reduce(a, b, dst, compute.0, arithmetic.0);
            /// Like `reduce`, with the same numbers in two destinations.
            reduce_dualcast, reduce_dualcast_async
                (a: View, b: View, dst: ViewMut, dst2: ViewMut, compute: Compute, arithmetic: Numbers)
                = (a, b, dst, dst2, compute, arithmetic), reads [a, b], writes [dst, dst2],
                |front| front.reduce_dualcast(a, b, dst, dst2, compute.0, arithmetic.0);
            /// Computes the numbers of `dst` from those of all blocks of `src` that a list names, in its order. Blocks
            /// have `block` bytes. The list, which is read during this call, has offsets in bytes ("offset64"), or
            /// indexes of blocks ("index32", "index64").
            gather_reduce, gather_reduce_async (src: View, list: BlockList, dst: ViewMut, block: u32,
                compute: Compute, arithmetic: Numbers, format: ListFormat)
                = (src, list, dst, block, compute, arithmetic, format=ListFormat::OFFSETS), reads [src], writes [dst],
                |front| front.gather_reduce(src, list.0, dst, format.blocks(block), compute.0, arithmetic.0);
            /// Copies the blocks of `src` that a list names, as for `gather_reduce`, to `dst`, one after the other.
            gather, gather_async (src: View, list: BlockList, dst: ViewMut, block: u32, format: ListFormat)
                = (src, list, dst, block, format=ListFormat::OFFSETS), reads [src], writes [dst],
                |front| front.gather(src, list.0, dst, format.blocks(block));
            /// Copies `src` to the blocks of `dst` that a list names, as for `gather_reduce`, one after the other.
            scatter, scatter_async (src: View, list: BlockList, dst: ViewMut, block: u32, format: ListFormat)
                = (src, list, dst, block, format=ListFormat::OFFSETS), reads [src], writes [dst],
                |front| front.scatter(src, list.0, dst, format.blocks(block));
            /// Fills each block of `dst` that a list names, as for `gather_reduce`, with a pattern (a byte, or 1, 2, 4
            /// or 8 bytes; zero by default).
            scatter_fill, scatter_fill_async
                (list: BlockList, dst: ViewMut, block: u32, pattern: ShortPattern, format: ListFormat)
                = (list, dst, block, pattern=ShortPattern(0), format=ListFormat::OFFSETS), reads [], writes [dst],
                |front| front.scatter_fill(list.0, dst, format.blocks(block), pattern.0);
            /// Checks blocks that are each followed by an 8-byte integrity field. Returns a `DifResult`.
            dif_check, dif_check_async (src: View, config: Dif, tags: DifTags)
                = (src, config, tags), reads [src], writes [],
                |front| front.dif_check(src, config.0, tags.into());
            /// Copies blocks and appends an integrity field to each; `dst` is 8 bytes longer per block. Returns a
            /// `DifResult`.
            dif_insert, dif_insert_async (src: View, dst: ViewMut, config: Dif, tags: DifTags)
                = (src, dst, config, tags), reads [src], writes [dst],
                |front| front.dif_insert(src, dst, config.0, tags.into());
            /// Checks blocks and copies them without their integrity fields; `dst` is 8 bytes shorter per block.
            /// Returns a `DifResult`.
            dif_strip, dif_strip_async (src: View, dst: ViewMut, config: Dif, tags: DifTags)
                = (src, dst, config, tags), reads [src], writes [dst],
                |front| front.dif_strip(src, dst, config.0, tags.into());
            /// Checks blocks and copies them with new integrity fields; `source` has the expected tags, `dest` the new
            /// ones. Returns a `DifResult`.
            dif_update, dif_update_async (src: View, dst: ViewMut, config: Dif, source: DifTags, dest: DifTags)
                = (src, dst, config, source, dest), reads [src], writes [dst],
                |front| front.dif_update(src, dst, config.0, source.into(), dest.into());
            /// Writes the integrity fields of the blocks of `src` to `dst`, which has 8 bytes per block. Returns a
            /// `DifResult`.
            dix_generate, dix_generate_async (src: View, dst: ViewMut, config: Dif, tags: DifTags)
                = (src, dst, config, tags), reads [src], writes [dst],
                |front| front.dix_generate(src, dst, config.0, tags.into());
            /// Brings the pages of the buffer in, and asks a device for their translations, so that its next operations
            /// do not wait for them.
            prefetch_pages, prefetch_pages_async (data: View)
                = (data), reads [data], writes [],
                |front| front.prefetch_pages(data);
            /// Flushes every cache line of the buffer to memory.
            flush, flush_async (data: View)
                = (data), reads [data], writes [],
                |front| front.flush(data);
        }
    };
}
pub(crate) use operations;

/// How much an operation has to do, as far as its arguments tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Bytes of the longest buffer.
    longest: usize,
    /// The most blocks that a list names.
    blocks: usize,
    /// Bytes of a block.
    block: usize,
}

impl Work {
    /// Bytes read or written: a short list may name a long block often.
    pub(crate) fn bytes(self) -> usize {
        self.longest.max(self.blocks.saturating_mul(self.block))
    }
}

/// An argument of an operation.
pub(crate) trait WorkOf {
    /// Adds what the argument tells; most tell nothing.
    fn add_to(&self, _work: &mut Work) {}
}

macro_rules! no_work {
    ($($argument:ty),*) => { $(impl WorkOf for $argument {})* };
}
no_work!(Pattern, ShortPattern, Numbers, Compute, ListFormat, Dif, DifTags, u64, usize);

macro_rules! buffers {
    ($($buffer:ty),*) => {
        $(impl WorkOf for $buffer {
            fn add_to(&self, work: &mut Work) {
                work.longest = work.longest.max(self.len());
            }
        })*
    };
}
buffers!(View, ViewMut);

/// An entry has 4 bytes or more.
impl WorkOf for BlockList {
    fn add_to(&self, work: &mut Work) {
        work.blocks = self.len() / 4;
    }
}

/// The bytes of a block, in an operation with a list. Without one it counts nothing.
impl WorkOf for u32 {
    fn add_to(&self, work: &mut Work) {
        work.block = usize::try_from(*self).unwrap_or(usize::MAX);
    }
}

/// The pattern to repeat over a buffer, as 16 bytes.
#[derive(Debug)]
pub(crate) struct Pattern(pub(crate) [u64; 2]);

/// The pattern to compare a buffer with, as 8 bytes: the longest that the operation supports.
#[derive(Debug)]
pub(crate) struct ShortPattern(pub(crate) u64);

/// Parses a byte as in `memset`, or one of `lengths` bytes, repeated.
fn repeated<const N: usize>(object: &Borrowed<'_, '_, PyAny>) -> PyResult<[u8; N]> {
    let accepted = || {
        let lengths: Vec<String> = (0..=N.ilog2()).map(|power| (1_u32 << power).to_string()).collect();
        let (last, first) = lengths.split_last().expect("there is a length of 1");
        format!("a pattern must be an int from 0 to 255, or {} or {last} bytes", first.join(", "))
    };
    match object.extract::<u8>() {
        Ok(byte) => return Ok([byte; N]),
        // An int, also one of NumPy's, which would otherwise count as a buffer.
        Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
            return Err(PyValueError::new_err(accepted()));
        }
        Err(_) => {}
    }
    let bytes = object.extract::<View>().map_err(|error| match error.is_instance_of::<PyTypeError>(object.py()) {
        true => PyTypeError::new_err(accepted()),
        false => error,
    })?;
    if bytes.len() > N || !bytes.len().is_power_of_two() {
        return Err(PyValueError::new_err(accepted()));
    }
    let bytes = bytes.to_vec();
    Ok(std::array::from_fn(|at| bytes[at % bytes.len()]))
}

impl<'py> FromPyObject<'_, 'py> for Pattern {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let bytes = u128::from_le_bytes(repeated(&object)?);
        #[allow(clippy::cast_possible_truncation, reason = "the two halves of it")]
        Ok(Pattern([bytes as u64, (bytes >> 64) as u64]))
    }
}

impl<'py> FromPyObject<'_, 'py> for ShortPattern {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(ShortPattern(u64::from_le_bytes(repeated(&object)?)))
    }
}
