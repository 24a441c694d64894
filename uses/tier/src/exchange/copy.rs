//! A page that is out is copied to a slot of its new tier, or compared with its old copy there.
#![allow(unsafe_code, reason = "moves pages of a running program and copies them while no other code can access them")]

use super::Exchange;
use crate::config::PAGE;
use crate::in_flight::{LOOK, MovingRun, Stage};
use crate::page_set::PageSet;
#[cfg(test)]
use std::sync::atomic::Ordering;
use std::time::Instant;
use telpher_mover::{JobError, Mover, Outcome};

impl Exchange {
    /// Returns the first runs, from `at` on, that are out, satisfy `alike`, and are contiguous in both slots: the index
    /// of the first run, that run, and the number of pages.
    fn copied_together(&self, at: usize, alike: fn(&MovingRun) -> bool) -> Option<(usize, MovingRun, usize)> {
        let map = self.page_map();
        let in_flight = &map.in_flight;
        let goes = |part: &MovingRun| part.stage == Stage::Out && alike(part);
        let at = at + in_flight.get(at..)?.iter().position(goes)?;
        let mut pages = in_flight[at].pages;
        for pair in in_flight[at..].windows(2) {
            let follows = (pair[0].from + pair[0].len(), pair[0].to + pair[0].len()) == (pair[1].from, pair[1].to);
            if !goes(&pair[1]) || !follows || pages + pair[1].pages > LOOK {
                break;
            }
            pages += pair[1].pages;
        }
        Some((at, in_flight[at], pages))
    }

    /// Returns the bytes of the slots that these pages are taken to and copied to.
    ///
    /// # Safety
    /// The pages are out and contiguous from `first` on. The slices end before the pages come back. Nothing else refers
    /// to these slots.
    unsafe fn slots<'a>(first: MovingRun, pages: usize) -> (&'a [u8], &'a mut [u8]) {
        let (address, len) = (|address| usize::try_from(address).expect("an address"), pages * 4096);
        let from: *const u8 = std::ptr::with_exposed_provenance(address(first.from));
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(address(first.to));
        // SAFETY: both slots are the exchange's alone until the batch ends. They do not overlap and are present: one
        // holds the page that was taken out, the other the free page, or the old copy, with which it was lent.
        unsafe { (std::slice::from_raw_parts(from, len), std::slice::from_raw_parts_mut(to, len)) }
    }

    /// Finds pages that are out and equal their old copy in the slot they go to; those need no copy.
    ///
    /// The bytes are compared while the page is out. No thread can write the page then, and the old copy cannot be
    /// written at any time, so equal pages are still equal when they come back. No bit in the kernel can show this:
    /// `UFFDIO_MOVE` loses the information that a page was not written (Linux 6.18). Writes between the page's arrival
    /// and its renewed protection, and between reading the bit and taking the page out, would be missed.
    pub(crate) fn compare(&self, mover: &Mover) {
        let mut from_part = 0;
        let alike = |part: &MovingRun| part.shadowed && part.source == part.from;
        while let Some((at, first, pages)) = self.copied_together(from_part, alike) {
            // SAFETY: these pages are out and contiguous; the slices end with this iteration.
            let (from, to) = unsafe { Self::slots(first, pages) };
            let mut same = PageSet::default();
            let mut page = 0;
            while page < pages {
                let rest = page * 4096;
                let differs = first_difference(mover, &from[rest..], &to[rest..]).map(|at| page + at / 4096);
                let end = differs.unwrap_or(pages);
                (page..end).for_each(|page| same.insert(page));
                page = end + 1;
            }
            let mut map = self.page_map();
            let mut parts = map.in_flight.of_slots(at, &(first.from..first.from + pages as u64 * PAGE));
            if same.count() < pages as u64 {
                parts = map.in_flight.singly(parts);
            }
            for part in &mut map.in_flight[parts.clone()] {
                if same.has(usize::try_from((part.from - first.from) / PAGE).expect("of the run")) {
                    part.comes_from_where_it_goes();
                }
            }
            map.stats.not_copied += same.count();
            from_part = parts.end;
        }
    }

    /// Like [`compare`](Exchange::compare), but while the program has the pages. This is wrong; a test shows that it
    /// is.
    #[cfg(test)]
    pub(super) fn compare_too_early(&self) {
        if !self.faults.early.load(Ordering::Relaxed) {
            return;
        }
        let mut map = self.page_map();
        let all = 0..map.in_flight.len();
        let all = map.in_flight.singly(all);
        for moving in map.in_flight[all].iter_mut().filter(|moving| moving.shadowed) {
            let is_same = |word: usize| {
                let [one, other] = [moving.live, moving.to].map(|page| {
                    let page: *const u64 =
                        std::ptr::with_exposed_provenance(usize::try_from(page).expect("an address"));
                    // SAFETY: both pages are present; other threads write one of them.
                    unsafe { page.add(word).read_volatile() }
                });
                one == other
            };
            if (0..512).all(is_same) {
                moving.source = moving.to;
            }
        }
        drop(map);
        std::thread::yield_now();
    }

    /// Copies the pages that are out to their destination.
    pub(crate) fn copy(&self, mover: &Mover) {
        let mut from_part = 0;
        while let Some((at, first, pages)) = self.copied_together(from_part, |part| part.source == part.from) {
            // SAFETY: these pages are out and contiguous; the slices end with this iteration.
            let (from, to) = unsafe { Self::slots(first, pages) };
            #[cfg(test)]
            self.faults.touch(0);
            #[cfg(test)]
            let (from, to) = if self.faults.leaves_uncopied() { (&from[..0], &mut to[..0]) } else { (from, to) };
            let start = Instant::now();
            let copied = copy_whole(mover, from, to);
            let took = start.elapsed();
            let parts = {
                let mut map = self.page_map();
                map.stats.copying += took;
                let parts = map.in_flight.of_slots(at, &(first.from..first.from + pages as u64 * PAGE));
                if copied.is_ok() {
                    map.in_flight[parts.clone()].iter_mut().for_each(MovingRun::comes_from_where_it_goes);
                }
                parts
            };
            #[cfg(test)]
            self.faults.touch(1);
            #[cfg(test)]
            self.faults.copied();
            from_part = parts.end;
        }
    }
}

/// Returns the first byte that differs, found by the mover, or by the CPU if the mover fails.
fn first_difference(mover: &Mover, one: &[u8], other: &[u8]) -> Option<usize> {
    match mover.scope(|scope| scope.compare(one, other).wait().result) {
        Ok(Outcome::Equal) => None,
        Ok(Outcome::Different { at }) => Some(usize::try_from(at).expect("in a run")),
        _ => one.iter().zip(other).position(|(one, other)| one != other),
    }
}

/// Copies with the mover, or with the CPU if the mover fails.
fn copy_whole(mover: &Mover, from: &[u8], to: &mut [u8]) -> Result<Outcome, JobError> {
    mover.copy_slices(from, to).or_else(|_| Mover::cpu().copy_slices(from, to))
}
