//! Traps over real memory, with a clock that the tests control.

use super::*;
use crate::arena::Arena;
use crate::config::{HeapOptions, TierId, TierOptions};
use crate::heat::NO_TIER;
use std::ops::Range;
use std::time::Instant;
use telpher_mem::PageSize;
use telpher_os::{Scan, Userfault, UserfaultFeatures};

const TIME: Duration = Duration::from_millis(10);

/// Creates a heap and its traps; none where the kernel lacks a feature, which tests/heat.rs reports.
fn traps() -> Option<(Heap, Traps)> {
    Scan::open().ok()?;
    Userfault::open(UserfaultFeatures::MOVE).ok()?;
    let tier = |name: &str, bytes| TierOptions { name: name.to_string(), node: None, bytes };
    let heap = Heap::new(HeapOptions::new(vec![tier("fast", 16 << 20), tier("slow", 0)])).unwrap();
    let traps = Traps::new(&heap, TIME, 0.007, 5).unwrap();
    Some((heap, traps))
}

/// Returns the pages that are out now.
fn out(arena: &Arena) -> Vec<usize> {
    let mut there = vec![false; arena.len() / 4096];
    let start = arena.addresses().start;
    let index = |address: u64| usize::try_from((address - start) / PAGE).unwrap();
    let count = |run: telpher_os::PageRun| there[index(run.start)..index(run.end)].fill(true);
    Scan::open().unwrap().present(arena.addresses(), count).unwrap();
    (0..there.len()).filter(|&page| !there[page]).collect()
}

/// Runs a round of traps, with `during` called while it is set; returns the pages that were out.
fn trap_round(
    traps: &mut Traps,
    heat: &mut HeatMap,
    now: &mut Duration,
    arena: &mut Arena,
    during: impl FnOnce(&mut Arena, &[usize]),
) -> Vec<usize> {
    while traps.round.is_none() {
        *now += traps.step(*now, heat).unwrap();
    }
    let pages = out(arena);
    during(arena, &pages);
    let round = traps.round.expect("set");
    *now = (round.since + round.time).max(*now);
    // Ends this round, and may start the next one.
    traps.end_now(*now, heat);
    pages
}

impl Traps {
    /// Ends a round without starting another.
    fn end_now(&mut self, now: Duration, heat: &mut HeatMap) {
        if let Some(round) = self.round.take() {
            self.end(now, round, heat);
        }
    }
}

fn heats(heat: &HeatMap, arena: &Arena, pages: impl IntoIterator<Item = usize>) -> Vec<(u8, u8)> {
    let page = |page: usize| heat.page(arena.addresses().start + page as u64 * PAGE);
    pages.into_iter().map(|at| page(at).map_or((0, 0), |page| (page.heat, page.seen))).collect()
}

fn number(arena: &mut Arena) {
    for (word, bytes) in arena.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (word / 512 + 1).to_ne_bytes();
    }
}

fn is_numbered(arena: &Arena) -> bool {
    let (words, _) = arena.as_chunks::<8>();
    words.iter().enumerate().all(|(word, bytes)| *bytes == (word / 512 + 1).to_ne_bytes())
}

#[test]
fn a_read_page_is_hot_and_an_unused_one_cold() {
    let Some((heap, mut traps)) = traps() else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let (mut heat, mut now) = (HeatMap::new(), Duration::ZERO);
    heat.follow(&heap);
    heat.refresh(&heap).unwrap();
    let (mut read, mut tiers) = (Vec::new(), HeatMap::new());
    tiers.follow(&heap);
    tiers.refresh(&heap).unwrap();
    let (begun, mut took) = (Instant::now(), Duration::MAX);
    let pages = trap_round(&mut traps, &mut heat, &mut now, &mut arena, |arena, pages| {
        read = pages.iter().copied().step_by(3).collect();
        for &page in &read {
            assert_eq!(arena[page * 4096], u8::try_from((page + 1) % 256).unwrap(), "the same page");
        }
        took = begun.elapsed();
        assert!(read.iter().all(|page| !out(arena).contains(page)), "each touched page is back at once");
        assert_eq!(out(arena).len(), pages.len() - read.len(), "no other page is back");
        // While it is out it counts as on its tier and as known.
        assert_eq!(heap.residency(arena.addresses()).unwrap(), [0, 512]);
        tiers.refresh(&heap).unwrap();
        assert!(tiers.strips()[0].pages.iter().all(|page| page.tier != NO_TIER));
    });
    assert!((32..=64).contains(&pages.len()), "{pages:?}");
    for (page, (heat, seen)) in pages.iter().zip(heats(&heat, &arena, pages.clone())) {
        assert_eq!(seen, 1, "{page}");
        // A page that is touched late counts as cold, and this thread may lose its core before it touches the page.
        let is_late = read.contains(page) && took >= TIME / 2;
        assert!(is_late || (heat > 0) == read.contains(page), "{page}: {heat}, touched after {took:?}");
    }
    assert_eq!(out(&arena), [0_usize; 0]);
    assert!(is_numbered(&arena));
    let (faults, waited) = traps.faults();
    assert_eq!(faults, read.len() as u64);
    assert!(waited > Duration::ZERO && traps.elsewhere() > Duration::ZERO);
    let stats = heap.stats();
    // One more was trapped to measure the cost.
    assert_eq!((stats.trapped, stats.touched, stats.lost), (pages.len() as u64 + 1, read.len() as u64 + 1, 0));
}

#[test]
fn a_huge_page_is_sampled_whole_and_not_split() {
    let Some((heap, mut traps)) = traps() else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Huge).unwrap();
    number(&mut arena);
    let huge = |arena: &Arena| {
        let mut huge = 0;
        let count = |run: telpher_os::PageRun| huge += if run.is_huge() { run.pages() } else { 0 };
        Scan::open().unwrap().present(arena.addresses(), count).unwrap();
        huge
    };
    if huge(&arena) < 2048 {
        return;
    }
    let map = || {
        let mut heat = HeatMap::new();
        heat.follow(&heap);
        heat.refresh(&heap).unwrap();
        heat
    };
    // Touches only the first huge page, at its last byte, by reading or writing.
    let touch = |round: u32, arena: &mut Arena, pages: &[usize]| {
        assert!(pages.len().is_multiple_of(512) && !pages.is_empty());
        let last = pages[0] + 511;
        if round.is_multiple_of(2) {
            assert_eq!(arena[last * 4096 + 4088..][..8], (last + 1).to_ne_bytes());
        } else {
            arena[last * 4096 + 4088] = (last + 1).to_ne_bytes()[0];
        }
        assert_eq!(out(arena).len(), pages.len() - 512);
    };
    let mut now = Duration::ZERO;
    // A huge page that is touched late counts as cold, and this thread may lose its core before it touches the page.
    // Such a round shows nothing about the touched page.
    let limit = HUGE_TIME / 2;
    let in_time = (0..100).any(|round| {
        let (mut heat, begun) = (map(), Instant::now());
        let mut took = Duration::MAX;
        let pages = trap_round(&mut traps, &mut heat, &mut now, &mut arena, |arena, pages| {
            touch(round, arena, pages);
            took = begun.elapsed();
        });
        let heats = heats(&heat, &arena, pages);
        assert!(heats[512..].iter().all(|page| page.0 == 0), "the others were not touched");
        assert!(heats[0].0 > 0 || took >= limit, "touched after {took:?}");
        took < limit
    });
    assert!(in_time, "no touch came in time in 100 rounds");
    let mut heat = map();
    for round in 0..20 {
        let pages = trap_round(&mut traps, &mut heat, &mut now, &mut arena, |arena, pages| touch(round, arena, pages));
        let heats = heats(&heat, &arena, pages);
        assert!(
            heats.chunks(512).all(|unit| unit.iter().all(|page| *page == unit[0] && page.1 > 0)),
            "all parts of a huge page are sampled"
        );
        assert_eq!(huge(&arena), 2048, "round {round}");
    }
    assert!(is_numbered(&arena) && heap.stats().lost == 0);
}

#[test]
fn every_page_is_drawn_equally_often() {
    let Some((heap, mut traps)) = traps() else { return };
    // Ranges of many sizes, not all of whose pages are present.
    let pages = [1, 3, 15, 17, 200, 512, 41_u64];
    let mut at = 0x4000_0000;
    let pieces: Vec<Range<u64>> = pages
        .iter()
        .map(|pages| {
            let piece = at..at + pages * PAGE;
            at = piece.end + 10 * PAGE;
            piece
        })
        .collect();
    let heat = HeatMap::of(&pieces);
    let mut times = std::collections::BTreeMap::<u64, u64>::new();
    let draws = 20_000;
    for _ in 0..draws {
        for candidate in traps.draw(&heat) {
            candidate.pages.step_by(4096).for_each(|page| *times.entry(page).or_default() += 1);
        }
    }
    let all = pages.iter().sum::<u64>();
    let expected = (draws * DRAWN * TOGETHER) as f64 / all as f64;
    // Six deviations of a Poisson distribution.
    let most = 6.0 * expected.sqrt();
    assert_eq!(times.len() as u64, all);
    assert!(times.values().all(|&times| (times as f64 - expected).abs() < most), "{expected}: {times:?}");
    drop(heap);
}

#[test]
fn pages_hot_by_windows_are_not_trapped() {
    let Some((_heap, mut traps)) = traps() else { return };
    let start = 0x4000_0000;
    let mut heat = HeatMap::of(&[start..start + 32 * PAGE, start + 32 * PAGE..start + 64 * PAGE]);
    let hot = |page: u64| page % 4 == 1;
    for page in (0..64).filter(|&page| hot(page)) {
        let page = heat.page_mut(start + page * PAGE).unwrap();
        (0..3).for_each(|_| page.observe_writes(HOT));
    }
    let mut candidates = 0;
    for _ in 0..500 {
        for TrapCandidate { pages, .. } in traps.draw(&heat) {
            assert!(pages.clone().step_by(4096).all(|page| !hot((page - start) / PAGE)));
            candidates += (pages.end - pages.start) / PAGE;
        }
    }
    assert_eq!(candidates, 500 * DRAWN * TOGETHER * 3 / 4);
}

#[test]
fn a_costly_round_is_followed_by_a_long_rest() {
    let Some((heap, mut traps)) = traps() else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let (mut heat, now) = (HeatMap::new(), Duration::ZERO);
    heat.follow(&heap);
    traps.step(now, &mut heat).unwrap();
    let round = traps.round.expect("set");
    let pages = out(&arena);
    for &page in &pages {
        arena[page * 4096] = arena[page * 4096].wrapping_add(0);
    }
    // The cost of a touch on a slow machine.
    traps.touch = Duration::from_millis(1);
    let over = now + round.time;
    let rest = traps.step(over, &mut heat).unwrap();
    assert!(traps.round.is_none());
    let waited = Duration::from_millis(1) * u32::try_from(pages.len()).unwrap();
    assert_eq!(traps.faults().1, waited);
    assert!(rest >= waited * traps.of_threads - round.time, "{rest:?} after {waited:?}");
    // Then another round starts.
    traps.step(over + rest, &mut heat).unwrap();
    assert!(traps.round.is_some());
}

#[test]
fn an_aborted_round_brings_pages_back_without_a_sample() {
    let Some((heap, mut traps)) = traps() else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let mut heat = HeatMap::new();
    heat.follow(&heap);
    traps.step(Duration::ZERO, &mut heat).unwrap();
    assert!(!out(&arena).is_empty());
    traps.rest();
    assert_eq!(out(&arena), [0_usize; 0]);
    assert!(heats(&heat, &arena, 0..512).iter().all(|&page| page == (0, 0)));
    // The same for traps that a migration has recalled.
    traps.step(Duration::from_secs(1), &mut heat).unwrap();
    let pages = out(&arena);
    assert!(!pages.is_empty());
    let moved = heap.migrate(arena.addresses(), TierId(0)).unwrap();
    assert_eq!((moved.pages, moved.left.all()), (512, 0), "{moved:?}");
    traps.end_now(Duration::from_secs(2), &mut heat);
    assert!(heats(&heat, &arena, 0..512).iter().all(|&page| page == (0, 0)) && is_numbered(&arena));
    // Dropping the source brings the pages back as well.
    traps.step(Duration::from_secs(3), &mut heat).unwrap();
    assert!(!out(&arena).is_empty());
    drop(traps);
    assert_eq!(out(&arena), [0_usize; 0]);
}
