//! The receives of an endpoint, the messages that no receive matches yet, and the ends of both.

use crate::address::Address;
use crate::buffer::{Buffer, Segments};
use crate::completion::{Completion, Failure, Operation};
use crate::entry::{Envelope, INLINE_BYTES, MessageId};
use crate::matching::{EntryId, Matching, MessageKey, ReceiveId, Selector, Source};
use crate::reports::Reports;
use crate::request::{Completes, ReceiveRequest};
use std::collections::HashMap;

/// Bytes that each kept message counts against the limit besides its payload. Source: the sizes of its entries here and
/// in its receiver, rounded.
pub(crate) const KEPT_OVERHEAD: u64 = 512;

/// A posted receive.
#[derive(Debug)]
pub(crate) struct Posted {
    segments: Segments,
    context: u64,
    completes: Completes,
    /// The number of the buffer for many messages.
    many: Option<usize>,
}

impl Posted {
    /// Returns where a message of `len` bytes goes. The receive is not one for many messages.
    #[inline]
    fn target(self, len: u64) -> Target {
        let Posted { segments, context, completes, .. } = self;
        Target { segments, takes: len.min(segments.len()), context, completes, many: None }
    }
}

/// A buffer that receives messages one after the other.
#[derive(Debug)]
struct ManyBuffer {
    buffer: Buffer,
    used: u64,
    /// The buffer takes no message when fewer bytes are free.
    least_free: u64,
    /// Messages that are being received into it.
    under_way: usize,
    /// True if it takes no more messages.
    is_closed: bool,
    /// Why it ends after the messages that are under way, if it ends before it is full.
    ends_with: Option<Failure>,
    context: u64,
    is_tagged: bool,
}

/// Where a message goes.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) segments: Segments,
    /// Bytes that the receive takes.
    pub(crate) takes: u64,
    context: u64,
    completes: Completes,
    many: Option<usize>,
}

/// A message that no receive matches yet.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) envelope: Envelope,
    pub(crate) body: Body,
    /// The receiver and the number of a message whose sender waits for the match.
    pub(crate) wants_answer: Option<(u32, MessageId)>,
}

/// The bytes of a kept message.
#[derive(Debug)]
pub(crate) enum Body {
    /// A short message.
    Inline([u8; INLINE_BYTES]),
    /// An eager message.
    Bytes(Box<[u8]>),
    /// A longer message; its receiver has the pieces.
    Pieces { receiver: u32, id: MessageId },
    /// The rest will never come.
    Lost(Failure),
}

/// Where a kept message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeptAt {
    /// Among those that receives match.
    Queue(EntryId),
    /// Claimed under a context.
    Claimed(u64),
}

/// All receives of an endpoint.
#[derive(Debug)]
pub(crate) struct Receives {
    pub(crate) matching: Matching<Posted, Kept>,
    claimed: HashMap<u64, (MessageKey, Kept)>,
    many: Vec<Option<ManyBuffer>>,
    /// Bytes of kept messages.
    kept_bytes: u64,
    kept_limit: u64,
    /// The addresses of the sources.
    pub(crate) sources: Vec<Address>,
    pub(crate) reports: Reports,
    /// Longer messages that a receive matches and that are not wholly there.
    pub(crate) under_way: usize,
    /// Connections that are not read, see `is_over_limit`.
    pub(crate) blocked_receivers: usize,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
    pub(crate) unexpected: u64,
}

impl Receives {
    pub(crate) fn new(kept_limit: u64) -> Receives {
        Receives {
            matching: Matching::default(),
            claimed: HashMap::new(),
            many: Vec::new(),
            kept_bytes: 0,
            kept_limit,
            sources: Vec::new(),
            reports: Reports::default(),
            under_way: 0,
            blocked_receivers: 0,
            received: 0,
            received_bytes: 0,
            unexpected: 0,
        }
    }

    /// True if the kept messages exceed their limit.
    #[inline]
    pub(crate) fn is_over_limit(&self) -> bool {
        self.kept_bytes > self.kept_limit
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Returns the sources of the messages that are kept or claimed.
    pub(crate) fn kept_sources(&self) -> impl Iterator<Item = Source> {
        let claimed = self.claimed.values().map(|(key, _)| key);
        self.matching.kept_keys().chain(claimed).map(|key| key.source)
    }

    /// Posts a receive that no kept message matches.
    pub(crate) fn post(&mut self, selector: Selector, request: &ReceiveRequest, many: Option<usize>) {
        let posted =
            Posted { segments: request.segments, context: request.context, completes: request.completes, many };
        self.matching.post(selector, posted);
    }

    /// Opens a buffer for many messages.
    pub(crate) fn open_many(&mut self, request: &ReceiveRequest, least_free: u64) -> usize {
        let many = ManyBuffer {
            buffer: request.segments.as_slice().first().copied().unwrap_or_default(),
            used: 0,
            least_free,
            under_way: 0,
            is_closed: false,
            ends_with: None,
            context: request.context,
            is_tagged: request.tag.is_some(),
        };
        if let Some(number) = self.many.iter().position(Option::is_none) {
            self.many[number] = Some(many);
            number
        } else {
            self.many.push(Some(many));
            self.many.len() - 1
        }
    }

    /// True if the buffer takes more messages.
    pub(crate) fn takes_more(&self, many: usize) -> bool {
        self.many.get(many).is_some_and(|many| many.as_ref().is_some_and(|many| !many.is_closed))
    }

    /// Takes room for a message of `len` bytes in a receive that is not posted.
    pub(crate) fn target(&mut self, request: &ReceiveRequest, many: Option<usize>, len: u64) -> Target {
        let (context, completes) = (request.context, request.completes);
        match many {
            Some(number) => self.take_part(number, context, completes, len),
            None => Target {
                segments: request.segments,
                takes: len.min(request.segments.len()),
                context,
                completes,
                many: None,
            },
        }
    }

    /// Takes a part of a buffer for many messages.
    fn take_part(&mut self, number: usize, context: u64, completes: Completes, len: u64) -> Target {
        let (mut segments, mut takes) = (Segments::default(), 0);
        if let Some(Some(many)) = self.many.get_mut(number) {
            let part = many.buffer.part(many.used, len);
            takes = part.len();
            many.used += takes;
            many.under_way += 1;
            let free = many.buffer.len() - many.used;
            many.is_closed = free == 0 || free < many.least_free;
            segments = Segments::new(&[part]).expect("a part of a buffer that was checked");
        }
        Target { segments, takes, context, completes, many: Some(number) }
    }

    /// Finds the receive for a message that arrives, and takes room there.
    #[inline]
    pub(crate) fn target_for(&mut self, key: &MessageKey, len: u64) -> Option<Target> {
        if let Some(posted) = self.matching.take_receive_for(key, |posted| posted.many.is_none()) {
            return Some(posted.target(len));
        }
        let id = self.matching.receive_for(key)?;
        let posted = self.matching.receive_mut(id)?;
        if let Some(number) = posted.many {
            let (context, completes) = (posted.context, posted.completes);
            let target = self.take_part(number, context, completes, len);
            if !self.takes_more(number) {
                self.matching.remove_receive(id);
            }
            return Some(target);
        }
        let (_, posted) = self.matching.remove_receive(id)?;
        Some(posted.target(len))
    }

    /// Ends the reception of a message.
    #[inline]
    pub(crate) fn ended(&mut self, target: &Target, source: Source, envelope: &Envelope, failure: Option<Failure>) {
        let excess = envelope.len - target.takes;
        let result = match failure {
            Some(failure) => Err(failure),
            None if excess > 0 => Err(Failure::Truncated { excess }),
            None => Ok(()),
        };
        self.reports.operations.ended(Operation::Receive, result.is_ok());
        if result.is_ok() {
            self.received += 1;
            self.received_bytes += envelope.len;
        } else {
            self.reports.failed += 1;
        }
        let mut completion = Completion {
            context: target.context,
            operation: Operation::Receive,
            is_tagged: envelope.is_tagged,
            len: if failure.is_some() { 0 } else { target.takes },
            address: target.segments.as_slice().first().map_or(0, Buffer::address),
            tag: envelope.tag,
            data: envelope.data,
            source: self.sources.get(source.0 as usize).copied(),
            releases_buffer: false,
            result,
        };
        let end_of_buffer = match target.many {
            Some(number) => self.message_of_many_ended(number, &mut completion),
            None => None,
        };
        if result.is_err() || target.completes == Completes::Always || completion.releases_buffer {
            self.reports.completions.push_back(completion);
        }
        if let Some(end) = end_of_buffer {
            self.reports.operations.ended(Operation::Receive, false);
            self.reports.completions.push_back(end);
        }
    }

    /// A peer has written to the memory of this process, with a word for a completion.
    pub(crate) fn written_by_peer(&mut self, source: Source, len: u64, data: u64) {
        self.reports.completions.push_back(Completion {
            context: 0,
            operation: Operation::WrittenByPeer,
            is_tagged: false,
            len,
            address: 0,
            tag: 0,
            data: Some(data),
            source: self.sources.get(source.0 as usize).copied(),
            releases_buffer: false,
            result: Ok(()),
        });
    }

    /// A message in a buffer for many has ended; the last one releases the buffer. Returns the completion of a buffer
    /// that ends before it is full.
    fn message_of_many_ended(&mut self, number: usize, completion: &mut Completion) -> Option<Completion> {
        let many = self.many.get_mut(number)?.as_mut()?;
        many.under_way -= 1;
        if many.under_way > 0 || !many.is_closed {
            return None;
        }
        let ended = many.ends_with.map(|failure| receive_failed(many.context, many.is_tagged, failure, true));
        completion.releases_buffer = ended.is_none();
        self.reports.failed += u64::from(ended.is_some());
        self.many[number] = None;
        ended
    }

    /// Ends a receive that is posted.
    pub(crate) fn fail_posted(&mut self, id: ReceiveId, failure: Failure) {
        let Some((selector, posted)) = self.matching.remove_receive(id) else { return };
        if let Some(number) = posted.many
            && let Some(Some(many)) = self.many.get_mut(number)
        {
            many.is_closed = true;
            if many.under_way > 0 {
                many.ends_with = Some(failure);
                return;
            }
            self.many[number] = None;
        }
        self.reports.failed += 1;
        self.reports.operations.ended(Operation::Receive, false);
        let ended = receive_failed(posted.context, selector.tag.is_some(), failure, posted.many.is_some());
        self.reports.completions.push_back(ended);
    }

    /// Ends all posted receives from one source.
    pub(crate) fn fail_source(&mut self, source: Source, failure: Failure) {
        while let Some(id) = self.matching.find_receive(|selector, _| selector.from == Some(source)) {
            self.fail_posted(id, failure);
        }
    }

    /// Cancels the oldest posted receive with this context.
    pub(crate) fn cancel(&mut self, context: u64) -> bool {
        let found = self.matching.find_receive(|_, posted| posted.context == context);
        found.inspect(|&id| self.fail_posted(id, Failure::Canceled)).is_some()
    }

    /// Keeps a message that no receive matches.
    pub(crate) fn keep(&mut self, key: MessageKey, kept: Kept) -> EntryId {
        self.kept_bytes += kept_bytes(&kept);
        self.unexpected += 1;
        self.matching.keep(key, kept)
    }

    /// Takes a kept message out of the matching.
    pub(crate) fn take_kept(&mut self, id: EntryId) -> Option<(MessageKey, Kept)> {
        let (key, kept) = self.matching.remove_message(id)?;
        self.kept_bytes -= kept_bytes(&kept);
        Some((key, kept))
    }

    /// Reports that a probe has found a message.
    pub(crate) fn found(&mut self, context: u64, key: &MessageKey, envelope: &Envelope) {
        self.reports.completions.push_back(Completion {
            context,
            operation: Operation::Probe,
            is_tagged: envelope.is_tagged,
            len: envelope.len,
            address: 0,
            tag: envelope.tag,
            data: envelope.data,
            source: self.sources.get(key.source.0 as usize).copied(),
            releases_buffer: false,
            result: Ok(()),
        });
    }

    /// Reports that a probe has found no message.
    pub(crate) fn found_nothing(&mut self, context: u64, is_tagged: bool) {
        let failed = receive_failed(context, is_tagged, Failure::NoMessage, false);
        self.reports.completions.push_back(Completion { operation: Operation::Probe, ..failed });
    }

    /// Takes a kept message out of the matching, under a context. It still counts against the limit. False if there is
    /// none.
    pub(crate) fn claim(&mut self, id: EntryId, context: u64) -> bool {
        let Some(claimed) = self.matching.remove_message(id) else { return false };
        self.claimed.insert(context, claimed);
        true
    }

    /// True if a message is claimed under this context.
    pub(crate) fn is_claimed(&self, context: u64) -> bool {
        self.claimed.contains_key(&context)
    }

    /// Takes a claimed message.
    pub(crate) fn take_claimed(&mut self, context: u64) -> Option<(MessageKey, Kept)> {
        let (key, kept) = self.claimed.remove(&context)?;
        self.kept_bytes -= kept_bytes(&kept);
        Some((key, kept))
    }

    /// The rest of a kept message will never come. A receive that matches it fails.
    pub(crate) fn fail_kept(&mut self, at: KeptAt, failure: Failure) {
        let kept = match at {
            KeptAt::Queue(id) => self.matching.message_mut(id),
            KeptAt::Claimed(context) => self.claimed.get_mut(&context).map(|(_, kept)| kept),
        };
        if let Some(kept) = kept {
            kept.body = Body::Lost(failure);
        }
    }

    /// Drops a kept message whose rest will never come. A claimed one fails later, since its caller has its context.
    pub(crate) fn drop_kept(&mut self, at: KeptAt, failure: Failure) {
        match at {
            KeptAt::Queue(id) => drop(self.take_kept(id)),
            KeptAt::Claimed(_) => self.fail_kept(at, failure),
        }
    }
}

/// The bytes that a kept message counts against the limit.
fn kept_bytes(kept: &Kept) -> u64 {
    KEPT_OVERHEAD + if let Body::Bytes(bytes) = &kept.body { bytes.len() as u64 } else { 0 }
}

/// The end of a receive that has no message.
fn receive_failed(context: u64, is_tagged: bool, failure: Failure, releases_buffer: bool) -> Completion {
    Completion {
        context,
        operation: Operation::Receive,
        is_tagged,
        len: 0,
        address: 0,
        tag: 0,
        data: None,
        source: None,
        releases_buffer,
        result: Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_for_many_messages_reports_why_it_ends() {
        for failure in [Failure::PeerDied, Failure::Canceled] {
            let mut receives = Receives::new(1 << 20);
            receives.sources.push(Address { boot: [7; 16], user: 1, process: 2, number: 3 });
            let buffer = Buffer::unused(10_000);
            let request = ReceiveRequest {
                segments: Segments::new(&[buffer]).unwrap(),
                from: None,
                tag: None,
                context: 5,
                completes: Completes::Always,
                many: Some(100),
            };
            let many = receives.open_many(&request, 100);
            receives.post(Selector { from: Some(Source(0)), tag: None }, &request, Some(many));
            let envelope = Envelope { is_tagged: false, tag: 0, data: None, len: 1000 };
            let target = receives.target_for(&MessageKey { source: Source(0), tag: None }, 1000).unwrap();
            // A device copies a message into the buffer when the peer ends, or when the caller cancels the receive.
            receives.fail_source(Source(0), failure);
            assert!(receives.reports.completions.is_empty());
            receives.ended(&target, Source(0), &envelope, None);
            let ends = receives.reports.completions.iter().map(|end| (end.context, end.releases_buffer, end.result));
            assert_eq!(ends.collect::<Vec<_>>(), [(5, false, Ok(())), (5, true, Err(failure))]);
        }
    }
}
