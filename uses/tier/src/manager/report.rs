//! What a manager has found and done.

use super::state::State;
use crate::config::{HUGE, PAGE};
use crate::heap::Heap;
use crate::heat::{Cost, NO_TIER, PageHeat};
use crate::policy::{PolicyOptions, PolicyState};
use crate::stats::{Stats, Unmoved};
use std::ops::Range;
use std::time::Duration;

/// The number of heat classes; each spans the same number of heats.
const CLASSES: usize = 16;
/// The most rows of a map. Source: chosen, as many as a screen has.
const ROWS: u64 = 64;

/// The pages of a tier.
#[derive(Clone, PartialEq, Debug)]
pub struct TierReport {
    /// The name for people.
    pub name: String,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Pages of 4 KiB on it.
    pub pages: u64,
    /// Hot pages among them, by the policy's threshold.
    pub hot: u64,
    /// Free pages that the heap keeps of this tier.
    pub free: u64,
    /// Bytes of it that may be used; none without a limit.
    pub capacity: Option<u64>,
    /// Known pages by heat, in 16 classes from the coldest on.
    pub heats: [u64; CLASSES],
}

/// A source, and its cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceReport {
    /// Its name.
    pub name: &'static str,
    /// What it sees.
    pub sees: &'static str,
    /// Its cost.
    pub cost: Cost,
    /// NotTaken it no longer works.
    pub failed: Option<String>,
}

/// A part of the memory, in address order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HotRow {
    /// Its addresses; other memory may lie between.
    pub range: Range<u64>,
    /// Pages on each tier.
    pub tiers: Vec<u64>,
    /// The average heat of the known pages; none if no page is known.
    pub heat: Option<u8>,
    /// Hot pages, by the policy's threshold.
    pub hot: u64,
}

/// What a [`Manager`](crate::Manager) has found and done since it was started.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The time since the start.
    pub time: Duration,
    /// The part of `time` without pauses.
    pub awake: Duration,
    /// The tiers, the fastest first.
    pub tiers: Vec<TierReport>,
    /// The heat map: at most 64 rows.
    pub map: Vec<HotRow>,
    /// Pages that moved to a faster tier.
    pub promoted: u64,
    /// The recent rate of these.
    pub promoted_per_second: f64,
    /// Pages that moved to a slower tier.
    pub demoted: u64,
    /// The recent rate of these.
    pub demoted_per_second: f64,
    /// Pages that were to move and stayed, by reason.
    pub left: Unmoved,
    /// Moves that are decided and not made yet.
    pub waiting: usize,
    /// The state of the policy.
    pub opinion: PolicyState,
    /// The limits of the policy.
    pub limits: PolicyOptions,
    /// The sources in use.
    pub sources: Vec<SourceReport>,
    /// NotTaken DAMON is not used, if it was tried.
    pub without_damon: Option<String>,
    /// The cost of decisions and of replaced sources; its memory is the heat map.
    pub deciding: Cost,
    /// The cost of moves.
    pub moving: Cost,
    /// What the heap has done, also for other callers.
    pub heap: Stats,
    /// The panic that ended the manager's thread, if any.
    pub failed: Option<String>,
}

impl Report {
    /// Returns the cost of sources and decisions as a fraction of one core, over the time without pauses.
    #[must_use]
    pub fn tracking_share(&self) -> f64 {
        let cpu = self.sources.iter().map(|source| source.cost.cpu).sum::<Duration>() + self.deciding.cpu;
        cpu.as_secs_f64() / self.awake.as_secs_f64().max(1e-9)
    }
}

/// Returns whether the page is hot by the policy's threshold.
fn is_hot(state: &State, page: &PageHeat) -> bool {
    let hottest = state.policy.opinion().hot.first();
    page.is_known() && page.tier != NO_TIER && hottest.is_some_and(|&hot| page.heat >= hot)
}

/// Returns the addresses of hot pages.
pub(super) fn hot(state: &State) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for strip in state.heat.strips() {
        for (at, _) in strip.pages.iter().enumerate().filter(|(_, page)| is_hot(state, page)) {
            let page = strip.addresses(at..at + 1);
            match ranges.last_mut().filter(|last| last.end == page.start) {
                Some(last) => last.end = page.end,
                None => ranges.push(page),
            }
        }
    }
    ranges
}

/// Returns a report of the present state.
pub(super) fn of(state: &State, heap: &Heap, now: Duration, free: &[u64], stats: Stats) -> Report {
    let options = heap.options();
    let limits = state.policy.options().clone();
    let opinion = state.policy.opinion().clone();
    let is_hot = |page: &PageHeat| is_hot(state, page);
    let tier = |((tier, free), capacity): ((&crate::TierOptions, &u64), &Option<u64>)| TierReport {
        name: tier.name.clone(),
        node: tier.node,
        pages: 0,
        hot: 0,
        free: *free,
        capacity: *capacity,
        heats: [0; CLASSES],
    };
    let mut tiers: Vec<TierReport> = options.tiers.iter().zip(free).zip(&limits.capacity).map(tier).collect();
    let row_bytes = (state.heat.covers() / ROWS).next_multiple_of(HUGE).max(HUGE);
    let mut map = Vec::new();
    let mut row = Row::new(tiers.len());
    for strip in state.heat.strips() {
        for (at, page) in strip.pages.iter().enumerate() {
            if row.pages * PAGE == row_bytes {
                map.push(std::mem::replace(&mut row, Row::new(tiers.len())).close());
            }
            row.add(strip.start + at as u64 * PAGE, page, is_hot(page));
            if page.tier == NO_TIER {
                continue;
            }
            if let Some(tier) = tiers.get_mut(usize::from(page.tier)) {
                tier.pages += 1;
                tier.hot += u64::from(is_hot(page));
                tier.heats[usize::from(page.heat) * CLASSES / 256] += u64::from(page.is_known());
            }
        }
    }
    if row.pages > 0 {
        map.push(row.close());
    }
    let sources = state.sources.iter().map(|running| SourceReport {
        name: running.source.name(),
        sees: running.source.sees(),
        cost: running.cost,
        failed: running.failed.clone(),
    });
    Report {
        time: now,
        awake: state.awake(now),
        tiers,
        map,
        promoted: state.promoted.total,
        promoted_per_second: state.promoted.rate,
        demoted: state.demoted.total,
        demoted_per_second: state.demoted.rate,
        left: state.left,
        waiting: state.queue.len(),
        opinion,
        limits,
        sources: sources.collect(),
        without_damon: state.choice.why.clone(),
        deciding: Cost { cpu: state.deciding.cpu + state.choice.past(), ..state.deciding },
        moving: state.moving,
        heap: stats,
        failed: state.failed.clone(),
    }
}

/// A row that is not complete yet.
struct Row {
    range: Range<u64>,
    pages: u64,
    tiers: Vec<u64>,
    heat: u64,
    known: u64,
    hot: u64,
}

impl Row {
    fn new(tiers: usize) -> Row {
        Row { range: 0..0, pages: 0, tiers: vec![0; tiers], heat: 0, known: 0, hot: 0 }
    }

    fn add(&mut self, address: u64, page: &PageHeat, is_hot: bool) {
        if self.pages == 0 {
            self.range.start = address;
        }
        self.range.end = address + PAGE;
        self.pages += 1;
        if let Some(pages) = self.tiers.get_mut(usize::from(page.tier)) {
            *pages += 1;
            if page.is_known() {
                self.heat += u64::from(page.heat);
                self.known += 1;
            }
            self.hot += u64::from(is_hot);
        }
    }

    fn close(self) -> HotRow {
        let heat = self.heat.checked_div(self.known).and_then(|heat| u8::try_from(heat).ok());
        HotRow { range: self.range, tiers: self.tiers, heat, hot: self.hot }
    }
}
