//! DAMON, the kernel's own monitor of accesses: it samples whether pages were read or written (their accessed bits), huge ones as well, and keeps
//! neighbours that are used alike together as a region.
//!
//! The kernel has one interface to it for the whole machine, for root alone: who has it, has it all. It is taken if nobody has it, and given
//! back; what a process of ours that was killed has left there is cleared away. A thread of its own asks, as the kernel lets it wait
//! for a tenth of a second and more.
//!
//! Sources: Linux, Documentation/admin-guide/mm/damon/usage.rst and design.rst.

mod interface;
mod worker;

#[cfg(test)]
mod kernel;
#[cfg(test)]
mod tests;

use crate::heap::Heap;
use crate::heat::{HeatMap, Source};
use interface::{Files, Interface, Sysfs};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use worker::{Answer, Worker};

pub use interface::DamonError;

/// Where its files are.
const FOLDER: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// The least between two looks; a look is at the latest aggregation, and says nothing new sooner. Source: chosen, twice the first aggregation.
const LEAST: Duration = Duration::from_millis(400);
/// The most. Source: chosen.
const LONGEST: Duration = Duration::from_secs(60);
/// How often it is asked whether a look is over.
const ASKED: Duration = Duration::from_millis(20);
/// The time over which it is found out what part of a core the kernel's thread has. Source: chosen; its time is told in hundredths of a second.
const MEASURED: Duration = Duration::from_secs(2);
/// Pieces of memory that it is told of at most; what lies between those nearest to each other goes with them. Source: chosen.
const MOST_RANGES: usize = 64;

/// When the kernel looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Intervals {
    /// Between two looks at a page of each region.
    sample: Duration,
}

impl Intervals {
    /// Source: chosen, twice the kernel's own.
    const FIRST: Intervals = Intervals { sample: Duration::from_millis(10) };
    /// Source: chosen; what is used less often than that is cold anyway.
    const SLOWEST: Duration = Duration::from_millis(160);
    /// Looks of an aggregation, which is the most accesses that are counted. Source: the kernel's own ratio of both, 100 ms to 5 ms.
    const SAMPLES: u32 = 20;

    fn aggregation(self) -> Duration {
        self.sample * Self::SAMPLES
    }

    fn slower(self) -> Option<Intervals> {
        let sample = self.sample * 2;
        (sample <= Self::SLOWEST).then_some(Intervals { sample })
    }
}

/// Neighbouring pages that are used alike, as the kernel has it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Region {
    range: Range<u64>,
    /// Looks of an aggregation that found it used.
    accesses: u32,
}

impl Region {
    /// How hot its pages are: 255 if every look has found them used.
    fn level(&self) -> u8 {
        let accesses = self.accesses.min(Intervals::SAMPLES);
        u8::try_from(accesses * 255 / Intervals::SAMPLES).expect("at most 255")
    }
}

/// Opens the files, whenever it is taken.
struct Open(Box<dyn Fn() -> Box<dyn Files> + Send>);

impl fmt::Debug for Open {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Open")
    }
}

/// The kernel's monitor, on a heap's memory.
#[derive(Debug)]
pub(crate) struct Damon {
    heap: Heap,
    /// None while it rests.
    worker: Option<Worker>,
    files: Open,
    /// The part of a core that the kernel's thread may have; where it has more, it looks half as often. And that of asking.
    share: f64,
    intervals: Intervals,
    /// The look under way began then.
    asked: Option<Duration>,
    /// Time of a core of workers that are gone.
    past: Duration,
    /// The kernel's thread's time, when it was measured last, and when that was.
    measured: (Duration, Duration),
    bytes: u64,
}

impl Damon {
    /// Takes it.
    ///
    /// # Errors
    /// [`DamonError`]: it is not to be had.
    pub(crate) fn new(heap: &Heap, share: f64) -> Result<Damon, DamonError> {
        Damon::with(heap, share, Open(Box::new(|| Box::new(Sysfs::new(Path::new(FOLDER))))))
    }

    fn with(heap: &Heap, share: f64, files: Open) -> Result<Damon, DamonError> {
        let mut damon = Damon {
            heap: heap.clone(),
            worker: None,
            files,
            share,
            intervals: Intervals::FIRST,
            asked: None,
            past: Duration::ZERO,
            measured: Default::default(),
            bytes: 0,
        };
        damon.take()?;
        Ok(damon)
    }

    fn take(&mut self) -> Result<(), DamonError> {
        self.worker = Some(Worker::start(Interface::take((self.files.0)())?)?);
        self.measured = Default::default();
        Ok(())
    }

    /// What came of a look. Returns when the next one is due.
    fn found(&mut self, now: Duration, answer: &Answer, heat: &mut HeatMap) -> Duration {
        for region in &answer.regions {
            let level = region.level();
            heat.each_page(&region.range, |page| {
                if page.tier != crate::heat::NO_TIER {
                    page.observe(level);
                }
            });
        }
        self.bytes = (answer.regions.capacity() * size_of::<Region>()) as u64;
        let (cpu, since) = self.measured;
        let time = now.saturating_sub(since);
        if time >= MEASURED {
            let share = answer.kernel.saturating_sub(cpu).as_secs_f64() / time.as_secs_f64();
            self.measured = (answer.kernel, now);
            if since > Duration::ZERO && share > self.share {
                self.intervals = self.intervals.slower().unwrap_or(self.intervals);
            }
        }
        // The kernel has about as much to do with the files as who reads them.
        let pays = Duration::try_from_secs_f64(2.0 * answer.cost.as_secs_f64() / self.share).unwrap_or(LONGEST);
        LEAST.max(self.intervals.aggregation() * 2).max(pays.min(LONGEST))
    }

    /// The heap's memory, in few pieces.
    fn ranges(&self) -> Vec<Range<u64>> {
        few(self.heap.inner.pieces().into_iter().map(|piece| piece.range), MOST_RANGES)
    }
}

impl Source for Damon {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn sees(&self) -> &'static str {
        "reads and writes, of small and huge pages, by regions of neighbours that are used alike; what lies alone among others is not told from them"
    }

    fn step(&mut self, now: Duration, heat: &mut HeatMap) -> io::Result<Duration> {
        if self.worker.is_none() {
            self.take().map_err(io::Error::other)?;
        }
        let ranges = if self.asked.is_none() { self.ranges() } else { Vec::new() };
        let worker = self.worker.as_mut().expect("taken above");
        if self.asked.is_none() {
            if ranges.is_empty() {
                return Ok(LEAST);
            }
            worker.ask(ranges, self.intervals);
            self.asked = Some(now);
            return Ok(ASKED);
        }
        let Some(answer) = worker.answer() else { return Ok(ASKED) };
        self.asked = None;
        match answer {
            Ok(answer) => Ok(self.found(now, &answer, heat)),
            Err(error) => {
                self.rest();
                Err(io::Error::other(error))
            }
        }
    }

    fn rest(&mut self) {
        // Its end gives the interface back.
        if let Some(worker) = self.worker.take() {
            self.past += worker.end();
        }
        self.asked = None;
    }

    fn elsewhere(&self) -> Duration {
        self.past + self.worker.as_ref().map_or(Duration::ZERO, Worker::cpu)
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        self.rest();
    }
}

/// Ranges in order, at most so many: those with the least between them become one.
fn few(ranges: impl Iterator<Item = Range<u64>>, most: usize) -> Vec<Range<u64>> {
    let mut few: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match few.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => few.push(range),
        }
    }
    if few.len() > most {
        let gap = |few: &[Range<u64>], at: usize| few[at + 1].start - few[at].end;
        let mut narrow: Vec<usize> = (0..few.len() - 1).collect();
        narrow.sort_unstable_by_key(|&at| gap(&few, at));
        narrow.truncate(few.len() - most);
        narrow.sort_unstable();
        // From the last on, so that those before keep their places.
        for &at in narrow.iter().rev() {
            few[at].end = few.remove(at + 1).end;
        }
    }
    few
}
