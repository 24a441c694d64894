//! Which call sites copy cold data: learned from sampled copies of the CPU, without locks and without allocation.
//!
//! A device reads and writes memory at the same speed whether the data is in a cache or not, and a core copies cached
//! data several times as fast as data in memory. A call site mostly copies data in one of the two states. So every
//! site has a score that sampled copies move up (cold) or down (hot), and the device gets the copies of cold sites.
//!
//! A device stops at each page that is not present, and the kernel takes longer than the copy to make it so. A cold
//! site at whose pages the device stops in more than a tenth of the calls goes back to the CPU.
//!
//! The table is a file that other processes read: [`telpher_offload_wire::sites`].

use std::sync::atomic::Ordering;
use telpher_offload_wire::sites::Verdict as Learned;
use telpher_offload_wire::sites::{ABSENT, DENIED, GIVEN_CPU, GIVEN_DEVICE, SITES, SiteRow, SiteTable};

/// Slots that are searched for a site before it counts as unknown.
const PROBES: usize = 8;

/// Bound of the score in both directions: as many samples of the other kind change the verdict.
const BOUND: i64 = 6;
/// One of this many calls of a cold site is copied by the CPU, to see whether the site is still cold. One of this many
/// calls of a site with absent pages goes to the device, to see whether they are still absent.
const RESAMPLE: u64 = 64;
/// One of this many calls of a hot site is timed.
const RESAMPLE_HOT: u64 = 16;

/// What a call that stopped at an absent page adds to the site's absence. Each other call takes one off, so that the
/// absence grows if more than a tenth of the calls stop.
const STOPPED: u64 = 10;
/// Bound of the absence: three calls in a row that do not stop bring a site back, see [`Site::note_pages`].
const MOST_ABSENCE: u64 = ABSENT + 2 * STOPPED;

/// What is known about a site at its first call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// Nothing.
    Nothing,
    /// Its calls stay with the CPU, because its library is denied or its code belongs to no file.
    Denied,
    /// The user gives its calls to the CPU.
    Cpu,
    /// The user gives its calls to the device.
    Device,
}

/// What is known about a site at its first call, and the place of its module in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Judgement {
    pub(crate) known: Known,
    pub(crate) module: Option<usize>,
}

/// What to do with one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The device copies.
    Device,
    /// The CPU copies, because the data was in the caches.
    Cpu,
    /// The CPU copies, because the device would stop at absent pages.
    Absent,
    /// The CPU copies, whatever the data is.
    Denied,
    /// The CPU copies, and the time is given to [`Site::learn`].
    Timed,
}

/// One call site.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site(SiteRow<'static>);

/// The sites of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sites(SiteTable<'static>);

impl Sites {
    pub(crate) const fn new(table: SiteTable<'static>) -> Sites {
        Sites(table)
    }

    /// Takes over what the parent of a forked child has learned.
    pub(crate) fn inherit(&self, parent: &Sites) {
        self.0.inherit(parent.0);
    }

    /// Returns the place of a module in the table, if there is room for it.
    pub(crate) fn module(&self, start: usize, path: &[u8], build_id: &[u8]) -> Option<usize> {
        self.0.module(start, path, build_id)
    }

    /// Returns the rows at which the site of a return address may be, in the order in which they are searched.
    #[inline]
    fn rows(&self, address: usize) -> impl Iterator<Item = SiteRow<'static>> {
        // The upper bits of a multiplication spread neighbouring addresses. Source: Knuth, TAOCP 3, §6.4.
        let start = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - SITES.ilog2());
        let table = self.0;
        (0..PROBES).map(move |probe| table.row((start + probe) % SITES))
    }

    /// Returns the site of a return address if it is in the table.
    #[inline]
    pub(crate) fn known(&self, address: usize) -> Option<Site> {
        // Relaxed: as in `site`.
        self.rows(address).find(|row| row.address().load(Ordering::Relaxed) == address as u64).map(Site)
    }

    /// Returns the site of a return address; `None` if the table has no room for it. `judge` is asked once for each
    /// site.
    pub(crate) fn site(&self, address: usize, judge: impl Fn() -> Judgement) -> Option<Site> {
        let wanted = address as u64;
        for row in self.rows(address) {
            // Relaxed, here and below: each word stands alone, and a wrong verdict costs time only.
            let there = row.address().load(Ordering::Relaxed);
            if there == wanted {
                return Some(Site(row));
            }
            if there == 0 {
                match row.address().compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        let Judgement { known, module } = judge();
                        let score = match known {
                            Known::Nothing => 0,
                            Known::Denied => DENIED,
                            Known::Cpu => GIVEN_CPU,
                            Known::Device => GIVEN_DEVICE,
                        };
                        row.score_word().store(score.cast_unsigned(), Ordering::Relaxed);
                        // Release: a thread that sees it sees the score.
                        row.module().store(module.map_or(1, |place| place as u64 + 2), Ordering::Release);
                        return Some(Site(row));
                    }
                    Err(other) if other == wanted => return Some(Site(row)),
                    Err(_) => {}
                }
            }
        }
        None
    }
}

impl Site {
    /// Counts the next call, and returns what to do with it. If `learns` is false, the device gets all calls, except of
    /// sites that the deny-list or the user's file keeps on the CPU.
    #[inline]
    pub(crate) fn verdict(self, learns: bool) -> Verdict {
        let Site(row) = self;
        let call = row.calls().fetch_add(1, Ordering::Relaxed);
        if !self.is_judged() {
            return Verdict::Denied;
        }
        match Learned::of(row.score(), row.absence().load(Ordering::Relaxed)) {
            Learned::Denied => Verdict::Denied,
            Learned::GivenCpu => Verdict::Denied,
            Learned::GivenDevice => Verdict::Device,
            _ if !learns => Verdict::Device,
            Learned::Always => Verdict::Device,
            Learned::Device if call.is_multiple_of(RESAMPLE) => Verdict::Timed,
            Learned::Device => Verdict::Device,
            Learned::Absent if call.is_multiple_of(RESAMPLE) => Verdict::Device,
            Learned::Absent => Verdict::Absent,
            Learned::Cached if !call.is_multiple_of(RESAMPLE_HOT) => Verdict::Cpu,
            Learned::Cached | Learned::Learning => Verdict::Timed,
        }
    }

    /// Returns whether it is known what the calls of the site may do. Until then, and for ever if a signal handler
    /// leaves the first call before that, its calls stay with the CPU.
    fn is_judged(self) -> bool {
        // Acquire: pairs with the Release in `Sites::site`.
        self.0.module().load(Ordering::Acquire) != 0
    }

    /// Learns from a copy of the CPU whether its data was cold.
    pub(crate) fn learn(self, cold: bool) {
        let step = if cold { 1 } else { -1 };
        let learned = |word: u64| {
            let score = word.cast_signed();
            (-BOUND..=BOUND).contains(&score).then(|| (score + step).clamp(-BOUND, BOUND).cast_unsigned())
        };
        let _ = self.0.score_word().fetch_update(Ordering::Relaxed, Ordering::Relaxed, learned);
    }

    /// Counts bytes that the CPU executed.
    #[inline]
    pub(crate) fn count_cpu(self, bytes: usize) {
        self.0.cpu_bytes().fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a call that the device executed, and learns from it whether the pages of the site are present.
    #[inline]
    pub(crate) fn count_device(self, device_bytes: u64, cpu_bytes: u64, stopped: bool) {
        let Site(row) = self;
        row.device_calls().fetch_add(1, Ordering::Relaxed);
        row.device_bytes().fetch_add(device_bytes, Ordering::Relaxed);
        if cpu_bytes > 0 {
            row.cpu_bytes().fetch_add(cpu_bytes, Ordering::Relaxed);
        }
        self.note_pages(stopped);
    }

    /// Learns from a call whether the device stopped at an absent page.
    #[inline]
    fn note_pages(self, stopped: bool) {
        // Two threads may lose a step of each other.
        let word = self.0.absence();
        let absence = word.load(Ordering::Relaxed);
        let next = match stopped {
            true => (absence + STOPPED).min(MOST_ABSENCE),
            // A site that is on the CPU makes one call in many by the device, so each of these counts more.
            false if absence >= ABSENT => absence - STOPPED,
            false => absence.saturating_sub(1),
        };
        if next != absence {
            word.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use telpher_offload_wire::sites::WORDS;

    fn sites() -> Sites {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        Sites::new(SiteTable::begin(words.leak(), true).unwrap())
    }

    fn new() -> Judgement {
        Judgement { known: Known::Nothing, module: None }
    }

    fn known(known: Known) -> impl Fn() -> Judgement {
        move || Judgement { known, module: Some(3) }
    }

    #[test]
    fn a_site_is_offloaded_once_its_copies_were_cold_and_not_when_they_were_hot() {
        let sites = sites();
        let (cold, hot) = (sites.site(0x1000, new).unwrap(), sites.site(0x2000, new).unwrap());
        for _ in 0..2 {
            assert_eq!((cold.verdict(true), hot.verdict(true)), (Verdict::Timed, Verdict::Timed));
            cold.learn(true);
            hot.learn(false);
        }
        let verdicts = |site: Site| (0..640).map(|_| site.verdict(true)).collect::<Vec<_>>();
        let count = |of: &[Verdict], verdict| of.iter().filter(|other| **other == verdict).count();
        let (of_cold, of_hot) = (verdicts(cold), verdicts(hot));
        assert_eq!((count(&of_cold, Verdict::Device), count(&of_cold, Verdict::Timed)), (630, 10));
        assert_eq!((count(&of_hot, Verdict::Cpu), count(&of_hot, Verdict::Timed)), (600, 40));
    }

    #[test]
    fn a_site_that_is_given_away_is_never_timed() {
        let sites = sites();
        let (device, cpu) = (sites.site(7, known(Known::Device)).unwrap(), sites.site(8, known(Known::Cpu)).unwrap());
        for _ in 0..100 {
            device.learn(false);
            device.count_device(0, 1, true);
            cpu.learn(true);
        }
        assert!((0..1000).all(|_| device.verdict(true) == Verdict::Device));
        assert!((0..1000).all(|_| cpu.verdict(true) == Verdict::Denied && cpu.verdict(false) == Verdict::Denied));
    }

    #[test]
    fn without_learning_all_calls_go_to_the_device_except_denied_ones() {
        let sites = sites();
        let (new, denied) = (sites.site(7, new).unwrap(), sites.site(8, known(Known::Denied)).unwrap());
        assert!((0..200).all(|_| {
            new.count_device(0, 1, true);
            new.verdict(false) == Verdict::Device && denied.verdict(false) == Verdict::Denied
        }));
    }

    #[test]
    fn a_site_that_is_not_judged_stays_with_the_cpu() {
        let sites = sites();
        // As another thread, and a signal handler that interrupts the judgement, see it.
        let judging = || {
            let site = sites.site(7, || unreachable!("it is judged once")).unwrap();
            assert_eq!((site.verdict(true), site.verdict(false)), (Verdict::Denied, Verdict::Denied));
            new()
        };
        assert_eq!(sites.site(7, judging).unwrap().verdict(true), Verdict::Timed);
    }

    #[test]
    fn a_denied_site_stays_denied_whatever_its_copies_take() {
        let sites = sites();
        let site = sites.site(7, known(Known::Denied)).unwrap();
        (0..100).for_each(|_| site.learn(true));
        assert!((0..100).all(|_| sites.site(7, new).unwrap().verdict(true) == Verdict::Denied));
        assert_eq!(sites.site(8, new).unwrap().verdict(true), Verdict::Timed);
    }

    #[test]
    fn a_site_that_changes_gets_another_verdict() {
        let sites = sites();
        let site = sites.site(7, new).unwrap();
        (0..100).for_each(|_| site.learn(true));
        (0..2 * BOUND).for_each(|_| site.learn(false));
        assert!((1..64).all(|_| site.verdict(true) != Verdict::Device));
    }

    #[test]
    fn a_site_with_absent_pages_goes_to_the_cpu_and_comes_back_when_they_are_present() {
        let sites = sites();
        let site = sites.site(7, new).unwrap();
        (0..BOUND).for_each(|_| site.learn(true));
        // Fewer than a tenth of the calls stop.
        (0..1000).for_each(|call| site.count_device(1, 0, call % 12 == 0));
        assert!((0..RESAMPLE).all(|_| site.verdict(true) != Verdict::Absent));
        // All of them.
        (0..10).for_each(|_| site.count_device(0, 1, true));
        let by_device = |site: Site| (0..640).filter(|_| site.verdict(true) == Verdict::Device).count();
        assert_eq!(by_device(site), 10);
        // None of them.
        (0..3).for_each(|_| site.count_device(1, 0, false));
        assert!(by_device(site) > 600);
        // Every fifth: most of its calls stay with the CPU.
        let mut by_device = 0;
        for _ in 0..10_000 {
            if site.verdict(true) == Verdict::Device {
                by_device += 1;
                site.count_device(1, 0, by_device % 5 == 0);
            }
        }
        assert!(by_device < 5000, "{by_device}");
    }

    #[test]
    fn more_sites_than_slots_are_unknown_and_known_ones_stay() {
        let sites = sites();
        let known: Vec<usize> = (1..=4 * SITES).map(|at| at * 16).filter(|at| sites.site(*at, new).is_some()).collect();
        assert!(known.len() <= SITES && known.len() > SITES * 9 / 10, "{}", known.len());
        let is_there = |at: &usize| {
            sites.site(*at, new).is_some_and(|site| site.0.address().load(Ordering::Relaxed) == *at as u64)
        };
        assert!(known.iter().all(is_there));
    }

    #[test]
    fn one_address_has_one_site_for_all_threads() {
        let sites = sites();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(move || {
                    (1..1000).for_each(|at| {
                        sites.site(at * 16, new).unwrap().verdict(true);
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let calls = |at: usize| sites.site(at * 16, new).unwrap().0.calls().load(Ordering::Relaxed);
        assert!((1..1000).all(|at| calls(at) == 4));
    }
}
