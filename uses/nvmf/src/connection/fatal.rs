//! Errors that end the connection.

use super::{Connection, Ending, FirstOfPair, Phase, TaskWait};
use crate::digest::Digests;
use crate::engine::JobId;
use crate::limits::MOST_HEADER;
use crate::pdu::{self, FatalError, Kind, TermReq};
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32};

impl Connection {
    /// Answers an error with C2HTermReq, and takes no more PDUs. Replies that were queued before are still sent.
    pub(super) fn terminate(&mut self, error: FatalError, now: u64) {
        let header = self.decoder.header();
        self.stats.count_fatal(error);
        // Nothing is sent in answer to H2CTermReq, whatever is wrong with it.
        if header.first() == Some(&(Kind::H2cTermReq as u8)) {
            self.close(Ending::TerminatedByHost(0));
            return;
        }
        let (fes, fei) = error.words();
        let offending = header[..header.len().min(MOST_HEADER)].to_vec();
        let term = TermReq { common: pdu::blank(), fes: U16::new(fes), fei: U32::new(fei), reserved: [0; 10] };
        self.output.push_pdu(Kind::C2hTermReq, 0, term.as_bytes(), offending.len(), Digests::default(), 4);
        self.output.push(&offending);
        self.ending = Some(Ending::Fatal(error));
        self.phase = Phase::Terminating(now.saturating_add(self.limits().terminate_ms));
        self.drop_commands();
    }

    /// Ends the connection without a message.
    pub(super) fn close(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
        self.phase = Phase::Closed;
        self.output.clear();
        self.taken_output = 0;
        self.drop_commands();
    }

    /// Forgets all commands. Jobs that are under way own their buffers, and are dropped when they return.
    pub(super) fn drop_commands(&mut self) {
        for (index, slot) in (0..).zip(&mut self.slots) {
            let id = JobId { connection: self.number, slot: index, generation: slot.generation, part: 0 };
            // The backend may still write. Until it answers, no other command may have these blocks alone.
            if let Some(open) = slot.open.take()
                && let Some((TaskWait::Backend, task)) = open.task
            {
                self.target.loops().keep(id, Box::new(task.without_data()));
            }
            slot.generation = slot.generation.wrapping_add(1);
        }
        self.waiting.clear();
        self.first_of_pair = FirstOfPair::None;
        self.open_r2ts.clear();
        (self.aborted_r2ts, self.active_r2ts) = (0, 0);
        self.event_requests.clear();
        (self.open_count, self.budgeted, self.buffered) = (0, 0, 0);
    }
}
