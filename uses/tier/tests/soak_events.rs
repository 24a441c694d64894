//! Programs write, discard, map, unmap, move mappings and fork while their pages are moved: no byte is lost or out of
//! date.
#![allow(unsafe_code, reason = "does what programs do to their memory, by address")]

mod common;

use common::stress::{Places, change_mappings, is_alone, lost_writes};
use common::{FAST, HOME, PAGE, heap_with, skip};
use std::time::{Duration, Instant};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mem::PageSize;
use telpher_mover::{Mover, Policy, Threshold};
use telpher_tier::{Arena, Heap, TierId};

fn stress(heap: &Heap, pages: PageSize) {
    let mut arena = heap.arena(4 << 20, pages).unwrap();
    arena.fill(0);
    let lost = lost_writes(arena.addresses().start, 1024, &|range, to| {
        heap.migrate(range, TierId(to)).unwrap();
    });
    let stats = heap.stats();
    assert_eq!((lost, stats.lost), (0, 0), "{stats:?}");
    assert!(stats.moved.pages > 1000, "{stats:?}");
}

#[test]
fn no_write_is_lost() {
    let Some(heap) = heap_with("no_write_is_lost", 8 << 20, |options| options.batch = 64) else { return };
    stress(&heap, PageSize::Small);
}

#[test]
fn no_write_to_huge_pages_is_lost() {
    let Some(heap) = heap_with("no_write_to_huge_pages_is_lost", 8 << 20, |_| ()) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Huge).unwrap();
    arena.fill(0);
    let start = arena.addresses().start;
    let lost = lost_writes(start, 1024, &|_, to| {
        heap.migrate(start..start + (4 << 20), TierId(to)).unwrap();
    });
    let stats = heap.stats();
    assert_eq!((lost, stats.lost), (0, 0), "{stats:?}");
    assert!(stats.moved.pages > 1000, "{stats:?}");
}

/// A copy that the device has begun may be done in part. If it wrote after the CPU's copy, when the page is back, a
/// write would be lost.
#[test]
fn no_write_is_lost_to_a_device_that_halts_while_it_copies() {
    let test = "no_write_is_lost_to_a_device_that_halts_while_it_copies";
    for pages in [PageSize::Small, PageSize::Huge] {
        let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Threaded)).unwrap();
        let portals =
            device.enabled_queues().into_iter().map(|number| device.portal(&format!("wq0.{number}")).unwrap());
        let mover = Mover::new(portals, Policy { threshold: Threshold::DEVICE, ..Policy::default() });
        let Some(heap) = heap_with(test, 8 << 20, |options| options.mover = mover) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        arena.fill(0);
        let start = arena.addresses().start;
        let started = Instant::now();
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| {
                // Most likely in the middle of a copy, which takes most of the time.
                while heap.stats().moved.pages == 0 && started.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(3));
                }
                device.halt();
            });
            lost_writes(start, 1024, &|_, to| {
                heap.migrate(start..start + (4 << 20), TierId(to)).unwrap();
            })
        });
        assert!(device.is_halted());
        // The device has copied some pages, and the CPU the rest.
        assert!(heap.stats().moved.pages > 0);
        let there = heap.migrate(arena.addresses(), FAST).unwrap();
        let back = heap.migrate(arena.addresses(), HOME).unwrap();
        assert!(there.pages + there.left.already == 1024 && back.pages == 1024, "{pages:?}: {there:?}, {back:?}");
        let stats = heap.stats();
        assert_eq!((lost, stats.lost), (0, 0), "{pages:?}: {stats:?}");
    }
}

/// Checks the stress above: pages are copied away and back while their owner writes.
#[test]
fn the_stress_notices_copies_under_a_writer() {
    let mut bytes = vec![0_u64; 1024 * 512 + 512];
    let start = (bytes.as_mut_ptr().expose_provenance() as u64).next_multiple_of(PAGE);
    let lost = lost_writes(start, 1024, &|range, _| {
        let (start, len) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end - range.start).unwrap());
        let mut away = vec![0_u8; len];
        // SAFETY: none, because other threads write there. The bytes are in a live vector, and the test is to show lost
        // writes.
        unsafe {
            let page: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
            page.copy_to_nonoverlapping(away.as_mut_ptr(), len);
            std::thread::yield_now();
            page.copy_from_nonoverlapping(away.as_ptr(), len);
        }
    });
    assert!(lost > 0);
    drop(bytes);
}

/// Discards, moves and unmaps mappings and forks, over pages that contain their number or are empty.
fn changes(heap: &Heap, places: &Places) {
    let migrate = |range, to| _ = heap.migrate(range, TierId(to)).unwrap();
    // New mappings are adopted, unless the unmap event of the previous one is still to come.
    // SAFETY: private memory without references to it; the heap outlives its use.
    let adopt = |range| _ = unsafe { heap.adopt(range) };
    // The interesting cases have happened: pages in flight were discarded, and given to a child.
    let is_enough = || {
        let stats = heap.stats();
        stats.moved.pages > 1000 && stats.copied_to_children > 0 && stats.dropped > 0
    };
    let forks = change_mappings(places, &migrate, &adopt, &is_enough);
    let stats = heap.stats();
    // A child does not inherit the pools; if it did, their pages would come back as copies.
    assert_eq!((stats.lost, stats.copied_back), (0, 0), "{stats:?}");
    assert!(is_enough() && stats.forks == forks, "{forks} forks, {stats:?}");
}

#[test]
fn mapping_changes_are_followed() {
    let name = "mapping_changes_are_followed";
    if !is_alone(name) {
        return;
    }
    let Some(heap) = heap_with(name, 8 << 20, |options| options.batch = 64) else { return };
    // Mappings move about within each arena, and between the two.
    let arenas = [0, 1].map(|_| heap.arena(2 << 20, PageSize::Small).unwrap());
    changes(&heap, &Places::small(arenas.each_ref().map(Arena::addresses)));
}

/// Whole huge pages, parts of them, and moves to addresses where they cannot be huge.
#[test]
fn mapping_changes_of_huge_pages_are_followed() {
    let name = "mapping_changes_of_huge_pages_are_followed";
    if !is_alone(name) {
        return;
    }
    let Some(heap) = heap_with(name, 16 << 20, |_| ()) else { return };
    let arenas = [0, 1].map(|_| heap.arena(4 << 20, PageSize::Huge).unwrap());
    let odd = heap.arena(4 << 20, PageSize::Small).unwrap();
    let first = heap.migrate(arenas[0].addresses(), FAST).unwrap();
    if first.huge == 0 {
        return skip::skip(name, "the system has no transparent huge pages, or none left");
    }
    changes(&heap, &Places::huge(arenas.each_ref().map(Arena::addresses), &odd.addresses()));
    let stats = heap.stats();
    assert!(stats.moved.huge > first.huge, "{stats:?}");
}
