//! Traps set continuously, under programs that notice every lost write, and with wrong answers of the kernel.

use crate::arena::Arena;
use crate::config::{PAGE, TierId};
use crate::mechanism::userfault_move::tests::{
    Tested, assert_settled, heap, is_whole, lacks_huge_pages, number, touch, wrong,
};
use crate::mechanism::{TrapCandidate, Trapping};
use crate::stress::{self, Places};
use crate::traps::{Trap, TrapOutcome};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telpher_mem::PageSize;
use telpher_os::Random;

fn candidate(pages: Range<u64>) -> TrapCandidate {
    TrapCandidate { pages, first: true }
}

/// Sets a round of traps on these pages, ends it after `time`, and returns the traps.
fn trap_round(heap: &Tested, ranges: &[Range<u64>], time: Duration) -> Vec<Trap> {
    let mechanism = &heap.mechanism;
    mechanism.set(&ranges.iter().cloned().map(candidate).collect::<Vec<_>>()).unwrap();
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::yield_now();
    }
    let mut ended = Vec::new();
    mechanism.end(&mut |trap| ended.push(*trap));
    ended
}

/// Creates a heap with traps, whose free pages are overwritten.
fn traps(batch: usize) -> Option<Tested> {
    let heap = heap(batch)?;
    heap.mechanism.begin().unwrap();
    Some(heap)
}

/// Traps parts of a range, as random sampling would: three parts, with a migration in some rounds.
fn trap_here_and_there(heap: &Tested, range: &Range<u64>, round: u64) {
    let len = range.end - range.start;
    let parts = [0, 1, 2].map(|at| {
        let start = range.start + (len / 3 / PAGE) * at * PAGE;
        start..(start + 16 * PAGE).min(range.end)
    });
    trap_round(heap, &parts, Duration::from_micros(50 * (round % 8)));
    if round.is_multiple_of(16) {
        let to = TierId(u8::try_from(round / 16 % 2).unwrap());
        heap.migrate(range.clone(), to).unwrap();
    }
}

fn stress(pages: PageSize, lies: u64) {
    let Some(heap) = traps(64) else { return };
    let mut arena = heap.arena(4 << 20, pages).unwrap();
    arena.fill(0);
    heap.mechanism.exchange.faults.lies.store(lies, Ordering::Relaxed);
    let rounds = AtomicU64::new(0);
    let lost = stress::lost_writes(arena.addresses().start, 1024, &|range, _| {
        trap_here_and_there(&heap, &range, rounds.fetch_add(1, Ordering::Relaxed));
    });
    let stats = heap.stats();
    assert_eq!((lost, stats.lost), (0, 0), "{stats:?}");
    assert!(stats.trapped > 1000 && stats.touched > 50, "{stats:?}");
    assert!(lies == 0 || stats.misreported > 10, "{stats:?}");
    assert_settled(&heap);
}

#[test]
fn no_write_to_a_trapped_page_is_lost() {
    stress(PageSize::Small, 0);
    stress(PageSize::Huge, 0);
}

#[test]
fn no_write_to_a_trapped_page_is_lost_with_wrong_answers() {
    stress(PageSize::Small, 5);
    stress(PageSize::Huge, 5);
}

/// Checks the stress: it must notice a page that comes back with other contents.
#[test]
fn the_stress_notices_a_page_lost_to_a_trap() {
    let Some(heap) = traps(64) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    arena.fill(0);
    heap.mechanism.exchange.faults.spoilt.store(20, Ordering::Relaxed);
    let rounds = AtomicU64::new(1);
    let lost = stress::lost_writes(arena.addresses().start, 1024, &|range, _| {
        trap_here_and_there(&heap, &range, rounds.fetch_add(2, Ordering::Relaxed));
    });
    assert!(lost > 0);
}

/// Discards, mappings that move and go, and forks, with traps set.
#[test]
#[allow(unsafe_code, reason = "takes over what a program has mapped")]
fn mapping_changes_of_trapped_pages_are_followed() {
    if !stress::is_alone("mapping_changes_of_trapped_pages_are_followed") {
        return;
    }
    let Some(heap) = traps(64) else { return };
    let arenas = [0, 1].map(|_| heap.arena(2 << 20, PageSize::Small).unwrap());
    let starts = [0, 1].map(|at: usize| arenas[at].addresses().start);
    let rounds = AtomicU64::new(0);
    let trap = |range: Range<u64>, _| {
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::new(round);
        // Any part of either arena.
        let parts = [0; 4].map(|_| {
            let arena = usize::try_from(random.below(2)).unwrap();
            let start = starts[arena] + random.below(512 - 16) * PAGE;
            start..start + 16 * PAGE
        });
        trap_round(&heap, &parts, Duration::from_micros(100 * (round % 8)));
        if round.is_multiple_of(16) {
            heap.migrate(range, TierId(u8::try_from(round / 16 % 2).unwrap())).unwrap();
        }
    };
    // SAFETY: private memory that no thread has touched; the heap outlives its use.
    let adopt = |range| _ = unsafe { heap.adopt(range) };
    let is_enough = || {
        let stats = heap.stats();
        stats.trapped > 2000 && stats.touched > 100 && stats.dropped > 0
    };
    let forks =
        stress::change_mappings(&Places::small(arenas.each_ref().map(Arena::addresses)), &trap, &adopt, &is_enough);
    let stats = heap.stats();
    assert!(stats.lost == 0 && forks > 0, "{stats:?}");
    assert_settled(&heap);
}

/// A trap slot is not empty: its page does not go out, and the slot is emptied for the next round.
#[test]
fn content_of_an_occupied_trap_slot_is_not_taken_for_a_page() {
    // Pages before the blocked slot are out; a huge page that this splits counts as a whole.
    for (size, filled, expected) in [
        (PageSize::Small, 0..32, 0),
        (PageSize::Small, 5..8, 5),
        (PageSize::Huge, 0..1, 0),
        (PageSize::Huge, 7..8, 512),
    ] {
        let Some(heap) = traps(64) else { return };
        let mut arena = heap.arena(4 << 20, size).unwrap();
        number(&mut arena);
        let start = arena.addresses().start;
        let round = match size {
            PageSize::Small => start..start + 64 * PAGE,
            PageSize::Huge => start..start + PAGE,
        };
        let of_whole = heap.mechanism.set(&[candidate(round.clone())]).unwrap();
        if size == PageSize::Huge && of_whole != 512 {
            return;
        }
        let slot = heap.mechanism.exchange.page_map().traps.traps()[0].slot;
        heap.mechanism.end(&mut |_| ());
        for page in filled {
            touch(slot + page * PAGE);
        }
        assert_eq!(heap.mechanism.set(&[candidate(round.clone())]).unwrap(), expected, "{size:?}");
        let out: u64 = heap.mechanism.exchange.page_map().traps.parts().iter().map(|part| part.len / PAGE).sum();
        assert_eq!(out, if expected == 512 { 7 } else { expected }, "{size:?}");
        assert!(is_whole(&arena));
        heap.mechanism.end(&mut |_| ());
        assert_eq!((wrong(&arena), heap.stats().lost), (vec![], 0), "{:?}", heap.stats());
        assert_settled(&heap);
        assert!(heap.mechanism.time_touch().is_some());
        if size == PageSize::Small {
            assert_eq!(heap.mechanism.set(&[candidate(round)]).unwrap(), 64);
            heap.mechanism.end(&mut |_| ());
        }
    }
}

/// Nothing recalls the traps here: the fork is a bare system call, which the kernel reports.
#[test]
fn a_child_gets_copies_of_trapped_pages() {
    if !stress::is_alone("a_child_gets_copies_of_trapped_pages") {
        return;
    }
    for (pages, trapped) in [(PageSize::Small, 16 + 16), (PageSize::Huge, 2 * 512)] {
        let Some(heap) = traps(64) else { return };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        number(&mut arena);
        let start = arena.addresses().start;
        // A huge page is candidates by its first small page.
        let neighbours = if pages == PageSize::Small { 16 } else { 1 };
        let round = [0, 512].map(|page| start + page * PAGE..start + (page + neighbours) * PAGE);
        let set = heap.mechanism.set(&round.map(candidate)).unwrap();
        if pages == PageSize::Huge && set != trapped {
            // The system has no huge pages, or none left.
            return;
        }
        assert_eq!(set, trapped, "{pages:?}");
        assert!(stress::is_so_in_child(stress::bare_fork, || is_whole(&arena)), "{pages:?}: the child has every page");
        let stats = heap.stats();
        assert_eq!((stats.copied_to_children, stats.forks, stats.touched), (trapped, 1, 0), "{pages:?}: {stats:?}");
        let mut ended = Vec::new();
        heap.mechanism.end(&mut |trap| ended.push(trap.fate));
        assert!(ended.iter().all(|fate| *fate == TrapOutcome::Untouched), "{pages:?}: {ended:?}");
        assert_eq!(wrong(&arena), Vec::<usize>::new());
        assert_settled(&heap);
    }
}

#[test]
fn a_discarded_part_of_a_trapped_huge_page_is_zero_and_its_slot_is_replaced() {
    if lacks_huge_pages("a_discarded_part_of_a_trapped_huge_page_is_zero_and_its_slot_is_replaced") {
        return;
    }
    let Some(heap) = traps(512) else { return };
    // More rounds than there are slots.
    for round in 0..40 {
        let mut arena = heap.arena(2 << 20, PageSize::Huge).unwrap();
        number(&mut arena);
        let start = arena.addresses().start;
        heap.mechanism.set(&[candidate(start..start + PAGE)]).unwrap();
        if heap.mechanism.exchange.page_map().traps.parts().len() != 1 {
            return;
        }
        let huge = round % 4 == 3;
        let gone = if huge { 0..512 } else { 100..110 };
        arena.discard(gone.start * 4096..gone.end * 4096).unwrap();
        // A touch of another part returns it unchanged.
        let (words, _) = arena.as_chunks::<8>();
        assert_eq!(words[511 * 512], if huge { [0; 8] } else { 512_usize.to_ne_bytes() });
        let mut ended = Vec::new();
        heap.mechanism.end(&mut |trap| ended.push(trap.fate));
        assert_eq!(ended, [TrapOutcome::Unknown]);
        assert_eq!(wrong(&arena), gone.clone().collect::<Vec<_>>());
        assert!(arena[gone.start * 4096..gone.end * 4096].iter().all(|&byte| byte == 0));
        assert_settled(&heap);
    }
}

/// Parts of the arena are protected while they are out.
#[test]
#[allow(unsafe_code, reason = "does what programs do to their mappings")]
fn trapped_pages_of_protected_mappings_come_back_as_copies() {
    let Some(heap) = traps(64) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let at = |page: u64| -> *mut libc::c_void {
        std::ptr::with_exposed_provenance_mut(usize::try_from(arena.addresses().start + page * PAGE).unwrap())
    };
    let page = |page: u64| arena.addresses().start + page * PAGE;
    assert_eq!(heap.migrate(page(0)..page(64), TierId(0)).unwrap().pages, 64);
    heap.mechanism.set(&[candidate(page(0)..page(16)), candidate(page(32)..page(48))]).unwrap();
    // SAFETY: whole pages of the arena, which are made read-only here and writable again below.
    unsafe { assert_eq!(libc::mprotect(at(8), 16 * 4096, libc::PROT_READ), 0) };
    heap.mechanism.end(&mut |trap| assert_eq!(trap.fate, TrapOutcome::Untouched));
    assert_eq!(wrong(&arena), [0_usize; 0]);
    let stats = heap.stats();
    assert_eq!((stats.copied_back, stats.lost), (8, 0), "{stats:?}");
    // The pages that came back as copies are on the home tier.
    assert_eq!(heap.residency(page(0)..page(64)).unwrap(), [56, 8]);
    // SAFETY: as above.
    unsafe { assert_eq!(libc::mprotect(at(8), 16 * 4096, libc::PROT_READ | libc::PROT_WRITE), 0) };
    assert_settled(&heap);
}

/// Like a [`Heap`](crate::Heap) that ends while pages are out.
#[test]
fn dropping_an_arena_ends_its_traps() {
    let Some(heap) = traps(64) else { return };
    for pages in [PageSize::Small, PageSize::Huge].repeat(3) {
        let mut arena = heap.arena(2 << 20, pages).unwrap();
        number(&mut arena);
        let start = arena.addresses().start;
        assert!(heap.mechanism.set(&[candidate(start..start + 16 * PAGE)]).unwrap() >= 16);
        drop(arena);
        assert!(heap.mechanism.exchange.page_map().traps.are_empty());
        heap.mechanism.end(&mut |trap| assert_eq!(trap.fate, TrapOutcome::Unknown));
        assert_settled(&heap);
    }
}

#[test]
#[allow(unsafe_code, reason = "does what programs do to their mappings")]
fn one_round_at_a_time_and_no_unmovable_pages() {
    let Some(heap) = traps(64) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    arena[..1 << 20].fill(1);
    let page = |page: u64| arena.addresses().start + page * PAGE;
    // 16 pages, candidates twice, half of which are present.
    let half = page(248)..page(264);
    assert_eq!(heap.mechanism.set(&[candidate(half.clone()), candidate(half)]).unwrap(), 8);
    assert_eq!(heap.mechanism.set(&[candidate(page(0)..page(16))]).unwrap(), 0, "a round is under way");
    assert_eq!(heap.mechanism.time_touch(), None);
    heap.mechanism.end(&mut |_| ());
    // A refused round leaves nothing behind, and the next one is set.
    // SAFETY: whole pages of the arena.
    unsafe {
        assert_eq!(libc::mlock(std::ptr::with_exposed_provenance(usize::try_from(page(0)).unwrap()), 16 * 4096), 0)
    };
    assert_eq!(heap.mechanism.set(&[candidate(page(0)..page(16))]).unwrap(), 0, "they are locked");
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::munlock(std::ptr::with_exposed_provenance(usize::try_from(page(0)).unwrap()), 16 * 4096), 0)
    };
    // No more pages than there are slots.
    assert_eq!(heap.mechanism.set(&[candidate(page(0)..page(256))]).unwrap(), 64);
    let mut ended = 0;
    heap.mechanism.end(&mut |_| ended += 1);
    assert_eq!(ended, 64);
    let time = heap.mechanism.time_touch().unwrap();
    assert!(time > Duration::from_nanos(100) && time < Duration::from_secs(1), "{time:?}");
    assert_settled(&heap);
}

#[test]
fn release_leaves_memory_beside_the_heap_alone() {
    let Some(heap) = traps(64) else { return };
    let probe = heap.mechanism.trap_slots().as_ref().expect("begun").probe.range();
    // Like a thread's table that lies beside it, and one page more.
    crate::mechanism::Backend::release(&*heap.mechanism, &(probe.start - PAGE..probe.start + PAGE));
    assert!(heap.mechanism.time_touch().is_some());
    assert_eq!(heap.stats().lost, 0);
    assert_settled(&heap);
}
