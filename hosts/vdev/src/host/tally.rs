//! Counts and traces the descriptors that the host executes, in the same form as guests do.

use super::share::Shared;
use rustix::time::ClockId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_abi::{CompletionRecord, Descriptor};
use telpher_model::{Job, Observer, ReportedTo};
use telpher_os::clock_ns;
use telpher_portal::Offer;
use telpher_vdev_wire::event::{self, SubmitInstruction};
use telpher_vdev_wire::file_memory::{FileMemory, TraceEntry, TraceKind, count};
use telpher_vdev_wire::message::{Opened, TRACE};

/// Counts and traces the descriptors of one open file.
#[derive(Debug)]
pub(super) struct Tally {
    lease: Arc<Shared<FileMemory>>,
    process: u32,
    wq: u32,
    pasid: u32,
    /// Descriptors and completion records go into the trace.
    traces: bool,
    /// Number of submissions so far.
    submissions: AtomicU64,
}

impl Tally {
    pub(super) fn new(lease: Arc<Shared<FileMemory>>, process: u32, opened: &Opened) -> Self {
        let traces = opened.flags & TRACE != 0;
        Tally { lease, process, wq: opened.wq, pasid: opened.pasid, traces, submissions: AtomicU64::new(0) }
    }

    /// Returns the number of the next submission.
    pub(super) fn begin(&self) -> u64 {
        // Relaxed: publishes no other data.
        self.submissions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records the queue's answer to a submission.
    pub(super) fn submitted(&self, number: u64, descriptor: &Descriptor, offer: Offer) {
        self.lease.count_offer(self.wq, offer);
        self.append(|| TraceEntry {
            submission: number,
            kind: TraceKind::Submitted as u32,
            code: SubmitInstruction::Write as u32,
            answer: offer as u32,
            descriptor: descriptor.0,
            ..TraceEntry::EMPTY
        });
    }

    fn append(&self, entry: impl FnOnce() -> TraceEntry) {
        if !self.traces {
            return;
        }
        let time_ns = clock_ns(ClockId::Monotonic);
        if !self.lease.append(&TraceEntry { time_ns, process: self.process, thread: self.process, ..entry() }) {
            count(&self.lease.statistics.lost, 1);
        }
    }
}

impl Observer for Tally {
    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, reported_to: ReportedTo) {
        let reported_to = event::ReportedTo::from(reported_to);
        self.lease.statistics.count_end(job.descriptor, record, reported_to);
        self.append(|| {
            // The executor has put the submission's number into the first dword; members use that of their batch.
            let named = job.member.map_or(job.descriptor, |member| member.batch);
            let mut descriptor = job.descriptor.0;
            if job.member.is_none() {
                descriptor[0] = descriptor[0] & !0xffff_ffff | u64::from(self.pasid);
            }
            TraceEntry {
                submission: named.0[0] & 0xffff_ffff,
                kind: TraceKind::Ended as u32,
                answer: reported_to as u32,
                member: job.member.map_or(0, |member| u32::from(member.index) + 1),
                descriptor,
                record: record.0,
                ..TraceEntry::EMPTY
            }
        });
    }
}
