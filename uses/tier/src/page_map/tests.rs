//! Tests of the page map: pages are adopted, dropped and moved.

use super::*;
use crate::flight::Aloft;

const HOME: TierId = TierId(1);
const FAST: TierId = TierId(0);
const BASE: u64 = 0x10_0000;

fn page(number: u64) -> u64 {
    BASE + number * PAGE
}

fn pages(range: Range<u64>) -> Range<u64> {
    page(range.start)..page(range.end)
}

fn adopt(book: &mut Book, range: Range<u64>) {
    if !book.has_room() {
        assert!(book.grow(&mut Lists::with_room(book.lists() + 4)));
    }
    assert!(book.adopt(range.clone(), &mut Book::states(HOME, &range)));
}

/// Adopts pages 0 to 100, of which 10 to 20 are on the fast tier.
fn book() -> Book {
    let mut book = Book::new(HOME, 64);
    adopt(&mut book, pages(0..100));
    book.change(&pages(10..20), |_| FAST.0);
    book
}

/// Returns the numbers of the pages in a range that are on the fast tier.
fn fast(book: &Book, range: Range<u64>) -> Vec<u64> {
    range.filter(|&number| book.tier_of(page(number)) == Some(FAST)).collect()
}

fn aloft(numbers: Range<u64>) -> Aloft {
    let pages = usize::try_from(numbers.end - numbers.start).unwrap();
    let (live, from, to) = (page(numbers.start), page(numbers.start + 1000), page(numbers.start + 2000));
    Aloft::planned(live, (from, to), pages, HOME)
}

#[test]
fn pages_are_where_they_were_put() {
    let book = book();
    assert_eq!(fast(&book, 0..200), (10..20).collect::<Vec<_>>());
    assert_eq!((book.live(FAST), book.live(HOME)), (10, 0));
    assert_eq!((book.tier_of(page(99)), book.tier_of(page(100)), book.tier_of(BASE - PAGE)), (Some(HOME), None, None));
}

#[test]
fn many_pages_are_asked_about_at_once() {
    const NONE: u8 = 0xff;
    let mut book = book();
    adopt(&mut book, pages(100..120));
    book.change(&pages(30..31), |state| state | OUT);
    let mut tiers = [0; 130];
    book.tiers(page(0), [NONE; 2], &mut tiers);
    let expected = |number: usize| match number {
        10..20 => FAST.0,
        30 | 120.. => NONE,
        _ => HOME.0,
    };
    assert!((0..130).all(|number| tiers[number] == expected(number)), "{tiers:?}");
    let on = |numbers: Range<u64>, tier| book.are_on(&pages(numbers), tier);
    assert!(on(10..20, FAST) && on(20..30, HOME) && on(31..120, HOME));
    assert!(!on(9..20, FAST) && !on(10..21, FAST) && !on(30..31, HOME) && !on(119..121, HOME) && !on(200..201, HOME));
}

#[test]
fn what_is_discarded_is_nobodys_until_it_is_filled() {
    let mut book = book();
    book.removed(&pages(15..30));
    assert_eq!((fast(&book, 0..100), book.live(FAST)), ((10..15).collect(), 5));
    assert_eq!((book.tier_of(page(20)), book.tier_of(page(30))), (None, Some(HOME)));
    book.filled(&pages(20..21));
    assert_eq!((book.tier_of(page(20)), book.tier_of(page(21))), (Some(HOME), None));
}

#[test]
fn what_is_unmapped_is_forgotten_and_its_list_used_again() {
    let mut book = book();
    book.unmapped(&pages(12..14));
    assert_eq!((fast(&book, 0..100).len(), book.live(FAST), book.spans.len()), (8, 8, 2));
    book.unmapped(&pages(0..12));
    book.unmapped(&pages(14..100));
    assert_eq!((book.live(FAST), book.spans.len()), (0, 0));
    assert!(book.has_room());
    let lists = book.lists();
    adopt(&mut book, pages(500..510));
    assert_eq!((book.lists(), book.tier_of(page(505)), book.tier_of(page(5))), (lists, Some(HOME), None));
}

#[test]
fn a_mapping_moves_with_what_is_known_of_it() {
    let mut book = book();
    book.remapped(page(15), page(300), 10 * PAGE);
    assert_eq!(fast(&book, 0..400), (10..15).chain(300..305).collect::<Vec<_>>());
    assert_eq!((book.live(FAST), book.tier_of(page(20)), book.tier_of(page(309))), (10, None, Some(HOME)));
    assert_eq!((book.tier_of(page(310)), book.tier_of(page(25))), (None, Some(HOME)));
    book.remapped(page(300), page(15), 10 * PAGE);
    assert_eq!((fast(&book, 0..400), book.live(FAST)), ((10..20).collect(), 10));
    // The mapping moves over a range that was known.
    book.remapped(page(10), page(50), 20 * PAGE);
    assert_eq!((fast(&book, 0..400), book.live(FAST)), ((50..60).collect(), 10));
}

#[test]
fn pages_on_their_way_go_with_their_mapping_or_are_dropped() {
    let mut book = book();
    book.flight.add(&[aloft(30..33), aloft(33..34)]);
    book.went_out(0..1);
    assert!(book.is_out(page(30)) && !book.is_out(page(33)) && book.tier_of(page(31)).is_none());
    assert!(!book.may_be_filled(page(30)) && book.may_be_filled(page(33)) && !book.may_be_filled(page(100)));
    book.removed(&pages(30..31));
    book.remapped(page(31), page(200), 3 * PAGE);
    book.unmapped(&pages(201..202));
    let stages: Vec<_> = book.flight.iter().map(|part| (part.live, part.pages, part.stage)).collect();
    let dropped = Stage::Dropped { out: true };
    let expected =
        [(page(30), 1, dropped), (page(200), 1, Stage::Out), (page(201), 1, dropped), (page(202), 1, Stage::Planned)];
    assert_eq!(stages, expected);
    assert!(book.is_out(page(200)) && !book.is_out(page(30)) && !book.is_out(page(201)));
    // Their slots stay the same.
    assert_eq!((book.flight[1].from, book.flight[3].to), (page(1031), page(2033)));
    book.came_back(1, Stage::Back, FAST);
    assert_eq!((book.tier_of(page(200)), book.live(FAST)), (Some(FAST), 11));
    assert_eq!(book.stats.dropped, 2);
}

#[test]
fn states_are_alike_up_to_the_first_that_is_not() {
    for (alike, others) in [(0, 3), (1, 0), (511, 1), (512, 0), (513, 700), (1500, 1), (1536, 0)] {
        let mut states = vec![7; alike];
        states.resize(alike + others, 8);
        assert_eq!((alike_with(7, &states), alike_with(9, &states)), (alike, 0));
    }
}

#[test]
fn what_has_changed_since_it_was_planned_stays() {
    let mut book = book();
    book.flight.add(&[aloft(0..8), aloft(8..12), aloft(98..102)]);
    book.change(&pages(3..4), |state| state | GONE);
    book.drop_changed();
    let dropped = book.flight.iter().filter(|part| part.stage == Stage::Dropped { out: false });
    let dropped: Vec<_> = dropped.map(|part| part.live).collect();
    assert_eq!(dropped, [3, 10, 11, 100, 101].map(page));
    assert_eq!((book.flight.pages(&(0..book.flight.len())), book.stats.dropped), (16, 0));
}

#[test]
fn what_comes_back_to_a_window_is_noted() {
    let mut book = book();
    book.watch(pages(40..50));
    book.flight.add(&[aloft(38..42), aloft(49..52), aloft(60..61)]);
    book.went_out(0..3);
    (0..3).for_each(|at| book.came_back(at, Stage::Back, HOME));
    assert_eq!(book.moved_in_window().each().collect::<Vec<_>>(), [0, 1, 9]);
}

#[test]
fn what_is_out_of_a_piece_that_there_is_no_room_for_is_out_still() {
    // Unmaps every other page until there are as many spans as possible; the rest is one span.
    let most = MOST_SPANS as u64;
    let mut book = Book::new(HOME, 64);
    adopt(&mut book, pages(0..2 * most + 100));
    (0..most - 1).for_each(|at| book.unmapped(&pages(2 * at + 1..2 * at + 2)));
    assert_eq!(book.spans.len(), MOST_SPANS);
    let first = 2 * most;
    book.flight.add(&[aloft(first..first + 8), aloft(first + 8..first + 9)]);
    book.went_out(0..1);
    book.trapped(page(first + 20), page(5_000_000), 1, false);
    book.unmapped(&pages(first + 3..first + 4));
    assert_eq!((book.spans.len(), book.tier_of(page(first + 9))), (MOST_SPANS, None), "it is forgotten");
    let out = |book: &Book| (0..30).filter(|at| book.is_out(page(first + at))).collect::<Vec<_>>();
    assert_eq!(out(&book), [0, 1, 2, 4, 5, 6, 7, 20]);
    // They stay out when the mapping moves.
    book.remapped(page(first + 4), page(first + 1004), 4 * PAGE);
    assert!(book.is_out(page(first + 1004)) && !book.is_out(page(first + 4)));
    while let Some(at) = book.flight.iter().position(|part| part.stage == Stage::Out) {
        book.came_back(at, Stage::Back, HOME);
    }
    book.sprung(&(page(5_000_000)..page(5_000_001)), false);
    assert_eq!(out(&book), [0; 0]);
}
