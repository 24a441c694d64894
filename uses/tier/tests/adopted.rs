//! Memory that a program has mapped itself and changes as it likes while a heap moves its pages.
#![allow(unsafe_code, reason = "maps, moves and unmaps memory as programs do, and adopts it")]

mod common;

use common::{FAST, HOME, PAGE, heap};
use std::ops::Range;
use std::ptr;
use telpher_tier::{Heap, TierError};

const PAGES: u64 = 600;

/// Creates a mapping of [`PAGES`] pages with their numbers in them.
fn mapping() -> Range<u64> {
    let (len, flags) = (usize::try_from(PAGES * PAGE).unwrap(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: without MAP_FIXED, the kernel picks an unused range.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let start = start.expose_provenance() as u64;
    for page in 0..PAGES {
        // SAFETY: mapped just now, and used by no other code.
        unsafe { word(start + page * PAGE).write_volatile(page + 1) };
    }
    start..start + PAGES * PAGE
}

fn word(address: u64) -> *mut u64 {
    ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap())
}

/// Returns the numbers in the pages of a range.
fn numbers(range: &Range<u64>) -> Vec<u64> {
    // SAFETY: the caller's range is mapped.
    range.clone().step_by(4096).map(|page| unsafe { word(page).read_volatile() }).collect()
}

fn part(of: &Range<u64>, pages: Range<u64>) -> Range<u64> {
    of.start + pages.start * PAGE..of.start + pages.end * PAGE
}

fn unmap(range: &Range<u64>) {
    // SAFETY: the tests' own mapping, without a reference to it.
    assert_eq!(unsafe { libc::munmap(word(range.start).cast(), usize::try_from(range.end - range.start).unwrap()) }, 0);
}

fn adopt(heap: &Heap, range: Range<u64>) {
    // SAFETY: private anonymous memory, which this test's thread reads and writes while it moves nothing; the heap
    // outlives it.
    unsafe { heap.adopt(range) }.unwrap();
}

#[test]
fn an_adopted_mapping_moves_like_an_arena() {
    let Some(heap) = heap("an_adopted_mapping_moves_like_an_arena", 64 << 20) else { return };
    let all = mapping();
    adopt(&heap, part(&all, 0..500));
    assert_eq!(heap.ranges(), [part(&all, 0..500)]);
    let moved = heap.migrate(all.clone(), FAST).unwrap();
    // The heap ignores memory that was not adopted.
    assert_eq!((moved.pages, moved.left.gone, moved.left.all()), (500, 100, 100), "{moved:?}");
    assert_eq!(heap.residency(all.clone()).unwrap(), [500, 0]);
    adopt(&heap, part(&all, 500..PAGES));
    assert_eq!(heap.migrate(all.clone(), FAST).unwrap().pages, 100);
    assert_eq!(numbers(&all), (1..=PAGES).collect::<Vec<_>>());
    // SAFETY: not part of an arena.
    unsafe { heap.release(&part(&all, 100..200)) }.unwrap();
    assert_eq!(heap.ranges(), [part(&all, 0..100), part(&all, 200..500), part(&all, 500..PAGES)]);
    assert_eq!(heap.migrate(all.clone(), HOME).unwrap().pages, PAGES - 100);
    assert_eq!(numbers(&all), (1..=PAGES).collect::<Vec<_>>());
    unmap(&all);
}

#[test]
fn known_ranges_and_partial_pages_are_not_adopted() {
    let Some(heap) = heap("known_ranges_and_partial_pages_are_not_adopted", 1 << 20) else { return };
    let all = mapping();
    adopt(&heap, part(&all, 100..200));
    for range in [part(&all, 0..101), part(&all, 150..160), part(&all, 199..300), part(&all, 0..300)] {
        // SAFETY: as in `adopt`.
        let again = unsafe { heap.adopt(range) };
        assert!(matches!(again, Err(TierError::Known { .. })), "{again:?}");
    }
    for range in [all.start + 1..all.start + 4096, all.start..all.start + 4095, all.start..all.start] {
        // SAFETY: as in `adopt`; the ranges are refused.
        let none = unsafe { heap.adopt(range) };
        assert!(matches!(none, Err(TierError::NotPages { .. })), "{none:?}");
    }
    adopt(&heap, part(&all, 0..100));
    assert_eq!(heap.ranges().len(), 2);
    unmap(&all);
    let known = heap.ranges();
    assert_eq!(known, [], "the heap follows unmapped ranges");
    // SAFETY: nothing is mapped there, which the system reports.
    let gone = unsafe { heap.adopt(part(&all, 0..100)) };
    assert!(matches!(gone, Err(TierError::Register(_))), "{gone:?}");
    assert_eq!(heap.ranges(), []);
}

#[test]
fn mappings_that_move_and_grow_stay_adopted() {
    let Some(heap) = heap("mappings_that_move_and_grow_stay_adopted", 64 << 20) else { return };
    let all = mapping();
    adopt(&heap, all.clone());
    assert_eq!(heap.migrate(part(&all, 0..300), FAST).unwrap().pages, 300);
    // Another mapping is in the way of its growth, so it moves.
    // SAFETY: the test's own mapping, which the kernel moves to a free range, four times as long.
    let grown = unsafe {
        let from = word(all.start).cast();
        let bytes = usize::try_from(PAGES * PAGE).unwrap();
        libc::mremap(from, bytes, 4 * bytes, libc::MREMAP_MAYMOVE)
    };
    assert_ne!(grown, libc::MAP_FAILED);
    let start = grown.expose_provenance() as u64;
    let (now, grown) = (start..start + PAGES * PAGE, start..start + 4 * PAGES * PAGE);
    assert_eq!(heap.ranges(), std::slice::from_ref(&now));
    assert_eq!(heap.residency(now.clone()).unwrap(), [300, 300]);
    // The new pages are filled when touched, and move when they are adopted.
    // SAFETY: mapped by now.
    unsafe { word(now.end).write_volatile(7) };
    adopt(&heap, now.end..grown.end);
    let moved = heap.migrate(grown.clone(), FAST).unwrap();
    assert!(moved.pages >= 301 && moved.left.all() == 300, "{moved:?}");
    let expected: Vec<u64> = (1..=PAGES).chain([7]).collect();
    assert_eq!(numbers(&(now.start..now.end + PAGE)), expected);
    unmap(&grown);
    assert_eq!(heap.ranges(), []);
}
