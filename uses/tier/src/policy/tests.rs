//! Decisions over synthetic memory, with a clock that the tests control.

use super::*;
use crate::heat::PageHeat;
use telpher_os::Random;

const FAST: u8 = 0;
const SLOW: u8 = 1;
const TICK: Duration = Duration::from_millis(250);
const BASE: u64 = 0x7000_0000_0000;

/// Synthetic memory, and a policy that decides over it.
struct World {
    pages: Vec<PageHeat>,
    policy: Policy,
    now: Duration,
    /// The moves made so far.
    moved: Vec<Move>,
    /// The number of pages moved so far.
    total: u64,
}

/// Creates this many pages, all slow, and room for `room` fast pages.
fn world(pages: usize, room: u64, change: impl FnOnce(&mut PolicyOptions)) -> World {
    let capacity = vec![Some(room * PAGE), None];
    let tier = |bytes| crate::TierOptions { name: String::new(), node: None, bytes };
    let mut options = PolicyOptions { capacity, ..PolicyOptions::new(&HeapOptions::new(vec![tier(0), tier(0)])) };
    change(&mut options);
    let mut page = PageHeat::on(SLOW);
    page.seen = 8;
    World { pages: vec![page; pages], policy: Policy::new(options), now: TICK, moved: Vec::new(), total: 0 }
}

impl World {
    /// Decides, and makes the moves.
    fn tick(&mut self) -> u64 {
        self.now += TICK;
        let moves = self.policy.decide(self.now, &[PageHeats { start: BASE, pages: &self.pages }]);
        let mut pages = 0;
        for what in &moves {
            for page in self.range(what) {
                assert_eq!(self.pages[page].tier, what.from.0, "{what:?}");
                self.pages[page].tier = what.to.0;
                pages += 1;
            }
        }
        self.moved.extend(moves);
        self.total += pages;
        pages
    }

    fn ticks(&mut self, ticks: usize) -> u64 {
        (0..ticks).map(|_| self.tick()).sum()
    }

    fn range(&self, what: &Move) -> Range<usize> {
        let page = |address: u64| usize::try_from((address - BASE) / PAGE).unwrap();
        page(what.range.start)..page(what.range.end)
    }

    fn heat(&mut self, pages: Range<usize>, heat: u8) {
        self.pages[pages].iter_mut().for_each(|page| page.heat = heat);
    }

    fn fast(&self) -> usize {
        self.pages.iter().filter(|page| page.tier == FAST).count()
    }

    fn are_fast(&self, pages: Range<usize>) -> bool {
        self.pages[pages].iter().all(|page| page.tier == FAST)
    }
}

#[test]
fn hot_pages_go_to_the_fast_tier_and_stay() {
    let mut world = world(10_000, 2000, |_| ());
    world.heat(3000..4000, 200);
    assert_eq!(world.ticks(20), 1000);
    assert!(world.are_fast(3000..4000) && world.fast() == 1000);
    assert!(world.moved.iter().all(|what| what.pages() >= 32), "together: {:?}", world.moved);
    assert_eq!((world.ticks(100), world.policy.opinion().rests), (0, 0));
}

#[test]
fn cold_pages_leave_for_hot_ones_and_for_no_others() {
    let mut world = world(10_000, 1000, |_| ());
    world.heat(0..950, 200);
    world.ticks(20);
    // They are cold now, but no other page needs their room.
    world.heat(0..950, 0);
    assert_eq!(world.ticks(20), 0);
    world.heat(5000..5900, 200);
    world.ticks(40);
    assert!(world.are_fast(5000..5900) && world.fast() <= 980, "{}", world.fast());
}

#[test]
fn with_too_many_hot_pages_the_hottest_are_fast() {
    let mut world = world(10_000, 1000, |_| ());
    world.heat(1000..4000, 130);
    world.heat(6000..6800, 220);
    world.ticks(40);
    assert!(world.are_fast(6000..6800));
    let total = world.total;
    assert!(world.fast() <= 980);
    // All pages are equally hot, so those on the fast tier stay.
    world.heat(0..10_000, 220);
    assert_eq!((world.ticks(100), world.total), (0, total));
}

#[test]
fn warm_pages_stay_where_they_are() {
    let mut world = world(4000, 1000, |_| ());
    world.heat(0..2000, 185);
    world.ticks(20);
    assert!(world.fast() >= 950);
    let (total, mut random) = (world.total, Random::new(1));
    for _ in 0..400 {
        // Twice as many pages are hot as there is room for, and the heat of each varies by less than the margin.
        for page in 0..2000 {
            let heat = u8::try_from(165 + random.below(40)).unwrap();
            world.heat(page..page + 1, heat);
        }
        world.tick();
    }
    // A few may still fill the remaining room.
    assert!(world.total <= total + 30, "{} pages", world.total - total);
}

#[test]
fn a_tier_that_is_too_full_is_emptied_of_the_coldest() {
    let mut world = world(4000, 1000, |_| ());
    world.pages[..1500].iter_mut().for_each(|page| page.tier = FAST);
    world.heat(0..1500, 100);
    world.heat(200..600, 0);
    world.heat(700..800, 10);
    world.heat(800..1500, 150);
    world.ticks(20);
    // Pages that are not cold stay, although the tier is too full.
    assert!(world.pages[200..600].iter().all(|page| page.tier == SLOW));
    assert!(world.pages[700..800].iter().all(|page| page.tier == SLOW));
    assert_eq!(world.fast(), 1000);
}

#[test]
fn moves_never_exceed_the_rate() {
    let (rate, burst) = (4 << 20, 1 << 20);
    let mut world = world(100_000, 50_000, |options| (options.bytes_per_second, options.burst) = (rate, burst));
    let mut random = Random::new(7);
    let mut history = vec![(world.now, 0)];
    for _ in 0..400 {
        let at = usize::try_from(random.below(99_000)).unwrap();
        let heat = u8::try_from(random.below(256)).unwrap();
        world.heat(at..at + 1000, heat);
        world.tick();
        history.push((world.now, world.total * PAGE));
    }
    for (at, &(from, before)) in history.iter().enumerate() {
        for &(to, after) in &history[at..] {
            let most = burst + rate * u64::try_from((to - from).as_millis()).unwrap() / 1000;
            assert!(after - before <= most, "{} bytes in {:?}", after - before, to - from);
        }
    }
    assert!(world.total > 10_000, "pages do move: {}", world.total);
}

#[test]
fn pinned_pages_go_to_their_tier_and_stay() {
    let mut world = world(10_000, 5000, |_| ());
    let pin = |world: &mut World, pages: Range<usize>, tier| {
        world.pages[pages].iter_mut().for_each(|page| page.pin = tier);
    };
    pin(&mut world, 100..300, FAST);
    pin(&mut world, 300..900, SLOW);
    world.heat(0..1000, 250);
    world.heat(100..300, 0);
    let mut random = Random::new(3);
    for _ in 0..200 {
        world.tick();
        let at = usize::try_from(random.below(9900)).unwrap();
        let heat = u8::try_from(random.below(256)).unwrap();
        world.heat(at..at + 100, heat);
    }
    assert!(world.are_fast(100..300) && world.pages[300..900].iter().all(|page| page.tier == SLOW));
    let touched = |what: &&Move| world.range(what).any(|page| (100..900).contains(&page));
    assert!(world.moved.iter().filter(touched).all(|what| world.range(what).all(|page| page < 300)));
    assert_eq!(world.moved.iter().filter(touched).map(Move::pages).sum::<u64>(), 200);
}

#[test]
fn a_page_stays_for_a_while_where_it_was_moved_to() {
    let mut world = world(2000, 1000, |_| ());
    world.heat(0..900, 200);
    let moved = world.tick();
    assert!(moved > 800);
    let at = world.now;
    world.heat(0..900, 0);
    world.heat(1000..1900, 200);
    while world.are_fast(0..900) {
        world.tick();
    }
    assert!(world.now >= at + world.policy.options().residence && world.now <= at + Duration::from_secs(3));
}

#[test]
fn pages_that_move_back_too_soon_cause_ever_longer_rests() {
    let mut world = world(8000, 2000, |_| ());
    let mut rests = Vec::new();
    for turn in 0..400 {
        // Two sets take turns of three seconds each: too short for the moves to pay off.
        let hot = if turn / 12 % 2 == 0 { 0..1900 } else { 4000..5900 };
        world.heat(0..8000, 0);
        world.heat(hot, 220);
        world.tick();
        if let Some(until) = world.policy.opinion().resting_until.filter(|until| rests.last() != Some(until)) {
            rests.push(until);
        }
    }
    let opinion = world.policy.opinion();
    assert!(opinion.rests >= 3 && opinion.came_back > 1000, "{opinion:?}");
    // Without rests, all pages would go there and back 33 times.
    assert!(world.total < 33 * 3800 / 2, "{} pages in {:?}", world.total, world.now);
    // After a quiet time it moves pages again.
    world.heat(0..8000, 0);
    world.ticks(600);
    world.heat(6000..7500, 220);
    world.ticks(20);
    assert!(world.are_fast(6000..7500), "{:?}", world.policy.opinion());
}

/// Like a program that reads or writes all of its memory from end to end, repeatedly, where each sample of a page finds
/// it used or not.
#[test]
fn a_scan_over_all_memory_moves_little() {
    let (pages, block) = (64 * 512, 512);
    let mut world = world(pages, 8 * 512, |_| ());
    world.pages.iter_mut().for_each(|page| page.seen = 0);
    let (mut at, mut passes) = (0, 0);
    // One window a tick; the scan advances by one block in five ticks, so that all windows but one find nothing.
    for tick in 0..10_000 {
        let window = tick % (pages / block) * block;
        if tick % 5 == 0 {
            at = (at + block) % pages;
            passes += usize::from(at == 0);
        }
        let level = if window == at { 255 } else { 0 };
        world.pages[window..window + block].iter_mut().for_each(|page| page.observe(level));
        world.tick();
    }
    assert!(passes > 20);
    assert!(world.total < (pages / 4) as u64, "{} of {pages} pages in {passes} passes", world.total);
}

#[test]
fn moves_end_whatever_pages_are_hot() {
    let mut random = Random::new(11);
    for case in 0..60 {
        let room = 100 + random.below(3000);
        let mut world = world(6000, room, |_| ());
        for _ in 0..random.below(40) {
            let at = usize::try_from(random.below(5990)).unwrap();
            let len = usize::try_from(1 + random.below(300)).unwrap();
            let heat = u8::try_from(random.below(256)).unwrap();
            world.heat(at..(at + len).min(6000), heat);
        }
        world.ticks(100);
        let total = world.total;
        assert_eq!((world.ticks(200), world.total, world.policy.opinion().rests), (0, total, 0), "case {case}");
        assert!(world.fast() as u64 <= room, "case {case}");
        // No slow page is hotter than a fast one by more than the margin. The fast tier may be empty: a run that is
        // longer than the tier does not move.
        let fast = world.pages.iter().filter(|page| page.tier == FAST);
        let coldest = fast.map(|page| page.heat).min().unwrap_or(u8::MAX);
        let margin = world.policy.options().margin;
        let hot = world.policy.opinion().hot[0];
        let missed = world.pages.iter().filter(|page| page.tier == SLOW && page.heat >= hot);
        let full = world.fast() as u64 + 513 > room * 98 / 100;
        assert!(
            missed.count() == 0 || full && coldest >= hot.saturating_sub(margin),
            "case {case}: {:?}",
            world.policy.opinion()
        );
    }
}

#[test]
fn a_huge_page_moves_whole_or_not_at_all() {
    let mut world = world(4096, 2048, |_| ());
    world.pages[512..2048].iter_mut().for_each(|page| page.huge = true);
    // One is hot as a whole, one is hot in a small part, and one contains a page that is not huge.
    world.heat(512..1024, 200);
    world.heat(1024..1050, 200);
    world.heat(1536..2048, 200);
    world.pages[1600].huge = false;
    world.ticks(20);
    let moved: Vec<_> = world.moved.iter().map(|what| world.range(what)).collect();
    assert!(moved.contains(&(512..1024)) && world.are_fast(512..1024), "{moved:?}");
    assert!(
        !moved.iter().any(|pages| (1024..1600).contains(&pages.start) || (1601..2048).contains(&pages.start)),
        "{moved:?}"
    );
}

#[test]
fn a_refused_move_is_not_retried_at_once() {
    let mut world = world(1000, 500, |_| ());
    world.heat(0..100, 200);
    let mut asked = 0;
    for _ in 0..80 {
        world.now += TICK;
        let moves = world.policy.decide(world.now, &[PageHeats { start: BASE, pages: &world.pages }]);
        asked += moves.len();
        moves.iter().for_each(|what| world.policy.done(world.now, what, 0));
    }
    assert_eq!(asked, 1, "in 20 seconds");
}

#[test]
fn three_tiers_are_filled_from_the_fastest_on() {
    let mut world = world(6000, 1000, |options| options.capacity = vec![Some(1000 * PAGE), Some(2000 * PAGE), None]);
    world.pages.iter_mut().for_each(|page| page.tier = 2);
    world.heat(0..900, 250);
    world.heat(3000..4500, 150);
    world.ticks(40);
    assert!(world.are_fast(0..900));
    assert!(world.pages[3000..4500].iter().filter(|page| page.tier <= 1).count() >= 1450);
    // The pages on the fastest tier are cold now and others are hot. The cold ones go one tier down, or to the last
    // tier if that one is full.
    world.heat(0..900, 0);
    world.heat(5000..5900, 250);
    world.ticks(60);
    assert!(world.are_fast(5000..5900) && world.pages[0..900].iter().all(|page| page.tier > 0));
}
