//! Memory that others have, too: bytes of a file, mapped, which its other owners write, and may take away, at any time.
//!
//! A file that shrinks takes its pages away from every mapping, and the next touch of one is a SIGBUS: whoever maps a stranger's file
//! dies at the stranger's will. Here such a page is replaced by an empty private one, in the signal handler, and the touch goes on;
//! [`Shared::is_whole`] tells of it afterwards. So a touch costs nothing more than any other. All pages behind it are replaced with it: a
//! file that shrank lost them as well, and page by page, every second one, they would use up the mappings that a process may have.
//!
//! The handler finds the mapping in a table of atomics, for it may take no lock. Source of the idea: none outside; a seal
//! (`F_SEAL_SHRINK`) would do as well, but whose file it is must ask for it, and the frontends of vhost-user do not.
#![allow(unsafe_code, reason = "maps files, and replaces pages that went away")]

use crate::local::trap;
use crate::map::MapError;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings there can be in one process. Source: derived: what a vhost-user frontend may have, 509 memory slots, a dirty log and a record for each of 32
/// ports. So frontends that take all that they may leave enough for the others; beyond that the system's `vm.max_map_count` is next, 65,530 by default.
pub const MOST_SHARED: usize = 32 * 512;

/// One row of the handler's table. A row with `start` 0 is free or on its way.
struct Row {
    taken: AtomicBool,
    start: AtomicUsize,
    len: AtomicUsize,
    /// Bytes of one page of the file: what can be replaced at once.
    page: AtomicUsize,
    /// A page was replaced.
    torn: AtomicBool,
}

impl Row {
    /// Pages of it are others from now on.
    fn tell(&self) {
        self.torn.store(true, Ordering::Release);
        // Release: pairs with the Acquire in `torn_pages`; who sees the count sees the row.
        TORN.fetch_add(1, Ordering::Release);
    }
}

static ROWS: [Row; MOST_SHARED] = [const {
    Row {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        torn: AtomicBool::new(false),
    }
}; MOST_SHARED];
/// Pages that went away and were replaced so far, of all mappings.
static TORN: AtomicUsize = AtomicUsize::new(0);
/// Rows from here on have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Why a file cannot be shared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharedError {
    /// The range goes beyond the file's end, or beyond all addresses.
    #[error("bytes {offset} to {offset} + {len} of a file of {size} bytes were asked for; let its owner size it first")]
    Beyond {
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        len: u64,
        /// How long the file is.
        size: u64,
    },
    /// Nothing was asked for.
    #[error("no bytes of the file were asked for")]
    Empty,
    /// All rows are taken.
    #[error("this process has {MOST_SHARED} shared mappings already; let one go first")]
    Many,
    /// The system refused.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// Bytes of a file, for reading and writing, that its other owners have, too.
///
/// There is no slice of them: others write while we read. Whoever touches them does it by address, with volatile or atomic
/// accesses, the kernels of [`Local`](crate::Local), or a device.
#[derive(Debug)]
pub struct Shared {
    /// Where the mapping begins: a page.
    base: NonNull<u8>,
    /// Bytes of the mapping before the first that was asked for.
    skipped: usize,
    /// Bytes of the mapping.
    mapped: usize,
    row: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this type reads and writes none of its bytes.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps `len` bytes of `file` from `offset`, which need not begin a page; no page is made present.
    ///
    /// # Errors
    /// [`SharedError`]: a range beyond the file's end, too many mappings, the system's refusal.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Shared, SharedError> {
        // SAFETY: an all-zero stat is a valid value; the descriptor is open, and the kernel fills what we own.
        let stat = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(file.as_raw_fd(), &raw mut stat) != 0 {
                return Err(last("learn the size of a file for", len, "send an open file").into());
            }
            stat
        };
        let size = stat.st_size.cast_unsigned();
        let page = match stat.st_blksize.cast_unsigned() {
            // A file of huge pages says so by its block size; any other file is of small ones.
            page if is_huge(file) && page.is_power_of_two() => page,
            _ => crate::PAGE_BYTES,
        };
        if len == 0 {
            return Err(SharedError::Empty);
        }
        // The end of the last page as well, so that rounding up cannot overflow.
        let beyond = || SharedError::Beyond { offset, len, size };
        let end = offset.checked_add(len).filter(|&end| end <= size).ok_or_else(beyond)?;
        // Whole pages are mapped: from where the first begins to where the last ends.
        let first = offset - offset % page;
        let whole = end.checked_next_multiple_of(page).ok_or_else(beyond)? - first;
        let (Ok(whole), Ok(start)) = (usize::try_from(whole), i64::try_from(first)) else { return Err(beyond()) };
        let skipped = usize::try_from(offset - first).expect("less than a page");
        let row = take_row().ok_or(SharedError::Many)?;
        // SAFETY: without MAP_FIXED the system picks a range nobody uses; the file is open.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
            libc::mmap(ptr::null_mut(), whole, protection, flags, file.as_raw_fd(), start)
        };
        if base == libc::MAP_FAILED {
            let error = last("map a file of", len, "open it for reading and writing, or ask for less");
            ROWS[row].taken.store(false, Ordering::Release);
            return Err(error.into());
        }
        trap::install();
        let base = NonNull::new(base.cast::<u8>()).expect("mmap gives no null page without MAP_FIXED");
        let page = usize::try_from(page).expect("a page fits the address space");
        // Relaxed but the last: only a thread that touches the mapping looks, and it was told of the mapping after this.
        ROWS[row].torn.store(false, Ordering::Relaxed);
        ROWS[row].len.store(whole, Ordering::Relaxed);
        ROWS[row].page.store(page, Ordering::Relaxed);
        // Release: pairs with the Acquire in `mend`; who sees the start sees the rest.
        ROWS[row].start.store(base.as_ptr().expose_provenance(), Ordering::Release);
        Ok(Shared { base, skipped, mapped: whole, row })
    }

    /// Address of the first byte; its provenance is exposed.
    #[must_use]
    pub fn address(&self) -> u64 {
        (self.base.as_ptr().expose_provenance() + self.skipped) as u64
    }

    /// How many bytes can be touched from there: what was asked for, up to the end of the last page.
    #[must_use]
    pub fn len(&self) -> usize {
        self.mapped - self.skipped
    }

    /// Never: an empty range is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// No page had to be replaced so far. When false, bytes that were read may have been zeros that nobody wrote, and bytes that
    /// were written may have reached nobody.
    ///
    /// **Staleness:** the answer is of the moment. Whoever asks *after* the touches that he doubts, on the thread that made them,
    /// misses none of them.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        // Relaxed: set on the thread that touched, or told by it.
        !ROWS[self.row].torn.load(Ordering::Relaxed)
    }

    /// Takes the file away from whoever still touches the mapping, this process's threads and devices: from now on they find private pages in its
    /// place, empty ones, and what they write reaches nobody. It is not [whole](Shared::is_whole) any more. For a file that its owner takes back
    /// while a copy is out that nobody can call back.
    ///
    /// # Errors
    /// The system's refusal: the mapping stays as it is.
    pub fn revoke(&self) -> Result<(), MapError> {
        ROWS[self.row].tell();
        if replace(self.base.as_ptr().expose_provenance(), self.mapped) {
            Ok(())
        } else {
            Err(last("take away a mapping of", self.mapped as u64, "raise vm.max_map_count"))
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The handler must not find the range any more when the system gives it to somebody else. Nobody touches it any more, so
        // no handler is looking for it now.
        ROWS[self.row].start.store(0, Ordering::Release);
        // SAFETY: our own mapping, of which nothing remains after this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.mapped) };
        // Release: pairs with the Acquire in `take_row`.
        ROWS[self.row].taken.store(false, Ordering::Release);
    }
}

/// How many pages went away under a [`Shared`] mapping and were replaced so far, in this process: as long as it stays, no mapping became
/// less whole. One load, where asking each of many mappings would be many.
#[inline]
#[must_use]
pub fn torn_pages() -> usize {
    // Acquire: pairs with the Release in `mend`.
    TORN.load(Ordering::Acquire)
}

fn last(attempt: &'static str, len: u64, advice: &'static str) -> MapError {
    MapError { attempt, len, advice, source: std::io::Error::last_os_error() }
}

/// The file lies on huge pages. Source: UAPI, linux/magic.h, `HUGETLBFS_MAGIC`.
fn is_huge(file: BorrowedFd<'_>) -> bool {
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    // SAFETY: an all-zero statfs is a valid value; the descriptor is open, and the kernel fills what we own.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        libc::fstatfs(file.as_raw_fd(), &raw mut stat) == 0 && stat.f_type == HUGETLBFS_MAGIC
    }
}

fn take_row() -> Option<usize> {
    // Acquire: pairs with the Release of who let it go.
    let free = |row: &Row| row.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let row = ROWS.iter().position(free)?;
    // Release: pairs with the Acquire in `mend`.
    USED.fetch_max(row + 1, Ordering::Release);
    Some(row)
}

/// Replaces the page at `address` if it is one of ours; true if the touch may go on. Async-signal-safe: atomics and one system call.
pub(crate) fn mend(address: usize) -> bool {
    // Acquire: pairs with `take_row`; the mapping was made known to this thread before it touched it.
    let rows = &ROWS[..USED.load(Ordering::Acquire)];
    // Acquire: pairs with the Release in `map`.
    let touched = |row: &&Row| {
        let start = row.start.load(Ordering::Acquire);
        start != 0 && address.checked_sub(start).is_some_and(|at| at < row.len.load(Ordering::Relaxed))
    };
    let Some(row) = rows.iter().find(touched) else { return false };
    let page = row.page.load(Ordering::Relaxed);
    let first = address / page * page;
    // Cannot overflow, and is more than nothing: `first` is the beginning of a page of the mapping, which is of whole ones.
    let rest = row.start.load(Ordering::Relaxed) + row.len.load(Ordering::Relaxed) - first;
    // Before the page is there: a thread that finds it there finds this, too.
    row.tell();
    // SAFETY: the thread's own, and always there. It is kept, since a handler must not change it.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        // A mapping that somebody touches right now, so that it is not being let go.
        let replaced = replace(first, rest);
        *errno = before;
        replaced
    }
}

/// Puts empty private pages in the place of so many bytes of a mapping that lives, from the beginning of a page on. False if the system refuses.
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

    fn read(shared: &Shared, at: usize) -> u8 {
        assert!(at < shared.len());
        // SAFETY: within the mapping, by a volatile access.
        unsafe { shared.base.as_ptr().add(shared.skipped + at).read_volatile() }
    }

    fn write(shared: &Shared, at: usize, byte: u8) {
        assert!(at < shared.len());
        // SAFETY: within the mapping, by a volatile access.
        unsafe { shared.base.as_ptr().add(shared.skipped + at).write_volatile(byte) }
    }

    #[test]
    fn what_one_writes_the_other_reads() {
        let file = Mapping::memory_file(3 * 4096).unwrap();
        let (one, other) = (Shared::map(file.as_fd(), 0, 3 * 4096), Shared::map(file.as_fd(), 4096, 10));
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.len(), other.len(), other.is_empty()), (3 * 4096, 4096, false));
        write(&one, 4099, 7);
        assert_eq!(read(&other, 3), 7);
        assert!(one.is_whole() && other.is_whole());
    }

    #[test]
    fn a_range_may_begin_within_a_page() {
        let file = Mapping::memory_file(3 * 4096).unwrap();
        let (all, part) = (Shared::map(file.as_fd(), 0, 3 * 4096), Shared::map(file.as_fd(), 5000, 100));
        let (all, part) = (all.unwrap(), part.unwrap());
        write(&all, 5000, 7);
        assert_eq!((read(&part, 0), part.len(), part.address() % 4096), (7, 8192 - 5000, 5000 - 4096));
        file.set_len(0).unwrap();
        assert_eq!((read(&part, 0), part.is_whole(), all.is_whole()), (0, false, true));
    }

    #[test]
    fn pages_taken_away_are_empty_ones_and_it_is_told() {
        let file = Mapping::memory_file(4 * 4096).unwrap();
        let shared = Shared::map(file.as_fd(), 0, 4 * 4096).unwrap();
        let untouched = Shared::map(file.as_fd(), 0, 4096).unwrap();
        (0..4).for_each(|page| write(&shared, page * 4096, 9));
        file.set_len(4096).unwrap();
        assert_eq!((read(&shared, 0), shared.is_whole()), (9, true));
        assert_eq!((read(&shared, 4096), shared.is_whole()), (0, false));
        write(&shared, 3 * 4096 + 5, 3);
        assert_eq!((read(&shared, 3 * 4096 + 5), read(&shared, 2 * 4096), read(&shared, 1)), (3, 0, 0));
        assert!(untouched.is_whole());
        assert!(torn_pages() >= 1);
        // The file has nothing of it.
        file.set_len(4 * 4096).unwrap();
        let again = Shared::map(file.as_fd(), 3 * 4096, 4096).unwrap();
        assert_eq!((read(&again, 5), again.is_whole()), (0, true));
    }

    #[test]
    fn what_is_written_after_the_file_was_taken_away_reaches_nobody() {
        let file = Mapping::memory_file(3 * 4096).unwrap();
        let (one, other) = (Shared::map(file.as_fd(), 5000, 4096), Shared::map(file.as_fd(), 0, 3 * 4096));
        let (one, other) = (one.unwrap(), other.unwrap());
        (0..3 * 4096).for_each(|at| write(&other, at, 7));
        one.revoke().unwrap();
        assert_eq!((read(&one, 0), read(&one, 4095), one.is_whole(), other.is_whole()), (0, 0, false, true));
        (0..one.len()).for_each(|at| write(&one, at, 9));
        assert!((0..3 * 4096).all(|at| read(&other, at) == 7));
        one.revoke().unwrap();
        assert_eq!(read(&one, 0), 0);
    }

    /// What broke: each page replaced by itself was a mapping more, and a process has 65 530 of them (vm.max_map_count).
    #[test]
    fn pages_taken_away_do_not_use_up_mappings() {
        let file = Mapping::memory_file(200 * 4096).unwrap();
        let shared = Shared::map(file.as_fd(), 0, 200 * 4096).unwrap();
        file.set_len(0).unwrap();
        // Downward is the worst: what is behind was replaced before.
        (0..200).step_by(2).rev().for_each(|page| assert_eq!(read(&shared, page * 4096), 0));
        let ours = shared.address()..shared.address() + 200 * 4096;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let begins = maps.lines().filter_map(|line| u64::from_str_radix(line.split('-').next()?, 16).ok());
        assert!(begins.filter(|begin| ours.contains(begin)).count() <= 2);
    }

    #[test]
    fn kernels_go_on_over_pages_taken_away() {
        use crate::{Local, Space, WriteHint};
        let file = Mapping::memory_file(4 * 4096).unwrap();
        let shared = Shared::map(file.as_fd(), 0, 4 * 4096).unwrap();
        file.set_len(0).unwrap();
        // SAFETY: names only the mapping, and a vector that lives.
        let local = unsafe { Local::new() };
        let source = vec![5_u8; 3 * 4096];
        let from = source.as_ptr().expose_provenance() as u64;
        local.move_forward(shared.address() + 100, from, 3 * 4096, WriteHint::Cache).unwrap();
        assert_eq!((read(&shared, 99), read(&shared, 100), shared.is_whole()), (0, 5, false));
    }

    #[test]
    fn ranges_that_are_not_there_are_refused() {
        let file = Mapping::memory_file(4096 + 10).unwrap();
        let refused = |offset, len| Shared::map(file.as_fd(), offset, len).unwrap_err();
        assert!(matches!(refused(0, 4096 + 11), SharedError::Beyond { size: 4106, .. }));
        assert!(matches!(refused(4096, u64::MAX), SharedError::Beyond { .. }));
        assert!(matches!(refused(u64::MAX - 4095, 4096), SharedError::Beyond { .. }));
        assert!(matches!(refused(8192, 1), SharedError::Beyond { .. }));
        assert!(matches!(refused(0, 0), SharedError::Empty));
        assert_eq!(Shared::map(file.as_fd(), 0, 4106).unwrap().len(), 8192);
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(Shared::map(read_only.as_fd(), 0, 1), Err(SharedError::Map(_))));
    }

    #[test]
    fn rows_are_used_again() {
        let file = Mapping::memory_file(4096).unwrap();
        for _ in 0..3 * MOST_SHARED {
            let shared = Shared::map(file.as_fd(), 0, 4096).unwrap();
            assert!(shared.row < MOST_SHARED / 2, "other tests have a few");
        }
    }
}
