//! A breakdown of a thread's time.

use super::cycles::Cycles;
use crate::picos::Picos;

/// Times summed over submissions. The first eight times add up to the latency. If a core executes the operations
/// itself, all of it is processing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeBreakdown {
    /// Completed submissions.
    pub completed: u64,
    /// Their operations; each batch member counts.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From an operation's arrival until the thread begins it, if operations arrive at a rate.
    pub backlog: Picos,
    /// Preparing descriptors.
    pub prepare: Picos,
    /// From the begin of the submitting instruction until the queue has taken the descriptor, retries included.
    pub submit: Picos,
    /// In the queue.
    pub queue: Picos,
    /// Address translation and waits for missing pages, including those that are reported, touched and resubmitted.
    pub translate: Picos,
    /// From the engine's take to the last byte: front end, list, waiting for the data path, transfer.
    pub process: Picos,
    /// From the last byte to the written record.
    pub complete: Picos,
    /// From the written record until the thread sees it.
    pub notice: Picos,
    /// Submissions that a full queue refused.
    pub retries: u64,
    /// Time of the thread's core in submitting.
    pub submitting: Picos,
    /// Time in which the thread only waited.
    pub waiting: Picos,
    /// When the thread's results began to count: at the start, or after its warm-up.
    pub from: Picos,
    /// When the thread saw the last record.
    pub until: Picos,
    /// The core's time by kind.
    pub cycles: Cycles,
}

impl TimeBreakdown {
    /// The sum of the latencies, from the begin of preparation until the thread sees the record.
    #[must_use]
    pub fn latency(&self) -> Picos {
        self.backlog
            + self.prepare
            + self.submit
            + self.queue
            + self.translate
            + self.process
            + self.complete
            + self.notice
    }

    /// Adds another thread's times.
    pub fn add(&mut self, other: &TimeBreakdown) {
        // The earliest, so that a rate is never too high; a breakdown without submissions has none.
        self.from = if self.completed == 0 { other.from } else { self.from.min(other.from) };
        self.completed += other.completed;
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.backlog += other.backlog;
        self.prepare += other.prepare;
        self.submit += other.submit;
        self.queue += other.queue;
        self.translate += other.translate;
        self.process += other.process;
        self.complete += other.complete;
        self.notice += other.notice;
        self.retries += other.retries;
        self.submitting += other.submitting;
        self.waiting += other.waiting;
        self.until = self.until.max(other.until);
        self.cycles.add(&other.cycles);
    }
}
