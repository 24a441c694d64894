//! A namespace in memory: one mapping for its data, and a block map.
//!
//! ```text
//! logical block ─► BlockMap ─► physical block, or none: zeroes
//!                     │           free ─► written by one request ─► in the map ─► read by replies ─► free
//!                     └─► the same map in a file, if there is one
//! ```
//!
//! Blocks are immutable once they are in the map. A write fills free blocks, in as few runs as possible, and then
//! switches the map under one lock: a reader sees all of the write or nothing of it. No lock is held during a copy. A
//! read takes references to the blocks, so the bytes that were digested are the bytes that are sent, whatever is
//! written in the meantime (spdk/spdk #2845). A replaced block is reused after its last reader has sent it.
//!
//! # The reserve
//!
//! There are as many physical blocks as logical ones, and a reserve ([`MemoryOptions::reserve`]). So no write fails for
//! lack of blocks, and none waits for a host or a device:
//!
//! | part of the reserve | what it is for | what happens beyond it |
//! |---|---|---|
//! | a half | blocks that replies read, because they may be replaced meanwhile | a reply is copied to the heap |
//! | a quarter | data that was placed before its write starts | data stays where it was received, and is copied later |
//! | a quarter | writes under execution | a thread waits for the writes of the other threads to end |
//!
//! What is on the heap then is bounded for each connection by [`limits`](crate::limits). A single write may have as
//! many bytes as the last part has; a longer one can fail with Capacity Exceeded.
//!
//! # Files
//!
//! A namespace may be in an unnamed file in memory (memfd), or in a file on tmpfs or hugetlbfs. The data and the map
//! are in it. If another process keeps the file open, a server that starts after a crash of this one finds every write
//! that was acknowledged. Of a write that was not acknowledged, any of its blocks of [`MAP_BLOCK`] may be there, each
//! of them completely. A memfd cannot be truncated, because it is sealed. If another program of this user truncates a
//! named file, the server continues. The requests that use the lost pages fail, and so does every later one. Therefore
//! a read of a named file touches each of its pages before it succeeds.

mod block_map;
mod file_layout;
mod geometry;
mod update;

use crate::engine::{JobId, Segment, Segments, Shared};
use crate::status::Status;
use crate::storage::{Started, Storage, StorageRequest, StorageResult};
use block_map::BlockMap;
pub use file_layout::HeaderError;
use file_layout::MapFile;
use geometry::{CLEARED_AT_ONCE, Geometry, blocks_of, to_usize};
pub use geometry::{LEAST_RESERVE, MAP_BLOCK};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use telpher_mem::{
    BlockError, BlockMemory, BlockPages, BlockRun, PrivateFile, PrivateFileError, SharedError, SharedRun,
};

/// The zero bytes that a segment of a read refers to, and the longest such segment.
const ZEROES: usize = 128 << 10;

/// Free blocks that may keep their memory after a Deallocate or Write Zeroes. Source: chosen; 4 MiB, so that one system
/// call returns many blocks.
const KEPT_FREE_BLOCKS: usize = 1024;

/// The shortest run of free blocks whose memory is returned. Source: chosen; 64 KiB.
const SHORTEST_RETURNED: usize = 16;

/// Blocks of a transparent huge page. A shorter hole would split the page.
const HUGE_PAGE_BLOCKS: usize = 512;

/// The setting of transparent huge pages. Source: Linux, Documentation/admin-guide/mm/transhuge.rst.
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// How a namespace in memory is created. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// The capacity.
    pub capacity: u64,
    /// The capacity to which it may grow, rounded up to [`MAP_BLOCK`]. It takes address space, and in files on tmpfs or
    /// hugetlbfs and with reserved huge pages also memory.
    pub most_capacity: u64,
    /// Memory beyond the capacity, from [`LEAST_RESERVE`].
    pub reserve: u64,
    /// The pages of anonymous memory. A file has those of its file system.
    pub pages: BlockPages,
}

impl MemoryOptions {
    /// Options for small pages, a capacity that may double, and an eighth of the capacity, from 32 to 256 MiB, as
    /// reserve. Half of 32 MiB has the replies of 128 reads of 128 KiB.
    #[must_use]
    pub const fn new(capacity: u64) -> MemoryOptions {
        let reserve = match capacity / 8 {
            0..0x0200_0000 => 32 << 20,
            0x1000_0000.. => 256 << 20,
            eighth => eighth,
        };
        MemoryOptions { capacity, most_capacity: capacity.saturating_mul(2), reserve, pages: BlockPages::Small }
    }

    /// As [`new`](MemoryOptions::new), but the capacity cannot grow. For memory that is allocated at once.
    #[must_use]
    pub const fn fixed(capacity: u64) -> MemoryOptions {
        MemoryOptions { most_capacity: capacity, ..MemoryOptions::new(capacity) }
    }
}

/// Why a namespace in memory cannot be created or opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The reserve is too small.
    #[error("a reserve of {reserve} bytes is too small; the least is {LEAST_RESERVE}")]
    Reserve {
        /// The reserve asked for.
        reserve: u64,
    },
    /// The namespace could not have its own capacity.
    #[error("a capacity of {capacity} bytes is above the most, {most}")]
    Capacity {
        /// The capacity asked for.
        capacity: u64,
        /// The largest capacity asked for.
        most: u64,
    },
    /// The data cannot be mapped.
    #[error(transparent)]
    Blocks(#[from] BlockError),
    /// The file cannot be used as memory.
    #[error(transparent)]
    File(#[from] PrivateFileError),
    /// The map of the file cannot be mapped.
    #[error(transparent)]
    Map(#[from] SharedError),
    /// The file has no namespace, or a damaged one.
    #[error("{} has no namespace that can be used: {why}", path.display())]
    Contents {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: HeaderError,
    },
}

/// The parts of the reserve, in blocks.
#[derive(Clone, Copy, Debug)]
struct Reserve {
    all: usize,
    read: usize,
    placed: usize,
    written: usize,
}

impl Reserve {
    fn of(all: usize) -> Reserve {
        Reserve { all, read: all / 2, placed: all / 4, written: all / 4 }
    }
}

/// A backend in memory.
#[derive(Debug)]
pub struct MemoryStorage {
    blocks: BlockMemory,
    map: RwLock<BlockMap>,
    reserve: Reserve,
    pages: BlockPages,
    /// The number of physical blocks in use or free. The lock also keeps changes of the capacity apart.
    used_blocks: Mutex<usize>,
    /// The capacity of the map, for readers that take no lock.
    capacity: AtomicU64,
    zeroes: Shared,
}

impl MemoryStorage {
    /// A backend of this capacity in bytes, in anonymous memory, all zeroes. Memory is allocated when it is written.
    ///
    /// # Panics
    /// If the system refuses the address space: [`MemoryStorage::anonymous`] returns its error.
    #[must_use]
    pub fn new(capacity: u64) -> MemoryStorage {
        MemoryStorage::anonymous(MemoryOptions::new(capacity)).expect("address space for a namespace")
    }

    /// A backend in anonymous memory.
    ///
    /// # Errors
    /// [`MemoryError`]: invalid options, or the system's refusal, for example because it has too few huge pages.
    pub fn anonymous(options: MemoryOptions) -> Result<MemoryStorage, MemoryError> {
        let geometry = geometry(&options)?;
        let blocks = BlockMemory::anonymous(to_usize(geometry.physical), MAP_BLOCK, options.pages)?;
        let map = BlockMap::new(options.capacity, None);
        Ok(MemoryStorage::over(blocks, map, &geometry, options.pages))
    }

    /// A backend in an unnamed file in memory. Another process may keep the returned descriptor, and pass it, or its
    /// path `/proc/PID/fd/N`, to the server that opens the namespace after a crash of this one.
    ///
    /// # Errors
    /// [`MemoryError`]: invalid options, or the system's refusal.
    pub fn unnamed(options: MemoryOptions) -> Result<(MemoryStorage, OwnedFd), MemoryError> {
        let geometry = geometry(&options)?;
        let (file, kept) = PrivateFile::create_unnamed("telpher-namespace", geometry.file_bytes())?;
        Ok((MemoryStorage::format(file, &geometry)?, kept))
    }

    /// A backend in a new file on tmpfs or hugetlbfs. The file has all its memory at once.
    ///
    /// # Errors
    /// [`MemoryError`]: invalid options, a file that exists, or the system's refusal.
    pub fn create(path: &Path, options: MemoryOptions) -> Result<MemoryStorage, MemoryError> {
        let geometry = geometry(&options)?;
        let file = PrivateFile::create(path, geometry.file_bytes())?;
        let created = MemoryStorage::format(file, &geometry);
        if created.is_err() {
            let _ = std::fs::remove_file(path);
        }
        created
    }

    /// Opens a namespace that [`unnamed`](MemoryStorage::unnamed) or [`create`](MemoryStorage::create) made: a file, or
    /// the memory file that another process keeps, as `/proc/PID/fd/N`.
    ///
    /// # Errors
    /// [`MemoryError`]: a file that another process uses or that other users can write, contents that are no namespace
    /// or are damaged, or the system's refusal.
    pub fn open(path: &Path) -> Result<MemoryStorage, MemoryError> {
        MemoryStorage::load(PrivateFile::open(path)?)
    }

    /// As [`open`](MemoryStorage::open), by a descriptor, for example an inherited one.
    ///
    /// # Errors
    /// As [`open`](MemoryStorage::open).
    pub fn adopt(file: BorrowedFd<'_>) -> Result<MemoryStorage, MemoryError> {
        MemoryStorage::load(PrivateFile::adopt(file)?)
    }

    fn format(file: PrivateFile, geometry: &Geometry) -> Result<MemoryStorage, MemoryError> {
        let file = Arc::new(file);
        let blocks = BlockMemory::of_file(&file, geometry.data_offset(), to_usize(geometry.physical), MAP_BLOCK)?;
        let map = BlockMap::new(geometry.capacity, Some(MapFile::format(&file, geometry)?));
        Ok(MemoryStorage::over(blocks, map, geometry, BlockPages::Small))
    }

    fn load(file: PrivateFile) -> Result<MemoryStorage, MemoryError> {
        let file = Arc::new(file);
        let path = file.path();
        let damaged = |why| MemoryError::Contents { path: path.into(), why };
        let (map_file, geometry) = MapFile::load(&file)?.map_err(damaged)?;
        let blocks = BlockMemory::of_file(&file, geometry.data_offset(), to_usize(geometry.physical), MAP_BLOCK)?;
        let map = BlockMap::load(&geometry, map_file, |block| blocks.keep(block)).map_err(damaged)?;
        let storage = MemoryStorage::over(blocks, map, &geometry, BlockPages::Small);
        // Free blocks may still have the memory of the previous server. Blocks that were taken count as used.
        drop(storage.blocks.take(storage.blocks.free_blocks()));
        storage.return_memory();
        // The previous server may have ended before it cleared the bytes behind a new end.
        storage.clear_tail(geometry.capacity);
        if !storage.is_whole() {
            return Err(damaged(HeaderError::Truncated));
        }
        Ok(storage)
    }

    fn over(blocks: BlockMemory, map: BlockMap, geometry: &Geometry, pages: BlockPages) -> MemoryStorage {
        let reserve = Reserve::of(to_usize(geometry.reserve()));
        // After a namespace has shrunk, blocks beyond its capacity may be in use.
        let used = (blocks_of(geometry.capacity) + reserve.all).max(map.last_used().map_or(0, |last| last + 1));
        map.each_gap(used, |gap| blocks.add(gap));
        let zeroes = Shared::new(vec![0; ZEROES]);
        let capacity = AtomicU64::new(map.capacity());
        MemoryStorage { blocks, map: RwLock::new(map), reserve, pages, used_blocks: Mutex::new(used), capacity, zeroes }
    }

    /// The number of blocks that the namespace uses.
    #[must_use]
    pub fn allocated_blocks(&self) -> usize {
        self.read_map().allocated()
    }

    /// What a user should know about the pages: that huge pages were asked for, and the system has switched them off.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        if self.pages != BlockPages::Transparent {
            return None;
        }
        let setting = std::fs::read_to_string(TRANSPARENT);
        remark_on(setting.as_deref())
    }

    // A thread that panicked while it held the lock left a valid map: every change is a switch of whole blocks.
    fn read_map(&self) -> RwLockReadGuard<'_, BlockMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_map(&self) -> RwLockWriteGuard<'_, BlockMap> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, start: u64, len: u64) -> StorageResult {
        let mut segments = Segments::new();
        let (mut is_over, mut is_whole) = (false, true);
        let map = self.read_map();
        map.check(start, len)?;
        map.each_run(start, len, |run| match run.blocks {
            Some(blocks) => {
                let shared = self.blocks.share_within(blocks.clone(), self.reserve.read).unwrap_or_else(|| {
                    is_over = true;
                    self.blocks.share(blocks)
                });
                // A page that is lost without notice would be sent as zeroes, or would break the connection.
                is_whole &= shared.probe();
                segments.push(Segment::new(Shared::Blocks(shared), run.bytes));
            }
            None => {
                let mut rest = run.bytes.len();
                while rest > 0 {
                    let part = rest.min(ZEROES);
                    segments.push(Segment::new(Shared::clone(&self.zeroes), 0..part));
                    rest -= part;
                }
            }
        });
        is_whole &= map.is_whole();
        drop(map);
        if is_over {
            // This thread holds the blocks for the time of the copy only.
            for segment in &mut segments {
                if let Shared::Blocks(_) = segment.bytes() {
                    *segment = Segment::whole(segment.as_slice().to_vec());
                }
            }
        }
        if is_whole && self.blocks.is_whole() { Ok(segments) } else { Err(Status::READ_ERROR) }
    }

    /// Returns whether the file has lost no page of the data and the map, as far as they were accessed.
    fn is_whole(&self) -> bool {
        self.read_map().is_whole() && self.blocks.is_whole()
    }

    /// Returns the memory of long free runs to the system, if free blocks have much of it.
    fn return_memory(&self) {
        if self.blocks.free_blocks_with_memory() > KEPT_FREE_BLOCKS {
            let shortest = if self.pages == BlockPages::Transparent { HUGE_PAGE_BLOCKS } else { SHORTEST_RETURNED };
            // A refusal costs memory and no data.
            let _ = self.blocks.give_back(shortest);
        }
    }

    /// Clears the bytes of the last block that are behind the end, which must not come back when the namespace grows.
    fn clear_tail(&self, capacity: u64) {
        let behind = capacity.next_multiple_of(MAP_BLOCK as u64) - capacity;
        self.clear_part_behind_end(capacity, behind);
    }

    fn shared_block(&self, block: u32) -> SharedRun {
        self.blocks.share(block..block + 1)
    }
}

/// Says what the setting of transparent huge pages means for a namespace that asked for them.
fn remark_on(setting: Result<&str, &io::Error>) -> Option<String> {
    match setting {
        Ok(setting) if setting.contains("[never]") => Some(format!(
            "transparent huge pages are switched off, so the namespace has pages of 4 KiB; \
             switch them on: echo madvise > {TRANSPARENT}"
        )),
        Ok(_) => None,
        Err(_) => Some(format!("this kernel has no transparent huge pages ({TRANSPARENT} cannot be read)")),
    }
}

/// Checks options, and computes the sizes of the parts.
fn geometry(options: &MemoryOptions) -> Result<Geometry, MemoryError> {
    let &MemoryOptions { capacity, most_capacity: most, reserve, pages: _ } = options;
    if reserve < LEAST_RESERVE {
        return Err(MemoryError::Reserve { reserve });
    }
    if capacity > most {
        return Err(MemoryError::Capacity { capacity, most });
    }
    let sizes = most.checked_next_multiple_of(MAP_BLOCK as u64).and_then(|most_capacity| {
        let physical = (most_capacity / MAP_BLOCK as u64).checked_add(reserve / MAP_BLOCK as u64)?;
        Some(Geometry { capacity, most_capacity, physical })
    });
    sizes.ok_or(BlockError::Many { blocks: usize::MAX, block_bytes: MAP_BLOCK }.into())
}

impl Storage for MemoryStorage {
    fn start(&self, _id: JobId, request: StorageRequest) -> Started {
        Started::Done(match request {
            StorageRequest::Read { start, len } => self.read(start, len),
            StorageRequest::Write { start, mut pieces, .. } => self.write(start, &mut pieces),
            // Memory does not survive a crash of the machine, whatever is flushed.
            StorageRequest::Flush => Ok(Segments::new()),
            StorageRequest::WriteZeroes { start, len, .. } => self.clear(&[(start, len)]),
            StorageRequest::Deallocate { ranges } => self.clear(&ranges),
        })
    }

    fn longest_clear(&self) -> Option<u64> {
        Some((CLEARED_AT_ONCE * MAP_BLOCK) as u64)
    }

    fn read_at_once(&self, start: u64, len: u64) -> Option<StorageResult> {
        Some(self.read(start, len))
    }

    fn capacity(&self) -> u64 {
        // Relaxed: each request is checked again under the map's lock.
        self.capacity.load(Ordering::Relaxed)
    }

    fn has_atomic_writes(&self) -> bool {
        true
    }

    fn place(&self, start: u64, len: usize) -> Option<Vec<BlockRun>> {
        if len == 0 || !len.is_multiple_of(MAP_BLOCK) || !start.is_multiple_of(MAP_BLOCK as u64) {
            return None;
        }
        self.blocks.take_within(len / MAP_BLOCK, self.reserve.placed)
    }

    fn resize(&self, capacity: u64) -> Result<(), Status> {
        let mut used = self.used_blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let most = (self.blocks.blocks() - self.reserve.all) as u64 * MAP_BLOCK as u64;
        if capacity > most {
            return Err(Status::CAPACITY_EXCEEDED);
        }
        let needed = blocks_of(capacity) + self.reserve.all;
        if needed > *used {
            self.blocks.add(*used..needed);
            *used = needed;
        }
        let mut released = Vec::new();
        self.write_map().resize(capacity, &mut released);
        self.capacity.store(capacity, Ordering::Relaxed);
        self.blocks.release(released);
        self.clear_tail(capacity);
        self.return_memory();
        if self.is_whole() { Ok(()) } else { Err(Status::WRITE_FAULT) }
    }
}

#[cfg(test)]
mod tests;
