//! Memory shared by one open file and the host: what was done, and if asked for, every descriptor and record.
//!
//! The host reads it while the guest writes, and a last time after the guest has gone, however it went.

use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of the trace ring, a power of two. Source: chosen; 4096 entries of 256 bytes are 1 MiB an open file.
pub const TRACE_ENTRIES: usize = 4096;

/// Numbers of one open file.
#[derive(Debug)]
#[repr(C)]
pub struct Statistics {
    /// Descriptors by operation (0 to 63) and status (bits 5:0); [status](Statistics::NO_STATUS) 0 for those that ended
    /// without a record.
    pub outcomes: [[AtomicU64; 64]; 64],
    /// Descriptors by operation and size: bucket N holds sizes of N bits (0 for size 0).
    pub sizes: [[AtomicU64; 33]; 64],
    /// Bytes completed by operation.
    pub bytes: [AtomicU64; 64],
    /// Deferrable writes answered by Retry.
    pub retries: AtomicU64,
    /// Posted writes that were lost.
    pub dropped: AtomicU64,
    /// Page faults that ended or interrupted a descriptor.
    pub faults: AtomicU64,
    /// Instructions emulated by a trap.
    pub traps: AtomicU64,
    /// Instructions emulated at a rewritten site.
    pub calls: AtomicU64,
    /// Trace entries that found no room.
    pub lost: AtomicU64,
}

impl Statistics {
    /// Column of [`outcomes`](Statistics::outcomes) for descriptors that wrote no record.
    pub const NO_STATUS: usize = 0;
}

/// The whole lease.
#[derive(Debug)]
#[repr(C)]
pub struct Lease {
    /// Numbers.
    pub statistics: Statistics,
    /// Entries ever reserved by the guest.
    pub reserved: AtomicU64,
    /// Entries ever taken out by the host.
    pub taken: AtomicU64,
    /// The ring: `stamp` of a slot is the entry's number plus one once it is written.
    pub trace: [TraceSlot; TRACE_ENTRIES],
}

/// A place of the ring.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct TraceSlot {
    stamp: AtomicU64,
    /// The entry as 31 words.
    words: [AtomicU64; 31],
}

/// What an entry tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum TraceKind {
    /// 64 bytes reached the portal.
    Submitted = 1,
    /// A descriptor (or a member of a batch) ended.
    Ended = 2,
    /// A misuse was seen ([`TraceEntry::code`] says which).
    Misuse = 3,
    /// Something was injected ([`TraceEntry::code`] says what).
    Injected = 4,
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TraceEntry {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// Number of the submission within the open file, from 1; members carry their batch's.
    pub submission: u64,
    /// A [`TraceKind`].
    pub kind: u32,
    /// Process.
    pub process: u32,
    /// Thread.
    pub thread: u32,
    /// Submitted: how (0 MOVDIR64B, 1 ENQCMD, 2 write()). Misuse, injected: which.
    pub code: u32,
    /// Submitted: 0 taken, 1 Retry, 2 lost. Ended: 1 if a record was written.
    pub answer: u32,
    /// Position in the batch plus one; 0 for what is no member.
    pub member: u32,
    /// The descriptor.
    pub descriptor: [u64; 8],
    /// The record, if `answer` says so.
    pub record: [u64; 4],
    /// Submitted: address of the 64 bytes' destination. Misuse: address in question.
    pub address: u64,
    /// Misuse: the other address, the length, or the number of the other submission.
    pub other: u64,
    /// Nothing yet.
    pub spare: [u64; 10],
}

const _: () = assert!(size_of::<TraceEntry>() == 31 * 8 - 16);

impl Lease {
    /// Appends an entry; `false` if the ring is full.
    ///
    /// Any thread of the guest may call it, in a signal handler too. An entry reserved by a thread that is killed before
    /// the stamp is skipped by [`take`](Lease::take) once the file is released.
    pub fn append(&self, entry: &TraceEntry) -> bool {
        // Relaxed: the slot's stamp orders the entry; the count only gives out numbers.
        let number = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            // Acquire: pairs with the Release in `take`; the host has read what is overwritten.
            let taken = self.taken.load(Ordering::Acquire);
            (reserved.wrapping_sub(taken) < TRACE_ENTRIES as u64).then(|| reserved.wrapping_add(1))
        });
        let Ok(number) = number else { return false };
        let slot = self.slot(number);
        for (word, bytes) in slot.words.iter().zip(entry.as_bytes().chunks_exact(8)) {
            let value = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight bytes"));
            // Relaxed: the stamp below publishes it.
            word.store(value, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `take`.
        slot.stamp.store(number.wrapping_add(1), Ordering::Release);
        true
    }

    /// The next entry, for the host alone. `gone` says that the guest will write no more: what it reserved and never wrote is
    /// passed over.
    pub fn take(&self, gone: bool) -> Option<TraceEntry> {
        // Relaxed: only the host writes it.
        let mut number = self.taken.load(Ordering::Relaxed);
        loop {
            if number == self.reserved.load(Ordering::Relaxed) {
                return None;
            }
            let slot = self.slot(number);
            // Acquire: pairs with the Release in `append`.
            let written = slot.stamp.load(Ordering::Acquire) == number.wrapping_add(1);
            if !written && !gone {
                return None;
            }
            let mut bytes = [0; size_of::<TraceEntry>()];
            for (word, bytes) in slot.words.iter().zip(bytes.chunks_exact_mut(8)) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
            }
            number = number.wrapping_add(1);
            // Release: pairs with the Acquire in `append`; the slot may be used again.
            self.taken.store(number, Ordering::Release);
            if written {
                return TraceEntry::read_from_bytes(&bytes).ok();
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "reduced below the number of slots")]
    fn slot(&self, number: u64) -> &TraceSlot {
        &self.trace[(number % TRACE_ENTRIES as u64) as usize]
    }
}

/// Adds to a counter.
pub fn count(counter: &AtomicU64, by: u64) {
    // Relaxed: a number of its own.
    counter.fetch_add(by, Ordering::Relaxed);
}

