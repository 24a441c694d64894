//! A page comes back into the program after its copy, or earlier if its copy failed.
#![allow(unsafe_code, reason = "moves pages of a running program and copies them while no other code can access them")]

use super::Exchange;
use crate::config::PAGE;
use crate::in_flight::{AddressOf, LOOK, MovingRun, Stage};
use crate::page_map::PageMap;
use rustix::io::Errno;
use std::time::Instant;
use telpher_os::Progress;

impl Exchange {
    /// Brings back all pages that are out.
    pub(crate) fn bring_back(&self) {
        // The time limit starts at the first page that cannot be moved back.
        let mut end = None;
        let mut is_last = || Instant::now() >= *end.get_or_insert_with(|| Instant::now() + self.retry_timeout);
        self.after_events(|exchange, map| exchange.bring_back_once(map, &mut is_last));
    }

    /// Returns true if events must be read first, or if a page is to be tried again.
    fn bring_back_once(&self, map: &mut PageMap, is_last: &mut dyn FnMut() -> bool) -> bool {
        let adjacent_by: [AddressOf; 2] = [|moving| moving.live, |moving| moving.source];
        // As in `take_out_once`: by now a run may belong to several mappings.
        let (mut at, mut most, mut again) = (0, LOOK, false);
        while let Some(run) = map.in_flight.run(at, most, Stage::Out, &adjacent_by) {
            let (first, len) = (map.in_flight[run.start], map.in_flight.pages(&run) as u64 * PAGE);
            let live = first.live..first.live + len;
            // SAFETY: the range is registered, or the kernel refuses. Its pages are missing because this exchange has
            // them, and its owner expects their bytes. The slot is the exchange's own.
            let Progress { error, .. } = unsafe { self.take(live.start, first.source, len) };
            let tier = |at: usize, map: &PageMap| {
                if map.in_flight[at].source == map.in_flight[at].to { map.to } else { map.in_flight[at].tier }
            };
            let Some(error) = error else {
                map.order.is_quiet();
                for at in run.clone() {
                    let tier = tier(at, map);
                    map.came_back(at, Stage::Back, tier);
                }
                most = LOOK.min(most * 2);
                at = run.end;
                continue;
            };
            let there = self.in_place(first.source..first.source + len);
            let run = map.in_flight.singly(run);
            let mut moved = 0;
            for at in run.clone().filter(|&at| !there.has(at - run.start)) {
                let tier = tier(at, map);
                map.came_back(at, Stage::Back, tier);
                moved += 1;
            }
            map.stats.misreported += u64::from(moved == run.len() && error != Errno::AGAIN);
            // The error has left threads waiting; they fault again.
            self.userfault.wake(live);
            if moved > 0 {
                at = run.start;
                continue;
            }
            match error {
                // However long this takes, the page is not lost: it ends when the thread that changes a mapping has
                // run.
                Errno::AGAIN => return true,
                _ if run.len() > 1 => {
                    most = run.len() / 2;
                    at = run.start;
                }
                // The mapping is gone: it was moved or unmapped, and its event must be read.
                Errno::NOENT if !is_last() => (at, again) = (run.end, true),
                _ => {
                    again |= self.put_copy(map, run.start, is_last());
                    at = run.start + 1;
                }
            }
        }
        again
    }

    /// Has the kernel copy a page that cannot be moved back because its mapping was locked or protected meanwhile.
    /// Returns true if it is to be tried again.
    fn put_copy(&self, map: &mut PageMap, at: usize, last: bool) -> bool {
        let MovingRun { live, source, .. } = map.in_flight[at];
        // SAFETY: as for the move; the source is the exchange's own and is no longer written.
        let Progress { error, .. } = unsafe { self.userfault.put_copies(live, source, PAGE) };
        let home = self.home;
        match error {
            None => {
                map.stats.copied_back += 1;
                map.came_back(at, Stage::Returned, home);
            }
            Some(Errno::AGAIN) => return true,
            Some(error) if !last && error != Errno::EXIST => return true,
            Some(error) => {
                // Unmapped, and the event was lost; or another page is there, which must not happen.
                let mapped = error != Errno::NOENT;
                map.stats.lost += u64::from(mapped);
                map.dropped(at);
                self.userfault.wake(live..live + PAGE);
            }
        }
        false
    }

    /// Returns a page to the moving thread, which would otherwise wait for itself.
    ///
    /// The thread may be about to copy the page, or a device may be copying it. It then reads zeros from the page's
    /// slot, and what it writes to the destination slot is discarded.
    pub(crate) fn rescue(&self, map: &mut PageMap, page: u64) {
        let has = |part: &MovingRun| part.stage == Stage::Out && part.range().contains(&page);
        let Some(at) = map.in_flight.iter().position(has) else {
            return self.userfault.wake(page..page + PAGE);
        };
        let at = map.in_flight.single(at, page);
        let MovingRun { source, from, to, tier, .. } = map.in_flight[at];
        // SAFETY: as in `bring_back_once`.
        let Progress { error, .. } = unsafe { self.take(page, source, PAGE) };
        let went = error.is_none() || self.in_place(source..source + PAGE).count() == 0;
        if went {
            let (stage, tier) = if source == from { (Stage::Rescued, tier) } else { (Stage::Back, map.to) };
            debug_assert!(source == from || source == to);
            map.came_back(at, stage, tier);
            map.stats.returned_early += 1;
        }
        // If an event must be read first, the thread faults again and comes back here.
        self.userfault.wake(page..page + PAGE);
    }
}
