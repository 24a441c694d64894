//! What is known of the heap's pages: whose they are, on which tier, and which are on their way.
//!
//! It is behind one lock, which whoever reads events has while reading and applying them, and whoever takes pages out or brings them back has
//! while doing so; not while they are copied. **Nothing is allocated or freed under it**: a thread that forks keeps the allocator locked
//! until its event has been read.

use crate::config::{HUGE, IN_HUGE, MOST_TIERS, PAGE, TierId};
use crate::stats::Stats;
use std::ops::Range;

/// Pieces of memory apart from each other. Source: chosen; the kernel's own bound on mappings, vm.max_map_count, is as large by default.
pub(crate) const MOST_SPANS: usize = 65_536;

/// A page's tier, and whether it is on its way or has been discarded.
type State = u8;
const TIER: State = 0x0f;
/// Taken out: whoever touches it waits.
const OUT: State = 0x80;
/// Discarded: not moved until its owner has touched it again, as the system may still have to take it away.
const GONE: State = 0x40;

/// Neighbouring pages whose states are neighbours, too.
#[derive(Clone, Debug)]
struct Span {
    start: u64,
    end: u64,
    /// Which list has the states, and where they begin.
    list: usize,
    first: usize,
}

impl Span {
    fn place(&self, page: u64) -> usize {
        self.first + usize::try_from((page - self.start) / PAGE).expect("in a list")
    }
}

/// The states of what was once one piece of memory, and how many spans it has.
#[derive(Debug, Default)]
struct States {
    states: Vec<State>,
    spans: usize,
}

/// How far a page has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// To be taken out.
    Planned,
    /// The kernel said that it is busy; it is tried once more.
    Busy,
    /// Out.
    Out,
    /// Back, from its source.
    Back,
    /// Back by a copy of the kernel's.
    Returned,
    /// Stayed.
    Left(Why),
    /// Discarded or unmapped before it was taken out, or while it was.
    Dropped {
        /// It had been taken out.
        out: bool,
    },
}

/// Why it stayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    Pinned,
    Unsupported,
    Gone,
}

/// A page on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aloft {
    /// Where the program has it.
    pub(crate) live: u64,
    /// The places it leaves and comes to.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The one from which it is brought back: where it was put first, and once it is copied whole, where it was copied to.
    pub(crate) source: u64,
    pub(crate) stage: Stage,
    pub(crate) tier: TierId,
    /// The place it comes to has its old copy.
    pub(crate) shadowed: bool,
}

/// What is known.
#[derive(Debug)]
pub(crate) struct Book {
    /// In order of their addresses, apart from each other.
    spans: Vec<Span>,
    lists: Vec<States>,
    home: TierId,
    /// Pages on each tier but home.
    live: [u64; MOST_TIERS],
    /// The pages on their way, neighbours together.
    pub(crate) flight: Vec<Aloft>,
    /// Where they go.
    pub(crate) to: TierId,
    pub(crate) stats: Stats,
}

impl Book {
    /// Nothing is known; so many pages may be on their way at once.
    pub(crate) fn new(home: TierId, flight: usize) -> Book {
        Book {
            spans: Vec::with_capacity(MOST_SPANS),
            lists: Vec::new(),
            home,
            live: [0; MOST_TIERS],
            flight: Vec::with_capacity(flight),
            to: home,
            stats: Stats::default(),
        }
    }

    /// Pages that are on a tier other than home.
    pub(crate) fn live(&self, tier: TierId) -> u64 {
        self.live[tier.index()]
    }

    /// Room for the states of so many pages, made before the lock is taken; what it takes the place of is dropped after.
    pub(crate) fn states(home: TierId, range: &Range<u64>) -> Vec<u8> {
        vec![home.0; usize::try_from((range.end - range.start) / PAGE).expect("pages of this process")]
    }

    /// Takes a range over, whose pages are all on the home tier. The lists' room is the caller's ([`Book::room`]). False if there are too many.
    pub(crate) fn adopt(&mut self, range: Range<u64>, states: &mut Vec<u8>) -> bool {
        let at = self.spans.partition_point(|span| span.start < range.start);
        if self.spans.len() == MOST_SPANS {
            return false;
        }
        let list = self.lists.iter().position(|list| list.spans == 0).expect("the caller made room");
        // The list that nobody has any more goes out this way.
        std::mem::swap(&mut self.lists[list].states, states);
        self.lists[list].spans = 1;
        self.spans.insert(at, Span { start: range.start, end: range.end, list, first: 0 });
        true
    }

    /// True if [`adopt`](Book::adopt) would find a list; else `lists` with one more is to be swapped in by [`grow`](Book::grow).
    pub(crate) fn has_room(&self) -> bool {
        self.lists.iter().any(|list| list.spans == 0)
    }

    /// Lists there are.
    pub(crate) fn lists(&self) -> usize {
        self.lists.len()
    }

    /// Moves the lists into `larger`, which has room for them, and gives the old room back in it. False if it has not.
    pub(crate) fn grow(&mut self, larger: &mut Lists) -> bool {
        if larger.0.capacity() <= self.lists.len() {
            return false;
        }
        larger.0.append(&mut self.lists);
        std::mem::swap(&mut self.lists, &mut larger.0);
        while self.lists.len() < self.lists.capacity() {
            self.lists.push(States::default());
        }
        true
    }

    fn span_at(&self, page: u64) -> Option<&Span> {
        let at = self.spans.partition_point(|span| span.end <= page);
        self.spans.get(at).filter(|span| span.start <= page)
    }

    /// None if the page is not the heap's.
    fn state_of(&self, page: u64) -> Option<State> {
        let span = self.span_at(page)?;
        Some(self.lists[span.list].states[span.place(page)])
    }

    /// The tier of a page that may be moved: it is the heap's, not on its way, and not discarded.
    pub(crate) fn tier_of(&self, page: u64) -> Option<TierId> {
        let state = self.state_of(page)?;
        (state & (OUT | GONE) == 0).then_some(TierId(state & TIER))
    }

    /// The tier of a huge page that may be moved whole: of each of its parts, if that is the same.
    pub(crate) fn tier_of_huge(&self, first: u64) -> Option<TierId> {
        let span = self.span_at(first).filter(|span| first + HUGE <= span.end)?;
        let places = span.place(first)..span.place(first) + IN_HUGE;
        let (state, rest) = self.lists[span.list].states[places].split_first()?;
        let same = state & (OUT | GONE) == 0 && rest.iter().all(|other| other == state);
        same.then_some(TierId(state & TIER))
    }

    /// The page is the heap's, and not on its way: it may be filled if nothing is there.
    pub(crate) fn may_be_filled(&self, page: u64) -> bool {
        self.state_of(page).is_some_and(|state| state & OUT == 0)
    }

    /// The page is on its way.
    pub(crate) fn is_out(&self, page: u64) -> bool {
        self.state_of(page).is_some_and(|state| state & OUT != 0)
    }

    fn set(&mut self, page: u64, change: impl Fn(State) -> State) {
        let Some(span) = self.span_at(page) else { return };
        let (list, place) = (span.list, span.place(page));
        let state = &mut self.lists[list].states[place];
        let (before, after) = (*state & TIER, change(*state) & TIER);
        *state = change(*state);
        for (tier, by) in [(before, -1), (after, 1)] {
            if TierId(tier) != self.home {
                let live = &mut self.live[usize::from(tier)];
                *live = live.saturating_add_signed(by);
            }
        }
    }

    /// A page of the flight was taken out.
    pub(crate) fn went_out(&mut self, at: usize) {
        self.flight[at].stage = Stage::Out;
        self.set(self.flight[at].live, |state| state | OUT);
    }

    /// A page of the flight is back on this tier.
    pub(crate) fn came_back(&mut self, at: usize, stage: Stage, tier: TierId) {
        self.flight[at].stage = stage;
        self.set(self.flight[at].live, |state| state & !(OUT | TIER) | tier.0);
    }

    /// A page of the flight has no place to come back to.
    pub(crate) fn dropped(&mut self, at: usize) {
        let out = self.flight[at].stage == Stage::Out;
        self.flight[at].stage = Stage::Dropped { out };
        self.stats.dropped += u64::from(out);
    }

    /// Pages are about to be discarded.
    pub(crate) fn removed(&mut self, range: &Range<u64>) {
        self.drop_aloft(range);
        let home = self.home;
        self.each_page(range, |book, page| book.set(page, |_| GONE | home.0));
    }

    /// Empty pages were put there.
    pub(crate) fn filled(&mut self, range: &Range<u64>) {
        self.each_page(range, |book, page| book.set(page, |state| state & !GONE));
    }

    /// A mapping is gone.
    pub(crate) fn unmapped(&mut self, range: &Range<u64>) {
        self.removed(range);
        self.cut(range);
    }

    /// A mapping has moved.
    pub(crate) fn remapped(&mut self, from: u64, to: u64, len: u64) {
        let moved = from..from + len;
        // What was where it is now is not any more; its pages were told of before, if there were any.
        self.unmapped(&(to..to + len));
        for aloft in &mut self.flight {
            if moved.contains(&aloft.live) && matches!(aloft.stage, Stage::Planned | Stage::Busy | Stage::Out) {
                aloft.live = aloft.live - from + to;
            }
        }
        let mut at = self.spans.partition_point(|span| span.end <= moved.start);
        while let Some(span) = self.spans.get(at)
            && span.start < moved.end
        {
            let part = span.start.max(moved.start)..span.end.min(moved.end);
            let there = Span {
                start: part.start - from + to,
                end: part.end - from + to,
                list: span.list,
                first: span.place(part.start),
            };
            // One more until the piece is cut out.
            self.lists[there.list].spans += 1;
            self.cut(&part);
            let place = self.spans.partition_point(|span| span.start < there.start);
            if self.spans.len() < MOST_SPANS {
                self.spans.insert(place, there);
            } else {
                self.lists[there.list].spans -= 1;
            }
            at = self.spans.partition_point(|span| span.end <= part.end);
        }
    }

    fn drop_aloft(&mut self, range: &Range<u64>) {
        for at in 0..self.flight.len() {
            let aloft = self.flight[at];
            if range.contains(&aloft.live) && matches!(aloft.stage, Stage::Planned | Stage::Busy | Stage::Out) {
                self.dropped(at);
            }
        }
    }

    fn each_page(&mut self, range: &Range<u64>, mut each: impl FnMut(&mut Book, u64)) {
        let mut page = range.start;
        while page < range.end {
            let at = self.spans.partition_point(|span| span.end <= page);
            let Some(span) = self.spans.get(at).filter(|span| span.start < range.end) else { return };
            let end = span.end.min(range.end);
            page = page.max(span.start);
            while page < end {
                each(self, page);
                page += PAGE;
            }
        }
    }

    /// Nobody knows of the range any more.
    fn cut(&mut self, range: &Range<u64>) {
        let mut at = self.spans.partition_point(|span| span.end <= range.start);
        while let Some(span) = self.spans.get(at).filter(|span| span.start < range.end).cloned() {
            let before = Span { end: range.start.max(span.start), ..span.clone() };
            let behind = Span { start: range.end.min(span.end), first: span.place(range.end.min(span.end)), ..span };
            let list = before.list;
            match (before.start < before.end, behind.start < behind.end) {
                (false, false) => {
                    self.spans.remove(at);
                    self.lists[list].spans -= 1;
                }
                (true, false) => {
                    self.spans[at] = before;
                    at += 1;
                }
                (false, true) => {
                    self.spans[at] = behind;
                    at += 1;
                }
                (true, true) => {
                    self.spans[at] = before;
                    at += 1;
                    // With no room for one more, what is behind is not the heap's any more: it stays where it is.
                    if self.spans.len() < MOST_SPANS {
                        self.spans.insert(at, behind);
                        self.lists[list].spans += 1;
                        at += 1;
                    }
                }
            }
        }
    }
}

/// Room for lists.
#[derive(Debug)]
pub(crate) struct Lists(Vec<States>);

impl Lists {
    /// For so many.
    pub(crate) fn with_room(lists: usize) -> Lists {
        Lists(Vec::with_capacity(lists))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Pages 0 to 100, of which 10 to 20 are fast.
    fn book() -> Book {
        let mut book = Book::new(HOME, 64);
        adopt(&mut book, pages(0..100));
        (10..20).for_each(|number| book.set(page(number), |_| FAST.0));
        book
    }

    /// As `10..20 fast`: the tiers of pages in a range of numbers.
    fn fast(book: &Book, range: Range<u64>) -> Vec<u64> {
        range.filter(|&number| book.tier_of(page(number)) == Some(FAST)).collect()
    }

    fn aloft(number: u64) -> Aloft {
        Aloft { live: page(number), from: 1, to: 2, source: 1, stage: Stage::Planned, tier: HOME, shadowed: false }
    }

    #[test]
    fn pages_are_where_they_were_put() {
        let book = book();
        assert_eq!(fast(&book, 0..200), (10..20).collect::<Vec<_>>());
        assert_eq!((book.live(FAST), book.live(HOME)), (10, 0));
        assert_eq!(
            (book.tier_of(page(99)), book.tier_of(page(100)), book.tier_of(BASE - PAGE)),
            (Some(HOME), None, None)
        );
    }

    #[test]
    fn a_huge_page_has_a_tier_if_all_of_it_has_the_same() {
        let mut book = Book::new(HOME, 64);
        adopt(&mut book, pages(0..1000));
        assert_eq!(book.tier_of_huge(page(0)), Some(HOME));
        assert_eq!((book.tier_of_huge(page(488)), book.tier_of_huge(page(489))), (Some(HOME), None));
        for state in [FAST.0, HOME.0 | OUT, HOME.0 | GONE] {
            book.set(page(511), |_| state);
            assert_eq!((book.tier_of_huge(page(0)), book.tier_of_huge(page(488))), (None, None));
        }
        (0..512).for_each(|number| book.set(page(number), |_| FAST.0));
        assert_eq!(book.tier_of_huge(page(0)), Some(FAST));
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
        // Onto itself, over what was there.
        book.remapped(page(10), page(50), 20 * PAGE);
        assert_eq!((fast(&book, 0..400), book.live(FAST)), ((50..60).collect(), 10));
    }

    #[test]
    fn pages_on_their_way_go_with_their_mapping_or_are_dropped() {
        let mut book = book();
        book.flight.extend((30..34).map(aloft));
        (0..3).for_each(|at| book.went_out(at));
        assert!(book.is_out(page(30)) && !book.is_out(page(33)) && book.tier_of(page(31)).is_none());
        assert!(!book.may_be_filled(page(30)) && book.may_be_filled(page(33)) && !book.may_be_filled(page(100)));
        book.removed(&pages(30..31));
        book.remapped(page(31), page(200), 3 * PAGE);
        book.unmapped(&pages(201..202));
        let stages: Vec<_> = book.flight.iter().map(|aloft| (aloft.live, aloft.stage)).collect();
        let dropped = Stage::Dropped { out: true };
        let expected =
            [(page(30), dropped), (page(200), Stage::Out), (page(201), dropped), (page(202), Stage::Planned)];
        assert_eq!(stages, expected);
        assert!(book.is_out(page(200)) && !book.is_out(page(30)) && !book.is_out(page(201)));
        book.came_back(1, Stage::Back, FAST);
        assert_eq!((book.tier_of(page(200)), book.live(FAST)), (Some(FAST), 11));
        assert_eq!(book.stats.dropped, 2);
    }
}
