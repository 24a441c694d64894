//! The time of a descriptor is its own: a stamp that its lane has left from an earlier subscription is not used.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "submissions are vouched for: their memory is simulated")]

use std::cell::Cell;
use telpher_abi::registers::{Command, CommandCode, GrpCfg, PortalKind, WqCfg};
use telpher_abi::{Descriptor, Flags};
use telpher_mem::{MockSpace, Protection, Space};
use telpher_model::{
    AddressSpaces, Clocks, Counting, Device, DeviceCounts, Engine, NoObserver, Observer, OperandSpaces, PciControl,
    Preset, Progress, Scratch, Step, Write, execute, layout, run,
};
use telpher_portal::{Offer, Submission};

const MEMORY: u64 = 0x10_0000;
const WQ: usize = 0;

thread_local! {
    /// The time of the test, in nanoseconds.
    static NOW: Cell<u64> = const { Cell::new(1) };
}

static CLOCKS: Clocks =
    Clocks { now_ns: || NOW.get(), stamp: || NOW.get(), ns_between: |from, to| to.saturating_sub(from) };

/// A device with one engine of one lane, and what it counts.
struct Fixture {
    device: Box<Device>,
    engine: Engine,
    space: MockSpace,
    counts: DeviceCounts,
}

/// Calls a function each time that the engine accesses memory.
struct MockSpaces<'a> {
    space: &'a MockSpace,
    before: &'a dyn Fn(),
}

impl AddressSpaces for MockSpaces<'_> {
    fn space(&self, _: Option<u32>) -> &dyn Space {
        (self.before)();
        self.space
    }
}

impl Fixture {
    fn new() -> Fixture {
        NOW.set(1);
        let device = Device::new(Preset::Spr.capabilities(), PciControl::SHARED_VIRTUAL_MEMORY).unwrap();
        let write = |at: u64, words: &[u64]| {
            for (word, at) in words.iter().zip((at..).step_by(8)) {
                device.write_register(at, 8, *word);
            }
        };
        write(layout::GRPCFG, &GrpCfg(device.grp_cfg(0).with_wqs(1).with_engines(1).0).0);
        let queue =
            WqCfg::default().with_size(16).with_dedicated(true).with_priority(1).with_pasid(1).with_pasid_enable(true);
        write(layout::WQCFG, &queue.with_max_transfer_shift(20).with_max_batch_shift(4).0[..3]);
        for code in [CommandCode::EnableDevice, CommandCode::EnableWq] {
            assert!(device.start_command(Command::new(code, 0)));
            assert_eq!(device.cmd_status().error_code(), 0, "{code:?}");
        }
        let space = MockSpace::default();
        space.map(MEMORY, 4, Protection::ReadWrite);
        Fixture { device, engine: Engine::new(0, 0), space, counts: DeviceCounts::default() }
    }

    fn submit(&self, descriptor: Descriptor) {
        let descriptor = descriptor.and_flags(Flags::RECORD).with_record(MEMORY + 0x800);
        // SAFETY: the memory is simulated.
        let submission = unsafe { Submission::vouch(descriptor) };
        let offer = self.device.submit(WQ, PortalKind::UnlimitedMsix, Write::Posted, &submission);
        assert_eq!(offer, Offer::Taken);
    }

    fn copy(&self) {
        self.submit(Descriptor::memory_move(MEMORY, MEMORY + 0x100, 64));
    }

    fn step(&mut self, observer: &dyn Observer) -> Step {
        self.engine.step(&self.device, &Counting { counts: &self.counts, clocks: &CLOCKS, observer })
    }

    /// Begins the next descriptor, a copy.
    fn begin(&mut self, observer: &dyn Observer) {
        assert_eq!(self.step(observer), Step::Execute);
    }

    /// Ends the descriptor in progress.
    fn end(&mut self, observer: &dyn Observer) {
        let spaces = OperandSpaces::own(&self.space);
        let outcome = execute(self.engine.action(), &spaces, false, false, &mut Scratch::default());
        self.engine.executed(&self.device, outcome);
        loop {
            match self.step(observer) {
                Step::Record { address } => {
                    self.engine.recorded(&self.device, self.space.write_record(address, &self.engine.record().0));
                }
                Step::Ended => {}
                Step::Idle => return,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Takes the engine through a step, on the fast path where it applies.
    fn run(&mut self, before: &dyn Fn(&DeviceCounts)) -> Progress {
        let counting = Counting { counts: &self.counts, clocks: &CLOCKS, observer: &NoObserver };
        let spaces = MockSpaces { space: &self.space, before: &|| before(&self.counts) };
        run(&mut self.engine, &self.device, &spaces, &mut Scratch::default(), &counting, |_| {})
    }

    fn subscribe(&self) {
        self.counts.subscription().renew(NOW.get() + 1000, NOW.get());
    }

    fn unsubscribe(&self) {
        unsubscribe(&self.counts);
    }

    /// The number and the sum of the recorded times.
    fn recorded(&self) -> (u64, u64) {
        self.counts.totals().times(0).map_or((0, 0), |times| (times.count, times.sum_ns))
    }
}

/// Lets the subscription end.
fn unsubscribe(counts: &DeviceCounts) {
    pass(10_000_000);
    assert!(!counts.subscription().is_on(NOW.get()) && !counts.subscription().is_set());
}

fn pass(ns: u64) {
    NOW.set(NOW.get() + ns);
}

/// A program observes the device all the time, so that each descriptor is dispatched under its eyes.
#[derive(Debug)]
struct Watcher;

impl Observer for Watcher {}

#[test]
fn a_descriptor_that_began_without_a_subscription_has_no_time() {
    for observer in [&NoObserver as &dyn Observer, &Watcher] {
        let mut fixture = Fixture::new();
        fixture.subscribe();
        fixture.copy();
        fixture.begin(observer);
        // The lane's stamp is that of a descriptor that ends after the subscription.
        fixture.unsubscribe();
        fixture.end(observer);
        assert_eq!(fixture.recorded(), (0, 0));
        fixture.copy();
        fixture.begin(observer);
        fixture.subscribe();
        pass(7);
        fixture.end(observer);
        assert_eq!(fixture.recorded(), (0, 0), "{observer:?}");
        // The next one begins and ends under the subscription.
        fixture.copy();
        fixture.begin(observer);
        pass(5);
        fixture.end(observer);
        assert_eq!(fixture.recorded(), (1, 5), "{observer:?}");
    }
}

#[test]
fn a_descriptor_that_outlives_a_subscription_has_its_own_time_in_the_next_one() {
    let mut fixture = Fixture::new();
    fixture.subscribe();
    fixture.copy();
    fixture.begin(&NoObserver);
    let begin = NOW.get();
    fixture.unsubscribe();
    fixture.subscribe();
    fixture.end(&NoObserver);
    assert_eq!(fixture.recorded(), (1, NOW.get() - begin));
}

/// A batch's list of copies.
fn members(fixture: &Fixture, copies: &[Descriptor]) -> Descriptor {
    let list = MEMORY + 0x1000;
    for (at, copy) in (list..).step_by(64).zip(copies) {
        fixture.space.write(at, &copy.to_bytes(), telpher_mem::WriteHint::Memory).unwrap();
    }
    Descriptor::batch(list, u32::try_from(copies.len()).unwrap())
}

#[test]
fn a_member_that_leaves_the_fast_path_has_no_time_of_the_one_before() {
    let mut fixture = Fixture::new();
    let copy = Descriptor::memory_move(MEMORY, MEMORY + 0x100, 64);
    // The third one's buffer is not mapped: the fast path begins it, and the steps end it.
    let fault = Descriptor::memory_move(MEMORY, MEMORY + 0x10_0000, 64);
    let batch = members(&fixture, &[copy, copy, fault]);
    fixture.subscribe();
    fixture.submit(batch);
    // The list's first member.
    assert_eq!(fixture.run(&|_| {}), Progress::Worked);
    // It begins under the subscription, which ends before it is executed: the rest goes by the fast path.
    assert_eq!(fixture.run(&|counts| unsubscribe(counts)), Progress::Worked);
    assert_eq!(fixture.counts.totals().all().members, 2);
    fixture.subscribe();
    pass(3);
    while fixture.run(&|_| {}) != Progress::Idle {}
    let totals = fixture.counts.totals();
    assert_eq!((totals.all().members, totals.all().faults, totals.all().descriptors), (3, 1, 1), "{totals:?}");
    // The Batch itself, which began under the first subscription, has its own time.
    assert_eq!(fixture.recorded().0, 1, "{totals:?}");
}
