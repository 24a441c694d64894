//! Work queues: where descriptors wait. A bounded ring, many submitters, one consumer at a time (whoever has the group's
//! turn). Algorithm: Vyukov's bounded queue with a sequence number a slot, its tail word also carrying the queue's state,
//! so that no submission can slip in behind a disable.

use crate::sync::{AtomicU64, Line, Ordering, Word};
use telpher_abi::Descriptor;
use telpher_abi::registers::WqState;

/// Who submitted a descriptor, as the device knows it: PASID, privilege, and the kind of portal page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Submitter {
    /// Process address space identifier (20 bits); `None` for a queue without PASID, whose requests carry the function's
    /// own identity.
    pub pasid: Option<u32>,
    /// Supervisor privilege.
    pub privileged: bool,
    /// Submitted through an IMS portal: completion interrupts use that table.
    pub ims: bool,
}

impl Submitter {
    /// The PASID as registers and log entries show it.
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

/// Set in a slot's submitter word: the descriptor was abandoned while it waited.
const ABANDONED: u64 = 1 << 63;

/// One queue entry: 64 bytes of descriptor on a line of their own, and who brought them.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    words: [Word; 8],
    sequence: AtomicU64,
    submitter: Word,
}

/// What a queue knows of a waiting descriptor besides its 64 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) submitter: Submitter,
    /// Position in its queue, counted from the first descriptor ever accepted.
    pub(crate) position: u64,
    /// Abandoned by an abort: dispatch it to nobody.
    pub(crate) abandoned: bool,
}

/// What a queue said to a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Push {
    Taken,
    Full,
    NotEnabled,
    NotAdmitted,
}

/// On what terms a descriptor may enter: the ring's slots (a power of two of them), how many may wait, and for whom it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission<'a> {
    pub(crate) slots: &'a [Slot],
    pub(crate) limit: u64,
    pub(crate) submitter: Submitter,
}

/// The moving parts of a queue. The tail word is `position << 2 | state`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Ring {
    tail: Line<AtomicU64>,
    head: Line<AtomicU64>,
}

const STATE_BITS: u32 = 2;

impl Ring {
    /// Puts a descriptor in, if the queue is enabled and has room for whom `admit` lets in.
    ///
    /// `admit` reads the queue's configuration; it is asked after the queue was seen enabled, and what it said counts only
    /// if the queue has not been enabled anew since (see [`reopen`](Ring::reopen)).
    #[inline]
    pub(crate) fn push<'a>(&self, descriptor: &Descriptor, admit: impl Fn() -> Option<Admission<'a>>) -> Push {
        // Acquire: pairs with the state change that enabled the queue; its configuration is seen.
        let mut tail = self.tail.0.load(Ordering::Acquire);
        let (slot, submitter) = loop {
            if state_of(tail) != WqState::Enabled {
                return Push::NotEnabled;
            }
            let Some(Admission { slots, limit, submitter }) = admit() else { return Push::NotAdmitted };
            let position = tail >> STATE_BITS;
            // Acquire: pairs with the Release in `pop`; a slot counted free is no longer being read. Saturating: a tail read
            // too long ago may lie behind the head, which the compare-exchange will notice.
            if position.saturating_sub(self.head.0.load(Ordering::Acquire)) >= limit {
                return Push::Full;
            }
            // Relaxed: the reservation itself; the slot was freed before (Acquire above), and its content is published by
            // the sequence below.
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
        // Release: pairs with the Acquire in `peek`; whoever sees the sequence sees the descriptor.
        slot.sequence.store((tail >> STATE_BITS).wrapping_add(1), Ordering::Release);
        Push::Taken
    }

    /// Takes the oldest descriptor out, straight into its engine, if one has arrived completely. Caller has the group's
    /// turn.
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

    /// True if the oldest descriptor has arrived completely. It stays the oldest only if the caller has the group's turn.
    #[inline]
    pub(crate) fn is_ready(&self, slots: &[Slot]) -> bool {
        let position = self.head.0.load(Ordering::Relaxed);
        // Acquire: pairs with the Release in `push`.
        slot_of(slots, position).sequence.load(Ordering::Acquire) == position.wrapping_add(1)
    }

    /// Descriptors waiting; may be stale at once.
    #[inline]
    pub(crate) fn occupancy(&self) -> u64 {
        let head = self.head.0.load(Ordering::Relaxed);
        (self.tail.0.load(Ordering::Relaxed) >> STATE_BITS).saturating_sub(head)
    }

    /// Position the next accepted descriptor gets.
    pub(crate) fn tail_position(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire) >> STATE_BITS
    }

    /// Position of the oldest waiting descriptor.
    pub(crate) fn head_position(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }

    /// State of the queue.
    #[inline]
    pub(crate) fn state(&self) -> WqState {
        state_of(self.tail.0.load(Ordering::Acquire))
    }

    /// Changes the state: from here on every submission sees it.
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

    /// Enables the queue, which must be disabled and empty, at a position no submitter has seen before: one that read the
    /// tail, and the configuration, before the queue was last disabled finds its compare-exchange failing.
    pub(crate) fn reopen(&self) {
        let position = self.head.0.load(Ordering::Relaxed).wrapping_add(1);
        // Release both: pairs with the Acquire loads in `push`.
        self.head.0.store(position, Ordering::Release);
        self.tail.0.store(position << STATE_BITS | WqState::Enabled as u64, Ordering::Release);
    }

    /// Positions waiting before `end`; never more than there are slots, whatever the words say.
    fn waiting_before(&self, slots: &[Slot], end: u64) -> std::ops::Range<u64> {
        let head = self.head_position();
        head..end.min(head.saturating_add(slots.len() as u64))
    }

    /// Marks waiting descriptors before `end` that `chosen` names as abandoned. Caller has the group's turn.
    pub(crate) fn abandon(&self, slots: &[Slot], end: u64, chosen: impl Fn(Submitter) -> bool) {
        for position in self.waiting_before(slots, end) {
            if let Some(entry) = peek(slots, position)
                && chosen(entry.submitter)
            {
                slot_of(slots, position).submitter.or(ABANDONED);
            }
        }
    }

    /// Removes abandoned descriptors from the head. Caller has the group's turn.
    pub(crate) fn discard_abandoned(&self, slots: &[Slot]) {
        while peek(slots, self.head.0.load(Ordering::Relaxed)).is_some_and(|entry| entry.abandoned) {
            // Release: pairs with the Acquire in `push`.
            self.head.0.store(self.head.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
    }

    /// True if a descriptor before `end` waits (or is arriving) that `chosen` names. Caller has the group's turn.
    pub(crate) fn any_waiting(&self, slots: &[Slot], end: u64, chosen: impl Fn(Submitter) -> bool) -> bool {
        self.waiting_before(slots, end).any(|position| {
            // An arriving one counts: nobody knows yet whose it is.
            peek(slots, position).is_none_or(|entry| !entry.abandoned && chosen(entry.submitter))
        })
    }

    /// Readies the slots for a ring that continues at the present head; the queue must be disabled and empty.
    pub(crate) fn relocate(&self, slots: &[Slot]) {
        for slot in slots {
            // Relaxed: published by `reopen`. Zero never equals a wanted sequence,
            // since those start at 1.
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
