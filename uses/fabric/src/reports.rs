//! What the operations of callers report, and what is counted.

use crate::access_counters::AccessCounters;
use crate::buffer::{Buffer, Segments, TakenBytes};
use crate::completion::{Completion, Failure, Operation};
use crate::entry::Envelope;
use crate::operation_counters::OperationCounters;
use crate::request::{Completes, SendEnd, SendRequest};
use std::collections::VecDeque;
use telpher_mem::WriteHint;

/// A send of a caller.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) envelope: Envelope,
    /// The bytes of the caller, or of `owned`.
    pub(crate) segments: Segments,
    /// The bytes of an injected message that waits; `segments` names them.
    pub(crate) taken: Option<TakenBytes>,
    pub(crate) context: u64,
    pub(crate) completes: Completes,
    pub(crate) end: SendEnd,
}

/// The completions that no caller has taken yet, and counts.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) eager_sent: u64,
    pub(crate) long_sent: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) failed: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) atomics: u64,
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) pulls: u64,
    pub(crate) pulls_refused: u64,
    pub(crate) pulls_slow: u64,
    pub(crate) pulls_mapped: u64,
    pub(crate) slots_plain: u64,
    pub(crate) slots_streaming: u64,
    /// What counts accesses of peers, if the caller wants them counted.
    pub(crate) accesses_of_peers: AccessCounters,
    /// What counts the operations of the caller.
    pub(crate) operations: OperationCounters,
}

impl Reports {
    /// Ends a send.
    pub(crate) fn send_ended(&mut self, send: &Outbound, result: Result<(), Failure>) {
        self.sent(&send.envelope, &send.segments, send.context, send.completes, result);
    }

    /// Ends a send of which nothing else was kept.
    #[inline]
    pub(crate) fn request_ended(&mut self, envelope: &Envelope, request: &SendRequest, result: Result<(), Failure>) {
        self.sent(envelope, &request.segments, request.context, request.completes, result);
    }

    #[inline]
    fn sent(
        &mut self,
        envelope: &Envelope,
        segments: &Segments,
        context: u64,
        completes: Completes,
        result: Result<(), Failure>,
    ) {
        self.operations.ended(Operation::Send, result.is_ok());
        if result.is_err() {
            self.failed += 1;
        } else {
            self.bytes_sent += envelope.len;
            if completes == Completes::OnError {
                return;
            }
        }
        self.completions.push_back(Completion {
            context,
            operation: Operation::Send,
            is_tagged: envelope.is_tagged,
            len: envelope.len,
            address: segments.as_slice().first().map_or(0, Buffer::address),
            tag: envelope.tag,
            data: None,
            source: None,
            releases_buffer: false,
            result,
        });
    }

    /// The CPU has filled a slot.
    #[inline]
    pub(crate) fn filled(&mut self, hint: WriteHint) {
        match hint {
            WriteHint::Stream | WriteHint::Memory => self.slots_streaming += 1,
            WriteHint::Cache => self.slots_plain += 1,
        }
    }

    /// Ends an access.
    pub(crate) fn access_ended(&mut self, completion: Completion, completes: Completes) {
        self.operations.ended(completion.operation, completion.result.is_ok());
        match completion.result {
            Err(_) => self.failed += 1,
            Ok(()) => match completion.operation {
                Operation::Read => self.reads += 1,
                Operation::Write => self.writes += 1,
                _ => self.atomics += 1,
            },
        }
        if completion.result.is_err() || completes == Completes::Always {
            self.completions.push_back(completion);
        }
    }
}
