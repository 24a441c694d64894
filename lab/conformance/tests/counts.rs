//! What a device counts while it passes the suite is what the suite has submitted.
#![allow(unsafe_code, reason = "a portal that passes everything on to another one")]

#[path = "subjects/model.rs"]
mod model;

use model::Model;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use telpher_abi::registers::offset;
use telpher_conformance::{
    Capabilities, Device, DeviceSpec, Filter, Guarantees, Interrupt, PortalSpec, Refusal, Registers, Subject, run,
};
use telpher_device::{CountsIn, DeviceCounts, Preset, Runner, Totals};
use telpher_portal::{Health, Offer, Portal, QueueInfo, RecordCell, Submission, Watch};

/// The words in which one device after the other counts.
#[derive(Debug, Default)]
struct Words(DeviceCounts);

impl AsRef<DeviceCounts> for Words {
    fn as_ref(&self) -> &DeviceCounts {
        &self.0
    }
}

/// What queues answered to the suite. A posted descriptor that was lost counts as taken: its submitter is not told.
#[derive(Debug, Default)]
struct Answers {
    taken: AtomicU64,
    retries: AtomicU64,
}

impl Answers {
    fn seen(&self) -> [u64; 2] {
        [&self.taken, &self.retries].map(|word| word.load(Ordering::SeqCst))
    }
}

#[derive(Debug)]
struct CountedPortal(Arc<dyn Portal>, Arc<Answers>);

// SAFETY: passes every call on to a portal that keeps the promises.
unsafe impl Portal for CountedPortal {
    fn info(&self) -> &QueueInfo {
        self.0.info()
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let offer = self.0.offer(submission);
        let word = if offer == Offer::Retry { &self.1.retries } else { &self.1.taken };
        word.fetch_add(1, Ordering::SeqCst);
        offer
    }

    fn drive(&self) {
        self.0.drive();
    }

    fn watch(&self, record: &RecordCell, how: Watch, at_most: Duration) {
        self.0.watch(record, how, at_most);
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn retire(&self) -> Health {
        self.0.retire()
    }
}

/// A device of the suite, and what was counted before it.
struct CountedDevice {
    device: Box<dyn Device>,
    seen: Arc<Seen>,
    before: ([u64; 2], Totals),
    held: Cell<bool>,
}

impl Device for CountedDevice {
    fn portal(&self, spec: &PortalSpec) -> Option<Arc<dyn Portal>> {
        let portal = self.device.portal(spec)?;
        Some(Arc::new(CountedPortal(portal, Arc::clone(&self.seen.answers))))
    }

    fn registers(&self) -> Option<&dyn Registers> {
        self.device.registers()
    }

    fn hold(&self, stop: bool) -> bool {
        self.held.set(stop);
        self.device.hold(stop)
    }

    fn settle(&self) {
        self.device.settle();
    }

    fn interrupts(&self) -> Option<Vec<Interrupt>> {
        self.device.interrupts()
    }
}

impl Drop for CountedDevice {
    fn drop(&mut self) {
        let is_enabled = self.device.registers().is_some_and(|registers| registers.read(offset::GENSTS, 4) & 3 == 1);
        if self.held.get() || !is_enabled {
            // Descriptors may be left in its queues.
            self.seen.stopped.fetch_add(1, Ordering::SeqCst);
            return;
        }
        self.device.settle();
        self.seen.compare(&self.before);
    }
}

/// What the devices counted, and what the suite saw.
#[derive(Default)]
struct Seen {
    words: Arc<Words>,
    answers: Arc<Answers>,
    /// Devices whose totals are exactly what was submitted.
    compared: AtomicU64,
    /// Devices in which descriptors were left.
    left: AtomicU64,
    /// Devices that their case has stopped.
    stopped: AtomicU64,
}

/// The inline model, whose devices count in the same words.
struct Counted {
    model: Model,
    seen: Arc<Seen>,
}

impl Counted {
    fn new(preset: Preset) -> Counted {
        let seen = Arc::<Seen>::default();
        let counts = CountsIn::Shared(Arc::clone(&seen.words) as _);
        Counted { model: Model { counts, ..Model::new(preset, Runner::Inline) }, seen }
    }
}

impl Seen {
    /// Compares what was counted since an earlier moment with the answers of queues.
    fn compare(&self, (answers, totals): &([u64; 2], Totals)) {
        let counted = self.words.0.totals().since(totals);
        let [taken, retries] = [0, 1].map(|at| self.answers.seen()[at] - answers[at]);
        let of_queues = |of: &dyn Fn(usize) -> u64| (0..16).map(of).sum::<u64>();
        let all = counted.all();
        assert_eq!(of_queues(&|wq| counted.retries(wq)), retries);
        let ended = all.descriptors + of_queues(&|wq| counted.lost(wq));
        assert!(ended <= taken, "{ended} of {taken}: {counted:?}");
        for of in [Totals::operation, Totals::status] {
            assert_eq!((0..64).map(|code| of(&counted, code)).sum::<u64>(), all.descriptors + all.members);
        }
        // A case may leave descriptors in a queue that no engine serves.
        let counter = if ended == taken { &self.compared } else { &self.left };
        counter.fetch_add(1, Ordering::SeqCst);
    }
}

impl Subject for Counted {
    fn name(&self) -> String {
        self.model.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.model.capabilities()
    }

    fn promises(&self) -> Guarantees {
        self.model.promises()
    }

    fn device(&self, spec: &DeviceSpec) -> Result<Box<dyn Device>, Refusal> {
        let device = self.model.device(spec)?;
        let before = (self.seen.answers.seen(), self.seen.words.0.totals());
        Ok(Box::new(CountedDevice { device, seen: Arc::clone(&self.seen), before, held: Cell::new(false) }))
    }
}

#[test]
fn totals_are_what_the_suite_submitted() {
    for preset in [Preset::Full, Preset::V3Full] {
        let subject = Counted::new(preset);
        let report = run(&subject, &Filter::all());
        assert!(report.is_green(), "{report}");
        let Seen { compared, left, stopped, .. } = &*subject.seen;
        let [equal, left, stopped] = [compared, left, stopped].map(|word| word.load(Ordering::SeqCst));
        println!("{}: {equal} devices compared, {left} with descriptors left, {stopped} stopped", subject.name());
        assert!(equal > 20 * left && equal > 5 * stopped, "{equal} {left} {stopped}");
    }
}
