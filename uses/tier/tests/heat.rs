//! A heap whose pages move to the right tier as threads use them.

mod common;

use common::{FAST, HOME, PAGE, heap_with, skip};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telpher_mem::PageSize;
use telpher_os::{Random, Scan, Userfault, UserfaultFeatures};
use telpher_tier::heat::{HeatMap, Source};
use telpher_tier::{Advice, Arena, Heap, HeapOptions, Manager, ManagerOptions, Report, SourceKind, TierError, TierId};

/// Creates a heap with write tracking; none where the kernel lacks it.
fn heap(test: &str, fast_bytes: u64, change: impl FnOnce(&mut HeapOptions)) -> Option<Heap> {
    let heap = heap_with(test, fast_bytes, change)?;
    if Userfault::open(UserfaultFeatures::TRACK_WRITES).is_err() {
        skip::skip(test, "the kernel does not track writes (Linux 6.7)");
        return None;
    }
    Some(heap)
}

fn part(arena: &Arena, pages: Range<u64>) -> Range<u64> {
    let start = arena.addresses().start;
    start + pages.start * PAGE..start + pages.end * PAGE
}

/// Returns options for a manager that decides quickly.
fn options(heap: &Heap) -> ManagerOptions {
    let mut options = ManagerOptions::new(heap);
    options.pass = Duration::from_millis(20);
    options.window = Duration::from_millis(4);
    options.policy.residence = Duration::from_millis(200);
    // Enough also for emulated processors.
    options.share = 0.5;
    options
}

/// Writes to pages of an arena, all about equally often, until `is_so` returns true; false after a time limit.
fn write_until(arena: &mut Arena, pages: Range<u64>, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        if Instant::now() >= end {
            return false;
        }
        for _ in 0..200 {
            for page in pages.clone() {
                let at = usize::try_from(page * PAGE).unwrap();
                arena[at] = arena[at].wrapping_add(1);
            }
        }
    }
    true
}

#[test]
fn hot_pages_are_promoted_and_cold_ones_make_room() {
    let test = "hot_pages_are_promoted_and_cold_ones_make_room";
    let Some(heap) = heap(test, 4 << 20, |_| ()) else { return };
    let mut arena = heap.arena(16 << 20, PageSize::Small).unwrap();
    arena.fill(1);
    let manager = Manager::start(&heap, options(&heap)).unwrap();
    let all = arena.addresses();
    for hot in [1000..1800, 3000..3800] {
        let hot_range = part(&arena, hot.clone());
        let is_so = || heap.residency(hot_range.clone()).unwrap()[0] >= 760;
        assert!(write_until(&mut arena, hot.clone(), is_so), "{:?}", manager.report());
        // Few other pages come with them.
        let fast = heap.residency(all.clone()).unwrap()[0];
        assert!(fast <= 1024, "{fast} pages");
    }
    let report = manager.stop().unwrap();
    assert!(report.promoted >= 1520 && report.demoted >= 500, "{report:?}");
    assert_eq!((report.failed, report.heap.lost), (None, 0));
    assert!(arena.iter().enumerate().all(|(at, &byte)| byte == 1 || at % 4096 == 0));
}

/// A source that reports what a test sets, and counts its steps.
#[derive(Debug)]
struct FakeSource {
    hot: Range<u64>,
    steps: u64,
}

impl Source for FakeSource {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn sees(&self) -> &'static str {
        "what a test sets"
    }

    fn step(&mut self, _now: Duration, heat: &mut HeatMap) -> std::io::Result<Duration> {
        self.steps += 1;
        let hot = self.hot.clone();
        heat.cool();
        heat.each_page(&hot, |page| page.observe(255));
        if self.steps == 50 { Err(std::io::Error::other("there is no more")) } else { Ok(Duration::from_millis(5)) }
    }

    fn bytes(&self) -> u64 {
        77
    }
}

#[test]
fn a_report_contains_findings_and_costs() {
    let Some(heap) = heap_with("a_report_contains_findings_and_costs", 8 << 20, |_| ()) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    arena[..6 << 20].fill(3);
    let source = FakeSource { hot: part(&arena, 512..1024), steps: 0 };
    let manager = Manager::with_sources(&heap, &options(&heap), vec![Box::new(source)]).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let report = loop {
        let report = manager.report().unwrap();
        if report.sources[0].failed.is_some() && report.waiting == 0 && report.promoted >= 512 || Instant::now() > end {
            break report;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let [fast, slow] = &report.tiers[..] else { panic!("{report:?}") };
    assert_eq!((fast.name.as_str(), fast.pages, fast.hot, fast.capacity), ("fast", 512, 512, Some(8 << 20)));
    assert_eq!((slow.pages, slow.hot, slow.capacity, slow.heats[1..].iter().sum::<u64>()), (1024, 0, None, 0));
    assert_eq!((report.promoted, report.demoted, report.left.all()), (512, 0, 0));
    let rows: Vec<_> = report.map.iter().map(|row| (row.range.clone(), &row.tiers[..], row.hot)).collect();
    let row = |at: u64| part(&arena, at * 512..(at + 1) * 512);
    let expected: [(_, &[u64], _); 4] =
        [(row(0), &[0, 512], 0), (row(1), &[512, 0], 512), (row(2), &[0, 512], 0), (row(3), &[0, 0], 0)];
    assert_eq!(rows, expected);
    assert_eq!((report.map[0].heat, report.map[3].heat), (Some(0), None));
    let source = &report.sources[0];
    assert_eq!((source.name, source.cost.steps, source.cost.bytes), ("fake", 50, 77));
    assert!(source.failed.as_ref().is_some_and(|why| why.contains("no more")));
    assert!(source.cost.cpu > Duration::ZERO && report.moving.cpu > Duration::ZERO && report.tracking_share() < 1.0);
    assert!(report.deciding.bytes >= 2048 && report.deciding.steps > 0 && !report.opinion.hot.is_empty());
}

#[test]
fn pinned_pages_move_to_their_tier_and_stay() {
    let Some(heap) = heap("pinned_pages_move_to_their_tier_and_stay", 8 << 20, |_| ()) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    arena.fill(1);
    // Given before there is a manager.
    heap.advise(part(&arena, 0..300), Advice::Pin(FAST)).unwrap();
    heap.advise(part(&arena, 1000..1400), Advice::Pin(HOME)).unwrap();
    heap.advise(part(&arena, 1900..2000), Advice::Hot).unwrap();
    let manager = Manager::start(&heap, options(&heap)).unwrap();
    let (pinned, hot) = (part(&arena, 0..300), part(&arena, 1900..2000));
    let is_so = || heap.residency(pinned.clone()).unwrap()[0] == 300 && heap.residency(hot.clone()).unwrap()[0] > 0;
    assert!(write_until(&mut arena, 1000..1400, is_so), "{:?}", manager.report());
    // These are the hottest pages, and no others are hot.
    let end = Instant::now() + Duration::from_millis(500);
    assert!(write_until(&mut arena, 1000..1400, || Instant::now() > end));
    assert_eq!(heap.residency(part(&arena, 1000..1400)).unwrap(), [0, 400]);
    heap.advise(part(&arena, 1000..1400), Advice::Unpin).unwrap();
    let unpinned = part(&arena, 1000..1400);
    assert!(write_until(&mut arena, 1000..1400, || heap.residency(unpinned.clone()).unwrap()[0] > 350));
    assert_eq!(heap.residency(part(&arena, 0..300)).unwrap(), [300, 0]);
}

#[test]
fn invalid_advice_is_refused() {
    let Some(heap) = heap_with("invalid_advice_is_refused", 8 << 20, |_| ()) else { return };
    assert!(matches!(heap.advise(0..PAGE, Advice::Pin(TierId(2))), Err(TierError::NoSuchTier { tier: 2, tiers: 2 })));
    let many = (0..70_000).map(|_| heap.advise(0..PAGE, Advice::Hot)).find_map(Result::err);
    assert!(matches!(many, Some(TierError::TooMuchAdvice)));
    let mut options = ManagerOptions::new(&heap);
    options.policy.capacity.push(None);
    assert!(matches!(Manager::start(&heap, options), Err(TierError::PolicyTiers { tiers: 2, capacity: 3 })));
    // A manager takes the advice, so there is room again.
    let manager = Manager::start(&heap, ManagerOptions::new(&heap)).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while heap.advise(0..PAGE, Advice::Hot).is_err() {
        assert!(Instant::now() < end, "{:?}", manager.report());
    }
}

#[test]
fn an_unavailable_source_is_refused_with_a_reason() {
    let Some(heap) = heap_with("an_unavailable_source_is_refused_with_a_reason", 8 << 20, |_| ()) else { return };
    let start =
        |source| Manager::start(&heap, ManagerOptions { sources: Some(vec![source]), ..ManagerOptions::new(&heap) });
    for source in [SourceKind::Perf, SourceKind::Damon] {
        // Where it is available, it starts.
        let Err(refused) = start(source) else { continue };
        let why = std::error::Error::source(&refused).expect("the cause").to_string();
        assert!(matches!(refused, TierError::Perf(_) | TierError::Damon(_)), "{refused:?}");
        assert!(why.contains("another") || why.contains("end it"), "what to do next: {why}");
    }
}

#[test]
fn a_manager_without_moves_only_observes() {
    let Some(heap) = heap("a_manager_without_moves_only_observes", 8 << 20, |_| ()) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    arena.fill(1);
    let options = ManagerOptions { moves: false, sources: Some(vec![SourceKind::Windows]), ..options(&heap) };
    let manager = Manager::start(&heap, options).unwrap();
    let hot_pages = |report: &Report| report.tiers[1].hot;
    let is_so = || manager.report().is_ok_and(|report| hot_pages(&report) >= 300);
    assert!(write_until(&mut arena, 100..500, is_so), "{:?}", manager.report());
    let report = manager.stop().unwrap();
    assert_eq!((report.promoted, report.demoted, report.tiers[0].pages), (0, 0, 0), "{report:?}");
}

#[test]
fn a_paused_manager_does_no_work() {
    let Some(heap) = heap("a_paused_manager_does_no_work", 8 << 20, |_| ()) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    arena.fill(1);
    let options = ManagerOptions { moves: false, ..options(&heap) };
    let manager = Manager::start(&heap, options).unwrap();
    assert!(write_until(&mut arena, 64..128, || manager
        .hot()
        .iter()
        .map(|range| range.end - range.start)
        .sum::<u64>()
        >= 32 * PAGE));
    assert!(manager.hot().iter().all(|range| (0..64).all(|page| !range.contains(&part(&arena, page..page + 1).start))));
    manager.pause();
    let before = manager.report().unwrap();
    // No page is tracked.
    let mut untracked = 0;
    Scan::open().unwrap().written(arena.addresses(), |run| untracked += run.pages()).unwrap();
    assert_eq!(untracked, 2048);
    std::thread::sleep(Duration::from_millis(150));
    let after = manager.report().unwrap();
    assert_eq!(
        (after.sources[0].cost.steps, after.deciding.steps),
        (before.sources[0].cost.steps, before.deciding.steps)
    );
    assert!(after.time >= before.time + Duration::from_millis(150) && after.awake == before.awake, "{after:?}");
    manager.resume();
    let goes_on = || manager.report().is_ok_and(|report| report.sources[0].cost.steps > after.sources[0].cost.steps);
    assert!(write_until(&mut arena, 64..128, goes_on));
}

#[test]
fn a_panic_of_a_source_is_reported() {
    #[derive(Debug)]
    struct Panics;
    impl Source for Panics {
        fn name(&self) -> &'static str {
            "panics"
        }
        fn sees(&self) -> &'static str {
            "nothing"
        }
        fn step(&mut self, _: Duration, _: &mut HeatMap) -> std::io::Result<Duration> {
            panic!("a fault injected by the test")
        }
    }
    let Some(heap) = heap_with("a_panic_of_a_source_is_reported", 8 << 20, |_| ()) else { return };
    let manager = Manager::with_sources(&heap, &options(&heap), vec![Box::new(Panics)]).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let failed = loop {
        match manager.report().unwrap().failed {
            None if Instant::now() < end => std::thread::yield_now(),
            failed => break failed,
        }
    };
    assert_eq!(failed.as_deref(), Some("a fault injected by the test"));
    manager.stop().unwrap();
}

/// The stress of the heap, with a manager that samples and moves pages as well.
#[test]
fn no_write_is_lost_while_writes_are_tracked() {
    let test = "no_write_is_lost_while_writes_are_tracked";
    let Some(heap) = heap(test, 8 << 20, |options| (options.batch, options.shadow_bytes) = (64, 2 << 20)) else {
        return;
    };
    let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
    arena.fill(0);
    let mut options = options(&heap);
    options.window = Duration::from_millis(1);
    options.policy.residence = Duration::from_millis(50);
    options.sources = Some(vec![SourceKind::Windows]);
    let manager = Manager::start(&heap, options).unwrap();
    let calls = AtomicU64::new(0);
    let lost = common::stress::lost_writes(arena.addresses().start, 1024, &|range, to| {
        // Half of the time only the manager moves pages.
        if calls.fetch_add(1, Ordering::Relaxed) % 64 < 32 {
            heap.migrate(range, TierId(to)).unwrap();
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    });
    let report = manager.stop().unwrap();
    assert_eq!((lost, report.heap.lost), (0, 0), "{report:?}");
    assert!(report.heap.moved.pages > 1000 && report.sources[0].cost.steps > 20, "{report:?}");
    assert_eq!(report.failed, None);
}

/// The same with traps, on small and on huge pages.
#[test]
fn no_write_is_lost_while_pages_are_trapped() {
    for pages in [PageSize::Small, PageSize::Huge] {
        let Some(heap) = heap_with("no_write_is_lost_while_pages_are_trapped", 8 << 20, |options| {
            (options.batch, options.shadow_bytes) = (64, 2 << 20);
        }) else {
            return;
        };
        let mut arena = heap.arena(4 << 20, pages).unwrap();
        arena.fill(0);
        let mut options = options(&heap);
        (options.sources, options.window) = (Some(vec![SourceKind::Traps]), Duration::from_millis(1));
        options.policy.residence = Duration::from_millis(50);
        let manager = Manager::start(&heap, options).unwrap();
        let calls = AtomicU64::new(0);
        let lost = common::stress::lost_writes(arena.addresses().start, 1024, &|range, to| {
            if calls.fetch_add(1, Ordering::Relaxed) % 64 < 4 {
                heap.migrate(range, TierId(to)).unwrap();
            } else {
                std::thread::sleep(Duration::from_micros(500));
            }
        });
        let report = manager.stop().unwrap();
        assert_eq!((lost, report.heap.lost), (0, 0), "{report:?}");
        let source = &report.sources[0];
        assert!(report.heap.trapped > 0 && source.cost.faults > 0 && !source.cost.waited.is_zero(), "{report:?}");
        assert_eq!(report.failed, None);
    }
}

/// One page in ten is read a lot, the others now and then, and none is written: the hot ones are found and moved.
#[test]
fn huge_pages_that_are_only_read_are_found_and_promoted() {
    const HUGE: usize = 2 << 20;
    let test = "huge_pages_that_are_only_read_are_found_and_promoted";
    let Some(heap) = heap_with(test, 16 << 20, |_| ()) else { return };
    let mut arena = heap.arena(40 * HUGE, PageSize::Huge).unwrap();
    for (word, bytes) in arena.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (word + 1).to_ne_bytes();
    }
    let mut huge = 0;
    let count = |run: telpher_os::PageRun| huge += if run.is_huge() { run.pages() } else { 0 };
    Scan::open().unwrap().present(arena.addresses(), count).unwrap();
    if huge < 40 * 512 {
        skip::skip(test, "the system does not have enough huge pages now");
        return;
    }
    // With windows, which see nothing here, as where there is no DAMON. The first few samples may mislead the policy;
    // it must not rest for that.
    let mut options = options(&heap);
    options.sources = Some(vec![SourceKind::Windows, SourceKind::Traps]);
    options.policy.most_back = 1.0;
    let manager = Manager::start(&heap, options).unwrap();
    let hot = [3, 17, 18, 31_usize];
    let mut random = Random::new(7);
    let mut next = |below: usize| usize::try_from(random.below(below as u64)).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let fast = |at: usize| heap.residency(part(&arena, at as u64 * 512..(at as u64 + 1) * 512)).unwrap()[0];
    let mut read = 0_u64;
    loop {
        for _ in 0..50_000 {
            let at = if next(5000) == 0 { next(40) } else { hot[next(4)] };
            let word = (at * HUGE) / 8 + next(HUGE / 8);
            assert_eq!(arena[word * 8..word * 8 + 8], (word + 1).to_ne_bytes());
            read += 1;
        }
        // The pages reported as hot. A page that was hot once may still be on the fast tier, because there is room.
        let found: BTreeSet<usize> = (manager.hot().into_iter())
            .flat_map(|range| range.step_by(HUGE))
            .map(|address| usize::try_from(address - arena.addresses().start).unwrap() / HUGE)
            .collect();
        if found.iter().eq(&hot) && hot.iter().all(|&at| fast(at) == 512) {
            break;
        }
        assert!(Instant::now() < end, "{found:?} after {read} reads: {:?}", manager.report());
    }
    let moved = manager.stop().unwrap().heap.moved;
    assert!(moved.huge >= 4 * 512 && moved.huge == moved.pages, "{moved:?}");
}

#[test]
fn traps_are_a_default_source_and_end_in_a_pause() {
    let test = "traps_are_a_default_source_and_end_in_a_pause";
    let Some(heap) = heap(test, 8 << 20, |_| ()) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    arena.fill(1);
    let options = ManagerOptions { moves: false, ..options(&heap) };
    let manager = Manager::start(&heap, options).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while manager.report().unwrap().heap.trapped < 1000 {
        assert!(Instant::now() < end, "{:?}", manager.report());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(heap.residency(arena.addresses()).unwrap(), [0, 2048], "including pages that are out");
    manager.pause();
    let mut there = 0;
    Scan::open().unwrap().present(arena.addresses(), |run| there += run.pages()).unwrap();
    assert_eq!(there, 2048);
    let names: Vec<_> = manager.report().unwrap().sources.iter().map(|source| source.name).collect();
    assert_eq!(names, ["windows", "traps"]);
}

/// Tracking goes on while a program discards memory, forks and drops arenas.
#[test]
fn tracked_memory_may_be_discarded_forked_and_dropped() {
    let test = "tracked_memory_may_be_discarded_forked_and_dropped";
    if !common::stress::is_alone(test) {
        return;
    }
    let Some(heap) = heap(test, 8 << 20, |_| ()) else { return };
    let mut options = options(&heap);
    options.window = Duration::from_millis(1);
    let manager = Manager::start(&heap, options).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = common::stress::Over(&over);
        scope.spawn(|| {
            // Arenas are created and dropped.
            while !over.load(Ordering::Relaxed) {
                let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
                arena.fill(9);
                assert!(arena.iter().all(|&byte| byte == 9));
            }
        });
        let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
        let mut says = vec![0_u8; 2048];
        let (end, mut random, mut forks) = (Instant::now() + common::stress::soak(), Random::new(41), 0);
        while Instant::now() < end || forks < 5 {
            let page = usize::try_from(random.below(2048)).unwrap();
            match random.below(2048) {
                0 => {
                    let pages = page..(page + 40).min(2048);
                    arena.discard(pages.start * 4096..pages.end * 4096).unwrap();
                    says[pages].fill(0);
                }
                1 if forks < 100 => {
                    forks += 1;
                    fork_and_check(&arena, &says);
                }
                _ => {
                    assert_eq!(arena[page * 4096 + 5], says[page]);
                    says[page] = says[page].wrapping_add(1);
                    arena[page * 4096 + 5] = says[page];
                }
            }
        }
        assert!(says.iter().enumerate().all(|(page, &says)| arena[page * 4096 + 5] == says));
    });
    let report = manager.stop().unwrap();
    assert_eq!((report.failed.as_deref(), report.heap.lost), (None, 0), "{report:?}");
    assert!(report.heap.moved.pages > 0 && report.sources[0].failed.is_none(), "{report:?}");
}

/// A child has its parent's pages, also where writes are tracked; it has no manager.
#[allow(unsafe_code, reason = "forks")]
fn fork_and_check(arena: &Arena, says: &[u8]) {
    // SAFETY: the child reads its memory and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let same = says.iter().enumerate().all(|(page, &says)| arena[page * 4096 + 5] == says);
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(i32::from(!same)) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a local variable for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}
