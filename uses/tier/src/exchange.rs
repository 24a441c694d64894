//! Takes pages of a running program out, and brings them back: `UFFDIO_MOVE` both ways.
//!
//! A page that is out lies in a place of a pool that nobody knows of. Whoever touches it where the program has it waits in the kernel, as with
//! the kernel's own migration, system calls and devices that fault among them; a page that somebody has pinned is refused, and stays. So between
//! the two moves nobody reads or writes it, and its bytes may be copied to another place.
//!
//! **What the kernel says of a move that failed is not believed.** Linux 6.18 was seen to answer that a range existed already when it had
//! moved all of it (3 of some 30 000 calls beside `madvise(MADV_COLD)`). Places of a pool are private, so that the page tables tell
//! without doubt: a page that is in its place, and not where the program has it, went out, and one that is not in its place went back. What is in a
//! place before anything was taken there (somebody has all memory locked, or reads that of this process) keeps the page where it is.
#![allow(unsafe_code, reason = "pages of a program that runs change their place, and are copied while nobody has them")]

#[cfg(test)]
pub(crate) mod faults;
pub(crate) mod trapping;

use crate::book::Book;
use crate::config::{HUGE, PAGE, TierId};
use crate::flight::{Aloft, LOOK, Side, Stage, Why};
use crate::marks::Marks;
use crate::stats::Stats;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use telpher_mem::Tract;
use telpher_mover::{JobError, Mover, Outcome};
use telpher_os::{Progress, Scan, Userfault, UserfaultFeatures};

/// What exchanges are made with.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) userfault: Userfault,
    pub(crate) scan: Scan,
    book: Mutex<Book>,
    home: TierId,
    patience: Duration,
    /// Lost pages that were told of.
    told: AtomicU64,
    #[cfg(test)]
    pub(crate) faults: faults::Faults,
}

impl Exchange {
    pub(crate) fn new(userfault: Userfault, scan: Scan, book: Book, home: TierId, patience: Duration) -> Exchange {
        Exchange {
            userfault,
            scan,
            book: Mutex::new(book),
            home,
            patience,
            told: AtomicU64::new(0),
            #[cfg(test)]
            faults: faults::Faults::default(),
        }
    }

    /// What is known; nothing is allocated or freed while it is locked.
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        /// Looks at the lock before this thread sleeps. Source: chosen; some 20 µs, longer than whoever reads a fault has it, and than it takes to
        /// sleep and to be woken, which each flight would cost twice whose pages a thread wants.
        const LOOKS: u32 = 512;
        for _ in 0..LOOKS {
            match self.book.try_lock() {
                Ok(book) => return book,
                Err(TryLockError::Poisoned(book)) => return book.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        // What a panic left behind is no less true than before: each change is made whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of lost pages on standard error, once of each: nobody may look at the numbers.
    pub(crate) fn tell_lost(&self) {
        let lost = self.book().stats.lost;
        // Relaxed: a number for people.
        let told = self.told.fetch_max(lost, Ordering::Relaxed);
        if lost > told {
            eprintln!(
                "telpher: {} pages of 4 KiB of process {} have lost their bytes on their way between tiers; please tell the authors",
                lost - told,
                std::process::id()
            );
        }
    }

    /// Asks the kernel to move pages; nobody else does.
    ///
    /// # Safety
    /// As for [`Userfault::take_pages`].
    unsafe fn take(&self, to: u64, from: u64, len: u64) -> Progress {
        #[cfg(test)]
        if let Some(lie) = self.faults.lie(len) {
            // SAFETY: the caller's promise. Nobody is woken by a move of which the kernel says that it failed.
            let progress = unsafe { self.userfault.take_pages_quietly(to, from, lie.len) };
            return if progress.error.is_none() { lie.said } else { progress };
        }
        // SAFETY: the caller's promise.
        unsafe { self.userfault.take_pages(to, from, len) }
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

    /// As [`register`](Exchange::register), of memory whose writes may be tracked where the kernel can.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn register_live(&self, range: Range<u64>) -> std::io::Result<()> {
        if !self.userfault.features().has(UserfaultFeatures::TRACK_WRITES) {
            return self.register(range);
        }
        // SAFETY: as for `register`.
        unsafe { self.userfault.register_tracked(range) }
    }

    /// A range that was registered just now has no holes, and is of mappings that are all registered, with nothing changing that was not told of.
    ///
    /// A mapping may have gone, and another one come, since its owner looked: then part of the range is a hole that nobody tells of when it is
    /// filled, and whose pages, once out, nobody would wait for. The kernel tells so when it is asked to move as much as a page into the range: it
    /// looks at the whole range first, and then finds the first page there, or puts one there that is empty.
    ///
    /// # Errors
    /// `EAGAIN` if something changes; else why it is not.
    pub(crate) fn is_ours(&self, range: &Range<u64>, probe: &Tract) -> Result<(), Errno> {
        let most = probe.range().end - probe.range().start;
        let mut start = range.start;
        while start < range.end {
            let len = most.min(range.end - start);
            probe.populate(probe.start()..probe.start() + PAGE).map_err(|_| Errno::NOMEM)?;
            // SAFETY: the probe is the caller's own, with one page, which is empty; where that goes, nothing was, and zeros are expected.
            match unsafe { self.userfault.take_pages(start, probe.start(), len) } {
                Progress { error: None, .. } | Progress { error: Some(Errno::EXIST), .. } => {}
                Progress { bytes, error: Some(_) } if bytes > 0 => self.userfault.wake(start..start + PAGE),
                Progress { error: Some(error), .. } => return Err(error),
            }
            start += len;
        }
        if self.userfault.is_changing() { Err(Errno::AGAIN) } else { Ok(()) }
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
        let mut again = || {
            let mut book = self.book();
            if book.order.waits() {
                if self.userfault.is_changing() {
                    return true;
                }
                // What is waited for does not come.
                book.catch_up(true, |range| self.userfault.wake(range));
            }
            once(self, &mut book)
        };
        while again() {
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
        loop {
            // A huge page goes whole or not: in parts it would be made small pages, one by one, for nothing.
            let together = if book.flight.is_next_huge(at, Stage::Planned) { LOOK } else { most };
            let Some(run) = book.flight.run(at, together, Stage::Planned, &sides) else { return false };
            let (first, len) = (book.flight[run.start], book.flight.pages(&run) as u64 * PAGE);
            if first.huge && len < HUGE {
                run.clone().for_each(|at| book.flight[at].stage = Stage::Left(Why::Gone));
                at = run.end;
                continue;
            }
            // SAFETY: the place is the exchange's own, and empty; the pool is registered. The live page is of a range that the heap has taken over
            // (or has just been unmapped: then the kernel moves nothing), and comes back before its owner sees any other there: until then a
            // touch waits, for the keeper fills no page that is out.
            let Progress { error, .. } = unsafe { self.take(first.from, first.live, len) };
            let Some(error) = error else {
                book.order.is_quiet();
                book.went_out(run.clone());
                most = LOOK.min(most * 2);
                at = run.end;
                continue;
            };
            let out = self.what_went(first.live, first.from, len);
            let run = book.flight.singly(run);
            let (mut moved, mut blocked) = (0, 0);
            for at in run.clone() {
                if out.went.has(at - run.start) {
                    book.went_out(at..at + 1);
                    moved += 1;
                } else if out.blocked.has(at - run.start) {
                    book.flight[at].stage = Stage::Left(Why::Blocked);
                    blocked += 1;
                }
            }
            let all = moved == run.len();
            book.stats.lies += u64::from(all && error != Errno::AGAIN);
            match error {
                // Something has changed, and the kernel waits until we know.
                Errno::AGAIN if moved == 0 => return true,
                _ if moved + blocked > 0 => {}
                _ if first.huge => {
                    let stage = match error {
                        Errno::BUSY => busy,
                        Errno::NOENT | Errno::EXIST => Stage::Left(Why::Gone),
                        _ => Stage::Left(Why::Unsupported),
                    };
                    run.clone().for_each(|at| book.flight[at].stage = stage);
                }
                Errno::NOENT | Errno::EXIST => book.flight[run.start].stage = Stage::Left(Why::Gone),
                Errno::BUSY if busy == Stage::Busy => run.clone().for_each(|at| book.flight[at].stage = busy),
                Errno::BUSY => book.flight[run.start].stage = busy,
                _ if run.len() > 1 => most = run.len() / 2,
                _ => book.flight[run.start].stage = Stage::Left(Why::Unsupported),
            }
            at = run.start;
        }
    }

    /// Has the mappings of pages that are busy made the program's own, without changing a byte; true if there are any.
    fn part_from_children(&self) -> bool {
        let mut any = false;
        loop {
            let sides: [Side; 1] = [|aloft| aloft.live];
            let run = {
                let mut book = self.book();
                let Some(run) = book.flight.run(0, LOOK, Stage::Busy, &sides) else { return any };
                run.clone().for_each(|at| book.flight[at].stage = Stage::Planned);
                book.flight[run.start].live..book.flight[run.end - 1].range().end
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

    /// Parts of the flight that are out, follow each other on both places and are alike in this: the number of the first, the first, and how many
    /// pages there are.
    fn copied_together(&self, at: usize, alike: fn(&Aloft) -> bool) -> Option<(usize, Aloft, usize)> {
        let book = self.book();
        let flight = &book.flight;
        let goes = |part: &Aloft| part.stage == Stage::Out && alike(part);
        let at = at + flight.get(at..)?.iter().position(goes)?;
        let mut pages = flight[at].pages;
        for pair in flight[at..].windows(2) {
            let follows = (pair[0].from + pair[0].len(), pair[0].to + pair[0].len()) == (pair[1].from, pair[1].to);
            if !goes(&pair[1]) || !follows || pages + pair[1].pages > LOOK {
                break;
            }
            pages += pair[1].pages;
        }
        Some((at, flight[at], pages))
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
        let mut from_part = 0;
        let alike = |part: &Aloft| part.shadowed && part.source == part.from;
        while let Some((at, first, pages)) = self.copied_together(from_part, alike) {
            // SAFETY: as told; they end with this round.
            let (from, to) = unsafe { Self::places(first, pages) };
            let mut same = Marks::default();
            let mut page = 0;
            while page < pages {
                let rest = page * 4096;
                let differs = first_difference(mover, &from[rest..], &to[rest..]).map(|at| page + at / 4096);
                let end = differs.unwrap_or(pages);
                (page..end).for_each(|page| same.mark(page));
                page = end + 1;
            }
            let mut book = self.book();
            let mut parts = book.flight.of_places(at, &(first.from..first.from + pages as u64 * PAGE));
            if same.count() < pages as u64 {
                parts = book.flight.singly(parts);
            }
            for part in &mut book.flight[parts.clone()] {
                if same.has(usize::try_from((part.from - first.from) / PAGE).expect("of the run")) {
                    part.comes_from_where_it_goes();
                }
            }
            book.stats.not_copied += same.count();
            from_part = parts.end;
        }
    }

    /// As [`compare`](Exchange::compare), while the program has the pages: wrong, to see that it is.
    #[cfg(test)]
    fn compare_too_early(&self) {
        if !self.faults.early.load(Ordering::Relaxed) {
            return;
        }
        let mut book = self.book();
        let all = 0..book.flight.len();
        let all = book.flight.singly(all);
        for aloft in book.flight[all].iter_mut().filter(|aloft| aloft.shadowed) {
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
        drop(book);
        std::thread::yield_now();
    }

    /// Copies what is out to where it goes.
    pub(crate) fn copy(&self, mover: &Mover) {
        let mut from_part = 0;
        while let Some((at, first, pages)) = self.copied_together(from_part, |part| part.source == part.from) {
            // SAFETY: as told; they end with this round.
            let (from, to) = unsafe { Self::places(first, pages) };
            #[cfg(test)]
            self.faults.touch(0);
            #[cfg(test)]
            let (from, to) = if self.faults.leaves_uncopied() { (&from[..0], &mut to[..0]) } else { (from, to) };
            let begun = Instant::now();
            let copied = copy_whole(mover, from, to);
            let took = begun.elapsed();
            let parts = {
                let mut book = self.book();
                book.stats.copying += took;
                let parts = book.flight.of_places(at, &(first.from..first.from + pages as u64 * PAGE));
                if copied.is_ok() {
                    book.flight[parts.clone()].iter_mut().for_each(Aloft::comes_from_where_it_goes);
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

    /// Brings a page back that the thread wants that moves it, and would wait for itself.
    ///
    /// It may be about to copy it, or have a device copy it: then what it reads where the page was is zeros, and what it writes where the page was
    /// to come is nobody's.
    pub(crate) fn rescue(&self, book: &mut Book, page: u64) {
        let has = |part: &Aloft| part.stage == Stage::Out && part.range().contains(&page);
        let Some(at) = book.flight.iter().position(has) else {
            return self.userfault.wake(page..page + PAGE);
        };
        let at = book.flight.single(at, page);
        let Aloft { source, from, to, tier, .. } = book.flight[at];
        // SAFETY: as in `bring_back_once`.
        let Progress { error, .. } = unsafe { self.take(page, source, PAGE) };
        let went = error.is_none() || self.in_place(source..source + PAGE).count() == 0;
        if went {
            let (stage, tier) = if source == from { (Stage::Rescued, tier) } else { (Stage::Back, book.to) };
            debug_assert!(source == from || source == to);
            book.came_back(at, stage, tier);
            book.stats.rescued += 1;
        }
        // If an event is to be read first, it looks again, and comes here again.
        self.userfault.wake(page..page + PAGE);
    }

    /// Brings everything back that is out.
    pub(crate) fn bring_back(&self) {
        // From the first thing on that does not go.
        let mut end = None;
        let mut is_last = || Instant::now() >= *end.get_or_insert_with(|| Instant::now() + self.patience);
        self.until_told(|exchange, book| exchange.bring_back_once(book, &mut is_last));
    }

    /// True if there are events to be read first, or something is to be tried again.
    fn bring_back_once(&self, book: &mut Book, is_last: &mut dyn FnMut() -> bool) -> bool {
        let sides: [Side; 2] = [|aloft| aloft.live, |aloft| aloft.source];
        // As in `take_out_once`: a run may be of several mappings by now.
        let (mut at, mut most, mut again) = (0, LOOK, false);
        while let Some(run) = book.flight.run(at, most, Stage::Out, &sides) {
            let (first, len) = (book.flight[run.start], book.flight.pages(&run) as u64 * PAGE);
            let live = first.live..first.live + len;
            // SAFETY: the range is registered, or the kernel refuses; its pages are missing because this exchange has them, and its owner expects
            // their bytes. The place is the exchange's own.
            let Progress { error, .. } = unsafe { self.take(live.start, first.source, len) };
            let tier = |at: usize, book: &Book| {
                if book.flight[at].source == book.flight[at].to { book.to } else { book.flight[at].tier }
            };
            let Some(error) = error else {
                book.order.is_quiet();
                for at in run.clone() {
                    let tier = tier(at, book);
                    book.came_back(at, Stage::Back, tier);
                }
                most = LOOK.min(most * 2);
                at = run.end;
                continue;
            };
            let there = self.in_place(first.source..first.source + len);
            let run = book.flight.singly(run);
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
                // Whatever takes so long, the page is not lost by it: this ends when the thread that changes a mapping has run.
                Errno::AGAIN => return true,
                _ if run.len() > 1 => {
                    most = run.len() / 2;
                    at = run.start;
                }
                // The mapping is not there: it was moved or unmapped, and the event is to be read.
                Errno::NOENT if !is_last() => (at, again) = (run.end, true),
                _ => {
                    again |= self.put_copy(book, run.start, is_last());
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
            Some(Errno::AGAIN) => return true,
            Some(error) if !last && error != Errno::EXIST => return true,
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

    /// Which pages went to places of the exchange's when the kernel says that not all did, and which could not.
    fn what_went(&self, live: u64, place: u64, len: u64) -> Out {
        let (there, still) = (self.in_place(place..place + len), self.in_place(live..live + len));
        let mut out = Out { went: Marks::default(), blocked: Marks::default() };
        for at in there.each() {
            if still.has(at) { out.blocked.mark(at) } else { out.went.mark(at) }
        }
        out
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
        #[cfg(test)]
        if self.faults.gives_nothing() {
            return;
        }
        let sides: [Side; 3] = [|aloft| aloft.live, |aloft| aloft.taken, |aloft| aloft.from];
        let mut at = 0;
        while let Some(run) = book.flight.run(at, LOOK, Stage::Out, &sides) {
            let (Aloft { live, taken, from, .. }, len) =
                (book.flight[run.start], book.flight.pages(&run) as u64 * PAGE);
            let mut given = give(child, live, from, len);
            if given == Given::default() && taken != live {
                // Forked, and then moved by another thread, whose event was read first.
                given = give(child, taken, from, len);
            }
            given.note(&mut book.stats);
            at = run.end;
        }
        for part in book.traps.parts() {
            give(child, part.live, part.place, part.len).note(&mut book.stats);
        }
        book.stats.forks += 1;
    }

    /// Puts an empty page where one is missing that is not out, and more behind it, up to the first that is there.
    pub(crate) fn fill(&self, book: &mut Book, page: u64) {
        /// Pages at once at most. Source: chosen; they are the page of zeros that all share, and cost an entry each.
        const MOST: u64 = 64;
        let is_out = book.is_out(page);
        #[cfg(test)]
        let is_out = is_out && !self.faults.fills_what_is_out();
        if is_out || book.order.is_late(page) {
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

/// What became of pages that were to be taken out.
struct Out {
    went: Marks,
    /// They are where they were, and so is something in their places.
    blocked: Marks,
}

/// What became of pages that were to be copied to a forked child. Numbers of pages.
#[derive(PartialEq, Eq, Default)]
struct Given {
    given: u64,
    /// It wants them, and there was no memory for them: it finds zeros.
    lost: u64,
}

impl Given {
    fn note(self, stats: &mut Stats) {
        stats.given += self.given;
        stats.lost += self.lost;
    }
}

/// Gives a forked child a copy of pages that its parent has where nobody writes.
fn give(child: &Userfault, live: u64, place: u64, len: u64) -> Given {
    let (mut done, mut most, mut pages) = (0, len, Given::default());
    while done < len {
        let part = most.min(len - done);
        // SAFETY: nothing is there in the child, which expects what its parent had: the page where it was taken to, which nobody writes.
        let progress = unsafe { child.put_copies(live + done, place + done, part) };
        done += progress.bytes;
        pages.given += progress.bytes / PAGE;
        match progress.error {
            None => {}
            Some(_) if progress.bytes > 0 => {}
            // Of several mappings, or of one that is not there any more: each page by itself.
            Some(_) if part > PAGE => most = PAGE,
            Some(error) => {
                // The child has no such mapping, or has the page; or it has died already.
                pages.lost += u64::from(!matches!(error, Errno::NOENT | Errno::EXIST | Errno::SRCH));
                done += PAGE;
            }
        }
    }
    pages
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
