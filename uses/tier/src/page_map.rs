//! The page map: which pages are the heap's, their tier, and which are in flight.
//!
//! One lock protects it. The fault handler thread holds the lock while it reads and applies events. The thread that
//! moves pages holds it while it takes pages out or brings them back, but not while they are copied. **Nothing is
//! allocated or freed under the lock**: a thread that forks keeps the allocator locked until its fork event has been
//! read.

use crate::config::{HUGE, IN_HUGE, MAX_TIERS, PAGE, TierId};
use crate::event_order::EventOrder;
use crate::in_flight::{PagesInFlight, Stage};
use crate::page_set::PageSet;
use crate::stats::Stats;
use crate::traps::Traps;
use std::ops::Range;

/// The most separate spans of memory. Source: chosen. The kernel's own limit on mappings, vm.max_map_count, is 65,530
/// by default, and this much on database machines. The list takes 8 MiB of address space; only the used part takes
/// memory.
pub(crate) const MOST_SPANS: usize = 262_144;

/// A page's tier, and whether the page is in flight or discarded.
type State = u8;
const TIER: State = 0x0f;
/// Taken out: a thread that touches the page waits.
const OUT: State = 0x80;
/// Discarded. The page is not moved until the program has touched it again, because the kernel may not have freed it
/// yet.
const GONE: State = 0x40;
/// The tier of a page that is not present, or may not be moved.
pub const NO_TIER: u8 = u8::MAX;
/// A bit added to a tier that is reported for a page that moves only as a part of something larger.
pub(crate) const WHOLE: u8 = 0x40;
/// Reported instead of the tier for a page that is in flight or trapped; its tier is the last one reported. No tier has
/// this number.
pub(crate) const IN_FLIGHT: u8 = 0xfe;

/// Contiguous pages whose states are contiguous in one list.
#[derive(Clone, Debug)]
struct Span {
    start: u64,
    end: u64,
    /// The list that holds the states, and the index of the first.
    list: usize,
    first: usize,
}

impl Span {
    fn index_of(&self, page: u64) -> usize {
        self.first + usize::try_from((page - self.start) / PAGE).expect("in a list")
    }

    /// The indexes of the states of a part of this span.
    fn indexes_of(&self, part: &Range<u64>) -> Range<usize> {
        self.index_of(part.start)..self.index_of(part.end)
    }
}

/// The states of the pages of one region, and the number of spans that use them.
#[derive(Debug, Default)]
struct States {
    states: Vec<State>,
    spans: usize,
    /// The number of this list, never used again.
    id: u64,
}

/// A part of the heap's memory, and its position in its region. The position stays the same when the mapping moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RegionPart {
    /// Its addresses.
    pub(crate) range: Range<u64>,
    /// The number of the region: memory adopted in one call has one number, which is never used again.
    pub(crate) region: u64,
    /// The page of the region that is the first of this part.
    pub(crate) first: usize,
}

/// Returns how many states at the start of `states` equal `state`. Usually many or all do, so it compares 64 at a time.
pub(crate) fn equal_prefix_len(state: u8, states: &[u8]) -> usize {
    /// States compared at once. Source: chosen, a cache line.
    const MANY: usize = 64;
    let mut alike = 0;
    for some in states.chunks(MANY) {
        // No early exit and no type wider than a state within the loop, so that the compiler vectorizes it.
        if some.iter().fold(0, |differs, other| differs | (other ^ state)) != 0 {
            return alike + some.iter().take_while(|other| **other == state).count();
        }
        alike += some.len();
    }
    alike
}

/// A window in which writes are tracked. Pages that come back to it count as written although they were not, so they
/// are noted.
#[derive(Debug, Default)]
struct Watch {
    window: Range<u64>,
    moved: PageSet,
}

/// The page map of a heap.
#[derive(Debug)]
pub(crate) struct PageMap {
    /// Sorted by address, without overlaps.
    spans: Vec<Span>,
    lists: Vec<States>,
    home: TierId,
    /// Pages on each tier, except the home tier.
    live: [u64; MAX_TIERS],
    /// The pages being moved.
    pub(crate) in_flight: PagesInFlight,
    /// The tier they move to.
    pub(crate) to: TierId,
    /// The thread that moves them.
    pub(crate) mover: Option<i32>,
    pub(crate) stats: Stats,
    /// Mapping events that arrived out of order.
    pub(crate) order: EventOrder,
    /// The number of lists ever used.
    ids: u64,
    watch: Watch,
    /// Trapped pages: out to notice the first touch.
    pub(crate) traps: Traps,
    /// A test sets this: discards are then not noted.
    #[cfg(test)]
    pub(crate) keeps_discarded: bool,
}

impl PageMap {
    /// Creates an empty map; up to `in_flight` pages may be in flight at once.
    pub(crate) fn new(home: TierId, in_flight: usize) -> PageMap {
        PageMap {
            spans: Vec::with_capacity(MOST_SPANS),
            lists: Vec::new(),
            home,
            live: [0; MAX_TIERS],
            in_flight: PagesInFlight::with_room(in_flight),
            to: home,
            mover: None,
            order: EventOrder::new(),
            stats: Stats::default(),
            ids: 0,
            watch: Watch::default(),
            traps: Traps::new(),
            #[cfg(test)]
            keeps_discarded: false,
        }
    }

    /// Returns the number of pages on a tier other than the home tier.
    pub(crate) fn live(&self, tier: TierId) -> u64 {
        self.live[tier.index()]
    }

    /// Returns states for the pages of a range, all on the home tier. Call it before taking the lock. Drop what `adopt`
    /// swaps in after releasing it.
    pub(crate) fn states(home: TierId, range: &Range<u64>) -> Vec<u8> {
        vec![home.0; usize::try_from((range.end - range.start) / PAGE).expect("pages of this process")]
    }

    /// Adopts a range that is not known yet, with all pages on the home tier. The caller makes room for its list
    /// ([`PageMap::has_room`]). Returns false if there are too many spans.
    pub(crate) fn adopt(&mut self, range: Range<u64>, states: &mut Vec<u8>) -> bool {
        debug_assert!(!self.knows_of(&range), "{range:x?} is known already");
        let at = self.spans.partition_point(|span| span.start < range.start);
        if self.spans.len() == MOST_SPANS {
            return false;
        }
        let list = self.lists.iter().position(|list| list.spans == 0).expect("the caller made room");
        // The unused list leaves through `states`; the caller frees it.
        std::mem::swap(&mut self.lists[list].states, states);
        self.lists[list].spans = 1;
        self.ids += 1;
        self.lists[list].id = self.ids;
        self.spans.insert(at, Span { start: range.start, end: range.end, list, first: 0 });
        true
    }

    /// Returns whether [`adopt`](PageMap::adopt) will find a free list. If not, call [`grow`](PageMap::grow) with room
    /// for one more.
    pub(crate) fn has_room(&self) -> bool {
        self.lists.iter().any(|list| list.spans == 0)
    }

    /// Returns the number of lists.
    pub(crate) fn lists(&self) -> usize {
        self.lists.len()
    }

    /// Moves the lists into `larger` and returns the old allocation in it. Returns false if `larger` is too small.
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

    /// Returns whether a part of the range is the heap's.
    pub(crate) fn knows_of(&self, range: &Range<u64>) -> bool {
        let at = self.spans.partition_point(|span| span.end <= range.start);
        self.spans.get(at).is_some_and(|span| span.start < range.end)
    }

    /// Adds the heap's parts of a range to `region_parts`, up to its capacity. Returns whether they are complete.
    pub(crate) fn region_parts(&self, range: &Range<u64>, region_parts: &mut Vec<RegionPart>) -> bool {
        let at = self.spans.partition_point(|span| span.end <= range.start);
        let inside = self.spans[at..].partition_point(|span| span.start < range.end);
        let room = region_parts.capacity() - region_parts.len();
        region_parts.extend(self.spans[at..at + inside].iter().take(room).map(|span| {
            let part = span.start.max(range.start)..span.end.min(range.end);
            RegionPart { region: self.lists[span.list].id, first: span.index_of(part.start), range: part }
        }));
        inside <= room
    }

    /// Writes the tiers of the pages from `first` on: `none` for pages that may not be moved, `out` for pages that are
    /// out.
    pub(crate) fn tiers(&self, first: u64, [none, out]: [u8; 2], tiers: &mut [u8]) {
        tiers.fill(none);
        let range = first..first + tiers.len() as u64 * PAGE;
        self.each_list(&range, |start, states| {
            let index = usize::try_from((start - first) / PAGE).expect("within `tiers`");
            let (mut states, mut tiers) = (states, &mut tiers[index..]);
            while let Some(&first) = states.first() {
                let alike;
                (alike, states) = states.split_at(equal_prefix_len(first, states));
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

    /// Returns whether all pages of a range are on this tier and may be moved.
    pub(crate) fn are_on(&self, range: &Range<u64>, tier: TierId) -> bool {
        let mut on = 0;
        self.each_list(range, |_, states| on += equal_prefix_len(tier.0, states) as u64);
        on * PAGE == range.end - range.start
    }

    /// Calls `each` for the parts of a range that are the heap's, with the start address and the states of the pages.
    fn each_list(&self, range: &Range<u64>, mut each: impl FnMut(u64, &[State])) {
        let at = self.spans.partition_point(|span| span.end <= range.start);
        for span in self.spans[at..].iter().take_while(|span| span.start < range.end) {
            let part = span.start.max(range.start)..span.end.min(range.end);
            each(part.start, &self.lists[span.list].states[span.indexes_of(&part)]);
        }
    }

    /// Starts to note pages that come back to this window. It has at most
    /// [`PAGES_IN_SET`](crate::page_set::PAGES_IN_SET) pages.
    pub(crate) fn watch(&mut self, window: Range<u64>) {
        self.watch = Watch { window, moved: PageSet::default() };
    }

    /// Returns the pages that have come back to the window since.
    pub(crate) fn moved_in_window(&self) -> PageSet {
        self.watch.moved
    }

    fn span_at(&self, page: u64) -> Option<&Span> {
        let at = self.spans.partition_point(|span| span.end <= page);
        self.spans.get(at).filter(|span| span.start <= page)
    }

    /// Returns the state of a page; none if the page is not the heap's.
    fn state_of(&self, page: u64) -> Option<State> {
        let span = self.span_at(page)?;
        Some(self.lists[span.list].states[span.index_of(page)])
    }

    /// Returns the tier of a page that may be moved: it is the heap's, not in flight and not discarded.
    pub(crate) fn tier_of(&self, page: u64) -> Option<TierId> {
        let state = self.state_of(page)?;
        (state & (OUT | GONE) == 0).then_some(TierId(state & TIER))
    }

    /// Returns the tier of a trapped page.
    pub(crate) fn tier_of_trapped(&self, page: u64) -> Option<TierId> {
        self.state_of(page).map(|state| TierId(state & TIER))
    }

    /// Returns whether a huge page may be moved whole: all its small pages may be moved and are on one tier.
    pub(crate) fn may_move_huge(&self, first: u64) -> bool {
        self.tier_of(first).is_some_and(|tier| self.are_on(&(first..first + HUGE), tier))
    }

    /// Returns whether the page may be filled if it is missing: it is the heap's and not in flight.
    pub(crate) fn may_be_filled(&self, page: u64) -> bool {
        self.state_of(page).is_some_and(|state| state & OUT == 0)
    }

    /// Returns whether the page is out. This includes pages of a span that was dropped for lack of room while they were
    /// out.
    pub(crate) fn is_out(&self, page: u64) -> bool {
        match self.state_of(page) {
            Some(state) => state & OUT != 0,
            None => self.in_flight.has_out(page) || self.traps.part_of(page).is_some(),
        }
    }

    /// Changes the states of those pages of a range that are the heap's.
    fn change(&mut self, range: &Range<u64>, change: impl Fn(State) -> State) {
        let at = self.spans.partition_point(|span| span.end <= range.start);
        for span in self.spans[at..].iter().take_while(|span| span.start < range.end) {
            let indexes = span.indexes_of(&(span.start.max(range.start)..span.end.min(range.end)));
            let mut rest = &mut self.lists[span.list].states[indexes];
            while let Some(&first) = rest.first() {
                let alike;
                (alike, rest) = rest.split_at_mut(equal_prefix_len(first, rest));
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

    /// Notes that these runs were taken out.
    pub(crate) fn went_out(&mut self, parts: Range<usize>) {
        for at in parts {
            self.in_flight[at].stage = Stage::Out;
            let range = self.in_flight[at].range();
            self.change(&range, |state| state | OUT);
        }
    }

    /// Notes that a run is back, on this tier.
    pub(crate) fn came_back(&mut self, at: usize, stage: Stage, tier: TierId) {
        self.in_flight[at].stage = stage;
        let range = self.in_flight[at].range();
        self.moved_in(&range);
        self.change(&range, |state| state & !(OUT | TIER) | tier.0);
    }

    /// Notes that a run has no address to come back to. If it was out, the page that is there instead is on the home
    /// tier, and no thread may wait for it.
    pub(crate) fn dropped(&mut self, at: usize) {
        let part = &mut self.in_flight[at];
        let (out, range) = (part.stage == Stage::Out, part.range());
        part.stage = Stage::Dropped { out };
        if out {
            self.stats.dropped += (range.end - range.start) / PAGE;
            let home = self.home;
            self.change(&range, |state| state & !(OUT | TIER) | home.0);
        }
    }

    /// Drops each planned run that is not where it was when it was planned, or that may no longer be moved.
    pub(crate) fn drop_changed(&mut self) {
        let mut at = 0;
        while let Some(part) = self.in_flight.get(at) {
            if self.are_on(&part.range(), part.tier) {
                at += 1;
            } else if part.pages > 1 {
                self.in_flight.singly(at..at + 1);
            } else {
                self.dropped(at);
                at += 1;
            }
        }
    }

    /// Notes that contiguous small pages, or one huge page, were trapped.
    pub(crate) fn trapped(&mut self, live: u64, slot: u64, pages: usize, huge: bool) {
        let in_one = if huge { IN_HUGE } else { 1 };
        for at in (0..pages as u64).step_by(in_one) {
            self.traps.set(live + at * PAGE, slot + at * PAGE, in_one);
        }
        let live = live..live + pages as u64 * PAGE;
        self.moved_in(&live);
        self.change(&live, |state| state | OUT);
        self.stats.trapped += pages as u64;
    }

    /// Notes that the pages in these slots are back; a copy made by the kernel is on the home tier.
    pub(crate) fn returned_from_trap(&mut self, slots: &Range<u64>, is_copy: bool) {
        let home = self.home;
        while let Some(part) = self.traps.gone(slots, is_copy) {
            self.moved_in(&part.live());
            self.change(&part.live(), |state| if is_copy { state & !(OUT | TIER) | home.0 } else { state & !OUT });
        }
    }

    /// Notes the parts of a huge page that were not taken out. `is_left`: something else is in their slots.
    pub(crate) fn not_trapped(&mut self, slots: &Range<u64>, is_left: bool) {
        while let Some(part) = self.traps.gone(slots, is_left) {
            self.change(&part.live(), |state| state & !OUT);
        }
    }

    /// Notes that these pages count as written in the window although they may not be.
    fn moved_in(&mut self, live: &Range<u64>) {
        let window = &self.watch.window;
        let part = live.start.max(window.start)..live.end.min(window.end);
        for page in part.step_by(4096) {
            self.watch.moved.insert(usize::try_from((page - window.start) / PAGE).expect("in a window"));
        }
    }

    /// Notes that pages are about to be discarded.
    pub(crate) fn removed(&mut self, range: &Range<u64>) {
        #[cfg(test)]
        if self.keeps_discarded {
            return;
        }
        self.drop_in_flight(range);
        self.stats.dropped += self.traps.dropped(range);
        let home = self.home;
        self.change(range, |_| GONE | home.0);
    }

    /// Notes that empty pages were put there.
    pub(crate) fn filled(&mut self, range: &Range<u64>) {
        self.change(range, |state| state & !GONE);
    }

    /// Notes that a mapping is gone.
    pub(crate) fn unmapped(&mut self, range: &Range<u64>) {
        self.removed(range);
        self.cut(range);
    }

    /// Forgets a range that is not the heap's after all.
    pub(crate) fn forget(&mut self, range: &Range<u64>) {
        self.cut(range);
    }

    /// Notes that a mapping has moved, from a range that is now empty to a range that was empty. For events in another
    /// order see [`event_order`](crate::event_order).
    pub(crate) fn remapped(&mut self, from: u64, to: u64, len: u64) {
        let moved = from..from + len;
        // What was mapped at the target is gone; the event for its pages, if there were any, came before.
        self.unmapped(&(to..to + len));
        self.in_flight.cut_around(&moved);
        for part in self.in_flight.iter_mut().filter(|part| part.is_under_way() && moved.contains(&part.live)) {
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
                first: span.index_of(part.start),
            };
            // Counts one span more until the old one is cut out.
            self.lists[there.list].spans += 1;
            self.cut(&part);
            let index = self.spans.partition_point(|span| span.start < there.start);
            if self.spans.len() < MOST_SPANS {
                self.spans.insert(index, there);
            } else {
                self.lists[there.list].spans -= 1;
            }
            at = self.spans.partition_point(|span| span.end <= part.end);
        }
    }

    fn drop_in_flight(&mut self, range: &Range<u64>) {
        self.in_flight.cut_around(range);
        for at in 0..self.in_flight.len() {
            if self.in_flight[at].is_under_way() && range.contains(&self.in_flight[at].live) {
                self.dropped(at);
            }
        }
    }

    /// Removes the range from the map.
    fn cut(&mut self, range: &Range<u64>) {
        let mut at = self.spans.partition_point(|span| span.end <= range.start);
        while let Some(span) = self.spans.get(at).filter(|span| span.start < range.end).cloned() {
            let before = Span { end: range.start.max(span.start), ..span.clone() };
            let behind = Span { start: range.end.min(span.end), first: span.index_of(range.end.min(span.end)), ..span };
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
                    // Without room for one more span, the part behind is dropped from the map. Its pages stay where
                    // they are, or come back if they are out.
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

/// An allocation for lists.
#[derive(Debug)]
pub(crate) struct Lists(Vec<States>);

impl Lists {
    /// Creates an allocation for this many lists.
    pub(crate) fn with_room(lists: usize) -> Lists {
        Lists(Vec::with_capacity(lists))
    }
}

#[cfg(test)]
mod tests;
