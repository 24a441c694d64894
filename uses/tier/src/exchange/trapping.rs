//! Takes pages out without copying them, and brings each back at its first touch: see [`traps`](crate::traps).

use super::Exchange;
use crate::book::Book;
use crate::config::{HUGE, IN_HUGE, PAGE};
use crate::traps::{Fate, Trap};
use rustix::io::Errno;
use std::ops::Range;
use std::time::{Duration, Instant};
use telpher_mem::Progress;

impl Exchange {
    /// Takes contiguous small pages, or one huge page, to empty trap slots, as far as the kernel permits. Returns false
    /// if an event must be read first.
    pub(crate) fn trap(&self, book: &mut Book, live: u64, place: u64, pages: usize, huge: bool) -> bool {
        debug_assert!(!huge || pages == IN_HUGE);
        // As in `take_out_once`: contiguous pages may belong to different mappings.
        let (mut at, mut most) = (0, pages);
        while at < pages {
            let run = most.min(pages - at);
            let [live, place] = [live, place].map(|first| first + at as u64 * PAGE);
            let len = run as u64 * PAGE;
            // SAFETY: the slot is the exchange's own, empty and registered. The live pages are in a range that the heap
            // has adopted (or were unmapped just now: then the kernel moves nothing). They come back before their owner
            // can see other pages there: a touch waits for the fault handler, which fills no page that is out.
            let Progress { error, .. } = unsafe { self.take(place, live, len) };
            let Some(error) = error else {
                book.order.is_quiet();
                book.trapped(live, place, run, huge);
                at += run;
                continue;
            };
            let out = self.what_went(live, place, len);
            let [went, blocked] = [&out.went, &out.blocked].map(|marks| usize::try_from(marks.count()).expect("a row"));
            book.stats.lies += u64::from(went == run && error != Errno::AGAIN);
            if huge && went > 0 {
                book.trapped(live, place, run, true);
                for at in (0..run).filter(|&at| !out.went.has(at)) {
                    let place = place + at as u64 * PAGE;
                    book.not_trapped(&(place..place + PAGE), out.blocked.has(at));
                }
                if went < run {
                    book.traps.end(&(live..live + HUGE), Fate::Unknown);
                }
            } else if huge && blocked > 0 {
                book.traps.blocked(live, place, run);
            } else {
                let page = |at: usize| [live, place].map(|first| first + at as u64 * PAGE);
                for [live, place] in out.went.each().map(page) {
                    book.trapped(live, place, 1, false);
                }
                for [live, place] in out.blocked.each().map(page) {
                    book.traps.blocked(live, place, 1);
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
    pub(crate) fn spring(&self, book: &mut Book, page: u64) {
        let Some(part) = book.traps.part_of(page) else { return };
        // A waiting move may mean that the touched page is a different one.
        if !book.order.waits() {
            book.traps.touched(part, Instant::now());
            book.stats.touched += 1;
            self.bring(book, &(part.place..part.place + part.len), false);
        }
        self.userfault.wake(page..page + PAGE);
    }

    /// Brings back the pages of a range that are out; nothing is known of them then. [`ALL`] recalls everything.
    pub(crate) fn recall(&self, range: &Range<u64>) {
        self.bring_all(range, Fate::Unknown);
    }

    /// Ends a round of traps, brings back untouched pages, and reports what became of each.
    pub(crate) fn end_traps(&self, each: impl FnMut(&Trap)) {
        self.bring_all(&ALL, Fate::Untouched);
        self.tell_lost();
        let mut book = self.book();
        book.traps.traps().iter().for_each(each);
        book.traps.clear();
    }

    fn bring_all(&self, range: &Range<u64>, fate: Fate) {
        if self.book().traps.are_empty() {
            return;
        }
        let end = Instant::now() + self.patience;
        self.until_told(|exchange, book| {
            book.traps.end(range, fate);
            let (mut again, last) = (false, Instant::now() >= end);
            while let Some(places) = book.traps.places_of(range) {
                again = exchange.bring(book, &places, last);
                if again {
                    break;
                }
            }
            again
        });
    }

    /// Brings back the pages in some slots. Returns true if some are to be tried again, which does not happen if `last`
    /// is set.
    fn bring(&self, book: &mut Book, places: &Range<u64>, last: bool) -> bool {
        // As in `bring_back_once`: by now a run may belong to several mappings.
        let (mut at, mut most, mut again) = (places.start, HUGE, false);
        while let Some(run) = book.traps.run_in(&(at..places.end)) {
            let len = run.len.min(most);
            let place = run.place..run.place + len;
            #[cfg(test)]
            self.spoil(run.place);
            // SAFETY: the range is registered, or the kernel refuses. Its pages are missing because this exchange has
            // them, and its owner expects their bytes. The slot is the exchange's own.
            let Progress { error, .. } = unsafe { self.take(run.live, run.place, len) };
            at = place.start;
            let Some(error) = error else {
                book.order.is_quiet();
                book.sprung(&place, false);
                most = HUGE.min(most * 2);
                continue;
            };
            let there = self.in_place(place.clone());
            let pages = usize::try_from(len / PAGE).expect("at most a huge page");
            let mut moved = 0;
            for page in (0..pages).filter(|&page| !there.has(page)) {
                let page = place.start + page as u64 * PAGE;
                book.sprung(&(page..page + PAGE), false);
                moved += 1;
            }
            book.stats.lies += u64::from(moved == pages && error != Errno::AGAIN);
            // The error has left threads waiting; they fault again.
            self.userfault.wake(run.live..run.live + len);
            if moved > 0 {
                continue;
            }
            match error {
                // As in `bring_back_once`.
                Errno::AGAIN => return true,
                // The mapping is gone: it was moved or unmapped, and its event must be read.
                Errno::NOENT if !last => (at, again) = (place.end, true),
                _ if pages > 1 => most = (pages / 2) as u64 * PAGE,
                _ => {
                    again |= self.put_trapped(book, run.live, &place, last);
                    at = place.end;
                }
            }
        }
        again
    }

    /// Overwrites the page that is to be brought back, if a test requests it.
    #[cfg(test)]
    fn spoil(&self, place: u64) {
        if self.faults.spoils() {
            let word: *mut u64 = std::ptr::with_exposed_provenance_mut(usize::try_from(place).expect("an address"));
            // SAFETY: a slot of the exchange's own, with a page.
            unsafe { word.write_volatile(!0) };
        }
    }

    /// Like [`put_copy`](Exchange::put_copy), for a trapped page that cannot be moved back. Returns true if it is to be
    /// tried again.
    fn put_trapped(&self, book: &mut Book, live: u64, place: &Range<u64>, last: bool) -> bool {
        // SAFETY: as for the move; the source is the exchange's own and is not written.
        let Progress { error, .. } = unsafe { self.userfault.put_copies(live, place.start, PAGE) };
        match error {
            None => {
                book.stats.returned += 1;
                book.sprung(place, true);
            }
            Some(Errno::AGAIN) => return true,
            Some(error) if !last && error != Errno::EXIST => return true,
            Some(error) => {
                // Unmapped, and the event was lost; or another page is there, which must not happen.
                book.stats.lost += u64::from(error != Errno::NOENT);
                book.stats.dropped += 1;
                book.sprung(place, true);
                self.userfault.wake(live..live + PAGE);
            }
        }
        false
    }

    /// Measures a touch of a page that is out. `page` is the exchange's own and not in the page map; `place` is an
    /// empty slot. Returns none if the page did not go out. What became of it is reported as for any round.
    pub(crate) fn time_touch(&self, page: u64, place: u64, each: impl FnMut(&Trap)) -> Option<Duration> {
        {
            let mut book = self.book();
            // The kernel's answer to a failed move is not trusted.
            let _ = book.traps.are_told() && self.trap(&mut book, page, place, 1, false);
            if book.traps.are_empty() {
                drop(book);
                self.end_traps(each);
                return None;
            }
        }
        let begun = Instant::now();
        let word: *const u64 = std::ptr::with_exposed_provenance(usize::try_from(page).expect("an address"));
        // SAFETY: a page of the caller's own, which is present or comes back, and is not written.
        unsafe { word.read_volatile() };
        let time = begun.elapsed();
        self.end_traps(each);
        Some(time)
    }
}

/// All addresses.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;
