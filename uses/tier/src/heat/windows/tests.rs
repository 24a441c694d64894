//! Windows over real memory, with a clock that the tests control: the tests write between two readings.

use super::*;
use crate::arena::Arena;
use crate::config::{HeapOptions, TierId, TierOptions};
use telpher_mem::PageSize;
use telpher_os::{Scan, Userfault, UserfaultFeatures};

const WINDOW: Duration = Duration::from_millis(10);

/// Creates a heap and its windows; none where the kernel lacks a feature, which tests/heat.rs reports.
fn windows() -> Option<(Heap, Windows)> {
    Scan::open().ok()?;
    Userfault::open(UserfaultFeatures::MOVE.and(UserfaultFeatures::TRACK_WRITES)).ok()?;
    let tier = |name: &str, bytes| TierOptions { name: name.to_string(), node: None, bytes };
    let heap = Heap::new(HeapOptions::new(vec![tier("fast", 16 << 20), tier("slow", 0)])).unwrap();
    let windows = Windows::new(&heap, WINDOW, 0.007).expect("the kernel can");
    Some((heap, windows))
}

/// Makes steps until the open window ends, with `before` called before each reading; returns the number of readings.
/// The first step opens a window.
fn window(windows: &mut Windows, heat: &mut HeatMap, now: &mut Duration, mut before: impl FnMut(usize)) -> usize {
    if windows.open.is_none() {
        *now += windows.step(*now, heat).unwrap();
    }
    let opened = windows.open.as_ref().map(|open| open.since);
    for look in 0.. {
        before(look);
        *now += windows.step(*now, heat).unwrap();
        if windows.open.as_ref().map(|open| open.since) != opened {
            return look + 1;
        }
    }
    unreachable!("a window ends")
}

fn write(arena: &mut Arena, pages: impl IntoIterator<Item = usize>) {
    pages.into_iter().for_each(|page| arena[page * 4096] = arena[page * 4096].wrapping_add(1));
}

/// Returns the heat and the number of samples of each page of an arena.
fn heats(heat: &HeatMap, arena: &Arena) -> Vec<(u8, u8)> {
    let pages = arena.addresses().step_by(4096);
    pages.map(|page| heat.page(page).map_or((0, 0), |page| (page.heat, page.seen))).collect()
}

#[test]
fn the_sooner_a_page_is_written_the_hotter_it_is() {
    let Some((heap, mut windows)) = windows() else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    write(&mut arena, 0..300);
    let (mut heat, mut now) = (HeatMap::new(), Duration::ZERO);
    heat.follow(&heap);
    let looks = window(&mut windows, &mut heat, &mut now, |look| match look {
        0 => write(&mut arena, 0..10),
        1 => write(&mut arena, 5..20),
        2 => write(&mut arena, [30, 299]),
        _ => write(&mut arena, [0, 40, 400]),
    });
    assert_eq!(looks, 4);
    let heats = heats(&heat, &arena);
    let of = |pages: Range<usize>| heats[pages].iter().map(|&(heat, _)| heat).collect::<Vec<_>>();
    let time = |part| level(WINDOW / part);
    assert_eq!((of(0..10), of(10..20)), (vec![time(40); 10], vec![time(10); 10]));
    assert_eq!([of(30..31), of(299..300), of(40..41)].concat(), [time(3), time(3), time(1)]);
    assert!(heats[20..30].iter().all(|&page| page == (0, 1)), "sampled, and cold");
    // Page 400 came while the window was open and is not known.
    assert!(heats[300..].iter().all(|&page| page == (0, 0)), "pages that are not present are not sampled");
}

#[test]
fn windows_cover_all_memory_and_release_their_pages() {
    let Some((heap, mut windows)) = windows() else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    // The second block is empty.
    write(&mut arena, (0..512).chain(1024..2048));
    let (mut heat, mut now) = (HeatMap::new(), Duration::ZERO);
    heat.follow(&heap);
    for _ in 0..6 {
        window(&mut windows, &mut heat, &mut now, |_| {
            write(&mut arena, (0..2048).step_by(8).filter(|page| page / 512 != 1))
        });
    }
    let heats = heats(&heat, &arena);
    assert!(heats.iter().enumerate().all(|(page, &(heat, seen))| {
        let there = page / 512 != 1;
        (heat, seen) == (if there && page % 8 == 0 { level(WINDOW / 40) } else { 0 }, if there { 2 } else { 0 })
    }));
    // All pages of the sampled blocks are released: the kernel reports them as written, although no window has seen
    // that.
    windows.rest();
    let scan = Scan::open().unwrap();
    let mut untracked = 0;
    scan.written(arena.addresses(), |run| untracked += run.pages()).unwrap();
    assert_eq!(untracked, 3 * 512);
}

#[test]
fn a_page_that_moved_is_not_counted_as_written() {
    let Some((heap, mut windows)) = windows() else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    write(&mut arena, 0..200);
    let start = arena.addresses().start;
    let (mut heat, mut now) = (HeatMap::new(), Duration::ZERO);
    heat.follow(&heap);
    window(&mut windows, &mut heat, &mut now, |look| {
        if look == 1 {
            let moved = heap.migrate(start..start + 100 * PAGE, TierId(0)).unwrap();
            assert_eq!(moved.pages, 100);
            write(&mut arena, 100..110);
        }
    });
    let heats = heats(&heat, &arena);
    assert!(heats[..100].iter().all(|&page| page == (0, 0)), "nothing is known of them: {:?}", &heats[..4]);
    assert!(heats[100..110].iter().all(|&page| page == (level(WINDOW / 10), 1)), "{:?}", &heats[100..110]);
    // The next window samples them.
    window(&mut windows, &mut heat, &mut now, |look| {
        if look == 0 {
            write(&mut arena, 0..50)
        }
    });
    let heats = self::heats(&heat, &arena);
    assert!(
        heats[..50].iter().all(|&page| page == (level(WINDOW / 40), 1))
            && heats[50..100].iter().all(|&page| page == (0, 1))
    );
}

#[test]
fn huge_pages_are_not_split_by_a_window() {
    let Some((heap, mut windows)) = windows() else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Huge).unwrap();
    let scan = Scan::open().unwrap();
    let huge = |arena: &Arena| {
        let mut huge = 0;
        scan.present(arena.addresses(), |run| huge += if run.is_huge() { run.pages() } else { 0 }).unwrap();
        huge
    };
    let before = huge(&arena);
    let (mut heat, mut now) = (HeatMap::new(), Duration::ZERO);
    heat.follow(&heap);
    for _ in 0..8 {
        now += windows.step(now, &mut heat).unwrap();
        write(&mut arena, [0, 100]);
    }
    assert_eq!(huge(&arena), before);
    if before == 512 {
        assert!(windows.open.is_none() && heats(&heat, &arena).iter().all(|&page| page == (0, 0)));
    }
}

#[test]
fn a_late_reading_makes_no_page_hotter() {
    let Some((heap, mut windows)) = windows() else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    write(&mut arena, 0..10);
    let (mut heat, mut now) = (HeatMap::new(), Duration::ZERO);
    heat.follow(&heap);
    now += windows.step(now, &mut heat).unwrap();
    write(&mut arena, 0..5);
    // The thread was delayed for this long.
    now += Duration::from_millis(33);
    windows.step(now, &mut heat).unwrap();
    let expected = level(Duration::from_millis(33) + WINDOW / 40);
    let heats = heats(&heat, &arena);
    assert!(
        heats[..5].iter().all(|&page| page == (expected, 1)) && heats[5..10].iter().all(|&page| page == (0, 1)),
        "{heats:?}"
    );
}

#[test]
fn the_search_for_pages_to_track_is_bounded() {
    let Some((heap, mut windows)) = windows() else { return };
    // Twice as many blocks as are skipped in one step, all empty.
    let _arena = heap.arena((2 * PASSED) << 21, PageSize::Small).unwrap();
    let (mut heat, mut now) = (HeatMap::new(), Duration::ZERO);
    heat.follow(&heap);
    let mut spent = Duration::ZERO;
    for _ in 0..20 {
        let start = thread_cpu_time();
        now += windows.step(now, &mut heat).unwrap();
        spent += thread_cpu_time().saturating_sub(start);
        assert!(windows.open.is_none());
    }
    // Reading the clock here adds to the cost.
    assert!(spent * windows.of_core < now * 3 / 2, "{spent:?} of {now:?}");
}
