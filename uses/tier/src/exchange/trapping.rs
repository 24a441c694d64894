//! Takes pages out without copying them, and brings each back at its first touch: see [`traps`](crate::traps).

use super::Exchange;
use crate::config::{ALL, HUGE, IN_HUGE, PAGE};
use crate::page_map::PageMap;
use crate::traps::{Trap, TrapOutcome};
use rustix::io::Errno;
use std::ops::Range;
use std::time::{Duration, Instant};
use telpher_os::Progress;

impl Exchange {
    /// Takes contiguous small pages, or one huge page, to empty trap slots, as far as the kernel permits. Returns false
    /// if an event must be read first.
    pub(crate) fn trap(&self, map: &mut PageMap, live: u64, slot: u64, pages: usize, huge: bool) -> bool {
        debug_assert!(!huge || pages == IN_HUGE);
        // As in `take_out_once`: contiguous pages may belong to different mappings.
        let (mut at, mut most) = (0, pages);
        while at < pages {
            let run = most.min(pages - at);
            let [live, slot] = [live, slot].map(|first| first + at as u64 * PAGE);
            let len = run as u64 * PAGE;
            // SAFETY: the slot is the exchange's own, empty and registered. The live pages are in a range that the heap
            // has adopted (or were unmapped just now: then the kernel moves nothing). They come back before their owner
            // can see other pages there: a touch waits for the fault handler, which fills no page that is out.
            let Progress { error, .. } = unsafe { self.take(slot, live, len) };
            let Some(error) = error else {
                map.order.is_quiet();
                map.trapped(live, slot, run, huge);
                at += run;
                continue;
            };
            let out = self.what_went(live, slot, len);
            let [went, blocked] =
                [&out.went, &out.blocked].map(|page_set| usize::try_from(page_set.count()).expect("a row"));
            map.stats.misreported += u64::from(went == run && error != Errno::AGAIN);
            if huge && went > 0 {
                map.trapped(live, slot, run, true);
                for at in (0..run).filter(|&at| !out.went.has(at)) {
                    let slot = slot + at as u64 * PAGE;
                    map.not_trapped(&(slot..slot + PAGE), out.blocked.has(at));
                }
                if went < run {
                    map.traps.end(&(live..live + HUGE), TrapOutcome::Unknown);
                }
            } else if huge && blocked > 0 {
                map.traps.blocked(live, slot, run);
            } else {
                let page = |at: usize| [live, slot].map(|first| first + at as u64 * PAGE);
                for [live, slot] in out.went.each().map(page) {
                    map.trapped(live, slot, 1, false);
                }
                for [live, slot] in out.blocked.each().map(page) {
                    map.traps.blocked(live, slot, 1);
                }
            }
            match error {
                Errno::AGAIN => return false,
                // Refused pages stay where they are, and so do pages of a run that went only in part.
                _ if huge || went + blocked > 0 || run == 1 => at += run,
                _ => most = run / 2,
            }
        }
        true
    }

    /// Returns a trapped page at its first touch. If an event must be read first, the touching thread faults again and
    /// comes back here.
    pub(crate) fn return_touched(&self, map: &mut PageMap, page: u64) {
        let Some(part) = map.traps.part_of(page) else { return };
        // A waiting move may mean that the touched page is a different one.
        if !map.order.waits() {
            map.traps.touched(part, Instant::now());
            map.stats.touched += 1;
            self.bring(map, &(part.slot..part.slot + part.len), false);
        }
        self.userfault.wake(page..page + PAGE);
    }

    /// Brings back the pages of a range that are out; nothing is known of them then. [`ALL`] recalls everything.
    pub(crate) fn recall(&self, range: &Range<u64>) {
        self.bring_all(range, TrapOutcome::Unknown);
    }

    /// Ends a round of traps, brings back untouched pages, and reports what became of each.
    pub(crate) fn end_traps(&self, each: impl FnMut(&Trap)) {
        self.bring_all(&ALL, TrapOutcome::Untouched);
        self.report_lost();
        let mut map = self.page_map();
        map.traps.traps().iter().for_each(each);
        map.traps.clear();
    }

    fn bring_all(&self, range: &Range<u64>, fate: TrapOutcome) {
        if self.page_map().traps.are_empty() {
            return;
        }
        let end = Instant::now() + self.retry_timeout;
        self.after_events(|exchange, map| {
            map.traps.end(range, fate);
            let (mut again, last) = (false, Instant::now() >= end);
            while let Some(slots) = map.traps.slots_of(range) {
                again = exchange.bring(map, &slots, last);
                if again {
                    break;
                }
            }
            again
        });
    }

    /// Brings back the pages in some slots. Returns true if some are to be tried again, which does not happen if `last`
    /// is set.
    fn bring(&self, map: &mut PageMap, slots: &Range<u64>, last: bool) -> bool {
        // As in `bring_back_once`: by now a run may belong to several mappings.
        let (mut at, mut most, mut again) = (slots.start, HUGE, false);
        while let Some(run) = map.traps.run_in(&(at..slots.end)) {
            let len = run.len.min(most);
            let slot = run.slot..run.slot + len;
            #[cfg(test)]
            self.spoil(run.slot);
            // SAFETY: the range is registered, or the kernel refuses. Its pages are missing because this exchange has
            // them, and its owner expects their bytes. The slot is the exchange's own.
            let Progress { error, .. } = unsafe { self.take(run.live, run.slot, len) };
            at = slot.start;
            let Some(error) = error else {
                map.order.is_quiet();
                map.returned_from_trap(&slot, false);
                most = HUGE.min(most * 2);
                continue;
            };
            let there = self.in_place(slot.clone());
            let pages = usize::try_from(len / PAGE).expect("at most a huge page");
            let mut moved = 0;
            for page in (0..pages).filter(|&page| !there.has(page)) {
                let page = slot.start + page as u64 * PAGE;
                map.returned_from_trap(&(page..page + PAGE), false);
                moved += 1;
            }
            map.stats.misreported += u64::from(moved == pages && error != Errno::AGAIN);
            // The error has left threads waiting; they fault again.
            self.userfault.wake(run.live..run.live + len);
            if moved > 0 {
                continue;
            }
            match error {
                // As in `bring_back_once`.
                Errno::AGAIN => return true,
                // The mapping is gone: it was moved or unmapped, and its event must be read.
                Errno::NOENT if !last => (at, again) = (slot.end, true),
                _ if pages > 1 => most = (pages / 2) as u64 * PAGE,
                _ => {
                    again |= self.put_trapped(map, run.live, &slot, last);
                    at = slot.end;
                }
            }
        }
        again
    }

    /// Overwrites the page that is to be brought back, if a test requests it.
    #[cfg(test)]
    fn spoil(&self, slot: u64) {
        if self.faults.spoils() {
            let word: *mut u64 = std::ptr::with_exposed_provenance_mut(usize::try_from(slot).expect("an address"));
            // SAFETY: a slot of the exchange's own, with a page.
            unsafe { word.write_volatile(!0) };
        }
    }

    /// Like [`put_copy`](Exchange::put_copy), for a trapped page that cannot be moved back. Returns true if it is to be
    /// tried again.
    fn put_trapped(&self, map: &mut PageMap, live: u64, slot: &Range<u64>, last: bool) -> bool {
        // SAFETY: as for the move; the source is the exchange's own and is not written.
        let Progress { error, .. } = unsafe { self.userfault.put_copies(live, slot.start, PAGE) };
        match error {
            None => {
                map.stats.copied_back += 1;
                map.returned_from_trap(slot, true);
            }
            Some(Errno::AGAIN) => return true,
            Some(error) if !last && error != Errno::EXIST => return true,
            Some(error) => {
                // Unmapped, and the event was lost; or another page is there, which must not happen.
                map.stats.lost += u64::from(error != Errno::NOENT);
                map.stats.dropped += 1;
                map.returned_from_trap(slot, true);
                self.userfault.wake(live..live + PAGE);
            }
        }
        false
    }

    /// Measures a touch of a page that is out. `page` is the exchange's own and not in the page map; `slot` is an
    /// empty slot. Returns none if the page did not go out. What became of it is reported as for any round.
    pub(crate) fn time_touch(&self, page: u64, slot: u64, each: impl FnMut(&Trap)) -> Option<Duration> {
        {
            let mut map = self.page_map();
            // The kernel's answer to a failed move is not trusted.
            let _ = map.traps.are_told() && self.trap(&mut map, page, slot, 1, false);
            if map.traps.are_empty() {
                drop(map);
                self.end_traps(each);
                return None;
            }
        }
        let start = Instant::now();
        let word: *const u64 = std::ptr::with_exposed_provenance(usize::try_from(page).expect("an address"));
        // SAFETY: a page of the caller's own, which is present or comes back, and is not written.
        unsafe { word.read_volatile() };
        let time = start.elapsed();
        self.end_traps(each);
        Some(time)
    }
}
