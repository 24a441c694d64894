//! Reads from the page tables which pages of a range are present, and their kind (`PAGEMAP_SCAN`, Linux 6.7).
//!
//! Sources: UAPI linux/fs.h; Linux Documentation/admin-guide/mm/pagemap.rst.
#![allow(unsafe_code, reason = "an ioctl that fills a list of this module")]

use crate::PAGE_BYTES;
use crate::ioctl::ioctl_number;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};

/// `PAGEMAP_SCAN`: read and write, 96 bytes, letter f, number 16.
const SCAN: u64 = 3 << 30 | (size_of::<Argument>() as u64) << 16 | (b'f' as u64) << 8 | 16;
const _: () = assert!(SCAN == 0xc060_6610);

/// `PM_SCAN_WP_MATCHING`: write-protects the reported pages in the same step. `PM_SCAN_CHECK_WPASYNC`: fails where
/// writes are not tracked.
const PROTECT: u64 = 1 << 0;
const CHECK_TRACKED: u64 = 1 << 1;

const WRITTEN: u64 = 1 << 1;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
const HUGE: u64 = 1 << 6;

#[repr(C)]
#[derive(Default)]
struct Argument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// A run of adjacent pages of one kind.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageRun {
    /// Address of the first page.
    pub start: u64,
    /// Address after the last page.
    pub end: u64,
    categories: u64,
}

impl PageRun {
    /// True if the pages are parts of huge pages, each mapped as one.
    #[must_use]
    pub fn is_huge(&self) -> bool {
        self.categories & HUGE != 0
    }

    /// Returns the number of 4 KiB pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE_BYTES
    }
}

/// Reads this process' page tables. In a forked child it still reads the parent's.
#[derive(Debug)]
pub struct Scan {
    file: OwnedFd,
}

/// A query: pages that have all flags of `wanted`, if that is not 0, and none of `unwanted`.
#[derive(Clone, Copy, Default)]
struct Query {
    unwanted: u64,
    wanted: u64,
    flags: u64,
}

/// Runs per system call. Source: chosen; a range with more runs takes several calls.
const RUNS_PER_CALL: usize = 128;

impl Scan {
    /// Opens this process' pagemap.
    ///
    /// # Errors
    /// The system's refusal; [`Unsupported`](io::ErrorKind::Unsupported) before Linux 6.7.
    pub fn open() -> io::Result<Scan> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::open("/proc/self/pagemap", flags, rustix::fs::Mode::empty())?;
        let scan = Scan { file };
        scan.runs(0..0, Query::default(), |_| ()).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOTTY) => io::ErrorKind::Unsupported.into(),
            _ => error,
        })?;
        Ok(scan)
    }

    /// Passes each run of pages of the range that are present and have bytes of their own to `each`. This excludes the
    /// shared zero page and pages that are swapped out. Allocates nothing.
    ///
    /// # Errors
    /// The system's error.
    pub fn present(&self, range: Range<u64>, each: impl FnMut(PageRun)) -> io::Result<()> {
        self.runs(range, Query { unwanted: ZERO, wanted: PRESENT, flags: 0 }, each)
    }

    /// Starts to track writes to the small pages of the range that are present and have bytes of their own, and passes
    /// each run of them to `each`. Huge pages are skipped: one write would split them. The range must be registered by
    /// [`Userfault::register_tracked`](crate::Userfault::register_tracked).
    ///
    /// # Errors
    /// The system's error: `EPERM` if a part of the range is not registered for tracking.
    pub fn track(&self, range: Range<u64>, each: impl FnMut(PageRun)) -> io::Result<()> {
        self.runs(range, Query { unwanted: ZERO | HUGE, wanted: PRESENT, flags: PROTECT | CHECK_TRACKED }, each)
    }

    /// Passes each run of pages of the range to `each` that are present, have bytes of their own, and are untracked or
    /// were written since they were [tracked](Scan::track). A page that was moved (`UFFDIO_MOVE`) is no longer tracked
    /// (Linux 6.18).
    ///
    /// # Errors
    /// The system's error.
    pub fn written(&self, range: Range<u64>, each: impl FnMut(PageRun)) -> io::Result<()> {
        self.runs(range, Query { unwanted: ZERO, wanted: PRESENT | WRITTEN, flags: 0 }, each)
    }

    /// Passes each run of pages of the range that exist in any form to `each`, including zero pages and pages that are
    /// swapped out.
    ///
    /// # Errors
    /// The system's error.
    pub fn there(&self, range: Range<u64>, each: impl FnMut(PageRun)) -> io::Result<()> {
        self.runs(range, Query::default(), each)
    }

    /// Passes the runs of pages that match a query and exist in some form to `each`.
    fn runs(&self, range: Range<u64>, query: Query, mut each: impl FnMut(PageRun)) -> io::Result<()> {
        let Query { unwanted, wanted, flags } = query;
        let mut start = range.start;
        loop {
            let mut runs = [PageRun::default(); RUNS_PER_CALL];
            let mut argument = Argument {
                size: size_of::<Argument>() as u64,
                flags,
                start,
                end: range.end,
                vec: (&raw mut runs) as u64,
                vec_len: RUNS_PER_CALL as u64,
                category_inverted: unwanted,
                category_mask: wanted | unwanted,
                category_anyof_mask: if wanted == 0 { PRESENT | SWAPPED } else { 0 },
                return_mask: HUGE,
                ..Argument::default()
            };
            // SAFETY: the kernel reads and writes the argument, and writes at most `vec_len` runs to the list in it;
            // both live for the call.
            let found = unsafe { libc::ioctl(self.file.as_raw_fd(), ioctl_number(SCAN), &raw mut argument) };
            let Ok(found) = usize::try_from(found) else {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    _ => return Err(error),
                }
            };
            runs[..found.min(RUNS_PER_CALL)].iter().copied().for_each(&mut each);
            if argument.walk_end >= range.end || argument.walk_end <= start {
                return Ok(());
            }
            start = argument.walk_end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_mem::Pages;

    fn numbers(
        pages: &Pages,
        query: impl Fn(Range<u64>, &mut dyn FnMut(PageRun)) -> io::Result<()>,
    ) -> Vec<Range<u64>> {
        let (mut found, first) = (Vec::new(), pages.address());
        query(first..first + 600 * PAGE_BYTES, &mut |run| {
            found.push((run.start - first) / PAGE_BYTES..(run.end - first) / PAGE_BYTES);
        })
        .unwrap();
        found
    }

    #[test]
    fn runs_contain_present_pages_only() {
        let Ok(scan) = Scan::open() else { return };
        let pages = Pages::new(600).unwrap();
        for page in [1, 2, 3, 7, 599] {
            pages.poke(page * PAGE_BYTES, &[1]);
        }
        assert_eq!(pages.peek(5 * PAGE_BYTES, 1), [0], "the zero page");
        assert_eq!(numbers(&pages, |range, each| scan.present(range, each)), [1..4, 7..8, 599..600]);
        assert_eq!(numbers(&pages, |range, each| scan.there(range, each)), [1..4, 5..6, 7..8, 599..600]);
        pages.discard(2..3).unwrap();
        assert_eq!(numbers(&pages, |range, each| scan.there(range, each)), [1..2, 3..4, 5..6, 7..8, 599..600]);
    }

    #[test]
    fn more_runs_than_fit_in_one_call_are_all_found() {
        let Ok(scan) = Scan::open() else { return };
        let pages = Pages::new(600).unwrap();
        (0..600).step_by(2).for_each(|page| pages.poke(page * PAGE_BYTES, &[1]));
        let found = numbers(&pages, |range, each| scan.present(range, each));
        assert_eq!(found.len(), 300);
        assert!(found.iter().enumerate().all(|(at, run)| *run == (2 * at as u64..2 * at as u64 + 1)));
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        let Ok(scan) = Scan::open() else { return };
        let (start, end) = (8192, 4096);
        assert!(scan.present(Range { start, end }, |_| ()).is_err());
    }
}
