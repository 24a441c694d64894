//! DAMON, the kernel's own monitor of accesses: it samples whether pages were read or written (their accessed bits),
//! huge pages as well, and joins neighbours with similar use into regions.
//!
//! The kernel has one interface to it for the whole machine, for root alone, and one user at a time. It is taken only
//! if it is unused, and released later. What a killed process of this library has left there is cleared away. A
//! separate thread reads DAMON, because the kernel makes it wait for a tenth of a second and more.
//!
//! Sources: Linux, Documentation/admin-guide/mm/damon/usage.rst and design.rst.

mod error;
mod interface;
mod regions;
mod worker;

#[cfg(test)]
mod kernel;
#[cfg(test)]
mod tests;

use crate::heap::Heap;
use crate::heat::{HeatMap, Source};
use interface::{Files, Interface, Sysfs};
use regions::{Intervals, Region};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;
use worker::{Answer, Worker};

pub use error::DamonError;

/// The folder of its files.
const FOLDER: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// The shortest time between two readings. A reading returns the latest aggregation, so an earlier one yields nothing
/// new. Source: chosen, twice the first aggregation.
const LEAST: Duration = Duration::from_millis(400);
/// The longest. Source: chosen.
const LONGEST: Duration = Duration::from_secs(60);
/// How often to check whether a reading is complete.
const ASKED: Duration = Duration::from_millis(20);
/// The period over which the kernel thread's share of a core is measured. Source: chosen; its time is reported in
/// hundredths of a second.
const MEASURED: Duration = Duration::from_secs(2);
/// The most address ranges to monitor; the closest ones are joined with the gap between them. Source: chosen.
const MOST_RANGES: usize = 64;

/// Opens the files each time the interface is taken.
struct Open(Box<dyn Fn() -> Box<dyn Files> + Send>);

impl fmt::Debug for Open {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Open")
    }
}

/// DAMON on a heap's memory.
#[derive(Debug)]
pub(crate) struct Damon {
    heap: Heap,
    /// None while it rests.
    worker: Option<Worker>,
    files: Open,
    /// The fraction of a core that the kernel's thread may use; above it, the sampling rate is halved. The same limit
    /// applies to the readings.
    share: f64,
    intervals: Intervals,
    /// When the reading under way began.
    asked: Option<Duration>,
    /// CPU time of earlier workers.
    past: Duration,
    /// The CPU time of the kernel's thread at the last measurement, and when that was.
    measured: (Duration, Duration),
    bytes: u64,
}

impl Damon {
    /// Takes the interface.
    ///
    /// # Errors
    /// [`DamonError`]: it is not available.
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

    /// Puts the results of a reading into the map. Returns the time until the next one.
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
        // The kernel spends about as much time on the files as the reader.
        let pays = Duration::try_from_secs_f64(2.0 * answer.cost.as_secs_f64() / self.share).unwrap_or(LONGEST);
        LEAST.max(self.intervals.aggregation() * 2).max(pays.min(LONGEST))
    }

    /// Returns the heap's memory, joined into few ranges.
    fn ranges(&self) -> Vec<Range<u64>> {
        few(self.heap.inner.region_parts().into_iter().map(|region_part| region_part.range), MOST_RANGES)
    }
}

impl Source for Damon {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn sees(&self) -> &'static str {
        "reads and writes of small and huge pages, by regions of similar use; \
         it does not find a single hot page among cold ones"
    }

    fn step(&mut self, now: Duration, heat: &mut HeatMap) -> io::Result<Duration> {
        if self.worker.is_none() {
            self.take().map_err(io::Error::other)?;
        }
        let ranges = if self.asked.is_none() { self.ranges() } else { Vec::new() };
        let worker = self.worker.as_mut().expect("the interface is taken above");
        if self.asked.is_none() {
            if ranges.is_empty() {
                return Ok(LEAST);
            }
            worker.request(ranges, self.intervals);
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
        // The worker's end releases the interface.
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

/// Joins sorted ranges until at most `most` are left, closing the smallest gaps.
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
        // Backwards, so that earlier indexes stay valid.
        for &at in narrow.iter().rev() {
            few[at].end = few.remove(at + 1).end;
        }
    }
    few
}
