//! Takes pages of a running program out, and brings them back: `UFFDIO_MOVE` both ways.
//!
//! A page that is out lies in a place of a pool that nobody knows of. Whoever touches it where the program has it waits in the kernel, as with
//! the kernel's own migration, system calls and devices that fault among them; a page that somebody has pinned is refused, and stays. So between
//! the two moves nobody reads or writes it, and its bytes may be copied to another place.
//!
//! **What the kernel says of a move that failed is not believed.** Linux 6.18 was seen to answer that a range existed already when it had
//! moved all of it (3 of some 30 000 calls beside `madvise(MADV_COLD)`). Places of a pool are private, so that the page tables tell
//! without doubt: a page that is in its place went out, and one that is not in its place went back.
#![allow(unsafe_code, reason = "pages of a program that runs change their place, and are copied while nobody has them")]

#[cfg(test)]
pub(crate) mod faults;

use crate::book::{Aloft, Book, Stage, Why};
use crate::config::{HUGE, PAGE, TierId};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use telpher_mem::{Progress, Scan, Userfault};
use telpher_mover::{JobError, Mover, Outcome};

/// Pages whose places are looked at together. Source: chosen.
const LOOK: usize = 512;

/// What exchanges are made with.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) userfault: Userfault,
    pub(crate) scan: Scan,
    book: Mutex<Book>,
    home: TierId,
    patience: Duration,
    #[cfg(test)]
    pub(crate) faults: faults::Faults,
}

/// Some of the pages in a row.
#[derive(Default)]
struct Marks([u64; LOOK / 64]);

impl Marks {
    fn mark(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn has(&self, at: usize) -> bool {
        self.0[at / 64] & 1 << (at % 64) != 0
    }

    fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// Which addresses of pages on their way are neighbours.
type Side = fn(&Aloft) -> u64;

impl Exchange {
    pub(crate) fn new(userfault: Userfault, scan: Scan, book: Book, home: TierId, patience: Duration) -> Exchange {
        Exchange {
            userfault,
            scan,
            book: Mutex::new(book),
            home,
            patience,
            #[cfg(test)]
            faults: faults::Faults::default(),
        }
    }

    /// What is known; nothing is allocated or freed while it is locked.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        // What a panic left behind is no less true than before: each change is made whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel to move pages; nobody else does.
    ///
    /// # Safety
    /// As for [`Userfault::take_pages`].
    unsafe fn take(&self, to: u64, from: u64, len: u64) -> Progress {
        #[cfg(test)]
        let (len, lie) = self.faults.lie(len);
        // SAFETY: the caller's promise.
        let progress = unsafe { self.userfault.take_pages(to, from, len) };
        #[cfg(test)]
        let progress = if progress.error.is_none() { lie.unwrap_or(progress) } else { progress };
        progress
    }

    /// Takes a fresh page of the system's to an empty place of a pool; false if it did not go.
    pub(crate) fn put_fresh(&self, place: u64, from: u64, len: u64) -> bool {
        loop {
            // SAFETY: both are the pool's own, which nobody has a reference to; the place is empty, and registered.
            let Progress { error, .. } = unsafe { self.take(place, from, len) };
            match error {
                None => return true,
                // An event is to be read first, by the keeper.
                Some(Errno::AGAIN) => std::thread::yield_now(),
                Some(_) => {
                    let mut there = 0;
                    let looked = self.scan.there(place..place + len, |run| there += run.pages());
                    return looked.is_ok() && there * PAGE == len;
                }
            }
        }
    }

    /// Has a range's faults come here from now on. The book must know it.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn register(&self, range: Range<u64>) -> std::io::Result<()> {
        // SAFETY: the keeper answers until the heap is gone, which arenas outlive only in forked children; it touches no arena. What it puts there
        // is what private anonymous memory has: zeros, or what was taken.
        unsafe { self.userfault.register(range) }
    }

    /// Pages of the flight that follow each other on both sides and are at this stage, from `at` on.
    fn run(flight: &[Aloft], at: usize, stage: Stage, sides: [Side; 2]) -> Option<Range<usize>> {
        let first = at + flight.get(at..)?.iter().position(|aloft| aloft.stage == stage)?;
        let follows = |pair: &[Aloft]| {
            pair[1].stage == stage && sides.iter().all(|side| side(&pair[0]).wrapping_add(PAGE) == side(&pair[1]))
        };
        let more = flight[first..].windows(2).take(LOOK - 1).take_while(|pair| follows(pair)).count();
        Some(first..first + 1 + more)
    }

    /// Takes out what is planned, as far as the kernel lets it.
    pub(crate) fn take_out(&self) {
        #[cfg(test)]
        self.compare_too_early();
        self.until_told(|exchange, book| exchange.take_out_once(book, Stage::Busy));
        // Pages that a forked child has, too, are let go when one of both has its own.
        if self.part_from_children() {
            self.until_told(|exchange, book| exchange.take_out_once(book, Stage::Left(Why::Pinned)));
        }
    }

    /// Does a part again and again until it wants no event to be read first.
    fn until_told(&self, mut once: impl FnMut(&Exchange, &mut Book) -> bool) {
        let mut rests = 0_u32;
        while once(self, &mut self.book()) {
            // The keeper has the lock now, and reads.
            rests += 1;
            match rests {
                0..64 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// True if there are events to be read first. A run with a busy page is put at the stage `busy`: whole if it is tried again.
    fn take_out_once(&self, book: &mut Book, busy: Stage) -> bool {
        let sides: [Side; 2] = [|aloft| aloft.live, |aloft| aloft.from];
        // Neighbours may be of mappings that differ: fewer go at once where a run is refused, and more again where one goes.
        let (mut at, mut most) = (0, LOOK);
        while let Some(run) = Self::run(&book.flight, at, Stage::Planned, sides) {
            let run = run.start..run.end.min(run.start + most);
            let (first, len) = (book.flight[run.start], run.len() as u64 * PAGE);
            // SAFETY: the place is the exchange's own, and empty; the pool is registered. The live page is of a range that the heap has taken over
            // (or has just been unmapped: then the kernel moves nothing), and comes back before its owner sees any other there: until then a
            // touch waits, for the keeper fills no page that is out.
            let Progress { error, .. } = unsafe { self.take(first.from, first.live, len) };
            let Some(error) = error else {
                run.for_each(|at| book.went_out(at));
                most = LOOK.min(most * 2);
                continue;
            };
            let there = self.in_place(first.from..first.from + len);
            let moved = run.clone().filter(|&at| there.has(at - run.start)).inspect(|&at| book.went_out(at)).count();
            let all = moved == run.len();
            book.stats.lies += u64::from(all && error != Errno::AGAIN);
            match error {
                // Something has changed, and the kernel waits until we know.
                Errno::AGAIN if moved == 0 => return true,
                _ if moved > 0 => {}
                Errno::NOENT | Errno::EXIST => book.flight[run.start].stage = Stage::Left(Why::Gone),
                Errno::BUSY if busy == Stage::Busy => run.clone().for_each(|at| book.flight[at].stage = busy),
                Errno::BUSY => book.flight[run.start].stage = busy,
                _ if run.len() > 1 => most = run.len() / 2,
                _ => book.flight[run.start].stage = Stage::Left(Why::Unsupported),
            }
            at = run.start;
        }
        false
    }

    /// Has the mappings of pages that are busy made the program's own, without changing a byte; true if there are any.
    fn part_from_children(&self) -> bool {
        let mut any = false;
        loop {
            let sides: [Side; 1] = [|aloft| aloft.live];
            let run = {
                let mut book = self.book();
                let run = Self::run(&book.flight, 0, Stage::Busy, [sides[0], sides[0]]);
                let Some(run) = run else { return any };
                run.clone().for_each(|at| book.flight[at].stage = Stage::Planned);
                book.flight[run.start].live..book.flight[run.end - 1].live + PAGE
            };
            any = true;
            let len = usize::try_from(run.end - run.start).expect("a run");
            // SAFETY: no byte changes. A mapping that is gone meanwhile is a refusal, and pages that are missing are filled as at any touch.
            let _ = unsafe {
                let start = std::ptr::with_exposed_provenance_mut(usize::try_from(run.start).expect("an address"));
                rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxPopulateWrite)
            };
        }
    }

    /// Pages of the flight that are out, follow each other on both places and are alike in this; with the first of them.
    fn copied_together(&self, at: usize, alike: fn(&Aloft) -> bool) -> Option<(Range<usize>, Aloft)> {
        let book = self.book();
        let flight = &book.flight;
        let goes = |aloft: &Aloft| aloft.stage == Stage::Out && alike(aloft);
        let first = at + flight.get(at..)?.iter().position(goes)?;
        let follows = |pair: &[Aloft]| (pair[0].from + PAGE, pair[0].to + PAGE) == (pair[1].from, pair[1].to);
        let more = flight[first..].windows(2).take(LOOK - 1).take_while(|pair| goes(&pair[1]) && follows(pair)).count();
        Some((first..first + 1 + more, flight[first]))
    }

    /// Bytes of the places that so many pages of the flight leave and come to.
    ///
    /// # Safety
    /// The pages are out and follow each other from this one on, and the slices end before the flight does; nobody else has one of them.
    unsafe fn places<'a>(first: Aloft, pages: usize) -> (&'a [u8], &'a mut [u8]) {
        let (address, len) = (|address| usize::try_from(address).expect("an address"), pages * 4096);
        let from: *const u8 = std::ptr::with_exposed_provenance(address(first.from));
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(address(first.to));
        // SAFETY: both places are the exchange's alone until the flight is over, apart from each other, and present: one has the page that was
        // taken out, the other the free page, or the old copy, that it was lent with.
        unsafe { (std::slice::from_raw_parts(from, len), std::slice::from_raw_parts_mut(to, len)) }
    }

    /// Finds what is out and is as its old copy, in the place it goes to: that needs no copy.
    ///
    /// The bytes decide, and they are looked at while the page is out. Nobody can write it then, and its old copy could be written at no time,
    /// so that what is found to be the same is the same when it comes back. No bit that the kernel keeps could say as much: it forgets that a
    /// page was not written when it moves one (Linux 6.18), so that writes between the page's coming and its being protected again, and between
    /// the look at the bit and the page's going out, would be seen by nobody.
    pub(crate) fn compare(&self, mover: &Mover) {
        let mut at = 0;
        while let Some((run, first)) = self.copied_together(at, |aloft| aloft.shadowed && aloft.source == aloft.from) {
            // SAFETY: as told; they end with this round.
            let (from, to) = unsafe { Self::places(first, run.len()) };
            let mut same = Marks::default();
            let mut page = 0;
            while page < run.len() {
                let rest = page * 4096;
                let differs = first_difference(mover, &from[rest..], &to[rest..]).map(|at| page + at / 4096);
                let end = differs.unwrap_or(run.len());
                (page..end).for_each(|page| same.mark(page));
                page = end + 1;
            }
            let mut book = self.book();
            for (page, aloft) in book.flight[run.clone()].iter_mut().enumerate().filter(|(page, _)| same.has(*page)) {
                debug_assert_eq!(aloft.to, first.to + page as u64 * PAGE);
                aloft.source = aloft.to;
            }
            book.stats.not_copied += same.count();
            at = run.end;
        }
    }

    /// As [`compare`](Exchange::compare), while the program has the pages: wrong, to see that it is.
    #[cfg(test)]
    fn compare_too_early(&self) {
        if !self.faults.early.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        for aloft in self.book().flight.iter_mut().filter(|aloft| aloft.shadowed) {
            let is_same = |word: usize| {
                let [one, other] = [aloft.live, aloft.to].map(|page| {
                    let page: *const u64 =
                        std::ptr::with_exposed_provenance(usize::try_from(page).expect("an address"));
                    // SAFETY: both pages are there; others write one of them.
                    unsafe { page.add(word).read_volatile() }
                });
                one == other
            };
            if (0..512).all(is_same) {
                aloft.source = aloft.to;
            }
        }
        std::thread::yield_now();
    }

    /// Copies what is out to where it goes.
    pub(crate) fn copy(&self, mover: &Mover) {
        let mut at = 0;
        while let Some((run, first)) = self.copied_together(at, |aloft| aloft.source == aloft.from) {
            // SAFETY: as told; they end with this round.
            let (from, to) = unsafe { Self::places(first, run.len()) };
            #[cfg(test)]
            let (from, to) = if self.faults.leaves_uncopied() { (&from[..0], &mut to[..0]) } else { (from, to) };
            if copy_whole(mover, from, to).is_ok() {
                let mut book = self.book();
                for aloft in &mut book.flight[run.clone()] {
                    aloft.source = aloft.to;
                }
            }
            #[cfg(test)]
            self.faults.copied();
            at = run.end;
        }
    }

    /// Brings everything back that is out.
    pub(crate) fn bring_back(&self) {
        let end = Instant::now() + self.patience;
        self.until_told(|exchange, book| exchange.bring_back_once(book, Instant::now() >= end));
    }

    /// True if there are events to be read first, or something is to be tried again.
    fn bring_back_once(&self, book: &mut Book, last: bool) -> bool {
        let sides: [Side; 2] = [|aloft| aloft.live, |aloft| aloft.source];
        // As in `take_out_once`: a run may be of several mappings by now.
        let (mut at, mut most, mut again) = (0, LOOK, false);
        while let Some(run) = Self::run(&book.flight, at, Stage::Out, sides) {
            let run = run.start..run.end.min(run.start + most);
            let (first, len) = (book.flight[run.start], run.len() as u64 * PAGE);
            let live = first.live..first.live + len;
            // SAFETY: the range is registered, or the kernel refuses; its pages are missing because this exchange has them, and its owner expects
            // their bytes. The place is the exchange's own.
            let Progress { error, .. } = unsafe { self.take(live.start, first.source, len) };
            let tier = |at: usize, book: &Book| {
                if book.flight[at].source == book.flight[at].to { book.to } else { book.flight[at].tier }
            };
            let Some(error) = error else {
                run.for_each(|at| {
                    let tier = tier(at, book);
                    book.came_back(at, Stage::Back, tier);
                });
                most = LOOK.min(most * 2);
                continue;
            };
            let there = self.in_place(first.source..first.source + len);
            let mut moved = 0;
            for at in run.clone().filter(|&at| !there.has(at - run.start)) {
                let tier = tier(at, book);
                book.came_back(at, Stage::Back, tier);
                moved += 1;
            }
            book.stats.lies += u64::from(moved == run.len() && error != Errno::AGAIN);
            // Who was not woken because of the error looks again.
            self.userfault.wake(live);
            if moved > 0 {
                at = run.start;
                continue;
            }
            match error {
                Errno::AGAIN if !last => return true,
                _ if run.len() > 1 => {
                    most = run.len() / 2;
                    at = run.start;
                }
                // The mapping is not there: it was moved or unmapped, and the event is to be read.
                Errno::NOENT if !last => (at, again) = (run.end, true),
                _ => {
                    again |= self.put_copy(book, run.start, last);
                    at = run.start + 1;
                }
            }
        }
        again
    }

    /// Where a page cannot be moved back to, as its mapping was locked or protected otherwise meanwhile, the kernel copies it. True if it is to be
    /// tried again.
    fn put_copy(&self, book: &mut Book, at: usize, last: bool) -> bool {
        let Aloft { live, source, .. } = book.flight[at];
        // SAFETY: as for the move; the source is the exchange's own, and nobody writes there any more.
        let Progress { error, .. } = unsafe { self.userfault.put_copies(live, source, PAGE) };
        let home = self.home;
        match error {
            None => {
                book.stats.returned += 1;
                book.came_back(at, Stage::Returned, home);
            }
            Some(Errno::AGAIN | Errno::NOENT) if !last => return true,
            Some(error) => {
                // Unmapped, and the event lost; or somebody has put a page there, which nobody may.
                let mapped = error != Errno::NOENT;
                book.stats.lost += u64::from(mapped);
                book.dropped(at);
                self.userfault.wake(live..live + PAGE);
            }
        }
        false
    }

    /// Which pages of a run of places are there.
    fn in_place(&self, places: Range<u64>) -> Marks {
        let mut there = Marks::default();
        let looked = self.scan.there(places.clone(), |run| {
            let (first, end) = ((run.start - places.start) / PAGE, (run.end - places.start) / PAGE);
            for at in first..end {
                // At most `LOOK` pages are asked about.
                there.mark(usize::try_from(at).unwrap_or(0));
            }
        });
        // It was opened, and asks for nothing that could be refused; without an answer nothing could be told.
        looked.expect("the page tables can be asked");
        there
    }

    /// Gives a forked child the pages that are out: it has none there, and its mapping is its own.
    pub(crate) fn give_to_child(&self, book: &mut Book, child: &Userfault) {
        let sides: [Side; 2] = [|aloft| aloft.live, |aloft| aloft.from];
        let mut at = 0;
        while let Some(run) = Self::run(&book.flight, at, Stage::Out, sides) {
            let (first, len) = (book.flight[run.start], run.len() as u64 * PAGE);
            let (mut done, mut most, mut given) = (0, len, 0);
            while done < len {
                let part = most.min(len - done);
                // SAFETY: nothing is there in the child, which expects what its parent had: the page where it was taken to, which nobody writes.
                let progress = unsafe { child.put_copies(first.live + done, first.from + done, part) };
                done += progress.bytes;
                given += progress.bytes;
                match progress.error {
                    None => {}
                    Some(_) if progress.bytes > 0 => {}
                    // Of several mappings, or of one that is not there any more: each page by itself.
                    Some(_) if part > PAGE => most = PAGE,
                    Some(_) => done += PAGE,
                }
            }
            book.stats.given += given / PAGE;
            at = run.end;
        }
        book.stats.forks += 1;
    }

    /// Puts an empty page where one is missing that is not out, and more behind it, up to the first that is there.
    pub(crate) fn fill(&self, book: &mut Book, page: u64) {
        /// Pages at once at most. Source: chosen; they are the page of zeros that all share, and cost an entry each.
        const MOST: u64 = 64;
        if book.is_out(page) {
            return;
        }
        let mut end = page + PAGE;
        while end < page + MOST * PAGE && !end.is_multiple_of(HUGE) && book.may_be_filled(end) {
            end += PAGE;
        }
        // What is known as neighbours may be of several mappings: then the page that is asked for, alone.
        let mut progress = Progress { bytes: 0, error: None };
        for end in [end, page + PAGE] {
            // SAFETY: the range is registered, or the kernel refuses; its owner expects zeros where nothing is, and nothing of it is out.
            progress = unsafe { self.userfault.put_zeros(page..end) };
            if progress.bytes > 0 {
                break;
            }
        }
        let filled = progress.bytes / PAGE;
        book.filled(&(page..page + progress.bytes));
        book.stats.fills += filled;
        if filled == 0 {
            // It is there by now, or something is to be read first: who waits looks again.
            self.userfault.wake(page..page + PAGE);
        }
    }
}

/// Where the first byte is that differs, found by the mover, or by the CPU if that does not.
fn first_difference(mover: &Mover, one: &[u8], other: &[u8]) -> Option<usize> {
    match mover.scope(|scope| scope.compare(one, other).wait().result) {
        Ok(Outcome::Equal) => None,
        Ok(Outcome::Different { at }) => Some(usize::try_from(at).expect("in a run")),
        _ => one.iter().zip(other).position(|(one, other)| one != other),
    }
}

/// Copies by the mover, or by the CPU if that does not.
fn copy_whole(mover: &Mover, from: &[u8], to: &mut [u8]) -> Result<Outcome, JobError> {
    mover.copy_slices(from, to).or_else(|_| Mover::cpu().copy_slices(from, to))
}
