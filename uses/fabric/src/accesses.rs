//! The sender's half of accesses to the receiver's memory, for one connection.
//!
//! ```text
//! short write:   one Write with the bytes ─► Accessed: complete
//! short read:    one ReadPiece with a free slot ─► Accessed: the bytes go from the slot to the buffer; complete
//! atomic:        one Atomic with the operands, and a free slot for the elements before ─► Accessed: complete
//! longer:        pieces of a slot each, in any order; complete when all are answered
//!   with a word:   then a Write of no bytes with the word ─► Accessed: complete
//!   counted:       if the receiver counts the access, then a Write of no bytes or a ReadEnd ─► Accessed: complete
//! ```
//!
//! Atomic operations are sent in the order of their calls. Short accesses overtake longer ones, whose pieces use at
//! most half of the slots. Each access has one failure: the first. An access that has failed sends no more pieces.
//!
//! Nothing that the peer writes is used as an index before it was checked against the private states below.

use crate::atomics::Atomic;
use crate::buffer::{Buffer, Segments, TakenBytes};
use crate::completion::{Completion, Failure, Operation};
use crate::connection_memory::LOST;
use crate::copier::{Copier, CopyFor, Started};
use crate::entry::{AccessAnswer, AccessId, AccessPiece, AtomicEntry, Message};
use crate::error::Broken;
use crate::output::{AccessSlot, AccessStep, Output, Pushed, Slot};
use crate::regions::RemoteRange;
use crate::reports::Reports;
use crate::request::{AccessKind, Completes};
use std::collections::VecDeque;
use telpher_mem::Fault;

/// An access of a caller.
#[derive(Debug)]
pub(crate) struct StartedAccess {
    pub(crate) range: RemoteRange,
    pub(crate) kind: AccessKind,
    pub(crate) context: u64,
    pub(crate) completes: Completes,
}

/// How far an access is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// It is one entry.
    Whole,
    /// It is pieces; the next one begins at this byte.
    Pieces { next: u64 },
    /// Its bytes are written or read; an entry that says so, and that may have a word, is the last.
    End,
}

/// An access that has not ended.
#[derive(Debug)]
struct Open {
    access: StartedAccess,
    /// The bytes of an injected write that waits; the segments name them.
    taken: Option<TakenBytes>,
    step: Step,
    /// True while an entry without a slot is not answered.
    is_asked: bool,
    /// True if the receiver wants to be told the end of its pieces.
    wants_end: bool,
    /// Slots that it has.
    slots: usize,
    failure: Option<Failure>,
}

/// The accesses of a connection.
#[derive(Debug)]
pub(crate) struct Accesses {
    /// The sender's number in the endpoint, for the ends of copies.
    index: u32,
    open: Vec<Option<Open>>,
    free_ids: Vec<u32>,
    open_count: usize,
    /// Accesses whose next step is one entry.
    short: VecDeque<u32>,
    /// Accesses with pieces that are not sent.
    long: VecDeque<u32>,
    /// Slots that accesses have.
    slots: usize,
    most: usize,
}

impl Accesses {
    pub(crate) fn new(index: u32, most: usize) -> Accesses {
        Accesses {
            index,
            open: Vec::new(),
            free_ids: Vec::new(),
            open_count: 0,
            short: VecDeque::new(),
            long: VecDeque::new(),
            slots: 0,
            most,
        }
    }

    /// True if an access has not ended.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.open_count > 0
    }

    /// True if no more accesses may be under way.
    pub(crate) fn is_full(&self) -> bool {
        self.open_count >= self.most
    }

    /// Returns how many injected writes are not in the ring as a whole.
    pub(crate) fn unsent_injections(&self) -> usize {
        let is_sent = |open: &&Open| (open.is_asked || open.slots > 0) && open.step == Step::Whole;
        self.open.iter().flatten().filter(|open| open.taken.is_some() && !is_sent(open)).count()
    }

    /// Starts an access. With `inject`, the bytes to write are not used after the call.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it. So for all functions below.
    pub(crate) fn start(
        &mut self,
        access: StartedAccess,
        inject: bool,
        output: &mut Output,
        copier: &mut Copier,
        reports: &mut Reports,
    ) -> Result<(), Broken> {
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.open.push(None);
            u32::try_from(self.open.len() - 1).expect("an access has more than a byte")
        });
        let len = access.range.len;
        let open =
            Open { access, taken: None, step: Step::Whole, is_asked: false, wants_end: false, slots: 0, failure: None };
        self.open[id as usize] = Some(open);
        self.open_count += 1;
        self.short.push_back(id);
        self.join_operands(id, copier, reports);
        let is_whole = output.eager_bytes().is_some_and(|eager_bytes| len <= eager_bytes);
        if inject && !is_whole {
            self.take_bytes(id, copier, reports);
        }
        let started = self.progress(output, copier, reports);
        if inject {
            self.take_bytes(id, copier, reports);
        }
        started.map(drop)
    }

    /// Takes the operands and the words to compare of an atomic operation, which travel together.
    fn join_operands(&mut self, id: u32, copier: &Copier, reports: &mut Reports) {
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return };
        let AccessKind::Atomic { operands, compares, .. } = &mut open.access.kind else { return };
        if compares.is_empty() {
            return;
        }
        match TakenBytes::of_all(&[*operands, *compares], &copier.local()) {
            Ok((taken, segments)) => {
                *operands = segments;
                open.taken = Some(taken);
            }
            Err(address) => {
                open.failure = Some(Failure::BadBuffer { address });
                self.end_if_done(id, reports);
            }
        }
    }

    /// Takes the bytes of a write that has not sent them.
    fn take_bytes(&mut self, id: u32, copier: &Copier, reports: &mut Reports) {
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return };
        let (AccessKind::Write { from, .. } | AccessKind::Atomic { operands: from, .. }) = &mut open.access.kind else {
            return;
        };
        // The entry of an atomic operation may have a slot.
        if open.is_asked || open.slots > 0 || open.taken.is_some() {
            return;
        }
        match TakenBytes::of(from, &copier.local()) {
            Ok((taken, segments)) => {
                *from = segments;
                open.taken = Some(taken);
            }
            Err(address) => {
                open.failure = Some(Failure::BadBuffer { address });
                self.end_if_done(id, reports);
            }
        }
    }

    /// Pushes entries as far as there is room. True if something moved.
    pub(crate) fn progress(
        &mut self,
        output: &mut Output,
        copier: &mut Copier,
        reports: &mut Reports,
    ) -> Result<bool, Broken> {
        let mut moved = false;
        while output.is_clear()
            && let Some(&id) = self.short.front()
            && self.push_short(id, output, reports)?
        {
            // A failure has removed it already.
            if self.short.front() == Some(&id) {
                self.short.pop_front();
            }
            moved = true;
        }
        Ok(moved | self.push_pieces(output, copier, reports)?)
    }

    /// Pushes the entry of an access that is one, or lets it be divided. False if there is no room.
    fn push_short(&mut self, id: u32, output: &mut Output, reports: &mut Reports) -> Result<bool, Broken> {
        let Some(eager_bytes) = output.eager_bytes() else { return Ok(false) };
        let slot_bytes = output.slot_bytes();
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return Ok(true) };
        let StartedAccess { range, kind, .. } = open.access;
        let nothing = RemoteRange { len: 0, ..range };
        let (message, payload) = match kind {
            AccessKind::Write { data, .. } if open.step == Step::End => {
                (Message::Write { id: AccessId(id), range: nothing, data }, Segments::default())
            }
            AccessKind::Write { from, data } if range.len <= eager_bytes => {
                (Message::Write { id: AccessId(id), range, data }, from)
            }
            AccessKind::Read { .. } if range.len == 0 || open.step == Step::End => {
                (Message::ReadEnd { id: AccessId(id) }, Segments::default())
            }
            AccessKind::Read { .. } if range.len <= slot_bytes => return self.push_read(id, 0, range.len, output),
            AccessKind::Atomic { atomic, operands, results, .. } => {
                return self.push_atomic(id, atomic, &operands, results.is_some(), output, reports);
            }
            AccessKind::Write { .. } | AccessKind::Read { .. } => {
                open.step = Step::Pieces { next: 0 };
                self.long.push_back(id);
                return Ok(true);
            }
        };
        match output.push(&message, &payload)? {
            Pushed::Done => open.is_asked = true,
            Pushed::Full => return Ok(false),
            Pushed::BadBuffer(address) => {
                open.failure = Some(Failure::BadBuffer { address });
                self.end_if_done(id, reports);
            }
        }
        Ok(true)
    }

    /// Asks for bytes. False if there is no slot or no room.
    fn push_read(&mut self, id: u32, offset: u64, len: u64, output: &mut Output) -> Result<bool, Broken> {
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return Ok(true) };
        let len = u32::try_from(len).expect("at most a slot");
        let state = AccessSlot { id, len, offset, step: AccessStep::Asked };
        let Some((slot, _)) = output.take_slot(Slot::Access(state)) else { return Ok(false) };
        let piece = AccessPiece { id: AccessId(id), range: open.access.range, slot, len, offset };
        if !matches!(output.push(&Message::ReadPiece(piece), &Segments::default())?, Pushed::Done) {
            output.free_slot(slot);
            return Ok(false);
        }
        open.slots += 1;
        self.slots += 1;
        Ok(true)
    }

    /// Pushes an atomic operation. False if there is no slot for its results, or no room.
    fn push_atomic(
        &mut self,
        id: u32,
        atomic: Atomic,
        operands: &Segments,
        fetches: bool,
        output: &mut Output,
        reports: &mut Reports,
    ) -> Result<bool, Broken> {
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return Ok(true) };
        let range = open.access.range;
        let slot = if fetches {
            let len = u32::try_from(range.len).expect("at most a slot");
            let state = AccessSlot { id, len, offset: 0, step: AccessStep::Asked };
            let Some((slot, _)) = output.take_slot(Slot::Access(state)) else { return Ok(false) };
            Some(slot)
        } else {
            None
        };
        let entry = AtomicEntry { id: AccessId(id), range, atomic, slot };
        let pushed = output.push(&Message::Atomic(entry), operands)?;
        if let Some(slot) = slot.filter(|_| !matches!(pushed, Pushed::Done)) {
            output.free_slot(slot);
        }
        match pushed {
            Pushed::Full => return Ok(false),
            Pushed::Done if fetches => {
                open.slots += 1;
                self.slots += 1;
            }
            Pushed::Done => open.is_asked = true,
            Pushed::BadBuffer(address) => {
                open.failure = Some(Failure::BadBuffer { address });
                self.end_if_done(id, reports);
            }
        }
        Ok(true)
    }

    /// Sends pieces of the longer accesses.
    fn push_pieces(&mut self, output: &mut Output, copier: &mut Copier, reports: &mut Reports) -> Result<bool, Broken> {
        let mut moved = false;
        while output.is_clear()
            && self.slots < output.slots().len() / 2
            && let Some(&id) = self.long.front()
        {
            let Some(Some(Open { access, step: Step::Pieces { next }, failure: None, .. })) =
                self.open.get_mut(id as usize)
            else {
                self.long.pop_front();
                continue;
            };
            let offset = *next;
            let len = (access.range.len - offset).min(output.slot_bytes());
            *next = offset + len;
            let is_last = *next == access.range.len;
            let pushed = match access.kind {
                AccessKind::Write { from, .. } => {
                    let piece = Filled { id, offset, len };
                    self.fill_slot(&piece, &from, output, copier, reports)?
                }
                AccessKind::Read { .. } | AccessKind::Atomic { .. } => self.push_read(id, offset, len, output)?,
            };
            match self.open.get_mut(id as usize) {
                Some(Some(Open { step: Step::Pieces { next }, .. })) if !pushed => {
                    *next = offset;
                    break;
                }
                _ if is_last && self.long.front() == Some(&id) => drop(self.long.pop_front()),
                _ => {}
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Copies bytes to write into a slot. False if there is none.
    fn fill_slot(
        &mut self,
        piece: &Filled,
        from: &Segments,
        output: &mut Output,
        copier: &mut Copier,
        reports: &mut Reports,
    ) -> Result<bool, Broken> {
        let Filled { id, offset, len } = *piece;
        let len_in_slot = u32::try_from(len).expect("at most a slot");
        let state = AccessSlot { id, len: len_in_slot, offset, step: AccessStep::Filling };
        let Some((slot, to)) = output.take_slot(Slot::Access(state)) else { return Ok(false) };
        if let Some(Some(open)) = self.open.get_mut(id as usize) {
            open.slots += 1;
        }
        self.slots += 1;
        output.copying += 1;
        let purpose = CopyFor::Sender { index: self.index, slot };
        let fill = output.stores.fill(len);
        if let Started::Ended(result) = copier.start_in(to, from, offset, len, fill.hint, purpose) {
            output.stores.filled(fill, len);
            reports.filled(fill.hint);
            self.slot_copied(slot, state, result, output, reports)?;
        }
        Ok(true)
    }

    /// The copy to or from a slot has ended.
    pub(crate) fn slot_copied(
        &mut self,
        slot: u16,
        state: AccessSlot,
        result: Result<(), Fault>,
        output: &mut Output,
        reports: &mut Reports,
    ) -> Result<(), Broken> {
        output.copying -= 1;
        let is_filled = state.step == AccessStep::Filling;
        // The other side of the copy is the connection's memory.
        let is_lost = result.is_err_and(|fault| fault.write == is_filled) || output.check_memory().is_err();
        let Some(Some(open)) = self.open.get_mut(state.id as usize) else { return Ok(()) };
        match result {
            _ if is_lost => open.failure = open.failure.or(Some(Failure::PeerBroken)),
            Err(fault) => open.failure = open.failure.or(Some(Failure::BadBuffer { address: fault.address })),
            Ok(()) => {}
        }
        if is_filled && open.failure.is_none() && !output.has_ended {
            output.set_slot(slot, Slot::Access(AccessSlot { step: AccessStep::Asked, ..state }));
            let AccessSlot { id, len, offset, .. } = state;
            let piece = AccessPiece { id: AccessId(id), range: open.access.range, slot, len, offset };
            return output.push_or_queue(Message::WritePiece(piece)).map(drop);
        }
        self.free_slot(slot, state.id, output);
        self.end_if_done(state.id, reports);
        if is_lost && !output.has_ended { Err(LOST) } else { Ok(()) }
    }

    fn free_slot(&mut self, slot: u16, id: u32, output: &mut Output) {
        output.free_slot(slot);
        self.slots -= 1;
        if let Some(Some(open)) = self.open.get_mut(id as usize) {
            open.slots -= 1;
        }
    }

    /// The peer has answered an entry.
    pub(crate) fn answered(
        &mut self,
        answer: &AccessAnswer,
        output: &mut Output,
        copier: &mut Copier,
        reports: &mut Reports,
    ) -> Result<(), Broken> {
        let AccessAnswer { id: AccessId(id), slot, wants_end, result } = *answer;
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return Err(NOT_ASKED) };
        open.wants_end |= wants_end;
        let Some(slot) = slot else {
            if !std::mem::take(&mut open.is_asked) {
                return Err(NOT_ASKED);
            }
            open.failure = open.failure.or(result.err().map(Failure::Access));
            self.end_if_done(id, reports);
            return Ok(());
        };
        let state = match output.slot(slot) {
            Some(Slot::Access(state)) if state.id == id && state.step == AccessStep::Asked => state,
            _ => return Err(NOT_ASKED),
        };
        open.failure = open.failure.or(result.err().map(Failure::Access));
        let (AccessKind::Read { into } | AccessKind::Atomic { results: Some(into), .. }) = open.access.kind else {
            self.free_slot(slot, id, output);
            self.end_if_done(id, reports);
            return Ok(());
        };
        if open.failure.is_some() {
            self.free_slot(slot, id, output);
            self.end_if_done(id, reports);
            return Ok(());
        }
        let state = AccessSlot { step: AccessStep::Emptying, ..state };
        output.set_slot(slot, Slot::Access(state));
        output.copying += 1;
        let purpose = CopyFor::Sender { index: self.index, slot };
        let from = output.slot_address(slot);
        match copier.start_out(from, &into, state.offset, state.len.into(), purpose) {
            Started::Ended(result) => self.slot_copied(slot, state, result, output, reports),
            Started::Pending => Ok(()),
        }
    }

    /// Ends an access that has no slot and awaits no answer, once all its steps are done or one has failed.
    fn end_if_done(&mut self, id: u32, reports: &mut Reports) {
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return };
        if open.is_asked || open.slots > 0 {
            return;
        }
        let len = open.access.range.len;
        match (open.failure, open.step, &open.access.kind) {
            (None, Step::Pieces { next }, _) if next < len => return,
            (None, Step::Pieces { .. }, kind)
                if open.wants_end || matches!(kind, AccessKind::Write { data: Some(_), .. }) =>
            {
                open.step = Step::End;
                self.short.push_back(id);
                return;
            }
            (Some(_), ..) => {
                self.short.retain(|&short| short != id);
                self.long.retain(|&long| long != id);
            }
            _ => {}
        }
        let Some(open) = self.open[id as usize].take() else { return };
        self.open_count -= 1;
        self.free_ids.push(id);
        let StartedAccess { kind, context, completes, .. } = open.access;
        let (operation, segments) = match kind {
            AccessKind::Write { from, .. } => (Operation::Write, from),
            AccessKind::Read { into } => (Operation::Read, into),
            AccessKind::Atomic { operands, results: None, .. } => (Operation::Atomic, operands),
            AccessKind::Atomic { results: Some(results), .. } => (Operation::FetchAtomic, results),
        };
        let completion = Completion {
            context,
            operation,
            is_tagged: false,
            len,
            address: segments.as_slice().first().map_or(0, Buffer::address),
            tag: 0,
            data: None,
            source: None,
            releases_buffer: false,
            result: open.failure.map_or(Ok(()), Err),
        };
        reports.access_ended(completion, completes);
    }

    /// Ends the connection: every access ends with the failure, once no device uses its buffer.
    pub(crate) fn end(&mut self, failure: Failure, output: &mut Output, reports: &mut Reports) {
        for slot in output.slots() {
            if let Slot::Access(AccessSlot { id, step: AccessStep::Asked, .. }) = *slot {
                *slot = Slot::Free;
                self.slots -= 1;
                if let Some(Some(open)) = self.open.get_mut(id as usize) {
                    open.slots -= 1;
                }
            }
        }
        for id in 0..self.open.len() {
            if let Some(open) = &mut self.open[id] {
                open.is_asked = false;
                open.failure = open.failure.or(Some(failure));
                self.end_if_done(u32::try_from(id).expect("the ids are of this type"), reports);
            }
        }
    }
}

/// Bytes of an access to write that go into a slot.
struct Filled {
    id: u32,
    offset: u64,
    len: u64,
}

/// The rule that is broken by an answer to nothing.
const NOT_ASKED: Broken = Broken { rule: "it answered an access that does not wait for this answer" };
