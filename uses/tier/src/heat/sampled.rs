//! The source that reads loads and stores sampled by the processor (PEBS, IBS): the more often a page is in the
//! samples, the hotter it is.
//!
//! **Unverified on silicon**, like [`telpher_os::Perf`].

use crate::config::{HUGE, PAGE};
use crate::heat::{HeatMap, Source};
use std::fmt::Debug;
use std::io;
use std::time::Duration;
use telpher_os::{Perf, PerfError};

/// The initial period: one of this many accesses is sampled. Source: chosen, a prime, so that no loop runs in step with
/// it.
const PERIOD: u64 = 100_003;
/// The shortest and the longest period.
const PERIODS: [u64; 2] = [10_007, 100_003 << 10];
/// The most samples a second, of all threads; with more, the rate is halved. Source: chosen; a sample costs 0.5 to 1 µs
/// (the interrupt, and reading it), so these cost 1 to 2 % of a core.
const MOST_A_SECOND: u64 = 20_000;
/// How often samples are read. Source: derived: a ring has room for 800, and one thread has at most 400 in this time.
const READ: Duration = Duration::from_millis(20);
/// How often the list of threads is read. Source: chosen.
const FOLLOWED: Duration = Duration::from_millis(200);
/// A sampling interval ends when there is one sample for this many pages, within the limits below. Source: chosen. If
/// one page in ten has nine in ten accesses, a hot page is then in the samples of an interval half of the time, and
/// another page once in ninety intervals.
const PAGES: u64 = 8;
/// The shortest and the longest sampling interval.
const LOOK: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];
/// The most pages kept in an interval, which ends when they are reached. Source: chosen, 8 MiB.
const MOST_KEPT: usize = 1 << 20;

/// Samples memory accesses.
pub(super) trait Sampler: Debug + Send {
    /// Passes on the address of each sample since the last call.
    fn read(&mut self, each: &mut dyn FnMut(u64));

    /// Updates the list of threads.
    fn follow(&mut self);

    /// Returns the period: one of this many accesses is sampled.
    fn period(&self) -> u64;

    fn set_period(&mut self, period: u64);

    /// Returns the number of samples lost so far.
    fn lost(&self) -> u64;
}

impl Sampler for Perf {
    fn read(&mut self, each: &mut dyn FnMut(u64)) {
        Perf::read(self, |sample| each(sample.address));
    }

    fn follow(&mut self) {
        Perf::follow(self);
    }

    fn period(&self) -> u64 {
        Perf::period(self)
    }

    fn set_period(&mut self, period: u64) {
        Perf::set_period(self, period);
    }

    fn lost(&self) -> u64 {
        self.counts().lost
    }
}

/// Opens a sampler, also after each rest.
type Open = fn() -> Result<Box<dyn Sampler>, PerfError>;

/// The source that reads sampled accesses.
#[derive(Debug)]
pub(crate) struct Sampled {
    open: Open,
    /// None while it rests.
    sampler: Option<Box<dyn Sampler>>,
    /// Pages of the samples in this interval.
    pages: Vec<u64>,
    /// When the interval, the second in which samples are counted, and the list of threads began.
    since: [Duration; 3],
    /// Samples in that second.
    samples: u64,
    /// Samples lost by earlier samplers.
    lost: u64,
}

impl Sampled {
    /// Opens the sampler.
    ///
    /// # Errors
    /// [`PerfError`]: there is no such unit, or this user may not use it.
    pub(crate) fn new() -> Result<Sampled, PerfError> {
        Sampled::with(|| Ok(Box::new(Perf::open(PERIOD)?)))
    }

    fn with(open: Open) -> Result<Sampled, PerfError> {
        let sampler = Some(open()?);
        Ok(Sampled { open, sampler, pages: Vec::new(), since: [Duration::ZERO; 3], samples: 0, lost: 0 })
    }

    /// Doubles the period when there are too many samples, and halves it when there are few.
    fn adapt(&mut self, time: Duration) {
        let Some(sampler) = &mut self.sampler else { return };
        let rate = self.samples as f64 / time.as_secs_f64();
        let (period, most) = (sampler.period(), MOST_A_SECOND as f64);
        let next = if rate > most {
            period.saturating_mul(2)
        } else if rate < most / 8.0 {
            period / 2
        } else {
            period
        };
        // Odd, like a prime.
        let next = (next | 1).clamp(PERIODS[0], PERIODS[1]);
        if next != period {
            sampler.set_period(next);
        }
    }

    /// Ends the interval: pages in its samples get the highest level and the others get 0; the average shows how often
    /// a page was in the samples.
    fn close(&mut self, heat: &mut HeatMap) {
        self.pages.sort_unstable();
        self.pages.dedup();
        let mut blocks: Vec<u64> = self.pages.iter().map(|page| page / HUGE).collect();
        blocks.dedup();
        let pages = &self.pages;
        heat.look(|address, page| {
            let is_used = match page.huge {
                true => blocks.binary_search(&(address / HUGE)).is_ok(),
                false => pages.binary_search(&address).is_ok(),
            };
            page.observe(if is_used { u8::MAX } else { 0 });
        });
        self.pages.clear();
    }
}

impl Source for Sampled {
    fn name(&self) -> &'static str {
        "perf"
    }

    fn sees(&self) -> &'static str {
        "loads and stores that the processor samples (PEBS, IBS; unverified on silicon)"
    }

    fn step(&mut self, now: Duration, heat: &mut HeatMap) -> io::Result<Duration> {
        let sampler = match &mut self.sampler {
            Some(sampler) => sampler,
            none => {
                self.since = [now; 3];
                none.insert((self.open)().map_err(io::Error::other)?)
            }
        };
        let (pages, samples) = (&mut self.pages, &mut self.samples);
        sampler.read(&mut |address| {
            *samples += 1;
            if pages.len() < MOST_KEPT && heat.page(address).is_some() {
                pages.push(address / PAGE * PAGE);
            }
        });
        let [look, second, list] = self.since.map(|since| now.saturating_sub(since));
        if list >= FOLLOWED {
            sampler.follow();
            self.since[2] = now;
        }
        if second >= Duration::from_secs(1) {
            self.adapt(second);
            (self.samples, self.since[1]) = (0, now);
        }
        let enough = self.pages.len() as u64 >= (heat.covers() / PAGE / PAGES).min(MOST_KEPT as u64).max(1);
        if look >= LOOK[1] || look >= LOOK[0] && enough {
            self.close(heat);
            self.since[0] = now;
        }
        Ok(READ)
    }

    fn rest(&mut self) {
        self.lost += self.sampler.take().map_or(0, |sampler| sampler.lost());
        self.pages.clear();
        self.samples = 0;
    }

    fn lost(&self) -> u64 {
        self.lost + self.sampler.as_ref().map_or(0, |sampler| sampler.lost())
    }

    fn bytes(&self) -> u64 {
        (self.pages.capacity() * size_of::<u64>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heat::NO_TIER;
    use telpher_os::Random;

    const BASE: u64 = 0x4000_0000;

    /// Generates samples: one page in ten has nine in ten of them.
    #[derive(Debug)]
    struct Fake {
        random: Random,
        period: u64,
        /// Accesses between two reads.
        accesses: u64,
        pages: u64,
    }

    impl Sampler for Fake {
        fn read(&mut self, each: &mut dyn FnMut(u64)) {
            for _ in 0..self.accesses / self.period {
                let is_hot = self.random.below(10) < 9;
                let page = self.random.below(self.pages);
                let page = if is_hot { page / 10 * 10 } else { page };
                each(BASE + page * PAGE + self.random.below(PAGE));
                // Addresses outside of the heap.
                each(BASE + self.pages * PAGE + 77);
                each(0);
            }
        }

        fn follow(&mut self) {}

        fn period(&self) -> u64 {
            self.period
        }

        fn set_period(&mut self, period: u64) {
            self.period = period;
        }

        fn lost(&self) -> u64 {
            7
        }
    }

    const SMALL: u64 = 2000;

    fn fake() -> Result<Box<dyn Sampler>, PerfError> {
        // Ten million accesses a second.
        Ok(Box::new(Fake { random: Random::new(77), period: PERIOD, accesses: 2_000_000, pages: SMALL }))
    }

    fn map(pages: u64, huge: bool) -> HeatMap {
        let range = BASE..BASE + pages * PAGE;
        let mut heat = HeatMap::of(std::slice::from_ref(&range));
        heat.each_page(&range, |page| (page.tier, page.huge) = (1, huge));
        heat
    }

    fn run(sampled: &mut Sampled, heat: &mut HeatMap, time: Duration) {
        let mut now = Duration::ZERO;
        while now < time {
            now += sampled.step(now, heat).unwrap();
        }
    }

    #[test]
    fn frequently_sampled_pages_are_hot() {
        let (mut sampled, mut heat) = (Sampled::with(fake).unwrap(), map(SMALL, false));
        // The last page is not present.
        heat.page_mut(BASE + 1990 * PAGE).unwrap().tier = NO_TIER;
        run(&mut sampled, &mut heat, Duration::from_secs(60));
        let of = |page: u64| heat.page(BASE + page * PAGE).unwrap();
        let mean = |pages: &dyn Fn(u64) -> bool| {
            let heats: Vec<f64> = (0..1990).filter(|page| pages(*page)).map(|page| of(page).heat.into()).collect();
            heats.iter().sum::<f64>() / heats.len() as f64
        };
        let (hot, cold) = (mean(&|page| page % 10 == 0), mean(&|page| page % 10 != 0));
        assert!(hot > 100.0 && cold < 10.0, "{hot} and {cold}");
        assert_eq!((of(1990).seen, of(5).seen), (0, 8));
    }

    #[test]
    fn a_huge_page_is_hot_as_a_whole() {
        let pages = 4 * HUGE / PAGE;
        let (mut sampled, mut heat) = (Sampled::with(fake).unwrap(), map(pages, true));
        run(&mut sampled, &mut heat, Duration::from_secs(30));
        let of = |page: u64| heat.page(BASE + page * PAGE).unwrap().heat;
        // Samples are in the first 2000 pages, and one is behind the last.
        assert!((0..2048).all(|page| of(page) == 255), "{}", of(0));
    }

    #[test]
    fn the_period_adapts_to_the_sample_rate() {
        let mut sampled = Sampled::with(fake).unwrap();
        let period = |sampled: &Sampled| sampled.sampler.as_ref().unwrap().period();
        // Three samples are passed on for each; one second.
        for (samples, expected) in
            [(20_000, PERIOD), (20_001, (2 * PERIOD) | 1), (2500, (2 * PERIOD) | 1), (2499, PERIOD)]
        {
            sampled.samples = samples;
            sampled.adapt(Duration::from_secs(1));
            assert_eq!(period(&sampled), expected);
        }
        for (samples, bound) in [(0, PERIODS[0]), (u64::MAX, PERIODS[1])] {
            (0..60).for_each(|_| {
                sampled.samples = samples;
                sampled.adapt(Duration::from_secs(1));
            });
            assert_eq!(period(&sampled), bound);
        }
    }

    #[test]
    fn a_rest_ends_sampling_and_keeps_the_lost_count() {
        let (mut sampled, mut heat) = (Sampled::with(fake).unwrap(), map(SMALL, false));
        run(&mut sampled, &mut heat, Duration::from_millis(100));
        assert!(!sampled.pages.is_empty() && sampled.lost() == 7);
        sampled.rest();
        assert!(sampled.sampler.is_none() && sampled.pages.is_empty() && sampled.lost() == 7);
        run(&mut sampled, &mut heat, Duration::from_millis(100));
        assert!(sampled.sampler.is_some() && sampled.lost() == 14);
    }
}
