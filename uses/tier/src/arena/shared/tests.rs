//! Units of files that are replaced under writers.

use super::*;
use crate::config::Mechanism;
use crate::config::{HeapOptions, TierOptions};
use crate::heap::Heap;
use crate::stress;
use std::sync::atomic::Ordering;
use telpher_mem::PageSize;
use telpher_os::Scan;

const FAST: TierId = TierId(0);
const HOME: TierId = TierId(1);

/// Creates a heap with this many units of fast memory; none where the kernel lacks a feature, which tests/moves.rs
/// reports.
fn heap(units: u64) -> Option<Heap> {
    Scan::open().ok()?;
    Userfault::open(UserfaultFeatures::PROTECT_SHARED.and(UserfaultFeatures::MOVE)).ok()?;
    let tier = |name: &str, bytes| TierOptions { name: name.to_string(), node: None, bytes };
    Some(Heap::new(HeapOptions::new(vec![tier("fast", units * HUGE), tier("slow", 0)])).unwrap())
}

/// Writes each page's number into every word of it.
fn number(bytes: &mut [u8]) {
    for (word, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (word / 512).to_ne_bytes();
    }
}

fn is_numbered(bytes: &[u8]) -> bool {
    bytes.as_chunks::<8>().0.iter().enumerate().all(|(word, bytes)| *bytes == (word / 512).to_ne_bytes())
}

#[test]
fn units_go_to_another_tier_and_back() {
    let Some(heap) = heap(8) else { return };
    let mut arena = heap.shared_arena(16 << 20).unwrap();
    assert!(arena.iter().all(|&byte| byte == 0));
    number(&mut arena);
    let all = arena.addresses();
    for _ in 0..3 {
        assert_eq!(heap.residency(all.clone()).unwrap(), [0, 4096]);
        // Three whole units, and a part of one.
        let moved = heap.migrate(all.start + HUGE..all.start + 4 * HUGE + PAGE, FAST).unwrap();
        assert_eq!((moved.pages, moved.left.unsupported, moved.left.all()), (3 * 512, 1, 1), "{moved:?}");
        assert_eq!(heap.residency(all.clone()).unwrap(), [3 * 512, 5 * 512]);
        assert_eq!(heap.residency(all.start + 2 * PAGE..all.start + HUGE + PAGE).unwrap(), [1, 510]);
        assert!(is_numbered(&arena));
        let back = heap.migrate(all.clone(), HOME).unwrap();
        assert_eq!((back.pages, back.left.already), (3 * 512, 5 * 512), "{back:?}");
        assert!(is_numbered(&arena));
    }
    assert_eq!(heap.stats().moved.pages, 18 * 512);
}

#[test]
fn a_tier_takes_no_more_units_than_it_has() {
    let Some(heap) = heap(3) else { return };
    let mut arena = heap.shared_arena(16 << 20).unwrap();
    number(&mut arena);
    let moved = heap.migrate(arena.addresses(), FAST).unwrap();
    assert_eq!((moved.pages, moved.left.no_room), (3 * 512, 5 * 512), "{moved:?}");
    assert!(is_numbered(&arena));
}

#[test]
fn free_units_of_the_home_tier_are_released() {
    let Some(heap) = heap(8) else { return };
    let mut arena = heap.shared_arena(16 << 20).unwrap();
    number(&mut arena);
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, 4096);
    assert!(is_numbered(&arena));
    let spare = arena.units.spare;
    assert!(spare >= 8, "all are kept");
    // Without spare memory, free units are emptied.
    let tiers = heap.options().tiers.clone();
    let heap = Heap::new(HeapOptions { spare_bytes: 2 * HUGE, ..HeapOptions::new(tiers) }).unwrap();
    let mut arena = heap.shared_arena(16 << 20).unwrap();
    number(&mut arena);
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, 4096);
    let home = arena.units.files[1].range();
    let is_zero = |unit: u64| {
        let start = usize::try_from(home.start + unit * HUGE + 2 * PAGE).unwrap();
        // SAFETY: a word of the arena's own file, without a reference to it.
        unsafe { std::ptr::with_exposed_provenance::<u64>(start).read_volatile() == 0 }
    };
    assert_eq!((0..8).map(is_zero).collect::<Vec<_>>(), [false, false, true, true, true, true, true, true]);
    assert!(is_numbered(&arena));
}

#[test]
fn a_range_over_both_kinds_of_arenas_moves_together() {
    let Some(heap) = heap(8) else { return };
    let mut shared = heap.shared_arena(4 << 20).unwrap();
    let mut own = heap.arena(4 << 20, PageSize::Small).unwrap();
    number(&mut shared);
    number(&mut own);
    let (a, b) = (shared.addresses(), own.addresses());
    let both = a.start.min(b.start)..a.end.max(b.end);
    let moved = heap.migrate(both.clone(), FAST).unwrap();
    assert_eq!(moved.pages, 2048, "{moved:?}");
    assert_eq!((heap.residency(both.clone()).unwrap(), heap.mechanism()), (vec![2048, 0], Mechanism::Exchange));
    drop(shared);
    assert_eq!(heap.residency(both.clone()).unwrap(), [1024, 0]);
    assert_eq!(heap.migrate(both, HOME).unwrap().pages, 1024);
    assert!(is_numbered(&own));
}

#[test]
fn a_child_has_no_shared_arena_mapped() {
    if !stress::is_alone("a_child_has_no_shared_arena_mapped") {
        return;
    }
    let Some(heap) = heap(2) else { return };
    let mut arena = heap.shared_arena(4 << 20).unwrap();
    number(&mut arena);
    heap.migrate(arena.addresses(), FAST).unwrap();
    let start = arena.addresses().start;
    // SAFETY: the child checks what is mapped and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut there = 0_u8;
        // SAFETY: an address without a mapping is a valid question; the child ends without running any code of the
        // parent.
        unsafe {
            let page = std::ptr::with_exposed_provenance_mut(usize::try_from(start).unwrap());
            let asked = libc::mincore(page, 4096, &raw mut there);
            drop(arena);
            drop(heap);
            libc::_exit(i32::from(asked == 0));
        }
    }
    let mut status = 0;
    // SAFETY: our own child, and a local variable for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(is_numbered(&arena));
}

/// Returns the writes that are lost while two units go to and fro.
fn lost_writes(heap: &Heap, arena: &SharedArena) -> u64 {
    let all = arena.addresses();
    stress::lost_writes_over(60, all.start, 1024, &|_, to| {
        heap.migrate(all.clone(), TierId(to)).unwrap();
    })
}

#[test]
fn no_write_is_lost() {
    let Some(heap) = heap(8) else { return };
    let arena = heap.shared_arena(4 << 20).unwrap();
    let lost = lost_writes(&heap, &arena);
    let stats = heap.stats();
    assert_eq!(lost, 0, "{stats:?}");
    assert!(stats.moved.pages > 1000 && stats.moved.left.failed == 0, "{stats:?}");
}

/// Checks the stress above: without protection it must notice lost writes.
#[test]
fn without_protection_the_stress_notices_lost_writes() {
    let Some(heap) = heap(8) else { return };
    let arena = heap.shared_arena(4 << 20).unwrap();
    arena.units.bare.store(true, Ordering::Relaxed);
    assert!(lost_writes(&heap, &arena) > 0);
}
