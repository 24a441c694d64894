//! A space in which pages that are not present fault, as for a device with block on fault off.

use crate::{Fault, PAGE_BYTES, Space, WriteHint};
use telpher_os::page_presence::{BATCH_PAGES, Pagemap, Presence};

/// Bytes processed between two presence checks; a multiple of the patterns' 16 bytes.
const BATCH_BYTES: u64 = BATCH_PAGES as u64 * PAGE_BYTES;

/// Wraps a space of this process' own memory. Pages that were never touched, or were discarded with `MADV_DONTNEED`,
/// are faults.
///
/// The CPU would bring in such pages silently. A device with block on fault off stops at the page boundary, and its
/// clients' recovery code runs only if the model stops, too. [`page_request`](Space::page_request) makes the page
/// present, as an access by the client does.
///
/// Presence is read from `/proc/self/pagemap`, or from `mincore()` if that file cannot be opened. A page counts as
/// present for a write if the write needs no copy first. So the zero page, which a mere read has mapped, and a page
/// shared since a `fork()` do not count. (`mincore()` does not see that difference.)
///
/// **Assumptions.** Private mappings without page structures (some drivers' memory) look like the zero page and are
/// never present for writes. Presence is checked every 2 MiB; a page that is removed in between is brought back as for
/// the CPU. A check costs about a microsecond: this mode is for tests and faithful models, not for speed.
#[derive(Debug)]
pub struct Strict<S> {
    inner: S,
    presence: Presence,
}

/// An operand: its address, and true if it is written.
type Operand = (u64, bool);

impl<S: Space> Strict<S> {
    /// Creates a strict view of `inner`, which must be this process' memory.
    pub fn new(inner: S) -> Strict<S> {
        Strict { inner, presence: Presence::open() }
    }

    /// Creates a strict view with the caller's pagemap, so that many spaces share one descriptor at a number that its
    /// owner chooses.
    pub fn with_pagemap(inner: S, pagemap: Pagemap) -> Strict<S> {
        Strict { inner, presence: Presence::Pagemap(pagemap) }
    }

    /// Returns the wrapped space.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Counts the bytes on present pages, from `address` on up to the first gap, at most `len`. `len` is at most a
    /// batch.
    fn present_up(&self, (address, write): Operand, len: u64) -> u64 {
        let mut present = [false; BATCH_PAGES + 1];
        let pages = pages_of(address, len);
        self.presence.ask(address / PAGE_BYTES, write, &mut present[..pages]);
        let run = present[..pages].iter().take_while(|&&present| present).count() as u64;
        (run * PAGE_BYTES).saturating_sub(address % PAGE_BYTES).min(len)
    }

    /// Counts the bytes on present pages downwards from the end of the range.
    fn present_down(&self, (address, write): Operand, len: u64) -> u64 {
        let mut present = [false; BATCH_PAGES + 1];
        let pages = pages_of(address, len);
        self.presence.ask(address / PAGE_BYTES, write, &mut present[..pages]);
        let run = present[..pages].iter().rev().take_while(|&&present| present).count() as u64;
        // Bytes of the last page after the range.
        let behind = (pages as u64 * PAGE_BYTES).saturating_sub(address % PAGE_BYTES + len);
        (run * PAGE_BYTES).saturating_sub(behind).min(len)
    }

    /// Runs `step(offset, len)` over the present bytes, then reports the first operand that is not present.
    fn ascending<const N: usize>(
        &self,
        operands: [Operand; N],
        len: u64,
        mut step: impl FnMut(u64, u64) -> Result<Option<u64>, Fault>,
    ) -> Result<Option<u64>, Fault> {
        let mut done = 0;
        while done < len {
            let batch = BATCH_BYTES.min(len - done);
            let mut run = batch;
            let mut missing = None;
            for (address, write) in operands {
                let present = self.present_up((address.wrapping_add(done), write), run);
                if present < run {
                    run = present;
                    missing = Some((address, write));
                }
            }
            if run > 0 {
                match step(done, run) {
                    Ok(None) => {}
                    Ok(Some(offset)) => return Ok(Some(done + offset)),
                    Err(fault) => return Err(Fault { done: done + fault.done, ..fault }),
                }
            }
            done += run;
            if let Some((address, write)) = missing {
                return Err(Fault { address: address.wrapping_add(done), write, done });
            }
        }
        Ok(None)
    }
}

/// Returns how many pages `len` bytes from `address` on touch.
fn pages_of(address: u64, len: u64) -> usize {
    // At most one more than a batch.
    usize::try_from((address % PAGE_BYTES + len).div_ceil(PAGE_BYTES)).unwrap_or(BATCH_PAGES + 1).min(BATCH_PAGES + 1)
}

/// Converts an offset within a slice to an index.
fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset into a slice")
}

impl<S: Space> Space for Strict<S> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.ascending([(address, false)], into.len() as u64, |at, n| {
            self.inner.read(address.wrapping_add(at), &mut into[index(at)..index(at + n)]).map(|()| None)
        })
        .map(drop)
    }

    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        self.ascending([(address, true)], from.len() as u64, |at, n| {
            self.inner.write(address.wrapping_add(at), &from[index(at)..index(at + n)], hint).map(|()| None)
        })
        .map(drop)
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.ascending([(src, false), (dst, true)], len, |at, n| {
            self.inner.move_forward(dst.wrapping_add(at), src.wrapping_add(at), n, hint).map(|()| None)
        })
        .map(drop)
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        if dst.checked_add(len).is_none() || src.checked_add(len).is_none() {
            // A range that wraps faults before any byte is accessed.
            return self.inner.move_backward(dst, src, len, hint);
        }
        let mut done = 0;
        while done < len {
            let batch = BATCH_BYTES.min(len - done);
            let low = len - done - batch;
            let mut run = batch;
            let mut missing = None;
            for (address, write) in [(src, false), (dst, true)] {
                // Only the upper `run` bytes of the batch still matter.
                let present = self.present_down((address + low + batch - run, write), run);
                if present < run {
                    run = present;
                    missing = Some((address, write));
                }
            }
            let at = len - done - run;
            if run > 0 {
                self.inner
                    .move_backward(dst + at, src + at, run, hint)
                    .map_err(|fault| Fault { done: done + fault.done, ..fault })?;
            }
            done += run;
            if let Some((address, write)) = missing {
                return Err(Fault { address: address + (len - done - 1), write, done });
            }
        }
        Ok(())
    }

    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.ascending([(dst, true)], len, |at, n| {
            self.inner.fill(dst.wrapping_add(at), pattern, n, hint).map(|()| None)
        })
        .map(drop)
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.ascending([(a, false), (b, false)], len, |at, n| {
            self.inner.compare(a.wrapping_add(at), b.wrapping_add(at), n)
        })
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.ascending([(a, false)], len, |at, n| self.inner.compare_pattern(a.wrapping_add(at), pattern, n))
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        self.ascending([(address, false)], len, |at, n| self.inner.flush(address.wrapping_add(at), n).map(|()| None))
            .map(drop)
    }

    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        let done = self.present_up((address, true), 32);
        if done < 32 {
            return Err(Fault { address: address.wrapping_add(done), write: true, done });
        }
        self.inner.write_record(address, record)
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        self.inner.page_request(address, write)
    }
}
