//! Short copies that go well and that nobody looks at: past the steps, in one go, a batch's one after the other.
//!
//! What is asked is what the steps ask, by the same functions: [`Device::check`], [`execute`], where the record goes. Whatever is not
//! plain, or does not go well, goes on by steps, from where the steps would be: a member with another operation or flag, one that is refused,
//! a fault of list, data or record.
//!
//! [`execute`]: crate::execute()

use super::batch::batch_index;
use super::{Engine, Outcome, Phase};
use crate::action::Action;
use crate::device::Device;
use crate::execute::move_forward;
use crate::legality::Origin;
use crate::run::{reread_member, rewrite_record};
use telpher_abi::{DESCRIPTOR_BYTES, Descriptor, Flags, Opcode, Status};
use telpher_mem::{Space, WriteHint};

/// The longest copy that is plain: above, what it takes to step is nothing beside the copy, and others' turns come between.
/// Source: chosen; a jumbo frame, and two pages.
const PLAIN_BYTES: u32 = 16 << 10;
/// Members of a batch that are done in one go; then the runner looks after others. Source: chosen; a burst of packets.
const IN_ONE_GO: u32 = 32;
/// Flags that a plain copy may have: those that say where its result and its record go.
const PLAIN_FLAGS: Flags =
    Flags::COMPLETION_RECORD_ADDRESS_VALID.union(Flags::REQUEST_COMPLETION_RECORD).union(Flags::CACHE_CONTROL_1);

/// A copy that is short, and forward.
#[inline]
fn is_plain(d: &Descriptor) -> bool {
    let len = u64::from(d.size());
    d.opcode() == Opcode::MemoryMove
        && PLAIN_FLAGS.contains(d.flags())
        && d.size() <= PLAIN_BYTES
        && !(d.dst() > d.src() && d.dst() - d.src() < len)
}

impl Engine {
    /// After [`Step::Execute`](super::Step::Execute): the descriptor in hand is executed and ended, if it is plain, and after it those members of
    /// its batch that are. False if the runner has to.
    #[inline]
    pub(crate) fn go_plain(&mut self, device: &Device, space: &dyn Space) -> bool {
        if self.phase != Phase::Executing || !is_plain(&self.work.descriptor) || device.perfmon.is_counting() {
            return false;
        }
        let (descriptor, origin) = (self.work.descriptor, self.work.origin);
        if !self.copy(device, space, &descriptor, origin) {
            return true;
        }
        if self.batch.is_none() {
            self.end(device);
            return true;
        }
        for _ in 1..IN_ONE_GO {
            if !self.go_on(device, space) {
                return true;
            }
        }
        self.phase = Phase::Ready;
        true
    }

    /// One more member of the batch; false if none is left, or the steps have it.
    #[inline]
    fn go_on(&mut self, device: &Device, space: &dyn Space) -> bool {
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
        let plain = read.is_ok() && is_plain(&d) && !device.perfmon.is_counting();
        if plain && device.check_as(Opcode::MemoryMove, &d, origin).is_ok() {
            batch.next = index + 1;
            return self.copy(device, space, &d, origin);
        }
        self.phase = Phase::Fetching;
        let member = read.map(|()| d).or_else(|fault| reread_member(self, device, space, address, fault));
        self.fetched(device, member);
        false
    }

    /// Copies, and writes the record. False if the steps have the rest.
    #[inline]
    fn copy(&mut self, device: &Device, space: &dyn Space, d: &Descriptor, origin: Origin) -> bool {
        let hint = if d.flags().contains(Flags::CACHE_CONTROL_1) { WriteHint::Cache } else { WriteHint::Memory };
        if let Err(outcome) = move_forward(space, d.src(), d.dst(), d.size().into(), hint) {
            (self.work.descriptor, self.work.origin) = (*d, origin);
            self.action = Action::of(d);
            self.phase = Phase::Executing;
            self.executed(device, outcome);
            return false;
        }
        if let Some(batch) = self.batch.as_mut() {
            batch.done += 1;
        }
        if d.flags().contains(Flags::RECORD) {
            let record = Outcome::of(Status::Success).record;
            if let Err(fault) = space.write_record(d.completion_address(), &record.0) {
                (self.work.descriptor, self.work.origin) = (*d, origin);
                self.outcome = Outcome::of(Status::Success);
                self.phase = Phase::Recorded;
                let written = rewrite_record(self, device, space, d.completion_address(), fault);
                self.recorded(device, written);
                return false;
            }
        }
        true
    }
}
