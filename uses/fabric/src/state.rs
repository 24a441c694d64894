//! What the lock of an endpoint guards: its peers, their connections, its operations, and the progress of all messages.
//!
//! ```text
//! send ─────► Sender of the peer ─► ring ─► (the peer)
//! receive ──► Receives ◄── Receiver of each connection ◄── ring
//! advance ──► events, receivers, senders, copies of the device ─► completions
//! ```

use crate::accesses::StartedAccess;
use crate::address::Address;
use crate::atomics::{AtomicForm, AtomicOp};
use crate::buffer::TakenBytes;
use crate::completion::Failure;
use crate::config::Config;
use crate::connector::Connector;
use crate::copier::{Copier, CopyFor};
use crate::entry::{Envelope, MessageId};
use crate::error::FabricError;
use crate::events::{ConnectionId, ConnectorEvent};
use crate::incoming::Incoming;
use crate::matching::{MessageKey, Selector, Source};
use crate::peers::{Half, In, Out, Party, Stall};
use crate::receiver::Receiver;
use crate::receives::{Body, Kept, KeptAt, Receives, Target};
use crate::regions::{Regions, RemoteRange};
use crate::reports::Outbound;
use crate::request::{
    AccessKind, AccessRequest, PeerId, ProbeAction, ProbeRequest, ReceiveRequest, SendEnd, SendRequest, TagMatch,
};
use crate::sender::Sender;
use crate::shown_files::OwnFiles;
use crate::stats::{Publication, Stats};
use crate::ways::Ways;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use telpher_mem::Fault;

/// Receivers that are polled in every pass; the others take turns. Source: assumed; a poll loads one cache line.
const POLLED_ALWAYS: usize = 8;

/// Processes that become known before unused ones are forgotten, or more if more are in use. Source: chosen.
const LEAST_UNTIL_SWEEP: usize = 64;

/// The state of an endpoint.
#[derive(Debug)]
pub(crate) struct State {
    /// First, since it is dropped first: the device must not use the memory of a connection that is unmapped.
    pub(crate) copier: Copier,
    config: Config,
    regions: Arc<Regions>,
    mappings: Arc<OwnFiles>,
    pub(crate) receives: Receives,
    pub(crate) parties: Vec<Party>,
    pub(crate) party_of: HashMap<Address, Source>,
    /// Places of `parties` that are free.
    unused_parties: Vec<Source>,
    /// Processes that may become known before the unused ones are forgotten.
    parties_until_sweep: usize,
    /// The parties of the inserted peers, by their numbers.
    pub(crate) peers: Vec<Option<Source>>,
    /// Numbers are not used again.
    pub(crate) senders: Vec<Option<Box<Out>>>,
    pub(crate) receivers: Vec<Option<Box<In>>>,
    /// The senders that wait for something.
    busy: Vec<u32>,
    /// The receivers, those with recent messages first.
    polled: Vec<u32>,
    next_turn: usize,
    next_recent: usize,
    connections: HashMap<ConnectionId, Half>,
    events: Vec<ConnectorEvent>,
    pub(crate) collected: Vec<(CopyFor, Result<(), Fault>)>,
    sends_that_waited: u64,
    wakes: u64,
    died: u64,
    broken: u64,
    /// None once the endpoint is closed.
    publication: Option<Publication>,
    /// True if the helper thread was asked to make progress and has not done so yet.
    pub(crate) is_helper_asked: bool,
    /// True once the endpoint is closed: no thread may touch the callers' buffers any more.
    pub(crate) is_closed: bool,
}

impl State {
    pub(crate) fn new(config: Config, copier: Copier, regions: Arc<Regions>) -> State {
        State {
            copier,
            receives: Receives::new(config.unexpected_bytes),
            config,
            regions,
            mappings: Arc::<OwnFiles>::default(),
            parties: Vec::new(),
            party_of: HashMap::new(),
            unused_parties: Vec::new(),
            parties_until_sweep: LEAST_UNTIL_SWEEP,
            peers: Vec::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            busy: Vec::new(),
            polled: Vec::new(),
            next_turn: 0,
            next_recent: 0,
            connections: HashMap::new(),
            events: Vec::new(),
            collected: Vec::new(),
            sends_that_waited: 0,
            wakes: 0,
            died: 0,
            broken: 0,
            publication: Some(Publication::new()),
            is_helper_asked: false,
            is_closed: false,
        }
    }

    /// Returns the number of a process, and makes it known if it is new.
    fn source_of(&mut self, address: &Address) -> Source {
        if let Some(&source) = self.party_of.get(address) {
            return source;
        }
        if self.parties_until_sweep == 0 {
            self.forget_unused_parties();
        }
        self.parties_until_sweep -= 1;
        let party = Party {
            address: *address,
            peer: None,
            sender: None,
            receivers: 0,
            is_unreachable: false,
            has_left: false,
            later: VecDeque::new(),
        };
        let source = if let Some(source) = self.unused_parties.pop() {
            self.parties[source.0 as usize] = party;
            self.receives.sources[source.0 as usize] = *address;
            source
        } else {
            self.parties.push(party);
            self.receives.sources.push(*address);
            Source(u32::try_from(self.parties.len() - 1).expect("a party has more than a byte"))
        };
        self.party_of.insert(*address, source);
        source
    }

    /// Forgets the processes that no peer number, connection or message names. Without this, a process that connects
    /// again and again with other addresses would bind more and more memory.
    #[cold]
    fn forget_unused_parties(&mut self) {
        let mut is_used = vec![false; self.parties.len()];
        let peers = self.peers.iter().flatten().copied();
        let senders = self.senders.iter().flatten().map(|out| out.party);
        let receivers = self.receivers.iter().flatten().map(|from| from.receiver.source());
        for source in peers.chain(senders).chain(receivers).chain(self.receives.kept_sources()) {
            is_used[source.0 as usize] = true;
        }
        let unused = &mut self.unused_parties;
        self.party_of.retain(|_, source| {
            let keeps = is_used[source.0 as usize];
            if !keeps {
                unused.push(*source);
            }
            keeps
        });
        self.parties_until_sweep = self.party_of.len().max(LEAST_UNTIL_SWEEP);
    }

    pub(crate) fn insert_peer(&mut self, address: &Address) -> PeerId {
        let source = self.source_of(address);
        let next = PeerId(self.peers.len() as u64);
        let party = &mut self.parties[source.0 as usize];
        let peer = *party.peer.get_or_insert(next);
        if peer == next {
            self.peers.push(Some(source));
        }
        peer
    }

    #[inline]
    pub(crate) fn party(&self, peer: PeerId) -> Result<Source, FabricError> {
        let party = usize::try_from(peer.0).ok().and_then(|number| self.peers.get(number).copied().flatten());
        party.ok_or(FabricError::UnknownPeer { number: peer.0 })
    }

    #[inline]
    pub(crate) fn selector(&self, from: Option<PeerId>, tag: Option<TagMatch>) -> Result<Selector, FabricError> {
        let from = match from {
            Some(peer) => Some(self.party(peer)?),
            None => None,
        };
        Ok(Selector { from, tag })
    }

    /// Returns the sender to a peer, and starts to connect if there is none.
    #[inline]
    pub(crate) fn sender_to(&mut self, peer: PeerId, connector: &Connector) -> Result<u32, FabricError> {
        let source = self.party(peer)?;
        match self.parties[source.0 as usize].sender {
            Some(index) => Ok(index),
            None => self.connect(source, connector),
        }
    }

    #[cold]
    fn connect(&mut self, source: Source, connector: &Connector) -> Result<u32, FabricError> {
        let party = &mut self.parties[source.0 as usize];
        if party.is_unreachable {
            return Err(FabricError::Unreachable { address: party.address });
        }
        let connection = connector.connect(&party.address)?;
        let index = u32::try_from(self.senders.len()).expect("a sender has more than a byte");
        let sender = Sender::new(index, party.address, &self.config, Arc::clone(&self.mappings));
        party.sender = Some(index);
        let out = Out { sender, party: source, connection, is_busy: false, stall: Stall::default() };
        self.senders.push(Some(Box::new(out)));
        self.connections.insert(connection, Half::Out(index));
        Ok(index)
    }

    #[inline]
    pub(crate) fn send(&mut self, index: u32, request: &SendRequest, connector: &Connector) -> Result<(), FabricError> {
        let Some(Some(out)) = self.senders.get_mut(index as usize) else { return Ok(()) };
        let sender = &mut out.sender;
        if sender.is_full() {
            return Err(FabricError::Full { to: sender.address() });
        }
        let (is_tagged, tag) = (request.tag.is_some(), request.tag.unwrap_or(0));
        let envelope = Envelope { is_tagged, tag, data: request.data, len: request.segments.len() };
        if request.end == SendEnd::BufferFree {
            match sender.push_eager(&envelope, request, &mut self.receives.reports) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(_) => {
                    self.end_sender(index, Failure::PeerBroken, connector);
                    return Ok(());
                }
            }
        }
        self.send_otherwise(index, envelope, request, connector)
    }

    /// Sends a message that has to wait, is long, or is answered.
    fn send_otherwise(
        &mut self,
        index: u32,
        envelope: Envelope,
        request: &SendRequest,
        connector: &Connector,
    ) -> Result<(), FabricError> {
        let Some(Some(out)) = self.senders.get_mut(index as usize) else { return Ok(()) };
        let sender = &mut out.sender;
        let mut send = Outbound {
            envelope,
            segments: request.segments,
            taken: None,
            context: request.context,
            completes: request.completes,
            end: request.end,
        };
        let is_long = send.envelope.len > u64::from(self.config.eager_bytes);
        if request.inject && send.envelope.len > self.config.memory_bytes {
            return Err(FabricError::Limit {
                what: "the length of an injected message",
                limit: self.config.memory_bytes,
                advice: "send it without a copy",
            });
        }
        if request.inject
            && is_long
            && let Err(failure) = take(&mut send, &self.copier)
        {
            self.receives.reports.send_ended(&send, Err(failure));
            return Ok(());
        }
        let mut send = Some(send);
        let tried = sender.try_now(&mut send, &mut self.receives.reports);
        if let Some(mut send) = send {
            if request.inject
                && send.taken.is_none()
                && let Err(failure) = take(&mut send, &self.copier)
            {
                self.receives.reports.send_ended(&send, Err(failure));
                return Ok(());
            }
            self.sends_that_waited += 1;
            sender.wait(send);
        } else if !is_long && !sender.is_busy() {
            return Ok(());
        }
        if tried.is_err() {
            self.end_sender(index, Failure::PeerBroken, connector);
            return Ok(());
        }
        self.make_busy(index);
        if is_long {
            self.advance_sender(index, connector);
            self.copier.submit();
        }
        Ok(())
    }

    /// Starts an access to a peer's memory.
    pub(crate) fn access(
        &mut self,
        index: u32,
        request: &AccessRequest,
        connector: &Connector,
    ) -> Result<(), FabricError> {
        let Some(Some(out)) = self.senders.get_mut(index as usize) else { return Ok(()) };
        if out.sender.is_full_of_accesses() {
            return Err(FabricError::Full { to: out.sender.address() });
        }
        let len = match &request.kind {
            AccessKind::Write { from, .. } => from.len(),
            AccessKind::Read { into } => into.len(),
            AccessKind::Atomic { len, .. } => *len,
        };
        check_atomic(&request.kind, &self.config)?;
        if request.inject && len > self.config.memory_bytes {
            return Err(FabricError::Limit {
                what: "the length of an injected write",
                limit: self.config.memory_bytes,
                advice: "write it without a copy",
            });
        }
        let access = StartedAccess {
            range: RemoteRange { key: request.remote.key, address: request.remote.address, len },
            kind: request.kind,
            context: request.context,
            completes: request.completes,
        };
        let started = out.sender.access(access, request.inject, &mut self.copier, &mut self.receives.reports);
        if started.is_err() {
            self.end_sender(index, Failure::PeerBroken, connector);
            return Ok(());
        }
        self.make_busy(index);
        self.copier.submit();
        Ok(())
    }

    fn make_busy(&mut self, index: u32) {
        if let Some(Some(out)) = self.senders.get_mut(index as usize)
            && !out.is_busy
        {
            out.is_busy = true;
            self.busy.push(index);
        }
    }

    #[inline]
    pub(crate) fn receive(&mut self, selector: Selector, request: &ReceiveRequest, connector: &Connector) {
        let many = request.many.map(|least_free| self.receives.open_many(request, least_free));
        while let Some(id) = self.receives.matching.message_for(&selector) {
            let Some((key, kept)) = self.receives.take_kept(id) else { return };
            let target = self.receives.target(request, many, kept.envelope.len);
            self.deliver(&key, kept, target, connector);
            if !many.is_some_and(|many| self.receives.takes_more(many)) {
                return;
            }
        }
        let silent = selector.from.filter(|from| self.parties[from.0 as usize].is_silent());
        self.receives.post(selector, request, many);
        if let Some(source) = silent {
            self.receives.fail_source(source, Failure::PeerDied);
        }
    }

    /// Puts a kept message into a buffer.
    pub(crate) fn deliver(&mut self, key: &MessageKey, kept: Kept, target: Target, connector: &Connector) {
        let bytes = match &kept.body {
            Body::Inline(bytes) => &bytes[..],
            Body::Bytes(bytes) => bytes,
            Body::Lost(failure) => {
                self.receives.ended(&target, key.source, &kept.envelope, Some(*failure));
                return;
            }
            Body::Pieces { receiver, id } => {
                let Some(Some(from)) = self.receivers.get_mut(*receiver as usize) else { return };
                let matched = from.receiver.matched(*id, target, &mut self.receives, &mut self.copier);
                self.copier.submit();
                self.receiver_moved(*receiver, matched.is_err(), connector);
                return;
            }
        };
        let copied = self.copier.scatter(bytes, &target.segments, target.takes);
        let failure = copied.err().map(|fault| Failure::BadBuffer { address: fault.address });
        self.receives.ended(&target, key.source, &kept.envelope, failure);
        self.answer(kept.wants_answer, connector);
    }

    /// Tells a sender that its message was matched or dropped.
    #[inline]
    fn answer(&mut self, wanted: Option<(u32, MessageId)>, connector: &Connector) {
        let Some((index, id)) = wanted else { return };
        let Some(Some(from)) = self.receivers.get_mut(index as usize) else { return };
        let is_broken = from.receiver.received(id).is_err();
        self.receiver_moved(index, is_broken, connector);
    }

    /// Drops a message that was taken out of the matching.
    pub(crate) fn discard(&mut self, kept: &Kept, connector: &Connector) {
        if let Body::Pieces { receiver, id } = kept.body
            && let Some(Some(from)) = self.receivers.get_mut(receiver as usize)
        {
            let is_broken = from.receiver.dropped(id).is_err();
            self.receiver_moved(receiver, is_broken, connector);
        }
        self.answer(kept.wants_answer, connector);
    }

    /// Returns how many injected messages and writes are not wholly in the memory of their connections.
    pub(crate) fn unsent_injections(&self) -> usize {
        self.senders.iter().flatten().map(|out| out.sender.unsent_injections()).sum()
    }

    pub(crate) fn probe(&mut self, selector: &Selector, request: &ProbeRequest, connector: &Connector) {
        let found = self.receives.matching.message_for(selector);
        let Some((id, (&key, kept))) = found.and_then(|id| Some((id, self.receives.matching.message(id)?))) else {
            self.receives.found_nothing(request.context, request.tag.is_some());
            return;
        };
        let pieces = if let Body::Pieces { receiver, id } = kept.body { Some((receiver, id)) } else { None };
        let envelope = kept.envelope;
        self.receives.found(request.context, &key, &envelope);
        match request.action {
            ProbeAction::Look => {}
            ProbeAction::Claim => {
                self.receives.claim(id, request.context);
                if let Some((receiver, message)) = pieces
                    && let Some(Some(from)) = self.receivers.get_mut(receiver as usize)
                {
                    from.receiver.moved(message, KeptAt::Claimed(request.context));
                }
            }
            ProbeAction::Discard => {
                if let Some((_, kept)) = self.receives.take_kept(id) {
                    self.discard(&kept, connector);
                }
            }
        }
    }

    /// One pass over everything that may move. True if something moved.
    #[inline]
    pub(crate) fn advance(&mut self, connector: &Connector) -> bool {
        let mut moved = false;
        connector.events(&mut self.events);
        if !self.events.is_empty() {
            self.handle_events(connector);
            moved = true;
        }
        moved |= self.poll_receivers(connector);
        if !self.busy.is_empty() {
            moved |= self.advance_senders(connector);
        }
        if self.copier.is_busy() {
            self.copier.submit();
            moved |= self.collect(connector);
        }
        let sends = self.receives.reports.eager_sent + self.receives.reports.long_sent;
        if self.publication.as_mut().is_some_and(|publication| publication.is_due(moved, sends)) {
            self.publish();
        }
        moved
    }

    /// Shows other processes the counters. Kept out of the code of a pass.
    #[cold]
    #[inline(never)]
    fn publish(&self) {
        if let Some(publication) = &self.publication {
            publication.publish(&self.statistics());
        }
    }

    /// Publishes the last counters of an endpoint that is closed.
    pub(crate) fn end_publication(&mut self) {
        if let Some(publication) = self.publication.take() {
            publication.end(self.statistics());
        }
    }

    #[inline]
    fn poll_receivers(&mut self, connector: &Connector) -> bool {
        let mut moved = false;
        for at in 0..POLLED_ALWAYS {
            // A poll may end a receiver, which shortens the list.
            let Some(&index) = self.polled.get(at) else { break };
            moved |= self.poll_receiver(index, connector);
        }
        if self.polled.len() > POLLED_ALWAYS {
            moved |= self.poll_turns(connector);
        }
        moved
    }

    /// Polls some of the receivers without recent messages.
    fn poll_turns(&mut self, connector: &Connector) -> bool {
        let mut moved = false;
        for _ in 0..POLLED_ALWAYS {
            let others = self.polled.len().saturating_sub(POLLED_ALWAYS);
            if others == 0 {
                break;
            }
            self.next_turn = (self.next_turn + 1) % others;
            let at = POLLED_ALWAYS + self.next_turn;
            let index = self.polled[at];
            if self.poll_receiver(index, connector) {
                moved = true;
                // It is polled always from now on, in place of the one that came first.
                if self.polled.get(at) == Some(&index) {
                    self.next_recent = (self.next_recent + 1) % POLLED_ALWAYS;
                    self.polled.swap(self.next_recent, at);
                }
            }
        }
        moved
    }

    #[inline]
    fn poll_receiver(&mut self, index: u32, connector: &Connector) -> bool {
        let Some(Some(from)) = self.receivers.get_mut(index as usize) else { return false };
        let result = from.receiver.progress(&mut self.receives, &mut self.copier);
        if from.receiver.has_ended() {
            self.receiver_moved(index, result.is_err(), connector);
            return true;
        }
        match result {
            Ok(false) => {
                if from.receiver.is_receiving() && from.stall.passed() {
                    self.wakes += 1;
                    connector.wake(from.connection);
                }
                return false;
            }
            Ok(true) => {
                from.stall = Stall::default();
                if from.peer_waits {
                    self.wake_if_it_waits(index, connector);
                }
                return true;
            }
            Err(_) => {}
        }
        self.receiver_moved(index, result.is_err(), connector);
        true
    }

    /// Ends a receiver that is broken, and forgets one that has ended.
    fn receiver_moved(&mut self, index: u32, is_broken: bool, connector: &Connector) {
        let Some(Some(from)) = self.receivers.get_mut(index as usize) else { return };
        if is_broken && !from.receiver.has_ended() {
            self.broken += 1;
            from.receiver.end(Failure::PeerBroken, &mut self.receives);
        }
        if !from.receiver.has_ended() {
            return;
        }
        let source = from.receiver.source();
        if self.connections.remove(&from.connection).is_some() {
            connector.close(from.connection);
            self.polled.retain(|&polled| polled != index);
            let party = &mut self.parties[source.0 as usize];
            party.receivers -= 1;
            party.has_left = true;
            if let Some(next) = party.later.pop_front()
                && let Some(Some(from)) = self.receivers.get_mut(next as usize)
            {
                from.is_polled = true;
                self.polled.push(next);
            }
            if is_broken {
                self.receives.fail_source(source, Failure::PeerBroken);
            } else if party.is_silent() {
                self.receives.fail_source(source, Failure::PeerDied);
            }
        }
        if let Some(Some(from)) = self.receivers.get(index as usize)
            && from.receiver.is_over()
        {
            self.receivers[index as usize] = None;
        }
    }

    fn advance_senders(&mut self, connector: &Connector) -> bool {
        let mut moved = false;
        let mut at = 0;
        while let Some(&index) = self.busy.get(at) {
            moved |= self.advance_sender(index, connector);
            match self.senders.get_mut(index as usize) {
                Some(Some(out)) if out.sender.is_busy() => at += 1,
                Some(Some(out)) => {
                    out.is_busy = false;
                    self.busy.swap_remove(at);
                }
                _ => {
                    self.busy.swap_remove(at);
                }
            }
        }
        moved
    }

    fn advance_sender(&mut self, index: u32, connector: &Connector) -> bool {
        let Some(Some(out)) = self.senders.get_mut(index as usize) else { return false };
        match out.sender.progress(&mut self.copier, &mut self.receives.reports) {
            Ok(true) => {
                out.stall = Stall::default();
                true
            }
            Ok(false) => {
                if out.stall.passed() {
                    self.wakes += 1;
                    connector.wake(out.connection);
                }
                false
            }
            Err(_) => {
                self.end_sender(index, Failure::PeerBroken, connector);
                true
            }
        }
    }

    /// Ends a connection to a peer.
    pub(crate) fn end_sender(&mut self, index: u32, failure: Failure, connector: &Connector) {
        let Some(Some(out)) = self.senders.get_mut(index as usize) else { return };
        self.broken += u64::from(failure == Failure::PeerBroken);
        if failure == Failure::PeerDied {
            // The peer may have received messages and ended before this side has read its answers. A broken answer
            // changes nothing: the connection ends anyway.
            let _ = out.sender.take_answers(&mut self.copier, &mut self.receives.reports);
        }
        out.sender.end(failure, &mut self.receives.reports);
        let (source, connection) = (out.party, out.connection);
        if out.sender.is_over() {
            self.senders[index as usize] = None;
        }
        if self.connections.remove(&connection).is_some() {
            connector.close(connection);
        }
        let party = &mut self.parties[source.0 as usize];
        if party.sender == Some(index) {
            party.sender = None;
            // A refusal may be temporary, such as too many open files: the next send tries again.
            party.is_unreachable |= matches!(failure, Failure::PeerDied | Failure::PeerBroken);
        }
        if party.is_silent() {
            self.receives.fail_source(source, Failure::PeerDied);
        }
    }

    /// Takes the results of the device.
    fn collect(&mut self, connector: &Connector) -> bool {
        let mut collected = std::mem::take(&mut self.collected);
        self.copier.collect(&mut collected);
        let moved = !collected.is_empty();
        for (purpose, result) in collected.drain(..) {
            match purpose {
                CopyFor::Sender { index, slot } => {
                    let Some(Some(out)) = self.senders.get_mut(index as usize) else { continue };
                    let copied = out.sender.slot_copied(slot, result, &mut self.receives.reports);
                    if out.sender.is_over() {
                        self.senders[index as usize] = None;
                    } else if copied.is_err() {
                        self.end_sender(index, Failure::PeerBroken, connector);
                    }
                }
                // Groups have copiers of their own.
                CopyFor::Chunk { .. } => {}
                CopyFor::Receiver { index, slot, id } => {
                    let Some(Some(from)) = self.receivers.get_mut(index as usize) else { continue };
                    let (receives, id) = (&mut self.receives, MessageId(id));
                    let copied = match slot {
                        Some(slot) => from.receiver.piece_copied(slot, id, result, receives),
                        None => from.receiver.part_copied(id, result.is_ok(), receives, &mut self.copier),
                    };
                    let copied = copied.and_then(|()| from.receiver.report_freed());
                    self.receiver_moved(index, copied.is_err(), connector);
                }
            }
        }
        self.collected = collected;
        if moved {
            // A receiver has perhaps started the next parts of a message.
            self.copier.submit();
        }
        moved
    }

    #[cold]
    fn handle_events(&mut self, connector: &Connector) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                ConnectorEvent::Connected { id, outgoing } => {
                    if let Some(&Half::Out(index)) = self.connections.get(&id)
                        && let Some(Some(out)) = self.senders.get_mut(index as usize)
                    {
                        out.sender.connected(outgoing, connector.socket(id));
                        self.make_busy(index);
                    }
                }
                ConnectorEvent::Refused { id, error } => {
                    if let Some(&Half::Out(index)) = self.connections.get(&id) {
                        let is_gone = matches!(error, FabricError::Unreachable { .. });
                        let failure = if is_gone { Failure::PeerDied } else { Failure::Refused };
                        self.end_sender(index, failure, connector);
                    }
                }
                ConnectorEvent::Accepted { id, from, incoming } => self.accepted(id, &from, incoming),
                ConnectorEvent::PeerWaits { id } => self.peer_waits(id, connector),
                ConnectorEvent::Died { id } => match self.connections.get(&id) {
                    Some(&Half::Out(index)) => {
                        self.died += 1;
                        self.end_sender(index, Failure::PeerDied, connector);
                    }
                    Some(&Half::In(index)) => {
                        if let Some(Some(from)) = self.receivers.get_mut(index as usize) {
                            from.receiver.peer_gone();
                        }
                    }
                    None => {}
                },
            }
        }
        self.events = events;
    }

    /// A peer has connected. If an earlier connection from it has not ended, the messages of that one come first: the
    /// peer has removed this endpoint and inserted it again.
    fn accepted(&mut self, connection: ConnectionId, from: &Address, incoming: Incoming) {
        let source = self.source_of(from);
        let index = u32::try_from(self.receivers.len()).expect("a receiver has more than a byte");
        let seed = u64::from(from.process) << 32 | u64::from(index);
        let ways = Ways::new(self.config.pull_bytes, self.config.mapped_bytes, seed);
        let regions = Arc::clone(&self.regions);
        let receiver = Receiver::new(index, source, from.process, incoming, regions, self.config.accepts_words, ways);
        let party = &mut self.parties[source.0 as usize];
        let is_first = party.receivers == 0;
        party.receivers += 1;
        if is_first {
            self.polled.push(index);
        } else {
            party.later.push_back(index);
        }
        let from = In { receiver, connection, stall: Stall::default(), is_polled: is_first, peer_waits: false };
        self.receivers.push(Some(Box::new(from)));
        self.connections.insert(connection, Half::In(index));
    }

    /// A sender waits for this side. It is woken when it can go on: it has room, or an answer.
    fn peer_waits(&mut self, id: ConnectionId, connector: &Connector) {
        let Some(&Half::In(index)) = self.connections.get(&id) else { return };
        let Some(Some(from)) = self.receivers.get_mut(index as usize) else { return };
        from.receiver.clear_wait();
        from.peer_waits = true;
        if !from.is_polled {
            return;
        }
        self.poll_receiver(index, connector);
        // Nothing may be left to take, since another thread took it after the peer had looked.
        if let Some(Some(from)) = self.receivers.get(index as usize)
            && !from.receiver.is_blocked()
        {
            self.wake_if_it_waits(index, connector);
        }
    }

    fn wake_if_it_waits(&mut self, index: u32, connector: &Connector) {
        if let Some(Some(from)) = self.receivers.get_mut(index as usize)
            && std::mem::take(&mut from.peer_waits)
        {
            from.receiver.publish_taken();
            self.wakes += 1;
            connector.wake(from.connection);
        }
    }

    /// True if this side waits for a peer, or can take messages that it could not take before.
    pub(crate) fn has_work(&self) -> bool {
        let receives = &self.receives;
        !self.busy.is_empty() || receives.under_way > 0 || (receives.blocked_receivers > 0 && !receives.is_over_limit())
    }

    /// Wakes all peers that this side waits for.
    pub(crate) fn wake_awaited(&mut self, connector: &Connector) {
        for index in &self.busy {
            if let Some(Some(out)) = self.senders.get(*index as usize) {
                self.wakes += 1;
                connector.wake(out.connection);
            }
        }
        for from in self.receivers.iter().flatten().filter(|from| from.receiver.is_receiving()) {
            self.wakes += 1;
            connector.wake(from.connection);
        }
    }

    pub(crate) fn statistics(&self) -> Stats {
        let (reports, copies) = (&self.receives.reports, self.copier.counts());
        Stats {
            eager_messages_sent: reports.eager_sent,
            long_messages_sent: reports.long_sent,
            bytes_sent: reports.bytes_sent,
            messages_received: self.receives.received,
            bytes_received: self.receives.received_bytes,
            unexpected_messages: self.receives.unexpected,
            unexpected_bytes: self.receives.kept_bytes(),
            sends_that_waited: self.sends_that_waited,
            pieces_by_cpu: copies.by_cpu,
            pieces_by_device: copies.by_device,
            fallbacks: copies.by_fallback,
            slots_by_plain_stores: reports.slots_plain,
            slots_by_streaming: reports.slots_streaming,
            pulls: reports.pulls,
            pulls_refused: reports.pulls_refused,
            pulls_slow: reports.pulls_slow,
            pulls_mapped: reports.pulls_mapped,
            reads: reports.reads,
            writes: reports.writes,
            atomics: reports.atomics,
            accesses_served: reports.served,
            accesses_refused: reports.refused,
            failed_operations: reports.failed,
            wakes_sent: self.wakes,
            peers_died: self.died,
            peers_broken: self.broken,
        }
    }
}

/// Checks that an atomic operation exists and has as many operands as elements.
fn check_atomic(kind: &AccessKind, config: &Config) -> Result<(), FabricError> {
    let AccessKind::Atomic { atomic, len, operands, compares, results } = kind else { return Ok(()) };
    let form = match results {
        None => AtomicForm::Plain,
        Some(_) if atomic.op.compares() => AtomicForm::Compare,
        Some(_) => AtomicForm::Fetch,
    };
    let lengths = [operands.len(), compares.len(), results.map_or(*len, |results| results.len())];
    let expected =
        [if atomic.op == AtomicOp::Read { 0 } else { *len }, if atomic.op.compares() { *len } else { 0 }, *len];
    if *len == 0 || !len.is_multiple_of(atomic.of.bytes()) || lengths != expected || !atomic.exists(form) {
        return Err(FabricError::WrongAtomic);
    }
    if *len > config.atomic_bytes() {
        return Err(FabricError::Limit {
            what: "the length of an atomic operation",
            limit: config.atomic_bytes(),
            advice: "divide it",
        });
    }
    Ok(())
}

/// Takes the bytes of an injected message.
fn take(send: &mut Outbound, copier: &Copier) -> Result<(), Failure> {
    let bad = |address| Failure::BadBuffer { address };
    let (taken, segments) = TakenBytes::of(&send.segments, &copier.local()).map_err(bad)?;
    (send.taken, send.segments) = (Some(taken), segments);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_nothing_names_are_forgotten() {
        let mut state = State::new(Config::default(), Copier::cpu(), Arc::default());
        let address = |number| Address { boot: [7; 16], user: 1, process: 2, number };
        let peers: Vec<PeerId> = (0..100).map(|number| state.insert_peer(&address(number))).collect();
        for number in 1000..20_000 {
            let source = state.source_of(&address(number));
            assert_eq!(state.source_of(&address(number)), source);
            assert_eq!(state.receives.sources[source.0 as usize], address(number));
        }
        assert!(state.parties.len() < 400, "{}", state.parties.len());
        for (number, peer) in (0..).zip(peers) {
            let source = state.party(peer).unwrap();
            assert_eq!(state.parties[source.0 as usize].address, address(number));
            assert_eq!(state.insert_peer(&address(number)), peer);
        }
    }
}
