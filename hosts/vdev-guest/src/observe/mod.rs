//! Observes an open file and injects faults: its counters, trace, fault injection, and the check for misuse.
//!
//! ```text
//! trap, call, write() ─► Observer::offer ─► Queue::submit (the replica) ─► ring ─► engine
//!                            │ Retry, halt                                dispatched: status, hold, list compared
//!                            │ check: records descriptors in flight       execute: absent pages
//!                            ▼                                            concluding: delayed, reordered
//!                      FileLog ─► file memory ─► host  ◄───────────────  record: lost · ended: counted, traced
//! ```
//!
//! Every replica has an [`Observer`]; one that only counts costs a few additions per descriptor. Nothing here allocates
//! once an observer exists.

mod check;
mod delayed;
mod faulty_space;
mod file_log;
mod injector;
mod queue;
mod random;
#[cfg(test)]
mod tests;

use crate::control;
use crate::sync::{AtomicU64, Ordering};
use crate::sys;
use check::{Checker, NewSubmission, Own};
use file_log::{DescriptorId, FileLog, nap};
use injector::{CompletionDelay, Injector};
use std::sync::{Arc, OnceLock};
use telpher_abi::registers::GrpCfg;
use telpher_abi::{CompletionRecord, Descriptor, Offer, Status};
use telpher_mem::{Fault, Space};
use telpher_model::{DispatchDecision, Job, Outcome};
use telpher_vdev_wire::event::{Injected, ReportedTo};
use telpher_vdev_wire::message::{CHECK, DEDICATED, Opened, TRACE, WindowUpdate};

pub(crate) use file_log::SharedLease;
pub(crate) use queue::Queue;
pub(crate) use telpher_vdev_wire::event::SubmitInstruction;

/// Descriptors that an engine may execute at once while completions are delayed. Source: chosen; reordering needs two.
const ENGINE_SLOTS: usize = 16;

/// True if the engines of this file need their own thread, whatever runner was requested: they must run while the
/// program's threads do not.
pub(crate) fn needs_thread(opened: &Opened) -> bool {
    opened.flags & CHECK != 0 || Injector::holds(&opened.inject)
}

/// Concurrent descriptors per engine of this file.
pub(crate) fn lanes(opened: &Opened) -> usize {
    if needs_thread(opened) { ENGINE_SLOTS } else { 1 }
}

/// Observes one open file's replica.
#[derive(Debug)]
pub(crate) struct Observer {
    log: Arc<FileLog>,
    injector: Option<Injector>,
    check: Option<Arc<Checker>>,
    /// Number of the open file.
    file: u64,
    /// The queue's group has one engine.
    single_engine: bool,
    /// The queue is dedicated: submissions by write() are posted.
    dedicated: bool,
    /// Number of accepted submissions, plus those being submitted.
    submissions: AtomicU64,
    /// The run has windows between processes, whose table the host keeps.
    has_windows: bool,
}

impl Observer {
    /// Creates an observer of an open file. `memory` creates a strict space of this process, in which absent pages
    /// fault; it is called for the first file that is checked.
    pub(crate) fn new(opened: &Opened, lease: SharedLease, memory: impl FnOnce() -> Box<dyn Space>) -> Self {
        let checks = opened.flags & CHECK != 0;
        let check =
            checks.then(|| Arc::clone(CHECKER.get_or_init(|| Arc::new(Checker::new(Box::new(Own::new(memory())))))));
        Self::assemble(opened, lease, check)
    }

    fn assemble(opened: &Opened, lease: SharedLease, check: Option<Arc<Checker>>) -> Self {
        let queue = u64::from(opened.device) << 8 | u64::from(opened.wq);
        Observer {
            log: Arc::new(FileLog::new(lease, opened.wq, opened.flags & TRACE != 0)),
            injector: Injector::new(&opened.inject, queue + 1),
            check,
            file: opened.open,
            single_engine: GrpCfg(opened.grp_cfg).engines().count_ones() == 1,
            dedicated: opened.flags & DEDICATED != 0,
            submissions: AtomicU64::new(0),
            has_windows: opened.id_cap != 0,
        }
    }

    /// Counts an emulated submit instruction: after a trap, or at a rewritten site.
    pub(crate) fn emulated(&self, trapped: bool) {
        self.log.emulated(trapped);
    }

    /// Submits 64 bytes of an instruction or a write() to the queue; returns the queue's answer.
    pub(crate) fn offer(&self, how: SubmitInstruction, destination: u64, words: &[u64; 8], queue: &dyn Queue) -> Offer {
        let descriptor = Descriptor(*words);
        // Relaxed: the queue orders the descriptor that contains the number.
        let submission = self.submissions.fetch_add(1, Ordering::Relaxed) + 1;
        let id = DescriptorId { submission, member: 0 };
        let time_ns = if self.log.traces() || self.check.is_some() { sys::now_ns() } else { 0 };
        let mut offer = None;
        if let Some(injector) = &self.injector {
            if injector.halts(submission) {
                queue.halt();
                self.log.injected(id, &descriptor, Injected::Halt, 0, 0);
            }
            // Only a deferrable write can get Retry.
            if how != SubmitInstruction::Movdir64b && !self.dedicated && injector.retries(submission, &descriptor) {
                self.log.injected(id, &descriptor, Injected::Retry, 0, 0);
                offer = Some(Offer::Retry);
            }
        }
        let offer = offer.unwrap_or_else(|| self.submit(how, destination, &descriptor, (submission, time_ns), queue));
        if offer != Offer::Taken {
            // The next submission reuses the number, unless another thread has taken the next one; then it is skipped.
            let _ = self.submissions.compare_exchange(submission, submission - 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.log.submitted(submission, how, destination, &descriptor, offer, time_ns);
        offer
    }

    /// Submits a descriptor to the queue. The check comes first, since the descriptor may have ended when the queue
    /// answers.
    fn submit(
        &self,
        how: SubmitInstruction,
        destination: u64,
        descriptor: &Descriptor,
        (submission, now_ns): (u64, u64),
        queue: &dyn Queue,
    ) -> Offer {
        let Some(check) = &self.check else { return queue.submit(how, &tagged(descriptor, submission)) };
        check.submitted(&NewSubmission {
            file: self.file,
            submission,
            descriptor,
            destination,
            single_engine: self.single_engine,
            is_wrong_instruction: match how {
                SubmitInstruction::Movdir64b => !self.dedicated,
                SubmitInstruction::Enqcmd => self.dedicated,
                SubmitInstruction::Write => false,
            },
            now_ns,
            log: &self.log,
            queue,
        });
        let offer = queue.submit(how, &tagged(descriptor, submission));
        if offer != Offer::Taken {
            check.refused(self.file, submission, descriptor);
        }
        offer
    }

    /// The submission of a replica's descriptor, from the low half of its first word.
    fn id(&self, job: &Job<'_>) -> DescriptorId {
        let top = job.member.map_or(job.descriptor, |member| member.batch);
        let latest = self.submissions.load(Ordering::Relaxed);
        // Never more than 2^32 submissions are in progress, so the low half is enough.
        let back = latest.wrapping_sub(top.0[0]) & LOW;
        let member = job.member.map_or(0, |member| u32::from(member.index) + 1);
        DescriptorId { submission: latest.wrapping_sub(back), member }
    }
}

/// The low half of a descriptor's first word, which the device ignores.
const LOW: u64 = 0xffff_ffff;

/// The descriptor with its submission's number in its first dword, where the processor puts PASID and privilege. The
/// model, like a device, takes those from the write instead.
fn tagged(descriptor: &Descriptor, submission: u64) -> Descriptor {
    let mut tagged = *descriptor;
    tagged.0[0] = tagged.0[0] & !LOW | submission & LOW;
    tagged
}

/// A job's descriptor without the number.
fn untagged(job: &Job<'_>) -> Descriptor {
    let mut descriptor = *job.descriptor;
    if job.member.is_none() {
        descriptor.0[0] &= !LOW;
    }
    descriptor
}

impl telpher_model::Observer for Observer {
    fn dispatched(&self, job: &Job<'_>) -> DispatchDecision {
        if self.injector.is_none() && self.check.is_none() {
            return DispatchDecision::Go;
        }
        let id = self.id(job);
        match &self.check {
            Some(check) if id.member != 0 => check.member_begins(self.file, id, job.descriptor),
            Some(check) => {
                if let Some(wait_ns) = check.must_wait(self.file, id.submission, sys::now_ns()) {
                    // The descriptors after it have longer to wait.
                    nap(wait_ns);
                    return DispatchDecision::Wait;
                }
            }
            None => {}
        }
        match self.injector.as_ref().and_then(|injector| injector.status(id, job.descriptor)) {
            Some(status) => {
                let code = u64::from(status.code());
                self.log.injected(id, &untagged(job), Injected::Status, 0, code);
                DispatchDecision::End(status)
            }
            None => DispatchDecision::Go,
        }
    }

    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        let outcome = match &self.injector {
            Some(injector) => {
                let id = self.id(job);
                let tell = |address| self.log.injected(id, &untagged(job), Injected::Fault, address, 0);
                match injector.faulty_space(id, job.descriptor, space, &tell) {
                    Some(faulty_space) => act(&faulty_space),
                    None => act(space),
                }
            }
            None => act(space),
        };
        self.log.page_requests(outcome.pages_granted);
        outcome
    }

    /// The host has the table that counts. If it does not answer, the window may be the new one or the former one.
    fn window_updated(&self, job: &Job<'_>, generation: u64) -> Result<(), Status> {
        if !self.has_windows {
            return Ok(());
        }
        let (base, size) = (job.descriptor.src(), job.descriptor.dst());
        let (handle, flags) = (job.descriptor.handle_2().into(), job.descriptor.window_flags().into());
        let update = WindowUpdate { base, size, generation, handle, flags };
        control::update_window(self.file, &update).map_err(|_| Status::UpdateWindowEntry)
    }

    fn concluding(&self, job: &Job<'_>, _record: &CompletionRecord) -> bool {
        let Some(injector) = &self.injector else { return true };
        let id = self.id(job);
        injector.may_conclude(id, job.descriptor, sys::now_ns, |delay| {
            let (what, wait) = match delay {
                CompletionDelay::Delay(wait) => (Injected::Delay, wait),
                CompletionDelay::Reorder | CompletionDelay::OnTime => (Injected::Reorder, 0),
            };
            self.log.injected(id, &untagged(job), what, 0, wait);
        })
    }

    fn record(
        &self,
        job: &Job<'_>,
        _record: &CompletionRecord,
        write: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if let Some(injector) = &self.injector
            && injector.loses(self.id(job), job.descriptor)
        {
            return Ok(());
        }
        if let Some(check) = &self.check {
            // Before the program can see the record.
            check.concluded(self.file, self.id(job));
        }
        write()
    }

    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, reported_to: telpher_model::ReportedTo) {
        let id = self.id(job);
        let lost = || self.injector.as_ref().is_some_and(|injector| injector.loses(id, job.descriptor));
        let reported_to = match reported_to {
            telpher_model::ReportedTo::Record if lost() => {
                self.log.injected(id, &untagged(job), Injected::Lose, 0, 0);
                ReportedTo::Lost
            }
            reported_to => reported_to.into(),
        };
        self.log.ended(id, &untagged(job), record, reported_to);
        // A member without a record is concluded with its batch.
        if let Some(check) = self.check.as_ref().filter(|_| id.member == 0) {
            check.concluded(self.file, id);
        }
    }
}

/// The check of this process; created when a file is opened with it.
static CHECKER: OnceLock<Arc<Checker>> = OnceLock::new();

/// Called when the program unmaps or remaps memory: reports memory that the device is using.
pub(crate) fn unmapped(address: u64, len: u64) {
    if let Some(check) = CHECKER.get() {
        check.unmapped(address, len);
    }
}

/// Called before fork(), in the forking thread.
pub(crate) fn before_fork() {
    if let Some(check) = CHECKER.get() {
        check.before_fork();
    }
}

/// Called after fork(), in the parent.
pub(crate) fn after_fork() {
    if let Some(check) = CHECKER.get() {
        check.after_fork();
    }
}

/// Called after fork(), in the child: descriptors in flight belong to the parent.
pub(crate) fn after_fork_in_child() {
    if let Some(check) = CHECKER.get() {
        check.after_fork_in_child();
    }
}
