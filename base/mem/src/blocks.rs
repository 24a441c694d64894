//! Equal blocks of one mapping. Each free block may be taken by one writer, and a finished block is shared by readers.
//!
//! ```text
//! free ─take─► taken: a BlockRun, written by its owner ─keep─► kept: read by SharedRuns
//!   ▲            │ drop                                          │ release
//!   └────────────┴────────────── last SharedRun dropped ◄────────┘
//! ```
//!
//! The state of each block is one atomic word ([`BlockState`]), and every step above checks it. So a block has one
//! writer or any number of readers, whatever a caller does with block numbers. Only memory is at stake here: a map of
//! blocks, and its consistency, are the caller's.
#![allow(unsafe_code, reason = "parts of a mapping are owned separately, or shared")]

use crate::block_state::{BlockState, Released};
use crate::gaps::Gaps;
use crate::map::{MapError, MemoryFile};
use crate::private_file::PrivateFile;
use crate::raw_pages::RawPages;
use crate::region::PageSize;
use crate::shared::{SharedError, SharedMapping};
use crate::space::PAGE_BYTES;
use crate::stable_buf::{Slice, StableBuf, StableBufMut};
use std::fmt::{self, Debug};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The most blocks: their numbers have 31 bits.
const MOST_BLOCKS: usize = (1 << 31) - 1;

/// Pages for blocks in anonymous memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum BlockPages {
    /// Pages of 4 KiB.
    #[default]
    Small,
    /// Transparent huge pages, where the system has free ones; otherwise small pages.
    Transparent,
    /// Pages of 2 MiB from the system's pool (`vm.nr_hugepages`). All are allocated at once, and none is given back.
    Reserved,
}

/// Why a mapping of blocks cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// More blocks than a block number can count, or more bytes than addresses.
    #[error("{blocks} blocks of {block_bytes} bytes are too many")]
    Many {
        /// The number of blocks.
        blocks: usize,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// The system refused anonymous memory.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The file cannot be mapped.
    #[error(transparent)]
    File(#[from] SharedError),
}

/// Where the bytes are.
enum Memory {
    Anonymous(RawPages),
    Reserved(MemoryFile),
    File { mapping: SharedMapping, file: Arc<PrivateFile>, offset: u64 },
}

struct Inner {
    start: NonNull<u8>,
    block_bytes: usize,
    states: Box<[BlockState]>,
    /// Blocks of all live [`SharedRun`]s, each counted once for each run.
    shared: AtomicUsize,
    /// Blocks of all live [`BlockRun`]s.
    taken: AtomicUsize,
    free: Mutex<Free>,
    /// Signalled when blocks become free and a thread waits for them.
    freed: Condvar,
    /// Keeps the bytes mapped.
    memory: Memory,
}

// SAFETY: the bytes are reached only through runs. A block's state gives it to one `BlockRun`, or to `SharedRun`s,
// which only read. The other fields are Send and Sync themselves.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// The free blocks.
#[derive(Debug, Default)]
struct Free {
    /// Blocks whose memory was touched. They are taken first: their memory is there, and may be in a cache.
    used: Gaps,
    /// Blocks without memory.
    fresh: Gaps,
    /// Threads that wait for free blocks.
    waiting: usize,
}

impl Free {
    fn count(&self) -> usize {
        self.used.free() + self.fresh.free()
    }

    /// Takes one run: `wanted` blocks, or else the longest run that there is.
    fn take(&mut self, wanted: usize) -> Option<(usize, usize)> {
        if let Some(start) = self.used.take(wanted).or_else(|| self.fresh.take(wanted)) {
            return Some((start, wanted));
        }
        // Every gap is shorter than what is wanted.
        let longer = if self.used.longest() >= self.fresh.longest() { &mut self.used } else { &mut self.fresh };
        longer.take_longest(1)
    }
}

/// A mapping of equal blocks. Cloning is cheap and yields the same blocks.
///
/// Blocks have numbers from 0. At first none is free: [`add`](BlockMemory::add) makes blocks free, and
/// [`keep`](BlockMemory::keep) finds blocks that have contents already.
///
/// ```
/// use telpher_mem::{BlockMemory, BlockPages};
///
/// let memory = BlockMemory::anonymous(64, 4096, BlockPages::Small)?;
/// memory.add(0..64);
/// let mut runs = memory.take(32).expect("64 blocks are free");
/// assert_eq!(runs.len(), 1, "all in one run");
/// runs[0].fill(7);
/// let kept = runs.remove(0).keep();
/// let read = memory.share(kept.clone());
/// memory.release(kept);
/// assert_eq!((memory.free_blocks(), read[131_071]), (32, 7));
/// drop(read);
/// assert_eq!(memory.free_blocks(), 64);
/// # Ok::<(), telpher_mem::BlockError>(())
/// ```
#[derive(Clone)]
pub struct BlockMemory(Arc<Inner>);

impl BlockMemory {
    /// Maps anonymous memory of `blocks` blocks of `block_bytes`, a multiple of 64.
    ///
    /// # Errors
    /// [`BlockError`]: too many blocks, or the system's refusal, for example because it has too few huge pages.
    pub fn anonymous(blocks: usize, block_bytes: usize, pages: BlockPages) -> Result<BlockMemory, BlockError> {
        let len = len_of(blocks, block_bytes)?;
        let memory = match pages {
            BlockPages::Small => Memory::Anonymous(RawPages::new(len, PageSize::Small)?),
            BlockPages::Transparent => Memory::Anonymous(RawPages::new(len, PageSize::Huge)?),
            BlockPages::Reserved => Memory::Reserved(MemoryFile::huge(len.max(1).next_multiple_of(2 << 20), None)?),
        };
        Ok(BlockMemory::over(memory, blocks, block_bytes))
    }

    /// Maps blocks of a file, from `offset` on, a multiple of the page size.
    ///
    /// If the file is truncated, accesses find empty pages, and [`is_whole`](BlockMemory::is_whole) tells so.
    ///
    /// # Errors
    /// [`BlockError`]: too many blocks, a file that is too short, or the system's refusal.
    pub fn of_file(
        file: &Arc<PrivateFile>,
        offset: u64,
        blocks: usize,
        block_bytes: usize,
    ) -> Result<BlockMemory, BlockError> {
        use std::os::fd::AsFd;
        let len = len_of(blocks, block_bytes)?;
        let mapping = SharedMapping::map(file.as_fd(), offset, len as u64)?;
        let memory = Memory::File { mapping, file: Arc::clone(file), offset };
        Ok(BlockMemory::over(memory, blocks, block_bytes))
    }

    fn over(memory: Memory, blocks: usize, block_bytes: usize) -> BlockMemory {
        let start = match &memory {
            Memory::Anonymous(pages) => pages.as_ptr(),
            Memory::Reserved(file) => file.as_ptr(),
            Memory::File { mapping, .. } => {
                ptr::with_exposed_provenance_mut(usize::try_from(mapping.address()).expect("addresses are 64 bits"))
            }
        };
        let start = NonNull::new(start).expect("a mapping does not begin at zero");
        // Zeroed by the allocator, so that the table of a large mapping takes memory only where it is used.
        let states = Box::into_raw(vec![0_u32; blocks].into_boxed_slice());
        // SAFETY: a BlockState has the size, alignment and valid values of a u32. Zero is a free block.
        let states = unsafe { Box::from_raw(states as *mut [BlockState]) };
        BlockMemory(Arc::new(Inner {
            start,
            block_bytes,
            states,
            shared: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            free: Mutex::default(),
            freed: Condvar::new(),
            memory,
        }))
    }

    /// The number of blocks of the mapping.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.0.states.len()
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }

    /// Makes blocks free that were not used before. Blocks that are already in use are not to be named.
    ///
    /// # Panics
    /// If the blocks are not in the mapping.
    pub fn add(&self, blocks: Range<usize>) {
        assert!(blocks.start <= blocks.end && blocks.end <= self.blocks(), "{blocks:?} are in the mapping");
        if !blocks.is_empty() {
            let mut free = self.0.lock();
            free.fresh.give_back(blocks.start, blocks.len());
            self.0.wake(&free);
        }
    }

    /// Marks a block as kept that has contents already, for example of a file that was used before. Returns false if
    /// there is no such block, or it is in use.
    #[must_use]
    pub fn keep(&self, block: u32) -> bool {
        self.0.states.get(block as usize).is_some_and(BlockState::keep_found)
    }

    /// Takes `count` free blocks in as few runs as it finds. The bytes are old contents of the blocks. `None` if fewer
    /// blocks are free.
    #[must_use]
    pub fn take(&self, count: usize) -> Option<Vec<BlockRun>> {
        let free = self.0.lock();
        (free.count() >= count).then(|| self.take_from(free, count))
    }

    /// As [`take`](BlockMemory::take), but no more than `most` blocks may be taken at a time, with these.
    #[must_use]
    pub fn take_within(&self, count: usize, most: usize) -> Option<Vec<BlockRun>> {
        let free = self.0.lock();
        // Relaxed: the count grows only under the lock.
        let fits = self.0.taken.load(Ordering::Relaxed).saturating_add(count) <= most;
        (fits && free.count() >= count).then(|| self.take_from(free, count))
    }

    /// As [`take`](BlockMemory::take), but waits until enough blocks are free.
    #[must_use]
    pub fn take_waiting(&self, count: usize) -> Vec<BlockRun> {
        let mut free = self.0.lock();
        while free.count() < count {
            free.waiting += 1;
            free = self.0.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
            free.waiting -= 1;
        }
        self.take_from(free, count)
    }

    fn take_from(&self, mut free: MutexGuard<'_, Free>, count: usize) -> Vec<BlockRun> {
        let mut runs = Vec::with_capacity(1);
        let mut missing = count;
        while missing > 0 {
            let (start, len) = free.take(missing).expect("the caller counted the free blocks");
            if !self.0.states[start..start + len].iter().all(BlockState::take) {
                // The drop of the other runs needs the lock.
                drop(free);
                panic!("a free block is in use: it was added twice");
            }
            self.0.taken.fetch_add(len, Ordering::Relaxed);
            runs.push(BlockRun { memory: self.clone(), first: number(start), count: number(len) });
            missing -= len;
        }
        runs
    }

    /// Returns kept blocks for reading. They stay as they are until the run is dropped, even if they are released.
    ///
    /// # Panics
    /// If a block is not kept, or the range is not in the mapping.
    #[must_use]
    pub fn share(&self, blocks: Range<u32>) -> SharedRun {
        // Relaxed: a mere count, here and below.
        self.0.shared.fetch_add(blocks.len(), Ordering::Relaxed);
        self.count_readers(blocks)
    }

    /// As [`share`](BlockMemory::share), if all shared runs then have at most `most` blocks, each counted once for each
    /// run.
    ///
    /// # Panics
    /// As [`share`](BlockMemory::share).
    #[must_use]
    pub fn share_within(&self, blocks: Range<u32>, most: usize) -> Option<SharedRun> {
        let more = |shared: usize| shared.checked_add(blocks.len()).filter(|&shared| shared <= most);
        self.0.shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(self.count_readers(blocks))
    }

    /// Makes a run of blocks that are already counted as shared.
    fn count_readers(&self, blocks: Range<u32>) -> SharedRun {
        let mut run = SharedRun { memory: self.clone(), first: blocks.start, count: 0 };
        let states = self.0.states.get(blocks.start as usize..blocks.end as usize).unwrap_or_default();
        for state in states {
            if !state.share() {
                break;
            }
            run.count += 1;
        }
        if run.blocks() < blocks.len() || blocks.is_empty() {
            // The drop of the run subtracts the others.
            self.0.shared.fetch_sub(blocks.len() - run.blocks(), Ordering::Relaxed);
            panic!("block {} is not kept", run.first.saturating_add(run.count));
        }
        run
    }

    /// Releases kept blocks: each becomes free when its last reader has dropped it.
    ///
    /// # Panics
    /// If a block is not kept.
    pub fn release(&self, blocks: impl IntoIterator<Item = u32>) {
        let mut freed = Freed::of(&self.0);
        for block in blocks {
            let released = self.0.states[block as usize].release();
            assert!(released != Released::NotKept, "block {block} is not kept");
            if released == Released::Free {
                freed.push(block as usize);
            }
        }
    }

    /// Returns the memory of free runs of at least `least_run` blocks to the system. Does nothing for reserved pages
    /// and unsealed files. Returns the number of blocks. Other threads do not find these blocks free during the call.
    ///
    /// # Errors
    /// The system's refusal; the blocks stay free.
    pub fn give_back(&self, least_run: usize) -> std::io::Result<usize> {
        if !self.gives_back() {
            return Ok(0);
        }
        let mut runs = Vec::new();
        let mut free = self.0.lock();
        while let Some(run) = free.used.take_longest(least_run.max(1)) {
            runs.push(run);
        }
        drop(free);
        let mut given = 0;
        let mut result = Ok(());
        for &(start, count) in &runs {
            let (offset, len) = ((start * self.0.block_bytes) as u64, (count * self.0.block_bytes) as u64);
            let discarded = match &self.0.memory {
                Memory::Anonymous(pages) => {
                    let start = pages.start() + offset;
                    pages.discard(start..start + len).map_err(|error| error.source)
                }
                Memory::Reserved(_) => Ok(()),
                Memory::File { file, offset: first, .. } => file.punch(first + offset, len),
            };
            let mut free = self.0.lock();
            if discarded.is_ok() {
                given += count;
                free.fresh.give_back(start, count);
            } else {
                free.used.give_back(start, count);
            }
            self.0.wake(&free);
            result = result.and(discarded);
        }
        result.map(|()| given)
    }

    /// True if [`give_back`](BlockMemory::give_back) returns memory. Reserved huge pages and files that are not sealed
    /// keep theirs: another program could take it, and a later access would find none.
    fn gives_back(&self) -> bool {
        match &self.0.memory {
            Memory::Anonymous(_) => true,
            Memory::Reserved(_) => false,
            Memory::File { file, .. } => file.is_sealed(),
        }
    }

    /// True if no page of the file was lost so far. See [`SharedMapping::is_whole`].
    #[must_use]
    pub fn is_whole(&self) -> bool {
        match &self.0.memory {
            Memory::File { mapping, .. } => mapping.is_whole(),
            Memory::Anonymous(_) | Memory::Reserved(_) => true,
        }
    }

    /// The number of free blocks.
    ///
    /// **Staleness**: other threads take and free blocks meanwhile. This holds for the counts below as well.
    #[must_use]
    pub fn free_blocks(&self) -> usize {
        self.0.lock().count()
    }

    /// The number of free blocks that may have memory.
    #[must_use]
    pub fn free_blocks_with_memory(&self) -> usize {
        self.0.lock().used.free()
    }

    /// The number of blocks of all [`SharedRun`]s, each counted once for each run.
    #[must_use]
    pub fn shared_blocks(&self) -> usize {
        self.0.shared.load(Ordering::Relaxed)
    }

    /// The number of blocks of all [`BlockRun`]s.
    #[must_use]
    pub fn taken_blocks(&self) -> usize {
        self.0.taken.load(Ordering::Relaxed)
    }
}

impl Debug for BlockMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockMemory").field("blocks", &self.blocks()).field("free", &self.free_blocks()).finish()
    }
}

fn len_of(blocks: usize, block_bytes: usize) -> Result<usize, BlockError> {
    assert!(block_bytes > 0 && block_bytes.is_multiple_of(64), "a block has whole cache lines");
    let many = BlockError::Many { blocks, block_bytes };
    match blocks.checked_mul(block_bytes) {
        Some(len) if blocks <= MOST_BLOCKS && isize::try_from(len).is_ok() => Ok(len),
        _ => Err(many),
    }
}

/// A block number; the number of blocks was checked.
fn number(block: usize) -> u32 {
    u32::try_from(block).expect("fewer than 2^31 blocks")
}

impl Inner {
    /// No panic under the lock leaves the gaps half changed, so a poisoned lock is still usable.
    fn lock(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, free: &Free) {
        if free.waiting > 0 {
            self.freed.notify_all();
        }
    }

    fn slice(&self, first: u32, count: u32) -> (*mut u8, usize) {
        // SAFETY: the blocks of a run lie in the mapping.
        let start = unsafe { self.start.as_ptr().add(first as usize * self.block_bytes) };
        (start, count as usize * self.block_bytes)
    }
}

/// Blocks that became free, joined to runs, which are given back on drop.
struct Freed<'a> {
    inner: &'a Inner,
    run: Range<usize>,
    free: Option<MutexGuard<'a, Free>>,
}

impl<'a> Freed<'a> {
    fn of(inner: &'a Inner) -> Freed<'a> {
        Freed { inner, run: 0..0, free: None }
    }

    fn push(&mut self, block: usize) {
        if self.run.is_empty() || block != self.run.end {
            self.flush();
            self.run = block..block;
        }
        self.run.end = block + 1;
    }

    fn flush(&mut self) {
        if !self.run.is_empty() {
            let free = self.free.get_or_insert_with(|| self.inner.lock());
            free.used.give_back(self.run.start, self.run.len());
        }
    }
}

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        self.flush();
        if let Some(free) = &self.free {
            self.inner.wake(free);
        }
    }
}

/// Neighbouring blocks that one owner writes. Dropping it makes them free.
pub struct BlockRun {
    memory: BlockMemory,
    first: u32,
    count: u32,
}

impl BlockRun {
    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.count as usize
    }

    /// Returns whether its blocks are of this mapping.
    #[must_use]
    pub fn is_of(&self, memory: &BlockMemory) -> bool {
        Arc::ptr_eq(&self.memory.0, &memory.0)
    }

    /// Divides the run: it keeps its first `blocks` blocks, and the others are returned, if there are any.
    pub fn split_off(&mut self, blocks: usize) -> Option<BlockRun> {
        let count = u32::try_from(blocks).unwrap_or(u32::MAX).min(self.count);
        let rest = BlockRun { memory: self.memory.clone(), first: self.first + count, count: self.count - count };
        self.count = count;
        // An empty run would have nothing to give back.
        (rest.count > 0).then_some(rest)
    }

    /// Keeps the blocks with their present bytes, and returns their numbers. They stay until they are
    /// [released](BlockMemory::release).
    #[must_use]
    pub fn keep(mut self) -> Range<u32> {
        let blocks = self.first..self.first + self.count;
        self.give_up(BlockState::keep);
        self.count = 0;
        blocks
    }

    /// Ends the ownership of each block by this step.
    fn give_up(&self, step: fn(&BlockState)) {
        for block in self.first..self.first + self.count {
            step(&self.memory.0.states[block as usize]);
        }
        self.memory.0.taken.fetch_sub(self.count as usize, Ordering::Relaxed);
    }
}

impl Drop for BlockRun {
    fn drop(&mut self) {
        if self.count > 0 {
            self.give_up(BlockState::give_back);
            let mut free = self.memory.0.lock();
            free.used.give_back(self.first as usize, self.count as usize);
            self.memory.0.wake(&free);
        }
    }
}

impl Deref for BlockRun {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (start, len) = self.memory.0.slice(self.first, self.count);
        // SAFETY: the state of each block gives it to this run alone. The bytes are initialised: zero, or old contents.
        // Blocks of a file could be changed by programs that may write this process's memory as well (`PrivateFile`).
        unsafe { std::slice::from_raw_parts(start, len) }
    }
}

impl DerefMut for BlockRun {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, len) = self.memory.0.slice(self.first, self.count);
        // SAFETY: as in `deref`, and exclusive because `self` is.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl Debug for BlockRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockRun").field("first", &self.first).field("count", &self.count).finish()
    }
}

// SAFETY: the bytes stay in place and mapped until the run is dropped, even if it moves; only its owner writes them.
unsafe impl StableBuf for BlockRun {
    fn address(&self) -> u64 {
        self.memory.0.slice(self.first, self.count).0.expose_provenance() as u64
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}
// SAFETY: a run owns its blocks alone.
unsafe impl StableBufMut for BlockRun {
    fn address_mut(&mut self) -> u64 {
        self.address()
    }
}

/// Neighbouring blocks that several owners read. A block is reused after its last reader has dropped it.
pub struct SharedRun {
    memory: BlockMemory,
    first: u32,
    count: u32,
}

impl SharedRun {
    /// The number of blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.count as usize
    }

    /// Finds out whether the file lost pages of this run: reads a byte of each page, unless a seal keeps the file
    /// whole. Returns false if the mapping lost any page so far.
    ///
    /// **Staleness:** the file may be truncated afterwards. [`is_whole`](SharedRun::is_whole) tells so once the lost
    /// pages were accessed.
    #[must_use]
    pub fn probe(&self) -> bool {
        if self.may_lose_pages() {
            let page = usize::try_from(PAGE_BYTES).expect("a page fits the address space");
            for page in self.chunks(page) {
                // SAFETY: a byte of the slice. Volatile, so that the access takes place although its value is unused.
                unsafe { ptr::from_ref(&page[0]).read_volatile() };
            }
        }
        self.is_whole()
    }

    /// Returns whether the mapping has lost no page so far: see [`BlockMemory::is_whole`].
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.memory.is_whole()
    }

    /// Returns whether the run may lose pages: its bytes are in a file, which no seal keeps whole.
    #[must_use]
    pub fn may_lose_pages(&self) -> bool {
        matches!(&self.memory.0.memory, Memory::File { file, .. } if !file.is_sealed())
    }
}

impl Clone for SharedRun {
    fn clone(&self) -> SharedRun {
        for block in self.first..self.first + self.count {
            self.memory.0.states[block as usize].share_again();
        }
        self.memory.0.shared.fetch_add(self.count as usize, Ordering::Relaxed);
        SharedRun { memory: self.memory.clone(), first: self.first, count: self.count }
    }
}

impl Drop for SharedRun {
    fn drop(&mut self) {
        let mut freed = Freed::of(&self.memory.0);
        for block in self.first..self.first + self.count {
            if self.memory.0.states[block as usize].drop_reader() {
                freed.push(block as usize);
            }
        }
        self.memory.0.shared.fetch_sub(self.count as usize, Ordering::Relaxed);
    }
}

impl Deref for SharedRun {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        let (start, len) = self.memory.0.slice(self.first, self.count);
        // SAFETY: this run counts as a reader of each block, so none is free, and none has a writer. The rest is as in
        // `BlockRun::deref`.
        unsafe { std::slice::from_raw_parts(start, len) }
    }
}

impl Debug for SharedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRun").field("first", &self.first).field("count", &self.count).finish()
    }
}

// SAFETY: the bytes stay in place and mapped until the run is dropped, and no code writes them: see `deref`.
unsafe impl StableBuf for SharedRun {
    fn address(&self) -> u64 {
        self.memory.0.slice(self.first, self.count).0.expose_provenance() as u64
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

/// Bytes that several owners read: on the heap, or in blocks.
#[derive(Clone, Debug)]
pub enum SharedBytes {
    /// On the heap.
    Heap(Arc<Vec<u8>>),
    /// In blocks.
    Blocks(SharedRun),
}

impl SharedBytes {
    /// Bytes on the heap.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> SharedBytes {
        SharedBytes::Heap(Arc::new(bytes))
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            SharedBytes::Heap(bytes) => bytes,
            SharedBytes::Blocks(run) => run,
        }
    }
}

// SAFETY: both kinds are stable buffers that no code writes.
unsafe impl StableBuf for SharedBytes {
    #[inline]
    fn address(&self) -> u64 {
        match self {
            SharedBytes::Heap(bytes) => bytes.address(),
            SharedBytes::Blocks(run) => run.address(),
        }
    }
    #[inline]
    fn len(&self) -> usize {
        (**self).len()
    }
}

/// Bytes with one owner, who may write them: on the heap, or in blocks.
#[derive(Debug)]
pub enum OwnedBytes {
    /// On the heap.
    Heap(Vec<u8>),
    /// In blocks.
    Blocks(BlockRun),
}

// SAFETY: both kinds are stable buffers, and a change of kind needs the value mutably or by value.
unsafe impl StableBuf for OwnedBytes {
    #[inline]
    fn address(&self) -> u64 {
        match self {
            OwnedBytes::Heap(bytes) => bytes.address(),
            OwnedBytes::Blocks(run) => run.address(),
        }
    }
    #[inline]
    fn len(&self) -> usize {
        match self {
            OwnedBytes::Heap(bytes) => bytes.len(),
            OwnedBytes::Blocks(run) => run.len(),
        }
    }
}
// SAFETY: both kinds have one owner.
unsafe impl StableBufMut for OwnedBytes {
    #[inline]
    fn address_mut(&mut self) -> u64 {
        match self {
            OwnedBytes::Heap(bytes) => bytes.address_mut(),
            OwnedBytes::Blocks(run) => run.address_mut(),
        }
    }
}

/// A part of shared bytes.
#[derive(Clone, Debug)]
pub struct SharedPart(Slice<SharedBytes>);

impl SharedPart {
    /// A part of `bytes`.
    ///
    /// # Panics
    /// If the range does not lie in the bytes.
    #[must_use]
    #[inline]
    pub fn new(bytes: SharedBytes, range: Range<usize>) -> SharedPart {
        SharedPart(Slice::new(bytes, range).expect("the range lies in the bytes"))
    }

    /// All of `bytes`.
    #[must_use]
    pub fn all(bytes: SharedBytes) -> SharedPart {
        let range = 0..bytes.len();
        SharedPart::new(bytes, range)
    }

    /// All of `bytes`.
    #[must_use]
    pub fn whole(bytes: Vec<u8>) -> SharedPart {
        SharedPart::all(SharedBytes::new(bytes))
    }

    /// The bytes of which it is a part.
    #[must_use]
    pub fn bytes(&self) -> &SharedBytes {
        self.0.whole()
    }

    /// The bytes of which it is a part, without it.
    #[must_use]
    pub fn into_bytes(self) -> SharedBytes {
        self.0.into_whole()
    }

    /// Which part it is.
    #[must_use]
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.0.range()
    }

    /// Another part of the same bytes.
    ///
    /// # Panics
    /// If the range does not lie in the bytes.
    #[must_use]
    pub fn with_range(self, range: Range<usize>) -> SharedPart {
        SharedPart::new(self.into_bytes(), range)
    }

    /// The number of bytes of the part.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the part has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the part.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes()[self.range()]
    }

    /// Reads a byte of each page, and returns false if the bytes are in a file that has lost pages. Pages of zeroes are
    /// in their place then.
    #[must_use]
    pub fn probe(&self) -> bool {
        match self.bytes() {
            SharedBytes::Blocks(run) => run.probe(),
            SharedBytes::Heap(_) => true,
        }
    }

    /// Returns whether the bytes are in a file that may lose pages.
    #[must_use]
    pub fn may_lose_pages(&self) -> bool {
        matches!(self.bytes(), SharedBytes::Blocks(run) if run.may_lose_pages())
    }

    /// Returns false if the bytes are in a file that has lost pages: what was read of them may be zeroes that no host
    /// wrote.
    #[must_use]
    pub fn has_all_pages(&self) -> bool {
        match self.bytes() {
            SharedBytes::Blocks(run) => run.is_whole(),
            SharedBytes::Heap(_) => true,
        }
    }
}

// SAFETY: a part of a stable buffer.
unsafe impl StableBuf for SharedPart {
    #[inline]
    fn address(&self) -> u64 {
        self.0.address()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests;
