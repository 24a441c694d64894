//! The placement of pages, and the resulting rate of updates.

use super::{Gups, INTERRUPTED, PagePlacement};
use crate::machine::Machine;
use crate::picos::Picos;
use crate::rng::Rng;
use std::ops::Range;

/// The memory and the updates of its threads.
#[derive(Debug)]
pub(super) struct Memory {
    pages: Vec<Page>,
    /// Hot pages, pages in fast memory, and hot pages in fast memory.
    hot: usize,
    fast: usize,
    hot_fast: usize,
    threads: f64,
    /// Share of the updates that go to hot pages only.
    to_hot: f64,
    /// Seconds of an update in fast memory, and additional seconds in slow memory.
    near: f64,
    farther: f64,
    /// The time up to which updates are counted, and their number.
    until: Picos,
    updates: f64,
    /// Time that the threads lost, all together.
    pub(super) taken_by_tracking: Picos,
    pub(super) taken_by_moving: Picos,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Page {
    hot: bool,
    fast: bool,
}

impl Memory {
    pub(super) fn new(app: &Gups, machine: &Machine) -> Self {
        let (mut pages, room) = (vec![Page::default(); app.pages()], app.room());
        let mut rng = Rng::new(app.seed, 0);
        // Runs in random order: the first of them are hot.
        let run = app.hot_run.max(1) as usize;
        let mut runs: Vec<usize> = (0..pages.len() / run).collect();
        for last in (1..runs.len()).rev() {
            let other = usize::try_from(rng.below(last as u64 + 1)).unwrap_or(0);
            runs.swap(last, other);
        }
        let hot = pages.len() * app.hot_percent.min(100) as usize / 100 / run;
        for first in runs.iter().take(hot).map(|number| number * run) {
            pages[first..first + run].iter_mut().for_each(|page| page.hot = true);
        }
        match app.placing {
            PagePlacement::Knowing => {
                let mut order: Vec<usize> = (0..pages.len()).collect();
                order.sort_by_key(|page| !pages[*page].hot);
                order.iter().take(room).for_each(|page| pages[*page].fast = true);
            }
            _ if app.fast_first => pages.iter_mut().take(room).for_each(|page| page.fast = true),
            _ => {}
        }
        let lookup = if app.looks_up { machine.software.walk } else { Picos::ZERO };
        let latency = machine.nodes[app.fast].latency.as_secs_f64();
        let count = |of: fn(&Page) -> bool| pages.iter().filter(|page| of(page)).count();
        Memory {
            hot: count(|page| page.hot),
            fast: count(|page| page.fast),
            hot_fast: count(|page| page.hot && page.fast),
            pages,
            threads: app.threads.max(1).into(),
            to_hot: f64::from(app.to_hot_percent) / 100.0,
            near: lookup.as_secs_f64() + latency,
            farther: latency * (f64::from(app.slow_percent) / 100.0 - 1.0),
            until: Picos::ZERO,
            updates: 0.0,
            taken_by_tracking: Picos::ZERO,
            taken_by_moving: Picos::ZERO,
        }
    }

    /// By page: true if it is in fast memory.
    pub(super) fn fast(&self) -> impl Iterator<Item = bool> + '_ {
        self.pages.iter().map(|page| page.fast)
    }

    /// Share of the hot pages that are in fast memory.
    #[allow(clippy::cast_precision_loss, reason = "a share")]
    pub(super) fn hot_in_fast(&self) -> f64 {
        self.hot_fast as f64 / self.hot.max(1) as f64
    }

    /// Mean seconds of an update of one thread.
    #[allow(clippy::cast_precision_loss, reason = "numbers of pages")]
    fn update(&self) -> f64 {
        let anywhere = self.fast as f64 / self.pages.len().max(1) as f64;
        let near = self.to_hot * self.hot_in_fast() + (1.0 - self.to_hot) * anywhere;
        self.near + self.farther * (1.0 - near)
    }

    /// Updates a second of all threads with all pages in fast memory.
    pub(super) fn best(&self) -> f64 {
        self.threads / self.near
    }

    /// Updates so far.
    pub(super) fn updates(&self) -> f64 {
        self.updates
    }

    /// Share of these pages in all updates.
    #[allow(clippy::cast_precision_loss, reason = "numbers of pages")]
    fn part(&self, pages: Range<usize>) -> f64 {
        let hot = self.pages[pages.clone()].iter().filter(|page| page.hot).count();
        let part = self.to_hot * hot as f64 / self.hot.max(1) as f64;
        part + (1.0 - self.to_hot) * pages.len() as f64 / self.pages.len().max(1) as f64
    }

    /// Mean time between updates of a page by any thread.
    pub(super) fn between_updates(&self, page: usize) -> Picos {
        let seconds = self.update() / self.threads.max(1.0) / self.part(page..page + 1).max(1e-18);
        Picos::from_nanos_f64(seconds * 1e9)
    }

    /// Advances the time with the current placement.
    pub(super) fn pass(&mut self, now: Picos) {
        self.updates += self.threads * now.since(self.until).as_secs_f64() / self.update();
        self.until = now;
    }

    /// Subtracts lost time of all threads together.
    fn take(&mut self, now: Picos, time: Picos) {
        self.pass(now);
        self.updates -= time.as_secs_f64() / self.update();
    }

    /// Every thread was interrupted, by the tracker or for moving pages.
    pub(super) fn interrupt(&mut self, now: Picos, moving: bool) {
        // Cannot lose bits: a number of threads.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a number of threads")]
        let time = INTERRUPTED * self.threads as u64;
        self.take(now, time);
        *if moving { &mut self.taken_by_moving } else { &mut self.taken_by_tracking } += time;
    }

    /// Threads wrote to tracked pages.
    pub(super) fn faults(&mut self, now: Picos, time: Picos) {
        self.take(now, time);
        self.taken_by_tracking += time;
    }

    /// These pages were in flight for `away`: each thread ran until it accessed one of them, and then waited.
    pub(super) fn waited(&mut self, now: Picos, away: Picos, pages: Range<usize>, rng: &mut Rng) {
        let until_met = Picos::from_nanos_f64(self.update() / self.part(pages).max(1e-18) * 1e9);
        let mut time = Picos::ZERO;
        let mut thread = 0.0;
        while thread < self.threads {
            time += away.since(rng.exponential(until_met));
            thread += 1.0;
        }
        self.take(now, time);
        self.taken_by_moving += time;
    }

    /// These pages are in fast (or slow) memory from now on.
    pub(super) fn moved(&mut self, now: Picos, pages: Range<usize>, fast: bool) {
        self.pass(now);
        for page in &mut self.pages[pages] {
            let count = usize::from(page.fast != fast);
            let hot = usize::from(page.hot) * count;
            if fast {
                (self.fast, self.hot_fast) = (self.fast + count, self.hot_fast + hot);
            } else {
                (self.fast, self.hot_fast) = (self.fast - count, self.hot_fast - hot);
            }
            page.fast = fast;
        }
    }
}
