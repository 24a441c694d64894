//! Where a namespace's blocks are. A backend implements [`Storage`]; memory, file and null are in this crate.

use crate::engine::{JobId, Segment, Segments, Shared};
use crate::status::Status;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use telpher_mem::BlockRun;

/// A part of the data of a write, in the order of the blocks.
#[derive(Debug)]
pub enum Piece {
    /// Received bytes, which the backend copies or writes.
    Bytes(Segment),
    /// Data in blocks of [`Storage::place`], which the backend takes over without a copy.
    Blocks(Vec<BlockRun>),
}

impl Piece {
    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Piece::Bytes(segment) => segment.len(),
            Piece::Blocks(runs) => runs.iter().map(|run| run.len()).sum(),
        }
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, in their order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let (bytes, runs) = match self {
            Piece::Bytes(segment) => (Some(segment.as_slice()), [].as_slice()),
            Piece::Blocks(runs) => (None, runs.as_slice()),
        };
        bytes.into_iter().chain(runs.iter().map(|run| &run[..]))
    }
}

/// The bytes of all pieces in one segment. They are copied only if there are several.
pub(crate) fn joined(mut pieces: Vec<Piece>) -> Segment {
    match pieces.pop() {
        Some(Piece::Bytes(only)) if pieces.is_empty() => only,
        last => {
            pieces.extend(last);
            let mut bytes = Vec::with_capacity(pieces.iter().map(Piece::len).sum());
            pieces.iter().flat_map(Piece::slices).for_each(|slice| bytes.extend_from_slice(slice));
            Segment::whole(bytes)
        }
    }
}

/// First byte and length.
pub type ByteRange = (u64, u64);

/// Ranges, as first byte and length, in ascending order with gaps between them. The ends are u64.
pub(crate) fn merged(ranges: &[ByteRange]) -> Vec<ByteRange> {
    let mut sorted: Vec<ByteRange> = ranges.iter().copied().filter(|&(_, len)| len > 0).collect();
    sorted.sort_unstable();
    let mut merged: Vec<ByteRange> = Vec::with_capacity(sorted.len());
    for (start, len) in sorted {
        match merged.last_mut() {
            Some((first, before)) if start <= *first + *before => *before = (*before).max(start + len - *first),
            _ => merged.push((start, len)),
        }
    }
    merged
}

/// What a backend is to do. Positions and lengths are in bytes, multiples of the block size, and were checked against
/// the size of the namespace when the command was accepted; the namespace may have become smaller since.
#[derive(Debug)]
pub enum StorageRequest {
    /// Returns `len` bytes from `start`.
    Read {
        /// The first byte.
        start: u64,
        /// The number of bytes.
        len: u64,
    },
    /// Writes the pieces from `start`. Memory takes all of them at once, or none; a file that fails may have a part.
    Write {
        /// The first byte.
        start: u64,
        /// The data.
        pieces: Vec<Piece>,
        /// The data must survive a crash before the answer.
        force: bool,
    },
    /// Everything that was written before must survive a crash before the answer.
    Flush,
    /// The bytes read as zero afterwards.
    WriteZeroes {
        /// The first byte.
        start: u64,
        /// The number of bytes.
        len: u64,
        /// The data must survive a crash before the answer.
        force: bool,
    },
    /// The bytes of these ranges (start and length) are not needed any more.
    Deallocate {
        /// The ranges.
        ranges: Vec<(u64, u64)>,
    },
}

/// The end of a request: the bytes of a read, nothing for the others, or the status of a failure.
pub type StorageResult = Result<Segments, Status>;

/// What a backend says to a request.
#[derive(Debug)]
pub enum Started {
    /// It is done.
    Done(StorageResult),
    /// The result comes later, through `Connection::storage_done` with the same number.
    Later,
}

/// A backend. All connections share it.
pub trait Storage: Send + Sync + fmt::Debug {
    /// Starts a request. The backend owns the buffers in it.
    fn start(&self, id: JobId, request: StorageRequest) -> Started;

    /// The most bytes that one request should clear, if the backend clears while it is asked. The commands of a host
    /// may clear all bytes of a namespace, and must not hold up its loop for so long.
    fn longest_clear(&self) -> Option<u64> {
        None
    }

    /// Returns the bytes of a read, or its failure, if they are in memory: all of them as they are at one moment. By
    /// default, all reads are to be started.
    fn read_at_once(&self, start: u64, len: u64) -> Option<StorageResult> {
        let _ = (start, len);
        None
    }

    /// Takes back a request that waits and was not begun. Returns whether it was: then it has no effect and no answer.
    fn cancel(&self, _id: JobId) -> bool {
        false
    }

    /// The bytes that a namespace may have.
    fn capacity(&self) -> u64;

    /// Returns whether other requests find all bytes of a write or none, however many it has. If not, commands that
    /// write blocks with tuples keep all other commands from these blocks.
    fn has_atomic_writes(&self) -> bool {
        false
    }

    /// Returns free blocks for the data of a write of `len` bytes at `start`, in few runs. The data is copied there
    /// before the write starts, and the write takes the blocks over ([`Piece::Blocks`]). `None` if the backend has
    /// none, or if the bytes are not whole blocks.
    fn place(&self, start: u64, len: usize) -> Option<Vec<BlockRun>> {
        let _ = (start, len);
        None
    }

    /// Changes the capacity in bytes.
    ///
    /// # Errors
    /// A status if the backend cannot have this size. By default it can have no other than it has.
    fn resize(&self, capacity: u64) -> Result<(), Status> {
        if capacity == self.capacity() { Ok(()) } else { Err(Status::CAPACITY_EXCEEDED) }
    }
}

/// Reads zeroes and forgets what is written.
#[derive(Debug)]
pub struct NullStorage {
    capacity: Mutex<u64>,
    zeroes: Shared,
}

/// The zero bytes that a segment of a null read refers to.
const NULL_SEGMENT: usize = 64 << 10;

impl NullStorage {
    /// A backend of this capacity in bytes.
    #[must_use]
    pub fn new(capacity: u64) -> NullStorage {
        NullStorage { capacity: Mutex::new(capacity), zeroes: Shared::new(vec![0; NULL_SEGMENT]) }
    }

    fn read(&self, mut len: u64) -> StorageResult {
        let mut segments = Segments::new();
        while len > 0 {
            let part = usize::try_from(len).unwrap_or(usize::MAX).min(NULL_SEGMENT);
            segments.push(Segment::new(Shared::clone(&self.zeroes), 0..part));
            len -= part as u64;
        }
        Ok(segments)
    }
}

impl Storage for NullStorage {
    fn start(&self, _id: JobId, request: StorageRequest) -> Started {
        Started::Done(match request {
            StorageRequest::Read { len, .. } => self.read(len),
            _ => Ok(Segments::new()),
        })
    }

    fn read_at_once(&self, _start: u64, len: u64) -> Option<StorageResult> {
        Some(self.read(len))
    }

    fn has_atomic_writes(&self) -> bool {
        // Every read finds zeroes.
        true
    }

    fn capacity(&self) -> u64 {
        *self.capacity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resize(&self, capacity: u64) -> Result<(), Status> {
        *self.capacity.lock().unwrap_or_else(PoisonError::into_inner) = capacity;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_or_touch_are_merged() {
        let whole = [(0, 1 << 40); 256];
        assert_eq!(merged(&whole), [(0, 1 << 40)]);
        let ranges = [(700, 50), (0, 0), (100, 50), (120, 10), (150, 1), (740, 20)];
        assert_eq!(merged(&ranges), [(100, 51), (700, 60)]);
        assert_eq!(merged(&[]), []);
    }
}
