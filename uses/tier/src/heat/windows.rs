//! Windows of 2 MiB, one after the other, in which writes are tracked for some milliseconds.
//!
//! In a window each page costs its first writer one short fault that the kernel resolves itself (about a microsecond);
//! no thread waits for another one. The whole heap is never tracked at once: with 512 MiB tracked at once, a program of
//! random writes would only take faults.
//!
//! A window is read several times, each time after four times as long. So a page is not only written or not: the sooner
//! it was written, the hotter it is. Pages not written by the end are released, so that later writers do not find them
//! protected.

#[cfg(test)]
mod tests;

use crate::clock::{inverse_share, thread_cpu_time};
use crate::config::PAGE;
use crate::heap::Heap;
use crate::heat::{HeatMap, Source, level};
use crate::page_set::{PAGES_IN_SET, PageSet};
use std::io;
use std::ops::Range;
use std::time::Duration;

/// When a window is read, as fractions of its time. Source: chosen, a factor of about four each.
const LOOKS: [u32; 4] = [40, 10, 3, 1];
/// Windows without pages to track that are skipped in one step. Source: chosen; each costs about a microsecond.
const PASSED: usize = 256;
/// The pause when there is nothing to track. Source: chosen.
const REST: Duration = Duration::from_millis(100);

/// The source that tracks writes, in one window at a time.
#[derive(Debug)]
pub(crate) struct Windows {
    heap: Heap,
    /// How long a window stays open.
    time: Duration,
    /// The address where the next window begins.
    next: u64,
    open: Option<Open>,
    /// The inverse of the fraction of a core that windows may take; after a costlier window the source rests.
    of_core: u32,
    /// The CPU time of this window.
    spent: Duration,
}

#[derive(Debug)]
struct Open {
    window: Range<u64>,
    since: Duration,
    tracked: PageSet,
    seen: PageSet,
    levels: Box<[u8; PAGES_IN_SET]>,
    looks: usize,
}

impl Windows {
    /// Creates the source for this fraction of a core. Returns none if the kernel or the heap's mechanism cannot track
    /// writes.
    pub(crate) fn new(heap: &Heap, time: Duration, share: f64) -> Option<Windows> {
        heap.inner.backend.watch()?;
        Some(Windows {
            heap: heap.clone(),
            time,
            next: 0,
            open: None,
            of_core: inverse_share(share),
            spent: Duration::ZERO,
        })
    }

    /// Returns when the next reading is due, since the start of the window.
    fn due(&self, looks: usize) -> Duration {
        self.time / LOOKS[looks]
    }

    /// Opens the next window that has pages to track.
    fn open(&mut self, now: Duration, heat: &HeatMap) -> Duration {
        let Some(watch) = self.heap.inner.backend.watch() else { return REST };
        for _ in 0..PASSED {
            let Some(window) = heat.block_from(self.next) else {
                if self.next == 0 {
                    return REST;
                }
                self.next = 0;
                continue;
            };
            self.next = window.end;
            // The mapping is gone or is not tracked: the next one is tried.
            let Ok(tracked) = watch.track(&window) else { continue };
            if tracked.count() > 0 {
                let levels = Box::new([0; PAGES_IN_SET]);
                self.open = Some(Open { window, since: now, tracked, seen: PageSet::default(), levels, looks: 0 });
                return self.due(0);
            }
        }
        self.time
    }

    /// Reads the open window. Returns the time until the next reading, or none if this was the last.
    fn look(&mut self, now: Duration, heat: &mut HeatMap) -> Option<Duration> {
        let due = LOOKS.map(|part| self.time / part);
        let (open, watch) = (self.open.as_mut()?, self.heap.inner.backend.watch()?);
        let time = now.saturating_sub(open.since);
        let looked = watch.written(&open.window);
        open.looks += 1;
        let last = open.looks == LOOKS.len() || time >= due[LOOKS.len() - 1];
        if last || looked.is_err() {
            watch.untrack(&open.window);
        }
        let Ok((written, moved)) = looked else {
            self.open = None;
            return None;
        };
        // A page that came back counts as written although it may not have been.
        open.tracked = open.tracked.without(&moved);
        let fresh = written.and(&open.tracked).without(&open.seen);
        fresh.each().for_each(|at| open.levels[at] = level(time));
        open.seen.add(&fresh);
        if !last {
            return Some(due[open.looks].saturating_sub(time));
        }
        for at in open.tracked.each() {
            if let Some(page) = heat.page_mut(open.window.start + at as u64 * PAGE) {
                page.observe_writes(open.levels[at]);
            }
        }
        self.open = None;
        None
    }
}

impl Source for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn sees(&self) -> &'static str {
        "writes to small pages, in one window of 2 MiB at a time; neither reads nor huge pages"
    }

    fn step(&mut self, now: Duration, heat: &mut HeatMap) -> io::Result<Duration> {
        let (begun, since) = (thread_cpu_time(), self.open.as_ref().map(|open| open.since));
        let next = self.look(now, heat);
        self.spent += thread_cpu_time().saturating_sub(begun);
        if let Some(next) = next {
            return Ok(next);
        }
        let spent = std::mem::take(&mut self.spent);
        let rest =
            since.map_or(Duration::ZERO, |since| (spent * self.of_core).saturating_sub(now.saturating_sub(since)));
        if !rest.is_zero() {
            return Ok(rest);
        }
        let start = thread_cpu_time();
        let next = self.open(now, heat);
        self.spent = thread_cpu_time().saturating_sub(start);
        if self.open.is_none() {
            // Skipped windows count as cost, too.
            return Ok(next.max(std::mem::take(&mut self.spent) * self.of_core));
        }
        Ok(next)
    }

    fn rest(&mut self) {
        if let (Some(open), Some(watch)) = (self.open.take(), self.heap.inner.backend.watch()) {
            watch.untrack(&open.window);
        }
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        self.rest();
    }
}
