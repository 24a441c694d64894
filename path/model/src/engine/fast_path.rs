//! The fast path: short copies and CRCs without faults and without an observer, in one call instead of steps, including
//! the members of a batch one after the other.
//!
//! It makes the same checks as the steps, by the same functions: [`Device::check`], [`execute`], the choice of the
//! report. If the fast path does not apply or fails, the steps continue at the same point: a member with another
//! operation or flag, a refused member, a fault of list, data or record.
//!
//! [`execute`]: crate::execute()

use super::batch::batch_index;
use super::{Engine, Outcome, Phase};
use crate::action::Action;
use crate::device::Device;
use crate::execute::{Scratch, crc_forward, move_forward};
use crate::legality::Origin;
use crate::observe::Observer;
use crate::run::{reread_member, rewrite_record};
use telpher_abi::{CompletionRecord, DESCRIPTOR_BYTES, Descriptor, Flags, Opcode, Status};
use telpher_mem::{Space, WriteHint};

/// The longest range on the fast path. Above it, the steps cost little compared with the bytes, and other queues get
/// their share. Source: chosen; a jumbo frame, and two pages.
const FAST_PATH_BYTES: u32 = 16 << 10;
/// The most members of a batch in one call; then the runner serves others. Source: chosen; a burst of packets.
const FAST_PATH_MEMBERS: u32 = 32;
/// The flags allowed on the fast path: they only say where result and record go.
const FAST_PATH_FLAGS: Flags =
    Flags::COMPLETION_RECORD_ADDRESS_VALID.union(Flags::REQUEST_COMPLETION_RECORD).union(Flags::CACHE_CONTROL_1);

/// True for a short copy in ascending order, and for the CRC of a short range.
#[inline]
fn qualifies(d: &Descriptor) -> bool {
    let len = u64::from(d.size());
    let is_forward = || !(d.dst() > d.src() && d.dst() - d.src() < len);
    FAST_PATH_FLAGS.contains(d.flags())
        && d.size() <= FAST_PATH_BYTES
        && match d.opcode() {
            Opcode::MemoryMove => is_forward(),
            Opcode::CrcGeneration => true,
            _ => false,
        }
}

/// Checks a descriptor that qualifies.
#[inline]
fn is_legal(device: &Device, d: &Descriptor, origin: Origin) -> bool {
    // Constants, so that the compiler removes the checks of other operations.
    match d.opcode() {
        Opcode::CrcGeneration => device.check_as(Opcode::CrcGeneration, d, origin).is_ok(),
        _ => device.check_as(Opcode::MemoryMove, d, origin).is_ok(),
    }
}

/// Does what a descriptor that qualifies asks for; returns its completion record, or the outcome of a failure.
#[inline]
fn execute(space: &dyn Space, scratch: &mut Scratch, d: &Descriptor) -> Result<CompletionRecord, Outcome> {
    let success = Outcome::of(Status::Success).record;
    if d.opcode() == Opcode::CrcGeneration {
        let crc = crc_forward(space, scratch, d.src(), d.size().into(), d.crc_seed())?;
        return Ok(success.with_crc(crc));
    }
    let hint = if d.flags().contains(Flags::CACHE_CONTROL_1) { WriteHint::Cache } else { WriteHint::Memory };
    move_forward(space, d.src(), d.dst(), d.size().into(), hint)?;
    Ok(success)
}

impl Engine {
    /// Executes and ends the current descriptor after [`Step::Execute`](super::Step::Execute), if it qualifies, and
    /// then the members of its batch that qualify. Returns false if the runner has to execute it.
    #[inline]
    pub(crate) fn run_fast_path<O: Observer + ?Sized>(
        &mut self,
        device: &Device,
        space: &dyn Space,
        scratch: &mut Scratch,
        observer: &O,
    ) -> bool {
        if self.phase != Phase::Executing || !qualifies(&self.work.descriptor) || device.perfmon.is_counting() {
            return false;
        }
        let (descriptor, origin) = (self.work.descriptor, self.work.origin);
        if !self.execute_and_record(device, space, scratch, &descriptor, origin) {
            return true;
        }
        self.tell(observer, &descriptor, origin);
        if self.batch.is_none() {
            self.end(device);
            return true;
        }
        for _ in 1..FAST_PATH_MEMBERS {
            if !self.next_member_fast(device, space, scratch, observer) {
                return true;
            }
        }
        self.phase = Phase::Ready;
        true
    }

    /// Executes one more member of the batch; returns false if none is left, or the steps must continue.
    #[inline]
    fn next_member_fast<O: Observer + ?Sized>(
        &mut self,
        device: &Device,
        space: &dyn Space,
        scratch: &mut Scratch,
        observer: &O,
    ) -> bool {
        let Some(batch) = self.batch.as_mut() else { return false };
        let index = batch.next;
        if index >= batch.work.descriptor.size() {
            self.phase = Phase::Ready;
            return false;
        }
        let address = batch.work.descriptor.src().wrapping_add(u64::from(index) * DESCRIPTOR_BYTES);
        let mut bytes = [0; 64];
        let read = space.read(address, &mut bytes);
        let d = Descriptor::from_bytes(&bytes);
        let origin = Origin { batch_index: Some(batch_index(index)), ..self.work.origin };
        let plain = read.is_ok() && qualifies(&d) && !device.perfmon.is_counting();
        if plain && is_legal(device, &d, origin) {
            batch.next = index + 1;
            if !self.execute_and_record(device, space, scratch, &d, origin) {
                // The steps end this member, and the last one that they have begun was another.
                self.work.is_watched = false;
                return false;
            }
            self.tell(observer, &d, origin);
            return true;
        }
        self.phase = Phase::Fetching;
        let member = read.map(|()| d).or_else(|fault| reread_member(self, device, space, address, fault));
        self.fetched(device, member);
        false
    }

    /// Tells the observer of a descriptor that has ended.
    #[inline]
    fn tell<O: Observer + ?Sized>(&self, observer: &O, descriptor: &Descriptor, origin: Origin) {
        observer.ended_fast(&self.job_of(descriptor, &origin));
    }

    /// Executes a descriptor, and writes the record. Returns false if the steps must do the rest.
    #[inline]
    fn execute_and_record(
        &mut self,
        device: &Device,
        space: &dyn Space,
        scratch: &mut Scratch,
        d: &Descriptor,
        origin: Origin,
    ) -> bool {
        let record = match execute(space, scratch, d) {
            Ok(record) => record,
            Err(outcome) => {
                (self.work.descriptor, self.work.origin) = (*d, origin);
                self.action = Action::of(d);
                self.phase = Phase::Executing;
                self.executed(device, outcome);
                return false;
            }
        };
        if let Some(batch) = self.batch.as_mut() {
            batch.done += 1;
        }
        if d.flags().contains(Flags::RECORD)
            && let Err(fault) = space.write_record(d.completion_address(), &record.0)
        {
            (self.work.descriptor, self.work.origin) = (*d, origin);
            self.outcome = Outcome { record, ..Outcome::of(Status::Success) };
            self.phase = Phase::Recorded;
            let written = rewrite_record(self, device, space, d.completion_address(), fault);
            self.recorded(device, written);
            return false;
        }
        true
    }
}
