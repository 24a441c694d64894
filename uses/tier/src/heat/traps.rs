//! Traps: a few pages at a time, drawn by lot, are taken out for some milliseconds; who touches one has it back at once, and tells so how soon it was used.
//!
//! A touch is a fault that a thread of ours answers, so it is seen whether it reads or writes, and a huge page is looked at as one and not split. It costs
//! more than a write in a [window](crate::heat::windows): so there are few, and the more they cost, here and now, the longer is the rest between two lots.
//!
//! **Without bias**: a page is drawn of all that the map is of, each with the same chance. If it is small, it is trapped with as many as follow it, which
//! leaves each page the same chance; if it is a part of a huge one, that is trapped.

#[cfg(test)]
mod tests;

use crate::clock::{of_this_thread, units_of};
use crate::config::{HUGE, IN_HUGE, PAGE};
use crate::error::TierError;
use crate::heap::Heap;
use crate::heat::{HeatMap, Source, level};
use crate::traps::{Fate, TrapCost};
use crate::way::{Drawn, Trapping};
use std::io;
use std::time::Duration;

/// Pages that are drawn at once, and neighbours that are trapped with each. Source: chosen: neighbours go in one step, and together they are as many as
/// there may be ([`MOST_SMALL`](crate::traps::MOST_SMALL)).
const DRAWN: u64 = 4;
const TOGETHER: u64 = 16;
/// As many times sooner a huge page is used than each of its parts, as it counts here. Source: chosen, between 1, by which huge pages would all be as hot
/// as can be, and the 512 parts it has. With this the hottest that is told apart is one that is used within 8 µs, about as long as a fault takes that
/// tells of it; and so much less does a byte of a huge page cost to move (`telpher bench tier`).
const PARTS: u32 = 32;
/// A huge page that is not used within this is cold: see [`level`]. Source: derived.
const HUGE_TIME: Duration = Duration::from_millis(64 / PARTS as u64);
/// Of the program's threads, together, lots take at most so many times the part that they take of a core. Source: chosen, 3.5 hundredths.
const OF_THREADS: f64 = 5.0;
/// How often it is measured what a touch takes. Source: chosen; it costs as much as a touch.
const MEASURED: Duration = Duration::from_millis(500);
/// The first that is measured counts as this at most: the process may have been stopped meanwhile. Source: chosen, beyond all that was seen.
const LONGEST: Duration = Duration::from_millis(1);
/// It counts as longer by one part of so many at a time at most. Source: chosen; half as long again after six seconds.
const RISES: u32 = 32;
/// How long it rests where there is nothing to trap. Source: chosen.
const REST: Duration = Duration::from_millis(100);
/// What is so hot by its writes is looked at by windows alone. Source: chosen, the middle of the scale.
const HOT: u8 = 128;

/// One lot at a time.
#[derive(Debug)]
pub(crate) struct Traps {
    heap: Heap,
    /// How long a lot stays.
    time: Duration,
    /// Of a core, lots take at most one part of so many; and of the program's threads, together, one of so many.
    of_core: u32,
    of_threads: u32,
    /// What chance has come to.
    random: u64,
    lot: Option<Lot>,
    /// How long a touch takes, and when it is to be measured again.
    touch: Duration,
    measure: Duration,
    /// What lots have cost the thread that answers, the faults, and how long threads waited for those; and what was counted of it so far.
    elsewhere: Duration,
    faults: (u64, Duration),
    counted: TrapCost,
}

#[derive(Clone, Copy, Debug)]
struct Lot {
    since: Duration,
    time: Duration,
    /// Time of a core that it took to set it.
    cpu: Duration,
}

impl Traps {
    /// At this part of a core; draws by this number.
    ///
    /// # Errors
    /// [`TierError`]: the heap's mechanism cannot, or the system refuses memory for it.
    pub(crate) fn new(heap: &Heap, time: Duration, share: f64, seed: u64) -> Result<Traps, TierError> {
        let way = heap.inner.way.traps().ok_or(TierError::NoTraps)?;
        way.begin()?;
        let counted = way.cost();
        Ok(Traps {
            heap: heap.clone(),
            time,
            random: seed | 1,
            lot: None,
            touch: Duration::ZERO,
            measure: Duration::ZERO,
            of_core: units_of(share),
            of_threads: units_of(share * OF_THREADS),
            elsewhere: Duration::ZERO,
            faults: (0, Duration::ZERO),
            counted,
        })
    }

    fn way(&self) -> &dyn Trapping {
        self.heap.inner.way.traps().expect("asked when this was made")
    }

    /// Marsaglia, Xorshift RNGs (2003), 64 bits.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Some pages with their neighbours, without those of which windows know enough.
    fn draw(&mut self, heat: &HeatMap) -> Vec<Drawn> {
        let (mut drawn, pages) = (Vec::new(), heat.covers() / PAGE);
        if pages == 0 {
            return drawn;
        }
        for _ in 0..DRAWN {
            // Off by less than a part in 2³², for fewer pages than that.
            let number = u64::try_from((u128::from(self.random()) * u128::from(pages)) >> 64).expect("less than pages");
            let mut first = true;
            for range in heat.neighbours(number, TOGETHER.min(pages)) {
                let mut start = range.start;
                for page in range.clone().step_by(4096) {
                    if heat.page(page).is_some_and(|page| page.is_hot_by_writes(HOT)) {
                        push(&mut drawn, start..page, &mut first);
                        (start, first) = (page + PAGE, false);
                    }
                }
                push(&mut drawn, start..range.end, &mut first);
            }
        }
        drawn
    }

    /// Sets a lot; returns when it is over, or how long there is nothing to do.
    fn set(&mut self, now: Duration, heat: &HeatMap) -> io::Result<Duration> {
        let begun = of_this_thread();
        if self.measure <= now {
            self.measure = now + MEASURED;
            if let Some(time) = self.way().time_touch() {
                // Down at once, and up slowly: where all cores are busy this thread waits for one, twice, which a thread of the program does not, whose
                // own is free as soon as it waits.
                self.touch =
                    if self.touch.is_zero() { time.min(LONGEST) } else { time.min(self.touch + self.touch / RISES) };
                // That one was ours.
                self.counted.faults = self.way().cost().faults;
            }
        }
        let drawn = self.draw(heat);
        let is_huge = |drawn: &Drawn| heat.page(drawn.pages.start).is_some_and(|page| page.huge);
        let time = if drawn.iter().all(is_huge) { self.time.min(HUGE_TIME) } else { self.time };
        let set = self.way().set(&drawn)?;
        let lot = Lot { since: now, time, cpu: of_this_thread().saturating_sub(begun) };
        if set == 0 {
            return Ok(REST.min(lot.cpu * self.of_core).max(time));
        }
        self.lot = Some(lot);
        Ok(time)
    }

    /// Ends a lot; returns how long to rest, for what it has cost.
    fn end(&mut self, now: Duration, lot: Lot, heat: &mut HeatMap) -> Duration {
        let begun = of_this_thread();
        let mut found = Vec::new();
        self.way().end(&mut |trap| found.push(*trap));
        for trap in found {
            let level = |used: Duration| if trap.pages == IN_HUGE { level(used * PARTS) } else { level(used) };
            let found = match trap.fate {
                // It was told of later than it was used, by what a touch takes.
                Fate::Touched(after) => level(after.saturating_sub(self.touch)),
                Fate::Untouched => 0,
                Fate::Unknown | Fate::Out => continue,
            };
            let bytes = if trap.pages == IN_HUGE { HUGE } else { PAGE };
            heat.each_page(&(trap.first..trap.first + bytes), |page| page.observe(found));
        }
        let (before, counted) = (self.counted, self.way().cost());
        self.counted = counted;
        let (faults, answering) = (counted.faults - before.faults, counted.cpu - before.cpu);
        let waited = self.touch * u32::try_from(faults).unwrap_or(u32::MAX);
        self.elsewhere += answering;
        self.faults = (self.faults.0 + faults, self.faults.1 + waited);
        let cpu = lot.cpu + answering + of_this_thread().saturating_sub(begun);
        let wanted = (cpu * self.of_core).max(waited * self.of_threads);
        wanted.saturating_sub(now.saturating_sub(lot.since))
    }
}

/// More pages that were drawn, if there are any.
fn push(drawn: &mut Vec<Drawn>, pages: std::ops::Range<u64>, first: &mut bool) {
    if !pages.is_empty() {
        drawn.push(Drawn { pages, first: *first });
    }
    *first = false;
}

impl Source for Traps {
    fn name(&self) -> &'static str {
        "traps"
    }

    fn sees(&self) -> &'static str {
        "reads and writes, of small and of huge pages, a few of them at a time, drawn by lot"
    }

    fn step(&mut self, now: Duration, heat: &mut HeatMap) -> io::Result<Duration> {
        if let Some(lot) = self.lot {
            let left = (lot.since + lot.time).saturating_sub(now);
            if !left.is_zero() {
                return Ok(left);
            }
            self.lot = None;
            let rest = self.end(now, lot, heat);
            if !rest.is_zero() {
                return Ok(rest);
            }
        }
        self.set(now, heat)
    }

    fn rest(&mut self) {
        // Cut short: what nobody has touched yet is not known to be cold. Also what a panic has left.
        self.lot = None;
        self.way().end(&mut |_| ());
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
