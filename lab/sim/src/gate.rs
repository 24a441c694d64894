#![allow(unsafe_code, reason = "hands on, later, what it was offered to be executed from then on")]
//! A queue in simulated time for a library that copies: it takes what it is offered, and executes it when the simulator says it is over.
//!
//! ```text
//! library ─offer─► Gate ··· Offered ─► Core::submit_batch ─► simulated device ─► Ticket done ─► execute ─► model ─► bytes, record
//! ```
//!
//! Simulated devices execute nothing, and programs that only account for time need no bytes. A library's own pipeline does: it looks at its
//! completion records, and goes on with what was copied. The bytes are moved by a modelled device, all at the moment at which the simulated
//! record is written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_abi::{DESCRIPTOR_BYTES, Descriptor, Opcode};
use telpher_device::{Config, ModelDevice, ModelOptions, Preset, Runner, WqMode};
use telpher_portal::{Offer, Portal, QueueInfo, Submission};

/// One queue.
#[derive(Debug)]
pub(crate) struct Gate {
    info: QueueInfo,
    /// Executes at once what it is offered.
    model: Arc<dyn Portal>,
    held: Mutex<Held>,
}

/// A descriptor that was taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Offered {
    /// By which it is [executed](Gate::execute).
    pub(crate) number: u64,
    /// Bytes of the operation, or of a batch's members.
    pub(crate) sizes: Vec<u32>,
}

#[derive(Debug, Default)]
struct Held {
    /// Taken so far.
    count: u64,
    /// Taken and not asked for.
    offered: Vec<Offered>,
    /// Taken and not executed.
    waiting: BTreeMap<u64, Descriptor>,
    /// Nothing waits any more.
    open: bool,
}

impl Gate {
    /// One that clients take for this queue.
    pub(crate) fn new(info: QueueInfo) -> Gate {
        let options = ModelOptions::of(Preset::Spr).with_config(Config::single(WqMode::Dedicated, 8, 1));
        let device =
            ModelDevice::start(options.with_runner(Runner::Inline)).expect("a queue and an engine are in every device");
        let model = device.portal("wq0.0").expect("it was just configured");
        Gate { info, model, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was taken since this was asked last.
    pub(crate) fn offered(&self) -> Vec<Offered> {
        std::mem::take(&mut self.held().offered)
    }

    /// Executes what has this number, once.
    pub(crate) fn execute(&self, number: u64) {
        if let Some(descriptor) = self.held().waiting.remove(&number) {
            self.perform(descriptor);
        }
    }

    /// Executes all that waits, and from now on at once: the simulation is over, and whoever is about to go waits for what is under way.
    pub(crate) fn open(&self) {
        let mut held = self.held();
        held.open = true;
        std::mem::take(&mut held.waiting).into_values().for_each(|descriptor| self.perform(descriptor));
    }

    fn perform(&self, descriptor: Descriptor) {
        // SAFETY: whoever offered it vouched for it until its completion record is written. Nobody but the model writes that, which has not seen
        // it yet: it comes here once, out of `waiting` or straight from `offer`.
        let submission = unsafe { Submission::vouch(descriptor) };
        // The queue of the model is empty, since it executes at once; it cannot be full.
        let _ = self.model.offer(&submission);
    }
}

/// Bytes of the operation, or of a batch's members.
fn sizes(submission: &Submission) -> Vec<u32> {
    let descriptor = submission.descriptor();
    if descriptor.opcode() != Opcode::Batch {
        return vec![descriptor.size()];
    }
    let member = |index: u32| {
        // An address of this process, 64 bits on x86-64; the list's end was vouched for, so that this cannot overflow.
        #[allow(clippy::cast_possible_truncation, reason = "see above")]
        let address = (descriptor.src() + u64::from(index) * DESCRIPTOR_BYTES) as usize;
        // SAFETY: the list is readable, and nobody writes it, until the batch's record is written, which is later; its descriptors may lie
        // at any address.
        let member = unsafe { std::ptr::with_exposed_provenance::<Descriptor>(address).read_unaligned() };
        member.size()
    };
    (0..descriptor.size()).map(member).collect()
}

// SAFETY: the model executes each submission once, when it leaves `waiting`, or at once; `Retry` is never said. What is kept is given up then, and
// its ranges are not touched by anybody after its record is written. `offer` pushes to a vector and a tree, which does not unwind. It never says
// that it has stopped.
unsafe impl Portal for Gate {
    fn info(&self) -> &QueueInfo {
        &self.info
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let mut held = self.held();
        if held.open {
            self.perform(*submission.descriptor());
            return Offer::Taken;
        }
        let number = held.count;
        held.count += 1;
        held.offered.push(Offered { number, sizes: sizes(submission) });
        held.waiting.insert(number, *submission.descriptor());
        Offer::Taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_mover::{Channel, ChannelPolicy};
    use telpher_portal::Health;
    use telpher_portal::QueueMode;

    fn gate() -> Arc<Gate> {
        let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Inline)).unwrap();
        let info = device.portal("wq0.0").unwrap().info().clone();
        Arc::new(Gate::new(QueueInfo { mode: QueueMode::Dedicated, ..info }))
    }

    #[test]
    fn what_was_taken_is_executed_when_it_is_told_and_in_any_order() {
        let gate = gate();
        let mut channel = Channel::new(Arc::clone(&gate) as Arc<dyn Portal>, 8, ChannelPolicy::default()).unwrap();
        for byte in 1..=3_u8 {
            let bytes = 100 * usize::from(byte);
            channel.copy(vec![byte; bytes], vec![0; bytes]).unwrap();
            if byte != 1 {
                channel.submit();
            }
        }
        let offered = gate.offered();
        let expected = [Offered { number: 0, sizes: vec![100, 200] }, Offered { number: 1, sizes: vec![300] }];
        assert_eq!(offered, expected);
        assert_eq!(gate.offered(), []);
        let mut done = Vec::new();
        assert_eq!(channel.completed(&mut done), 0);
        gate.execute(1);
        assert_eq!(channel.completed(&mut done), 0, "the first is not over, and results come in their order");
        gate.execute(0);
        gate.execute(0);
        assert_eq!(channel.completed(&mut done), 3);
        for (byte, done) in (1..).zip(done) {
            let copied: Vec<u8> = done.buffers.unwrap().dst.into_iter().flatten().collect();
            assert_eq!(copied, vec![byte; 100 * usize::from(byte)]);
        }
        assert_eq!(gate.health(), Health::Working);
    }

    #[test]
    fn an_open_gate_keeps_nothing() {
        let gate = gate();
        let mut channel = Channel::new(Arc::clone(&gate) as Arc<dyn Portal>, 8, ChannelPolicy::default()).unwrap();
        let mut done = Vec::new();
        channel.copy(vec![7; 64], vec![0; 64]).unwrap();
        channel.submit();
        gate.open();
        channel.copy(vec![7; 64], vec![0; 64]).unwrap();
        channel.submit();
        assert_eq!(channel.completed(&mut done), 2);
    }
}
