//! Pages on their way: where the program has them, where they are, and where they go.
//!
//! Neighbours that are alike are one part of it, so that a huge page, or small ones whose places are neighbours, cost one look each time. What
//! happens to some pages of a part cuts it; parts are never joined, and stay in their order. Each page may become a part of its own
//! without anything being allocated.

use crate::config::{HUGE, PAGE, TierId};
use crate::marks::MARKS;
use std::ops::{Deref, DerefMut, Range};

/// Pages that are moved, and looked at, together at most; no part has more. Source: chosen, those of a huge page.
pub(crate) const LOOK: usize = MARKS;

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
    /// Back from where it was put first, as the thread that moves it wanted it itself. It may have left a page of zeros there.
    Rescued,
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
    /// Something is in the place that it was to go to, which nobody has put there.
    Blocked,
}

/// Neighbouring pages on their way, which are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Aloft {
    /// Where the program has the first.
    pub(crate) live: u64,
    /// Where it had it when it was planned: a child that was forked before its mapping moved has it there.
    pub(crate) taken: u64,
    /// The places it leaves and comes to.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The one from which it is brought back: where it was put first, and once it is copied whole, where it was copied to.
    pub(crate) source: u64,
    /// How many there are; the others follow the first in all these places.
    pub(crate) pages: usize,
    pub(crate) stage: Stage,
    pub(crate) tier: TierId,
    /// The places they come to have their old copies.
    pub(crate) shadowed: bool,
    /// They are of one huge page.
    pub(crate) huge: bool,
}

impl Aloft {
    /// So many small pages that are to be taken out and have no old copies.
    pub(crate) fn planned(live: u64, (from, to): (u64, u64), pages: usize, tier: TierId) -> Aloft {
        let stage = Stage::Planned;
        Aloft { live, taken: live, from, to, source: from, pages, stage, tier, shadowed: false, huge: false }
    }

    /// Bytes of them.
    pub(crate) fn len(&self) -> u64 {
        self.pages as u64 * PAGE
    }

    /// Where the program has them.
    pub(crate) fn range(&self) -> Range<u64> {
        self.live..self.live + self.len()
    }

    /// It is nowhere for good yet.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Planned | Stage::Busy | Stage::Out)
    }

    /// Its bytes are where it goes, too; unless it has come back meanwhile.
    pub(crate) fn comes_from_where_it_goes(&mut self) {
        if self.stage == Stage::Out {
            self.source = self.to;
        }
    }

    /// So many of its first pages, and the others.
    fn cut(self, pages: usize) -> (Aloft, Aloft) {
        debug_assert!((1..self.pages).contains(&pages));
        let by = pages as u64 * PAGE;
        let first = Aloft { pages, ..self };
        let rest = Aloft {
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

/// Which places of parts are neighbours.
pub(crate) type Side = fn(&Aloft) -> u64;

/// The parts, neighbours together.
#[derive(Debug)]
pub(crate) struct Flight(Vec<Aloft>);

impl Deref for Flight {
    type Target = [Aloft];

    fn deref(&self) -> &[Aloft] {
        &self.0
    }
}

impl DerefMut for Flight {
    fn deref_mut(&mut self) -> &mut [Aloft] {
        &mut self.0
    }
}

impl Flight {
    /// Of so many pages at most.
    pub(crate) fn with_room(pages: usize) -> Flight {
        Flight(Vec::with_capacity(pages))
    }

    /// Adds parts, as many as there is room for their pages.
    pub(crate) fn add(&mut self, parts: &[Aloft]) {
        debug_assert!(parts.iter().chain(&self.0).map(|part| part.pages).sum::<usize>() <= self.0.capacity());
        debug_assert!(parts.iter().all(|part| (1..=LOOK).contains(&part.pages)));
        self.0.extend_from_slice(parts);
    }

    /// It is over.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The page at this address is out.
    pub(crate) fn has_out(&self, page: u64) -> bool {
        self.0.iter().any(|part| part.stage == Stage::Out && part.range().contains(&page))
    }

    /// Pages of some parts.
    pub(crate) fn pages(&self, parts: &Range<usize>) -> usize {
        self.0[parts.clone()].iter().map(|part| part.pages).sum()
    }

    /// The first part from `at` on that is at this stage, and those that follow it on these sides and are so, too; at most so many pages, for which
    /// a part is cut.
    pub(crate) fn run(&mut self, at: usize, most: usize, stage: Stage, sides: &[Side]) -> Option<Range<usize>> {
        let first = at + self.0.get(at..)?.iter().position(|part| part.stage == stage)?;
        if self.0[first].pages > most {
            self.cut(first, most);
        }
        let mut pages = self.0[first].pages;
        let follows = |pair: &&[Aloft]| {
            pages += pair[1].pages;
            let neighbours = |side: &Side| side(&pair[0]).wrapping_add(pair[0].len()) == side(&pair[1]);
            // Of a huge page only what is of the same.
            let of = |part: &Aloft| part.huge.then_some(part.from / HUGE);
            pages <= most && pair[1].stage == stage && of(&pair[0]) == of(&pair[1]) && sides.iter().all(neighbours)
        };
        let more = self.0[first..].windows(2).take_while(follows).count();
        Some(first..first + 1 + more)
    }

    /// The first part from `at` on that is at this stage is of a huge page.
    pub(crate) fn is_next_huge(&self, at: usize, stage: Stage) -> bool {
        self.0[at..].iter().find(|part| part.stage == stage).is_some_and(|part| part.huge)
    }

    /// The parts whose places to leave are these; they were parts, or several, when they were found at `at`, and may have been cut since.
    pub(crate) fn of_places(&self, at: usize, from: &Range<u64>) -> Range<usize> {
        let is_one = |part: &Aloft| from.contains(&part.from);
        let first = at + self.0[at..].iter().position(is_one).expect("parts stay");
        first..first + self.0[first..].iter().take_while(|part| is_one(part)).count()
    }

    /// Each page of these parts is a part now. Returns which.
    pub(crate) fn singly(&mut self, parts: Range<usize>) -> Range<usize> {
        let pages = self.pages(&parts);
        let more = pages - parts.len();
        let (end, len) = (parts.end, self.0.len());
        if more > 0 {
            // From behind: what is to be written there has been moved away, or cut, before.
            self.0.resize(len + more, self.0[0]);
            self.0.copy_within(end..len, end + more);
            let mut to = parts.start + pages;
            for at in parts.clone().rev() {
                let mut rest = self.0[at];
                to -= rest.pages;
                let mut place = to;
                while rest.pages > 1 {
                    (self.0[place], rest) = rest.cut(1);
                    place += 1;
                }
                self.0[place] = rest;
            }
        }
        parts.start..parts.start + pages
    }

    /// The page at this address, of a part that has it, is a part now. Returns which.
    pub(crate) fn single(&mut self, at: usize, page: u64) -> usize {
        let before = usize::try_from((page - self.0[at].live) / PAGE).expect("pages of this process");
        let at = if before > 0 { self.cut(at, before) } else { at };
        if self.0[at].pages > 1 {
            self.cut(at, 1);
        }
        at
    }

    /// Cuts what is under way where a range begins and ends.
    pub(crate) fn cut_around(&mut self, range: &Range<u64>) {
        for border in [range.start, range.end] {
            let is_cut = |part: &Aloft| part.is_under_way() && part.live < border && border < part.live + part.len();
            // One page is once on its way at most.
            if let Some(at) = self.0.iter().position(is_cut) {
                let pages = usize::try_from((border - self.0[at].live) / PAGE).expect("pages of this process");
                self.cut(at, pages);
            }
        }
    }

    /// So many pages of a part are one now, and the others the next, which is returned.
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

    /// A page's places, by its number.
    fn part(number: u64, pages: usize) -> Aloft {
        let place = |base: u64| base + number * PAGE;
        let (live, from, to) = (place(0x10_0000), place(0x20_0000), place(0x30_0000));
        Aloft::planned(live, (from, to), pages, TierId(1))
    }

    fn flight(parts: &[(u64, usize)]) -> Flight {
        let mut flight = Flight::with_room(64);
        flight.add(&parts.iter().map(|&(number, pages)| part(number, pages)).collect::<Vec<_>>());
        flight
    }

    /// Numbers of first pages, and how many there are.
    fn parts(flight: &Flight) -> Vec<(u64, usize)> {
        assert!(flight.iter().all(|aloft| *aloft == part((aloft.live - 0x10_0000) / PAGE, aloft.pages)));
        flight.iter().map(|part| ((part.live - 0x10_0000) / PAGE, part.pages)).collect()
    }

    const SIDES: [Side; 2] = [|aloft| aloft.live, |aloft| aloft.from];

    #[test]
    fn parts_that_follow_each_other_are_a_run() {
        let mut of = flight(&[(0, 2), (2, 3), (5, 1), (7, 4)]);
        let mut run = |at, most| of.run(at, most, Stage::Planned, &SIDES);
        assert_eq!((run(0, 64), run(1, 64), run(3, 64), run(4, 64)), (Some(0..3), Some(1..3), Some(3..4), None));
        // No more than so many pages.
        assert_eq!((run(0, 5), run(0, 4)), (Some(0..2), Some(0..1)));
        assert_eq!(parts(&of), [(0, 2), (2, 3), (5, 1), (7, 4)]);
        assert_eq!(of.run(3, 3, Stage::Planned, &SIDES), Some(3..4));
        assert_eq!(parts(&of), [(0, 2), (2, 3), (5, 1), (7, 3), (10, 1)]);
        of[1].stage = Stage::Out;
        assert_eq!(of.run(0, 64, Stage::Planned, &SIDES), Some(0..1));
        assert_eq!(of.run(1, 64, Stage::Out, &SIDES), Some(1..2));
        of[0].stage = Stage::Out;
        of[1].from += PAGE;
        assert_eq!(of.run(0, 64, Stage::Out, &SIDES), Some(0..1));
        assert_eq!(of.run(0, 64, Stage::Out, &SIDES[..1]), Some(0..2));
    }

    #[test]
    fn every_page_may_be_a_part() {
        let mut of = flight(&[(0, 2), (2, 3), (5, 1), (7, 4)]);
        assert_eq!(of.singly(1..3), 1..5);
        assert_eq!(parts(&of), [(0, 2), (2, 1), (3, 1), (4, 1), (5, 1), (7, 4)]);
        assert_eq!((of.singly(2..4), of.len()), (2..4, 6));
        assert_eq!((of.singly(0..6), of.pages(&(0..10))), (0..10, 10));
        let singles: Vec<_> = (0..6).chain(7..11).map(|number| (number, 1)).collect();
        assert_eq!(parts(&of), singles);
    }

    #[test]
    fn parts_are_cut_where_something_happens() {
        let mut of = flight(&[(0, 4), (8, 8)]);
        let page = |number: u64| part(number, 1).live;
        assert_eq!((of.single(1, page(10)), of.single(0, page(0))), (2, 0));
        assert_eq!(parts(&of), [(0, 1), (1, 3), (8, 2), (10, 1), (11, 5)]);
        of.cut_around(&(page(2)..page(14)));
        assert_eq!(parts(&of), [(0, 1), (1, 1), (2, 2), (8, 2), (10, 1), (11, 3), (14, 2)]);
        // Not what is over, and not where a part ends.
        of[2].stage = Stage::Back;
        of.cut_around(&(page(3)..page(14)));
        assert_eq!((of.len(), of.single(6, page(15))), (7, 7));
    }

    #[test]
    fn parts_are_found_again_by_their_places() {
        let mut of = flight(&[(0, 4), (4, 4), (9, 2)]);
        let place = |number: u64| part(number, 1).from;
        assert_eq!(of.of_places(0, &(place(4)..place(8))), 1..2);
        of.singly(0..1);
        of.cut_around(&(part(5, 1).live..part(7, 1).live));
        assert_eq!(of.of_places(1, &(place(4)..place(8))), 4..7);
        assert_eq!(of.of_places(0, &(place(9)..place(11))), 7..8);
    }
}
