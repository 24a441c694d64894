//! Faults that no program can bring about: kernels that do not say what they did, copies that panic, free pages that come back.

#[path = "../../tests/common/stress.rs"]
#[allow(dead_code, reason = "others use the rest of it")]
mod stress;

use super::*;
use crate::config::TierOptions;
use crate::slots::tests::POISON;
use std::sync::atomic::Ordering;

const FAST: TierId = TierId(0);
const HOME: TierId = TierId(1);

/// A heap whose free pages are overwritten; none where the kernel has not what it takes, which tests/moves.rs says.
fn heap(batch: usize) -> Option<Heap> {
    Scan::open().ok()?;
    Userfault::open(UserfaultFeatures::MOVE).ok()?;
    let tier = |name: &str, bytes| TierOptions { name: name.to_string(), node: None, bytes };
    let heap = Heap::new(HeapOptions { batch, ..HeapOptions::new(vec![tier("fast", 16 << 20), tier("slow", 0)]) });
    let heap = heap.unwrap();
    for slots in heap.inner.pools.lock().unwrap().tiers.iter_mut().flatten() {
        slots.poison = Some(std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap());
    }
    Some(heap)
}

/// Every page says which it is, in each word.
fn number(arena: &mut Arena) {
    for (word, bytes) in arena.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (word / 512).to_ne_bytes();
    }
}

/// Pages that do not say which they are.
fn wrong(arena: &Arena) -> Vec<usize> {
    let (words, _) = arena.as_chunks::<8>();
    let is_wrong = |page: &usize| words[page * 512..][..512].iter().any(|word| *word != page.to_ne_bytes());
    (0..arena.len() / 4096).filter(is_wrong).collect()
}

/// Nothing is out, no place is lent, and each page of the pools is where the account says.
fn assert_settled(heap: &Heap) {
    let mut pools = heap.inner.pools.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(heap.inner.exchange.book().flight.is_empty());
    for slots in pools.tiers.iter_mut().flatten() {
        let mut there = 0;
        heap.inner.exchange.scan.there(slots.range(), |run| there += run.pages()).unwrap();
        assert_eq!(there, slots.full_pages(), "pages in places that are not said to be free");
        assert_eq!(slots.lent_full(), 0);
    }
}

#[test]
fn what_the_kernel_says_of_a_move_is_not_believed() {
    for (pages, every) in [(PageSize::Small, 1), (PageSize::Small, 3), (PageSize::Huge, 1), (PageSize::Huge, 2)] {
        let Some(heap) = heap(100) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        number(&mut arena);
        let faults = &heap.inner.exchange.faults;
        faults.lies.store(every, Ordering::Relaxed);
        for to in [FAST, HOME].repeat(3) {
            let moved = heap.migrate(arena.addresses(), to).unwrap();
            assert_eq!((moved.pages, moved.left.all()), (1024, 0), "to {to:?}: {moved:?}");
            assert_eq!(wrong(&arena), [], "to {to:?}");
            assert_settled(&heap);
        }
        let stats = heap.stats();
        assert!(stats.lies > 0 && stats.lost == 0 && stats.returned == 0, "{stats:?}");
    }
}

#[test]
fn no_write_is_lost_to_a_kernel_that_lies() {
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap(64) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        arena.fill(0);
        heap.inner.exchange.faults.lies.store(5, Ordering::Relaxed);
        let lost = stress::lost_writes(arena.addresses().start, 1024, &|range, to| {
            heap.migrate(range, TierId(to)).unwrap();
        });
        let stats = heap.stats();
        assert_eq!((lost, stats.lost), (0, 0), "{stats:?}");
        assert!(stats.lies > 10, "{stats:?}");
        assert_settled(&heap);
    }
}

/// The stress above, with what it is for: a page comes back that is a free one, with what somebody has written there.
#[test]
fn a_free_page_that_comes_back_is_seen() {
    let Some(heap) = heap(64) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    heap.inner.exchange.faults.uncopied.store(7, Ordering::Relaxed);
    assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, 1024);
    let wrong = wrong(&arena);
    // Each seventh run of 64.
    assert_eq!(wrong, [6 * 64..7 * 64, 13 * 64..14 * 64].into_iter().flatten().collect::<Vec<_>>());
    assert!(wrong.iter().all(|page| arena[page * 4096..][..4096].iter().all(|&byte| byte == POISON)));
    arena.fill(0);
    let lost = stress::lost_writes(arena.addresses().start, 1024, &|range, to| {
        heap.migrate(range, TierId(to)).unwrap();
    });
    assert!(lost > 0);
}

#[test]
fn a_panic_with_pages_out_brings_them_back_first() {
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap(1024) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        number(&mut arena);
        // So that pages do not lie side by side, and go in more than one run.
        for page in (0..1024_u64).step_by(100) {
            let address = arena.addresses().start + page * PAGE;
            assert_eq!(heap.migrate(address..address + PAGE, FAST).unwrap().pages, 1);
        }
        for to in [FAST, HOME] {
            heap.inner.exchange.faults.panics.store(true, Ordering::Relaxed);
            let panic = catch_unwind(AssertUnwindSafe(|| heap.migrate(arena.addresses(), to))).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"asked for by a test"));
            assert_settled(&heap);
            assert_eq!(wrong(&arena), [], "to {to:?}");
            let on = heap.residency(arena.addresses()).unwrap();
            assert_eq!(on.iter().sum::<u64>(), 1024);
            // Some had been copied; those that had not are where they were.
            assert!(on.iter().all(|&pages| pages > 0), "{on:?}");
            let moved = heap.migrate(arena.addresses(), to).unwrap();
            assert_eq!(moved.pages + moved.left.already, 1024, "{moved:?}");
            assert_eq!(wrong(&arena), [], "to {to:?}");
        }
    }
}
