//! What is known of the heap's pages: whose they are, on which tier, and which are on their way.
//!
//! It is behind one lock, which whoever reads events has while reading and applying them, and whoever takes pages out or brings them back has
//! while doing so; not while they are copied. **Nothing is allocated or freed under it**: a thread that forks keeps the allocator locked
//! until its event has been read.

use crate::config::{HUGE, IN_HUGE, MOST_TIERS, PAGE, TierId};
use crate::flight::{Flight, Stage};
use crate::marks::Marks;
use crate::order::Order;
use crate::stats::Stats;
use crate::traps::Traps;
use std::ops::Range;

/// Pieces of memory apart from each other. Source: chosen; the kernel's own bound on mappings, vm.max_map_count, is 65,530 by default, and so much
/// where databases are at home. It is 8 MiB of address space, of which memory is what is used.
pub(crate) const MOST_SPANS: usize = 262_144;

/// A page's tier, and whether it is on its way or has been discarded.
type State = u8;
const TIER: State = 0x0f;
/// Taken out: whoever touches it waits.
const OUT: State = 0x80;
/// Discarded: not moved until its owner has touched it again, as the system may still have to take it away.
const GONE: State = 0x40;
/// Said of the tier of a page that is on its way, or out to see who touches it: what is known of it holds. No tier has this number.
pub(crate) const ALOFT: u8 = 0xfe;

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

    /// Of pages of it.
    fn places(&self, part: &Range<u64>) -> Range<usize> {
        self.place(part.start)..self.place(part.end)
    }
}

/// The states of what was once one piece of memory, and how many spans it has.
#[derive(Debug, Default)]
struct States {
    states: Vec<State>,
    spans: usize,
    /// Which it is, of all there ever were.
    id: u64,
}

/// A piece of a heap's memory, and what it is a piece of, which stays the same where it moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Where it is.
    pub(crate) range: Range<u64>,
    /// What was taken over at once has one number; it is never used again.
    pub(crate) of: u64,
    /// Which page of that is its first.
    pub(crate) first: usize,
}

/// How many states from the first on are this one: most often all, or many, which the processor compares many at once.
pub(crate) fn alike_with(state: u8, states: &[u8]) -> usize {
    /// States at once. Source: chosen, a line of the cache.
    const MANY: usize = 64;
    let mut alike = 0;
    for some in states.chunks(MANY) {
        // Without a way out of the midst, nor numbers that are wider than states.
        if some.iter().fold(0, |differs, other| differs | (other ^ state)) != 0 {
            return alike + some.iter().take_while(|other| **other == state).count();
        }
        alike += some.len();
    }
    alike
}

/// A window in which writes are tracked: pages that came back there count as written, and were not.
#[derive(Debug, Default)]
struct Watch {
    window: Range<u64>,
    moved: Marks,
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
    /// The pages on their way.
    pub(crate) flight: Flight,
    /// Where they go.
    pub(crate) to: TierId,
    /// The thread that moves them.
    pub(crate) mover: Option<i32>,
    pub(crate) stats: Stats,
    /// Events of mappings that did not come in the order in which things happened.
    pub(crate) order: Order,
    /// Lists that there were.
    ids: u64,
    watch: Watch,
    /// Pages that are out to see who touches them.
    pub(crate) traps: Traps,
    /// A test has it take no note of what is discarded.
    #[cfg(test)]
    pub(crate) keeps_discarded: bool,
}

impl Book {
    /// Nothing is known; so many pages may be on their way at once.
    pub(crate) fn new(home: TierId, flight: usize) -> Book {
        Book {
            spans: Vec::with_capacity(MOST_SPANS),
            lists: Vec::new(),
            home,
            live: [0; MOST_TIERS],
            flight: Flight::with_room(flight),
            to: home,
            mover: None,
            order: Order::new(),
            stats: Stats::default(),
            ids: 0,
            watch: Watch::default(),
            traps: Traps::new(),
            #[cfg(test)]
            keeps_discarded: false,
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

    /// Takes a range over of which it knows nothing yet, whose pages are all on the home tier. The lists' room is the caller's
    /// ([`Book::has_room`]). False if there are too many.
    pub(crate) fn adopt(&mut self, range: Range<u64>, states: &mut Vec<u8>) -> bool {
        debug_assert!(!self.knows_of(&range), "{range:x?} is known already");
        let at = self.spans.partition_point(|span| span.start < range.start);
        if self.spans.len() == MOST_SPANS {
            return false;
        }
        let list = self.lists.iter().position(|list| list.spans == 0).expect("the caller made room");
        // The list that nobody has any more goes out this way.
        std::mem::swap(&mut self.lists[list].states, states);
        self.lists[list].spans = 1;
        self.ids += 1;
        self.lists[list].id = self.ids;
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

    /// A part of the range is the heap's.
    pub(crate) fn knows_of(&self, range: &Range<u64>) -> bool {
        let at = self.spans.partition_point(|span| span.end <= range.start);
        self.spans.get(at).is_some_and(|span| span.start < range.end)
    }

    /// The heap's pieces of memory in a range, into `pieces`, as far as that has room. True if those are all.
    pub(crate) fn pieces(&self, range: &Range<u64>, pieces: &mut Vec<Piece>) -> bool {
        let at = self.spans.partition_point(|span| span.end <= range.start);
        let inside = self.spans[at..].partition_point(|span| span.start < range.end);
        let room = pieces.capacity() - pieces.len();
        pieces.extend(self.spans[at..at + inside].iter().take(room).map(|span| {
            let part = span.start.max(range.start)..span.end.min(range.end);
            Piece { of: self.lists[span.list].id, first: span.place(part.start), range: part }
        }));
        inside <= room
    }

    /// The tiers of pages from the first on; `none` where they may not be moved, `out` where they are out.
    pub(crate) fn tiers(&self, first: u64, [none, out]: [u8; 2], tiers: &mut [u8]) {
        tiers.fill(none);
        let range = first..first + tiers.len() as u64 * PAGE;
        self.each_list(&range, |start, states| {
            let place = usize::try_from((start - first) / PAGE).expect("in the row");
            let (mut states, mut tiers) = (states, &mut tiers[place..]);
            while let Some(&first) = states.first() {
                let alike;
                (alike, states) = states.split_at(alike_with(first, states));
                let of_alike;
                (of_alike, tiers) = tiers.split_at_mut(alike.len());
                of_alike.fill(match first & (OUT | GONE) {
                    0 => first & TIER,
                    OUT => out,
                    _ => none,
                });
            }
        });
    }

    /// All pages of a range are on this tier, and may be moved.
    pub(crate) fn are_on(&self, range: &Range<u64>, tier: TierId) -> bool {
        let mut on = 0;
        self.each_list(range, |_, states| on += alike_with(tier.0, states) as u64);
        on * PAGE == range.end - range.start
    }

    /// What is known of the parts of a range that are the heap's: where each begins, and the states of its pages.
    fn each_list(&self, range: &Range<u64>, mut each: impl FnMut(u64, &[State])) {
        let at = self.spans.partition_point(|span| span.end <= range.start);
        for span in self.spans[at..].iter().take_while(|span| span.start < range.end) {
            let part = span.start.max(range.start)..span.end.min(range.end);
            each(part.start, &self.lists[span.list].states[span.places(&part)]);
        }
    }

    /// What comes back to this window is noted from now on; it has at most [`MARKS`](crate::marks::MARKS) pages.
    pub(crate) fn watch(&mut self, window: Range<u64>) {
        self.watch = Watch { window, moved: Marks::default() };
    }

    /// What has come back to the window since.
    pub(crate) fn moved_in_window(&self) -> Marks {
        self.watch.moved
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

    /// The tier of a page that is out to see who touches it.
    pub(crate) fn tier_of_trapped(&self, page: u64) -> Option<TierId> {
        self.state_of(page).map(|state| TierId(state & TIER))
    }

    /// A huge page may be moved whole: each of its parts may, and they are on one tier.
    pub(crate) fn may_move_huge(&self, first: u64) -> bool {
        self.tier_of(first).is_some_and(|tier| self.are_on(&(first..first + HUGE), tier))
    }

    /// The page is the heap's, and not on its way: it may be filled if nothing is there.
    pub(crate) fn may_be_filled(&self, page: u64) -> bool {
        self.state_of(page).is_some_and(|state| state & OUT == 0)
    }

    /// The page is on its way; also one of a piece that there was no room for any more when its neighbours went.
    pub(crate) fn is_out(&self, page: u64) -> bool {
        match self.state_of(page) {
            Some(state) => state & OUT != 0,
            None => self.flight.has_out(page) || self.traps.part_of(page).is_some(),
        }
    }

    /// Changes what is known of those pages of a range that are the heap's.
    fn change(&mut self, range: &Range<u64>, change: impl Fn(State) -> State) {
        let at = self.spans.partition_point(|span| span.end <= range.start);
        for span in self.spans[at..].iter().take_while(|span| span.start < range.end) {
            let places = span.places(&(span.start.max(range.start)..span.end.min(range.end)));
            let mut rest = &mut self.lists[span.list].states[places];
            while let Some(&first) = rest.first() {
                let alike;
                (alike, rest) = rest.split_at_mut(alike_with(first, rest));
                let (before, after) = (first, change(first));
                alike.fill(after);
                let (before, after) = (TierId(before & TIER), TierId(after & TIER));
                if before != after {
                    let pages = alike.len() as u64;
                    if before != self.home {
                        self.live[before.index()] -= pages;
                    }
                    if after != self.home {
                        self.live[after.index()] += pages;
                    }
                }
            }
        }
    }

    /// Parts of the flight were taken out.
    pub(crate) fn went_out(&mut self, parts: Range<usize>) {
        for at in parts {
            self.flight[at].stage = Stage::Out;
            let range = self.flight[at].range();
            self.change(&range, |state| state | OUT);
        }
    }

    /// A part of the flight is back on this tier.
    pub(crate) fn came_back(&mut self, at: usize, stage: Stage, tier: TierId) {
        self.flight[at].stage = stage;
        let range = self.flight[at].range();
        self.moved_in(&range);
        self.change(&range, |state| state & !(OUT | TIER) | tier.0);
    }

    /// A part of the flight has no place to come back to. If it was out, whatever is there instead is of the home tier, and nobody is to wait for it.
    pub(crate) fn dropped(&mut self, at: usize) {
        let part = &mut self.flight[at];
        let (out, range) = (part.stage == Stage::Out, part.range());
        part.stage = Stage::Dropped { out };
        if out {
            self.stats.dropped += (range.end - range.start) / PAGE;
            let home = self.home;
            self.change(&range, |state| state & !(OUT | TIER) | home.0);
        }
    }

    /// What is planned and is not where it was planned from, or may not be moved any more, is dropped.
    pub(crate) fn drop_changed(&mut self) {
        let mut at = 0;
        while let Some(part) = self.flight.get(at) {
            if self.are_on(&part.range(), part.tier) {
                at += 1;
            } else if part.pages > 1 {
                self.flight.singly(at..at + 1);
            } else {
                self.dropped(at);
                at += 1;
            }
        }
    }

    /// Neighbouring small pages, or a huge one, were taken out to see who touches them.
    pub(crate) fn trapped(&mut self, live: u64, place: u64, pages: usize, huge: bool) {
        let in_one = if huge { IN_HUGE } else { 1 };
        for at in (0..pages as u64).step_by(in_one) {
            self.traps.set(live + at * PAGE, place + at * PAGE, in_one);
        }
        let live = live..live + pages as u64 * PAGE;
        self.moved_in(&live);
        self.change(&live, |state| state | OUT);
        self.stats.trapped += pages as u64;
    }

    /// What was out in these places is back: on the home tier if it is a copy.
    pub(crate) fn sprung(&mut self, places: &Range<u64>, is_copy: bool) {
        let home = self.home;
        while let Some(part) = self.traps.gone(places, is_copy) {
            self.moved_in(&part.live());
            self.change(&part.live(), |state| if is_copy { state & !(OUT | TIER) | home.0 } else { state & !OUT });
        }
    }

    /// Of a huge page these did not go out. `is_left`: something else is in their places.
    pub(crate) fn not_trapped(&mut self, places: &Range<u64>, is_left: bool) {
        while let Some(part) = self.traps.gone(places, is_left) {
            self.change(&part.live(), |state| state & !OUT);
        }
    }

    /// These count as written in the window, and may not be.
    fn moved_in(&mut self, live: &Range<u64>) {
        let window = &self.watch.window;
        let part = live.start.max(window.start)..live.end.min(window.end);
        for page in part.step_by(4096) {
            self.watch.moved.mark(usize::try_from((page - window.start) / PAGE).expect("in a window"));
        }
    }

    /// Pages are about to be discarded.
    pub(crate) fn removed(&mut self, range: &Range<u64>) {
        #[cfg(test)]
        if self.keeps_discarded {
            return;
        }
        self.drop_aloft(range);
        self.stats.dropped += self.traps.dropped(range);
        let home = self.home;
        self.change(range, |_| GONE | home.0);
    }

    /// Empty pages were put there.
    pub(crate) fn filled(&mut self, range: &Range<u64>) {
        self.change(range, |state| state & !GONE);
    }

    /// A mapping is gone.
    pub(crate) fn unmapped(&mut self, range: &Range<u64>) {
        self.removed(range);
        self.cut(range);
    }

    /// A range is not the heap's after all.
    pub(crate) fn forget(&mut self, range: &Range<u64>) {
        self.cut(range);
    }

    /// A mapping has moved, from where nothing is any more to where nothing was. See [`order`](crate::order) for events that come otherwise.
    pub(crate) fn remapped(&mut self, from: u64, to: u64, len: u64) {
        let moved = from..from + len;
        // What was where it is now is not any more; its pages were told of before, if there were any.
        self.unmapped(&(to..to + len));
        self.flight.cut_around(&moved);
        for part in self.flight.iter_mut().filter(|part| part.is_under_way() && moved.contains(&part.live)) {
            part.live = part.live - from + to;
        }
        self.traps.remapped(from, to, len);
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
        self.flight.cut_around(range);
        for at in 0..self.flight.len() {
            if self.flight[at].is_under_way() && range.contains(&self.flight[at].live) {
                self.dropped(at);
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
                    // With no room for one more, what is behind is not the heap's any more: it stays where it is, or comes back if it is out.
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
mod tests;
