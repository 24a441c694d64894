//! Queries the kernel which pages of this process are present.
#![allow(unsafe_code, reason = "mincore, and a descriptor that its owner keeps")]

use crate::PAGE_BYTES;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Bytes of a page, for system calls.
const PAGE: usize = 4096;

/// Pages per query.
pub const BATCH_PAGES: usize = 512;

/// A page-table entry exists. Source: Linux Documentation/admin-guide/mm/pagemap.rst, as the next two.
const PRESENT: u64 = 1 << 63;
/// The page belongs to a file or to shared anonymous memory.
const FILE_OR_SHARED: u64 = 1 << 61;
/// No other process has the page mapped.
const EXCLUSIVE: u64 = 1 << 56;

/// An open `/proc/self/pagemap`; copies share the descriptor.
#[derive(Clone, Debug)]
pub struct Pagemap {
    file: File,
    /// The process that opened it, if every query must check this: in a forked child the descriptor still describes the
    /// parent. `None` skips the check.
    process: Option<u32>,
}

#[derive(Clone, Debug)]
enum File {
    Own(Arc<OwnedFd>),
    /// The current descriptor number; negative if it is closed.
    At(&'static AtomicI32),
}

impl Pagemap {
    /// Opens the pagemap of this process.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn open() -> std::io::Result<Pagemap> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::open("/proc/self/pagemap", flags, rustix::fs::Mode::empty())?;
        Ok(Pagemap { file: File::Own(Arc::new(file)), process: Some(own_process()) })
    }

    /// Wraps a pagemap of this process that another component opened; `number` holds its descriptor. The owner may move
    /// it to another number, but must update `number` before the old descriptor is reused. In a forked child it reports
    /// the parent's pages; use it where the child opens everything anew, and where a system call at every query is too
    /// expensive.
    ///
    /// # Safety
    /// `number` is negative, or is an open pagemap that stays open until `number` has changed.
    #[must_use]
    pub unsafe fn at(number: &'static AtomicI32) -> Pagemap {
        Pagemap { file: File::At(number), process: None }
    }

    fn ask(&self, first: u64, write: bool, present: &mut [bool]) -> Option<()> {
        let number = match &self.file {
            File::Own(file) => return ask_pagemap(file, first, write, present),
            File::At(number) => number,
        };
        loop {
            // Acquire: pairs with the owner's store that publishes the number.
            let fd = number.load(Ordering::Acquire);
            if fd < 0 {
                return None;
            }
            // SAFETY: the promise of `at`. If the number changed during the read, the result is discarded below.
            let asked = ask_pagemap(unsafe { BorrowedFd::borrow_raw(fd) }, first, write, present);
            if number.load(Ordering::Acquire) == fd {
                return asked;
            }
        }
    }
}

/// The source of the page state.
#[derive(Debug)]
pub enum Presence {
    /// The kernel's page tables, read without the C library's symbols, which a preloaded library may have replaced.
    Pagemap(Pagemap),
    /// `mincore()`, which knows for private anonymous memory only whether it was touched, for reads and writes alike.
    Mincore,
}

impl Presence {
    /// Asks the page map where the process may read it, otherwise `mincore`.
    pub fn open() -> Presence {
        Pagemap::open().map_or(Presence::Mincore, Presence::Pagemap)
    }

    /// Reports for each page, starting at page number `first`, whether an access would find it present.
    pub fn ask(&self, first: u64, write: bool, present: &mut [bool]) {
        debug_assert!(present.len() <= BATCH_PAGES + 1);
        if let Presence::Pagemap(pagemap) = self
            && pagemap.process.is_none_or(|process| process == own_process())
            && pagemap.ask(first, write, present).is_some()
        {
            return;
        }
        ask_mincore(first, present);
    }
}

/// Returns the id of the current process; never cached.
fn own_process() -> u32 {
    rustix::process::getpid().as_raw_pid().cast_unsigned()
}

/// Reads from the page map which pages from number `first` on are present; with `write`, which of them may be written
/// without a fault. None if the file cannot be read.
pub fn ask_pagemap(file: impl AsFd, first: u64, write: bool, present: &mut [bool]) -> Option<()> {
    let mut words = [0; (BATCH_PAGES + 1) * 8];
    let bytes = &mut words[..present.len() * 8];
    let mut filled = 0;
    while filled < bytes.len() {
        // Page numbers have 52 bits, so the offset has 55. The file ends after the user half; nothing beyond is
        // present.
        match rustix::io::pread(&file, &mut bytes[filled..], first * 8 + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    bytes[filled..].fill(0);
    for (present, word) in present.iter_mut().zip(bytes.as_chunks::<8>().0) {
        let word = u64::from_le_bytes(*word);
        // The zero page, which a read of untouched memory maps, and pages shared after fork() have neither bit. A write
        // to them must first make a copy, which a device without page requests cannot do.
        *present = word & PRESENT != 0 && (!write || word & (FILE_OR_SHARED | EXCLUSIVE) != 0);
    }
    Some(())
}

fn ask_mincore(first: u64, present: &mut [bool]) {
    for (page, present) in (first..).zip(present) {
        let mut answer = 0_u8;
        let address = usize::try_from(page.wrapping_mul(PAGE_BYTES)).expect("addresses have 64 bits");
        // SAFETY: mincore reads page tables only, not the memory of the range, and writes one byte for one page. For an
        // address that is not mapped it returns an error.
        let failed = unsafe { libc::mincore(std::ptr::without_provenance_mut(address), PAGE, &raw mut answer) };
        *present = failed == 0 && answer & 1 != 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use telpher_mem::Pages;

    fn answers(presence: &Presence, pages: &Pages, write: bool) -> Vec<bool> {
        let mut present = vec![false; 4];
        presence.ask(pages.address() / PAGE_BYTES, write, &mut present);
        present
    }

    #[test]
    fn touched_pages_are_present_and_others_are_not() {
        for presence in [Presence::open(), Presence::Mincore] {
            let pages = Pages::new(4).unwrap();
            pages.poke(PAGE_BYTES, &[1]);
            pages.poke(2 * PAGE_BYTES, &[1]);
            assert_eq!(answers(&presence, &pages, true), [false, true, true, false], "{presence:?}");
            pages.discard(1..2).unwrap();
            assert_eq!(answers(&presence, &pages, false), [false, false, true, false], "{presence:?}");
        }
    }

    #[test]
    fn the_zero_page_is_present_for_reads_only() {
        let presence = Presence::open();
        assert!(matches!(presence, Presence::Pagemap(_)), "this system shows /proc/self/pagemap");
        let pages = Pages::new(4).unwrap();
        assert_eq!(pages.peek(0, 1), [0]);
        assert_eq!(answers(&presence, &pages, false), [true, false, false, false]);
        assert_eq!(answers(&presence, &pages, true), [false; 4]);
    }

    #[test]
    fn pages_of_a_shared_file_are_present_once_touched() {
        let presence = Presence::open();
        let pages = Pages::of_file(4).unwrap();
        pages.poke(3 * PAGE_BYTES, &[1]);
        assert_eq!(answers(&presence, &pages, true), [false, false, false, true]);
    }

    #[test]
    fn a_pagemap_follows_its_descriptor_number() {
        static NUMBER: AtomicI32 = AtomicI32::new(-1);
        // SAFETY: the descriptors are put there below, and stay open.
        let presence = Presence::Pagemap(unsafe { Pagemap::at(&NUMBER) });
        let pages = Pages::new(4).unwrap();
        pages.poke(PAGE_BYTES, &[1]);
        let expected = [false, true, false, false];
        assert_eq!(answers(&presence, &pages, true), expected, "closed: the answer of mincore");
        let first = std::fs::File::open("/proc/self/pagemap").unwrap();
        let second = first.try_clone().unwrap();
        for file in [first, second] {
            NUMBER.store(file.as_raw_fd(), Ordering::Release);
            assert_eq!(answers(&presence, &pages, true), expected);
            NUMBER.store(-1, Ordering::Release);
        }
    }

    #[test]
    fn nothing_is_present_outside_the_user_half() {
        for presence in [Presence::open(), Presence::Mincore] {
            for first in [0, 1 << 36, (1 << 51) - 1, (1 << 52) - 4] {
                let mut present = [true; 3];
                presence.ask(first, false, &mut present);
                assert_eq!(present, [false; 3], "{first:#x} {presence:?}");
            }
        }
    }
}
