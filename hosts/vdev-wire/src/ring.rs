//! The trace ring of an open file: any thread of the guest appends; only the host removes entries.
//!
//! A bounded queue whose slots carry a stamp, after Dmitry Vyukov's bounded MPMC queue, with one consumer that must
//! cope with producers that have been killed.

use crate::sync::{AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of the ring, a power of two. Source: chosen; 4096 entries of 256 bytes are 1 MiB per open file.
#[cfg(not(loom))]
pub const TRACE_ENTRIES: usize = 4096;
/// Loom explores every interleaving, so a few entries are enough.
#[cfg(loom)]
pub const TRACE_ENTRIES: usize = 2;

/// Words of an entry.
const WORDS: usize = size_of::<TraceEntry>() / 8;

/// The ring.
#[derive(Debug)]
#[repr(C)]
pub struct TraceRing {
    /// Number of entries that the guest has reserved so far.
    reserved: AtomicU64,
    /// Number of entries that the host has removed so far.
    taken: AtomicU64,
    slots: [TraceSlot; TRACE_ENTRIES],
}

/// A slot of the ring.
#[derive(Debug)]
#[repr(C, align(64))]
struct TraceSlot {
    /// Number of the entry in this slot, plus one.
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The kinds of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum TraceKind {
    /// A descriptor was written to the portal.
    Submitted = 1,
    /// A descriptor (or a member of a batch) ended.
    Ended = 2,
    /// A misuse was seen ([`TraceEntry::code`] says which).
    Misuse = 3,
    /// A fault was injected ([`TraceEntry::code`] says which).
    Injected = 4,
}

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TraceEntry {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// Number of the submission within the open file, from 1; batch members have their batch's number.
    pub submission: u64,
    /// A [`TraceKind`].
    pub kind: u32,
    /// Process.
    pub process: u32,
    /// Thread.
    pub thread: u32,
    /// Submitted: [`SubmitInstruction`](crate::event::SubmitInstruction). Misuse: [`Misuse`](crate::event::Misuse).
    /// Injected: [`Injected`](crate::event::Injected).
    pub code: u32,
    /// Submitted: an [`Offer`](telpher_abi::Offer). Ended: a [`ReportedTo`](crate::event::ReportedTo).
    pub answer: u32,
    /// Position in the batch plus one; 0 if it is not a batch member.
    pub member: u32,
    /// The descriptor.
    pub descriptor: [u64; 8],
    /// Ended: the record, written or not. Misuse: see [`Finding`](crate::event::Finding), also for the fields below.
    pub record: [u64; 4],
    /// Submitted: the portal address. Misuse, injected: the address involved.
    pub address: u64,
    /// Misuse: number of bytes involved. Injected: nanoseconds of a delay, or the status.
    pub other: u64,
    /// Misuse: the other descriptor.
    pub spare: [u64; 10],
}

impl TraceEntry {
    /// All zero: the base of entries that use few fields.
    pub const EMPTY: TraceEntry = TraceEntry {
        time_ns: 0,
        submission: 0,
        kind: 0,
        process: 0,
        thread: 0,
        code: 0,
        answer: 0,
        member: 0,
        descriptor: [0; 8],
        record: [0; 4],
        address: 0,
        other: 0,
        spare: [0; 10],
    };
}

const _: () = assert!(size_of::<TraceEntry>().is_multiple_of(8));
#[cfg(not(loom))]
const _: () = assert!(size_of::<TraceSlot>() == 256);

impl Default for TraceRing {
    fn default() -> Self {
        let slot = || TraceSlot { stamp: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) };
        TraceRing { reserved: AtomicU64::new(0), taken: AtomicU64::new(0), slots: std::array::from_fn(|_| slot()) }
    }
}

impl TraceRing {
    /// Appends an entry; `false` if the ring is full.
    ///
    /// Any thread of the guest may call it, also in a signal handler. If a thread is killed between reserving an entry
    /// and writing its stamp, [`take`](TraceRing::take) skips the entry once the file is released.
    pub fn append(&self, entry: &TraceEntry) -> bool {
        // Relaxed: the slot's stamp orders the entry; this counter only assigns numbers.
        let number = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            // Acquire: pairs with the Release in `take`; the host has read the entry that is overwritten.
            let taken = self.taken.load(Ordering::Acquire);
            // Negative if this count is stale by more than the host has removed since; then the exchange fails and is
            // repeated.
            let used = reserved.wrapping_sub(taken).cast_signed();
            (used < TRACE_ENTRIES as i64).then(|| reserved.wrapping_add(1))
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

    /// Removes the next entry; only the host calls this. `gone` means that the guest will not write any more: reserved
    /// entries that were never written are skipped and counted in `lost`.
    pub fn take(&self, gone: bool, lost: &AtomicU64) -> Option<TraceEntry> {
        // Relaxed: only the host writes it.
        let mut number = self.taken.load(Ordering::Relaxed);
        loop {
            let reserved = self.reserved.load(Ordering::Relaxed);
            if reserved == number {
                return None;
            }
            // A guest never reserves more entries than there are, so this count was overwritten. Entries before it are
            // discarded; their number is unknown, but at least one is lost.
            if reserved.wrapping_sub(number) > TRACE_ENTRIES as u64 {
                lost.fetch_add(1, Ordering::Relaxed);
                self.taken.store(reserved, Ordering::Release);
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
            // Relaxed: the counter publishes nothing.
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "reduced below the number of slots")]
    fn slot(&self, number: u64) -> &TraceSlot {
        &self.slots[(number % TRACE_ENTRIES as u64) as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Runs a test on a thread whose stack is large enough for a ring.
    fn with_ring(test: fn(TraceRing)) {
        let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(move || test(TraceRing::default()));
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn an_overwritten_count_discards_the_trace_at_once() {
        with_ring(|ring| {
            assert!(ring.append(&TraceEntry::EMPTY));
            ring.reserved.store(u64::MAX, Ordering::Relaxed);
            let lost = AtomicU64::new(0);
            assert_eq!(ring.take(true, &lost), None);
            assert_eq!(ring.take(true, &lost), None);
            assert_eq!(lost.into_inner(), 1);
        });
    }

    #[test]
    fn an_entry_reserved_by_a_killed_thread_is_skipped_at_the_end() {
        with_ring(|ring| {
            ring.reserved.store(1, Ordering::Relaxed);
            assert!(ring.append(&TraceEntry::EMPTY));
            let lost = AtomicU64::new(0);
            assert_eq!(ring.take(false, &lost), None);
            assert_eq!(ring.take(true, &lost), Some(TraceEntry::EMPTY));
            assert_eq!(ring.take(true, &lost), None);
            assert_eq!(lost.into_inner(), 1);
        });
    }
}
