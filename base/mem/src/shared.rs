//! Memory shared with other processes: mapped bytes of a file, which its other users may write and truncate at any
//! time.
//!
//! If a file shrinks, the kernel removes its pages from every mapping, and the next access to one raises SIGBUS. So the
//! owner of a foreign file could kill the process that maps it. Here the signal handler replaces such a page by an
//! empty private one, and the access continues; [`SharedMapping::is_whole`] reports it afterwards. Other accesses cost
//! nothing extra. All later pages of the mapping are replaced, too: the file has lost them as well. Replaced one by
//! one, every second page, they would use up the mappings that a process may have.
//!
//! The handler finds the mapping in a table of atomics, because it may not take a lock. Source of the idea: none
//! outside. A seal (`F_SEAL_SHRINK`) would serve as well, but the file's owner must set it, and the frontends of
//! vhost-user do not.
#![allow(unsafe_code, reason = "maps files, and replaces lost pages")]

mod words;

pub use words::SharedWords64;

use crate::local::trap;
use crate::map::MapError;
use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The most mappings in one process. Source: derived from a vhost-user frontend, which may have 509 memory slots, a
/// dirty log and a record for each of 32 ports. So frontends that use all of theirs leave enough for the others. The
/// next limit is the system's `vm.max_map_count`, 65,530 by default.
pub const MOST_SHARED: usize = 32 * 512;

/// One row of the handler's table. A row with `start` 0 is free or being set up.
struct Row {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    /// Bytes of one page of the file: the smallest range that can be replaced.
    page: AtomicUsize,
    /// True once a page was replaced.
    lost: AtomicBool,
}

impl Row {
    /// Records that pages of this mapping are replaced from now on.
    fn record_loss(&self) {
        self.lost.store(true, Ordering::Release);
        // Release: pairs with the Acquire in `torn_pages`; a thread that sees the count sees the row.
        LOST_PAGES.fetch_add(1, Ordering::Release);
    }
}

static ROWS: [Row; MOST_SHARED] = [const {
    Row {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; MOST_SHARED];
/// The number of replacements so far, in all mappings.
static LOST_PAGES: AtomicUsize = AtomicUsize::new(0);
/// Rows from this index on have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Why a file cannot be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The range exceeds the file's end or the address space.
    #[error("bytes {offset} to {offset} + {len} exceed a file of {size} bytes; its owner must resize it first")]
    Beyond {
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        len: u64,
        /// The size of the file.
        size: u64,
    },
    /// The range is empty.
    #[error("the requested range of the file is empty")]
    Empty,
    /// All rows are in use.
    #[error("this process already has {MOST_SHARED} shared mappings; drop one first")]
    Many,
    /// The system refused.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Bytes of a file that this process reads and writes and shares with others.
///
/// There is no slice of them, because others write while we read. Access them by address: with volatile or atomic
/// accesses, the kernels of [`Local`](crate::Local), or a device.
#[derive(Debug)]
pub struct SharedMapping {
    /// Start of the mapping, at a page boundary.
    base: NonNull<u8>,
    /// Bytes of the mapping before the requested range.
    skipped: usize,
    /// Length of the mapping in bytes.
    mapped: usize,
    row: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this type reads and writes none of its bytes.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes of `file` from `offset`, which need not be page-aligned; no page is made present.
    ///
    /// # Errors
    /// [`SharedError`]: a range beyond the file's end, too many mappings, or the system's refusal.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<SharedMapping, SharedError> {
        SharedMapping::with_protection(file, offset, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// As [`map`](SharedMapping::map), of a file that is open for reading. A write to the mapping is a fault, except to
    /// pages that were replaced.
    ///
    /// # Errors
    /// As for [`map`](SharedMapping::map).
    pub fn map_readable(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<SharedMapping, SharedError> {
        SharedMapping::with_protection(file, offset, len, libc::PROT_READ)
    }

    fn with_protection(
        file: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        protection: libc::c_int,
    ) -> Result<SharedMapping, SharedError> {
        // SAFETY: an all-zero stat is a valid value; the descriptor is open, and the kernel fills what we own.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(file.as_raw_fd(), &raw mut stat) != 0 {
                return Err(last_error("query the size of a file for", len, "send an open file").into());
            }
            stat
        };
        let size = stat.st_size.cast_unsigned();
        let page = match stat.st_blksize.cast_unsigned() {
            // A file on huge pages reports their size as its block size; any other file uses small pages.
            page if is_huge(file) && page.is_power_of_two() => page,
            _ => crate::PAGE_BYTES,
        };
        if len == 0 {
            return Err(SharedError::Empty);
        }
        // Checks the end of the last page as well, so that rounding up cannot overflow.
        let beyond = || SharedError::Beyond { offset, len, size };
        let end = offset.checked_add(len).filter(|&end| end <= size).ok_or_else(beyond)?;
        // Maps whole pages: from the start of the first to the end of the last.
        let first = offset - offset % page;
        let whole = end.checked_next_multiple_of(page).ok_or_else(beyond)? - first;
        let (Ok(whole), Ok(start)) = (usize::try_from(whole), i64::try_from(first)) else { return Err(beyond()) };
        let skipped = usize::try_from(offset - first).expect("less than a page");
        let row = take_row().ok_or(SharedError::Many)?;
        // SAFETY: without MAP_FIXED the system picks an unused range; the file is open.
        let base = unsafe {
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), whole, protection, flags, file.as_raw_fd(), start)
        };
        if base == libc::MAP_FAILED {
            let advice = match protection & libc::PROT_WRITE {
                0 => "open it for reading, or ask for less",
                _ => "open it for reading and writing, or ask for less",
            };
            let error = last_error("map a file of", len, advice);
            ROWS[row].taken.store(false, Ordering::Release);
            return Err(error.into());
        }
        trap::install();
        let base = NonNull::new(base.cast::<u8>()).expect("mmap gives no null page without MAP_FIXED");
        let page = usize::try_from(page).expect("a page fits the address space");
        // Relaxed except for the last store: only a thread that accesses the mapping reads these, and it learns of the
        // mapping later.
        ROWS[row].lost.store(false, Ordering::Relaxed);
        ROWS[row].len.store(whole, Ordering::Relaxed);
        ROWS[row].page.store(page, Ordering::Relaxed);
        // Release: pairs with the Acquire in `replace_lost_page`; a thread that sees the start sees the rest.
        ROWS[row].start.store(base.as_ptr().expose_provenance(), Ordering::Release);
        Ok(SharedMapping { base, skipped, mapped: whole, row })
    }

    /// Returns the address of the first byte; its provenance is exposed.
    #[inline]
    #[must_use]
    pub fn address(&self) -> u64 {
        (self.base.as_ptr().expose_provenance() + self.skipped) as u64
    }

    /// Returns how many bytes can be accessed from there: the requested range, up to the end of the last page.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapped - self.skipped
    }

    /// Always false: an empty range is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// True if no page had to be replaced so far. If false, bytes that were read may be zeros that no process wrote,
    /// and bytes that were written may not have reached the file.
    ///
    /// **Staleness:** the answer may be outdated at once. A check *after* the accesses in question, on the thread that
    /// made them, misses none of their replacements.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        // Relaxed: set on the accessing thread, or on a thread that synchronised with it.
        !ROWS[self.row].lost.load(Ordering::Relaxed)
    }

    /// Keeps the mapping out of children that this process forks from now on. A child that accesses it gets SIGSEGV.
    ///
    /// # Errors
    /// The system's refusal: children inherit the mapping.
    pub fn keep_from_children(&self) -> Result<(), MapError> {
        // SAFETY: our own mapping; no byte changes in this process.
        match unsafe { libc::madvise(self.base.as_ptr().cast(), self.mapped, libc::MADV_DONTFORK) } {
            0 => Ok(()),
            _ => Err(last_error("exclude from forked children", self.mapped as u64, "raise `vm.max_map_count`")),
        }
    }

    /// Asks the processor to fetch the cache line at byte `at`; nothing happens if the byte is outside.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        if at < self.len() {
            // SAFETY: within the mapping; a prefetch reads no value and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().add(self.skipped + at).cast()) };
        }
    }

    /// Asks the processor to fetch the cache line at byte `at` for a write, so that no other core has it; nothing
    /// happens if the byte is outside.
    #[inline]
    pub fn prefetch_for_write(&self, at: usize) {
        if at < self.len() {
            // SAFETY: as above; it changes no value. `_mm_prefetch` with a hint for writes becomes one for reads unless
            // the compiler may assume PREFETCHW. Processors without the instruction do nothing (Intel SDM, PREFETCHW).
            unsafe {
                let line = self.base.as_ptr().add(self.skipped + at);
                asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
            }
        }
    }

    /// Detaches the mapping from the file for all threads and devices of this process that still access it. From now on
    /// they find empty private pages there, and their writes do not reach the file. The mapping is then not
    /// [whole](SharedMapping::is_whole). Use it when a file's owner takes the file back while a copy is in flight that
    /// cannot be cancelled.
    ///
    /// # Errors
    /// The system's refusal: the mapping stays unchanged.
    pub fn revoke(&self) -> Result<(), MapError> {
        ROWS[self.row].record_loss();
        if replace(self.base.as_ptr().expose_provenance(), self.mapped) {
            Ok(())
        } else {
            Err(last_error("revoke a mapping of", self.mapped as u64, "raise vm.max_map_count"))
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // The handler must not find the range after the system has reused it. No thread accesses the mapping any more,
        // so no handler is looking for it now.
        ROWS[self.row].start.store(0, Ordering::Release);
        // SAFETY: our own mapping, to which no pointer is used after this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
        // Release: pairs with the Acquire in `take_row`.
        ROWS[self.row].taken.store(false, Ordering::Release);
    }
}

/// Words of a file, shared with other processes: atomics, so that a change by another process is a value and no fault.
#[derive(Debug)]
pub struct SharedWords {
    mapping: SharedMapping,
    count: usize,
}

impl SharedWords {
    /// Maps the first `count` words of `file`; `count` is not 0.
    ///
    /// # Errors
    /// [`SharedError`], as for [`SharedMapping::map`].
    pub fn map(file: BorrowedFd<'_>, count: usize) -> Result<SharedWords, SharedError> {
        Ok(SharedWords { mapping: SharedMapping::map(file, 0, count as u64 * 4)?, count })
    }

    /// Returns the words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: `count` words lie in the mapping, which begins at a page and stays until drop. Any bits are a valid
        // word, and atomics may be changed by others.
        unsafe { std::slice::from_raw_parts(self.mapping.base.as_ptr().cast::<AtomicU32>(), self.count) }
    }

    /// True if no page had to be replaced so far: see [`SharedMapping::is_whole`].
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.mapping.is_whole()
    }
}

/// Returns how many replacements of lost pages happened so far in this process, in all [`SharedMapping`] mappings. As
/// long as the number stays the same, no further mapping lost pages. One load, instead of one for each mapping.
#[inline]
#[must_use]
pub fn torn_pages() -> usize {
    // Acquire: pairs with the Release in `replace_lost_page`.
    LOST_PAGES.load(Ordering::Acquire)
}

fn last_error(attempt: &'static str, len: u64, advice: &'static str) -> MapError {
    MapError { attempt, len, advice, source: std::io::Error::last_os_error() }
}

/// True if the file lies on huge pages. Source: UAPI, linux/magic.h, `HUGETLBFS_MAGIC`.
fn is_huge(file: BorrowedFd<'_>) -> bool {
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    rustix::fs::fstatfs(file).is_ok_and(|status| status.f_type == HUGETLBFS_MAGIC)
}

fn take_row() -> Option<usize> {
    // Acquire: pairs with the Release in `drop`.
    let free = |row: &Row| row.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let row = ROWS.iter().position(free)?;
    // Release: pairs with the Acquire in `replace_lost_page`.
    USED.fetch_max(row + 1, Ordering::Release);
    Some(row)
}

/// Replaces the page at `address` if it belongs to a mapping of ours. Returns true if the access may continue.
/// Async-signal-safe: atomics and one system call.
pub(crate) fn replace_lost_page(address: usize) -> bool {
    // Acquire: pairs with `take_row`; this thread learned of the mapping before it accessed it.
    let rows = &ROWS[..USED.load(Ordering::Acquire)];
    // Acquire: pairs with the Release in `map`.
    let touched = |row: &&Row| {
        let start = row.start.load(Ordering::Acquire);
        start != 0 && address.checked_sub(start).is_some_and(|at| at < row.len.load(Ordering::Relaxed))
    };
    let Some(row) = rows.iter().find(touched) else { return false };
    let page = row.page.load(Ordering::Relaxed);
    let first = address / page * page;
    // Cannot overflow and is positive: `first` is the start of a page in the mapping, which consists of whole pages.
    let rest = row.start.load(Ordering::Relaxed) + row.len.load(Ordering::Relaxed) - first;
    // Recorded before the page is replaced, so that a thread that finds the new page also finds the record.
    row.record_loss();
    // SAFETY: the thread's own errno, which always exists. It is restored, because a handler must not change it.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        // A thread is accessing the mapping right now, so the mapping is not being dropped.
        let replaced = replace(first, rest);
        *errno = before;
        replaced
    }
}

/// Maps empty private pages over `len` bytes of a live mapping, from a page boundary on. Returns false if the system
/// refuses.
fn replace(first: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: pages of a mapping that this module owns; no Rust reference into it exists.
    unsafe { libc::mmap(ptr::without_provenance_mut(first), len, protection, flags, -1, 0) != libc::MAP_FAILED }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Mapping;
    use std::os::fd::AsFd;

    fn read(shared: &SharedMapping, at: usize) -> u8 {
        assert!(at < shared.len());
        // SAFETY: within the mapping, by a volatile access.
        unsafe { shared.base.as_ptr().add(shared.skipped + at).read_volatile() }
    }

    fn write(shared: &SharedMapping, at: usize, byte: u8) {
        assert!(at < shared.len());
        // SAFETY: within the mapping, by a volatile access.
        unsafe { shared.base.as_ptr().add(shared.skipped + at).write_volatile(byte) }
    }

    #[test]
    fn both_mappings_see_each_others_writes() {
        let file = Mapping::memory_file(3 * 4096).unwrap();
        let (one, other) = (SharedMapping::map(file.as_fd(), 0, 3 * 4096), SharedMapping::map(file.as_fd(), 4096, 10));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.len(), other.len(), other.is_empty()), (3 * 4096, 4096, false));
        write(&one, 4099, 7);
        assert_eq!(read(&other, 3), 7);
        assert!(one.is_whole() && other.is_whole());
    }

    #[test]
    fn a_file_that_is_open_for_reading_can_be_mapped_to_read() {
        let file = Mapping::memory_file(2 * 4096).unwrap();
        let all = SharedMapping::map(file.as_fd(), 0, 2 * 4096).unwrap();
        write(&all, 5, 7);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let read_only = std::fs::File::open(path).unwrap();
        assert!(SharedMapping::map(read_only.as_fd(), 0, 4096).is_err());
        let readable = SharedMapping::map_readable(read_only.as_fd(), 0, 2 * 4096).unwrap();
        assert_eq!(read(&readable, 5), 7);
        file.set_len(0).unwrap();
        assert_eq!((read(&readable, 5), readable.is_whole()), (0, false));
    }

    #[test]
    fn a_range_may_begin_within_a_page() {
        let file = Mapping::memory_file(3 * 4096).unwrap();
        let (all, part) = (SharedMapping::map(file.as_fd(), 0, 3 * 4096), SharedMapping::map(file.as_fd(), 5000, 100));
        let (all, part) = (all.unwrap(), part.unwrap());
        write(&all, 5000, 7);
        assert_eq!((read(&part, 0), part.len(), part.address() % 4096), (7, 8192 - 5000, 5000 - 4096));
        file.set_len(0).unwrap();
        assert_eq!((read(&part, 0), part.is_whole(), all.is_whole()), (0, false, true));
    }

    #[test]
    fn lost_pages_read_as_zero_and_are_reported() {
        let file = Mapping::memory_file(4 * 4096).unwrap();
        let shared = SharedMapping::map(file.as_fd(), 0, 4 * 4096).unwrap();
        let untouched = SharedMapping::map(file.as_fd(), 0, 4096).unwrap();
        (0..4).for_each(|page| write(&shared, page * 4096, 9));
        file.set_len(4096).unwrap();
        assert_eq!((read(&shared, 0), shared.is_whole()), (9, true));
        assert_eq!((read(&shared, 4096), shared.is_whole()), (0, false));
        write(&shared, 3 * 4096 + 5, 3);
        assert_eq!((read(&shared, 3 * 4096 + 5), read(&shared, 2 * 4096), read(&shared, 1)), (3, 0, 0));
        assert!(untouched.is_whole());
        assert!(torn_pages() >= 1);
        // The replaced bytes did not reach the file.
        file.set_len(4 * 4096).unwrap();
        let again = SharedMapping::map(file.as_fd(), 3 * 4096, 4096).unwrap();
        assert_eq!((read(&again, 5), again.is_whole()), (0, true));
    }

    #[test]
    fn writes_after_a_revoke_do_not_reach_the_file() {
        let file = Mapping::memory_file(3 * 4096).unwrap();
        let (one, other) =
            (SharedMapping::map(file.as_fd(), 5000, 4096), SharedMapping::map(file.as_fd(), 0, 3 * 4096));
        let (one, other) = (one.unwrap(), other.unwrap());
        (0..3 * 4096).for_each(|at| write(&other, at, 7));
        one.revoke().unwrap();
        assert_eq!((read(&one, 0), read(&one, 4095), one.is_whole(), other.is_whole()), (0, 0, false, true));
        (0..one.len()).for_each(|at| write(&one, at, 9));
        assert!((0..3 * 4096).all(|at| read(&other, at) == 7));
        one.revoke().unwrap();
        assert_eq!(read(&one, 0), 0);
    }

    /// Regression: each page replaced separately used one more mapping, and a process has 65,530 of them
    /// (vm.max_map_count).
    #[test]
    fn lost_pages_do_not_use_up_mappings() {
        let file = Mapping::memory_file(200 * 4096).unwrap();
        let shared = SharedMapping::map(file.as_fd(), 0, 200 * 4096).unwrap();
        file.set_len(0).unwrap();
        // Descending order is the worst case: the pages after each one were replaced before.
        (0..200).step_by(2).rev().for_each(|page| assert_eq!(read(&shared, page * 4096), 0));
        let ours = shared.address()..shared.address() + 200 * 4096;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let begins = maps.lines().filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
        assert!(begins.filter(|begin| ours.contains(begin)).count() <= 2);
    }

    #[test]
    fn kernels_continue_over_lost_pages() {
        use crate::{Local, Space, WriteHint};
        let file = Mapping::memory_file(4 * 4096).unwrap();
        let shared = SharedMapping::map(file.as_fd(), 0, 4 * 4096).unwrap();
        file.set_len(0).unwrap();
        // SAFETY: accesses only the mapping, and a vector that lives.
        let local = unsafe { Local::new() };
        let source = vec![5_u8; 3 * 4096];
        let from = source.as_ptr().expose_provenance() as u64;
        local.move_forward(shared.address() + 100, from, 3 * 4096, WriteHint::Cache).unwrap();
        assert_eq!((read(&shared, 99), read(&shared, 100), shared.is_whole()), (0, 5, false));
    }

    #[test]
    fn ranges_beyond_the_file_are_refused() {
        let file = Mapping::memory_file(4096 + 10).unwrap();
        let refused = |offset, len| SharedMapping::map(file.as_fd(), offset, len).unwrap_err();
        assert!(matches!(refused(0, 4096 + 11), SharedError::Beyond { size: 4106, .. }));
        assert!(matches!(refused(4096, u64::MAX), SharedError::Beyond { .. }));
        assert!(matches!(refused(u64::MAX - 4095, 4096), SharedError::Beyond { .. }));
        assert!(matches!(refused(8192, 1), SharedError::Beyond { .. }));
        assert!(matches!(refused(0, 0), SharedError::Empty));
        assert_eq!(SharedMapping::map(file.as_fd(), 0, 4106).unwrap().len(), 8192);
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(SharedMapping::map(read_only.as_fd(), 0, 1), Err(SharedError::Map(_))));
    }

    #[test]
    fn rows_are_reused() {
        let file = Mapping::memory_file(4096).unwrap();
        for _ in 0..3 * MOST_SHARED {
            let shared = SharedMapping::map(file.as_fd(), 0, 4096).unwrap();
            assert!(shared.row < MOST_SHARED / 2, "other tests use a few");
        }
    }
}
