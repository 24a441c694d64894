//! Buffers at addresses that O_DIRECT accepts. Their bytes are not cleared before the kernel fills them.
#![allow(unsafe_code, reason = "the kernel initialises the bytes")]

use crate::engine::{Segment, Shared};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// A buffer that is filled from its beginning. Its bytes stay where they are when it moves.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Padding up to the aligned address, and the bytes that are filled. There is room for the others.
    bytes: Vec<u8>,
    /// The length of the padding.
    first: usize,
    /// The length of the buffer.
    len: usize,
}

impl Buffer {
    /// A buffer of `len` bytes at a multiple of `alignment`. It is empty.
    pub(super) fn new(len: usize, alignment: usize) -> Buffer {
        Buffer::in_memory(Vec::with_capacity(len + alignment - 1), len, alignment)
    }

    /// A buffer in this memory, whose capacity is large enough. It is empty.
    fn in_memory(mut bytes: Vec<u8>, len: usize, alignment: usize) -> Buffer {
        bytes.clear();
        let address = bytes.as_ptr().addr();
        let first = address.next_multiple_of(alignment) - address;
        bytes.resize(first, 0);
        Buffer { bytes, first, len }
    }

    /// A buffer of zeroes.
    pub(super) fn zeroes(len: usize, alignment: usize) -> Buffer {
        let mut buffer = Buffer::new(len, alignment);
        buffer.bytes.resize(buffer.first + len, 0);
        buffer
    }

    /// Appends a copy of `bytes`, for which there must be room.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        // The vector must not grow: it would move.
        assert!(bytes.len() <= self.missing(), "the buffer has room for all pieces");
        self.bytes.extend_from_slice(bytes);
    }

    /// The number of bytes that are not filled.
    pub(super) fn missing(&self) -> usize {
        self.first + self.len - self.bytes.len()
    }

    /// The bytes that are not filled.
    pub(super) fn unfilled(&mut self) -> &mut [MaybeUninit<u8>] {
        let missing = self.missing();
        &mut self.bytes.spare_capacity_mut()[..missing]
    }

    /// The next `count` bytes have been filled.
    ///
    /// # Safety
    /// The first `count` bytes of [`Buffer::unfilled`] were written.
    pub(super) unsafe fn add_filled(&mut self, count: usize) {
        assert!(count <= self.missing(), "the kernel writes at most what is missing");
        // SAFETY: the caller says that these bytes are initialised, and they are within the capacity.
        unsafe { self.bytes.set_len(self.bytes.len() + count) }
    }

    /// Fills the buffer from a file.
    ///
    /// # Errors
    /// The kernel's error, or `UnexpectedEof` if the file ends before.
    pub(super) fn read(&mut self, file: &File, position: u64) -> io::Result<()> {
        let mut position = position;
        while self.missing() > 0 {
            let count = match rustix::io::pread(file, self.unfilled(), position) {
                Ok((filled, _)) => filled.len(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            // SAFETY: `pread` returned these bytes as initialised, from the first unfilled one.
            unsafe { self.add_filled(count) };
            position += count as u64;
        }
        Ok(())
    }

    /// The filled bytes, without a copy.
    pub(super) fn into_segment(self) -> Segment {
        let range = self.first..self.bytes.len();
        Segment::new(Shared::new(self.bytes), range)
    }
}

/// The shortest buffer that is kept. The allocator is fast for shorter ones; longer ones cost a page fault for each
/// page, which took a third of the processor time of 128 KiB writes.
const LEAST_KEPT: usize = 64 << 10;

/// The largest memory that is kept. Source: twice the default of `Limits::transfer_bytes`.
const MOST_KEPT: usize = 256 << 10;

/// Memory of writes that have ended, for the next ones of the same thread: at most 32 vectors, 8 MiB.
#[derive(Debug, Default)]
pub(super) struct SpareMemory(Vec<Vec<u8>>);

impl SpareMemory {
    const MOST: usize = 32;

    /// An empty buffer, in memory that was kept if that is large enough. Smaller memory is freed, so that the kept
    /// memory follows the length of the writes.
    pub(super) fn buffer(&mut self, len: usize, alignment: usize) -> Buffer {
        if len >= LEAST_KEPT
            && let Some(memory) = self.0.pop()
            && memory.capacity() >= len + alignment - 1
        {
            return Buffer::in_memory(memory, len, alignment);
        }
        Buffer::new(len, alignment)
    }

    /// Keeps the memory of a segment that has no other owner.
    pub(super) fn keep(&mut self, segment: Segment) {
        if self.0.len() < SpareMemory::MOST
            && let Shared::Heap(bytes) = segment.into_bytes()
            && (LEAST_KEPT..=MOST_KEPT).contains(&bytes.capacity())
            && let Some(memory) = Arc::into_inner(bytes)
        {
            self.0.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filled_bytes_are_at_an_aligned_address_and_stay_there() {
        for alignment in [1, 8, 512, 4096] {
            for len in [0, 1, 512, 10_000] {
                let mut buffer = Buffer::new(len, alignment);
                assert!(buffer.unfilled().as_ptr().addr().is_multiple_of(alignment));
                for _ in 0..len {
                    buffer.append(&[7]);
                }
                let segment = buffer.into_segment();
                assert_eq!(segment.as_slice(), vec![7; len]);
                assert!(segment.as_slice().as_ptr().addr().is_multiple_of(alignment));
                assert_eq!(Buffer::zeroes(len, alignment).into_segment().as_slice(), vec![0; len]);
            }
        }
    }

    #[test]
    fn memory_is_kept_if_it_is_large_enough_and_has_no_other_owner() {
        let mut spare = SpareMemory::default();
        let filled = |mut buffer: Buffer, len: usize| {
            buffer.append(&vec![7; len]);
            buffer.into_segment()
        };
        let first = filled(spare.buffer(100_000, 512), 100_000);
        let address = first.as_slice().as_ptr();
        spare.keep(first);
        assert_eq!((spare.buffer(512, 512).missing(), spare.0.len()), (512, 1));
        let second = filled(spare.buffer(70_000, 512), 70_000);
        assert_eq!((second.as_slice().as_ptr(), second.as_slice()), (address, &*vec![7; 70_000]));
        assert!(spare.0.is_empty());
        let shared = second.clone();
        spare.keep(second);
        assert_eq!((spare.0.len(), shared.as_slice().len()), (0, 70_000));
        spare.keep(Segment::whole(vec![0; LEAST_KEPT]));
        assert_eq!((spare.buffer(200_000, 512).missing(), spare.0.len()), (200_000, 0));
        for len in [1000, 300_000] {
            spare.keep(Segment::whole(vec![0; len]));
            assert!(spare.0.is_empty(), "{len}");
        }
        for _ in 0..40 {
            spare.keep(Segment::whole(vec![0; LEAST_KEPT]));
        }
        assert_eq!(spare.0.len(), SpareMemory::MOST);
    }
}
