//! The dirty log: which pages of the guest were written, for a migration that sends them again.
//!
//! A bit a page, in a file of the frontend's. Whoever writes guest memory marks it *after* the bytes are there and before the driver is told:
//! the frontend clears a bit and then reads the page, so that a mark made early would be lost with the bytes that come late.
//!
//! Source: vhost-user, "Migration".

use crate::ring::Area;
use crate::sync::{AtomicU64, Ordering};
use crate::{GuestMemory, Region, RegionError};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes of guest memory that a bit stands for. Source: vhost-user, `VHOST_LOG_PAGE`.
const PAGE: u64 = 0x1000;
/// The longest log, in bytes: of a guest with 2⁵² bytes. Source: x86-64, physical addresses at most.
const MOST_BYTES: u64 = (1 << 52) / PAGE / 8;

/// Why a file cannot be the log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// It cannot be mapped: it is shorter than it was announced, or ends beyond all addresses (CVE-2020-10722).
    #[error("the dirty log cannot be mapped")]
    Map(#[source] RegionError),
    /// It is too short for the guest (CVE-2026-86563): pages would go unmarked, and a migrated guest would miss their bytes.
    #[error(
        "a dirty log of {len} bytes for a guest whose memory ends at {end:#x}: it takes a bit for each 4 KiB below that"
    )]
    Short {
        /// Its bytes.
        len: u64,
        /// Where the guest's memory ends.
        end: u64,
    },
    /// It is longer than any guest's.
    #[error("a dirty log of {len} bytes: no guest has so much memory")]
    Long {
        /// Its bytes.
        len: u64,
    },
}

/// A log and its file.
#[derive(Debug)]
pub(crate) struct DirtyLog {
    bits: Area<u8>,
    /// Pages it has bits for.
    pages: u64,
    /// Marks beyond its end: addresses that the frontend made up, since its memory lies below.
    missed: AtomicU64,
}

impl DirtyLog {
    /// `len` bytes of the file from `offset` on, for a guest whose memory ends at `end`.
    pub(crate) fn new(len: u64, offset: u64, file: &OwnedFd, end: u64) -> Result<DirtyLog, LogError> {
        let count = usize::try_from(len).ok().filter(|_| len <= MOST_BYTES).ok_or(LogError::Long { len })?;
        // The file's bytes are mapped, checked and guarded as a guest's are; what is here the address is the byte's place.
        let region = Region { guest: 0, len, user: 0, offset };
        let file = GuestMemory::new().with(region, file.as_fd()).map_err(LogError::Map)?;
        let Some(bits) = Area::of_user(Arc::new(file), 0, count) else { unreachable!("bytes are aligned") };
        let log = DirtyLog { bits, pages: len * 8, missed: AtomicU64::new(0) };
        log.covers(end).map(|()| log)
    }

    /// It has a bit for each page of a guest whose memory ends at `end`.
    pub(crate) fn covers(&self, end: u64) -> Result<(), LogError> {
        if self.pages >= end.div_ceil(PAGE) { Ok(()) } else { Err(LogError::Short { len: self.pages / 8, end }) }
    }

    /// Marks the pages of `len` bytes from a guest address on. They are written already.
    pub(crate) fn mark(&self, guest: u64, len: u64) {
        let Some(last) = len.checked_sub(1) else { return };
        for page in guest / PAGE..=guest.saturating_add(last) / PAGE {
            if page >= self.pages {
                // Relaxed: a count, by which nothing is published.
                self.missed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // Cannot be cut: less than the bytes, which are a `usize`.
            self.bits.set_bits(usize::try_from(page / 8).unwrap_or(usize::MAX), 1 << (page % 8));
        }
    }

    /// Times that a mark lay beyond the log.
    pub(crate) fn missed(&self) -> u64 {
        // Relaxed: a count.
        self.missed.load(Ordering::Relaxed)
    }
}

/// What of one virtqueue is marked.
#[derive(Clone, Debug)]
pub(crate) struct RingLog {
    pub(crate) log: Arc<DirtyLog>,
    /// Guest address by which the used ring is marked, if it is.
    pub(crate) used: Option<u64>,
}

impl PartialEq for RingLog {
    fn eq(&self, other: &RingLog) -> bool {
        Arc::ptr_eq(&self.log, &other.log) && self.used == other.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    fn file(len: u64) -> OwnedFd {
        let file = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, len).unwrap();
        file
    }

    fn marked(file: &OwnedFd, offset: u64, len: usize) -> Vec<u64> {
        let mut bytes = vec![0; len];
        rustix::io::pread(file, &mut bytes, offset).unwrap();
        let bit = |page: &u64| bytes[usize::try_from(page / 8).unwrap()] >> (page % 8) & 1 == 1;
        (0..8 * len as u64).filter(bit).collect()
    }

    #[test]
    fn pages_are_marked_by_their_bit_from_the_logs_offset_on() {
        // CVE-2020-10722: the offset was added twice.
        let file = file(3 * 4096);
        let log = DirtyLog::new(4096, 5000, &file, 0).unwrap();
        log.mark(0, 1);
        log.mark(PAGE - 1, 2);
        log.mark(9 * PAGE, 2 * PAGE);
        log.mark(20 * PAGE, 0);
        log.mark(4096 * 8 * PAGE - 1, 1);
        assert_eq!(marked(&file, 5000, 4096), [0, 1, 9, 10, 4096 * 8 - 1]);
        assert_eq!((marked(&file, 0, 5000), marked(&file, 9096, 3192)), (vec![], vec![]));
        assert_eq!(log.missed(), 0);
    }

    #[test]
    fn what_lies_beyond_is_counted_and_marks_nothing() {
        let file = file(8192);
        let log = DirtyLog::new(1, 0, &file, 8 * PAGE).unwrap();
        for (guest, len) in [(8 * PAGE, 1), (u64::MAX, u64::MAX), (7 * PAGE, u64::MAX)] {
            log.mark(guest, len);
        }
        assert_eq!((marked(&file, 0, 8192), log.missed()), (vec![7], 3));
    }

    #[test]
    fn logs_that_cannot_be_are_refused() {
        let file = file(8192);
        let log = |len, offset, end| DirtyLog::new(len, offset, &file, end);
        assert!(matches!(log(8192, 1, 0), Err(LogError::Map(_))));
        assert!(matches!(log(4096, u64::MAX - 4095, 0), Err(LogError::Map(_))));
        assert!(matches!(log(4096, u64::MAX, 0), Err(LogError::Map(_))));
        assert!(matches!(log(0, 0, 0), Err(LogError::Map(_))));
        assert!(matches!(log(u64::MAX, 0, 0), Err(LogError::Long { .. })));
        assert!(matches!(log(1, 0, 8 * PAGE + 1), Err(LogError::Short { len: 1, .. })));
        assert!(log(8192, 0, 8192 * 8 * PAGE).is_ok());
    }

    #[test]
    fn marks_of_many_threads_are_all_there() {
        let file = file(4096);
        let log = DirtyLog::new(4096, 0, &file, 0).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let log = &log;
                scope.spawn(move || (thread..4096 * 8).step_by(4).for_each(|page| log.mark(page * PAGE, 1)));
            }
        });
        assert_eq!(marked(&file, 0, 4096).len(), 4096 * 8);
    }
}
