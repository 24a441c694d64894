//! Executes descriptors of programs without the preloaded guest, here in the host, in the submitter's memory, before
//! write(2) returns.
//!
//! The queue and its rules are those of a guest; only the memory belongs to another process. Fault injection and
//! misuse checks need the program's own threads and are not done here.
#![allow(
    unsafe_code,
    reason = "submits descriptors with another process's addresses, which are accessed by system calls"
)]

use super::share::Shared;
use super::tally::Tally;
use super::until_killed::{Killed, UntilKilled};
use crate::tree::Errno;
use std::sync::Arc;
use telpher_abi::Descriptor;
use telpher_device::{CountsIn, ModelOptions};
use telpher_mem::Remote;
use telpher_portal::{Offer, Submission};
use telpher_vdev_wire::file_memory::{CountsOf, FileMemory};
use telpher_vdev_wire::message::{Opened, Report, STRICT};
use telpher_vdev_wire::open_queue::OpenQueue;
use telpher_vdev_wire::queue_state::{OccupancySlots, QueueState};

/// An open queue of one process without a guest.
#[derive(Debug)]
pub(super) struct Executor {
    queue: OpenQueue,
    /// The memory that the queue accesses; the driver also writes there.
    memory: UntilKilled<Remote>,
    /// Whether the thread that waits in write(2) has been killed.
    killed: Arc<Killed>,
    tally: Arc<Tally>,
}

impl Executor {
    /// Creates the queue of a process.
    ///
    /// # Errors
    /// EFAULT if the process's memory cannot be accessed: it has ended, or may not be traced. EIO if the model refuses
    /// the queue; it accepts every queue that a driver has enabled.
    pub(super) fn start(
        opened: &Opened,
        state: &QueueState,
        lease: &Arc<Shared<FileMemory>>,
        process: u32,
    ) -> Result<Self, Errno> {
        let killed = Arc::new(Killed::default());
        let memory = || {
            let remote = if opened.flags & STRICT != 0 { Remote::strict(process) } else { Remote::new(process) };
            remote.map(|remote| UntilKilled::new(remote, Arc::clone(&killed))).map_err(|_| Errno::FAULT)
        };
        let tally = Arc::new(Tally::new(Arc::clone(lease), process, opened));
        let options = ModelOptions::default()
            .with_observer(tally.clone())
            .with_counts(CountsIn::Shared(Arc::new(CountsOf(Arc::clone(lease)))));
        let queue = OpenQueue::start(opened, state, options, Box::new(memory()?));
        Ok(Executor { queue: queue.map_err(|_| Errno::IO)?, memory: memory()?, killed, tally })
    }

    /// The following descriptors come from this thread's write(2).
    pub(super) fn serve(&self, thread: u32) {
        self.killed.watch(thread);
    }

    /// True if the last check found that thread killed; nothing more is executed for it.
    pub(super) fn is_killed(&self) -> bool {
        self.killed.found()
    }

    /// Submits one descriptor and executes it, together with all descriptors that this makes ready.
    pub(super) fn submit(&self, state: &QueueState, slots: &OccupancySlots, descriptor: Descriptor) -> Offer {
        let number = self.tally.begin();
        // The device fills the first dword (K612 cdev.c, idxd_submit_user_descriptor). Until then it carries the
        // submission's number to the observer.
        let mut named = descriptor;
        named.0[0] = named.0[0] & !0xffff_ffff | number & 0xffff_ffff;
        // SAFETY: the queue's device has two address spaces. One is the event log's memory, which the device owns; no
        // descriptor reaches it, since each is submitted under a PASID. The other belongs to another process and is
        // accessed by system calls; this process holds no reference to it.
        let submission = unsafe { Submission::vouch(named) };
        // The driver uses the instruction for the queue's mode.
        let deferrable = !self.queue.opened().is_dedicated();
        let offer = self.queue.submit(state, slots, deferrable, &submission);
        self.tally.submitted(number, &descriptor, offer);
        offer
    }

    /// Passes on what the device has reported since the last call, and does the work of the driver's interrupt handler.
    pub(super) fn reports(&self, on_report: impl FnMut(&Report)) {
        if self.queue.device().has_reports() {
            self.queue.take_reports(&self.memory, on_report);
        }
    }
}
