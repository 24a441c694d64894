//! Tests of the page map: pages are adopted, dropped and moved.

use super::*;
use crate::in_flight::MovingRun;

const HOME: TierId = TierId(1);
const FAST: TierId = TierId(0);
const BASE: u64 = 0x10_0000;

fn page(number: u64) -> u64 {
    BASE + number * PAGE
}

fn pages(range: Range<u64>) -> Range<u64> {
    page(range.start)..page(range.end)
}

fn adopt(map: &mut PageMap, range: Range<u64>) {
    if !map.has_room() {
        assert!(map.grow(&mut Lists::with_room(map.lists() + 4)));
    }
    assert!(map.adopt(range.clone(), &mut PageMap::states(HOME, &range)));
}

/// Adopts pages 0 to 100, of which 10 to 20 are on the fast tier.
fn map() -> PageMap {
    let mut map = PageMap::new(HOME, 64);
    adopt(&mut map, pages(0..100));
    map.change(&pages(10..20), |_| FAST.0);
    map
}

/// Returns the numbers of the pages in a range that are on the fast tier.
fn fast(map: &PageMap, range: Range<u64>) -> Vec<u64> {
    range.filter(|&number| map.tier_of(page(number)) == Some(FAST)).collect()
}

fn moving(numbers: Range<u64>) -> MovingRun {
    let pages = usize::try_from(numbers.end - numbers.start).unwrap();
    let (live, from, to) = (page(numbers.start), page(numbers.start + 1000), page(numbers.start + 2000));
    MovingRun::planned(live, (from, to), pages, HOME)
}

#[test]
fn pages_are_where_they_were_put() {
    let map = map();
    assert_eq!(fast(&map, 0..200), (10..20).collect::<Vec<_>>());
    assert_eq!((map.live(FAST), map.live(HOME)), (10, 0));
    assert_eq!((map.tier_of(page(99)), map.tier_of(page(100)), map.tier_of(BASE - PAGE)), (Some(HOME), None, None));
}

#[test]
fn tiers_of_many_pages_are_read_at_once() {
    const NONE: u8 = 0xff;
    let mut map = map();
    adopt(&mut map, pages(100..120));
    map.change(&pages(30..31), |state| state | OUT);
    let mut tiers = [0; 130];
    map.tiers(page(0), [NONE; 2], &mut tiers);
    let expected = |number: usize| match number {
        10..20 => FAST.0,
        30 | 120.. => NONE,
        _ => HOME.0,
    };
    assert!((0..130).all(|number| tiers[number] == expected(number)), "{tiers:?}");
    let on = |numbers: Range<u64>, tier| map.are_on(&pages(numbers), tier);
    assert!(on(10..20, FAST) && on(20..30, HOME) && on(31..120, HOME));
    assert!(!on(9..20, FAST) && !on(10..21, FAST) && !on(30..31, HOME) && !on(119..121, HOME) && !on(200..201, HOME));
}

#[test]
fn a_discarded_page_is_on_no_tier_until_it_is_filled() {
    let mut map = map();
    map.removed(&pages(15..30));
    assert_eq!((fast(&map, 0..100), map.live(FAST)), ((10..15).collect(), 5));
    assert_eq!((map.tier_of(page(20)), map.tier_of(page(30))), (None, Some(HOME)));
    map.filled(&pages(20..21));
    assert_eq!((map.tier_of(page(20)), map.tier_of(page(21))), (Some(HOME), None));
}

#[test]
fn an_unmapped_range_is_forgotten_and_its_list_reused() {
    let mut map = map();
    map.unmapped(&pages(12..14));
    assert_eq!((fast(&map, 0..100).len(), map.live(FAST), map.spans.len()), (8, 8, 2));
    map.unmapped(&pages(0..12));
    map.unmapped(&pages(14..100));
    assert_eq!((map.live(FAST), map.spans.len()), (0, 0));
    assert!(map.has_room());
    let lists = map.lists();
    adopt(&mut map, pages(500..510));
    assert_eq!((map.lists(), map.tier_of(page(505)), map.tier_of(page(5))), (lists, Some(HOME), None));
}

#[test]
fn states_follow_a_mapping_that_moves() {
    let mut map = map();
    map.remapped(page(15), page(300), 10 * PAGE);
    assert_eq!(fast(&map, 0..400), (10..15).chain(300..305).collect::<Vec<_>>());
    assert_eq!((map.live(FAST), map.tier_of(page(20)), map.tier_of(page(309))), (10, None, Some(HOME)));
    assert_eq!((map.tier_of(page(310)), map.tier_of(page(25))), (None, Some(HOME)));
    map.remapped(page(300), page(15), 10 * PAGE);
    assert_eq!((fast(&map, 0..400), map.live(FAST)), ((10..20).collect(), 10));
    // The mapping moves over a range that was known.
    map.remapped(page(10), page(50), 20 * PAGE);
    assert_eq!((fast(&map, 0..400), map.live(FAST)), ((50..60).collect(), 10));
}

#[test]
fn pages_in_flight_follow_their_mapping_or_are_dropped() {
    let mut map = map();
    map.in_flight.add(&[moving(30..33), moving(33..34)]);
    map.went_out(0..1);
    assert!(map.is_out(page(30)) && !map.is_out(page(33)) && map.tier_of(page(31)).is_none());
    assert!(!map.may_be_filled(page(30)) && map.may_be_filled(page(33)) && !map.may_be_filled(page(100)));
    map.removed(&pages(30..31));
    map.remapped(page(31), page(200), 3 * PAGE);
    map.unmapped(&pages(201..202));
    let stages: Vec<_> = map.in_flight.iter().map(|part| (part.live, part.pages, part.stage)).collect();
    let dropped = Stage::Dropped { out: true };
    let expected =
        [(page(30), 1, dropped), (page(200), 1, Stage::Out), (page(201), 1, dropped), (page(202), 1, Stage::Planned)];
    assert_eq!(stages, expected);
    assert!(map.is_out(page(200)) && !map.is_out(page(30)) && !map.is_out(page(201)));
    // Their slots stay the same.
    assert_eq!((map.in_flight[1].from, map.in_flight[3].to), (page(1031), page(2033)));
    map.came_back(1, Stage::Back, FAST);
    assert_eq!((map.tier_of(page(200)), map.live(FAST)), (Some(FAST), 11));
    assert_eq!(map.stats.dropped, 2);
}

#[test]
fn the_equal_prefix_ends_at_the_first_different_state() {
    for (alike, others) in [(0, 3), (1, 0), (511, 1), (512, 0), (513, 700), (1500, 1), (1536, 0)] {
        let mut states = vec![7; alike];
        states.resize(alike + others, 8);
        assert_eq!((equal_prefix_len(7, &states), equal_prefix_len(9, &states)), (alike, 0));
    }
}

#[test]
fn pages_changed_after_planning_are_dropped() {
    let mut map = map();
    map.in_flight.add(&[moving(0..8), moving(8..12), moving(98..102)]);
    map.change(&pages(3..4), |state| state | GONE);
    map.drop_changed();
    let dropped = map.in_flight.iter().filter(|part| part.stage == Stage::Dropped { out: false });
    let dropped: Vec<_> = dropped.map(|part| part.live).collect();
    assert_eq!(dropped, [3, 10, 11, 100, 101].map(page));
    assert_eq!((map.in_flight.pages(&(0..map.in_flight.len())), map.stats.dropped), (16, 0));
}

#[test]
fn pages_that_come_back_to_a_window_are_noted() {
    let mut map = map();
    map.watch(pages(40..50));
    map.in_flight.add(&[moving(38..42), moving(49..52), moving(60..61)]);
    map.went_out(0..3);
    (0..3).for_each(|at| map.came_back(at, Stage::Back, HOME));
    assert_eq!(map.moved_in_window().each().collect::<Vec<_>>(), [0, 1, 9]);
}

#[test]
fn pages_out_of_a_dropped_span_stay_out() {
    // Unmaps every other page until there are as many spans as possible; the rest is one span.
    let most = MOST_SPANS as u64;
    let mut map = PageMap::new(HOME, 64);
    adopt(&mut map, pages(0..2 * most + 100));
    (0..most - 1).for_each(|at| map.unmapped(&pages(2 * at + 1..2 * at + 2)));
    assert_eq!(map.spans.len(), MOST_SPANS);
    let first = 2 * most;
    map.in_flight.add(&[moving(first..first + 8), moving(first + 8..first + 9)]);
    map.went_out(0..1);
    map.trapped(page(first + 20), page(5_000_000), 1, false);
    map.unmapped(&pages(first + 3..first + 4));
    assert_eq!((map.spans.len(), map.tier_of(page(first + 9))), (MOST_SPANS, None), "it is forgotten");
    let out = |map: &PageMap| (0..30).filter(|at| map.is_out(page(first + at))).collect::<Vec<_>>();
    assert_eq!(out(&map), [0, 1, 2, 4, 5, 6, 7, 20]);
    // They stay out when the mapping moves.
    map.remapped(page(first + 4), page(first + 1004), 4 * PAGE);
    assert!(map.is_out(page(first + 1004)) && !map.is_out(page(first + 4)));
    while let Some(at) = map.in_flight.iter().position(|part| part.stage == Stage::Out) {
        map.came_back(at, Stage::Back, HOME);
    }
    map.returned_from_trap(&(page(5_000_000)..page(5_000_001)), false);
    assert_eq!(out(&map), [0; 0]);
}
