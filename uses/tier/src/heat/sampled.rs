//! Loads and stores that a processor's own unit samples (PEBS, IBS): pages are as hot as they are often among them.
//!
//! **Unverified on silicon**, as [`telpher_os::Perf`] is.

use crate::config::{HUGE, PAGE};
use crate::heat::{HeatMap, Source};
use std::fmt::Debug;
use std::io;
use std::time::Duration;
use telpher_os::{Perf, PerfError};

/// One access of so many is sampled at first. Source: chosen, a prime, so that no loop is in step with it.
const PERIOD: u64 = 100_003;
/// As few and as many as it may become.
const PERIODS: [u64; 2] = [10_007, 100_003 << 10];
/// Samples a second, of all threads: with more, half as many are taken. Source: chosen; one costs half a microsecond to a microsecond (the interrupt, and to
/// read it), so these cost one or two hundredths of a core.
const MOST_A_SECOND: u64 = 20_000;
/// How often they are read. Source: derived: a ring has room for 800, and one thread has 400 of those in this time at most.
const READ: Duration = Duration::from_millis(20);
/// How often it is asked which threads there are. Source: chosen.
const FOLLOWED: Duration = Duration::from_millis(200);
/// A look is over when there is a sample for one page in so many, between these times. Source: chosen: of a heap of which one page in ten has nine in ten
/// accesses, one that is hot is then among the samples of a look as often as not, and another one in ninety times.
const PAGES: u64 = 8;
const LOOK: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];
/// The most pages that are kept in a look. Source: chosen, 8 MiB; a look that has them is over.
const MOST_KEPT: usize = 1 << 20;

/// Whoever samples.
pub(super) trait Sampler: Debug + Send {
    /// Gives the address of each sample since the last time.
    fn read(&mut self, each: &mut dyn FnMut(u64));

    /// Goes with the threads that there are.
    fn follow(&mut self);

    /// One access of so many.
    fn period(&self) -> u64;

    fn set_period(&mut self, period: u64);

    /// Samples that were lost up to now.
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

/// Opens one, whenever it looks again.
type Open = fn() -> Result<Box<dyn Sampler>, PerfError>;

/// Looks at samples.
#[derive(Debug)]
pub(crate) struct Sampled {
    open: Open,
    /// None while it rests.
    sampler: Option<Box<dyn Sampler>>,
    /// Pages of this look's samples.
    pages: Vec<u64>,
    /// When the look, the second by which samples are counted, and the list of threads began.
    since: [Duration; 3],
    /// Samples in that second.
    samples: u64,
    /// Of samplers that are gone.
    lost: u64,
}

impl Sampled {
    /// Opens it.
    ///
    /// # Errors
    /// [`PerfError`]: there is no such unit, or not for this user.
    pub(crate) fn new() -> Result<Sampled, PerfError> {
        Sampled::with(|| Ok(Box::new(Perf::open(PERIOD)?)))
    }

    fn with(open: Open) -> Result<Sampled, PerfError> {
        let sampler = Some(open()?);
        Ok(Sampled { open, sampler, pages: Vec::new(), since: [Duration::ZERO; 3], samples: 0, lost: 0 })
    }

    /// Takes fewer where there are too many, and more where there are few.
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
        // Odd, as a prime is.
        let next = (next | 1).clamp(PERIODS[0], PERIODS[1]);
        if next != period {
            sampler.set_period(next);
        }
    }

    /// The look is over: pages that are among its samples are as hot as can be, and the others cold; their average tells how often.
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
        "loads and stores, as the processor's own unit samples them (PEBS, IBS; unverified on silicon)"
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

    const BASE: u64 = 0x4000_0000;

    /// Samples by a generator: one page in ten has nine in ten of them.
    #[derive(Debug)]
    struct Fake {
        state: u64,
        period: u64,
        /// Accesses between two reads.
        accesses: u64,
        pages: u64,
    }

    impl Fake {
        fn next(&mut self) -> u64 {
            // Xorshift, Marsaglia 2003.
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            self.state >> 16
        }
    }

    impl Sampler for Fake {
        fn read(&mut self, each: &mut dyn FnMut(u64)) {
            for _ in 0..self.accesses / self.period {
                let is_hot = self.next() % 10 < 9;
                let page = self.next() % self.pages;
                let page = if is_hot { page / 10 * 10 } else { page };
                each(BASE + page * PAGE + self.next() % PAGE);
                // Of no heap, and of nothing.
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
        Ok(Box::new(Fake { state: 77, period: PERIOD, accesses: 2_000_000, pages: SMALL }))
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
    fn pages_that_are_often_among_the_samples_are_hot() {
        let (mut sampled, mut heat) = (Sampled::with(fake).unwrap(), map(SMALL, false));
        // The last is not there.
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
        // Samples are of the first 2000, and one behind.
        assert!((0..2048).all(|page| of(page) == 255), "{}", of(0));
    }

    #[test]
    fn too_many_samples_are_made_fewer_and_few_ones_more() {
        let mut sampled = Sampled::with(fake).unwrap();
        let period = |sampled: &Sampled| sampled.sampler.as_ref().unwrap().period();
        // Three samples are given for each; one second.
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
    fn it_ends_what_it_has_under_way_and_tells_what_was_lost() {
        let (mut sampled, mut heat) = (Sampled::with(fake).unwrap(), map(SMALL, false));
        run(&mut sampled, &mut heat, Duration::from_millis(100));
        assert!(!sampled.pages.is_empty() && sampled.lost() == 7);
        sampled.rest();
        assert!(sampled.sampler.is_none() && sampled.pages.is_empty() && sampled.lost() == 7);
        run(&mut sampled, &mut heat, Duration::from_millis(100));
        assert!(sampled.sampler.is_some() && sampled.lost() == 14);
    }
}
