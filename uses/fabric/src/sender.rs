//! The sender's half of the protocols, for one connection.
//!
//! ```text
//! up to eager bytes:  one entry with the payload; complete at once
//! offered:            Offer ─► Received, or Matched and on as below
//! longer:             Announce ─► pieces ahead of the answer, in at most half of the slots
//!                     Matched ─► the other pieces ─► complete when the last entry is in the ring ─► Received: the id
//!                     is free
//! no room:            the send waits here, in order; pieces of announced messages go first
//! ```
//!
//! Nothing that the peer writes is used as an index before it was checked against the private states below.

use crate::accesses::{Accesses, StartedAccess};
use crate::completion::Failure;
use crate::config::Config;
use crate::connection_memory::LOST;
use crate::copier::{Copier, CopyFor, Started};
use crate::entry::{Answer, Envelope, Message, MessageId};
use crate::error::Broken;
use crate::offered::{Offered, OfferedMemory};
use crate::outgoing::Outgoing;
use crate::output::{Output, Pushed, Slot};
use crate::reports::{Outbound, Reports};
use crate::request::{SendEnd, SendRequest};
use crate::shown_files::{OwnFiles, ShownFiles};
use crate::ways::class_of;
use crate::{Address, Segments};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use telpher_mem::Fault;

/// The most messages of a connection that are announced and not received. Source: chosen.
pub(crate) const MOST_OPEN: usize = 1 << 16;

/// A message that the receiver has not answered with `Received`.
#[derive(Debug)]
struct Open {
    send: Outbound,
    /// The position of the first byte that is not in a slot yet.
    next: u64,
    /// The end of the bytes to send: the length of the message, or less if the receiver takes less.
    end: u64,
    /// Slots that a device fills.
    filling: u16,
    /// Pieces whose entries wait for room in the ring.
    queued: u16,
    is_matched: bool,
    /// True after `Received`, and when the connection has ended.
    is_finished: bool,
    /// True if the caller has its completion.
    is_reported: bool,
    failure: Option<Failure>,
    /// True once `Abort` is in the ring, or waits for room there.
    is_aborted: bool,
}

impl Open {
    /// True if the operation of the caller is complete. Bytes in a slot whose entry is not in the ring would be lost if
    /// the endpoint were dropped, so they do not count.
    fn has_ended_for_caller(&self) -> bool {
        let is_sent = self.next >= self.end && self.queued == 0;
        match self.send.end {
            SendEnd::BufferFree => is_sent || self.is_finished,
            SendEnd::Matched => (is_sent && self.is_matched) || self.is_finished,
            SendEnd::Received => self.is_finished,
        }
    }
}

/// The sending half of a connection.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Its number in the endpoint, for the ends of copies.
    index: u32,
    address: Address,
    output: Output,
    /// Sends that are not in the ring, in order.
    waiting: VecDeque<Outbound>,
    accesses: Accesses,
    open: Vec<Option<Open>>,
    free_ids: Vec<u32>,
    open_count: usize,
    /// Messages with bytes to send, that a receive matches.
    matched: VecDeque<u32>,
    /// Messages with bytes to send, that no receive matches yet.
    unmatched: VecDeque<u32>,
    /// Slots with bytes of messages that no receive matches yet.
    ahead: usize,
    /// Messages of at least this length may be offered in this process's memory.
    pull_bytes: u64,
    /// Those of at least this length may be offered in a file.
    mapped_bytes: u64,
    files: ShownFiles,
    /// A bit for each class of lengths whose messages the receiver wants to be offered.
    offered_classes: u64,
    most_waiting: usize,
}

impl Sender {
    pub(crate) fn new(index: u32, address: Address, config: &Config, mappings: Arc<OwnFiles>) -> Sender {
        let Config { streaming_bytes, pull_bytes, mapped_bytes, waiting_sends: most_waiting, .. } = *config;
        Sender {
            index,
            address,
            output: Output::new(streaming_bytes),
            waiting: VecDeque::new(),
            accesses: Accesses::new(index, most_waiting),
            open: Vec::new(),
            free_ids: Vec::new(),
            open_count: 0,
            matched: VecDeque::new(),
            unmatched: VecDeque::new(),
            ahead: 0,
            pull_bytes,
            mapped_bytes,
            files: ShownFiles::new(mappings),
            offered_classes: 0,
            most_waiting,
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// The connection is open.
    pub(crate) fn connected(&mut self, outgoing: Outgoing, socket: Option<Arc<OwnedFd>>) {
        self.output.connected(outgoing);
        self.files.connected(socket);
    }

    /// True if the peer, a device or room in the ring is awaited.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.open_count > 0
            || !self.waiting.is_empty()
            || !self.output.is_clear()
            || self.output.uses_slots()
            || self.accesses.is_busy()
    }

    /// True if no more sends may wait.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= self.most_waiting
    }

    /// True if the connection has ended and no device uses its memory.
    pub(crate) fn is_over(&self) -> bool {
        self.output.has_ended && self.output.copying == 0
    }

    /// Returns how many injected messages and writes are not wholly in the ring and the slots.
    pub(crate) fn unsent_injections(&self) -> usize {
        let open = self.open.iter().flatten().filter(|open| !open.is_reported).map(|open| &open.send);
        let messages = self.waiting.iter().chain(open).filter(|send| send.taken.is_some()).count();
        messages + self.accesses.unsent_injections()
    }

    /// Pushes a message if nothing waits before it, and takes the send then.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it.
    #[inline]
    pub(crate) fn try_now(&mut self, send: &mut Option<Outbound>, reports: &mut Reports) -> Result<(), Broken> {
        if self.waiting.is_empty() && self.output.is_clear() {
            self.push(send, reports)?;
        }
        Ok(())
    }

    /// Pushes a short message if nothing waits before it and there is room. True if the send has ended.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it.
    #[inline]
    pub(crate) fn push_eager(
        &mut self,
        envelope: &Envelope,
        request: &SendRequest,
        reports: &mut Reports,
    ) -> Result<bool, Broken> {
        let is_eager = self.output.eager_bytes().is_some_and(|eager_bytes| envelope.len <= eager_bytes);
        if !is_eager || !self.waiting.is_empty() || !self.output.is_clear() {
            return Ok(false);
        }
        let entry = Message::Eager { envelope: *envelope, wants_answer: None };
        let result = match self.output.push(&entry, &request.segments)? {
            Pushed::Done => Ok(()),
            Pushed::BadBuffer(address) => Err(Failure::BadBuffer { address }),
            Pushed::Full => return Ok(false),
        };
        reports.eager_sent += u64::from(result.is_ok());
        reports.request_ended(envelope, request, result);
        Ok(true)
    }

    /// Starts an access.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it.
    pub(crate) fn access(
        &mut self,
        access: StartedAccess,
        inject: bool,
        copier: &mut Copier,
        reports: &mut Reports,
    ) -> Result<(), Broken> {
        self.accesses.start(access, inject, &mut self.output, copier, reports)
    }

    /// True if no more accesses may be under way.
    pub(crate) fn is_full_of_accesses(&self) -> bool {
        self.accesses.is_full()
    }

    /// Lets a send wait for room.
    pub(crate) fn wait(&mut self, send: Outbound) {
        self.waiting.push_back(send);
    }

    /// Pushes a message if there is room, and takes the send then.
    #[inline]
    fn push(&mut self, send: &mut Option<Outbound>, reports: &mut Reports) -> Result<(), Broken> {
        let (Some(eager_bytes), Some(message)) = (self.output.eager_bytes(), &send) else { return Ok(()) };
        let is_eager = message.envelope.len <= eager_bytes;
        if !is_eager || message.end != SendEnd::BufferFree {
            return self.push_open(send, is_eager, reports);
        }
        let entry = Message::Eager { envelope: message.envelope, wants_answer: None };
        match self.output.push(&entry, &message.segments)? {
            Pushed::Done => {
                reports.eager_sent += 1;
                reports.send_ended(message, Ok(()));
                *send = None;
            }
            Pushed::BadBuffer(address) => {
                reports.send_ended(message, Err(Failure::BadBuffer { address }));
                *send = None;
            }
            Pushed::Full => {}
        }
        Ok(())
    }

    /// Pushes a message that is answered, if there is room, and takes the send then.
    fn push_open(
        &mut self,
        waiting: &mut Option<Outbound>,
        is_eager: bool,
        reports: &mut Reports,
    ) -> Result<(), Broken> {
        let Some(send) = &waiting else { return Ok(()) };
        let id = match self.free_ids.pop() {
            Some(id) => id,
            None if self.open.len() < MOST_OPEN => {
                self.open.push(None);
                u32::try_from(self.open.len() - 1).expect("at most MOST_OPEN")
            }
            None => return Ok(()),
        };
        let (envelope, segments) = (send.envelope, send.segments);
        let offered = if is_eager { None } else { self.offered(&segments) };
        let pushed = if is_eager {
            let message = Message::Eager { envelope, wants_answer: Some(MessageId(id)) };
            self.output.push(&message, &segments)
        } else {
            let id = MessageId(id);
            let message = match offered {
                Some(at) => Message::Offer { envelope, id, at },
                None => Message::Announce { envelope, id },
            };
            self.output.push(&message, &Segments::default())
        };
        if !matches!(pushed, Ok(Pushed::Done)) {
            self.free_ids.push(id);
        }
        match pushed? {
            Pushed::Done => {}
            Pushed::Full => return Ok(()),
            Pushed::BadBuffer(address) => {
                reports.send_ended(send, Err(Failure::BadBuffer { address }));
                *waiting = None;
                return Ok(());
            }
        }
        let Some(send) = waiting.take() else { return Ok(()) };
        let end = if is_eager { 0 } else { send.envelope.len };
        *if is_eager { &mut reports.eager_sent } else { &mut reports.long_sent } += 1;
        self.open[id as usize] = Some(Open {
            send,
            next: 0,
            end,
            filling: 0,
            queued: 0,
            is_matched: false,
            is_finished: false,
            is_reported: false,
            failure: None,
            is_aborted: false,
        });
        self.open_count += 1;
        if end > 0 && offered.is_none() {
            self.unmatched.push_back(id);
        }
        Ok(())
    }

    /// Returns where the bytes of a longer message are, if the receiver wants to read them there.
    fn offered(&mut self, segments: &Segments) -> Option<Offered> {
        let len = segments.len();
        let [buffer] = segments.as_slice() else { return None };
        if self.offered_classes & (1 << class_of(len)) == 0 {
            return None;
        }
        if len >= self.mapped_bytes
            && let Some(file) = self.files.offer(buffer.address(), len)
        {
            return Some(Offered::File(file));
        }
        if len < self.pull_bytes {
            return None;
        }
        // Without a token the bytes go in pieces.
        OfferedMemory::here(buffer.address()).ok().map(Offered::Process)
    }

    /// Moves everything on as far as possible. True if something moved.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it.
    pub(crate) fn progress(&mut self, copier: &mut Copier, reports: &mut Reports) -> Result<bool, Broken> {
        if self.output.has_ended {
            return Ok(false);
        }
        let mut moved = self.take_answers(copier, reports)?;
        loop {
            let mut pushed = self.push_ready(reports)?;
            pushed |= self.accesses.progress(&mut self.output, copier, reports)?;
            pushed |= self.fill_slots(copier, reports)?;
            pushed |= self.push_waiting(reports)?;
            moved |= pushed;
            if !pushed {
                return Ok(moved);
            }
        }
    }

    pub(crate) fn take_answers(&mut self, copier: &mut Copier, reports: &mut Reports) -> Result<bool, Broken> {
        let mut moved = false;
        while let Some(answer) = self.output.next_answer()? {
            moved = true;
            match answer {
                Answer::Matched { id, len } => self.message_matched(id, len, reports)?,
                Answer::Received { id } => self.message_received(id, reports)?,
                Answer::SlotsFree { count, slots } => {
                    for &slot in slots.iter().take(usize::from(count)) {
                        self.slot_freed(slot)?;
                    }
                }
                Answer::Prefers { class, offers } => {
                    let bit = 1 << class;
                    self.offered_classes =
                        if offers { self.offered_classes | bit } else { self.offered_classes & !bit };
                }
                Answer::Accessed(answer) => {
                    self.accesses.answered(&answer, &mut self.output, copier, reports)?;
                }
            }
        }
        Ok(moved)
    }

    fn message_matched(&mut self, id: MessageId, len: u64, reports: &mut Reports) -> Result<(), Broken> {
        let Some(Some(open)) = self.open.get_mut(id.0 as usize) else {
            return Err(Broken { rule: "it matched a message that is not announced" });
        };
        if open.is_matched || len > open.send.envelope.len {
            return Err(Broken { rule: "it matched a message twice, or more bytes than it has" });
        }
        open.is_matched = true;
        open.end = open.end.min(len);
        let sends = open.next < open.end && open.failure.is_none();
        self.unmatched.retain(|&unmatched| unmatched != id.0);
        if sends {
            self.matched.push_back(id.0);
        }
        self.not_ahead(id.0);
        self.end_if_done(id.0, reports);
        Ok(())
    }

    fn message_received(&mut self, id: MessageId, reports: &mut Reports) -> Result<(), Broken> {
        let Some(Some(open)) = self.open.get_mut(id.0 as usize) else {
            return Err(Broken { rule: "it received a message that is not announced" });
        };
        if open.is_finished {
            return Err(Broken { rule: "it received a message twice" });
        }
        open.is_finished = true;
        open.is_matched = true;
        open.end = open.end.min(open.next);
        self.unmatched.retain(|&unmatched| unmatched != id.0);
        self.matched.retain(|&matched| matched != id.0);
        self.not_ahead(id.0);
        self.end_if_done(id.0, reports);
        Ok(())
    }

    /// A message is answered: its slots do not count as used ahead of the answer any more.
    fn not_ahead(&mut self, message: u32) {
        for slot in self.output.slots() {
            if let Slot::Filling { id, ahead, .. } | Slot::Given { id, ahead } = slot
                && *id == message
                && std::mem::take(ahead)
            {
                self.ahead -= 1;
            }
        }
    }

    fn slot_freed(&mut self, slot: u16) -> Result<(), Broken> {
        match self.output.slot(slot) {
            Some(Slot::Given { .. }) => self.free_slot(slot),
            _ => return Err(Broken { rule: "it freed a slot that it did not have" }),
        }
        Ok(())
    }

    fn free_slot(&mut self, slot: u16) {
        if let Slot::Filling { ahead: true, .. } | Slot::Given { ahead: true, .. } = self.output.free_slot(slot) {
            self.ahead -= 1;
        }
    }

    /// Pushes the entries that found the ring full.
    fn push_ready(&mut self, reports: &mut Reports) -> Result<bool, Broken> {
        let mut moved = false;
        while let Some(message) = self.output.push_ready()? {
            moved = true;
            // The receiver may have answered the message already, and then it is gone. No new message gets its number
            // while entries wait.
            if let Message::Piece { id, .. } = message
                && let Some(Some(open)) = self.open.get_mut(id.0 as usize)
            {
                open.queued -= 1;
                self.end_if_done(id.0, reports);
            }
        }
        Ok(moved)
    }

    /// Pushes the sends that wait.
    fn push_waiting(&mut self, reports: &mut Reports) -> Result<bool, Broken> {
        let mut moved = false;
        while self.output.is_clear() && !self.waiting.is_empty() {
            let mut send = self.waiting.pop_front();
            let pushed = self.push(&mut send, reports);
            if let Some(send) = send {
                self.waiting.push_front(send);
                pushed?;
                break;
            }
            pushed?;
            moved = true;
        }
        Ok(moved)
    }

    /// Copies pieces into free slots: first those of matched messages, then a few ahead of the answer.
    fn fill_slots(&mut self, copier: &mut Copier, reports: &mut Reports) -> Result<bool, Broken> {
        let mut moved = false;
        while self.output.is_clear() {
            let is_ahead = self.matched.is_empty();
            let queue = if is_ahead { &mut self.unmatched } else { &mut self.matched };
            let Some(&id) = queue.front() else { break };
            if is_ahead && self.ahead >= self.output.slots().len() / 2 {
                break;
            }
            let Some(Some(open)) = self.open.get_mut(id as usize) else {
                queue.pop_front();
                continue;
            };
            let offset = open.next;
            let slot_bytes = self.output.slot_bytes();
            let most = if copier.has_device() { slot_bytes } else { self.output.stores.most_bytes(slot_bytes) };
            let len = (open.end - open.next).min(most);
            let len_in_slot = u32::try_from(len).expect("at most a slot");
            let state = Slot::Filling { id, len: len_in_slot, offset, ahead: is_ahead };
            let Some((slot, to)) = self.output.take_slot(state) else { break };
            open.next += len;
            if open.next == open.end {
                queue.pop_front();
            }
            open.filling += 1;
            self.output.copying += 1;
            self.ahead += usize::from(is_ahead);
            let purpose = CopyFor::Sender { index: self.index, slot };
            let fill = self.output.stores.fill(len);
            let started = copier.start_in(to, &open.send.segments, offset, len, fill.hint, purpose);
            if let Started::Ended(result) = started {
                self.output.stores.filled(fill, len);
                reports.filled(fill.hint);
                self.slot_filled(slot, result, reports)?;
            }
            moved = true;
        }
        Ok(moved)
    }

    /// The copy to or from a slot has ended.
    ///
    /// # Errors
    /// The memory of the connection is gone.
    pub(crate) fn slot_copied(
        &mut self,
        slot: u16,
        result: Result<(), Fault>,
        reports: &mut Reports,
    ) -> Result<(), Broken> {
        if let Some(Slot::Access(access)) = self.output.slot(slot) {
            return self.accesses.slot_copied(slot, access, result, &mut self.output, reports);
        }
        self.slot_filled(slot, result, reports)
    }

    /// A slot is filled with bytes of a message, or its copy failed.
    fn slot_filled(&mut self, slot: u16, result: Result<(), Fault>, reports: &mut Reports) -> Result<(), Broken> {
        let Some(Slot::Filling { id, len, offset, ahead }) = self.output.slot(slot) else { return Ok(()) };
        self.output.copying -= 1;
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return Ok(()) };
        open.filling -= 1;
        let lost = result.is_err_and(|fault| fault.write);
        if let Err(fault) = result {
            let address = fault.address;
            open.failure.get_or_insert(Failure::BadBuffer { address });
            self.unmatched.retain(|&unmatched| unmatched != id);
            self.matched.retain(|&matched| matched != id);
        }
        if open.failure.is_some() || open.is_finished || self.output.has_ended {
            self.free_slot(slot);
        } else {
            self.output.set_slot(slot, Slot::Given { id, ahead });
            let piece = Message::Piece { id: MessageId(id), slot, len, offset };
            match self.output.push_or_queue(piece) {
                Ok(Pushed::Full) => {
                    if let Some(Some(open)) = self.open.get_mut(id as usize) {
                        open.queued += 1;
                    }
                }
                Ok(_) => {}
                Err(broken) => {
                    self.end_if_done(id, reports);
                    return Err(broken);
                }
            }
        }
        self.end_if_done(id, reports);
        if lost && !self.output.has_ended { Err(LOST) } else { Ok(()) }
    }

    /// Reports a message that has ended for the caller, and frees its number once it has ended for the receiver too.
    fn end_if_done(&mut self, id: u32, reports: &mut Reports) {
        let Some(Some(open)) = self.open.get_mut(id as usize) else { return };
        if open.filling > 0 {
            return;
        }
        if let Some(failure) = open.failure {
            if !open.is_reported {
                open.is_reported = true;
                reports.send_ended(&open.send, Err(failure));
            }
            if !open.is_aborted && !open.is_finished {
                open.is_aborted = true;
                self.output.queue(Message::Abort { id: MessageId(id) });
            }
        } else if !open.is_reported && open.has_ended_for_caller() {
            open.is_reported = true;
            reports.send_ended(&open.send, Ok(()));
        }
        let Some(Some(open)) = self.open.get(id as usize) else { return };
        if open.is_finished {
            self.open[id as usize] = None;
            self.open_count -= 1;
            self.free_ids.push(id);
        }
    }

    /// Ends the connection: every send that is not complete ends with the failure, once no device reads its buffer.
    pub(crate) fn end(&mut self, failure: Failure, reports: &mut Reports) {
        self.output.end();
        self.matched.clear();
        self.unmatched.clear();
        for id in 0..self.open.len() {
            if let Some(open) = &mut self.open[id] {
                open.is_finished = true;
                if !open.is_reported {
                    open.failure.get_or_insert(failure);
                }
                self.end_if_done(u32::try_from(id).expect("at most MOST_OPEN"), reports);
            }
        }
        for send in std::mem::take(&mut self.waiting) {
            reports.send_ended(&send, Err(failure));
        }
        self.accesses.end(failure, &mut self.output, reports);
    }
}
