//! The modelled device of one open file, in this process: its queue, its group's engines, this process's memory.
//!
//! ```text
//! offer ─► observer ─► queue state: enabled? others' share of the threshold ─► device: execute ─► reports
//! ```
//!
//! **Assumptions.** Descriptors of different processes interact only through the occupancy slots; see decision 3. A
//! threshold is compared with the sum of the slots at one moment, so two processes that submit at the same instant may
//! exceed it by one. A process may use its share of the queue whatever the slots contain, so no other process can keep
//! it out.
#![allow(unsafe_code, reason = "gives the device this process's memory, and submits descriptors of this process")]

use crate::control::{self, Opening};
use crate::faults;
use crate::guard;
use crate::observe::{self, Observer, Queue, SubmitInstruction};
use crate::shared::Shared;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::{self, Errno};
use crate::window_memory::FileWindows;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use telpher_abi::{CompletionRecord, Descriptor, Opcode, Status};
use telpher_device::{CountsIn, ModelOptions, Runner};
use telpher_interpose::preload::Lock;
use telpher_mem::{Fault, Local, Space, Strict};
use telpher_model::{DispatchDecision, Job, Outcome, ReportedTo};
use telpher_os::{Lineage, Pagemap};
use telpher_portal::{Offer, Submission};
use telpher_vdev_wire::file_memory::{CountsOf, FileMemory};
use telpher_vdev_wire::message::{Opened, STRICT, THREADED};
use telpher_vdev_wire::open_queue::OpenQueue;
use telpher_vdev_wire::queue_state::{OccupancySlots, QueueState};

/// Nanoseconds that a close waits for descriptors that do not end. Source: chosen: long for a model, short for a user.
/// With an idxd device that does not drain, the process hangs.
const DRAIN_NS: u64 = 10_000_000_000;
/// Nanoseconds that a No-op by write() may wait for an engine thread. Source: chosen: more than a thread's turn.
const TAKE_NS: u64 = 20_000_000;

/// A running replica.
#[derive(Debug)]
pub(crate) struct Replica {
    queue: OpenQueue,
    memory: Local,
    board: Shared<QueueState>,
    rows: Shared<OccupancySlots>,
    observer: Arc<Observer>,
    /// 1 while a thread takes reports.
    reporting: AtomicU32,
    /// Held while the table of windows is read from the host, so that an older answer never replaces a newer one.
    refreshing: Lock<()>,
    /// The process that has started it.
    lineage: Lineage,
}

impl Replica {
    /// Starts the device that an opened node describes. A thread of the device calls `report` when a descriptor ended
    /// without a record; it must call [`report`](Replica::report).
    ///
    /// # Errors
    /// ENOMEM, or EIO if the description is not a valid device.
    pub(crate) fn start(opening: &Opening, report: impl Fn() + Send + Sync + 'static) -> Result<Self, Errno> {
        let opened = &opening.opened;
        let lease = Shared::<FileMemory>::map(opening.lease.number())?;
        let board = Shared::<QueueState>::map_for_reading(opening.board.number())?;
        let rows = Shared::<OccupancySlots>::map(opening.rows.number())?;
        let memory = faults::memory();
        let space = if opened.flags & STRICT != 0 { strict(memory) } else { Box::new(memory) };
        let threaded = runs_threads(opened);
        let lease = Arc::new(lease);
        let counts = CountsIn::Shared(Arc::new(CountsOf(Arc::clone(&lease))));
        let observer = Arc::new(Observer::new(opened, lease, || strict(memory)));
        let options = ModelOptions {
            runner: if threaded { Runner::Threaded } else { Runner::Inline },
            lanes: observe::lanes(opened),
            counts,
            observer: Some(if threaded {
                Arc::new(Reporting { observer: Arc::clone(&observer), report })
            } else {
                Arc::<Observer>::clone(&observer)
            }),
            ..ModelOptions::default()
        };
        let queue = sys::with_signals_blocked(|| OpenQueue::start(opened, board.as_ref(), options, space));
        let queue = queue.map_err(|_| Errno::IO)?;
        // Now, since a submission must not allocate.
        queue.set_window_spaces(Box::new(FileWindows { open: opened.open }));
        let (reporting, refreshing) = (AtomicU32::new(0), Lock::new(()));
        Ok(Replica { queue, memory, board, rows, observer, reporting, refreshing, lineage: Lineage::current() })
    }

    /// False in a child that has inherited it: there the memory shared with the host does not exist.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.lineage.is_current()
    }

    /// The driver's description of the open queue.
    pub(crate) fn opened(&self) -> &Opened {
        self.queue.opened()
    }

    /// Counts a submit instruction, by how it was emulated.
    #[inline]
    pub(crate) fn count_instruction(&self, trapped: bool) {
        self.observer.emulated(trapped);
    }

    /// Submits 64 bytes: from a submit instruction of this process, or from its write().
    #[inline]
    pub(crate) fn offer(&self, how: SubmitInstruction, destination: u64, words: &[u64; 8]) -> Offer {
        self.observer.offer(how, destination, words, self)
    }

    /// Reads the table of windows from the host before a descriptor that may use it. Windows that change until it is
    /// executed are checked by the host, at each access.
    fn refresh_windows(&self, descriptor: &Descriptor) {
        if self.opened().id_cap == 0 || !may_use_windows(descriptor.opcode()) {
            return;
        }
        let _one_at_a_time = self.refreshing.hold();
        // If the host is gone, the last table stays, and every access to another process fails.
        let _ = control::windows(self.opened().open, |listed| self.queue.show_windows(listed));
    }

    fn admit(&self, deferrable: bool, descriptor: &Descriptor) -> Offer {
        self.refresh_windows(descriptor);
        // SAFETY: the process itself executed the instruction, or called write(), with these 64 bytes (except the first
        // dword, which names no memory). They name the process's own address space, and the program promises the device
        // that this memory may be read and written meanwhile. That is the promise that `vouch` requires, made by the
        // program's author. No memory of this library is named instead.
        let submission = unsafe { Submission::vouch(*descriptor) };
        let offer = self.queue.submit(self.board.as_ref(), self.rows.as_ref(), deferrable, &submission);
        self.publish_occupancy();
        if self.queue.device().has_reports() {
            self.report();
        }
        offer
    }

    /// Reads 64 bytes of the program's memory, as the kernel does for write(2); `None` for EFAULT.
    pub(crate) fn read_descriptor(&self, address: u64) -> Option<Descriptor> {
        let mut bytes = [0; 64];
        self.memory.read(address, &mut bytes).ok().map(|()| Descriptor::from_bytes(&bytes))
    }

    /// Continues the work of an inline device, and publishes the occupancy of the queue.
    pub(crate) fn drive(&self) {
        if self.queue.occupancy() != 0 {
            self.queue.device().advance();
        }
        self.publish_occupancy();
        if self.queue.device().has_reports() {
            self.report();
        }
    }

    /// Yields until an engine thread has taken what waits, for a limited time. Clients that probe whether write() works
    /// submit a No-op and then wait for a number of PAUSEs, which is long for a device, but shorter than the turn of a
    /// thread that keeps the engine's thread from its CPU.
    pub(crate) fn let_engine_take(&self) {
        if !runs_threads(self.opened()) {
            return;
        }
        let end = sys::now_ns().saturating_add(TAKE_NS);
        while self.queue.occupancy() != 0 && sys::now_ns() < end {
            sys::yield_now();
        }
    }

    fn publish_occupancy(&self) {
        if let Some(row) = self.rows.as_ref().row(self.opened().row) {
            let waiting = self.queue.occupancy();
            // Relaxed: publishes no other data.
            if row.load(Ordering::Relaxed) != waiting {
                row.store(waiting, Ordering::Relaxed);
            }
        }
    }

    /// Waits until no descriptor is waiting or executing, as the last close of a file does, and sends the remaining
    /// reports to the driver.
    pub(crate) fn drain(&self) {
        let end = sys::now_ns().saturating_add(DRAIN_NS);
        let mut looks = 0_u32;
        self.queue.device().drain(|| {
            looks += 1;
            if looks > 1 {
                sys::yield_now();
            }
            if self.queue.device().has_reports() {
                self.report();
            }
            sys::now_ns() >= end
        });
        self.report();
        self.publish_occupancy();
    }

    /// Takes the reports from SWERROR and the event log, does the work of the driver's interrupt handler, and sends
    /// them to the driver.
    #[cold]
    pub(crate) fn report(&self) {
        loop {
            // Acquire and Release: one thread at a time takes reports; a thread that finds it taken leaves the work to
            // the other.
            if self.reporting.swap(1, Ordering::Acquire) != 0 {
                return;
            }
            self.queue.take_reports(&self.memory, |report| {
                // If the host is gone, the report has no receiver.
                let _ = control::report(self.opened().open, report);
            });
            self.reporting.store(0, Ordering::SeqCst);
            if !self.queue.device().has_reports() {
                return;
            }
        }
    }
}

impl Queue for Replica {
    #[inline]
    fn submit(&self, how: SubmitInstruction, descriptor: &Descriptor) -> Offer {
        let deferrable = match how {
            SubmitInstruction::Movdir64b => false,
            SubmitInstruction::Enqcmd => true,
            // The kernel uses the instruction for the queue's mode.
            SubmitInstruction::Write => !self.opened().is_dedicated(),
        };
        self.admit(deferrable, descriptor)
    }

    fn refuses(&self, descriptor: &Descriptor, member: bool) -> bool {
        self.queue.device().refuses(self.opened().wq, self.opened().pasid, descriptor, member)
    }

    fn halt(&self) {
        self.queue.device().halt();
    }
}

/// The observer of a device with threads: it sends ends without a record to the driver at once, since no submitter sees
/// them.
struct Reporting<R> {
    observer: Arc<Observer>,
    /// Lets the replica send its reports.
    report: R,
}

impl<R> std::fmt::Debug for Reporting<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reporting").field("observer", &self.observer).finish_non_exhaustive()
    }
}

impl<R: Fn() + Send + Sync> telpher_model::Observer for Reporting<R> {
    fn dispatched(&self, job: &Job<'_>) -> DispatchDecision {
        self.observer.dispatched(job)
    }

    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        self.observer.execute(job, space, act)
    }

    fn window_updated(&self, job: &Job<'_>, generation: u64) -> Result<(), Status> {
        self.observer.window_updated(job, generation)
    }

    fn concluding(&self, job: &Job<'_>, record: &CompletionRecord) -> bool {
        self.observer.concluding(job, record)
    }

    fn record(
        &self,
        job: &Job<'_>,
        record: &CompletionRecord,
        write: &mut dyn FnMut() -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.observer.record(job, record, write)
    }

    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, reported_to: ReportedTo) {
        self.observer.ended(job, record, reported_to);
        if matches!(reported_to, ReportedTo::Elsewhere | ReportedTo::Unwritable(_)) {
            (self.report)();
        }
    }
}

/// True for operations with handles of windows, and for batches, whose members may be such.
fn may_use_windows(opcode: Opcode) -> bool {
    // All operations below are older than windows.
    opcode == Opcode::Batch || opcode.code() >= Opcode::TypeConversion.code()
}

/// True if engines run on threads of their own.
fn runs_threads(opened: &Opened) -> bool {
    opened.flags & THREADED != 0 || observe::needs_thread(opened)
}

/// This process's memory; absent pages fault.
fn strict(memory: Local) -> Box<dyn Space> {
    match pagemap() {
        Some(pagemap) => Box::new(Strict::with_pagemap(memory, pagemap)),
        None => Box::new(Strict::new(memory)),
    }
}

/// This process's page tables, opened once, with a descriptor that the program does not see.
fn pagemap() -> Option<Pagemap> {
    let mut known = PAGEMAP.hold();
    if known.is_none() {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::open(c"/proc/self/pagemap", flags, rustix::fs::Mode::empty()).ok()?;
        let copy = guard::duplicate(opened.as_raw_fd()).ok()?;
        // SAFETY: this guard is closed only in a forked child, which clears the variable first.
        *known = Some(unsafe { Pagemap::at(guard::slot_of(copy)?) });
    }
    known.clone()
}

/// In a forked child: drops the parent's pagemap, whose guard has been closed.
pub(crate) fn forget_pagemap() {
    *PAGEMAP.hold() = None;
}

pub(crate) static PAGEMAP: Lock<Option<Pagemap>> = Lock::new(None);
