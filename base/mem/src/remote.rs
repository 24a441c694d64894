//! Another process' memory as a [`Space`].
//!
//! Bytes go through a buffer in this process, a chunk at a time: two copies and two system calls. The kernel tells how far it
//! came, to the page; descending, the pages are named in descending order, so that nothing below a fault is written.
//!
//! Deviations from what a device does with the same page tables, numbered:
//! 1. Memory mapped without `PROT_READ` cannot be read, also where the processor could (`PROT_WRITE` alone).
//! 2. [`flush`](Space::flush) looks whether the pages are there, and leaves cache lines alone: they cannot be reached by
//!    another process' address, and caches are coherent.
//! 3. [`Fault`]s come in units of a chunk if a mapping changes under an operation: what was read of a chunk may then be of
//!    before, and what is written of after the change.

mod vm;

use crate::map::SMALL_BYTES;
use crate::presence::{BATCH_PAGES, ask_pagemap};
use crate::{Fault, PAGE_BYTES, Space, WriteHint};
use std::fs::File;
use std::io;
use vm::{Part, Process};

/// Bytes moved at once; a multiple of the patterns' 16 bytes. Source: chosen; past the cost of a system call, within L2.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNK_PAGES: usize = CHUNK_BYTES / SMALL_BYTES;
const _: () = assert!(CHUNK_PAGES < BATCH_PAGES);

/// Memory of another process, which this one must be allowed to trace (the same user's, usually).
///
/// Accesses are those of the processor in that process: they respect protections, and bring pages in unless the space is
/// [strict](Remote::strict). Once the process has ended every access faults.
///
/// **Assumptions.** Whoever drives operations does so while a thread of the process waits for them, as a system call's caller
/// does: a process that ends and whose number is given to another within the few instructions between a look and an access,
/// or one that replaces its program in that time, is not noticed.
#[derive(Debug)]
pub struct Remote {
    process: Process,
    /// Present pages, if others shall fault.
    presence: Option<File>,
    /// The same table, to see what a page request has come to.
    pagemap: Option<File>,
}

/// Which end of a range is met first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Ascending,
    Descending,
}

impl Remote {
    /// The memory of a process; pages that an access would bring in count as present.
    ///
    /// # Errors
    /// If there is no such process, or it is this one, or it may not be traced.
    pub fn new(process: u32) -> io::Result<Remote> {
        let process = Process::new(process)?;
        let pagemap = process.pagemap().ok();
        Ok(Remote { process, presence: None, pagemap })
    }

    /// The memory of a process; pages that are not present fault, as [`Strict`](crate::Strict) has it for this process.
    ///
    /// # Errors
    /// As for [`new`](Remote::new), or if the kernel does not show that process' page tables.
    pub fn strict(process: u32) -> io::Result<Remote> {
        let remote = Remote::new(process)?;
        Ok(Remote { presence: Some(remote.process.pagemap()?), ..remote })
    }

    /// Bytes of the range on present pages, from the end that is met first; all of them unless the space is strict.
    fn present(&self, address: u64, len: usize, write: bool, order: Order) -> usize {
        let Some(presence) = &self.presence else { return len };
        let mut present = [false; CHUNK_PAGES + 1];
        let skew = offset_in_page(address);
        let pages = (skew + len).div_ceil(SMALL_BYTES);
        let present = &mut present[..pages];
        if ask_pagemap(presence, address / PAGE_BYTES, write, present).is_none() {
            return 0;
        }
        let run = |pages: usize, outside: usize| (pages * SMALL_BYTES).saturating_sub(outside).min(len);
        match order {
            Order::Ascending => run(present.iter().take_while(|present| **present).count(), skew),
            Order::Descending => {
                let behind = pages * SMALL_BYTES - skew - len;
                run(present.iter().rev().take_while(|present| **present).count(), behind)
            }
        }
    }

    /// Reads a chunk, from the end that is met first. Returns how many bytes at that end of `into` are valid.
    fn fetch(&self, address: u64, into: &mut [u8], order: Order) -> usize {
        let len = self.present(address, into.len(), false, order);
        match order {
            Order::Ascending => self.process.read(&[Part { address, len }], &mut into[..len]),
            Order::Descending => {
                let from = into.len() - len;
                let address = address + from as u64;
                let into = &mut into[from..];
                let got = self.process.read(&pages_down(address, len).as_slice(), into);
                reverse_pages(address, into);
                // What was read is at the upper end now; a page is read whole or not at all.
                got
            }
        }
    }

    /// Writes a chunk, from the end that is met first. Returns how many bytes at that end were written.
    fn store(&self, address: u64, from: &mut [u8], order: Order) -> usize {
        let len = self.present(address, from.len(), true, order);
        match order {
            Order::Ascending => self.process.write(&[Part { address, len }], &from[..len]),
            Order::Descending => {
                let skip = from.len() - len;
                let address = address + skip as u64;
                let from = &mut from[skip..];
                0
            }
        }
    }
}
