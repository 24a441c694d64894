//! The trace ring of a lease: any thread of the guest appends, the host alone takes out.
//!
//! A bounded queue whose slots carry a stamp, after Dmitry Vyukov's bounded MPMC queue, with one consumer that may find the
//! producers gone.

use crate::sync::{AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Entries of the ring, a power of two. Source: chosen; 4096 entries of 256 bytes are 1 MiB an open file.
#[cfg(not(loom))]
pub const TRACE_ENTRIES: usize = 4096;
/// Loom tries every interleaving: a few entries show as much.
#[cfg(loom)]
pub const TRACE_ENTRIES: usize = 2;

/// Words of an entry.
const WORDS: usize = size_of::<TraceEntry>() / 8;

/// The ring.
#[derive(Debug)]
#[repr(C)]
pub struct TraceRing {
    /// Entries ever reserved by the guest.
    reserved: AtomicU64,
    /// Entries ever taken out by the host.
    taken: AtomicU64,
    slots: [TraceSlot; TRACE_ENTRIES],
}

/// A place of the ring.
#[derive(Debug)]
#[repr(C, align(64))]
struct TraceSlot {
    /// Number of the entry that is written here, plus one.
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
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
    /// Submitted: [`How`](crate::event::How). Misuse, injected: which ([`Misuse`](crate::event::Misuse),
    /// [`Injected`](crate::event::Injected)).
    pub code: u32,
    /// Submitted: an [`Answer`](crate::event::Answer). Ended: who was [`Told`](crate::event::Told).
    pub answer: u32,
    /// Position in the batch plus one; 0 for what is no member.
    pub member: u32,
    /// The descriptor.
    pub descriptor: [u64; 8],
    /// Ended: the record, written or not. Misuse: see [`Finding`](crate::event::Finding), as for the rest.
    pub record: [u64; 4],
    /// Submitted: address of the 64 bytes' destination. Misuse, injected: address in question.
    pub address: u64,
    /// Misuse: bytes in question. Injected: nanoseconds of a delay, the status.
    pub other: u64,
    /// Misuse: the other descriptor.
    pub spare: [u64; 10],
}

impl TraceEntry {
    /// All zero: the rest of entries that say little.
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
    /// Any thread of the guest may call it, in a signal handler too. An entry reserved by a thread that is killed before
    /// the stamp is passed over by [`take`](TraceRing::take) once the file is released.
    pub fn append(&self, entry: &TraceEntry) -> bool {
        // Relaxed: the slot's stamp orders the entry; the count only gives out numbers.
        let number = self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |reserved| {
            // Acquire: pairs with the Release in `take`; the host has read what is overwritten.
            let taken = self.taken.load(Ordering::Acquire);
            // Negative if the count is stale by more than the host has taken since: then the exchange fails and repeats.
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

    /// The next entry, for the host alone. `gone` says that the guest will write no more: what it reserved and never wrote is
    /// passed over, and counted in `lost`.
    pub fn take(&self, gone: bool, lost: &AtomicU64) -> Option<TraceEntry> {
        // Relaxed: only the host writes it.
        let mut number = self.taken.load(Ordering::Relaxed);
        loop {
            let reserved = self.reserved.load(Ordering::Relaxed);
            if reserved == number {
                return None;
            }
            // No guest reserves more than there are: a count that somebody has trampled on. Nothing behind it is believed; how many
            // entries that were, nobody knows, but one at least.
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
            // Relaxed: a number of its own.
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

    /// On a stack on which a ring finds room.
    fn with_ring(test: fn(TraceRing)) {
        let thread = std::thread::Builder::new().stack_size(16 << 20).spawn(move || test(TraceRing::default()));
        thread.unwrap().join().unwrap();
    }

    #[test]
    fn a_trampled_count_ends_the_trace_at_once() {
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
    fn what_a_killed_thread_reserved_is_passed_over_once_it_is_gone() {
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
