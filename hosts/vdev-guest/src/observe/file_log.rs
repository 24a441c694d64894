//! An open file's output to the host: its counters, and the entries of its trace.

use crate::sync::{AtomicU32, Ordering};
use crate::sys;
use rustix::time::Timespec;
use std::fmt;
use std::sync::Arc;
use telpher_abi::{CompletionRecord, Descriptor, Offer};
use telpher_vdev_wire::event::{Finding, Injected, ReportedTo, SubmitInstruction};
use telpher_vdev_wire::file_memory::{FileMemory, Statistics, TraceEntry, TraceKind, count};

/// An open file's memory; it stays mapped while this exists.
pub(crate) type SharedLease = Arc<dyn AsRef<FileMemory> + Send + Sync>;

/// Number and length of the pauses at a full ring before an entry is lost. Source: chosen; twenty rounds of the host.
const NAPS: u32 = 100;
const NAP_NS: u64 = 200_000;

/// Writes an open file's counters and trace entries.
pub(super) struct FileLog {
    lease: SharedLease,
    wq: u32,
    process: u32,
    /// Descriptors and records are traced, not only findings.
    traces: bool,
    /// The host did not empty the ring during a whole wait: no further waits until it does.
    host_absent: AtomicU32,
}

impl fmt::Debug for FileLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileLog").field("traces", &self.traces).finish_non_exhaustive()
    }
}

/// Identifies a descriptor: its submission's number, and its position in the batch plus one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DescriptorId {
    pub(super) submission: u64,
    pub(super) member: u32,
}

impl FileLog {
    pub(super) fn new(lease: SharedLease, wq: u32, traces: bool) -> Self {
        FileLog { lease, wq, process: sys::process(), traces, host_absent: AtomicU32::new(0) }
    }

    /// True if descriptors and records are traced.
    pub(super) fn traces(&self) -> bool {
        self.traces
    }

    pub(super) fn statistics(&self) -> &Statistics {
        &(*self.lease).as_ref().statistics
    }

    /// Appends an entry; waits a limited time for the host if the ring is full.
    fn append(&self, entry: TraceEntry) {
        let entry = TraceEntry { process: self.process, thread: sys::thread(), ..entry };
        let lease = (*self.lease).as_ref();
        // Relaxed: a hint that publishes nothing.
        let naps = if self.host_absent.load(Ordering::Relaxed) != 0 { 0 } else { NAPS };
        for attempt in 0..=naps {
            if lease.append(&entry) {
                if attempt == 0 && naps == 0 {
                    self.host_absent.store(0, Ordering::Relaxed);
                }
                return;
            }
            if attempt < naps {
                nap(NAP_NS);
            }
        }
        self.host_absent.store(1, Ordering::Relaxed);
        count(&lease.statistics.lost, 1);
    }

    /// Records a submission to the queue.
    pub(super) fn submitted(
        &self,
        submission: u64,
        how: SubmitInstruction,
        destination: u64,
        descriptor: &Descriptor,
        offer: Offer,
        time_ns: u64,
    ) {
        (*self.lease).as_ref().count_offer(self.wq, offer);
        if self.traces {
            self.append(TraceEntry {
                time_ns,
                submission,
                kind: TraceKind::Submitted as u32,
                code: how as u32,
                answer: offer as u32,
                descriptor: descriptor.0,
                address: destination,
                ..TraceEntry::EMPTY
            });
        }
    }

    /// Counts an emulated submit instruction: after a trap, or at a rewritten site.
    pub(super) fn emulated(&self, trapped: bool) {
        let statistics = self.statistics();
        count(if trapped { &statistics.traps } else { &statistics.calls }, 1);
    }

    /// Records the end of a descriptor.
    pub(super) fn ended(
        &self,
        id: DescriptorId,
        descriptor: &Descriptor,
        record: &CompletionRecord,
        reported_to: ReportedTo,
    ) {
        self.statistics().count_end(descriptor, record, reported_to);
        if self.traces {
            self.append(TraceEntry {
                time_ns: sys::now_ns(),
                submission: id.submission,
                kind: TraceKind::Ended as u32,
                answer: reported_to as u32,
                member: id.member,
                descriptor: descriptor.0,
                record: record.0,
                ..TraceEntry::EMPTY
            });
        }
    }

    /// Counts page requests made while a descriptor was executed.
    pub(super) fn page_requests(&self, granted: u32) {
        if granted > 0 {
            count(&self.statistics().faults, granted.into());
        }
    }

    /// Records an injected fault.
    pub(super) fn injected(&self, id: DescriptorId, descriptor: &Descriptor, what: Injected, address: u64, other: u64) {
        if self.traces {
            self.append(TraceEntry {
                time_ns: sys::now_ns(),
                submission: id.submission,
                kind: TraceKind::Injected as u32,
                code: what as u32,
                member: id.member,
                descriptor: descriptor.0,
                address,
                other,
                ..TraceEntry::EMPTY
            });
        }
    }

    /// Records a finding.
    pub(super) fn found(&self, finding: &Finding) {
        self.append(TraceEntry { time_ns: sys::now_ns(), ..finding.to_entry() });
    }
}

/// Sleeps for this time, if it is not 0.
pub(super) fn nap(nanos: u64) {
    if nanos > 0 {
        let tv_nsec = i64::try_from(nanos).unwrap_or(i64::MAX).min(999_999_999);
        // If interrupted, the caller checks the clock again.
        let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec });
    }
}
