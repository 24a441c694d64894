//! Buffers at addresses that O_DIRECT accepts. Their bytes are not cleared before the kernel fills them.
#![allow(unsafe_code, reason = "the kernel initialises the bytes")]

use crate::engine::Segment;
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
        let mut bytes: Vec<u8> = Vec::with_capacity(len + alignment - 1);
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
        Segment { bytes: Arc::new(self.bytes), range }
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
}
