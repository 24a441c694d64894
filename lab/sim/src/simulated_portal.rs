#![allow(unsafe_code, reason = "passes descriptors that it was offered on to the model later")]
//! A portal in simulated time for a library that copies: it takes descriptors, and executes each when the simulator
//! reports its completion.
//!
//! ```text
//! library ─offer─► Gate ··· Offered ─► Core::submit_batch ─► simulated device ─► PendingWork done ─┐
//!                              bytes, record ◄─ model ◄─ execute ◄─────────────────────────────────┘
//! ```
//!
//! Simulated devices execute nothing, because programs that only account for time need no bytes. A library's own
//! pipeline does need them: it reads its completion records and uses the copied bytes. A modelled device moves the
//! bytes, all at the moment at which the simulated record is written.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_abi::{DESCRIPTOR_BYTES, Descriptor, Opcode};
use telpher_device::{Config, ModelDevice, ModelOptions, Preset, Runner, WqMode};
use telpher_portal::{Offer, Portal, QueueInfo, Submission};

/// The portal of one queue.
#[derive(Debug)]
pub(crate) struct Gate {
    info: QueueInfo,
    /// The model, which executes an offered descriptor at once.
    model: Arc<dyn Portal>,
    held: Mutex<Held>,
}

/// A descriptor that was taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Offered {
    /// Its number, for [`execute`](Gate::execute).
    pub(crate) number: u64,
    /// Bytes of the operation, or of each member of a batch.
    pub(crate) sizes: Vec<u32>,
}

#[derive(Debug, Default)]
struct Held {
    /// Descriptors taken so far.
    count: u64,
    /// Taken and not yet returned by `offered`.
    offered: Vec<Offered>,
    /// Taken and not executed.
    waiting: BTreeMap<u64, Descriptor>,
    /// Descriptors are executed at once from now on.
    open: bool,
}

impl Gate {
    /// A gate that reports `info` to its clients.
    pub(crate) fn new(info: QueueInfo) -> Gate {
        let options = ModelOptions::of(Preset::Spr).with_config(Config::single(WqMode::Dedicated, 8, 1));
        let device =
            ModelDevice::start(options.with_runner(Runner::Inline)).expect("every device has a queue and an engine");
        let model = device.portal("wq0.0").expect("it was just configured");
        Gate { info, model, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptors taken since the last call.
    pub(crate) fn offered(&self) -> Vec<Offered> {
        std::mem::take(&mut self.held().offered)
    }

    /// Returns a descriptor that is not executed yet.
    pub(crate) fn descriptor(&self, number: u64) -> Option<Descriptor> {
        self.held().waiting.get(&number).copied()
    }

    /// Executes the descriptor with this number, once.
    pub(crate) fn execute(&self, number: u64) {
        if let Some(descriptor) = self.held().waiting.remove(&number) {
            self.perform(descriptor);
        }
    }

    /// Executes all waiting descriptors, and from now on each at once: the simulation is over, and clients that are
    /// dropped wait for their descriptors in flight.
    pub(crate) fn open(&self) {
        let mut held = self.held();
        held.open = true;
        std::mem::take(&mut held.waiting).into_values().for_each(|descriptor| self.perform(descriptor));
    }

    fn perform(&self, descriptor: Descriptor) {
        // SAFETY: the caller that offered the descriptor vouched for it until its completion record is written. Only
        // the model writes the record, and it has not seen the descriptor yet: `perform` is called once, for a
        // descriptor out of `waiting` or straight from `offer`.
        let submission = unsafe { Submission::vouch(descriptor) };
        // The model's queue is empty, since the model executes at once; it cannot be full.
        let _ = self.model.offer(&submission);
    }
}

/// Bytes of the operation, or of each member of a batch.
fn sizes(submission: &Submission) -> Vec<u32> {
    let descriptor = submission.descriptor();
    if descriptor.opcode() != Opcode::Batch {
        return vec![descriptor.size()];
    }
    let member = |index: u32| {
        // An address of this process, 64 bits on x86-64; the end of the list was vouched for, so the sum cannot
        // overflow.
        #[allow(clippy::cast_possible_truncation, reason = "see above")]
        let address = (descriptor.src() + u64::from(index) * DESCRIPTOR_BYTES) as usize;
        // SAFETY: the list is readable, and not written, until the batch's record is written, which happens later; its
        // descriptors may be at any address.
        let member = unsafe { std::ptr::with_exposed_provenance::<Descriptor>(address).read_unaligned() };
        member.size()
    };
    (0..descriptor.size()).map(member).collect()
}

// SAFETY: the model executes each submission once, when it leaves `waiting`, or at once; `Retry` is never returned. A
// kept descriptor is given up then, and its ranges are not accessed after its record is written. `offer` pushes to a
// vector and a tree, which does not unwind. It never reports that it has stopped.
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
    fn taken_descriptors_are_executed_on_request_in_any_order() {
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
        assert_eq!(channel.completed(&mut done), 0, "the first is not done, and results come in submission order");
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
    fn an_open_gate_executes_at_once() {
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
