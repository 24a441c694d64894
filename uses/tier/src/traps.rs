//! Trapped pages: taken out to notice the first touch. This module records where they are, since when, and what became
//! of them.
//!
//! A trap is set by moving a small or huge page to a slot of a separate pool. The first touch is a fault, whose answer
//! returns the same page at once, without a copy. Untouched pages are returned when their time is over. A page's first
//! use is seen whether it is a read or a write, and huge pages are not split.
//!
//! Traps are a part of the [page map](crate::page_map), under its lock: nothing is allocated.

use crate::config::{HUGE, IN_HUGE, PAGE};
use crate::fork_gate::NoFork;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The most traps of small pages at a time. Source: chosen: if the program crashes, these pages are missing in its core
/// dump, and a forked child may need copies of all of them.
pub(crate) const MOST_SMALL: usize = 64;
/// The most traps of huge pages at a time. Source: as for [`MOST_SMALL`].
pub(crate) const MOST_HUGE: usize = 8;

/// What became of a trapped page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TrapOutcome {
    /// It is still out.
    Out,
    /// It was touched this long after it was taken out.
    Touched(Duration),
    /// It was not touched while it was out.
    Untouched,
    /// It was discarded, moved or recalled: nothing is known.
    Unknown,
}

/// A page that was taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trap {
    /// Its address in the program.
    pub(crate) first: u64,
    /// The number of small pages in it.
    pub(crate) pages: usize,
    /// The slot it was taken to.
    pub(crate) slot: u64,
    /// What became of it.
    pub(crate) fate: TrapOutcome,
    /// Some of it is still in its slot and belongs to nothing.
    pub(crate) is_left: bool,
    /// It did not come back as one page.
    pub(crate) is_split: bool,
    since: Instant,
}

/// Contiguous pages of one trap that are out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub(crate) live: u64,
    pub(crate) slot: u64,
    pub(crate) len: u64,
    trap: usize,
}

impl Part {
    /// Returns its addresses in the program.
    pub(crate) fn live(self) -> Range<u64> {
        self.live..self.live + self.len
    }

    fn slots(self) -> Range<u64> {
        self.slot..self.slot + self.len
    }

    /// Returns the part of it in these slots.
    fn within(self, slots: &Range<u64>) -> Part {
        let (start, end) = (self.slot.max(slots.start), self.slots().end.min(slots.end));
        Part { live: self.live + (start - self.slot), slot: start, len: end.saturating_sub(start), ..self }
    }

    /// Returns the slots of the part that belongs to a range of the program.
    fn slots_of(self, range: &Range<u64>) -> Range<u64> {
        let (start, end) = (self.live.max(range.start), self.live().end.min(range.end));
        self.slot + (start - self.live)..self.slot + (end.max(start) - self.live)
    }
}

/// The cost of traps for the other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TrapCost {
    /// Page faults.
    pub(crate) faults: u64,
    /// CPU time to answer them.
    pub(crate) cpu: Duration,
}

/// The traps that are set; one round at a time.
#[derive(Debug)]
pub(crate) struct Traps {
    traps: Vec<Trap>,
    /// Unordered.
    parts: Vec<Part>,
    /// Held while pages are out: no thread forks.
    no_fork: Option<NoFork>,
    pub(crate) cost: TrapCost,
}

impl Traps {
    /// Creates an empty set with room for the most traps and the most parts.
    pub(crate) fn new() -> Traps {
        let traps = Vec::with_capacity(MOST_SMALL + MOST_HUGE);
        let parts = Vec::with_capacity(MOST_SMALL + MOST_HUGE * IN_HUGE);
        Traps { traps, parts, no_fork: None, cost: TrapCost::default() }
    }

    /// Returns whether no page is out.
    pub(crate) fn are_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns whether no round is under way; every result has been reported.
    pub(crate) fn are_told(&self) -> bool {
        self.traps.is_empty()
    }

    /// Returns the parts that are out.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the traps of this round, with what became of them.
    pub(crate) fn traps(&self) -> &[Trap] {
        &self.traps
    }

    /// Prevents forks until no page is out.
    pub(crate) fn hold(&mut self, no_fork: NoFork) {
        self.no_fork = Some(no_fork);
    }

    /// Permits forks again if no page is out.
    pub(crate) fn settle(&mut self) {
        if self.parts.is_empty() {
            self.no_fork = None;
        }
    }

    /// Returns whether there is room for one more huge page, or for this many small ones.
    pub(crate) fn has_room(&self, pages: usize) -> bool {
        let traps = if pages == IN_HUGE { 1 } else { pages };
        let out = self.parts.iter().map(|part| part.len / PAGE).sum::<u64>();
        self.traps.len() + traps <= MOST_SMALL + MOST_HUGE
            && out + pages as u64 <= (MOST_SMALL + MOST_HUGE * IN_HUGE) as u64
    }

    /// Notes that a page was taken out now; [`gone`](Traps::gone) then removes parts that were not.
    pub(crate) fn set(&mut self, first: u64, slot: u64, pages: usize) {
        let (since, trap) = (Instant::now(), self.traps.len());
        self.traps.push(Trap { first, pages, slot, fate: TrapOutcome::Out, is_left: false, is_split: false, since });
        self.parts.push(Part { live: first, slot, len: pages as u64 * PAGE, trap });
    }

    /// Notes that a page was not taken out because its slot holds something that this crate has not put there.
    pub(crate) fn blocked(&mut self, first: u64, slot: u64, pages: usize) {
        let (since, is_split) = (Instant::now(), pages > 1);
        self.traps.push(Trap { first, pages, slot, fate: TrapOutcome::Unknown, is_left: true, is_split, since });
    }

    /// Returns the part that contains a page, by its address in the program.
    pub(crate) fn part_of(&self, page: u64) -> Option<Part> {
        self.parts.iter().copied().find(|part| part.live().contains(&page))
    }

    /// Returns the first part that is out in these slots, with the parts that continue it in both the slots and the
    /// program.
    pub(crate) fn run_in(&self, slots: &Range<u64>) -> Option<Part> {
        let inside = || self.parts.iter().map(|part| part.within(slots)).filter(|part| part.len > 0);
        let mut run = inside().min_by_key(|part| part.slot)?;
        while let Some(next) = inside().find(|next| (next.live, next.slot) == (run.live().end, run.slots().end)) {
            run.len += next.len;
        }
        Some(run)
    }

    /// Returns the slots of some part that is out in a range.
    pub(crate) fn slots_of(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.parts.iter().map(|part| part.slots_of(range)).find(|slots| !slots.is_empty())
    }

    /// Notes that a page of this part was touched.
    pub(crate) fn touched(&mut self, part: Part, now: Instant) {
        let trap = &mut self.traps[part.trap];
        if trap.fate == TrapOutcome::Out {
            trap.fate = TrapOutcome::Touched(now.saturating_duration_since(trap.since));
        }
        self.cost.faults += 1;
    }

    /// Sets this fate for all traps in a range that are still out.
    pub(crate) fn end(&mut self, range: &Range<u64>, fate: TrapOutcome) {
        for part in &self.parts {
            let trap = &mut self.traps[part.trap];
            if trap.fate == TrapOutcome::Out && !part.slots_of(range).is_empty() {
                trap.fate = fate;
            }
        }
    }

    /// Removes and returns one part that is out in these slots; none if there is none. `is_left`: its pages stay in
    /// their slots.
    pub(crate) fn gone(&mut self, slots: &Range<u64>, is_left: bool) -> Option<Part> {
        let at = self.parts.iter().position(|part| part.within(slots).len > 0)?;
        let part = self.parts.swap_remove(at);
        let inside = part.within(slots);
        let trap = &mut self.traps[part.trap];
        trap.is_left |= is_left;
        // If its mapping is not aligned for huge pages, the kernel brings it back as small pages.
        trap.is_split |= inside.len < trap.pages as u64 * PAGE || inside.live % HUGE != inside.slot % HUGE;
        for rest in [part.slot..inside.slot, inside.slots().end..part.slots().end] {
            if !rest.is_empty() {
                // There is room: there are never more parts than pages.
                self.parts.push(part.within(&rest));
            }
        }
        self.settle();
        Some(inside)
    }

    /// Notes that pages are about to be discarded, or are no longer mapped. Returns how many were out.
    pub(crate) fn dropped(&mut self, range: &Range<u64>) -> u64 {
        self.end(range, TrapOutcome::Unknown);
        let mut pages = 0;
        while let Some(slots) = self.slots_of(range) {
            pages += self.gone(&slots, true).map_or(0, |part| part.len / PAGE);
        }
        pages
    }

    /// Notes that a mapping has moved.
    pub(crate) fn remapped(&mut self, from: u64, to: u64, len: u64) {
        let moved = from..from + len;
        self.end(&moved, TrapOutcome::Unknown);
        for at in 0..self.parts.len() {
            let part = self.parts[at];
            let inside = part.slots_of(&moved);
            if inside.is_empty() {
                continue;
            }
            let rests = [part.slot..inside.start, inside.end..part.slots().end];
            let inside = part.within(&inside);
            self.parts[at] = Part { live: inside.live - from + to, ..inside };
            for rest in rests.into_iter().filter(|rest| !rest.is_empty()) {
                // The parts that did not move are behind the end of this loop, and there is room: there are never more
                // parts than pages.
                self.parts.push(part.within(&rest));
            }
        }
    }

    /// Removes all traps of the round; they have been reported.
    pub(crate) fn clear(&mut self) {
        debug_assert!(self.parts.is_empty(), "no page is out");
        self.traps.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: u64 = 0x4000_0000;
    const PLACE: u64 = 0x7000_0000;

    /// Creates a huge trapped page followed by two small ones, in contiguous slots.
    fn traps() -> Traps {
        let mut traps = Traps::new();
        traps.set(LIVE, PLACE, IN_HUGE);
        traps.set(LIVE + HUGE, PLACE + HUGE, 1);
        traps.set(LIVE + HUGE + PAGE, PLACE + HUGE + PAGE, 1);
        traps
    }

    /// Returns the pages that are out and the numbers of their slots, in slot order.
    fn out(traps: &Traps) -> Vec<(Range<i64>, u64)> {
        let mut parts = traps.parts.clone();
        parts.sort_unstable_by_key(|part| part.slot);
        let page = |address: u64| (address.cast_signed() - LIVE.cast_signed()) / 4096;
        parts.iter().map(|part| (page(part.live)..page(part.live().end), (part.slot - PLACE) / PAGE)).collect()
    }

    fn fates(traps: &Traps) -> Vec<TrapOutcome> {
        traps.traps.iter().map(|trap| trap.fate).collect()
    }

    #[test]
    fn the_first_touch_sets_the_time_to_the_first_use() {
        let mut traps = traps();
        let part = traps.part_of(LIVE + 77 * PAGE).unwrap();
        assert_eq!(
            traps.run_in(&(PLACE..u64::MAX)).map(|run| run.len),
            Some(HUGE + 2 * PAGE),
            "neighbours on both adjacent_by"
        );
        let after = |millis| traps.traps[0].since + Duration::from_millis(millis);
        let (first, second) = (after(3), after(5));
        traps.touched(part, first);
        traps.touched(part, second);
        assert_eq!(fates(&traps), [TrapOutcome::Touched(Duration::from_millis(3)), TrapOutcome::Out, TrapOutcome::Out]);
        assert_eq!((traps.part_of(LIVE - 1), traps.part_of(LIVE + HUGE + 2 * PAGE)), (None, None));
        // A page that was recalled for another's sake does not count as untouched.
        traps.end(&(LIVE + HUGE..LIVE + HUGE + PAGE), TrapOutcome::Unknown);
        traps.end(&(0..u64::MAX), TrapOutcome::Untouched);
        assert_eq!(fates(&traps)[1..], [TrapOutcome::Unknown, TrapOutcome::Untouched]);
    }

    #[test]
    fn a_discarded_part_of_a_huge_page_is_left_in_its_slot_and_the_rest_stays_out() {
        let mut traps = traps();
        assert_eq!(traps.dropped(&(LIVE + 10 * PAGE..LIVE + 20 * PAGE)), 10);
        assert_eq!(traps.dropped(&(LIVE + 500 * PAGE..LIVE + HUGE + PAGE)), 13);
        assert_eq!(out(&traps), [(0..10, 0), (20..500, 20), (513..514, 513)]);
        assert_eq!(fates(&traps), [TrapOutcome::Unknown, TrapOutcome::Unknown, TrapOutcome::Out]);
        assert_eq!(
            traps.traps.iter().map(|trap| (trap.is_left, trap.is_split)).collect::<Vec<_>>(),
            [(true, true), (true, false), (false, false)]
        );
        assert_eq!(traps.part_of(LIVE + 15 * PAGE), None);
        // Lookup by slots returns only what is out.
        let part = traps.run_in(&(PLACE + 15 * PAGE..PLACE + 30 * PAGE)).unwrap();
        assert_eq!((part.live, part.len), (LIVE + 20 * PAGE, 10 * PAGE));
    }

    #[test]
    fn a_part_follows_its_mapping() {
        let mut traps = traps();
        traps.remapped(LIVE + 100 * PAGE, LIVE - 1000 * PAGE, 50 * PAGE);
        assert_eq!(out(&traps), [(0..100, 0), (-1000..-950, 100), (150..512, 150), (512..513, 512), (513..514, 513)]);
        assert_eq!(fates(&traps), [TrapOutcome::Unknown, TrapOutcome::Out, TrapOutcome::Out]);
        let part = traps.part_of(LIVE - 960 * PAGE).unwrap();
        assert_eq!(part.slot, PLACE + 100 * PAGE);
        traps.touched(part, Instant::now());
        assert_eq!(fates(&traps)[0], TrapOutcome::Unknown, "the time is unknown for the whole page");
        traps.remapped(LIVE - 1000 * PAGE, LIVE + 100 * PAGE, 50 * PAGE);
        assert_eq!(out(&traps)[1], (100..150, 100));
    }

    #[test]
    fn there_is_room_for_every_page_as_a_part() {
        let mut traps = Traps::new();
        for at in 0..MOST_HUGE as u64 {
            traps.set(LIVE + at * HUGE, PLACE + at * HUGE, IN_HUGE);
        }
        (0..MOST_SMALL as u64).for_each(|at| traps.set(at * PAGE, at * PAGE, 1));
        assert!(!traps.has_room(1));
        let room = traps.parts.capacity();
        for page in (1..MOST_HUGE as u64 * 512).step_by(2) {
            traps.remapped(LIVE + page * PAGE, 2 * LIVE + page * PAGE, PAGE);
        }
        assert_eq!((traps.parts.len(), traps.parts.capacity()), (room, room));
        while traps.gone(&(0..u64::MAX), false).is_some() {}
        assert!(traps.are_empty() && traps.traps[..MOST_HUGE].iter().all(|trap| trap.is_split && !trap.is_left));
        traps.clear();
        assert!(traps.are_told() && traps.has_room(IN_HUGE));
    }
}
