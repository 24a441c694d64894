//! Which call sites copy cold data: learned from sampled copies of the CPU, without locks and without allocation.
//!
//! A device reads and writes memory at the same speed whether the data is in a cache or not, and a core copies cached
//! data several times as fast as data in memory. A call site mostly copies data in one of the two states. So every
//! site has a score that sampled copies move up (cold) or down (hot), and the device gets the copies of cold sites.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Number of sites. Source: chosen; programs with thousands of sites that copy long ranges were not seen.
const SITES: usize = 4096;
/// Slots that are searched for a site before it counts as unknown.
const PROBES: usize = 8;

/// Score from which a site is cold, and up to which it is hot. A new site begins at 0.
const COLD: i64 = 2;
const HOT: i64 = -COLD;
/// Bounds of the score: so many samples of the other kind change the verdict.
const BOUND: i64 = 6;
/// One of this many calls of a cold site is copied by the CPU, to see whether the site is still cold.
const RESAMPLE: u64 = 64;
/// One of this many calls of a hot site is timed.
const RESAMPLE_HOT: u64 = 16;

/// Scores that do not change: of a site whose calls always stay with the CPU, because its library is denied or a file
/// of the user says so, and of a site whose calls always go to the device.
const DENIED: i64 = i64::MIN;
const GIVEN_DEVICE: i64 = i64::MAX;

/// What is known about a site at its first call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// Nothing.
    Nothing,
    /// The CPU executes its calls.
    Denied,
    /// The device executes its calls.
    Device,
}

/// What to do with one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The device copies.
    Device,
    /// The CPU copies, because the data was in the caches.
    Cpu,
    /// The CPU copies, whatever the data is.
    Denied,
    /// The CPU copies, and the time is given to [`Site::learn`].
    Timed,
}

/// One call site.
#[derive(Debug)]
pub(crate) struct Site {
    /// The return address; 0 if the slot is free.
    address: AtomicUsize,
    /// The score, between -[`BOUND`] and [`BOUND`]; positive if samples were cold.
    score: AtomicI64,
    /// Calls of the site.
    calls: AtomicU64,
    /// 1 once it is known whether the site is denied. Until then, and for ever if a signal handler leaves the first
    /// call before that, its calls stay with the CPU.
    is_judged: AtomicU32,
}

/// The sites of a process.
#[derive(Debug)]
pub(crate) struct Sites([Site; SITES]);

impl Sites {
    pub(crate) const fn new() -> Sites {
        Sites(
            [const {
                Site {
                    address: AtomicUsize::new(0),
                    score: AtomicI64::new(0),
                    calls: AtomicU64::new(0),
                    is_judged: AtomicU32::new(0),
                }
            }; SITES],
        )
    }

    /// Returns the site of a return address; `None` if the table has no room for it. `known` is asked once for each
    /// site.
    #[inline]
    pub(crate) fn site(&self, address: usize, known: impl Fn() -> Known) -> Option<&Site> {
        // The upper bits of a multiplication spread neighbouring addresses. Source: Knuth, TAOCP 3, §6.4.
        let start = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - SITES.ilog2());
        for probe in 0..PROBES {
            let site = &self.0[(start + probe) % SITES];
            // Relaxed, here and below: each word stands alone, and a wrong verdict costs time only.
            let there = site.address.load(Ordering::Relaxed);
            if there == address {
                return Some(site);
            }
            if there == 0 {
                match site.address.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        match known() {
                            Known::Nothing => {}
                            Known::Denied => site.score.store(DENIED, Ordering::Relaxed),
                            Known::Device => site.score.store(GIVEN_DEVICE, Ordering::Relaxed),
                        }
                        // Release: a thread that sees it sees the score.
                        site.is_judged.store(1, Ordering::Release);
                        return Some(site);
                    }
                    Err(other) if other == address => return Some(site),
                    Err(_) => {}
                }
            }
        }
        None
    }
}

impl Site {
    /// Returns what to do with the next call.
    #[inline]
    pub(crate) fn verdict(&self) -> Verdict {
        if !self.is_judged() {
            return Verdict::Denied;
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        match self.score.load(Ordering::Relaxed) {
            DENIED => Verdict::Denied,
            GIVEN_DEVICE => Verdict::Device,
            COLD.. if call.is_multiple_of(RESAMPLE) => Verdict::Timed,
            COLD.. => Verdict::Device,
            ..=HOT if !call.is_multiple_of(RESAMPLE_HOT) => Verdict::Cpu,
            _ => Verdict::Timed,
        }
    }

    fn is_judged(&self) -> bool {
        // Acquire: pairs with the Release in `Sites::site`.
        self.is_judged.load(Ordering::Acquire) == 1
    }

    /// Returns whether the calls of the site stay with the CPU, whatever their data is.
    #[inline]
    pub(crate) fn is_denied(&self) -> bool {
        !self.is_judged() || self.score.load(Ordering::Relaxed) == DENIED
    }

    /// Learns from a copy of the CPU whether its data was cold.
    pub(crate) fn learn(&self, cold: bool) {
        let step = if cold { 1 } else { -1 };
        let learned =
            |score: i64| (![DENIED, GIVEN_DEVICE].contains(&score)).then(|| (score + step).clamp(-BOUND, BOUND));
        let _ = self.score.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_offloaded_once_its_copies_were_cold_and_not_when_they_were_hot() {
        let sites = Box::new(Sites::new());
        let (cold, hot) =
            (sites.site(0x1000, || Known::Nothing).unwrap(), sites.site(0x2000, || Known::Nothing).unwrap());
        for _ in 0..2 {
            assert_eq!((cold.verdict(), hot.verdict()), (Verdict::Timed, Verdict::Timed));
            cold.learn(true);
            hot.learn(false);
        }
        let verdicts = |site: &Site| (0..640).map(|_| site.verdict()).collect::<Vec<_>>();
        let count = |of: &[Verdict], verdict| of.iter().filter(|other| **other == verdict).count();
        let (of_cold, of_hot) = (verdicts(cold), verdicts(hot));
        assert_eq!((count(&of_cold, Verdict::Device), count(&of_cold, Verdict::Timed)), (630, 10));
        assert_eq!((count(&of_hot, Verdict::Cpu), count(&of_hot, Verdict::Timed)), (600, 40));
    }

    #[test]
    fn a_site_that_is_given_to_the_device_is_never_timed() {
        let sites = Box::new(Sites::new());
        let site = sites.site(7, || Known::Device).unwrap();
        (0..100).for_each(|_| site.learn(false));
        assert!((0..1000).all(|_| site.verdict() == Verdict::Device));
    }

    #[test]
    fn a_site_that_is_not_judged_stays_with_the_cpu() {
        let sites = Box::new(Sites::new());
        // As another thread, and a signal handler that interrupts the judgement, see it.
        let judging = || {
            let site = sites.site(7, || unreachable!("it is judged once")).unwrap();
            assert!(site.is_denied() && site.verdict() == Verdict::Denied);
            Known::Nothing
        };
        let site = sites.site(7, judging).unwrap();
        assert!(!site.is_denied() && site.verdict() == Verdict::Timed);
    }

    #[test]
    fn a_denied_site_stays_denied_whatever_its_copies_take() {
        let sites = Box::new(Sites::new());
        let site = sites.site(7, || Known::Denied).unwrap();
        (0..100).for_each(|_| site.learn(true));
        assert!(
            (0..100).all(|_| sites.site(7, || Known::Nothing).unwrap().verdict() == Verdict::Denied)
                && site.is_denied()
        );
        assert!(!sites.site(8, || Known::Nothing).unwrap().is_denied());
    }

    #[test]
    fn a_site_that_changes_gets_another_verdict() {
        let sites = Box::new(Sites::new());
        let site = sites.site(7, || Known::Nothing).unwrap();
        (0..100).for_each(|_| site.learn(true));
        (0..2 * BOUND).for_each(|_| site.learn(false));
        assert!((1..64).all(|_| site.verdict() != Verdict::Device));
    }

    #[test]
    fn more_sites_than_slots_are_unknown_and_known_ones_stay() {
        let sites = Box::new(Sites::new());
        let known: Vec<usize> =
            (1..=4 * SITES).map(|at| at * 16).filter(|at| sites.site(*at, || Known::Nothing).is_some()).collect();
        assert!(known.len() <= SITES && known.len() > SITES * 9 / 10, "{}", known.len());
        let again = known.iter().all(|at| {
            sites.site(*at, || Known::Nothing).is_some_and(|site| site.address.load(Ordering::Relaxed) == *at)
        });
        assert!(again);
    }

    #[test]
    fn one_address_has_one_site_for_all_threads() {
        let sites: &'static Sites = Box::leak(Box::new(Sites::new()));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    (1..1000).for_each(|at| {
                        sites.site(at * 16, || Known::Nothing).unwrap().verdict();
                    });
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let calls = |at: usize| sites.site(at * 16, || Known::Nothing).unwrap().calls.load(Ordering::Relaxed);
        assert!((1..1000).all(|at| calls(at) == 4));
    }
}
