//! Pages whose protection and contents tests can take away: protected, discarded, truncated.
//!
//! A [`Pages`] never gives a reference to its bytes, so removing their permission breaks no promise of Rust. It reads
//! and writes them through the guarded kernels only.
#![allow(unsafe_code, reason = "names its own pages by address")]

use crate::map::{MapError, Mapping, SMALL_BYTES};
use crate::{Local, PAGE_BYTES, Space, WriteHint};
use std::fs::File;
use std::ops::Range;

/// The permitted accesses to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Protection {
    /// Nothing.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Raw pages of this process; not present until first touched.
#[derive(Debug)]
pub struct Pages {
    mapping: Mapping,
    file: Option<File>,
    local: Local,
}

impl Pages {
    fn over(mapping: Mapping, file: Option<File>) -> Pages {
        // SAFETY: this `Local` accesses only these pages, and no references to them exist.
        Pages { mapping, file, local: unsafe { Local::new() } }
    }

    /// Creates private, zeroed pages of 4 KiB, also where the system's setting would give huge ones.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn new(count: usize) -> Result<Pages, MapError> {
        let mapping = Mapping::anonymous(count * SMALL_BYTES, 0, "map")?;
        mapping.advise_small();
        Ok(Self::over(mapping, None))
    }

    /// Creates shared pages of a file in memory, which can be [truncated](Pages::truncate).
    ///
    /// # Errors
    /// The system's refusal.
    pub fn of_file(count: usize) -> Result<Pages, MapError> {
        let len = count * SMALL_BYTES;
        let file = Mapping::memory_file(len as u64)?;
        Ok(Self::over(Mapping::file(&file, len)?, Some(file)))
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.mapping.as_ptr().expose_provenance() as u64
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Changes the permitted accesses to pages.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn protect(&self, pages: Range<usize>, protection: Protection) -> Result<(), MapError> {
        let flags = match protection {
            Protection::None => libc::PROT_NONE,
            Protection::Read => libc::PROT_READ,
            Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        self.mapping.protect(pages.start * SMALL_BYTES, pages.len() * SMALL_BYTES, flags)
    }

    /// Discards pages: they are not present until touched; private pages then read as zero.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn discard(&self, pages: Range<usize>) -> Result<(), MapError> {
        self.mapping.discard(pages.start * SMALL_BYTES, pages.len() * SMALL_BYTES)
    }

    /// Truncates the file to `count` pages; accesses past them raise SIGBUS.
    ///
    /// # Panics
    /// If the pages are not backed by a file, or the file cannot be truncated.
    pub fn truncate(&self, count: usize) {
        let file = self.file.as_ref().expect("the pages are backed by a file");
        file.set_len(count as u64 * PAGE_BYTES).expect("a memory file can be truncated");
    }

    fn assert_inside(&self, offset: u64, len: usize) {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.len_bytes()), "the range lies in the pages");
    }

    /// Returns the bytes at an offset.
    ///
    /// # Panics
    /// If they do not lie in the pages, or cannot be read.
    #[must_use]
    pub fn peek(&self, offset: u64, len: usize) -> Vec<u8> {
        self.assert_inside(offset, len);
        let mut bytes = vec![0; len];
        self.local.read(self.address() + offset, &mut bytes).expect("the pages can be read");
        bytes
    }

    /// Writes bytes at an offset.
    ///
    /// # Panics
    /// If they do not lie in the pages, or cannot be written.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        self.assert_inside(offset, bytes.len());
        self.local.write(self.address() + offset, bytes, WriteHint::Cache).expect("the pages can be written");
    }
}
