//! Handles submissions: those of a submit instruction, and those of write(2).

use crate::node::{self, Access};
use crate::observe;
use crate::portal::PORTALS;
use crate::sys::{self, Errno};
use crate::wait;
use std::os::fd::RawFd;
use telpher_abi::{COMPLETION_RECORD_BYTES, DESCRIPTOR_BYTES, Descriptor, Opcode};
use telpher_interpose::{Handler, Monitor, Offer, SubmitInstruction};
use telpher_mem::hook;

/// The handler for this process's portals, called by traps and rewritten sites.
#[derive(Debug)]
pub(crate) struct Portals;

impl Handler for Portals {
    fn is_portal(&self, address: u64) -> bool {
        // A page that is not mapped for writing does not submit: the store faults as on any other page.
        PORTALS.find(address).is_some_and(|portal| portal.writable)
    }

    fn enqueue(&self, how: SubmitInstruction, destination: u64, descriptor: &[u64; 8]) -> Offer {
        let Some(portal) = PORTALS.find(destination) else { return Offer::Retry };
        let Some(inside) = node::enter(portal.file) else { return Offer::Retry };
        // Checked again: the page found before may be gone, and its file's number may belong to another file now.
        if PORTALS.find(destination) != Some(portal) {
            return Offer::Retry;
        }
        let how = if how == SubmitInstruction::Enqcmd {
            observe::SubmitInstruction::Enqcmd
        } else {
            observe::SubmitInstruction::Movdir64b
        };
        let replica = node::replica(&inside);
        replica.count_instruction(SubmitInstruction::is_trap());
        replica.offer(how, destination, descriptor)
    }

    fn wait(&self, monitor: Option<&Monitor>, _control: u32, deadline: u64) -> bool {
        wait::wait(monitor, deadline)
    }

    fn fixup(&self, context: &mut libc::ucontext_t) -> bool {
        hook::resume(context)
    }
}

/// Handles write(2) on a node. Source: K612 `cdev.c`, idxd_cdev_write() and idxd_submit_user_descriptor().
///
/// # Errors
/// EBADF without write access, EPERM from another address space, EFAULT, EINVAL for a batch where it is refused and for
/// a misaligned record address, EAGAIN from a queue that stays full; each only if no descriptor was submitted before.
pub(crate) fn write(fd: RawFd, bytes: *const u8, len: usize) -> Result<usize, Errno> {
    // The program's signal handlers run before or after a descriptor, never while this thread executes as an engine;
    // and a close in a handler does not wait for this thread.
    let _deferred = telpher_interpose::signals::defer();
    let Some(Access { number, may_write, own, .. }) = node::access(fd) else { return Err(Errno::BADF) };
    if !may_write {
        return Err(Errno::BADF);
    }
    // A kernel without write() has no function that compares address spaces.
    let inside = if own { node::enter(number) } else { None };
    let Some(inside) = inside else { return Err(Errno::PERM) };
    let replica = node::replica(&inside);
    if replica.opened().write_errno != 0 {
        return Err(Errno::from_raw_os_error(replica.opened().write_errno));
    }
    let descriptors = len as u64 / DESCRIPTOR_BYTES;
    let mut written = 0;
    while written < descriptors * DESCRIPTOR_BYTES {
        let submitted = replica
            .read_descriptor((bytes.expose_provenance() as u64).wrapping_add(written))
            .ok_or(Errno::FAULT)
            .and_then(|descriptor| submit_one(replica, &descriptor));
        match submitted {
            Ok(()) => written += DESCRIPTOR_BYTES,
            Err(error) if written == 0 => return Err(error),
            Err(_) => break,
        }
    }
    // Fits: at most `len`.
    usize::try_from(written).map_err(|_| Errno::INVAL)
}

fn submit_one(replica: &crate::replica::Replica, descriptor: &Descriptor) -> Result<(), Errno> {
    let opened = replica.opened();
    if descriptor.opcode() == Opcode::Batch && opened.write_batch_errno != 0 {
        return Err(Errno::from_raw_os_error(opened.write_batch_errno));
    }
    // Checked even if the descriptor requests no record.
    if !descriptor.completion_address().is_multiple_of(COMPLETION_RECORD_BYTES) {
        return Err(Errno::INVAL);
    }
    for _ in 0..=opened.enqcmds_retries {
        // A posted write has no answer: the submitter does not learn whether it was accepted.
        if replica.offer(observe::SubmitInstruction::Write, 0, &descriptor.0) != Offer::Retry {
            if descriptor.opcode() == Opcode::Nop {
                replica.let_engine_take();
            }
            return Ok(());
        }
        replica.drive();
        sys::yield_now();
    }
    Err(Errno::AGAIN)
}
