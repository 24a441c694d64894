//! Puts mapping events into the order in which things happened.
//!
//! The kernel changes a mapping under its lock and sends the event after it has released the lock. If two threads
//! change mappings at once, the event of the later change may arrive first. A mapping that moves causes two events:
//! that it moved, and then that its old range is gone (Linux, mm/mremap.c: `mremap_userfaultfd_complete`,
//! `userfaultfd_unmap_complete`). Another mapping may be in the old range by then. Events applied as they arrive would
//! drop pages in flight that the program still has.
//!
//! - A mapping that moves to a range where the map still knows pages is **late**: it waits for the event that says what
//!   became of those. Faults there wait too.
//! - Where a mapping has moved away, an unmap event is **due**. A mapping that has come there since is **fresh** and
//!   survives that event.
//!
//! While an event is outstanding the kernel moves no page (`EAGAIN`). So once a page has moved, no event is due any
//! more.

use crate::page_map::PageMap;
use std::ops::Range;

/// The most entries of each list. Source: chosen; fewer threads change mappings at the same moment. An event that does
/// not fit is applied as it arrives.
const MOST: usize = 256;

/// A mapping that has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Move {
    from: u64,
    to: u64,
    len: u64,
}

impl Move {
    fn target(self) -> Range<u64> {
        self.to..self.to + self.len
    }
}

/// Events that did not arrive in order.
#[derive(Debug)]
pub(crate) struct EventOrder {
    late: Vec<Move>,
    due: Vec<Range<u64>>,
    fresh: Vec<Range<u64>>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl EventOrder {
    /// Creates empty lists with room for [`MOST`] entries.
    pub(crate) fn new() -> EventOrder {
        EventOrder { late: Vec::with_capacity(MOST), due: Vec::with_capacity(MOST), fresh: Vec::with_capacity(MOST) }
    }

    /// Notes that a page has moved: no event is outstanding.
    pub(crate) fn is_quiet(&mut self) {
        self.due.clear();
        self.fresh.clear();
    }

    /// Returns whether a move waits for another event.
    pub(crate) fn waits(&self) -> bool {
        !self.late.is_empty()
    }

    /// Returns whether the page is in the target of a move that waits for another event; its state is unknown until
    /// then.
    pub(crate) fn is_late(&self, page: u64) -> bool {
        self.late.iter().any(|late| late.target().contains(&page))
    }
}

impl PageMap {
    /// Handles the event of a mapping that has moved. `wake` is called for ranges where threads may wait.
    pub(crate) fn remap_event(&mut self, from: u64, to: u64, len: u64, mut wake: impl FnMut(Range<u64>)) {
        if self.order.late.len() == MOST {
            self.catch_up(true, &mut wake);
        }
        self.order.late.push(Move { from, to, len });
        self.catch_up(false, wake);
    }

    /// Handles the event of a mapping that is gone.
    pub(crate) fn unmap_event(&mut self, range: &Range<u64>, mut wake: impl FnMut(Range<u64>)) {
        let due = self.order.due.iter().position(|due| due == range);
        let mut start = range.start;
        if let Some(due) = due {
            self.order.due.swap_remove(due);
            // In address order, without an allocation.
            while let Some(at) = self.next_fresh(start, range.end) {
                let fresh = self.order.fresh.swap_remove(at);
                if start < fresh.start {
                    self.unmapped(&(start..fresh.start));
                }
                start = start.max(fresh.end);
            }
        }
        if start < range.end {
            self.unmapped(&(start..range.end));
        }
        wake(range.clone());
        self.catch_up(false, wake);
    }

    /// Returns the index of the first fresh range within these addresses.
    fn next_fresh(&self, start: u64, end: u64) -> Option<usize> {
        let inside = self.order.fresh.iter().enumerate().filter(|(_, fresh)| overlap(fresh, &(start..end)));
        inside.min_by_key(|(_, fresh)| fresh.start).map(|(at, _)| at)
    }

    /// Applies the moves whose target is no longer known; with `all`, every waiting move, because no further event will
    /// come.
    pub(crate) fn catch_up(&mut self, all: bool, mut wake: impl FnMut(Range<u64>)) {
        while let Some(at) = self.order.late.iter().position(|late| all || !self.knows_of(&late.target())) {
            let Move { from, to, len } = self.order.late.remove(at);
            let target = to..to + len;
            let order = &mut self.order;
            if order.due.iter().any(|due| overlap(due, &target)) && order.fresh.len() < MOST {
                order.fresh.push(target.clone());
            }
            self.remapped(from, to, len);
            if self.order.due.len() < MOST {
                self.order.due.push(from..from + len);
            }
            wake(from..from + len);
            wake(target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PAGE, TierId};
    use crate::in_flight::{MovingRun, Stage};
    use crate::page_map::Lists;

    const HOME: TierId = TierId(1);
    /// Eight pages in bytes.
    const EIGHT: u64 = 8 * PAGE;
    const A: u64 = 0x10_0000;
    const B: u64 = A + 2 * EIGHT;
    const D: u64 = B + 2 * EIGHT;

    fn at(start: u64) -> Range<u64> {
        start..start + EIGHT
    }

    /// Creates a map that knows these ranges, with the page at `out` out.
    fn map(known: &[u64], out: u64) -> PageMap {
        let mut map = PageMap::new(HOME, 8);
        assert!(map.grow(&mut Lists::with_room(8)));
        for &start in known {
            assert!(map.adopt(at(start), &mut PageMap::states(HOME, &at(start))));
        }
        map.in_flight.add(&[MovingRun::planned(out, (1, 2), 1, HOME)]);
        map.went_out(0..1);
        map
    }

    fn remap(map: &mut PageMap, from: u64, to: u64) -> Vec<Range<u64>> {
        let mut woken = Vec::new();
        map.remap_event(from, to, EIGHT, |range| woken.push(range));
        woken
    }

    fn unmap(map: &mut PageMap, start: u64) {
        map.unmap_event(&at(start), |_| ());
    }

    /// Returns the address of the page that is out, and whether it is still out (not dropped).
    fn moving(map: &PageMap) -> (u64, bool) {
        (map.in_flight[0].live, map.in_flight[0].stage == Stage::Out)
    }

    #[test]
    fn a_late_unmap_event_does_not_end_a_newer_mapping() {
        let mut map = map(&[A, D], D);
        remap(&mut map, A, B);
        // By another thread, before the first thread's unmap event for A.
        remap(&mut map, D, A);
        unmap(&mut map, A);
        assert_eq!(moving(&map), (A, true));
        assert!(map.is_out(A) && map.knows_of(&at(B)) && !map.knows_of(&at(D)));
        // First the second thread's own event, and then A is really unmapped.
        unmap(&mut map, D);
        unmap(&mut map, A);
        assert_eq!(moving(&map), (A, false));
        assert!(!map.knows_of(&at(A)));
    }

    #[test]
    fn a_move_onto_a_known_range_waits_until_that_range_is_gone() {
        for gone_by_move in [false, true] {
            let mut map = map(&[A, D], D);
            assert_eq!(remap(&mut map, D, A), [], "no thread is woken before the target is known");
            assert!(map.order.waits() && map.order.is_late(A) && !map.order.is_late(D));
            assert_eq!(moving(&map), (D, true));
            if gone_by_move {
                remap(&mut map, A, B);
            } else {
                unmap(&mut map, A);
            }
            assert_eq!((moving(&map), map.order.waits()), ((A, true), false));
            assert_eq!(map.knows_of(&at(B)), gone_by_move);
            assert!(map.is_out(A) && !map.knows_of(&at(D)));
        }
    }

    #[test]
    fn a_missing_event_is_awaited_until_no_change_is_under_way() {
        let mut map = map(&[A, D], A);
        remap(&mut map, D, A);
        let mut woken = Vec::new();
        map.catch_up(true, |range| woken.push(range));
        assert_eq!((woken, map.order.waits()), (vec![at(D), at(A)], false));
        // The pages known there before are gone.
        assert_eq!(moving(&map), (A, false));
    }

    #[test]
    fn no_event_is_due_after_a_page_has_moved() {
        let mut map = map(&[A, D], D);
        remap(&mut map, A, B);
        map.order.is_quiet();
        remap(&mut map, D, A);
        unmap(&mut map, A);
        assert_eq!(moving(&map), (A, false));
    }

    #[test]
    fn the_lists_are_bounded() {
        let mut map = map(&[A, D], D);
        let mut most = 0;
        for _ in 0..2 * MOST {
            remap(&mut map, D, A);
            most = most.max(map.order.late.len());
        }
        assert_eq!(most, MOST);
        unmap(&mut map, A);
        assert!(map.order.due.len() <= MOST && map.order.fresh.len() <= MOST);
    }
}
