//! Pages move to another tier and back, and their bytes do not change.
#![allow(unsafe_code, reason = "locks and protects pages of an arena, as programs do")]

mod common;

use common::{FAST, HOME, PAGE, heap, heap_with, skip};
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, OpenOptions, Preset, Runner, open};
use telpher_mem::PageSize;
use telpher_mover::{Mover, Policy, Route, Split, Threshold};
use telpher_os::TransparentHugePages;
use telpher_tier::{Arena, Heap, HeapOptions, TierError, TierId};

/// Writes each page's number into it. No page is all zeros, because the kernel frees such parts of a huge page that it
/// splits.
fn number(arena: &mut Arena, pages: usize) {
    for (page, bytes) in arena.chunks_exact_mut(4096).take(pages).enumerate() {
        bytes.fill(u8::try_from(page % 251 + 1).unwrap());
        bytes[..8].copy_from_slice(&page.to_le_bytes());
    }
}

fn check(arena: &Arena, pages: usize) {
    for (page, bytes) in arena.chunks_exact(4096).take(pages).enumerate() {
        assert_eq!(bytes[..8], page.to_le_bytes(), "page {page}");
        assert!(bytes[8..].iter().all(|&byte| usize::from(byte) == page % 251 + 1), "page {page}");
    }
}

fn part(arena: &Arena, pages: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let start = arena.addresses().start;
    start + pages.start * PAGE..start + pages.end * PAGE
}

fn there_and_back(heap: &Heap, pages: PageSize) {
    let mut arena = heap.arena(8 << 20, pages).unwrap();
    number(&mut arena, 1500);
    let all = arena.addresses();
    assert_eq!(heap.residency(all.clone()).unwrap(), [0, if pages == PageSize::Small { 1500 } else { 2048 }]);
    for _ in 0..3 {
        let moved = heap.migrate(part(&arena, 100..1400), FAST).unwrap();
        assert_eq!((moved.pages, moved.left.all()), (1300, 0), "{moved:?}");
        assert_eq!(heap.residency(part(&arena, 0..1500)).unwrap(), [1300, 200]);
        check(&arena, 1500);
        let again = heap.migrate(part(&arena, 100..1400), FAST).unwrap();
        assert_eq!((again.pages, again.left.already, again.left.all()), (0, 1300, 1300));
        let back = heap.migrate(all.clone(), HOME).unwrap();
        assert_eq!(back.pages, 1300, "{back:?}");
        check(&arena, 1500);
    }
    assert_eq!(heap.stats().lost, 0);
}

#[test]
fn pages_go_to_another_tier_and_back() {
    let Some(heap) = heap("pages_go_to_another_tier_and_back", 64 << 20) else { return };
    there_and_back(&heap, PageSize::Small);
}

#[test]
fn a_device_copies_pages() {
    let Some(heap) = heap_with("a_device_copies_pages", 64 << 20, |options| {
        let opened = open(&"model:spr".parse().unwrap(), OpenOptions::default()).unwrap();
        options.mover = Mover::new(opened.portals, Policy::default());
    }) else {
        return;
    };
    there_and_back(&heap, PageSize::Small);
}

#[test]
fn a_device_compares_pages_with_their_old_copies() {
    let Some(heap) = heap_with("a_device_compares_pages_with_their_old_copies", 64 << 20, |options| {
        let opened = open(&"model:spr".parse().unwrap(), OpenOptions::default()).unwrap();
        options.mover = Mover::new(opened.portals, Policy::default());
        options.shadow_bytes = 64 << 20;
    }) else {
        return;
    };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    number(&mut arena, 1500);
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, 1500);
    for page in [0, 700, 701, 1499] {
        arena[page * 4096 + 4095] ^= 1;
    }
    assert_eq!(heap.migrate(arena.addresses(), HOME).unwrap().pages, 1500);
    assert_eq!(heap.stats().not_copied, 1496);
    for page in [0, 700, 701, 1499] {
        arena[page * 4096 + 4095] ^= 1;
    }
    check(&arena, 1500);
}

/// Each device copies a part of the page, which comes back when all are done.
#[test]
fn a_huge_page_is_copied_by_several_devices_at_once() {
    let start = || ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Threaded)).unwrap();
    let devices = [start(), start(), start()];
    let split = Split { above: 64 << 10, ways: 3, hybrid: false };
    let policy = Policy { threshold: Threshold::DEVICE, split, route: Route::First, ..Policy::default() };
    let mover = Mover::new(devices.iter().map(|device| device.portal("wq0.0").unwrap()), policy);
    let Some(heap) = heap_with("a_huge_page_is_copied_by_several_devices_at_once", 8 << 20, |options| {
        options.mover = mover;
    }) else {
        return;
    };
    let mut arena = heap.arena(2 << 20, PageSize::Huge).unwrap();
    number(&mut arena, 512);
    for (device, to) in devices.iter().zip([FAST, HOME, FAST]) {
        device.hold(true);
        let moved = std::thread::scope(|scope| {
            let migrating = scope.spawn(|| heap.migrate(arena.addresses(), to).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            assert!(!migrating.is_finished(), "the page came back before this device was done");
            device.hold(false);
            migrating.join().unwrap()
        });
        assert_eq!((moved.pages, moved.left.all()), (512, 0), "{moved:?}");
        check(&arena, 512);
    }
}

#[test]
fn a_device_that_halts_leaves_the_copies_to_the_cpu() {
    let Some(heap) = heap_with("a_device_that_halts_leaves_the_copies_to_the_cpu", 64 << 20, |options| {
        let device = ModelDevice::start(ModelOptions::of(Preset::Spr)).unwrap();
        let portal = device.portal("wq0.0").unwrap();
        options.mover = Mover::new([portal], Policy { threshold: Threshold::DEVICE, ..Policy::default() });
        device.halt();
        assert!(device.is_halted());
    }) else {
        return;
    };
    there_and_back(&heap, PageSize::Small);
}

#[test]
fn huge_pages_move_whole_and_parts_of_them_alone() {
    let Some(heap) = heap("huge_pages_move_whole_and_parts_of_them_alone", 64 << 20) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Huge).unwrap();
    number(&mut arena, 2048);
    let moved = heap.migrate(part(&arena, 0..1024), FAST).unwrap();
    assert_eq!(moved.pages, 1024, "{moved:?}");
    let setting = TransparentHugePages::setting();
    if setting.are_off() {
        skip::skip(
            "huge_pages_move_whole_and_parts_of_them_alone (huge pages)",
            &format!("transparent huge pages: {setting}"),
        );
    } else {
        assert_eq!(moved.huge, 1024, "transparent huge pages: {setting}; {moved:?}");
    }
    check(&arena, 2048);
    let some = heap.migrate(part(&arena, 1030..1040), FAST).unwrap();
    assert_eq!(some.pages, 10, "{some:?}");
    assert_eq!(heap.residency(arena.addresses()).unwrap(), [1034, 1014]);
    check(&arena, 2048);
    let back = heap.migrate(arena.addresses(), HOME).unwrap();
    assert_eq!(back.pages, 1034, "{back:?}");
    check(&arena, 2048);
    assert_eq!(heap.stats().lost, 0);
}

#[test]
fn batches_are_no_larger_than_requested() {
    for batch in [1, 64, 100, 513, 2000] {
        let Some(heap) = heap_with("batches_are_no_larger_than_requested", 8 << 20, |options| options.batch = batch)
        else {
            return;
        };
        let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
        number(&mut arena, 1100);
        // Begins and ends within a huge page.
        assert_eq!(heap.migrate(part(&arena, 50..1050), FAST).unwrap().pages, 1000);
        assert_eq!(heap.stats().exchanges, 1000_u64.div_ceil(batch as u64), "batches of {batch}");
        check(&arena, 1100);
    }
}

#[test]
fn a_huge_page_counts_as_512_pages_and_moves_alone_if_needed() {
    for (batch, exchanges) in [(64, 4), (512, 4), (1535, 2), (2047, 2), (2048, 1)] {
        let test = "a_huge_page_counts_as_512_pages_and_moves_alone_if_needed";
        let Some(heap) = heap_with(test, 64 << 20, |options| options.batch = batch) else { return };
        let mut arena = heap.arena(8 << 20, PageSize::Huge).unwrap();
        number(&mut arena, 2048);
        let moved = heap.migrate(arena.addresses(), FAST).unwrap();
        assert_eq!(moved.pages + moved.left.no_room, 2048, "{moved:?}");
        check(&arena, 2048);
        if moved.huge == 2048 {
            assert_eq!(heap.stats().exchanges, exchanges, "batches of {batch}");
        } else {
            let setting = TransparentHugePages::setting();
            skip::skip(test, &format!("the system has no huge pages, or none left; transparent huge pages: {setting}"));
        }
    }
}

#[test]
fn huge_pages_that_were_discarded_are_filled_and_move() {
    let Some(heap) = heap("huge_pages_that_were_discarded_are_filled_and_move", 64 << 20) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Huge).unwrap();
    number(&mut arena, 2048);
    assert_eq!(heap.migrate(part(&arena, 0..1024), FAST).unwrap().pages, 1024);
    // One whole huge page of each tier, and parts of one of each.
    for gone in [0..512, 600..700, 1024..1536, 1600..1610] {
        arena.discard(gone.start * 4096..gone.end * 4096).unwrap();
        assert_eq!(heap.residency(part(&arena, gone.start as u64..gone.end as u64)).unwrap(), [0, 0]);
    }
    assert_eq!(heap.residency(arena.addresses()).unwrap(), [412, 502]);
    let is_gone = |page: usize| [0..512, 600..700, 1024..1536, 1600..1610].iter().any(|gone| gone.contains(&page));
    // They read as zero, and what is written there is on the home tier.
    for (page, bytes) in arena.chunks_exact_mut(4096).enumerate().filter(|(page, _)| is_gone(*page)) {
        assert!(bytes.iter().all(|&byte| byte == 0), "page {page}");
        bytes.fill(u8::try_from(page % 251 + 1).unwrap());
        bytes[..8].copy_from_slice(&page.to_le_bytes());
    }
    assert_eq!(heap.residency(arena.addresses()).unwrap(), [412, 1636]);
    for to in [FAST, HOME, FAST] {
        let moved = heap.migrate(arena.addresses(), to).unwrap();
        assert_eq!(moved.pages + moved.left.already, 2048, "to {to:?}: {moved:?}");
        check(&arena, 2048);
    }
    let stats = heap.stats();
    assert!(stats.fills >= 1134 && stats.lost == 0, "{stats:?}");
}

#[test]
fn a_tier_takes_no_more_than_its_size() {
    let Some(heap) = heap("a_tier_takes_no_more_than_its_size", 100 * PAGE) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    number(&mut arena, 1000);
    let moved = heap.migrate(arena.addresses(), FAST).unwrap();
    assert_eq!((moved.pages, moved.left.no_room), (100, 900), "{moved:?}");
    check(&arena, 1000);
    // A discard on the fast tier makes room.
    arena.discard(0..50 * 4096).unwrap();
    assert_eq!(heap.residency(arena.addresses()).unwrap(), [50, 900]);
    let more = heap.migrate(part(&arena, 500..1000), FAST).unwrap();
    assert_eq!((more.pages, more.left.no_room), (50, 450), "{more:?}");
    assert!(arena[..50 * 4096].iter().all(|&byte| byte == 0), "discarded");
    // And so do pages that move back.
    assert_eq!(heap.migrate(part(&arena, 500..1000), HOME).unwrap().pages, 50);
    assert_eq!(heap.migrate(part(&arena, 500..1000), FAST).unwrap().pages, 50);
    // And an arena that is dropped.
    drop(arena);
    let mut other = heap.arena(1 << 20, PageSize::Small).unwrap();
    number(&mut other, 100);
    assert_eq!(heap.migrate(other.addresses(), FAST).unwrap().pages, 100);
    check(&other, 100);
}

#[test]
fn the_home_tier_keeps_free_pages_within_its_limit() {
    let Some(heap) = heap_with("the_home_tier_keeps_free_pages_within_its_limit", 64 << 20, |options| {
        options.spare_bytes = 64 * PAGE;
    }) else {
        return;
    };
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    number(&mut arena, 1000);
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, 1000);
    assert_eq!(heap.free()[1], 64);
    assert_eq!(heap.migrate(arena.addresses(), HOME).unwrap().pages, 1000);
    check(&arena, 1000);
}

#[test]
fn untouched_pages_are_on_no_tier() {
    let Some(heap) = heap("untouched_pages_are_on_no_tier", 1 << 20) else { return };
    let arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().all(), 0);
    assert!(arena.iter().all(|&byte| byte == 0));
    assert_eq!(heap.residency(arena.addresses()).unwrap(), [0, 0], "the shared zero page counts for no tier");
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().all(), 0);
    assert!(heap.stats().fills >= 1024);
}

#[test]
fn unmovable_pages_stay_and_are_counted() {
    let Some(heap) = heap("unmovable_pages_stay_and_are_counted", 4 << 20) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena, 512);
    let start = arena.as_mut_ptr();
    // SAFETY: pages of the arena, which no thread touches meanwhile; they stay mapped.
    unsafe {
        assert_eq!(libc::mlock(start.cast(), 8 * 4096), 0);
        assert_eq!(libc::mprotect(start.add(16 * 4096).cast(), 4 * 4096, libc::PROT_READ), 0);
    }
    let moved = heap.migrate(arena.addresses(), FAST).unwrap();
    assert_eq!((moved.pages, moved.left.unsupported, moved.left.all()), (500, 12, 12), "{moved:?}");
    check(&arena, 512);
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::munlock(start.cast(), 8 * 4096), 0);
        assert_eq!(libc::mprotect(start.add(16 * 4096).cast(), 4 * 4096, libc::PROT_READ | libc::PROT_WRITE), 0);
    }
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, 12);
    check(&arena, 512);
}

#[test]
fn pages_shared_with_a_child_are_unshared_and_move() {
    if !common::stress::is_alone("pages_shared_with_a_child_are_unshared_and_move") {
        return;
    }
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap("pages_shared_with_a_child_are_unshared_and_move", 4 << 20) else { return };
        let mut arena = heap.arena(2 << 20, pages).unwrap();
        number(&mut arena, 512);
        let mut pipe = [0; 2];
        // SAFETY: the child makes system calls, reads its memory and exits.
        let child = unsafe {
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            libc::fork()
        };
        if child == 0 {
            // SAFETY: as above; a local variable.
            unsafe {
                let mut byte = 0_u8;
                libc::close(pipe[1]);
                libc::read(pipe[0], (&raw mut byte).cast(), 1);
                let same = arena.chunks_exact(4096).enumerate().all(|(page, bytes)| bytes[..8] == page.to_le_bytes());
                libc::_exit(i32::from(!same));
            }
        }
        let moved = heap.migrate(arena.addresses(), FAST).unwrap();
        assert_eq!((moved.pages, moved.left.all()), (512, 0), "{pages:?}: {moved:?}");
        check(&arena, 512);
        arena.fill(1);
        let mut status = 0;
        // SAFETY: descriptors and a child of this test.
        unsafe {
            libc::close(pipe[1]);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::close(pipe[0]);
        }
        assert_eq!(status, 0, "{pages:?}: the child has the parent's pages");
        assert_eq!(heap.stats().forks, 1);
        // Without the child they move like any others.
        number(&mut arena, 512);
        for to in [HOME, FAST] {
            assert_eq!(heap.migrate(arena.addresses(), to).unwrap().pages, 512, "{pages:?}");
            check(&arena, 512);
        }
    }
}

#[test]
fn a_child_makes_a_heap_of_its_own() {
    if !common::stress::is_alone("a_child_makes_a_heap_of_its_own") {
        return;
    }
    let Some(heap) = heap("a_child_makes_a_heap_of_its_own", 4 << 20) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    arena[0] = 7;
    // SAFETY: the child reads its memory and exits; the refusals there need no other thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(heap.migrate(arena.addresses(), FAST), Err(TierError::Forked));
        let (same, zero) = (arena[0] == 7, arena[(2 << 20) - 1] == 0);
        drop(arena);
        drop(heap);
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(i32::from(!(refused && same && zero))) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a local variable for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, 1);
}

#[test]
fn invalid_options_are_refused() {
    let Some(heap) = heap("invalid_options_are_refused", 1 << 20) else { return };
    let arena = heap.arena(1, PageSize::Small).unwrap();
    assert!(matches!(heap.migrate(arena.addresses(), TierId(2)), Err(TierError::NoSuchTier { tier: 2, tiers: 2 })));
    let tiers = heap.options().tiers.clone();
    for (tiers, home, batch) in [(tiers[..1].to_vec(), 0, 512), (tiers.clone(), 2, 512), (tiers, 0, 0)] {
        let options = HeapOptions { home: TierId(home), batch, ..HeapOptions::new(tiers) };
        assert!(matches!(Heap::new(options), Err(TierError::Options { .. })));
    }
}

#[test]
fn an_unaligned_range_covers_the_whole_pages_in_it() {
    let Some(heap) = heap("an_unaligned_range_covers_the_whole_pages_in_it", 1 << 20) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena, 512);
    let start = arena.addresses().start;
    assert_eq!(heap.migrate(start + 1..start + 4 * PAGE - 1, FAST).unwrap().pages, 2);
    assert_eq!(heap.migrate(start + 10..start + 20, FAST).unwrap().all(), 0);
    assert_eq!(heap.migrate(0..PAGE, FAST).unwrap().all(), 0, "not the heap's");
}
