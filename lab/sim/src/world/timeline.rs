//! Where a thread's time went.

use super::cycles::Cycles;
use crate::ps::Ps;

/// Where time went, summed over submissions: the first eight times together are all of it. Where a core does the work itself, all of it
/// is processing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Submissions that were completed.
    pub completed: u64,
    /// Operations of them, members of batches counted each.
    pub operations: u64,
    /// Bytes they were about.
    pub bytes: u64,
    /// From an operation's arrival to its being begun, where operations arrive by themselves.
    pub backlog: Ps,
    /// Preparing descriptors.
    pub prepare: Ps,
    /// From the submitting instruction's begin to the queue's having taken the descriptor, retries included.
    pub submit: Ps,
    /// In the queue.
    pub queue: Ps,
    /// Where its pages are: asking for them, and waiting for those that are not there, reported, touched and resubmitted ones included.
    pub translate: Ps,
    /// From the engine's taking it to its last byte: front end, list, the data paths of others, its own bytes.
    pub process: Ps,
    /// From the last byte to the written record.
    pub complete: Ps,
    /// From the written record to its being seen.
    pub notice: Ps,
    /// Submissions that a full queue sent back.
    pub retries: u64,
    /// Time in which the thread's core submitted.
    pub submitting: Ps,
    /// Time in which the thread had nothing to do but wait.
    pub waiting: Ps,
    /// When the last of them was seen.
    pub until: Ps,
    /// What the core did.
    pub cycles: Cycles,
}

impl Timeline {
    /// From the beginning of preparing to the record's being seen, summed.
    #[must_use]
    pub fn latency(&self) -> Ps {
        self.backlog
            + self.prepare
            + self.submit
            + self.queue
            + self.translate
            + self.process
            + self.complete
            + self.notice
    }

    /// Takes in another thread's.
    pub fn add(&mut self, other: &Timeline) {
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
