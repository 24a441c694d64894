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

mod bring_back;
mod copy;
#[cfg(test)]
pub(crate) mod faults;
mod fork;
mod take_out;
pub(crate) mod trapping;

use crate::config::{HUGE, PAGE, TierId};
use crate::page_map::PageMap;
use crate::page_set::PageSet;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use telpher_mem::RawPages;
use telpher_os::{Progress, Scan, Userfault, UserfaultFeatures};

/// Takes pages out, copies them and brings them back.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) userfault: Userfault,
    pub(crate) scan: Scan,
    map: Mutex<PageMap>,
    home: TierId,
    retry_timeout: Duration,
    /// The number of lost pages reported so far.
    reported: AtomicU64,
    #[cfg(test)]
    pub(crate) faults: faults::Faults,
}

impl Exchange {
    pub(crate) fn new(
        userfault: Userfault,
        scan: Scan,
        map: PageMap,
        home: TierId,
        retry_timeout: Duration,
    ) -> Exchange {
        Exchange {
            userfault,
            scan,
            map: Mutex::new(map),
            home,
            retry_timeout,
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
            return if progress.error.is_none() { lie.reported } else { progress };
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
