//! Descriptors of programs without the preloaded part: executed here, in the submitter's memory, before write(2) returns.
//!
//! Same replica, same rules as in a guest; only the memory is another process'. What a guest can be asked to do beyond that, to
//! inject faults and to look for misuse, needs the program's own threads and is not done here.
#![allow(unsafe_code, reason = "vouches for descriptors whose addresses are another process', reached by system calls")]

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
use telpher_model::{Identity, Response, Write};
use telpher_portal::Submission;
use telpher_vdev_wire::board::ENABLED;
use telpher_vdev_wire::message::{Report, STRICT};

/// A queue as one process without the preloaded part has it.
#[derive(Debug)]
pub(super) struct Executor {
    device: ModelDevice,
    /// The memory the replica reaches, for what the driver writes there itself.
    memory: UntilKilled<Remote>,
    /// Whether the thread that waits for the descriptors has been killed.
    killed: Arc<Killed>,
    tally: Arc<Tally>,
    write: Write,
    /// Descriptors that may wait, of all processes together; 0 for a dedicated queue.
    threshold: u32,
    /// State changes of the queue when it was opened.
    generation: u32,
}

impl Executor {
    /// Brings the queue up for a process.
    ///
    /// # Errors
    /// EFAULT if the process' memory cannot be reached: it has ended, or may not be traced. EIO if the model refuses, which no
    /// queue that a driver has enabled makes it do.
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
            // Acquire: pairs with the Release that published the board's state.
            generation: file.board.memory().generation.load(Ordering::Acquire),
        })
    }

    /// From now on the descriptors are those of this thread's write(2).
    pub(super) fn serve(&self, thread: u32) {
        self.killed.watch(thread);
    }

    /// True if that thread has been killed, at the last look: nothing more is executed for it.
    pub(super) fn is_killed(&self) -> bool {
        self.killed.found()
    }

    /// Submits one descriptor and executes it, with all that it lets loose.
    pub(super) fn submit(&self, file: &OpenFile, descriptor: Descriptor) -> Response {
        let number = self.tally.begin();
        let response = if self.admits(file) {
            // The first dword is the device's to fill (K612 cdev.c, idxd_submit_user_descriptor), and until it does, carries
            // the submission's number to the observer.
            let mut named = descriptor;
            named.0[0] = named.0[0] & !0xffff_ffff | number & 0xffff_ffff;
            // SAFETY: the replica has two spaces. One is the event log's, memory that the replica owns; no descriptor
            // reaches it, since each is submitted under a PASID. The other is another process', by system calls, of which
            // this process holds no reference.
            let submission = unsafe { Submission::vouch(named) };
            self.device.submit(file.opened.wq, PortalKind::LimitedMsix, self.write, &submission)
        } else if self.write == Write::Posted {
            Response::Dropped
        } else {
            Response::Retry
        };
        self.tally.submitted(number, &descriptor, response);
        response
    }

    /// True if the queue is still the one that was opened, and has room.
    fn admits(&self, file: &OpenFile) -> bool {
        let board = file.board.memory();
        // Acquire: pairs with the Release of whoever changed the state.
        board.state.load(Ordering::Acquire) == ENABLED
            && board.generation.load(Ordering::Acquire) == self.generation
            // Its own descriptors have ended when the next one comes.
            && (self.threshold == 0 || board.has_room(file.board.rows(), file.opened.row, 0, self.threshold))
    }

    /// Hands on what the device has reported since. Does on the way what the driver does in its interrupt handler.
    pub(super) fn reports(&self, mut hear: impl FnMut(&Report)) {
        if self.device.has_reports() {
            self.device.take_reports(&self.memory, |notice| Report::of(&notice, &mut hear));
        }
    }
}
