//! A program uses a device of its own on memory whose pages are in flight. Like hardware, the device stops at a missing
//! page and reports it; the program's library then touches the page and waits.

mod common;

use common::stress::Limit;
use common::{FAST, HOME, PAGE, heap_with};
use std::ops::Range;
use std::sync::mpsc::channel;
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, Preset, Residency, Runner};
use telpher_mem::PageSize;
use telpher_mover::{Mover, OnFault, Policy, Threshold, Via};
use telpher_os::Scan;
use telpher_tier::{Arena, Heap};

/// Creates a device, and a mover that copies everything with it.
fn device(residency: Residency, on_fault: OnFault) -> (ModelDevice, Mover) {
    let options = ModelOptions::of(Preset::Spr).with_runner(Runner::Threaded).with_residency(residency);
    let device = ModelDevice::start(options).unwrap();
    let queues = device.enabled_queues().into_iter();
    let portals: Vec<_> = queues.map(|queue| device.portal(&format!("wq0.{queue}")).unwrap()).collect();
    let policy = Policy { on_fault, threshold: Threshold::DEVICE, ..Policy::default() };
    (device, Mover::new(portals, policy))
}

/// Returns how many pages of a range are present.
fn there(range: &Range<u64>) -> u64 {
    let mut pages = 0;
    Scan::open().unwrap().present(range.clone(), |run| pages += run.pages()).unwrap();
    pages
}

/// Returns whether this thread sleeps, and goes on sleeping.
fn sleeps(thread: i32) -> bool {
    let stat = format!("/proc/self/task/{thread}/stat");
    (0..20).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") S "))
    })
}

/// Writes each page's number, plus one, into every word of it.
fn number(arena: &mut Arena) {
    for (word, bytes) in arena.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (word / 512 + 1).to_ne_bytes();
    }
}

/// Copies with the program's mover while the heap's device holds the pages of `out`. Returns what made the copy.
fn copy_while_out(
    heap: &Heap,
    held: &ModelDevice,
    out: &Range<u64>,
    mover: &Mover,
    from: &Arena,
    to: &mut Arena,
) -> Via {
    held.hold(true);
    std::thread::scope(|scope| {
        let migrating = scope.spawn(|| heap.migrate(out.clone(), FAST).unwrap());
        while there(out) > 0 {
            std::thread::yield_now();
        }
        let (sends, received) = channel();
        let copying = scope.spawn(move || {
            sends.send(rustix::thread::gettid().as_raw_pid()).unwrap();
            let done = mover.scope(|scope| scope.copy(&from[..], &mut to[..]).wait());
            done.result.map(|_| done.via)
        });
        let copier = received.recv().unwrap();
        while !sleeps(copier) {
            assert!(!copying.is_finished(), "the copy finished although pages are missing");
        }
        assert_eq!(there(out), 0);
        held.hold(false);
        let moved = migrating.join().unwrap();
        assert_eq!(moved.pages, (out.end - out.start) / PAGE, "{moved:?}");
        copying.join().unwrap().unwrap()
    })
}

#[test]
fn the_programs_own_device_waits_for_pages_that_are_out() {
    let test = "the_programs_own_device_waits_for_pages_that_are_out";
    let _limit = Limit::new();
    for (on_fault, via) in [(OnFault::FinishOnCpu, Via::Both), (OnFault::TouchAndResubmit { limit: 4 }, Via::Device)] {
        for pages in [PageSize::Small, PageSize::Huge] {
            let (held, moves) = device(Residency::Lenient, OnFault::default());
            let (_own, copies) = device(Residency::Strict, on_fault);
            let Some(heap) = heap_with(test, 16 << 20, |options| options.mover = moves) else { return };
            let mut from = heap.arena(4 << 20, pages).unwrap();
            number(&mut from);
            // First pages that are read are out, then pages that are written.
            for reads in [true, false] {
                let mut to = heap.arena(4 << 20, pages).unwrap();
                to.fill(1);
                // The second half is out, so the device begins.
                let all = if reads { from.addresses() } else { to.addresses() };
                let out = all.start + (2 << 20)..all.end;
                let used = copy_while_out(&heap, &held, &out, &copies, &from, &mut to);
                assert_eq!(used, via, "{on_fault:?}, {pages:?}, {reads}");
                assert!(from[..] == to[..], "{on_fault:?}, {pages:?}, {reads}");
                heap.migrate(out, HOME).unwrap();
                assert!(from[..] == to[..] && to[1023 * 4096..][..8] == 1024_u64.to_ne_bytes());
            }
            assert_eq!(heap.stats().lost, 0);
        }
    }
}
