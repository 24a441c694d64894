//! The totals of a device are exactly what the program submitted.
#![allow(unsafe_code, reason = "descriptors are vouched for: their buffers outlive the device's work")]

use std::sync::Arc;
use telpher_abi::{Descriptor, Opcode, Status};
use telpher_device::{Config, CountsIn, ModelDevice, ModelOptions, Preset, Runner, WqMode};
use telpher_model::{Observer, QueueTotals, Totals};
use telpher_os::monotonic_ns;
use telpher_portal::{Offer, Portal, RecordCell, Submission};

/// A descriptor list at an aligned address.
#[repr(align(64))]
struct List([Descriptor; 48]);

/// An observer that does nothing, so that everything goes by steps.
#[derive(Debug)]
struct PassiveObserver;

impl Observer for PassiveObserver {}

fn submit(portal: &dyn Portal, descriptor: Descriptor) -> Status {
    let record = RecordCell::new();
    // SAFETY: the buffers belong to the callers, which wait for the record here.
    let submission = unsafe { Submission::vouch(descriptor.with_record(record.address())) };
    while portal.offer(&submission) != Offer::Taken {
        portal.drive();
    }
    while record.status().is_none() {
        portal.drive();
    }
    record.status().unwrap().status()
}

fn totals(device: &ModelDevice) -> Totals {
    device.counts().unwrap().totals()
}

/// Waits until as many descriptors have been counted: a record is written before its descriptor is counted.
fn totals_of(device: &ModelDevice, ended: u64) -> Totals {
    let end = monotonic_ns() + 60_000_000_000;
    loop {
        let totals = totals(device);
        let all = totals.all();
        if all.descriptors + all.members >= ended {
            return totals;
        }
        assert!(monotonic_ns() < end, "{totals:?}");
        std::thread::yield_now();
    }
}

fn options(runner: Runner, observed: bool) -> ModelOptions {
    let options = ModelOptions::of(Preset::Spr).with_runner(runner);
    if observed { options.with_observer(Arc::new(PassiveObserver)) } else { options }
}

#[test]
fn every_descriptor_is_counted_once_by_operation_status_queue_and_bytes() {
    for (runner, observed) in [(Runner::Inline, false), (Runner::Inline, true), (Runner::Threaded, false)] {
        let device = ModelDevice::start(options(runner, observed)).unwrap();
        let portal = device.portal("wq0.0").unwrap();
        let (src, mut dst, mut other) = (vec![7_u8; 100_000], vec![0_u8; 100_000], vec![0_u8; 100_000]);
        let (s, d, o) = (src.as_ptr() as u64, dst.as_mut_ptr() as u64, other.as_mut_ptr() as u64);
        for len in [1, 300, 100_000] {
            assert_eq!(submit(&*portal, Descriptor::memory_move(s, d, len)), Status::Success);
        }
        assert_eq!(submit(&*portal, Descriptor::fill(3, o, 5000)), Status::Success);
        assert_eq!(submit(&*portal, Descriptor::compare(s, d, 90_000)), Status::Success);
        // Differs at its first byte.
        assert_eq!(submit(&*portal, Descriptor::compare(s, o, 64)), Status::Success);
        for _ in 0..5 {
            assert_eq!(submit(&*portal, Descriptor::nop()), Status::Success);
        }
        assert_eq!(submit(&*portal, Descriptor::memory_move(s, 0x1000, 64)), Status::PageFault);
        assert_eq!(submit(&*portal, Descriptor::memory_move(s, d, 0)), Status::TransferSizeRange);

        let totals = totals_of(&device, 13);
        let expected = QueueTotals {
            descriptors: 13,
            members: 0,
            read_bytes: 100_301 + 2 * 90_000,
            written_bytes: 100_301 + 5000,
            faults: 1,
            pages: 0,
            // Each operand counts its last unit of 32 bytes as a whole one.
            read_units: 1 + 10 + 3125 + 2 * 2813,
            written_units: 1 + 10 + 3125 + 157,
        };
        assert_eq!((totals.all(), totals.queue(0)), (expected, expected), "{runner:?} {observed}");
        assert_eq!((0..16).map(|engine| totals.engine(engine)).sum::<QueueTotals>(), expected);
        let operations = [Opcode::MemoryMove, Opcode::Fill, Opcode::Compare, Opcode::Nop];
        assert_eq!(operations.map(|operation| totals.operation(operation.code())), [5, 1, 2, 5]);
        assert_eq!((0..64).map(|code| totals.operation(code)).sum::<u64>(), 13);
        assert_eq!((0..64).map(|code| totals.status(code)).sum::<u64>(), 13);
        assert_eq!([Status::Success, Status::TransferSizeRange].map(|status| totals.status(status.code())), [11, 1]);
        assert_eq!((0..16).filter_map(|engine| totals.times(engine)).count(), 0, "no reader has subscribed");
    }
}

#[test]
fn members_of_a_batch_are_counted_apart_on_the_fast_path_and_by_steps() {
    for observed in [false, true] {
        let device = ModelDevice::start(options(Runner::Inline, observed)).unwrap();
        let portal = device.portal("wq0.0").unwrap();
        let (src, mut dst) = (vec![7_u8; 4096], vec![0_u8; 4096]);
        let copy = Descriptor::memory_move(src.as_ptr() as u64, dst.as_mut_ptr() as u64, 4096);
        let record = RecordCell::new();
        let crc = Descriptor::crc_generation(src.as_ptr() as u64, 1000, 0).with_record(record.address());
        let list = Box::new(List(std::array::from_fn(|at| [copy, crc, Descriptor::nop(), copy][at % 4])));
        let batch = Descriptor::batch(list.0.as_ptr() as u64, 48);
        assert_eq!(submit(&*portal, batch), Status::Success);
        let expected = QueueTotals {
            descriptors: 1,
            members: 48,
            read_bytes: 24 * 4096 + 12 * 1000,
            written_bytes: 24 * 4096,
            read_units: 24 * 128 + 12 * 32,
            written_units: 24 * 128,
            ..QueueTotals::default()
        };
        let totals = totals(&device);
        assert_eq!(totals.all(), expected, "{observed}");
        let operations = [Opcode::MemoryMove, Opcode::CrcGeneration, Opcode::Nop, Opcode::Batch];
        assert_eq!(operations.map(|operation| totals.operation(operation.code())), [24, 12, 12, 1]);
        assert_eq!(totals.status(Status::Success.code()), 49);
    }
}

#[test]
fn refused_submissions_are_counted_by_their_queue() {
    let config = Config::single(WqMode::Shared, 2, 1);
    let device = ModelDevice::start(options(Runner::Inline, false).with_config(config)).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    device.hold(true);
    // SAFETY: a No-op without a record accesses no memory.
    let nop = unsafe { Submission::vouch(Descriptor::nop()) };
    let answers: Vec<Offer> = (0..10).map(|_| portal.offer(&nop)).collect();
    let retries = answers.iter().filter(|offer| **offer == Offer::Retry).count() as u64;
    assert!(retries >= 7, "{answers:?}");
    device.hold(false);
    portal.drive();
    let totals = totals_of(&device, 10 - retries);
    assert_eq!((totals.retries(0), totals.lost(0), totals.all().descriptors), (retries, 0, 10 - retries));
}

#[test]
fn times_are_recorded_while_a_reader_has_subscribed() {
    let device = ModelDevice::start(options(Runner::Inline, false)).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    let subscription = device.counts().unwrap().subscription();
    let nops = |number| (0..number).for_each(|_| assert_eq!(submit(&*portal, Descriptor::nop()), Status::Success));
    let timed = || (0..16).filter_map(|engine| totals(&device).times(engine)).map(|times| times.count).sum::<u64>();
    nops(3);
    assert_eq!(timed(), 0);
    let now = monotonic_ns();
    subscription.renew(now + telpher_model::LONGEST_NS, now);
    nops(20);
    // More only if the test was stopped for as long as the subscription lasts.
    assert!(timed() == 20 || monotonic_ns() >= now + telpher_model::LONGEST_NS);
    // A reader that was killed: its moment passes, and the next descriptor clears the word.
    let _ = subscription.is_on(now + telpher_model::LONGEST_NS);
    assert!(!subscription.is_set());
    let before = timed();
    nops(5);
    assert_eq!(timed(), before);
    let totals = totals(&device);
    let times: Vec<_> = (0..16).filter_map(|engine| totals.times(engine)).collect();
    assert!(times.iter().all(|times| times.buckets.iter().sum::<u64>() == times.count && times.sum_ns > 0));
}

#[test]
fn a_moment_that_no_reader_may_write_is_cleared() {
    let words = telpher_device::DeviceCounts::default();
    let subscription = words.subscription();
    subscription.renew(u64::MAX, 5);
    assert!(subscription.is_set() && !subscription.is_on(5) && !subscription.is_set());
    subscription.renew(u64::MAX, 5);
    subscription.renew(100, 5);
    assert!(subscription.is_on(99) && !subscription.is_on(100));
}

#[test]
fn a_device_that_counts_nowhere_has_no_totals() {
    let device = ModelDevice::start(options(Runner::Inline, false).with_counts(CountsIn::Nowhere)).unwrap();
    assert_eq!(submit(&*device.portal("wq0.0").unwrap(), Descriptor::nop()), Status::Success);
    assert!(device.counts().is_none());
}

#[test]
fn totals_add_up_and_keep_no_moments() {
    let device = ModelDevice::start(options(Runner::Inline, false)).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    let now = monotonic_ns();
    device.counts().unwrap().subscription().renew(now + telpher_model::LONGEST_NS, now);
    assert_eq!(submit(&*portal, Descriptor::nop()), Status::Success);
    let one = totals(&device);
    let mut sum = Totals::default();
    sum.add(&one);
    sum.add(&one);
    assert_eq!((sum.all().descriptors, sum.subscribed_until()), (2, 0));
    assert_eq!(Totals::from_nonzero(sum.nonzero()), Some(sum.clone()));
    assert_eq!(Totals::from_nonzero([(telpher_device::DeviceCounts::WORDS, 1)]), None);
    assert_eq!(Totals::from_words(vec![0; 3]), None);
}
