//! The device behind one open file, in this process: its queue, its group's engines, this process's memory.
//!
//! ```text
//! offer ─► observer ─► board: enabled? others' share of the threshold ─► device: execute ─► reports to the driver
//! ```
//!
//! **Assumptions.** Descriptors of different processes meet on the board only; see decision 3. A threshold is compared with the
//! sum of the rows at one moment, so that two processes that submit in the same instant may pass it by one; and a
//! process may use its share of the queue whatever the rows say, so that no other process can keep it out.
#![allow(
    unsafe_code,
    reason = "gives the device this process's memory, and vouches for what the process itself submits"
)]

use crate::control::{self, Opening};
use crate::faults;
use crate::guard;
use crate::lock::Lock;
use crate::node;
use crate::observe::{self, Answer, How, Observer, Queue};
use crate::shared::Shared;
use crate::sync::{AtomicU32, Ordering};
use crate::sys::{self, Errno};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use telpher_abi::registers::PortalKind;
use telpher_abi::{CompletionRecord, Descriptor};
use telpher_device::{ModelDevice, ModelOptions, Notice, Runner};
use telpher_mem::{Fault, Local, Space, Strict};
use telpher_model::{Identity, Job, Outcome, Response, Told, Verdict, Write};
use telpher_os::Pagemap;
use telpher_portal::Submission;
use telpher_vdev_wire::board::{Board, ENABLED, Rows};
use telpher_vdev_wire::lease::Lease;
use telpher_vdev_wire::message::{Opened, Report, STRICT, THREADED};

/// Nanoseconds that a close waits for descriptors that do not end. Source: chosen: long for a model, short for a person; an
/// idxd that does not drain takes its process along.
const DRAIN_NS: u64 = 10_000_000_000;

/// A running replica.
#[derive(Debug)]
pub(crate) struct Replica {
    /// What the driver said.
    pub(crate) opened: Opened,
    device: ModelDevice,
    memory: Local,
    board: Shared<Board>,
    rows: Shared<Rows>,
    observer: Arc<Observer>,
    /// State changes of the queue when it was opened.
    generation: u32,
    /// Descriptors a portal's clients may have waiting, of all processes together; 0 for a dedicated queue.
    threshold: u32,
    /// 1 while somebody takes reports.
    reporting: AtomicU32,
}

impl Replica {
    /// Starts the device that an opening describes; `number` is that of the file it will be behind.
    ///
    /// # Errors
    /// ENOMEM, or EIO for an opening that makes no device.
    pub(crate) fn start(opening: &Opening, number: u16) -> Result<Self, Errno> {
        let opened = opening.opened;
        let lease = Shared::<Lease>::map(opening.lease.number())?;
        let board = Shared::<Board>::map_for_reading(opening.board.number())?;
        let rows = Shared::<Rows>::map(opening.rows.number())?;
        // Acquire: pairs with the host's Release; the image is not older than this state.
        let generation = board.as_ref().generation.load(Ordering::Acquire);
        let memory = faults::memory();
        let space = if opened.flags & STRICT != 0 { strict(memory) } else { Box::new(memory) };
        let threaded = opened.flags & THREADED != 0 || observe::needs_thread(&opened);
        let observer = Arc::new(Observer::new(&opened, Arc::new(lease), || strict(memory)));
        let options = ModelOptions {
            capabilities: opened.capabilities(),
            runner: if threaded { Runner::Threaded } else { Runner::Inline },
            lanes: observe::lanes(&opened),
            observer: Some(if threaded {
                Arc::new(Reporting { observer: Arc::clone(&observer), number })
            } else {
                Arc::<Observer>::clone(&observer)
            }),
            ..ModelOptions::default()
        };
        let image = opened.queue_image();
        let device = sys::with_signals_blocked(|| ModelDevice::replica(options, &image, opened.pasid, space));
        let device = device.map_err(|_| Errno::IO)?;
        Ok(Replica {
            opened,
            device,
            memory,
            board,
            rows,
            observer,
            generation,
            threshold: opened.threshold(),
            reporting: AtomicU32::new(0),
        })
    }

    /// Counts a submit instruction, by how it was emulated.
    #[inline]
    pub(crate) fn count_instruction(&self, trapped: bool) {
        self.observer.emulated(trapped);
    }

    /// 64 bytes arrive at the portal: by a submit instruction of this process, or by its write().
    #[inline]
    pub(crate) fn offer(&self, how: How, destination: u64, words: &[u64; 8]) -> Answer {
        self.observer.offer(how, destination, words, self)
    }

    fn admit(&self, deferrable: bool, descriptor: &Descriptor) -> Response {
        let refused = if deferrable { Response::Retry } else { Response::Dropped };
        let board = self.board.as_ref();
        // Relaxed: a state that changes at this moment may be seen either way, as on the bus.
        let enabled = board.state.load(Ordering::Relaxed) == ENABLED;
        if !enabled || board.generation.load(Ordering::Relaxed) != self.generation {
            return refused;
        }
        let (wq, row) = (self.opened.wq, self.opened.row);
        if deferrable && self.threshold != 0 {
            let own = u32::try_from(self.device.occupancy(wq)).unwrap_or(u32::MAX);
            if !board.has_room(self.rows.as_ref(), row, own, self.threshold) {
                return Response::Retry;
            }
        }
        let write = if deferrable {
            Write::Deferrable(Identity { pasid: self.opened.pasid, privileged: false })
        } else {
            Write::Posted
        };
        // SAFETY: the process itself executed the instruction, or called write(), with these 64 bytes (but for the first dword,
        // which names no memory). What they name is its own address space, and what may be read and written there while the
        // device works is the program's promise to the device: it is the one that `vouch` asks for, made by whoever wrote the
        // program. Nothing of ours is named in its place.
        let submission = unsafe { Submission::vouch(*descriptor) };
        let response = self.device.submit(wq, PortalKind::LimitedMsix, write, &submission);
        self.publish_occupancy();
        if self.device.has_reports() {
            self.report();
        }
        response
    }

    /// 64 bytes of the program's memory, as the kernel copies them for write(2); `None` where that would be EFAULT.
    pub(crate) fn read_descriptor(&self, address: u64) -> Option<Descriptor> {
        let mut bytes = [0; 64];
        self.memory.read(address, &mut bytes).ok().map(|()| Descriptor::from_bytes(&bytes))
    }

    /// Lets an inline device go on with what is left, and tells the others how much of the queue is taken.
    pub(crate) fn drive(&self) {
        if self.device.occupancy(self.opened.wq) != 0 {
            self.device.advance();
        }
        self.publish_occupancy();
        if self.device.has_reports() {
            self.report();
        }
    }

    fn publish_occupancy(&self) {
        if let Some(row) = self.rows.as_ref().row(self.opened.row) {
            let waiting = u32::try_from(self.device.occupancy(self.opened.wq)).unwrap_or(u32::MAX);
            // Relaxed: a number of its own.
            if row.load(Ordering::Relaxed) != waiting {
                row.store(waiting, Ordering::Relaxed);
            }
        }
    }

    /// Waits until nothing is waiting or in progress, as the last close of a file does, and tells the driver the rest.
    pub(crate) fn drain(&self) {
        let end = sys::now_ns().saturating_add(DRAIN_NS);
        let mut looks = 0_u32;
        self.device.drain(|| {
            looks += 1;
            if looks > 1 {
                sys::yield_now();
            }
            if self.device.has_reports() {
                self.report();
            }
            sys::now_ns() >= end
        });
        self.report();
        self.publish_occupancy();
    }

    /// Takes what SWERROR and the event log hold, does what the driver's interrupt handler does, and tells the driver.
    #[cold]
    pub(crate) fn report(&self) {
        loop {
            // Acquire and Release: one at a time sees the log; who finds it taken has left the work to the other.
            if self.reporting.swap(1, Ordering::Acquire) != 0 {
                return;
            }
            self.device.take_reports(&self.memory, |notice| self.tell(&notice));
            self.reporting.store(0, Ordering::SeqCst);
            if !self.device.has_reports() {
                return;
            }
        }
    }

    fn tell(&self, notice: &Notice) {
        Report::of(notice, |report| {
            // A host that is gone has nobody to tell.
            let _ = control::report(self.opened.open, report);
        });
    }
}

impl Queue for Replica {
    #[inline]
    fn submit(&self, how: How, descriptor: &Descriptor) -> Answer {
        let deferrable = match how {
            How::Movdir64b => false,
            How::Enqcmd => true,
            // The kernel uses the instruction of the queue's kind.
            How::Write => !self.opened.is_dedicated(),
        };
        match self.admit(deferrable, descriptor) {
            Response::Accepted => Answer::Taken,
            Response::Retry => Answer::Retry,
            Response::Dropped => Answer::Lost,
        }
    }

    fn refuses(&self, descriptor: &Descriptor, member: bool) -> bool {
        self.device.refuses(self.opened.wq, self.opened.pasid, descriptor, member)
    }

    fn halt(&self) {
        self.device.halt();
    }
}

/// The observer of a device with threads: what is neither told by a record nor seen by a submitter goes to the driver at once.
#[derive(Debug)]
struct Reporting {
    observer: Arc<Observer>,
    number: u16,
}

impl telpher_model::Observer for Reporting {
    fn dispatched(&self, job: &Job<'_>) -> Verdict {
        self.observer.dispatched(job)
    }

    fn execute(&self, job: &Job<'_>, space: &dyn Space, act: &mut dyn FnMut(&dyn Space) -> Outcome) -> Outcome {
        self.observer.execute(job, space, act)
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

    fn ended(&self, job: &Job<'_>, record: &CompletionRecord, told: Told) {
        self.observer.ended(job, record, told);
        if matches!(told, Told::Elsewhere | Told::Unwritable(_))
            && let Some(inside) = node::enter(self.number)
        {
            node::replica(&inside).report();
        }
    }
}

/// This process's memory, in which pages that are not present fault.
fn strict(memory: Local) -> Box<dyn Space> {
    match pagemap() {
        Some(pagemap) => Box::new(Strict::with_pagemap(memory, pagemap)),
        None => Box::new(Strict::new(memory)),
    }
}

/// This process's page tables, opened once, at a descriptor the program does not see.
fn pagemap() -> Option<Pagemap> {
    let mut known = PAGEMAP.hold();
    if known.is_none() {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::open(c"/proc/self/pagemap", flags, rustix::fs::Mode::empty()).ok()?;
        let copy = guard::duplicate(opened.as_raw_fd()).ok()?;
        // SAFETY: this guard is closed in a forked child only, where its place says so first.
        *known = Some(unsafe { Pagemap::at(guard::place_of(copy)?) });
    }
    known.clone()
}

/// In a forked child: the pagemap was the parent's, and its guard has been closed.
pub(crate) fn forget_pagemap() {
    *PAGEMAP.hold() = None;
}

pub(crate) static PAGEMAP: Lock<Option<Pagemap>> = Lock::new(None);
