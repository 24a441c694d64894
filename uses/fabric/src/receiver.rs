//! The receiver's half of the protocols, for one connection.
//!
//! ```text
//! eager:     into the buffer of the receive that matches, or kept on the heap
//! Announce:  matched ─► Matched; pieces go straight from their slots into the buffer; all there ─► Received
//!            not matched ─► pieces stay in their slots until a receive matches
//! Offer:     matched ─► read where the bytes are, see `pulls` ─► Received; or on as above
//! Piece:     its slot is freed when it is empty; SlotsFree names several
//! ```
//!
//! Messages are matched in the order of their entries, whatever way their bytes take. Nothing that the peer writes is
//! used as an index before it was checked against the private states below. A peer may repeat bytes of a message or
//! leave some out; then only the contents of its own message are wrong.

mod pulls;

use crate::access_counters::count;
use crate::atomics::AtomicOp;
use crate::completion::Failure;
use crate::connection_memory::LOST;
use crate::copier::{Copier, CopyFor, Started};
use crate::entry::{AccessAnswer, Answer, Envelope, MOST_SLOTS_FREE, Message, MessageId};
use crate::error::{Broken, PushError};
use crate::incoming::{Incoming, Payload};
use crate::matching::{MessageKey, Source};
use crate::offered::Offered;
use crate::pull::Pull;
use crate::receives::{Body, KEPT_OVERHEAD, Kept, KeptAt, Receives, Target};
use crate::regions::{AccessError, Regions};
use crate::reports::Reports;
use crate::sender::MOST_OPEN;
use crate::serving;
use crate::ways::{Alone, Way, Ways, class_of};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use telpher_mem::Fault;

/// Entries that one connection handles before the next one has its turn. Source: assumed.
const BURST: usize = 64;
/// Freed slots that are reported at once. Source: assumed; the sender fills them while the next are emptied.
const FREED_AT_ONCE: usize = 4;
/// While this many answers wait, no more messages are read. Source: chosen.
const MOST_ANSWERS: usize = 256;

/// While so many completions are not taken by the caller, no write is done that would add one. Source: chosen.
const MOST_UNREAD: usize = 1 << 16;

/// A piece in its slot.
#[derive(Clone, Copy, Debug)]
struct Piece {
    slot: u16,
    len: u32,
    offset: u64,
}

// What is kept of a message counts against the limit.
const _: () = assert!((size_of::<Arriving>() + size_of::<Kept>() + 128) as u64 <= KEPT_OVERHEAD);

/// A longer message.
#[derive(Debug)]
struct Arriving {
    envelope: Envelope,
    /// Bytes of the pieces that came.
    arrived: u64,
    state: State,
    /// Where the sender offers the bytes, until a receive matches the message.
    offered: Option<Offered>,
}

#[derive(Debug)]
enum State {
    /// No receive matches it yet.
    Unmatched { at: KeptAt, pieces: Vec<Piece> },
    /// Its bytes are copied into the buffer.
    Matched(Reception),
    /// It was dropped; the pieces that still come are dropped too.
    Dropped,
}

#[derive(Debug)]
struct Reception {
    target: Target,
    /// Bytes of the receive that were copied or given up.
    handled: u64,
    /// Pieces and parts that a device copies.
    copying: u32,
    failure: Option<Failure>,
    /// Present while the bytes are read where the sender has them.
    pull: Option<Box<Pull>>,
    /// When the receive matched the message, if it is alone, so that the time tells how long the bytes take.
    since: Option<Instant>,
}

/// What ends with an entry of an access.
#[derive(Clone, Copy, Debug)]
struct EndedAccess {
    is_read: bool,
    /// The key of the region that it may have changed.
    changes: Option<u64>,
}

/// How a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Open,
    /// The peer has gone; what it has sent before is still read.
    PeerGone,
    Ended,
}

/// The receiving half of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// Its number in the endpoint, for the ends of copies.
    index: u32,
    source: Source,
    /// The sender's process, as it says.
    process: u32,
    ways: Ways,
    /// Messages that the CPU reads from the sender's memory or a file.
    pulls: VecDeque<MessageId>,
    incoming: Incoming,
    regions: Arc<Regions>,
    /// True if writes may bring words for completions of this side.
    accepts_words: bool,
    /// True if the next message waits until the caller has taken completions.
    waits_for_caller: bool,
    /// The announced messages by their numbers. A peer that uses all numbers binds half a MiB here; the messages count
    /// against the limit of kept ones, or have a receive.
    messages: Vec<Option<Box<Arriving>>>,
    /// True for the slots that this side has.
    held: Vec<bool>,
    freed: Vec<u16>,
    /// Answers that found their ring full.
    answers: VecDeque<Answer>,
    /// True if this connection has exceeded the limit of kept messages; it is not read while they exceed it.
    is_blocked: bool,
    /// Announced messages that are matched and not wholly received.
    receptions: usize,
    /// Pieces that a device copies.
    copying: usize,
    link: Link,
}

impl Receiver {
    pub(crate) fn new(
        index: u32,
        source: Source,
        process: u32,
        incoming: Incoming,
        regions: Arc<Regions>,
        accepts_words: bool,
        ways: Ways,
    ) -> Receiver {
        Receiver {
            index,
            source,
            process,
            ways,
            pulls: VecDeque::new(),
            messages: Vec::new(),
            held: vec![false; usize::from(incoming.memory().slots())],
            freed: Vec::with_capacity(MOST_SLOTS_FREE),
            answers: VecDeque::new(),
            is_blocked: false,
            receptions: 0,
            copying: 0,
            link: Link::Open,
            incoming,
            regions,
            accepts_words,
            waits_for_caller: false,
        }
    }

    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// True if a message is being received, so that the peer is awaited.
    pub(crate) fn is_receiving(&self) -> bool {
        self.link == Link::Open && (!self.answers.is_empty() || self.receptions > 0)
    }

    /// True if the connection has ended and neither a device nor a kept message uses its memory.
    pub(crate) fn is_over(&self) -> bool {
        self.link == Link::Ended && self.copying == 0 && self.messages.iter().all(Option::is_none)
    }

    /// True if kept messages exceed their limit, so that no message of this connection is taken.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Tells the peer now which of its entries were taken.
    pub(crate) fn publish_taken(&mut self) {
        if self.link == Link::Open {
            self.incoming.publish_taken();
        }
    }

    /// Lets the next wake of the peer become an event.
    pub(crate) fn clear_wait(&self) {
        self.incoming.clear_wait();
    }

    /// True if no more messages will come.
    pub(crate) fn has_ended(&self) -> bool {
        self.link == Link::Ended
    }

    /// The peer has gone. The messages in the ring are still read.
    pub(crate) fn peer_gone(&mut self) {
        if self.link == Link::Open {
            self.link = Link::PeerGone;
        }
    }

    /// Reads the messages that have come. True if something moved.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it.
    #[inline]
    pub(crate) fn progress(&mut self, receives: &mut Receives, copier: &mut Copier) -> Result<bool, Broken> {
        if self.link == Link::Ended {
            return Ok(false);
        }
        if self.link == Link::PeerGone {
            // No process reads them. Left in place, they would stop this side once they are too many.
            self.answers.clear();
            self.freed.clear();
        }
        let mut moved = false;
        if !self.answers.is_empty() {
            moved |= self.push_answers()?;
            if self.answers.len() >= MOST_ANSWERS {
                return Ok(moved);
            }
        }
        if self.is_blocked {
            if receives.is_over_limit() {
                return Ok(moved);
            }
            self.unblock(receives);
        }
        self.waits_for_caller = false;
        for _ in 0..BURST {
            if !self.take_message(receives, copier)? {
                break;
            }
            moved = true;
            if self.is_blocked {
                break;
            }
        }
        if let Some(&id) = self.pulls.front() {
            self.pull(id, receives, copier)?;
            moved = true;
        }
        if !self.freed.is_empty() {
            self.report_freed()?;
        }
        if self.link == Link::PeerGone && !moved && !self.waits_for_caller {
            self.end(Failure::PeerDied, receives);
        }
        Ok(moved)
    }

    fn unblock(&mut self, receives: &mut Receives) {
        if std::mem::take(&mut self.is_blocked) {
            receives.blocked_receivers -= 1;
        }
    }

    /// Takes the next message; false if there is none.
    #[inline]
    fn take_message(&mut self, receives: &mut Receives, copier: &mut Copier) -> Result<bool, Broken> {
        let Some(arrived) = self.incoming.next_message()? else { return Ok(false) };
        let &Message::Eager { envelope, wants_answer } = arrived.message() else {
            let message = *arrived.message();
            if let Message::Atomic(entry) = message {
                let is_held = entry.slot.is_some_and(|slot| self.held.get(usize::from(slot)).is_none_or(|held| *held));
                if is_held {
                    return Err(SLOT_IN_USE);
                }
                let slot = entry.slot.and_then(|slot| arrived.slot(slot));
                let result = serving::atomic(&self.regions, copier, &entry, arrived.payload(), slot);
                drop(arrived);
                let changes = (entry.atomic.op != AtomicOp::Read).then_some(entry.range.key);
                let ended = EndedAccess { is_read: entry.slot.is_some(), changes };
                let answer = AccessAnswer { id: entry.id, slot: entry.slot, wants_end: false, result };
                self.accessed(answer, Some(ended), &mut receives.reports)?;
                return Ok(true);
            }
            let Message::Write { id, range, data } = message else {
                drop(arrived);
                self.take_other(&message, receives, copier)?;
                return Ok(true);
            };
            if data.is_some() && receives.reports.completions.len() >= MOST_UNREAD {
                arrived.leave();
                self.waits_for_caller = true;
                return Ok(false);
            }
            let result = match data {
                Some(_) if !self.accepts_words => Err(AccessError::NotPermitted),
                _ => serving::write(&self.regions, copier, &range, arrived.payload()),
            };
            drop(arrived);
            if let (Some(data), Ok(())) = (data, result) {
                receives.written_by_peer(self.source, range.len, data);
            }
            let ended = EndedAccess { is_read: false, changes: Some(range.key) };
            let answer = AccessAnswer { id, slot: None, wants_end: false, result };
            self.accessed(answer, Some(ended), &mut receives.reports)?;
            return Ok(true);
        };
        let key = key(self.source, &envelope);
        let Some(target) = receives.target_for(&key, envelope.len) else {
            let body = match *arrived.payload() {
                Payload::Inline(bytes) => Body::Inline(bytes),
                Payload::Shared { address, len } => {
                    let mut bytes = vec![0; len as usize].into_boxed_slice();
                    let read = copier.read(address, &mut bytes);
                    drop(arrived);
                    if read.is_err() || !self.incoming.memory().is_whole() {
                        return Err(LOST);
                    }
                    Body::Bytes(bytes)
                }
            };
            receives.keep(key, Kept { envelope, body, wants_answer: wants_answer.map(|id| (self.index, id)) });
            block_over_limit(&mut self.is_blocked, receives);
            return Ok(true);
        };
        let (copied, is_whole) = match *arrived.payload() {
            Payload::Inline(bytes) => {
                drop(arrived);
                (copier.scatter(&bytes, &target.segments, target.takes), true)
            }
            Payload::Shared { address, .. } => {
                let copied = copier.copy_out(address, &target.segments, target.takes);
                drop(arrived);
                (copied, self.incoming.memory().is_whole())
            }
        };
        let failure = match copied {
            _ if !is_whole => Some(Failure::PeerBroken),
            Ok(()) => None,
            Err(fault) if fault.write => Some(Failure::BadBuffer { address: fault.address }),
            Err(_) => Some(Failure::PeerBroken),
        };
        receives.ended(&target, self.source, &envelope, failure);
        if failure == Some(Failure::PeerBroken) {
            return Err(LOST);
        }
        if let Some(id) = wants_answer {
            self.answer(Answer::Received { id })?;
        }
        Ok(true)
    }

    /// Handles an entry that is not an eager message.
    fn take_other(&mut self, message: &Message, receives: &mut Receives, copier: &mut Copier) -> Result<(), Broken> {
        match *message {
            Message::Eager { .. } | Message::Write { .. } | Message::Atomic(_) => {}
            Message::WritePiece(piece) | Message::ReadPiece(piece) => {
                let is_free = self.held.get(usize::from(piece.slot)).is_some_and(|held| !held);
                let Some(slot) = self.incoming.slot(piece.slot).filter(|_| is_free) else { return Err(SLOT_IN_USE) };
                let is_read = matches!(message, Message::ReadPiece(_));
                let result = match is_read {
                    false => serving::write_piece(&self.regions, copier, &piece, slot),
                    true => serving::read_piece(&self.regions, copier, &piece, slot),
                };
                // A read in one piece has no other entry.
                let ended = (is_read && u64::from(piece.len) == piece.range.len)
                    .then_some(EndedAccess { is_read: true, changes: None });
                let counts = receives.reports.accesses_of_peers.of(is_read).is_some()
                    || (!is_read && self.regions.counts_changes(piece.range.key));
                let wants_end = ended.is_none() && result.is_ok() && counts;
                let answer = AccessAnswer { id: piece.id, slot: Some(piece.slot), wants_end, result };
                self.accessed(answer, ended, &mut receives.reports)?;
            }
            Message::ReadEnd { id } => {
                let ended = EndedAccess { is_read: true, changes: None };
                let answer = AccessAnswer { id, slot: None, wants_end: false, result: Ok(()) };
                self.accessed(answer, Some(ended), &mut receives.reports)?;
            }
            Message::Announce { envelope, id } | Message::Offer { envelope, id, .. } => {
                let offered = if let Message::Offer { at, .. } = *message { Some(at) } else { None };
                let number = id.0 as usize;
                if number >= MOST_OPEN || self.messages.get(number).is_some_and(Option::is_some) {
                    return Err(Broken { rule: "it announced a message with a number that is in use" });
                }
                if number >= self.messages.len() {
                    self.messages.resize_with(number + 1, || None);
                }
                let key = key(self.source, &envelope);
                if let Some(target) = receives.target_for(&key, envelope.len) {
                    self.messages[number] =
                        Some(Box::new(Arriving { envelope, arrived: 0, state: State::Dropped, offered }));
                    self.start_reception(id, target, Vec::new(), receives, copier)?;
                } else {
                    let body = Body::Pieces { receiver: self.index, id };
                    let at = KeptAt::Queue(receives.keep(key, Kept { envelope, body, wants_answer: None }));
                    let state = State::Unmatched { at, pieces: Vec::new() };
                    self.messages[number] = Some(Box::new(Arriving { envelope, arrived: 0, state, offered }));
                    block_over_limit(&mut self.is_blocked, receives);
                }
            }
            Message::Piece { id, slot, len, offset } => {
                match self.held.get_mut(usize::from(slot)) {
                    Some(held) if !*held => *held = true,
                    _ => return Err(SLOT_IN_USE),
                }
                let piece = Piece { slot, len, offset };
                let Some(Some(message)) = self.messages.get_mut(id.0 as usize) else {
                    // The receive took less than was sent ahead, or the message was dropped.
                    return self.free_slot(slot);
                };
                message.arrived = message.arrived.saturating_add(u64::from(len));
                let end = offset.checked_add(u64::from(len));
                if len > self.incoming.memory().slot_bytes()
                    || message.arrived > message.envelope.len
                    || end.is_none_or(|end| end > message.envelope.len)
                {
                    return Err(Broken { rule: "it sent more bytes than it announced" });
                }
                match &mut message.state {
                    State::Unmatched { pieces, .. } => pieces.push(piece),
                    State::Dropped => self.free_slot(slot)?,
                    State::Matched(_) => self.copy_piece(id, piece, receives, copier)?,
                }
            }
            Message::Abort { id } => self.aborted(id, receives)?,
        }
        Ok(())
    }

    /// Answers an entry of an access, and counts the access that it ends, if it does.
    fn accessed(
        &mut self,
        answer: AccessAnswer,
        ends: Option<EndedAccess>,
        reports: &mut Reports,
    ) -> Result<(), Broken> {
        if !self.incoming.memory().is_whole() {
            return Err(LOST);
        }
        if let Some(EndedAccess { is_read, changes }) = ends.filter(|_| answer.result.is_ok()) {
            if let Some(counter) = reports.accesses_of_peers.of(is_read) {
                count(counter);
            }
            if let Some(key) = changes {
                self.regions.changed(key);
            }
        }
        *if answer.result.is_ok() { &mut reports.served } else { &mut reports.refused } += 1;
        self.answer(Answer::Accessed(answer))
    }

    /// A receive matches an announced message that was kept.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it. The receive ends with that.
    pub(crate) fn matched(
        &mut self,
        id: MessageId,
        target: Target,
        receives: &mut Receives,
        copier: &mut Copier,
    ) -> Result<(), Broken> {
        let Some(Some(message)) = self.messages.get_mut(id.0 as usize) else { return Ok(()) };
        let State::Unmatched { pieces, .. } = std::mem::replace(&mut message.state, State::Dropped) else {
            return Ok(());
        };
        self.start_reception(id, target, pieces, receives, copier)?;
        self.report_freed()
    }

    /// Starts to copy a message into its buffer.
    fn start_reception(
        &mut self,
        id: MessageId,
        target: Target,
        pieces: Vec<Piece>,
        receives: &mut Receives,
        copier: &mut Copier,
    ) -> Result<(), Broken> {
        let Some(Some(message)) = self.messages.get_mut(id.0 as usize) else { return Ok(()) };
        let takes = target.takes;
        let is_complete = message.arrived >= message.envelope.len || takes == 0;
        self.receptions += 1;
        receives.under_way += 1;
        let len = message.envelope.len;
        // A peer may offer what it was never asked for.
        let is_wanted = |offered: &Offered| takes > 0 && self.ways.may_pull_from(offered.pull_from(), len);
        let offered = message.offered.take().filter(is_wanted);
        let pull = offered.and_then(|offered| Pull::of(&offered, len, &self.incoming)).map(Box::new);
        // Pieces that came before say nothing of how long they took; neither does a message among others.
        let is_measured = takes == len && self.ways.may_pull(len) && message.arrived == 0 && self.receptions == 1;
        let is_pulled = pull.is_some();
        let since = is_measured.then(Instant::now);
        message.state = State::Matched(Reception { target, handled: 0, copying: 0, failure: None, pull, since });
        if is_pulled {
            return self.start_pull(id, receives, copier);
        }
        // A message that is there needs no more pieces, so `Received` is enough.
        if !is_complete {
            self.answer(Answer::Matched { id, len: takes })?;
        }
        for piece in pieces {
            self.copy_piece(id, piece, receives, copier)?;
        }
        self.end_if_done(id, receives)
    }

    /// Copies a piece into the buffer of its message.
    fn copy_piece(
        &mut self,
        id: MessageId,
        piece: Piece,
        receives: &mut Receives,
        copier: &mut Copier,
    ) -> Result<(), Broken> {
        let Some(reception) = reception(&mut self.messages, id) else {
            return self.free_slot(piece.slot);
        };
        if reception.pull.is_some() {
            // No piece was asked for while the bytes are read elsewhere.
            return self.free_slot(piece.slot);
        }
        let len = reception.target.takes.saturating_sub(piece.offset).min(u64::from(piece.len));
        let Some(from) = self.incoming.slot(piece.slot).filter(|_| len > 0 && reception.failure.is_none()) else {
            reception.handled += len;
            self.free_slot(piece.slot)?;
            return self.end_if_done(id, receives);
        };
        reception.copying += 1;
        self.copying += 1;
        let purpose = CopyFor::Receiver { index: self.index, slot: Some(piece.slot), id: id.0 };
        reception.handled += len;
        let started = copier.start_out(from, &reception.target.segments, piece.offset, len, purpose);
        match started {
            Started::Ended(result) => self.piece_copied(piece.slot, id, result, receives),
            Started::Pending => Ok(()),
        }
    }

    /// The copy of a piece has ended.
    ///
    /// # Errors
    /// The memory of the connection is gone.
    pub(crate) fn piece_copied(
        &mut self,
        slot: u16,
        id: MessageId,
        result: Result<(), Fault>,
        receives: &mut Receives,
    ) -> Result<(), Broken> {
        self.copying -= 1;
        let is_lost = !self.incoming.memory().is_whole() || result.is_err_and(|fault| !fault.write);
        if let Some(reception) = reception(&mut self.messages, id) {
            reception.copying -= 1;
            if is_lost {
                reception.failure.get_or_insert(Failure::PeerBroken);
            } else if let Err(fault) = result {
                reception.failure.get_or_insert(Failure::BadBuffer { address: fault.address });
            }
        }
        self.free_slot(slot)?;
        self.end_if_done(id, receives)?;
        if is_lost && self.link != Link::Ended { Err(LOST) } else { Ok(()) }
    }

    /// Ends a message whose bytes are all there.
    fn end_if_done(&mut self, id: MessageId, receives: &mut Receives) -> Result<(), Broken> {
        let Some(Some(message)) = self.messages.get_mut(id.0 as usize) else { return Ok(()) };
        let State::Matched(reception) = &message.state else { return Ok(()) };
        // When the connection has ended, only a message that lacks bytes has a failure; the others end when their kept
        // pieces are copied.
        let is_cut = self.link == Link::Ended && reception.failure.is_some();
        let is_done = reception.handled >= reception.target.takes || is_cut;
        if reception.copying > 0 || !is_done {
            return Ok(());
        }
        receives.ended(&reception.target, self.source, &message.envelope, reception.failure);
        let (len, takes, since) = (message.envelope.len, reception.target.takes, reception.since);
        let way = if reception.pull.is_some() { Way::Pull } else { Way::Pieces };
        self.messages[id.0 as usize] = None;
        self.receptions -= 1;
        receives.under_way -= 1;
        let alone = since.filter(|_| self.receptions == 0).map(|since| Alone { way, since, ended: Instant::now() });
        if let Some(Alone { since, ended, .. }) = alone
            && way == Way::Pieces
        {
            self.ways.took(len, way, takes, ended.duration_since(since));
        }
        if let Some(offers) = self.ways.next(len, alone) {
            self.answer(Answer::Prefers { class: class_of(len), offers })?;
        }
        self.answer(Answer::Received { id })
    }

    /// The sender cannot read its buffer.
    fn aborted(&mut self, id: MessageId, receives: &mut Receives) -> Result<(), Broken> {
        let Some(Some(message)) = self.messages.get_mut(id.0 as usize) else { return Ok(()) };
        match &mut message.state {
            State::Matched(reception) => {
                reception.failure.get_or_insert(Failure::SenderFailed);
                reception.handled = reception.target.takes;
                self.end_if_done(id, receives)
            }
            State::Unmatched { at, .. } => {
                receives.fail_kept(*at, Failure::SenderFailed);
                self.dropped(id)
            }
            State::Dropped => Ok(()),
        }
    }

    /// A kept message has a new place.
    pub(crate) fn moved(&mut self, id: MessageId, new: KeptAt) {
        if let Some(Some(message)) = self.messages.get_mut(id.0 as usize)
            && let State::Unmatched { at, .. } = &mut message.state
        {
            *at = new;
        }
    }

    /// Drops a kept message.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it.
    pub(crate) fn dropped(&mut self, id: MessageId) -> Result<(), Broken> {
        let Some(message) = self.messages.get_mut(id.0 as usize).and_then(Option::take) else { return Ok(()) };
        if let State::Unmatched { pieces, .. } = message.state {
            for piece in pieces {
                self.free_slot(piece.slot)?;
            }
        }
        self.report_freed()?;
        self.answer(Answer::Received { id })
    }

    /// Answers that a message was received.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it.
    pub(crate) fn received(&mut self, id: MessageId) -> Result<(), Broken> {
        self.answer(Answer::Received { id })
    }

    fn free_slot(&mut self, slot: u16) -> Result<(), Broken> {
        self.held[usize::from(slot)] = false;
        self.freed.push(slot);
        if self.freed.len() >= FREED_AT_ONCE { self.report_freed() } else { Ok(()) }
    }

    /// Tells the sender which slots are free.
    pub(crate) fn report_freed(&mut self) -> Result<(), Broken> {
        while !self.freed.is_empty() {
            let count = self.freed.len().min(MOST_SLOTS_FREE);
            let mut slots = [0; MOST_SLOTS_FREE];
            for (to, from) in slots.iter_mut().zip(self.freed.drain(..count)) {
                *to = from;
            }
            let count = u8::try_from(count).expect("at most MOST_SLOTS_FREE");
            self.answer(Answer::SlotsFree { count, slots })?;
        }
        Ok(())
    }

    /// Pushes an answer, or lets it wait for room.
    fn answer(&mut self, answer: Answer) -> Result<(), Broken> {
        if self.link != Link::Open {
            return Ok(());
        }
        self.answers.push_back(answer);
        self.push_answers().map(drop)
    }

    fn push_answers(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        while let Some(answer) = self.answers.front() {
            match self.incoming.push_answer(answer) {
                Ok(()) => moved = true,
                Err(PushError::Broken(broken)) => return Err(broken),
                Err(_) => break,
            }
            self.answers.pop_front();
        }
        Ok(moved)
    }

    /// Ends the connection. Messages that are not wholly there end with the failure, once no device writes their
    /// buffers. If the peer has died, kept messages that are wholly there can still be received.
    pub(crate) fn end(&mut self, failure: Failure, receives: &mut Receives) {
        self.link = Link::Ended;
        self.unblock(receives);
        self.answers.clear();
        self.freed.clear();
        for number in 0..self.messages.len() {
            let Some(message) = &mut self.messages[number] else { continue };
            match &mut message.state {
                State::Matched(reception) => {
                    if reception.handled < reception.target.takes {
                        reception.failure.get_or_insert(failure);
                    }
                    let id = MessageId(u32::try_from(number).expect("below MOST_OPEN"));
                    // Cannot fail: an ended connection pushes no answers.
                    let _ = self.end_if_done(id, receives);
                }
                State::Unmatched { .. } if failure == Failure::PeerDied && message.arrived == message.envelope.len => {}
                State::Unmatched { at, .. } => {
                    receives.drop_kept(*at, failure);
                    self.messages[number] = None;
                }
                State::Dropped => self.messages[number] = None,
            }
        }
    }
}

/// The rule that is broken by a slot that this side has.
const SLOT_IN_USE: Broken = Broken { rule: "it used a slot that was not free" };

/// Returns the reception of a message; `None` if no receive matches it.
fn reception(messages: &mut [Option<Box<Arriving>>], id: MessageId) -> Option<&mut Reception> {
    match &mut messages.get_mut(id.0 as usize)?.as_mut()?.state {
        State::Matched(reception) => Some(reception),
        State::Unmatched { .. } | State::Dropped => None,
    }
}

/// Blocks a receiver if the kept messages exceed their limit.
fn block_over_limit(is_blocked: &mut bool, receives: &mut Receives) {
    if receives.is_over_limit() && !*is_blocked {
        *is_blocked = true;
        receives.blocked_receivers += 1;
    }
}

/// What a message of a source is matched by.
#[inline]
fn key(source: Source, envelope: &Envelope) -> MessageKey {
    MessageKey { source, tag: envelope.is_tagged.then_some(envelope.tag) }
}
