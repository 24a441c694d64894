//! Takes pages of a running program out and brings them back: `UFFDIO_MOVE` in both directions.
//!
//! A page that is out lies in a private slot of a pool. A thread, system call or device fault that touches its address
//! in the program waits in the kernel, as during the kernel's own migration. The kernel refuses to take out a pinned
//! page, so it stays. Between the two moves no other code reads or writes the page, so its bytes can be copied to
//! another slot.
//!
//! **The kernel's answer to a failed move is not trusted.** Linux 6.18 was seen to answer that a range exists already
//! although it had moved all of it (3 of some 30,000 calls concurrent with `madvise(MADV_COLD)`). Slots are private, so
//! the page tables show the truth: a page that is in its slot and not in the program went out, and a page that is not
//! in its slot went back. A slot that holds something before a page was taken there (all memory is locked, or another
//! process reads this one's memory) keeps the page in the program.
#![allow(unsafe_code, reason = "moves pages of a running program and copies them while no other code can access them")]

#[cfg(test)]
pub(crate) mod faults;
pub(crate) mod trapping;

use crate::config::{HUGE, PAGE, TierId};
use crate::in_flight::{AddressOf, LOOK, MovingRun, Stage, Why};
use crate::page_map::PageMap;
use crate::page_set::PageSet;
use crate::stats::Stats;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use telpher_mem::RawPages;
use telpher_mover::{JobError, Mover, Outcome};
use telpher_os::{Progress, Scan, Userfault, UserfaultFeatures};

/// Takes pages out, copies them and brings them back.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) userfault: Userfault,
    pub(crate) scan: Scan,
    map: Mutex<PageMap>,
    home: TierId,
    patience: Duration,
    /// The number of lost pages reported so far.
    reported: AtomicU64,
    #[cfg(test)]
    pub(crate) faults: faults::Faults,
}

impl Exchange {
    pub(crate) fn new(userfault: Userfault, scan: Scan, map: PageMap, home: TierId, patience: Duration) -> Exchange {
        Exchange {
            userfault,
            scan,
            map: Mutex::new(map),
            home,
            patience,
            reported: AtomicU64::new(0),
            #[cfg(test)]
            faults: faults::Faults::default(),
        }
    }

    /// Locks the page map. Nothing may be allocated or freed while it is locked.
    pub(crate) fn page_map(&self) -> MutexGuard<'_, PageMap> {
        /// Attempts before this thread sleeps. Source: chosen, some 20 µs. That is longer than the fault handler holds
        /// the lock, and than a sleep and a wake-up take, which each batch whose pages a thread wants would pay twice.
        const LOOKS: u32 = 512;
        for _ in 0..LOOKS {
            match self.map.try_lock() {
                Ok(map) => return map,
                Err(TryLockError::Poisoned(map)) => return map.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        // A panic leaves the map consistent: each change is made as a whole.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports lost pages on standard error, each once, in case no one reads the statistics.
    pub(crate) fn report_lost(&self) {
        let lost = self.page_map().stats.lost;
        // Relaxed: a counter for people.
        let reported = self.reported.fetch_max(lost, Ordering::Relaxed);
        if lost > reported {
            eprintln!(
                "telpher: {} pages of 4 KiB of process {} lost their contents while moving between tiers; \
                 please report this bug",
                lost - reported,
                std::process::id()
            );
        }
    }

    /// Asks the kernel to move pages. All moves go through this function.
    ///
    /// # Safety
    /// As for [`Userfault::take_pages`].
    unsafe fn take(&self, to: u64, from: u64, len: u64) -> Progress {
        #[cfg(test)]
        if let Some(lie) = self.faults.lie(len) {
            // SAFETY: the caller's promise. A move that the kernel reports as failed wakes no thread.
            let progress = unsafe { self.userfault.take_pages_quietly(to, from, lie.len) };
            return if progress.error.is_none() { lie.said } else { progress };
        }
        // SAFETY: the caller's promise.
        unsafe { self.userfault.take_pages(to, from, len) }
    }

    /// Moves a new page from the kernel to an empty slot of a pool; false if it did not go.
    pub(crate) fn put_fresh(&self, slot: u64, from: u64, len: u64) -> bool {
        loop {
            // SAFETY: both ranges are the pool's own, without references to them; the slot is empty and registered.
            let Progress { error, .. } = unsafe { self.take(slot, from, len) };
            match error {
                None => return true,
                // The fault handler must read an event first.
                Some(Errno::AGAIN) => std::thread::yield_now(),
                Some(_) => {
                    let mut there = 0;
                    let looked = self.scan.there(slot..slot + len, |run| there += run.pages());
                    return looked.is_ok() && there * PAGE == len;
                }
            }
        }
    }

    /// Registers a range, so that its faults come to this userfaultfd. The page map must know the range.
    ///
    /// # Errors
    /// The system's refusal.
    pub(crate) fn register(&self, range: Range<u64>) -> std::io::Result<()> {
        // SAFETY: the fault handler answers until the heap is gone; arenas outlive it only in forked children. It
        // touches no arena. It fills pages as private anonymous memory is filled: with zeros, or with the page that was
        // taken.
        unsafe { self.userfault.register(range) }
    }

    /// Like [`register`](Exchange::register), with write tracking where the kernel supports it.
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

    /// Checks that a range registered just now has no holes, that all its mappings are registered, and that no
    /// unreported change is under way.
    ///
    /// A mapping may have gone and another one come since the owner looked. Then a part of the range may be a hole. Its
    /// faults would go unreported once it is mapped, and no thread would wait for its pages while they are out. The
    /// kernel detects this when it is asked to move a single page into the range: it checks the whole range first, and
    /// then finds a page at its start or puts an empty page there.
    ///
    /// # Errors
    /// `EAGAIN` if a change is under way; otherwise why the range is not the heap's.
    pub(crate) fn is_ours(&self, range: &Range<u64>, probe: &RawPages) -> Result<(), Errno> {
        let most = probe.range().end - probe.range().start;
        let mut start = range.start;
        while start < range.end {
            let len = most.min(range.end - start);
            probe.populate(probe.start()..probe.start() + PAGE).map_err(|_| Errno::NOMEM)?;
            // SAFETY: the probe is the caller's own and has one page of zeros. Where that page goes, nothing was, and
            // zeros are expected.
            match unsafe { self.userfault.take_pages(start, probe.start(), len) } {
                Progress { error: None, .. } | Progress { error: Some(Errno::EXIST), .. } => {}
                Progress { bytes, error: Some(_) } if bytes > 0 => self.userfault.wake(start..start + PAGE),
                Progress { error: Some(error), .. } => return Err(error),
            }
            start += len;
        }
        if self.userfault.is_changing() { Err(Errno::AGAIN) } else { Ok(()) }
    }

    /// Takes the planned pages out, as far as the kernel permits.
    pub(crate) fn take_out(&self) {
        #[cfg(test)]
        self.compare_too_early();
        self.after_events(|exchange, map| exchange.take_out_once(map, Stage::Busy));
        // Pages shared with a forked child can be taken out once one of the two processes has its own copy.
        if self.part_from_children() {
            self.after_events(|exchange, map| exchange.take_out_once(map, Stage::Unmoved(Why::Pinned)));
        }
    }

    /// Repeats an action until it does not need an event to be read first.
    fn after_events(&self, mut once: impl FnMut(&Exchange, &mut PageMap) -> bool) {
        let mut rests = 0_u32;
        let mut again = || {
            let mut map = self.page_map();
            if map.order.waits() {
                if self.userfault.is_changing() {
                    return true;
                }
                // The awaited event will not come.
                map.catch_up(true, |range| self.userfault.wake(range));
            }
            once(self, &mut map)
        };
        while again() {
            // The fault handler can take the lock now, and read.
            rests += 1;
            match rests {
                0..64 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Returns true if events must be read first. A run with a busy page gets the stage `busy`: as a whole if it is
    /// tried again.
    fn take_out_once(&self, map: &mut PageMap, busy: Stage) -> bool {
        let adjacent_by: [AddressOf; 2] = [|moving| moving.live, |moving| moving.from];
        // Contiguous pages may belong to different mappings: after a refusal fewer pages are tried at once, and after a
        // success more again.
        let (mut at, mut most) = (0, LOOK);
        loop {
            // A huge page moves as a whole or not at all: in parts it would be split into small pages for nothing.
            let together = if map.in_flight.is_next_huge(at, Stage::Planned) { LOOK } else { most };
            let Some(run) = map.in_flight.run(at, together, Stage::Planned, &adjacent_by) else { return false };
            let (first, len) = (map.in_flight[run.start], map.in_flight.pages(&run) as u64 * PAGE);
            if first.huge && len < HUGE {
                run.clone().for_each(|at| map.in_flight[at].stage = Stage::Unmoved(Why::Gone));
                at = run.end;
                continue;
            }
            // SAFETY: the slot is the exchange's own and empty; the pool is registered. The live page is in a range
            // that the heap has adopted (or was unmapped just now: then the kernel moves nothing). It comes back before
            // its owner can see another page there: a touch waits until then, because the fault handler fills no page
            // that is out.
            let Progress { error, .. } = unsafe { self.take(first.from, first.live, len) };
            let Some(error) = error else {
                map.order.is_quiet();
                map.went_out(run.clone());
                most = LOOK.min(most * 2);
                at = run.end;
                continue;
            };
            let out = self.what_went(first.live, first.from, len);
            let run = map.in_flight.singly(run);
            let (mut moved, mut blocked) = (0, 0);
            for at in run.clone() {
                if out.went.has(at - run.start) {
                    map.went_out(at..at + 1);
                    moved += 1;
                } else if out.blocked.has(at - run.start) {
                    map.in_flight[at].stage = Stage::Unmoved(Why::Blocked);
                    blocked += 1;
                }
            }
            let all = moved == run.len();
            map.stats.lies += u64::from(all && error != Errno::AGAIN);
            match error {
                // A mapping has changed, and the kernel waits until the event is read.
                Errno::AGAIN if moved == 0 => return true,
                _ if moved + blocked > 0 => {}
                _ if first.huge => {
                    let stage = match error {
                        Errno::BUSY => busy,
                        Errno::NOENT | Errno::EXIST => Stage::Unmoved(Why::Gone),
                        _ => Stage::Unmoved(Why::Unsupported),
                    };
                    run.clone().for_each(|at| map.in_flight[at].stage = stage);
                }
                Errno::NOENT | Errno::EXIST => map.in_flight[run.start].stage = Stage::Unmoved(Why::Gone),
                Errno::BUSY if busy == Stage::Busy => run.clone().for_each(|at| map.in_flight[at].stage = busy),
                Errno::BUSY => map.in_flight[run.start].stage = busy,
                _ if run.len() > 1 => most = run.len() / 2,
                _ => map.in_flight[run.start].stage = Stage::Unmoved(Why::Unsupported),
            }
            at = run.start;
        }
    }

    /// Gives this process its own copies of busy pages, without changing a byte. Returns true if there are any.
    fn part_from_children(&self) -> bool {
        let mut any = false;
        loop {
            let adjacent_by: [AddressOf; 1] = [|moving| moving.live];
            let run = {
                let mut map = self.page_map();
                let Some(run) = map.in_flight.run(0, LOOK, Stage::Busy, &adjacent_by) else { return any };
                run.clone().for_each(|at| map.in_flight[at].stage = Stage::Planned);
                map.in_flight[run.start].live..map.in_flight[run.end - 1].range().end
            };
            any = true;
            let len = usize::try_from(run.end - run.start).expect("a run");
            // SAFETY: no byte changes. If the mapping is gone, the kernel refuses; missing pages are filled as on any
            // touch.
            let _ = unsafe {
                let start = std::ptr::with_exposed_provenance_mut(usize::try_from(run.start).expect("an address"));
                rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxPopulateWrite)
            };
        }
    }

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
    fn compare_too_early(&self) {
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
            let begun = Instant::now();
            let copied = copy_whole(mover, from, to);
            let took = begun.elapsed();
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
            map.stats.rescued += 1;
        }
        // If an event must be read first, the thread faults again and comes back here.
        self.userfault.wake(page..page + PAGE);
    }

    /// Brings back all pages that are out.
    pub(crate) fn bring_back(&self) {
        // The time limit starts at the first page that cannot be moved back.
        let mut end = None;
        let mut is_last = || Instant::now() >= *end.get_or_insert_with(|| Instant::now() + self.patience);
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
            map.stats.lies += u64::from(moved == run.len() && error != Errno::AGAIN);
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
                map.stats.returned += 1;
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

    /// Returns which pages went to their slots, when the kernel says that not all did, and which could not.
    fn what_went(&self, live: u64, slot: u64, len: u64) -> Out {
        let (there, still) = (self.in_place(slot..slot + len), self.in_place(live..live + len));
        let mut out = Out { went: PageSet::default(), blocked: PageSet::default() };
        for at in there.each() {
            if still.has(at) { out.blocked.insert(at) } else { out.went.insert(at) }
        }
        out
    }

    /// Returns which pages of a range are present.
    fn in_place(&self, slots: Range<u64>) -> PageSet {
        let mut there = PageSet::default();
        let looked = self.scan.there(slots.clone(), |run| {
            let (first, end) = ((run.start - slots.start) / PAGE, (run.end - slots.start) / PAGE);
            for at in first..end {
                // The range has at most `LOOK` pages.
                there.insert(usize::try_from(at).unwrap_or(0));
            }
        });
        // The file is open and the request is valid, so this does not fail; without an answer the state of the pages
        // would be unknown.
        looked.expect("the page tables can be asked");
        there
    }

    /// Gives a forked child copies of the pages that are out. Its mapping is its own, and the pages are missing there.
    pub(crate) fn give_to_child(&self, map: &mut PageMap, child: &Userfault) {
        #[cfg(test)]
        if self.faults.gives_nothing() {
            return;
        }
        let adjacent_by: [AddressOf; 3] = [|moving| moving.live, |moving| moving.taken, |moving| moving.from];
        let mut at = 0;
        while let Some(run) = map.in_flight.run(at, LOOK, Stage::Out, &adjacent_by) {
            let (MovingRun { live, taken, from, .. }, len) =
                (map.in_flight[run.start], map.in_flight.pages(&run) as u64 * PAGE);
            let mut given = give(child, live, from, len);
            if given == Given::default() && taken != live {
                // The parent forked and another thread then moved the mapping, but the event of the move was read
                // first.
                given = give(child, taken, from, len);
            }
            given.note(&mut map.stats);
            at = run.end;
        }
        for part in map.traps.parts() {
            give(child, part.live, part.slot, part.len).note(&mut map.stats);
        }
        map.stats.forks += 1;
    }

    /// Puts an empty page where a page is missing that is not out, and into the missing pages behind it, up to the
    /// first that is present.
    pub(crate) fn fill(&self, map: &mut PageMap, page: u64) {
        /// The most pages at once. Source: chosen; they map the shared zero page and cost one page table entry each.
        const MOST: u64 = 64;
        let is_out = map.is_out(page);
        #[cfg(test)]
        let is_out = is_out && !self.faults.fills_what_is_out();
        if is_out || map.order.is_late(page) {
            return;
        }
        let mut end = page + PAGE;
        while end < page + MOST * PAGE && !end.is_multiple_of(HUGE) && map.may_be_filled(end) {
            end += PAGE;
        }
        // Contiguous pages may belong to several mappings: then only the requested page is filled.
        let mut progress = Progress { bytes: 0, error: None };
        for end in [end, page + PAGE] {
            // SAFETY: the range is registered, or the kernel refuses. Its owner expects zeros where nothing is, and no
            // page of it is out.
            progress = unsafe { self.userfault.put_zeros(page..end) };
            if progress.bytes > 0 {
                break;
            }
        }
        let filled = progress.bytes / PAGE;
        map.filled(&(page..page + progress.bytes));
        map.stats.fills += filled;
        if filled == 0 {
            // The page is present by now, or an event must be read first: the waiting thread faults again.
            self.userfault.wake(page..page + PAGE);
        }
    }
}

/// The outcome of taking pages out.
struct Out {
    went: PageSet,
    /// Pages still in the program whose slots hold something else.
    blocked: PageSet,
}

/// The outcome of copying pages to a forked child, in pages.
#[derive(PartialEq, Eq, Default)]
struct Given {
    given: u64,
    /// The child expects them, but there was no memory for them: it finds zeros.
    lost: u64,
}

impl Given {
    fn note(self, stats: &mut Stats) {
        stats.given += self.given;
        stats.lost += self.lost;
    }
}

/// Gives a forked child copies of pages that the parent has out, where no thread writes them.
fn give(child: &Userfault, live: u64, slot: u64, len: u64) -> Given {
    let (mut done, mut most, mut pages) = (0, len, Given::default());
    while done < len {
        let part = most.min(len - done);
        // SAFETY: the address is empty in the child, which expects the parent's page: that page is in its slot, where
        // no thread writes it.
        let progress = unsafe { child.put_copies(live + done, slot + done, part) };
        done += progress.bytes;
        pages.given += progress.bytes / PAGE;
        match progress.error {
            None => {}
            Some(_) if progress.bytes > 0 => {}
            // The range spans several mappings, or one that is gone: each page is tried alone.
            Some(_) if part > PAGE => most = PAGE,
            Some(error) => {
                // The child has no such mapping, already has the page, or has died.
                pages.lost += u64::from(!matches!(error, Errno::NOENT | Errno::EXIST | Errno::SRCH));
                done += PAGE;
            }
        }
    }
    pages
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
