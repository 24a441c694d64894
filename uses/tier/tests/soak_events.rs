//! Programs that write, discard, map, unmap, move mappings and fork while their pages are moved: no byte is lost, none is old.
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

/// What it has in hand then it may have done in part. A copy of its that came after the CPU's, when the page is back, would be a lost write.
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
        let begun = Instant::now();
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| {
                // In the midst of a copy, most likely: that is what moving takes longest for.
                while heap.stats().moved.pages == 0 && begun.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(3));
                }
                device.halt();
            });
            lost_writes(start, 1024, &|_, to| {
                heap.migrate(start..start + (4 << 20), TierId(to)).unwrap();
            })
        });
        assert!(device.is_halted());
        // It has copied some, and the CPU the rest.
        assert!(heap.stats().moved.pages > 0);
        let there = heap.migrate(arena.addresses(), FAST).unwrap();
        let back = heap.migrate(arena.addresses(), HOME).unwrap();
        assert!(there.pages + there.left.already == 1024 && back.pages == 1024, "{pages:?}: {there:?}, {back:?}");
        let stats = heap.stats();
        assert_eq!((lost, stats.lost), (0, 0), "{pages:?}: {stats:?}");
    }
}

/// The stress above notices what it is for: pages that are copied away and back while their owner writes.
#[test]
fn copies_under_a_writer_lose_writes_and_the_test_says_so() {
    let mut bytes = vec![0_u64; 1024 * 512 + 512];
    let start = (bytes.as_mut_ptr().expose_provenance() as u64).next_multiple_of(PAGE);
    let lost = lost_writes(start, 1024, &|range, _| {
        let (start, len) = (usize::try_from(range.start).unwrap(), usize::try_from(range.end - range.start).unwrap());
        let mut away = vec![0_u8; len];
        // SAFETY: not at all: others write there. Bytes of a vector that lives, and this is what it is to show.
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

/// Discards, mappings that move and go, and forks, each over memory whose pages say which they are, or are empty.
fn changes(heap: &Heap, places: &Places) {
    let migrate = |range, to| _ = heap.migrate(range, TierId(to)).unwrap();
    // What is new is taken over, unless the end of what was there has not been told of yet.
    // SAFETY: private memory that nobody has a reference to; the heap is there as long as it is used.
    let adopt = |range| _ = unsafe { heap.adopt(range) };
    // What it is for is met: pages on their way that are discarded, and wanted by a child.
    let is_enough = || {
        let stats = heap.stats();
        stats.moved.pages > 1000 && stats.given > 0 && stats.dropped > 0
    };
    let forks = change_mappings(places, &migrate, &adopt, &is_enough);
    let stats = heap.stats();
    // Children have nothing of the pools, whose pages would have to come back by copies then.
    assert_eq!((stats.lost, stats.returned), (0, 0), "{stats:?}");
    assert!(is_enough() && stats.forks == forks, "{forks} forks, {stats:?}");
}

#[test]
fn what_programs_do_to_their_mappings_is_followed() {
    let name = "what_programs_do_to_their_mappings_is_followed";
    if !is_alone(name) {
        return;
    }
    let Some(heap) = heap_with(name, 8 << 20, |options| options.batch = 64) else { return };
    // One's mapping moves about in the other's room, and back.
    let arenas = [0, 1].map(|_| heap.arena(2 << 20, PageSize::Small).unwrap());
    changes(&heap, &Places::small(arenas.each_ref().map(Arena::addresses)));
}

/// Whole, in parts, and to where they cannot be whole.
#[test]
fn what_programs_do_to_mappings_of_huge_pages_is_followed() {
    let name = "what_programs_do_to_mappings_of_huge_pages_is_followed";
    if !is_alone(name) {
        return;
    }
    let Some(heap) = heap_with(name, 16 << 20, |_| ()) else { return };
    let arenas = [0, 1].map(|_| heap.arena(4 << 20, PageSize::Huge).unwrap());
    let odd = heap.arena(4 << 20, PageSize::Small).unwrap();
    let first = heap.migrate(arenas[0].addresses(), FAST).unwrap();
    if first.huge == 0 {
        return skip::skip(name, "the system has no transparent huge pages, or no more");
    }
    changes(&heap, &Places::huge(arenas.each_ref().map(Arena::addresses), &odd.addresses()));
    let stats = heap.stats();
    assert!(stats.moved.huge > first.huge, "{stats:?}");
}
