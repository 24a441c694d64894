//! Work queues, in which descriptors wait. A bounded ring with many submitters and one consumer at a time (the holder
//! of the group's lock). Algorithm: Vyukov's bounded queue with a sequence number per slot. The tail word also contains
//! the queue's state, so that no submission can follow a disable.

use crate::sync::{AtomicU64, CacheLine, Ordering, Word};
use telpher_abi::registers::WqState;
use telpher_abi::{Descriptor, Opcode};

/// The submitter of a descriptor as the device knows it: PASID, privilege, and the kind of portal page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Submitter {
    /// Process address space identifier (20 bits); `None` for a queue without PASID, whose requests carry the
    /// function's own identity.
    pub pasid: Option<u32>,
    /// Supervisor privilege.
    pub privileged: bool,
    /// Submitted through an IMS portal: its completion interrupts use that table.
    pub ims: bool,
}

impl Submitter {
    /// Returns the PASID as registers and log entries show it.
    #[must_use]
    pub fn pasid_or_zero(self) -> u32 {
        self.pasid.unwrap_or(0)
    }

    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.pasid_or_zero())
            | u64::from(self.privileged) << 32
            | u64::from(self.ims) << 33
            | u64::from(self.pasid.is_some()) << 34
    }

    fn from_word(word: u64) -> Self {
        Submitter {
            // Cannot lose bits: a PASID has 20.
            pasid: (word >> 34 & 1 == 1).then(|| u32::try_from(word & 0xf_ffff).unwrap_or_default()),
            privileged: word >> 32 & 1 == 1,
            ims: word >> 33 & 1 == 1,
        }
    }
}

/// Bit in a slot's submitter word: the descriptor was abandoned while it waited.
const ABANDONED: u64 = 1 << 63;

/// One queue entry: 64 bytes of descriptor on a cache line of their own, and its submitter.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    words: [Word; 8],
    sequence: AtomicU64,
    submitter: Word,
}

/// The attributes of a waiting descriptor besides its 64 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) submitter: Submitter,
    /// Position in its queue, counted from the first descriptor ever accepted.
    pub(crate) position: u64,
    /// Abandoned by an abort: do not dispatch it.
    pub(crate) abandoned: bool,
}

/// A queue's answer to a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Push {
    Taken,
    Full,
    NotEnabled,
    NotAdmitted,
}

/// The conditions for a descriptor to enter: the ring's slots (a power of two of them), the waiting limit, and its
/// submitter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission<'a> {
    pub(crate) slots: &'a [Slot],
    pub(crate) limit: u64,
    pub(crate) submitter: Submitter,
}

/// The changing parts of a queue. The tail word is `position << 2 | state`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Ring {
    tail: CacheLine<AtomicU64>,
    head: CacheLine<AtomicU64>,
}

const STATE_BITS: u32 = 2;

impl Ring {
    /// Enqueues a descriptor, if the queue is enabled, has a free entry, and `admit` allows it.
    ///
    /// `admit` reads the queue's configuration, after the queue was seen enabled. Its answer counts only if the queue
    /// has not been enabled again since (see [`reopen`](Ring::reopen)).
    #[inline]
    pub(crate) fn push<'a>(&self, descriptor: &Descriptor, admit: impl Fn() -> Option<Admission<'a>>) -> Push {
        // Acquire: pairs with the state change that enabled the queue; its configuration is visible.
        let mut tail = self.tail.0.load(Ordering::Acquire);
        let (slot, submitter) = loop {
            if state_of(tail) != WqState::Enabled {
                return Push::NotEnabled;
            }
            let Some(Admission { slots, limit, submitter }) = admit() else { return Push::NotAdmitted };
            let position = tail >> STATE_BITS;
            // Acquire: pairs with the Release in `pop`; a slot counted as free is no longer being read. Saturating: an
            // old tail may be behind the head, which the compare-exchange will detect.
            if position.saturating_sub(self.head.0.load(Ordering::Acquire)) >= limit {
                return Push::Full;
            }
            // Relaxed: only reserves the slot. The slot was freed before (Acquire above), and the sequence below
            // publishes its content.
            // Acquire on failure: as for the load above.
            let next = tail.wrapping_add(1 << STATE_BITS);
            match self.tail.0.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => break (slot_of(slots, position), submitter),
                Err(now) => tail = now,
            }
        };
        for (word, value) in slot.words.iter().zip(&descriptor.0) {
            word.set(*value);
        }
        slot.submitter.set(submitter.to_word());
        // Release: pairs with the Acquire in `peek`; a thread that sees the sequence sees the descriptor.
        slot.sequence.store((tail >> STATE_BITS).wrapping_add(1), Ordering::Release);
        Push::Taken
    }

    /// Moves the oldest descriptor into its engine, if it has arrived completely. The caller holds the group's lock.
    #[inline]
    pub(crate) fn pop(&self, slots: &[Slot], into: &mut Descriptor) -> Option<Entry> {
        let position = self.head.0.load(Ordering::Relaxed);
        let entry = peek(slots, position)?;
        for (to, from) in into.0.iter_mut().zip(&slot_of(slots, position).words) {
            *to = from.get();
        }
        // Release: pairs with the Acquire in `push`; the slot has been read.
        self.head.0.store(position.wrapping_add(1), Ordering::Release);
        Some(entry)
    }

    /// True if the oldest descriptor has arrived completely. It stays the oldest only while the caller holds the
    /// group's lock.
    #[inline]
    pub(crate) fn is_ready(&self, slots: &[Slot]) -> bool {
        let position = self.head.0.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `push`.
        slot_of(slots, position).sequence.load(Ordering::Acquire) == position.wrapping_add(1)
    }

    /// True if the oldest descriptor, which [is ready](Ring::is_ready), is a Batch.
    #[cold]
    pub(crate) fn begins_with_batch(&self, slots: &[Slot]) -> bool {
        let position = self.head.0.load(Ordering::Relaxed);
        // The operation is the highest byte of the first word.
        slot_of(slots, position).words[0].get() >> 56 == u64::from(Opcode::Batch.code())
    }

    /// Returns the number of waiting descriptors; may be stale at once.
    #[inline]
    pub(crate) fn occupancy(&self) -> u64 {
        let head = self.head.0.load(Ordering::Relaxed);
        (self.tail.0.load(Ordering::Relaxed) >> STATE_BITS).saturating_sub(head)
    }

    /// Returns the position of the next accepted descriptor.
    pub(crate) fn tail_position(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire) >> STATE_BITS
    }

    /// Returns the position of the oldest waiting descriptor.
    pub(crate) fn head_position(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }

    /// Returns the state of the queue.
    #[inline]
    pub(crate) fn state(&self) -> WqState {
        state_of(self.tail.0.load(Ordering::Acquire))
    }

    /// Changes the state; every later submission sees it.
    pub(crate) fn set_state(&self, state: WqState) {
        // AcqRel: after this no `push` that began under the old state can still reserve a slot.
        let mut tail = self.tail.0.load(Ordering::Relaxed);
        while let Err(now) = self.tail.0.compare_exchange_weak(
            tail,
            tail >> STATE_BITS << STATE_BITS | state as u64,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            tail = now;
        }
    }

    /// Enables the queue, which must be disabled and empty, at a position that no submitter has seen before. If a
    /// submitter read the tail and the configuration before the queue was last disabled, its compare-exchange fails.
    pub(crate) fn reopen(&self) {
        let position = self.head.0.load(Ordering::Relaxed).wrapping_add(1);
        // Release both: pairs with the Acquire loads in `push`.
        self.head.0.store(position, Ordering::Release);
        self.tail.0.store(position << STATE_BITS | WqState::Enabled as u64, Ordering::Release);
    }

    /// Returns the waiting positions before `end`; never more than there are slots, even if shared words are corrupted.
    fn waiting_before(&self, slots: &[Slot], end: u64) -> std::ops::Range<u64> {
        let head = self.head_position();
        head..end.min(head.saturating_add(slots.len() as u64))
    }

    /// Marks waiting descriptors before `end` for which `chosen` is true as abandoned. The caller holds the group's
    /// lock.
    pub(crate) fn abandon(&self, slots: &[Slot], end: u64, chosen: impl Fn(Submitter) -> bool) {
        for position in self.waiting_before(slots, end) {
            if let Some(entry) = peek(slots, position)
                && chosen(entry.submitter)
            {
                slot_of(slots, position).submitter.or(ABANDONED);
            }
        }
    }

    /// Removes abandoned descriptors from the head. The caller holds the group's lock.
    pub(crate) fn discard_abandoned(&self, slots: &[Slot]) {
        while peek(slots, self.head.0.load(Ordering::Relaxed)).is_some_and(|entry| entry.abandoned) {
            // Release: pairs with the Acquire in `push`.
            self.head.0.store(self.head.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
    }

    /// True if a descriptor before `end` for which `chosen` is true waits (or is being submitted). The caller holds the
    /// group's lock.
    pub(crate) fn any_waiting(&self, slots: &[Slot], end: u64, chosen: impl Fn(Submitter) -> bool) -> bool {
        self.waiting_before(slots, end).any(|position| {
            // One that is being submitted counts: its submitter is not known yet.
            peek(slots, position).is_none_or(|entry| !entry.abandoned && chosen(entry.submitter))
        })
    }

    /// Prepares the slots for a ring that continues at the present head; the queue must be disabled and empty.
    pub(crate) fn relocate(&self, slots: &[Slot]) {
        for slot in slots {
            // Relaxed: published by `reopen`. Zero never equals an expected sequence, because those start at 1.
            slot.sequence.store(0, Ordering::Relaxed);
        }
    }
}

fn state_of(tail: u64) -> WqState {
    WqState::from_code((tail & 3) as u8)
}

#[inline]
fn slot_of(slots: &[Slot], position: u64) -> &Slot {
    // Cannot lose bits that matter: the mask is below the slice's length, a power of two.
    #[allow(clippy::cast_possible_truncation, reason = "masked to the slice's length")]
    &slots[position as usize & (slots.len() - 1)]
}

#[inline]
fn peek(slots: &[Slot], position: u64) -> Option<Entry> {
    let slot = slot_of(slots, position);
    // Acquire: pairs with the Release in `push`.
    if slot.sequence.load(Ordering::Acquire) != position.wrapping_add(1) {
        return None;
    }
    let submitter = slot.submitter.get();
    Some(Entry { submitter: Submitter::from_word(submitter), position, abandoned: submitter & ABANDONED != 0 })
}
