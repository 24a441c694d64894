//! The source that sets traps: a few pages at a time, drawn at random, are taken out for some milliseconds. The first
//! touch returns a page at once and shows how soon it was used.
//!
//! A touch is a fault that a thread of the library answers. So reads and writes are both seen, and a huge page is
//! sampled as a whole and not split. It costs more than a write in a [window](crate::heat::windows). So there are few
//! traps, and the more they cost at the moment, the longer the rest between two rounds.
//!
//! **Without bias**: a page is drawn from all pages of the map, each with the same chance. A small page is trapped
//! together with the pages that follow it, which leaves each page the same chance. If the page is part of a huge page,
//! the huge page is trapped.

#[cfg(test)]
mod tests;

use crate::clock::{inverse_share, thread_cpu_time};
use crate::config::{HUGE, IN_HUGE, PAGE};
use crate::error::TierError;
use crate::heap::Heap;
use crate::heat::{HeatMap, Source, level};
use crate::mechanism::{TrapCandidate, Trapping};
use crate::traps::{TrapCost, TrapOutcome};
use std::io;
use std::time::Duration;
use telpher_os::Random;

/// Pages drawn for a round, and contiguous pages trapped with each. Source: chosen: contiguous pages are taken out in
/// one step, and together they reach the limit ([`MOST_SMALL`](crate::traps::MOST_SMALL)).
const DRAWN: u64 = 4;
const TOGETHER: u64 = 16;
/// How many times sooner a huge page is used than each of its parts, as counted here. Source: chosen, between 1, with
/// which all huge pages would have the highest heat, and 512, the number of parts. With 32, the hottest page that can
/// be distinguished is used within 8 µs, about the duration of the fault that reports the use. The cost to move a byte
/// of a huge page is also lower by about this factor (`telpher bench tier`).
const PARTS: u32 = 32;
/// A huge page that is not used within this time is cold: see [`level`]. Source: derived.
const HUGE_TIME: Duration = Duration::from_millis(64 / PARTS as u64);
/// Traps may take this many times their share of a core from the program's threads together. Source: chosen, 3.5 %.
const OF_THREADS: f64 = 5.0;
/// How often the cost of a touch is measured. Source: chosen; a measurement costs one touch.
const MEASURED: Duration = Duration::from_millis(500);
/// The longest first measurement that is believed: the process may have been stopped meanwhile. Source: chosen, above
/// all that was seen.
const LONGEST: Duration = Duration::from_millis(1);
/// The inverse of the fraction by which the measured time may rise at once. Source: chosen; it rises by half in six
/// seconds.
const RISES: u32 = 32;
/// The pause when there is nothing to trap. Source: chosen.
const REST: Duration = Duration::from_millis(100);
/// Pages this hot by writes are left to windows. Source: chosen, the middle of the scale.
const HOT: u8 = 128;

/// The source that sets traps, one round at a time.
#[derive(Debug)]
pub(crate) struct Traps {
    heap: Heap,
    /// How long a round lasts.
    time: Duration,
    /// The inverse of the fraction of a core that rounds may take, and of the time of the program's threads together.
    of_core: u32,
    of_threads: u32,
    random: Random,
    round: Option<Round>,
    /// The time of a touch, and when it is to be measured again.
    touch: Duration,
    measure: Duration,
    /// The CPU time of the answering thread, the faults and the total waiting time; and the part of the cost counted so
    /// far.
    elsewhere: Duration,
    faults: (u64, Duration),
    counted: TrapCost,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    since: Duration,
    time: Duration,
    /// The CPU time to set it.
    cpu: Duration,
}

impl Traps {
    /// Creates the source for this fraction of a core, with a seed.
    ///
    /// # Errors
    /// [`TierError`]: the heap's mechanism cannot trap, or the system refuses memory for it.
    pub(crate) fn new(heap: &Heap, time: Duration, share: f64, seed: u64) -> Result<Traps, TierError> {
        let trapping = heap.inner.backend.traps().ok_or(TierError::NoTraps)?;
        trapping.begin()?;
        let counted = trapping.cost();
        Ok(Traps {
            heap: heap.clone(),
            time,
            random: Random::new(seed),
            round: None,
            touch: Duration::ZERO,
            measure: Duration::ZERO,
            of_core: inverse_share(share),
            of_threads: inverse_share(share * OF_THREADS),
            elsewhere: Duration::ZERO,
            faults: (0, Duration::ZERO),
            counted,
        })
    }

    fn trapping(&self) -> &dyn Trapping {
        self.heap.inner.backend.traps().expect("checked in `new`")
    }

    /// Draws some pages with the pages that follow them, except those that windows know to be hot.
    fn draw(&mut self, heat: &HeatMap) -> Vec<TrapCandidate> {
        let (mut candidates, pages) = (Vec::new(), heat.covers() / PAGE);
        if pages == 0 {
            return candidates;
        }
        for _ in 0..DRAWN {
            let number = self.random.below(pages);
            let mut first = true;
            for range in heat.neighbours(number, TOGETHER.min(pages)) {
                let mut start = range.start;
                for page in range.clone().step_by(4096) {
                    if heat.page(page).is_some_and(|page| page.is_hot_by_writes(HOT)) {
                        push(&mut candidates, start..page, &mut first);
                        (start, first) = (page + PAGE, false);
                    }
                }
                push(&mut candidates, start..range.end, &mut first);
            }
        }
        candidates
    }

    /// Sets a round of traps. Returns its duration, or how long to pause if there is nothing to trap.
    fn set(&mut self, now: Duration, heat: &HeatMap) -> io::Result<Duration> {
        let start = thread_cpu_time();
        if self.measure <= now {
            self.measure = now + MEASURED;
            if let Some(time) = self.trapping().time_touch() {
                // Falls at once and rises slowly. On a busy machine this thread waits for a core twice; a thread of the
                // program does not, because its own core becomes free as soon as it waits.
                self.touch =
                    if self.touch.is_zero() { time.min(LONGEST) } else { time.min(self.touch + self.touch / RISES) };
                // That fault was our own.
                self.counted.faults = self.trapping().cost().faults;
            }
        }
        let candidates = self.draw(heat);
        let is_huge = |candidate: &TrapCandidate| heat.page(candidate.pages.start).is_some_and(|page| page.huge);
        let time = if candidates.iter().all(is_huge) { self.time.min(HUGE_TIME) } else { self.time };
        let set = self.trapping().set(&candidates)?;
        let round = Round { since: now, time, cpu: thread_cpu_time().saturating_sub(start) };
        if set == 0 {
            return Ok(REST.min(round.cpu * self.of_core).max(time));
        }
        self.round = Some(round);
        Ok(time)
    }

    /// Ends a round; returns how long to rest for what it has cost.
    fn end(&mut self, now: Duration, round: Round, heat: &mut HeatMap) -> Duration {
        let start = thread_cpu_time();
        let mut found = Vec::new();
        self.trapping().end(&mut |trap| found.push(*trap));
        for trap in found {
            let level = |used: Duration| if trap.pages == IN_HUGE { level(used * PARTS) } else { level(used) };
            let found = match trap.fate {
                // The use was reported later than it happened, by the time of a touch.
                TrapOutcome::Touched(after) => level(after.saturating_sub(self.touch)),
                TrapOutcome::Untouched => 0,
                TrapOutcome::Unknown | TrapOutcome::Out => continue,
            };
            let bytes = if trap.pages == IN_HUGE { HUGE } else { PAGE };
            heat.each_page(&(trap.first..trap.first + bytes), |page| page.observe(found));
        }
        let (before, counted) = (self.counted, self.trapping().cost());
        self.counted = counted;
        let (faults, answering) = (counted.faults - before.faults, counted.cpu - before.cpu);
        let waited = self.touch * u32::try_from(faults).unwrap_or(u32::MAX);
        self.elsewhere += answering;
        self.faults = (self.faults.0 + faults, self.faults.1 + waited);
        let cpu = round.cpu + answering + thread_cpu_time().saturating_sub(start);
        let wanted = (cpu * self.of_core).max(waited * self.of_threads);
        wanted.saturating_sub(now.saturating_sub(round.since))
    }
}

/// Adds drawn pages, if there are any.
fn push(candidates: &mut Vec<TrapCandidate>, pages: std::ops::Range<u64>, first: &mut bool) {
    if !pages.is_empty() {
        candidates.push(TrapCandidate { pages, first: *first });
    }
    *first = false;
}

impl Source for Traps {
    fn name(&self) -> &'static str {
        "traps"
    }

    fn sees(&self) -> &'static str {
        "reads and writes of small and huge pages, a few random pages at a time"
    }

    fn step(&mut self, now: Duration, heat: &mut HeatMap) -> io::Result<Duration> {
        if let Some(round) = self.round {
            let left = (round.since + round.time).saturating_sub(now);
            if !left.is_zero() {
                return Ok(left);
            }
            self.round = None;
            let rest = self.end(now, round, heat);
            if !rest.is_zero() {
                return Ok(rest);
            }
        }
        self.set(now, heat)
    }

    fn rest(&mut self) {
        // The round is cut short: an untouched page is not known to be cold. This also clears traps that a panic has
        // left.
        self.round = None;
        self.trapping().end(&mut |_| ());
    }

    fn elsewhere(&self) -> Duration {
        self.elsewhere
    }

    fn faults(&self) -> (u64, Duration) {
        self.faults
    }
}

impl Drop for Traps {
    fn drop(&mut self) {
        self.rest();
    }
}
