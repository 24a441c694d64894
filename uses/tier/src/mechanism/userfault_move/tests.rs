//! Faults that no program can cause: wrong answers of the kernel, copies that panic, free pages that come back as live
//! ones.

mod out;

use super::*;
use crate::arena::Arena;
use crate::config::TierOptions;
use crate::heap::Heap;
use crate::skip::skip;
use crate::slots::tests::POISON;
use crate::stress;
use std::sync::atomic::Ordering;
use telpher_os::{TransparentHugePages, Userfault};

const FAST: TierId = TierId(0);
const HOME: TierId = TierId(1);

/// Creates a heap whose free pages are overwritten; none where the kernel lacks a feature, which tests/moves.rs
/// reports.
pub(super) fn heap(batch: usize) -> Option<Tested> {
    heap_with(|options| options.batch = batch)
}

fn heap_with(change: impl FnOnce(&mut HeapOptions)) -> Option<Tested> {
    Scan::open().ok()?;
    Userfault::open(UserfaultFeatures::MOVE).ok()?;
    let tier = |name: &str, bytes| TierOptions { name: name.to_string(), node: None, bytes };
    let mut options = HeapOptions::new(vec![tier("fast", 16 << 20), tier("slow", 0)]);
    change(&mut options);
    let mechanism = Arc::new(UserfaultMove::new(&options).unwrap());
    for slots in mechanism.pools.lock().unwrap().tiers.iter_mut().flatten() {
        slots.poison = Some(std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap());
    }
    let backend: Arc<UserfaultMove> = Arc::clone(&mechanism);
    Some(Tested { mechanism, heap: Heap::by(options, backend) })
}

/// Returns whether memory that requests huge pages gets none, and reports the test as skipped.
pub(super) fn lacks_huge_pages(test: &str) -> bool {
    let setting = TransparentHugePages::setting();
    if setting.are_off() {
        skip(&format!("{test} (huge pages)"), &format!("transparent huge pages: {setting}"));
    }
    setting.are_off()
}

/// A heap and its internals.
pub(super) struct Tested {
    heap: Heap,
    pub(super) mechanism: Arc<UserfaultMove>,
}

impl std::ops::Deref for Tested {
    type Target = Heap;

    fn deref(&self) -> &Heap {
        &self.heap
    }
}

/// Writes each page's number, plus one, into every word of it. No page is all zeros, because the kernel frees such
/// parts of a huge page that it splits.
pub(super) fn number(arena: &mut Arena) {
    for (word, bytes) in arena.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (word / 512 + 1).to_ne_bytes();
    }
}

/// Returns the pages that do not contain their number.
pub(super) fn wrong(arena: &Arena) -> Vec<usize> {
    let (words, _) = arena.as_chunks::<8>();
    let is_wrong = |page: &usize| words[page * 512..][..512].iter().any(|word| *word != (page + 1).to_ne_bytes());
    (0..arena.len() / 4096).filter(is_wrong).collect()
}

/// Returns whether every page contains its number. It allocates nothing, because a forked child calls it.
pub(super) fn is_whole(arena: &Arena) -> bool {
    arena.as_chunks::<8>().0.iter().enumerate().all(|(word, bytes)| *bytes == (word / 512 + 1).to_ne_bytes())
}

/// Reads a slot, so that it gets an empty page: a fault in unknown memory is answered with one.
#[allow(unsafe_code, reason = "reads by address")]
pub(super) fn touch(place: u64) {
    // SAFETY: a slot of a pool, which is mapped and unused while nothing is moved.
    unsafe { std::ptr::with_exposed_provenance::<u8>(usize::try_from(place).unwrap()).read_volatile() };
}

/// Asserts that nothing is out, no slot is lent, and each page of the pools is where the counters say.
pub(super) fn assert_settled(heap: &Tested) {
    let mut pools = heap.mechanism.pools.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(heap.mechanism.exchange.page_map().in_flight.is_empty());
    assert!(heap.mechanism.exchange.page_map().traps.are_told());
    if let Some(places) = &*heap.mechanism.trap_slots() {
        places.assert_settled(&heap.mechanism.exchange);
    }
    for slots in pools.tiers.iter_mut().flatten() {
        let mut there = 0;
        heap.mechanism.exchange.scan.there(slots.range(), |run| there += run.pages()).unwrap();
        assert_eq!(there, slots.full_pages() + slots.shadow_pages(), "pages in slots counted as empty");
        assert_eq!(slots.lent_full(), 0);
    }
}

#[test]
fn wrong_answers_of_the_kernel_change_nothing() {
    for (pages, every) in [(PageSize::Small, 1), (PageSize::Small, 3), (PageSize::Huge, 1), (PageSize::Huge, 2)] {
        let Some(heap) = heap(100) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        number(&mut arena);
        let faults = &heap.mechanism.exchange.faults;
        faults.lies.store(every, Ordering::Relaxed);
        for to in [FAST, HOME].repeat(3) {
            let moved = heap.migrate(arena.addresses(), to).unwrap();
            assert_eq!((moved.pages, moved.left.all()), (1024, 0), "to {to:?}: {moved:?}");
            assert_eq!(wrong(&arena), [0_usize; 0], "to {to:?}");
            assert_settled(&heap);
        }
        let stats = heap.stats();
        assert!(stats.misreported > 0 && stats.lost == 0 && stats.copied_back == 0, "{stats:?}");
    }
}

#[test]
fn no_write_is_lost_with_wrong_answers_of_the_kernel() {
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap(64) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        arena.fill(0);
        heap.mechanism.exchange.faults.lies.store(5, Ordering::Relaxed);
        let lost = stress::lost_writes(arena.addresses().start, 1024, &|range, to| {
            heap.migrate(range, TierId(to)).unwrap();
        });
        let stats = heap.stats();
        assert_eq!((lost, stats.lost), (0, 0), "{stats:?}");
        assert!(stats.misreported > 10, "{stats:?}");
        assert_settled(&heap);
    }
}

/// Checks the stress above: a free page comes back instead of the copy, with the bytes a test wrote there.
#[test]
fn the_stress_notices_a_free_page_that_comes_back() {
    let Some(heap) = heap(64) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    heap.mechanism.exchange.faults.uncopied.store(7, Ordering::Relaxed);
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
fn a_panic_brings_pages_back_first() {
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap(1024) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        number(&mut arena);
        // Moves some pages first, so that slots are not contiguous and the pages go in more than one run.
        for page in (0..1024_u64).step_by(100) {
            let address = arena.addresses().start + page * PAGE;
            assert_eq!(heap.migrate(address..address + PAGE, FAST).unwrap().pages, 1);
        }
        for to in [FAST, HOME] {
            heap.mechanism.exchange.faults.panics.store(true, Ordering::Relaxed);
            let panic = catch_unwind(AssertUnwindSafe(|| heap.migrate(arena.addresses(), to))).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"requested by a test"));
            assert_settled(&heap);
            assert_eq!(wrong(&arena), [0_usize; 0], "to {to:?}");
            let on = heap.residency(arena.addresses()).unwrap();
            assert_eq!(on.iter().sum::<u64>(), 1024);
            // Some had been copied; the others are where they were.
            assert!(on.iter().all(|&pages| pages > 0), "{on:?}");
            let moved = heap.migrate(arena.addresses(), to).unwrap();
            assert_eq!(moved.pages + moved.left.already, 1024, "{moved:?}");
            assert_eq!(wrong(&arena), [0_usize; 0], "to {to:?}");
        }
    }
}

/// Returns the addresses of these pages of an arena.
fn part(arena: &Arena, pages: Range<u64>) -> Range<u64> {
    let start = arena.addresses().start;
    start + pages.start * PAGE..start + pages.end * PAGE
}

#[test]
fn an_unwritten_page_goes_back_without_a_copy() {
    let Some(heap) = heap_with(|options| (options.batch, options.shadow_bytes) = (100, 8 << 20)) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let mut not_copied = 0;
    for round in 0..3 {
        assert_eq!(heap.migrate(arena.addresses(), FAST).unwrap().pages, 1024);
        assert_eq!(heap.shadows(), [0, 1024]);
        assert_eq!(wrong(&arena), [0_usize; 0]);
        // Changes the first byte of some and the last byte of others.
        let written: Vec<usize> = (0..1024).filter(|page| page % 7 == round).collect();
        for &page in &written {
            arena[page * 4096 + if page % 2 == 0 { 0 } else { 4095 }] ^= 0xff;
        }
        assert_eq!(heap.migrate(arena.addresses(), HOME).unwrap().pages, 1024);
        assert_eq!(heap.shadows(), [0, 0]);
        not_copied += 1024 - written.len() as u64;
        assert_eq!(heap.stats().not_copied, not_copied);
        assert_eq!(wrong(&arena), written, "only the written pages differ");
        number(&mut arena);
        assert_settled(&heap);
    }
}

#[test]
fn old_copies_stay_within_their_limit() {
    let Some(heap) = heap_with(|options| options.shadow_bytes = 50 * PAGE) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    assert_eq!(heap.migrate(part(&arena, 0..120), FAST).unwrap().pages, 120);
    assert_eq!(heap.shadows(), [0, 50]);
    assert_eq!(heap.migrate(part(&arena, 0..120), HOME).unwrap().pages, 120);
    assert_eq!((heap.stats().not_copied, wrong(&arena)), (50, vec![]));
    // They go when the arena goes.
    assert_eq!(heap.migrate(part(&arena, 0..120), FAST).unwrap().pages, 120);
    drop(arena);
    assert_eq!(heap.shadows(), [0, 0]);
    assert_settled(&heap);
}

#[test]
fn a_full_tier_drops_its_old_copies() {
    // Pages begin on the fast tier; the slow tier has room for 100.
    let change = |options: &mut HeapOptions| {
        (options.home, options.shadow_bytes) = (FAST, 8 << 20);
        options.tiers[1].bytes = 100 * PAGE;
    };
    let Some(heap) = heap_with(change) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    assert_eq!(heap.migrate(part(&arena, 100..200), HOME).unwrap().pages, 100);
    assert_eq!(heap.migrate(part(&arena, 100..200), FAST).unwrap().pages, 100);
    assert_eq!((heap.shadows(), heap.free()[1]), (vec![0, 100], 0));
    // The first 50 of these take the slots of the oldest old copies, but not of the copies that the other 50 use.
    let moved = heap.migrate(part(&arena, 50..150), HOME).unwrap();
    assert_eq!((moved.pages, moved.left.all()), (100, 0), "{moved:?}");
    assert_eq!((heap.shadows(), heap.stats().not_copied), (vec![0, 0], 50));
    assert_eq!(wrong(&arena), [0_usize; 0]);
    let more = heap.migrate(part(&arena, 0..50), HOME).unwrap();
    assert_eq!((more.pages, more.left.no_room), (0, 50), "{more:?}");
    assert_settled(&heap);
}

#[test]
fn an_outdated_old_copy_is_not_used() {
    let Some(heap) = heap_with(|options| options.shadow_bytes = 8 << 20) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    assert_eq!(heap.migrate(part(&arena, 0..100), FAST).unwrap().pages, 100);
    // Discarded, and on the home tier when touched again: their old copies there are out of date.
    arena.discard(0..50 * 4096).unwrap();
    assert!(arena[..50 * 4096].iter().all(|&byte| byte == 0));
    arena[0] = 1;
    assert_eq!(heap.migrate(part(&arena, 0..100), HOME).unwrap().pages, 50);
    assert_eq!(heap.stats().not_copied, 50);
    assert_eq!(heap.migrate(part(&arena, 0..100), FAST).unwrap().pages, 51);
    arena[4096 * 99] = 7;
    assert_eq!(heap.migrate(part(&arena, 0..100), HOME).unwrap().pages, 51);
    assert_eq!(heap.stats().not_copied, 50 + 50);
    assert_eq!((arena[0], arena[1], arena[4096 * 99]), (1, 0, 7));
    assert_eq!(wrong(&arena), (0..50).chain([99]).collect::<Vec<_>>());
    assert_settled(&heap);
}

/// Stresses memory of which one half is written all the time and the other half is not. Returns how many writes were
/// lost.
fn lost_writes_with_shadows(heap: &Tested) -> u64 {
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    arena.fill(0);
    let half = arena.addresses().start + (2 << 20);
    stress::lost_writes(arena.addresses().start, 512, &|range, to| {
        // There and back at once, so that some pages have not been written; and with them pages that are never written.
        let unwritten = half..half + (range.end - range.start);
        for to in [FAST, TierId(to)] {
            heap.migrate(range.clone(), to).unwrap();
            heap.migrate(unwritten.clone(), to).unwrap();
        }
    })
}

#[test]
fn no_write_is_lost_with_old_copies() {
    for lies in [0, 5] {
        let Some(heap) = heap_with(|options| (options.batch, options.shadow_bytes) = (64, 8 << 20)) else { return };
        heap.mechanism.exchange.faults.lies.store(lies, Ordering::Relaxed);
        let lost = lost_writes_with_shadows(&heap);
        let stats = heap.stats();
        assert_eq!((lost, stats.lost), (0, 0), "{stats:?}");
        // Some were written, and others were not.
        assert!(stats.not_copied > 100 && stats.moved.pages / 2 > stats.not_copied + 100, "{stats:?}");
        assert_settled(&heap);
    }
}

/// Checks the stress above: the comparison is made before the page is out, and a write comes in between.
#[test]
fn comparing_too_early_loses_writes_that_the_stress_notices() {
    let Some(heap) = heap_with(|options| (options.batch, options.shadow_bytes) = (64, 8 << 20)) else { return };
    heap.mechanism.exchange.faults.early.store(true, Ordering::Relaxed);
    assert!(lost_writes_with_shadows(&heap) > 0, "{:?}", heap.stats());
}

/// Before the copy and after it, for a small page and for a part of a huge one; also if a wrong answer of the kernel
/// leaves threads waiting.
#[test]
fn a_moving_thread_that_touches_a_page_gets_it_back() {
    let _limit = stress::Limit::new();
    let each = [(PageSize::Small, 0), (PageSize::Small, 1), (PageSize::Huge, 0), (PageSize::Huge, 1)];
    for (pages, moment, lies) in each.iter().flat_map(|&(pages, moment)| [(pages, moment, 0), (pages, moment, 1)]) {
        let Some(heap) = heap(600) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        number(&mut arena);
        heap.mechanism.exchange.faults.lies.store(lies, Ordering::Relaxed);
        let start = arena.addresses().start;
        for round in 0..4 {
            let touched = start + (20 + round) * PAGE;
            heap.mechanism.exchange.faults.touched[moment].store(touched, Ordering::Relaxed);
            let moved = heap.migrate(start..start + 512 * PAGE, TierId(u8::try_from(round % 2).unwrap())).unwrap();
            assert_eq!(moved.all(), 512, "{moved:?}");
            // A page that had been copied is at its destination.
            assert_eq!(moved.left.failed, if moment == 0 { 1 } else { 0 }, "{pages:?} {round}: {moved:?}");
            assert_eq!(wrong(&arena), Vec::<usize>::new(), "{pages:?}, {round}");
        }
        let stats = heap.stats();
        assert_eq!((stats.returned_early, stats.lost), (4, 0), "{stats:?}");
        drop(arena);
        assert_settled(&heap);
    }
}

/// One thread forks and another moves the mapping; the event of the move is read first.
#[test]
fn a_child_forked_before_its_mapping_moved_has_the_page_where_it_was() {
    let Some(heap) = heap(64) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let (exchange, live) = (&heap.mechanism.exchange, arena.addresses().start);
    let mut pools = heap.mechanism.pools.lock().unwrap();
    let from = pools.tiers[HOME.index()][0].lend(SlotState::Empty, 4).unwrap().start;
    let (stage, tier) = (Stage::Planned, HOME);
    let part = MovingRun {
        live,
        taken: live,
        from,
        to: from,
        source: from,
        pages: 4,
        stage,
        tier,
        shadowed: false,
        huge: false,
    };
    exchange.page_map().in_flight.add(&[part]);
    exchange.take_out();
    let mut map = exchange.page_map();
    assert_eq!(map.in_flight[0].stage, Stage::Out);
    // This process plays the child; it has nothing where the mapping is said to have moved.
    let nowhere = RawPages::new(4 * 4096, PageSize::Small).unwrap().start();
    map.in_flight[0].live = nowhere;
    // Pages that the child expects and cannot be given are lost.
    map.in_flight[0].from = nowhere;
    exchange.give_to_child(&mut map, &exchange.userfault);
    assert_eq!((map.stats.copied_to_children, map.stats.lost, map.stats.forks), (0, 4, 1));
    map.in_flight[0].from = from;
    exchange.give_to_child(&mut map, &exchange.userfault);
    assert_eq!((map.stats.copied_to_children, map.stats.lost, map.stats.forks), (4, 4, 2));
    map.in_flight.clear();
    drop((map, pools));
    assert_eq!(wrong(&arena), Vec::<usize>::new());
}
