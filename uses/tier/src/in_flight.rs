//! The pages in flight: their address in the program, where they are now, and where they go.
//!
//! Contiguous pages with the same properties form one run, so that a huge page, or small pages with contiguous slots,
//! cost one lookup. An event that affects some pages of a run splits it. Runs are never joined and keep their order.
//! There is room for every page to become a run of its own without an allocation.

use crate::config::{HUGE, PAGE, TierId};
use crate::page_set::PAGES_IN_SET;
use std::ops::{Deref, DerefMut, Range};

/// The most pages that are moved or scanned at once; no run is longer. Source: chosen, the pages of a huge page.
pub(crate) const LOOK: usize = PAGES_IN_SET;

/// The progress of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Not taken out yet.
    Planned,
    /// The kernel answered that the page is busy; it is tried once more.
    Busy,
    /// Out.
    Out,
    /// Brought back from `source`.
    Back,
    /// Brought back as a copy made by the kernel.
    Returned,
    /// Brought back from the slot it was taken to, because the moving thread touched it. A page of zeros may be left in
    /// that slot.
    Rescued,
    /// Not taken out.
    Unmoved(NotTaken),
    /// Discarded or unmapped, before or while it was out.
    Dropped {
        /// It had been taken out.
        out: bool,
    },
}

/// NotTaken a run was not taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotTaken {
    Pinned,
    Unsupported,
    Gone,
    /// Its slot holds something that this crate has not put there.
    Blocked,
}

/// A run of contiguous pages in flight with the same properties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MovingRun {
    /// The address of the first page in the program.
    pub(crate) live: u64,
    /// `live` at the time of planning. A child that was forked before the mapping moved has the page there.
    pub(crate) taken: u64,
    /// The slots that the pages are taken to and copied to.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The slot from which the pages are brought back: `from` at first, `to` once the whole run is copied.
    pub(crate) source: u64,
    /// The number of pages; they are contiguous at all these addresses.
    pub(crate) pages: usize,
    pub(crate) stage: Stage,
    pub(crate) tier: TierId,
    /// The slots in `to` hold old copies of the pages.
    pub(crate) shadowed: bool,
    /// The run is part of one huge page.
    pub(crate) huge: bool,
}

impl MovingRun {
    /// Creates a run of small pages without old copies that is to be taken out.
    pub(crate) fn planned(live: u64, (from, to): (u64, u64), pages: usize, tier: TierId) -> MovingRun {
        let stage = Stage::Planned;
        MovingRun { live, taken: live, from, to, source: from, pages, stage, tier, shadowed: false, huge: false }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.pages as u64 * PAGE
    }

    /// Returns the addresses in the program.
    pub(crate) fn range(&self) -> Range<u64> {
        self.live..self.live + self.len()
    }

    /// Returns whether the run is neither back nor dropped nor left in place.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Planned | Stage::Busy | Stage::Out)
    }

    /// Notes that the bytes are in `to` as well, unless the run has come back meanwhile.
    pub(crate) fn comes_from_where_it_goes(&mut self) {
        if self.stage == Stage::Out {
            self.source = self.to;
        }
    }

    /// Splits off the first `pages` pages.
    fn cut(self, pages: usize) -> (MovingRun, MovingRun) {
        debug_assert!((1..self.pages).contains(&pages));
        let by = pages as u64 * PAGE;
        let first = MovingRun { pages, ..self };
        let rest = MovingRun {
            live: self.live + by,
            taken: self.taken + by,
            from: self.from + by,
            to: self.to + by,
            source: self.source + by,
            pages: self.pages - pages,
            ..self
        };
        (first, rest)
    }
}

/// Which address of two runs must be contiguous.
pub(crate) type AddressOf = fn(&MovingRun) -> u64;

/// The runs; contiguous runs follow each other.
#[derive(Debug)]
pub(crate) struct PagesInFlight(Vec<MovingRun>);

impl Deref for PagesInFlight {
    type Target = [MovingRun];

    fn deref(&self) -> &[MovingRun] {
        &self.0
    }
}

impl DerefMut for PagesInFlight {
    fn deref_mut(&mut self) -> &mut [MovingRun] {
        &mut self.0
    }
}

impl PagesInFlight {
    /// Creates an empty list for at most this many pages.
    pub(crate) fn with_room(pages: usize) -> PagesInFlight {
        PagesInFlight(Vec::with_capacity(pages))
    }

    /// Adds runs. The list has room for all their pages.
    pub(crate) fn add(&mut self, parts: &[MovingRun]) {
        debug_assert!(parts.iter().chain(&self.0).map(|part| part.pages).sum::<usize>() <= self.0.capacity());
        debug_assert!(parts.iter().all(|part| (1..=LOOK).contains(&part.pages)));
        self.0.extend_from_slice(parts);
    }

    /// Removes all runs.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns whether the page at this address is out.
    pub(crate) fn has_out(&self, page: u64) -> bool {
        self.0.iter().any(|part| part.stage == Stage::Out && part.range().contains(&page))
    }

    /// Returns the number of pages in some runs.
    pub(crate) fn pages(&self, parts: &Range<usize>) -> usize {
        self.0[parts.clone()].iter().map(|part| part.pages).sum()
    }

    /// Returns the first run from `at` on at this stage, and the following ones that are at this stage and contiguous
    /// by these addresses. At most `most` pages; a longer run is split.
    pub(crate) fn run(
        &mut self,
        at: usize,
        most: usize,
        stage: Stage,
        adjacent_by: &[AddressOf],
    ) -> Option<Range<usize>> {
        let first = at + self.0.get(at..)?.iter().position(|part| part.stage == stage)?;
        if self.0[first].pages > most {
            self.cut(first, most);
        }
        let mut pages = self.0[first].pages;
        let follows = |pair: &&[MovingRun]| {
            pages += pair[1].pages;
            let neighbours =
                |address_of: &AddressOf| address_of(&pair[0]).wrapping_add(pair[0].len()) == address_of(&pair[1]);
            // Parts of huge pages are joined only within the same huge page.
            let of = |part: &MovingRun| part.huge.then_some(part.from / HUGE);
            pages <= most
                && pair[1].stage == stage
                && of(&pair[0]) == of(&pair[1])
                && adjacent_by.iter().all(neighbours)
        };
        let more = self.0[first..].windows(2).take_while(follows).count();
        Some(first..first + 1 + more)
    }

    /// Returns whether the first run from `at` on at this stage is part of a huge page.
    pub(crate) fn is_next_huge(&self, at: usize, stage: Stage) -> bool {
        self.0[at..].iter().find(|part| part.stage == stage).is_some_and(|part| part.huge)
    }

    /// Returns the runs, from `at` on, whose `from` slots are in this range. They may have been split since.
    pub(crate) fn of_slots(&self, at: usize, from: &Range<u64>) -> Range<usize> {
        let is_one = |part: &MovingRun| from.contains(&part.from);
        let first = at + self.0[at..].iter().position(is_one).expect("parts stay");
        first..first + self.0[first..].iter().take_while(|part| is_one(part)).count()
    }

    /// Splits these runs into single pages. Returns their indexes.
    pub(crate) fn singly(&mut self, parts: Range<usize>) -> Range<usize> {
        let pages = self.pages(&parts);
        let more = pages - parts.len();
        let (end, len) = (parts.end, self.0.len());
        if more > 0 {
            // Backwards: the run that is overwritten has been moved or split before.
            self.0.resize(len + more, self.0[0]);
            self.0.copy_within(end..len, end + more);
            let mut to = parts.start + pages;
            for at in parts.clone().rev() {
                let mut rest = self.0[at];
                to -= rest.pages;
                let mut index = to;
                while rest.pages > 1 {
                    (self.0[index], rest) = rest.cut(1);
                    index += 1;
                }
                self.0[index] = rest;
            }
        }
        parts.start..parts.start + pages
    }

    /// Splits a run so that the page at this address is a run of its own. Returns its index.
    pub(crate) fn single(&mut self, at: usize, page: u64) -> usize {
        let before = usize::try_from((page - self.0[at].live) / PAGE).expect("pages of this process");
        let at = if before > 0 { self.cut(at, before) } else { at };
        if self.0[at].pages > 1 {
            self.cut(at, 1);
        }
        at
    }

    /// Splits the runs under way at both ends of a range.
    pub(crate) fn cut_around(&mut self, range: &Range<u64>) {
        for border in [range.start, range.end] {
            let is_cut =
                |part: &MovingRun| part.is_under_way() && part.live < border && border < part.live + part.len();
            // A page is in flight only once, so at most one run contains the border.
            if let Some(at) = self.0.iter().position(is_cut) {
                let pages = usize::try_from((border - self.0[at].live) / PAGE).expect("pages of this process");
                self.cut(at, pages);
            }
        }
    }

    /// Splits a run after this many pages. Returns the index of the second part.
    fn cut(&mut self, at: usize, pages: usize) -> usize {
        let (first, rest) = self.0[at].cut(pages);
        self.0[at] = first;
        self.0.insert(at + 1, rest);
        at + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a run; its addresses follow from the number of its first page.
    fn part(number: u64, pages: usize) -> MovingRun {
        let address = |base: u64| base + number * PAGE;
        let (live, from, to) = (address(0x10_0000), address(0x20_0000), address(0x30_0000));
        MovingRun::planned(live, (from, to), pages, TierId(1))
    }

    fn in_flight(parts: &[(u64, usize)]) -> PagesInFlight {
        let mut in_flight = PagesInFlight::with_room(64);
        in_flight.add(&parts.iter().map(|&(number, pages)| part(number, pages)).collect::<Vec<_>>());
        in_flight
    }

    /// Returns the number of the first page and the length of each run.
    fn parts(in_flight: &PagesInFlight) -> Vec<(u64, usize)> {
        assert!(in_flight.iter().all(|moving| *moving == part((moving.live - 0x10_0000) / PAGE, moving.pages)));
        in_flight.iter().map(|part| ((part.live - 0x10_0000) / PAGE, part.pages)).collect()
    }

    const ADJACENT_BY: [AddressOf; 2] = [|moving| moving.live, |moving| moving.from];

    #[test]
    fn contiguous_runs_are_found_together() {
        let mut of = in_flight(&[(0, 2), (2, 3), (5, 1), (7, 4)]);
        let mut run = |at, most| of.run(at, most, Stage::Planned, &ADJACENT_BY);
        assert_eq!((run(0, 64), run(1, 64), run(3, 64), run(4, 64)), (Some(0..3), Some(1..3), Some(3..4), None));
        // At most this many pages.
        assert_eq!((run(0, 5), run(0, 4)), (Some(0..2), Some(0..1)));
        assert_eq!(parts(&of), [(0, 2), (2, 3), (5, 1), (7, 4)]);
        assert_eq!(of.run(3, 3, Stage::Planned, &ADJACENT_BY), Some(3..4));
        assert_eq!(parts(&of), [(0, 2), (2, 3), (5, 1), (7, 3), (10, 1)]);
        of[1].stage = Stage::Out;
        assert_eq!(of.run(0, 64, Stage::Planned, &ADJACENT_BY), Some(0..1));
        assert_eq!(of.run(1, 64, Stage::Out, &ADJACENT_BY), Some(1..2));
        of[0].stage = Stage::Out;
        of[1].from += PAGE;
        assert_eq!(of.run(0, 64, Stage::Out, &ADJACENT_BY), Some(0..1));
        assert_eq!(of.run(0, 64, Stage::Out, &ADJACENT_BY[..1]), Some(0..2));
    }

    #[test]
    fn every_page_may_become_a_run() {
        let mut of = in_flight(&[(0, 2), (2, 3), (5, 1), (7, 4)]);
        assert_eq!(of.singly(1..3), 1..5);
        assert_eq!(parts(&of), [(0, 2), (2, 1), (3, 1), (4, 1), (5, 1), (7, 4)]);
        assert_eq!((of.singly(2..4), of.len()), (2..4, 6));
        assert_eq!((of.singly(0..6), of.pages(&(0..10))), (0..10, 10));
        let singles: Vec<_> = (0..6).chain(7..11).map(|number| (number, 1)).collect();
        assert_eq!(parts(&of), singles);
    }

    #[test]
    fn runs_are_split_where_an_event_begins_and_ends() {
        let mut of = in_flight(&[(0, 4), (8, 8)]);
        let page = |number: u64| part(number, 1).live;
        assert_eq!((of.single(1, page(10)), of.single(0, page(0))), (2, 0));
        assert_eq!(parts(&of), [(0, 1), (1, 3), (8, 2), (10, 1), (11, 5)]);
        of.cut_around(&(page(2)..page(14)));
        assert_eq!(parts(&of), [(0, 1), (1, 1), (2, 2), (8, 2), (10, 1), (11, 3), (14, 2)]);
        // Runs that are over are not split, and neither is a run that ends at the border.
        of[2].stage = Stage::Back;
        of.cut_around(&(page(3)..page(14)));
        assert_eq!((of.len(), of.single(6, page(15))), (7, 7));
    }

    #[test]
    fn runs_are_found_again_by_their_slots() {
        let mut of = in_flight(&[(0, 4), (4, 4), (9, 2)]);
        let slot = |number: u64| part(number, 1).from;
        assert_eq!(of.of_slots(0, &(slot(4)..slot(8))), 1..2);
        of.singly(0..1);
        of.cut_around(&(part(5, 1).live..part(7, 1).live));
        assert_eq!(of.of_slots(1, &(slot(4)..slot(8))), 4..7);
        assert_eq!(of.of_slots(0, &(slot(9)..slot(11))), 7..8);
    }
}
