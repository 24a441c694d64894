//! The dirty log: which guest pages were written, so that a migration sends them again.
//!
//! One bit per page, in a file of the frontend's. A writer of guest memory marks a page *after* the bytes are written
//! and before the driver is told. The frontend clears a bit and then reads the page, so a page marked too early would
//! miss bytes written later.
//!
//! Source: vhost-user, "Migration".

use crate::ring::Area;
use crate::sync::{AtomicU64, Ordering};
use crate::{GuestMemory, Region, RegionError};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Bytes of guest memory per bit. Source: vhost-user, `VHOST_LOG_PAGE`.
const PAGE: u64 = 0x1000;
/// The longest log, in bytes: for a guest with 2⁵² bytes. Source: x86-64, the largest physical address.
const MOST_BYTES: u64 = (1 << 52) / PAGE / 8;

/// Why a file cannot be used as the log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// It cannot be mapped: it is shorter than announced, or ends beyond the address space (CVE-2020-10722).
    #[error("the dirty log cannot be mapped")]
    Map(#[source] RegionError),
    /// It is too short for the guest (CVE-2026-86563): pages would not be marked, and a migrated guest would lack their
    /// bytes.
    #[error(
        "the dirty log has {len} bytes; the guest's memory ends at {end:#x}, and each 4 KiB below that needs a bit"
    )]
    Short {
        /// Its length in bytes.
        len: u64,
        /// The end of the guest's memory.
        end: u64,
    },
    /// It is longer than any guest needs.
    #[error("the dirty log has {len} bytes, more than any guest's memory needs")]
    Long {
        /// Its length in bytes.
        len: u64,
    },
}

/// A log and its file.
#[derive(Debug)]
pub(crate) struct DirtyLog {
    bits: Area<u8>,
    /// The number of pages it has bits for.
    pages: u64,
    /// Marks beyond its end: addresses that the frontend invented, since its memory lies below.
    missed: AtomicU64,
}

impl DirtyLog {
    /// Opens `len` bytes of the file from `offset` on, for a guest whose memory ends at `end`.
    pub(crate) fn new(len: u64, offset: u64, file: &OwnedFd, end: u64) -> Result<DirtyLog, LogError> {
        let count = usize::try_from(len).ok().filter(|_| len <= MOST_BYTES).ok_or(LogError::Long { len })?;
        // The file is mapped, checked and guarded like guest memory. The "guest address" of a byte is its position in
        // the log.
        let region = Region { guest: 0, len, user: 0, offset };
        let file = GuestMemory::new().with(region, file.as_fd()).map_err(LogError::Map)?;
        let Some(bits) = Area::of_user(Arc::new(file), 0, count) else { unreachable!("bytes are aligned") };
        let log = DirtyLog { bits, pages: len * 8, missed: AtomicU64::new(0) };
        log.covers(end).map(|()| log)
    }

    /// Checks that it has a bit for each page of a guest whose memory ends at `end`.
    pub(crate) fn covers(&self, end: u64) -> Result<(), LogError> {
        if self.pages >= end.div_ceil(PAGE) { Ok(()) } else { Err(LogError::Short { len: self.pages / 8, end }) }
    }

    /// Marks the pages of `len` bytes from a guest address on. The bytes are already written.
    pub(crate) fn mark(&self, guest: u64, len: u64) {
        let Some(last) = len.checked_sub(1) else { return };
        for page in guest / PAGE..=guest.saturating_add(last) / PAGE {
            if page >= self.pages {
                // Relaxed: a counter that publishes nothing.
                self.missed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // Cannot be truncated: less than the number of bytes, which is a `usize`.
            self.bits.set_bits(usize::try_from(page / 8).unwrap_or(usize::MAX), 1 << (page % 8));
        }
    }

    /// How many marks lay beyond the log.
    pub(crate) fn missed(&self) -> u64 {
        // Relaxed: a counter.
        self.missed.load(Ordering::Relaxed)
    }
}

/// What is marked for one virtqueue.
#[derive(Clone, Debug)]
pub(crate) struct RingLog {
    pub(crate) log: Arc<DirtyLog>,
    /// The guest address under which the used ring is marked, if it is logged.
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
    fn pages_are_marked_by_bit_starting_at_the_logs_offset() {
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
    fn marks_beyond_the_log_are_counted_and_set_no_bit() {
        let file = file(8192);
        let log = DirtyLog::new(1, 0, &file, 8 * PAGE).unwrap();
        for (guest, len) in [(8 * PAGE, 1), (u64::MAX, u64::MAX), (7 * PAGE, u64::MAX)] {
            log.mark(guest, len);
        }
        assert_eq!((marked(&file, 0, 8192), log.missed()), (vec![7], 3));
    }

    #[test]
    fn invalid_logs_are_refused() {
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
    fn concurrent_marks_are_all_kept() {
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
