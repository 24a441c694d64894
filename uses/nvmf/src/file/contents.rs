//! A file or block device while requests use it: its size, how it is accessed, and the buffers that this access needs.

use super::buffer::{Buffer, SpareMemory};
use crate::engine::Segment;
use crate::status::Status;
use crate::storage::{Piece, StorageRequest};
use crate::subsystem::lock;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// What O_DIRECT needs if the kernel does not say it. Source: no device that Linux supports has larger sectors by
/// default.
const DEFAULT_ALIGNMENT: Alignment = Alignment { memory: 4096, position: 4096 };

/// How the bytes of a file are accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Access {
    /// With O_DIRECT: the device reads and writes the buffers of requests.
    Direct(Alignment),
    /// Through the page cache.
    PageCache(PageCacheReason),
}

/// Multiples that O_DIRECT needs, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alignment {
    /// Of the addresses of buffers.
    pub memory: usize,
    /// Of positions in the file and of lengths.
    pub position: u64,
}

/// Why a file is accessed through the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PageCacheReason {
    /// The options ask for it.
    Chosen,
    /// The kernel refused O_DIRECT with this error number.
    Refused(i32),
    /// A request was not a multiple of the device's blocks.
    Blocks {
        /// The multiple in bytes that O_DIRECT needs.
        needed: u64,
    },
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Access::Direct(_) => write!(f, "O_DIRECT"),
            Access::PageCache(PageCacheReason::Chosen) => write!(f, "page cache"),
            Access::PageCache(PageCacheReason::Refused(errno)) => {
                write!(f, "page cache (O_DIRECT is refused: {})", io::Error::from_raw_os_error(*errno))
            }
            Access::PageCache(PageCacheReason::Blocks { needed }) => {
                write!(f, "page cache (O_DIRECT needs blocks that are multiples of {needed} bytes)")
            }
        }
    }
}

impl Access {
    fn alignment(self) -> Alignment {
        match self {
            Access::Direct(alignment) => alignment,
            Access::PageCache(_) => Alignment { memory: 1, position: 1 },
        }
    }
}

/// A file, and the bytes of it that the namespace has.
#[derive(Debug)]
pub(super) struct Contents {
    file: Arc<File>,
    state: Mutex<State>,
    /// Signalled when a request ends or the access has changed.
    changed: Condvar,
    /// Held during a change of the size.
    resize: Mutex<()>,
}

#[derive(Debug)]
struct State {
    capacity: u64,
    access: Access,
    /// A thread waits until no request is left, in order to change the access. New requests wait, too.
    changes_access: bool,
    /// The ends of the ranges that accepted requests use, and how many requests have each end.
    ends: BTreeMap<u64, usize>,
}

impl Contents {
    /// Chooses how the file is accessed. Its size is its capacity.
    pub(super) fn new(file: File, is_direct: bool) -> io::Result<Contents> {
        // The metadata of a block device has no size.
        let capacity = (&file).seek(SeekFrom::End(0))?;
        let access = if is_direct {
            match open_direct(&file, capacity) {
                Ok(alignment) => Access::Direct(alignment),
                Err(error) => {
                    set_direct(&file, false)?;
                    Access::PageCache(PageCacheReason::Refused(error.raw_os_error()))
                }
            }
        } else {
            Access::PageCache(PageCacheReason::Chosen)
        };
        let state = State { capacity, access, changes_access: false, ends: BTreeMap::new() };
        let file = Arc::new(file);
        Ok(Contents { file, state: Mutex::new(state), changed: Condvar::new(), resize: Mutex::new(()) })
    }

    /// A file that is treated as if it had this size; accessed through the page cache.
    #[cfg(test)]
    pub(super) fn of_size(file: File, capacity: u64) -> Contents {
        let contents = Contents::new(file, false).unwrap();
        lock(&contents.state).capacity = capacity;
        contents
    }

    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub(super) fn capacity(&self) -> u64 {
        lock(&self.state).capacity
    }

    pub(super) fn access(&self) -> Access {
        lock(&self.state).access
    }

    /// Accepts a request if it is within the capacity. If O_DIRECT cannot execute it, this waits for the requests
    /// before it, and the file is accessed through the page cache from now on. Both ways at a time would lose data.
    pub(super) fn admit(self: &Arc<Self>, request: &StorageRequest) -> Result<Admitted, Status> {
        let end = end_of(request).ok_or(Status::LBA_RANGE)?;
        let mut state = lock(&self.state);
        loop {
            if end > state.capacity {
                return Err(Status::LBA_RANGE);
            }
            if state.changes_access {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let needed = state.access.alignment().position;
            if is_multiple(request, needed) {
                break;
            }
            state.changes_access = true;
            while !state.ends.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let is_changed = set_direct(&self.file, false).is_ok();
            state.changes_access = false;
            self.changed.notify_all();
            if !is_changed {
                return Err(Status::INTERNAL_ERROR);
            }
            state.access = Access::PageCache(PageCacheReason::Blocks { needed });
        }
        *state.ends.entry(end).or_default() += 1;
        let memory = state.access.alignment().memory;
        Ok(Admitted { contents: Arc::clone(self), end, memory })
    }

    /// Changes the size. A file that becomes shorter is cut after the requests beyond its new end, so that none of
    /// them makes it longer again.
    pub(super) fn resize(&self, bytes: u64) -> Result<(), Status> {
        let _only_one = lock(&self.resize);
        if !self.file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            // A device has the size that it has; the namespace may use a part of it.
            let size = (&*self.file).seek(SeekFrom::End(0)).map_err(|_| Status::INTERNAL_ERROR)?;
            if bytes > size {
                return Err(Status::CAPACITY_EXCEEDED);
            }
            lock(&self.state).capacity = bytes;
            return Ok(());
        }
        let mut state = lock(&self.state);
        let before = state.capacity;
        state.capacity = bytes.min(before);
        while state.ends.last_key_value().is_some_and(|(&end, _)| end > bytes) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let set = self.file.set_len(bytes);
        lock(&self.state).capacity = if set.is_ok() { bytes } else { before };
        set.map_err(|error| write_status(&error))
    }
}

/// A request that may use a file. Until it is dropped, the file is not cut before its end, and is accessed in the same
/// way.
#[derive(Debug)]
pub(super) struct Admitted {
    contents: Arc<Contents>,
    end: u64,
    memory: usize,
}

impl Admitted {
    pub(super) fn file(&self) -> &Arc<File> {
        self.contents.file()
    }

    /// A buffer of `len` bytes at an address that the access allows.
    pub(super) fn buffer(&self, len: usize) -> Buffer {
        Buffer::new(len, self.memory)
    }

    /// Zeroes to write where the file system has no call for it.
    pub(super) fn zeroes(&self) -> Segment {
        Buffer::zeroes(ZEROES, self.memory).into_segment()
    }

    /// The data of a write as one segment: that of the only piece, or a copy if there are several or if O_DIRECT cannot
    /// read this address.
    pub(super) fn gather(&self, mut pieces: Vec<Piece>, spare: &mut SpareMemory) -> Segment {
        if let [Piece::Bytes(segment)] = &*pieces
            && segment.as_slice().as_ptr().addr().is_multiple_of(self.memory)
            && let Some(Piece::Bytes(segment)) = pieces.pop()
        {
            return segment;
        }
        let mut buffer = spare.buffer(pieces.iter().map(Piece::len).sum(), self.memory);
        for slice in pieces.iter().flat_map(|piece| piece.slices()) {
            buffer.append(slice);
        }
        buffer.into_segment()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = lock(&self.contents.state);
        if let Some(count) = state.ends.get_mut(&self.end) {
            *count -= 1;
            if *count == 0 {
                state.ends.remove(&self.end);
            }
        }
        drop(state);
        self.contents.changed.notify_all();
    }
}

/// The ways to make the kernel write zeroes, best first: a hole needs no space. Not all file systems have each.
pub(super) const ZERO_MODES: [FallocateFlags; 2] = [
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE),
    FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE),
];

/// Deallocates a range, which reads as zeroes afterwards.
pub(super) const DEALLOCATE: FallocateFlags = ZERO_MODES[0];

/// Zeroes that are written at once where the file system has no call for it.
pub(super) const ZEROES: usize = 64 << 10;

/// The status of a write or flush that failed.
pub(super) fn write_status(error: &io::Error) -> Status {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Status::CAPACITY_EXCEEDED,
        _ => Status::WRITE_FAULT,
    }
}

/// The end of the last byte that a request uses, unless it overflows.
fn end_of(request: &StorageRequest) -> Option<u64> {
    match request {
        StorageRequest::Read { start, len } | StorageRequest::WriteZeroes { start, len, .. } => start.checked_add(*len),
        StorageRequest::Write { start, pieces, .. } => start.checked_add(len_of(pieces)),
        StorageRequest::Flush => Some(0),
        StorageRequest::Deallocate { ranges } => {
            ranges.iter().try_fold(0, |end, &(start, len)| Some(start.checked_add(len)?.max(end)))
        }
    }
}

/// Returns whether a request is allowed with positions and lengths that must be multiples of `unit`.
fn is_multiple(request: &StorageRequest, unit: u64) -> bool {
    let (start, len) = match request {
        StorageRequest::Read { start, len } | StorageRequest::WriteZeroes { start, len, .. } => (*start, *len),
        StorageRequest::Write { start, pieces, .. } => (*start, len_of(pieces)),
        StorageRequest::Flush | StorageRequest::Deallocate { .. } => (0, 0),
    };
    start.is_multiple_of(unit) && len.is_multiple_of(unit)
}

fn len_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}

fn set_direct(file: &File, is_direct: bool) -> rustix::io::Result<()> {
    let flags = fcntl_getfl(file)?;
    fcntl_setfl(file, if is_direct { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT })
}

/// Turns O_DIRECT on, and reads the first bytes with it: some file systems refuse only the read.
fn open_direct(file: &File, capacity: u64) -> Result<Alignment, Errno> {
    let alignment = direct_alignment(file)?;
    set_direct(file, true)?;
    let len = usize::try_from(alignment.position).map_err(|_| Errno::INVAL)?;
    if alignment.position <= capacity {
        let read = Buffer::new(len, alignment.memory).read(file, 0);
        read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    }
    Ok(alignment)
}

fn direct_alignment(file: &File) -> Result<Alignment, Errno> {
    // Linux answers since 6.1, and not for all file systems.
    let Ok(found) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(DEFAULT_ALIGNMENT) };
    if found.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return Ok(DEFAULT_ALIGNMENT);
    }
    let (memory, position) = (found.stx_dio_mem_align, found.stx_dio_offset_align);
    if !memory.is_power_of_two() || !position.is_power_of_two() {
        // Zero stands for a file without O_DIRECT.
        return Err(Errno::INVAL);
    }
    Ok(Alignment { memory: memory as usize, position: position.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_access_changes_after_the_requests_before() {
        let contents = Contents::of_size(File::open("/dev/null").unwrap(), 1 << 20);
        lock(&contents.state).access = Access::Direct(Alignment { memory: 512, position: 512 });
        let contents = Arc::new(contents);
        let read = |start| StorageRequest::Read { start, len: 520 * 512 };
        let [first, second] = [contents.admit(&read(0)).unwrap(), contents.admit(&StorageRequest::Flush).unwrap()];
        let has_dropped = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let odd = scope.spawn(|| {
                let admitted = contents.admit(&read(520)).unwrap();
                // Pairs with the store below, as the lock of the state does.
                assert!(has_dropped.load(Ordering::SeqCst), "the request waits for those before it");
                drop(admitted);
            });
            while !lock(&contents.state).changes_access && !odd.is_finished() {
                std::thread::yield_now();
            }
            drop(first);
            // A request of whole sectors comes meanwhile.
            let whole = scope.spawn(|| drop(contents.admit(&read(512)).unwrap()));
            has_dropped.store(true, Ordering::SeqCst);
            drop(second);
            whole.join().unwrap();
        });
        assert_eq!(contents.access(), Access::PageCache(PageCacheReason::Blocks { needed: 512 }));
        assert!(lock(&contents.state).ends.is_empty());
        let beyond = StorageRequest::Read { start: 1 << 20, len: 1 };
        assert_eq!(contents.admit(&beyond).unwrap_err(), Status::LBA_RANGE);
    }
}
