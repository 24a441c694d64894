//! The real DAMON of the kernel. The guests of `ci/guests.sh` have it.

mod common;

use common::{PAGE, heap_with, skip};
use std::hint::black_box;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telpher_mem::PageSize;
use telpher_tier::{Arena, Heap, Manager, ManagerOptions, SourceKind, TierError};

const NUMBER: &str = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
/// Set in a child that takes DAMON and is then killed.
const TAKES: &str = "TELPHER_TEST_TAKES_DAMON";

/// Bytes of memory, and the pages of it that are hot.
const BYTES: usize = 32 << 20;
const HOT: std::ops::Range<u64> = 2048..4096;

fn number() -> String {
    std::fs::read_to_string(NUMBER).unwrap().trim().to_string()
}

fn start(heap: &Heap) -> Result<Manager, TierError> {
    let mut options = ManagerOptions::new(heap);
    (options.sources, options.moves) = (Some(vec![SourceKind::Damon]), false);
    // On the guests' emulated processors everything costs tens of times as much.
    options.share = 1.0;
    Manager::start(heap, options)
}

/// Creates a heap, and DAMON on it; none where DAMON is not available.
fn damon(test: &str) -> Option<(Heap, Manager)> {
    let heap = heap_with(test, 32 << 20, |_| ())?;
    match start(&heap) {
        Ok(manager) => Some((heap, manager)),
        Err(TierError::Damon(why)) => {
            skip::skip(test, &format!("DAMON is not available: {why}"));
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// Returns how many of the hot pages are reported as hot, and how many others.
fn called_hot(manager: &Manager, arena: &Arena) -> (u64, u64) {
    let first = arena.addresses().start;
    let pages = manager.hot().into_iter().flat_map(|range| range.step_by(4096)).map(|page| (page - first) / PAGE);
    let (right, wrong): (Vec<u64>, Vec<u64>) = pages.partition(|page| HOT.contains(page));
    (right.len() as u64, wrong.len() as u64)
}

/// Removes cached translations. A page's accessed bit is set when a processor looks the page up. An emulated processor
/// keeps what it has looked up, and a real one does for so few pages, until more pages are unmapped than the kernel
/// flushes one by one (33: Linux, arch/x86/mm/tlb.c, `tlb_single_page_flush_ceiling`).
fn forget_translations() {
    let mut pages = telpher_mem::Region::new(256 << 10, PageSize::Small).unwrap();
    pages.fill(1);
}

fn reads_are_seen(test: &str, pages: PageSize) {
    let Some((heap, manager)) = damon(test) else { return };
    let mut arena = heap.arena(BYTES, pages).unwrap();
    arena.fill(7);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = common::stress::Over(&over);
        scope.spawn(|| {
            // Relaxed: it publishes no other data.
            while !over.load(Ordering::Relaxed) {
                let hot = usize::try_from(HOT.start * PAGE).unwrap()..usize::try_from(HOT.end * PAGE).unwrap();
                let sum: u64 = arena[hot].iter().step_by(512).map(|&byte| u64::from(black_box(byte))).sum();
                assert_eq!(sum, 7 * 8 * (HOT.end - HOT.start));
                forget_translations();
            }
        });
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let (right, wrong) = called_hot(&manager, &arena);
            // At least nine in ten hot pages are found, and nine in ten reported pages are hot.
            if right * 10 >= (HOT.end - HOT.start) * 9 && wrong * 9 <= right {
                break;
            }
            let report = manager.report().unwrap();
            assert!(Instant::now() < end, "{right} and {wrong} pages: {report:?}");
            assert_eq!((&report.failed, &report.sources[0].failed), (&None, &None));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let report = manager.stop().unwrap();
    let source = &report.sources[0];
    assert_eq!(source.name, "damon");
    assert!(source.cost.cpu > Duration::ZERO && source.cost.cpu < report.time, "{source:?}");
    assert_eq!(number(), "0", "the interface is released");
}

#[test]
fn small_pages_that_are_only_read_are_found_hot() {
    reads_are_seen("small_pages_that_are_only_read_are_found_hot", PageSize::Small);
}

#[test]
fn huge_pages_that_are_only_read_are_found_hot() {
    reads_are_seen("huge_pages_that_are_only_read_are_found_hot", PageSize::Huge);
}

#[test]
fn memory_added_later_is_monitored_too() {
    let Some((heap, manager)) = damon("memory_added_later_is_monitored_too") else { return };
    let mut arenas: Vec<Arena> = Vec::new();
    let end = Instant::now() + Duration::from_secs(60);
    for _ in 0..3 {
        let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
        arena.fill(1);
        let range = arena.addresses();
        arenas.push(arena);
        // Hot as a whole, beside earlier arenas that are cold.
        let is_hot = |manager: &Manager| {
            let inside = |hot: &std::ops::Range<u64>| hot.end.min(range.end).saturating_sub(hot.start.max(range.start));
            manager.hot().iter().map(inside).sum::<u64>() >= 3 << 20
        };
        while arenas.len() > 1 && !is_hot(&manager) {
            let last = arenas.last().expect("pushed above");
            let sum: u64 = last.iter().step_by(512).map(|&byte| u64::from(black_box(byte))).sum();
            assert_eq!(sum, 8192);
            forget_translations();
            let report = manager.report().unwrap();
            assert_eq!(report.sources[0].failed, None);
            assert!(Instant::now() < end, "{report:?}");
        }
    }
}

#[test]
fn damon_of_a_killed_process_is_taken_over_and_that_of_a_live_one_is_not() {
    let test = "damon_of_a_killed_process_is_taken_over_and_that_of_a_live_one_is_not";
    if std::env::var_os(TAKES).is_some() {
        let (heap, manager) = damon(test).expect("DAMON is available, because the parent used it");
        let mut arena = heap.arena(4 << 20, PageSize::Small).unwrap();
        arena.fill(1);
        while manager.report().unwrap().sources[0].cost.steps < 3 {
            std::thread::yield_now();
        }
        println!("\ntaken");
        loop {
            std::thread::park();
        }
    }
    let Some((heap, manager)) = damon(test) else { return };
    let refused = start(&heap).unwrap_err();
    assert!(std::error::Error::source(&refused).is_some_and(|why| why.to_string().contains("this process")));
    drop(manager);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--nocapture"])
        .env(TAKES, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().expect("piped above"));
    assert!(stdout.lines().map_while(Result::ok).any(|line| line == "taken"));
    let refused = start(&heap).unwrap_err();
    let pid = child.id().to_string();
    assert!(std::error::Error::source(&refused).is_some_and(|why| why.to_string().contains(&pid)), "{refused:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(number(), "1", "the killed process left it behind");
    // The kernel ends the monitoring of the process within a sample.
    let end = Instant::now() + Duration::from_secs(20);
    let manager = loop {
        match start(&heap) {
            Ok(manager) => break manager,
            Err(error) => assert!(Instant::now() < end, "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    drop(manager);
    assert_eq!(number(), "0");
}
