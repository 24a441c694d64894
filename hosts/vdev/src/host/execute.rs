//! Executes descriptors of programs without the preloaded guest, here in the host, in the submitter's memory, before
//! write(2) returns.
//!
//! The replica and its rules are those of a guest; only the memory belongs to another process. Fault injection and
//! misuse checks need the program's own threads and are not done here.
#![allow(
    unsafe_code,
    reason = "submits descriptors with another process's addresses, which are accessed by system calls"
)]

use super::files::OpenFile;
use super::tally::Tally;
use super::until_killed::{Killed, UntilKilled};
use crate::tree::Errno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use telpher_abi::Descriptor;
use telpher_abi::registers::PortalKind;
use telpher_device::{ModelDevice, ModelOptions};
use telpher_mem::Remote;
use telpher_model::{Identity, Write};
use telpher_portal::{Offer, Submission};
use telpher_vdev_wire::message::{Report, STRICT};
use telpher_vdev_wire::queue_state::ENABLED;

/// An open queue of one process without a guest.
#[derive(Debug)]
pub(super) struct Executor {
    device: ModelDevice,
    /// The memory that the replica accesses; the driver also writes there.
    memory: UntilKilled<Remote>,
    /// Whether the thread that waits in write(2) has been killed.
    killed: Arc<Killed>,
    tally: Arc<Tally>,
    write: Write,
    /// Most descriptors that may wait, of all processes together; 0 for a dedicated queue.
    threshold: u32,
    /// The queue's generation number when it was opened.
    generation: u32,
}

impl Executor {
    /// Creates the queue's replica for a process.
    ///
    /// # Errors
    /// EFAULT if the process's memory cannot be accessed: it has ended, or may not be traced. EIO if the model refuses
    /// the queue; it accepts every queue that a driver has enabled.
    pub(super) fn start(file: &OpenFile, process: u32) -> Result<Self, Errno> {
        let opened = &file.opened;
        let killed = Arc::new(Killed::default());
        let memory = || {
            let remote = if opened.flags & STRICT != 0 { Remote::strict(process) } else { Remote::new(process) };
            remote.map(|remote| UntilKilled::new(remote, Arc::clone(&killed))).map_err(|_| Errno::FAULT)
        };
        let tally = Arc::new(Tally::new(Arc::clone(&file.lease), process, opened));
        let options = ModelOptions { capabilities: opened.capabilities(), ..ModelOptions::default() };
        let (options, image) = (options.with_observer(tally.clone()), opened.queue_image());
        let device = ModelDevice::replica(options, &image, opened.pasid, Box::new(memory()?)).map_err(|_| Errno::IO)?;
        let identity = Identity { pasid: opened.pasid, privileged: false };
        Ok(Executor {
            device,
            memory: memory()?,
            killed,
            tally,
            write: if opened.is_dedicated() { Write::Posted } else { Write::Deferrable(identity) },
            threshold: opened.threshold(),
            // Acquire: pairs with the Release that published the queue state.
            generation: file.board.memory().generation.load(Ordering::Acquire),
        })
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
    pub(super) fn submit(&self, file: &OpenFile, descriptor: Descriptor) -> Offer {
        let number = self.tally.begin();
        let offer = if self.admits(file) {
            // The device fills the first dword (K612 cdev.c, idxd_submit_user_descriptor). Until then it carries the
            // submission's number to the observer.
            let mut named = descriptor;
            named.0[0] = named.0[0] & !0xffff_ffff | number & 0xffff_ffff;
            // SAFETY: the replica has two address spaces. One is the event log's memory, which the replica owns; no
            // descriptor reaches it, since each is submitted under a PASID. The other belongs to another process and is
            // accessed by system calls; this process holds no reference to it.
            let submission = unsafe { Submission::vouch(named) };
            self.device.submit(file.opened.wq, PortalKind::LimitedMsix, self.write, &submission)
        } else if self.write == Write::Posted {
            Offer::Lost
        } else {
            Offer::Retry
        };
        self.tally.submitted(number, &descriptor, offer);
        offer
    }

    /// True if the queue has not changed since it was opened and has room.
    fn admits(&self, file: &OpenFile) -> bool {
        let board = file.board.memory();
        // Acquire: pairs with the Release store of the host's state change.
        board.state.load(Ordering::Acquire) == ENABLED
            && board.generation.load(Ordering::Acquire) == self.generation
            // This file's own count is 0: its descriptors have ended when the next one comes.
            && (self.threshold == 0 || board.has_room(file.board.rows(), file.opened.row, 0, self.threshold))
    }

    /// Passes on what the device has reported since the last call, and does the work of the driver's interrupt handler.
    pub(super) fn reports(&self, mut on_report: impl FnMut(&Report)) {
        if self.device.has_reports() {
            self.device.take_reports(&self.memory, |notice| Report::of(&notice, &mut on_report));
        }
    }
}
