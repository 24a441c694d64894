//! Another process' memory as a [`Space`].
//!
//! Bytes go through a buffer of this process, one chunk at a time: two copies and two system calls. The kernel reports
//! how many bytes it moved, to the page. Descending, the pages are passed from the top, so that nothing below a fault
//! is written.
//!
//! Deviations from what a device does with the same page tables, numbered:
//! 1. Memory mapped without `PROT_READ` cannot be read, even where the processor could (`PROT_WRITE` alone).
//! 2. [`flush`](Space::flush) checks that the pages are present and leaves cache lines alone. No instruction flushes
//!    the lines of another process' addresses, and caches are coherent.
//! 3. A change of mappings during an operation takes effect at the chunk the operation has reached.

mod source;
mod vm;

use crate::grant::GrantedMemory;
use crate::map::SMALL_BYTES;
use crate::process_memory::ProcessMemory;
use crate::{Fault, PAGE_BYTES, Space, WriteHint};
use source::Source;
use std::io;
use std::os::fd::OwnedFd;
use telpher_os::page_presence::ask_pagemap;
use vm::{CHUNK_BYTES, CHUNK_PAGES, Order, Process, in_page};

/// Bytes after which both kinds of pattern repeat.
const PATTERN_BYTES: usize = 16;

/// Memory of another process, which this process must be allowed to trace (usually: a process of the same user).
///
/// Accesses behave like the processor's in that process: they respect protections, and bring pages in unless the space
/// is [strict](Remote::strict). After the process has ended, every access faults.
///
/// **Assumptions.** Operations run while a thread of that process waits for them, as the caller of a system call does.
/// Each access first checks that the process lives. If the process ends or replaces its program right after this check,
/// and its id is reused at once, the change is not noticed.
#[derive(Debug)]
pub struct Remote {
    source: Source,
    /// Its page tables. Without them the mappings' permissions decide page requests for writing.
    pagemap: Option<OwnedFd>,
    strict: bool,
}

impl Remote {
    /// Opens the memory of a process; pages that an access would bring in count as present.
    ///
    /// # Errors
    /// If the process does not exist, or shares this process' memory.
    pub fn new(process: u32) -> io::Result<Remote> {
        let source = Source::Process(Process::new(process)?);
        let pagemap = source.pagemap().ok();
        Ok(Remote { source, pagemap, strict: false })
    }

    /// Opens the memory of a process; pages that are not present fault, as with [`Strict`](crate::Strict) for this
    /// process.
    ///
    /// # Errors
    /// As for [`new`](Remote::new), or if the kernel does not show the process' page tables.
    pub fn strict(process: u32) -> io::Result<Remote> {
        let source = Source::Process(Process::new(process)?);
        let pagemap = Some(source.pagemap()?);
        Ok(Remote { source, pagemap, strict: true })
    }

    /// The granted part of another process' memory, at its addresses there; every other access faults, and so does each
    /// access once the grant is revoked. Pages that an access would bring in count as present. Unlike the space of a
    /// whole process, it is bound to the owner's address space, and not only to its process id.
    #[must_use]
    pub fn granted(memory: GrantedMemory) -> Remote {
        Remote { source: Source::Granted(memory), pagemap: None, strict: false }
    }

    /// Counts the bytes on present pages, from the end processed first; all bytes unless strict. The range is at most a
    /// chunk.
    fn present(&self, address: u64, len: usize, write: bool, order: Order) -> usize {
        let Some(pagemap) = self.pagemap.as_ref().filter(|_| self.strict && len > 0) else { return len };
        let skew = in_page(address);
        let pages = (skew + len).div_ceil(SMALL_BYTES);
        let mut present = [false; CHUNK_PAGES + 1];
        let present = &mut present[..pages];
        if ask_pagemap(pagemap, address / PAGE_BYTES, write, present).is_none() {
            return 0;
        }
        let (run, outside) = match order {
            Order::Ascending => (present.iter().take_while(|present| **present).count(), skew),
            Order::Descending => {
                (present.iter().rev().take_while(|present| **present).count(), pages * SMALL_BYTES - skew - len)
            }
        };
        (run * SMALL_BYTES).saturating_sub(outside).min(len)
    }

    /// Reads at most a chunk; returns how many bytes, from the end processed first, are valid.
    fn fetch(&self, address: u64, into: &mut [u8], order: Order) -> usize {
        let len = self.present(address, into.len(), false, order);
        let from = if order == Order::Ascending { 0 } else { into.len() - len };
        self.source.read(address.wrapping_add(from as u64), &mut into[from..from + len], order)
    }

    /// Writes at most a chunk; returns how many bytes, from the end processed first, were written.
    fn put(&self, address: u64, bytes: &[u8], order: Order) -> usize {
        let len = self.present(address, bytes.len(), true, order);
        let from = if order == Order::Ascending { 0 } else { bytes.len() - len };
        self.source.write(address.wrapping_add(from as u64), &bytes[from..from + len], order)
    }

    /// True if a store would find the page present; `None` if the kernel does not report it.
    fn is_present_for_writing(&self, address: u64) -> Option<bool> {
        let mut present = [false];
        ask_pagemap(self.pagemap.as_ref()?, address / PAGE_BYTES, true, &mut present)?;
        Some(present[0])
    }

    /// Finds the first difference between the memory from `a` on and the bytes of `other`. `other` fills a buffer for
    /// an offset and returns how many bytes are valid, or a fault if none is.
    fn compare_with(
        &self,
        a: u64,
        len: u64,
        mut other: impl FnMut(u64, &mut [u8]) -> Result<usize, Fault>,
    ) -> Result<Option<u64>, Fault> {
        let (mut left, mut right) = (buffer(len), buffer(len));
        let mut done = 0;
        while done < len {
            let count = chunk(len - done);
            let address = a.wrapping_add(done);
            let got = self.fetch(address, &mut left[..count], Order::Ascending);
            if got == 0 {
                return Err(Fault { address, write: false, done });
            }
            let got = other(done, &mut right[..got])?;
            if let Some(at) = left[..got].iter().zip(&right[..got]).position(|(left, right)| left != right) {
                return Ok(Some(done + at as u64));
            }
            done += got as u64;
        }
        Ok(None)
    }
}

/// Allocates a buffer for chunks of an operation of `len` bytes.
fn buffer(len: u64) -> Vec<u8> {
    vec![0; chunk(len)]
}

/// Returns the length of the next chunk if `left` bytes are left.
fn chunk(left: u64) -> usize {
    usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES)
}

/// Repeats a pattern over a chunk and one unit more, so that a chunk may start at any byte of the unit.
fn repeated([low, high]: [u64; 2]) -> Vec<u8> {
    let mut unit = [0; PATTERN_BYTES];
    unit[..8].copy_from_slice(&low.to_le_bytes());
    unit[8..].copy_from_slice(&high.to_le_bytes());
    unit.repeat(CHUNK_BYTES / PATTERN_BYTES + 1)
}

/// Returns the offset in a repeated pattern that corresponds to byte `done`.
fn phase(done: u64) -> usize {
    usize::try_from(done % PATTERN_BYTES as u64).expect("below 16")
}

impl Space for Remote {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < into.len() {
            let end = into.len().min(done + CHUNK_BYTES);
            let at = address.wrapping_add(done as u64);
            match self.fetch(at, &mut into[done..end], Order::Ascending) {
                0 => return Err(Fault { address: at, write: false, done: done as u64 }),
                got => done += got,
            }
        }
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8], _: WriteHint) -> Result<(), Fault> {
        let mut done = 0;
        while done < from.len() {
            let end = from.len().min(done + CHUNK_BYTES);
            let at = address.wrapping_add(done as u64);
            match self.put(at, &from[done..end], Order::Ascending) {
                0 => return Err(Fault { address: at, write: true, done: done as u64 }),
                put => done += put,
            }
        }
        Ok(())
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        let mut buffer = buffer(len);
        let mut done = 0;
        while done < len {
            let (to, from) = (dst.wrapping_add(done), src.wrapping_add(done));
            let got = self.fetch(from, &mut buffer[..chunk(len - done)], Order::Ascending);
            if got == 0 {
                return Err(Fault { address: from, write: false, done });
            }
            // If fewer bytes were written than read, the next round starts at the byte that failed and returns its
            // fault.
            let put = self.put(to, &buffer[..got], Order::Ascending);
            if put == 0 {
                return Err(Fault { address: to, write: true, done });
            }
            done += put as u64;
        }
        Ok(())
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        if src.checked_add(len).is_none() || dst.checked_add(len).is_none() {
            return Err(Fault { address: u64::MAX, write: src.checked_add(len).is_some(), done: 0 });
        }
        let mut buffer = buffer(len);
        let mut done = 0;
        while done < len {
            let count = chunk(len - done);
            // Cannot wrap: checked above, and `count` is at most what is left.
            let low = len - done - count as u64;
            let got = self.fetch(src + low, &mut buffer[..count], Order::Descending);
            if got == 0 {
                return Err(Fault { address: src + (len - done - 1), write: false, done });
            }
            let below = count - got;
            let put = self.put(dst + low + below as u64, &buffer[below..count], Order::Descending);
            if put == 0 {
                return Err(Fault { address: dst + (len - done - 1), write: true, done });
            }
            done += put as u64;
        }
        Ok(())
    }

    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, _: WriteHint) -> Result<(), Fault> {
        let pattern_bytes = repeated(pattern);
        let mut done = 0;
        while done < len {
            let (at, from) = (dst.wrapping_add(done), phase(done));
            match self.put(at, &pattern_bytes[from..from + chunk(len - done)], Order::Ascending) {
                0 => return Err(Fault { address: at, write: true, done }),
                put => done += put as u64,
            }
        }
        Ok(())
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.compare_with(a, len, |done, into| {
            let address = b.wrapping_add(done);
            match self.fetch(address, into, Order::Ascending) {
                0 => Err(Fault { address, write: false, done }),
                got => Ok(got),
            }
        })
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        let pattern_bytes = repeated([pattern; 2]);
        self.compare_with(a, len, |done, into| {
            into.copy_from_slice(&pattern_bytes[phase(done)..phase(done) + into.len()]);
            Ok(into.len())
        })
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let at = address.wrapping_add(done);
            let mut byte = [0];
            if self.fetch(at, &mut byte, Order::Ascending) == 0 {
                return Err(Fault { address: at, write: false, done });
            }
            done += (PAGE_BYTES - at % PAGE_BYTES).min(len - done);
        }
        Ok(())
    }

    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        let fault = |done: u64| Fault { address: address.wrapping_add(done), write: true, done };
        let done = self.present(address, 32, true, Order::Ascending);
        if done < 32 {
            return Err(fault(done as u64));
        }
        if !address.is_multiple_of(32) {
            // Contrary to the contract, the record may lie on two pages. Check that both can be written before either
            // is.
            for done in [0, 31] {
                if !self.page_request(address.wrapping_add(done), true) {
                    return Err(fault(if done == 0 { 0 } else { PAGE_BYTES - address % PAGE_BYTES }));
                }
            }
        }
        let mut bytes = [0; 32];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(record) {
            *place = word.to_le_bytes();
        }
        if self.source.write_first_byte_last(address, &bytes) { Ok(()) } else { Err(fault(0)) }
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        if !write {
            return self.source.read(address, &mut [0], Order::Ascending) == 1;
        }
        let before = self.is_present_for_writing(address);
        self.source.pin_for_writing(address);
        match (before, self.is_present_for_writing(address)) {
            // The pin brought the page in, so stores are allowed.
            (Some(false), Some(true)) => true,
            (_, Some(false)) => false,
            // The page was present before, or the kernel does not report it: the permissions of the mapping decide.
            _ => self.source.is_writable(address),
        }
    }
}

/// Brings in a page of another process as for a store, without storing anything: a shared page is copied, and one that
/// was never touched gets memory. `memory` proves that the number is that of the process that is meant.
///
/// # Errors
/// The system's: this process must be allowed to trace the other one, which must not be itself. `PermissionDenied` also
/// if the memory is not of the process with this number. A page that does not exist, or that no store may change, is
/// not reported.
pub fn bring_in_for_writing(process: u32, memory: &ProcessMemory, address: u64) -> io::Result<()> {
    // Opened before it is compared: once the process has ended, this handle reaches no other one.
    let opened = Process::new(process)?;
    if !memory.is_of(process) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    opened.try_pin_for_writing(address)
}
