//! Decides which pages move where. A policy is a value: it gets the time and how hot pages are, and touches nothing
//! else.
//!
//! A page is hot if it is among the hottest pages that fit into the faster tiers, and its heat stands out. It is cold
//! if it is less hot by a margin; pages in between stay where they are (hysteresis). Cold pages leave a tier only to
//! make room for hotter ones, or if the tier is fuller than it may be. A page that has just moved stays for a while.
//! All moves together keep to a rate. If pages come back before their moves have paid off, nothing moves for a while,
//! and longer each time.

mod recent;
mod runs;
#[cfg(test)]
mod tests;
mod threshold;

use crate::config::{HeapOptions, PAGE, TierId};
use crate::heat::{NO_TIER, PageHeats};
use recent::Recent;
use runs::{Run, runs};
use std::ops::Range;
use std::time::Duration;
pub use threshold::valley;

/// How a [`Policy`] decides.
#[derive(Clone, PartialEq, Debug)]
pub struct PolicyOptions {
    /// The bytes of each tier that may be used, the fastest first; none for a tier without a limit.
    pub capacity: Vec<Option<u64>>,
    /// A tier that is fuller than this fraction is emptied of cold pages, down to `low`. It is not filled beyond this
    /// fraction either.
    pub high: f64,
    /// The fraction down to which a tier that is too full is emptied; see `high`.
    pub low: f64,
    /// A page below this heat is not hot, however much room there is: see [`level`](crate::heat::level). Source:
    /// chosen; 48 means about three uses a second, among pages for which uses were found: in most windows none is.
    pub floor: u8,
    /// A page that is less hot than the hot ones by this is cold. Source: chosen; 48 is one and a half doublings, three
    /// times the deviation of an average of eight samples.
    pub margin: u8,
    /// The minimum time that a page stays where it was moved to.
    pub residence: Duration,
    /// The most bytes a second that move, over any period, apart from `burst`.
    pub bytes_per_second: u64,
    /// The most bytes that move at once.
    pub burst: u64,
    /// A page that comes back within this time has not paid for its moves. Source: chosen. A page on the slower tier
    /// that is used 100 times a second, each time 100 ns slower than on the faster tier, costs as much in ten seconds
    /// as some twenty moves.
    pub payback: Duration,
    /// If more than this fraction of the moved pages has come back within `payback`, nothing moves for a while.
    pub most_back: f64,
    /// The length of the first rest.
    pub rest: Duration,
    /// The longest rest.
    pub most_rest: Duration,
}

impl PolicyOptions {
    /// Creates options for the tiers of a heap. Each may be used up to its `bytes`; the home tier is unlimited if its
    /// `bytes` are 0.
    #[must_use]
    pub fn new(heap: &HeapOptions) -> PolicyOptions {
        let bound = |(tier, bytes): (usize, u64)| (tier != heap.home.index() || bytes > 0).then_some(bytes);
        PolicyOptions {
            capacity: heap.tiers.iter().map(|tier| tier.bytes).enumerate().map(bound).collect(),
            high: 0.98,
            low: 0.95,
            floor: 48,
            margin: 48,
            residence: Duration::from_secs(2),
            bytes_per_second: 512 << 20,
            burst: 64 << 20,
            payback: Duration::from_secs(10),
            most_back: 0.25,
            rest: Duration::from_secs(2),
            most_rest: Duration::from_secs(120),
        }
    }
}

/// Contiguous pages that are to change their tier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// Their addresses.
    pub range: Range<u64>,
    /// The tier they are on.
    pub from: TierId,
    /// The tier they move to.
    pub to: TierId,
}

impl Move {
    /// Returns the number of pages of 4 KiB.
    #[must_use]
    pub fn pages(&self) -> u64 {
        (self.range.end - self.range.start) / PAGE
    }

    /// Returns whether they move to a faster tier.
    #[must_use]
    pub fn is_promotion(&self) -> bool {
        self.to < self.from
    }
}

/// The state of a policy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PolicyState {
    /// The heat from which a page belongs on this tier or a faster one; for each tier but the slowest.
    pub hot: Vec<u8>,
    /// The time until which nothing moves, because pages came back too soon.
    pub resting_until: Option<Duration>,
    /// The number of rests.
    pub rests: u64,
    /// The number of pages that were to move to faster tiers.
    pub promoted: u64,
    /// The number of pages that were to move to slower tiers.
    pub demoted: u64,
    /// The number of pages that came back before their moves had paid off.
    pub came_back: u64,
}

/// Decides which pages move where; see the [module](self).
#[derive(Clone, Debug)]
pub struct Policy {
    options: PolicyOptions,
    opinion: PolicyState,
    recent: Recent,
    /// Bytes that may move now, and the time of the last refill.
    tokens: u64,
    filled: Duration,
    /// Pages that moved, and pages that came back too soon. Both decay with the time constant `payback`.
    moved: f64,
    back: f64,
    /// The length of the next rest.
    rest: Duration,
}

/// The cost of a run beyond its bytes: a page alone takes as long as six among neighbours. Source: `telpher bench
/// tier`, AMD EPYC, Linux 6.18, 2026-11-23.
const RUN_BYTES: u64 = 5 * PAGE;
/// Fewer pages than this are not evidence. Source: chosen.
const FEW: f64 = 512.0;

impl Policy {
    /// Creates a policy that has seen nothing yet.
    #[must_use]
    pub fn new(options: PolicyOptions) -> Policy {
        let (tokens, rest) = (options.burst, options.rest);
        let (opinion, recent, filled) = (PolicyState::default(), Recent::default(), Duration::ZERO);
        Policy { options, opinion, recent, tokens, filled, moved: 0.0, back: 0.0, rest }
    }

    /// Returns its options.
    #[must_use]
    pub fn options(&self) -> &PolicyOptions {
        &self.options
    }

    /// Returns its state.
    #[must_use]
    pub fn opinion(&self) -> &PolicyState {
        &self.opinion
    }

    /// Returns the moves to make now, in this order. `now` must not go back.
    pub fn decide(&mut self, now: Duration, strips: &[PageHeats<'_>]) -> Vec<Move> {
        let tiers = self.options.capacity.len();
        self.pass(now);
        let mut used = vec![0_u64; tiers];
        let mut heats = [0_u64; 256];
        for page in strips.iter().flat_map(|strip| strip.pages) {
            if let Some(used) = used.get_mut(usize::from(page.tier)) {
                *used += 1;
                heats[usize::from(page.heat)] += u64::from(page.is_known() && page.pin == NO_TIER);
            }
        }
        self.opinion.hot = self.thresholds(&heats);
        let mut plan = Plan { moves: Vec::new(), used, now };
        let mut found = runs(strips, &self.opinion.hot, self.options.margin);
        for run in found.pinned.drain(..) {
            self.take(&mut plan, &run);
        }
        if self.opinion.resting_until.is_some() {
            return plan.moves;
        }
        found.hot.sort_by_key(|run| (run.to, std::cmp::Reverse(run.heat), run.range.start));
        found.cold.sort_by_key(|run| (run.heat, run.range.start));
        let mut cold: Vec<Vec<Run>> = vec![Vec::new(); tiers];
        // The coldest last, because runs are taken from the end.
        found.cold.into_iter().rev().for_each(|run| cold[usize::from(run.from)].push(run));
        for (tier, cold) in cold.iter_mut().enumerate() {
            if plan.used[tier] > self.part(tier, self.options.high) {
                let low = self.part(tier, self.options.low);
                self.make_room(&mut plan, cold, tier, low);
            }
        }
        for mut run in found.hot {
            // To the tier where it belongs, or to the next one with room; a later run may be shorter and fit.
            let tiers = usize::from(run.to)..usize::from(run.from);
            for (tier, cold) in cold.iter_mut().enumerate().take(tiers.end).skip(tiers.start) {
                let most = self.part(tier, self.options.high);
                if plan.used[tier] + run.pages() > most {
                    self.make_room(&mut plan, cold, tier, most.saturating_sub(run.pages()));
                }
                if plan.used[tier] + run.pages() <= most {
                    run.to = u8::try_from(tier).expect("at most 8 tiers");
                    self.take(&mut plan, &run);
                    break;
                }
            }
            if self.tokens < PAGE + RUN_BYTES {
                break;
            }
        }
        plan.moves
    }

    /// Reports that a move has moved this many pages. A run of which no page moved is left alone for a while.
    pub fn done(&mut self, now: Duration, what: &Move, pages: u64) {
        /// Source: chosen; pages that are pinned or locked mostly stay so.
        const REFUSED: Duration = Duration::from_secs(30);
        if pages == 0 {
            self.recent.hold(&what.range, now + REFUSED);
        }
    }

    /// Advances the time: refills the tokens and decays the counters.
    fn pass(&mut self, now: Duration) {
        let options = &self.options;
        let passed = now.saturating_sub(self.filled);
        self.filled = now.max(self.filled);
        let fresh = u128::from(options.bytes_per_second) * passed.as_nanos() / 1_000_000_000;
        self.tokens = self.tokens.saturating_add(u64::try_from(fresh).unwrap_or(u64::MAX)).min(options.burst);
        let fade = (-passed.as_secs_f64() / options.payback.as_secs_f64().max(1e-9)).exp();
        self.moved *= fade;
        self.back *= fade;
        self.recent.forget(now, options.residence.max(options.payback));
        if self.back > FEW / 4.0 && self.moved > FEW && self.back > options.most_back * self.moved {
            self.opinion.resting_until = Some(now + self.rest);
            self.opinion.rests += 1;
            self.rest = (self.rest * 2).min(options.most_rest);
            (self.moved, self.back) = (0.0, 0.0);
        }
        match self.opinion.resting_until {
            Some(until) if until > now => {}
            Some(_) => self.opinion.resting_until = None,
            // After enough time without a rest, the next one is short again.
            None => {
                let calm = passed.as_secs_f64() / self.options.payback.as_secs_f64().max(1e-9) / 4.0;
                self.rest = self.rest.mul_f64((1.0 - calm).clamp(0.0, 1.0)).max(self.options.rest);
            }
        }
    }

    /// Returns the number of pages in a fraction of a tier.
    fn part(&self, tier: usize, part: f64) -> u64 {
        let bound = self.options.capacity[tier];
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        bound.map_or(u64::MAX, |bytes| ((bytes / PAGE) as f64 * part) as u64)
    }

    /// Returns, for each tier but the slowest, the heat from which a page belongs there or on a faster tier.
    fn thresholds(&self, heats: &[u64; 256]) -> Vec<u8> {
        let stands_out = valley(heats).unwrap_or(0);
        let mut room = Some(0);
        let mut threshold = |tier: usize| {
            room = room
                .filter(|_| self.options.capacity[tier].is_some())
                .map(|room| room + self.part(tier, self.options.low));
            let fits = room.map_or(0, |room| fitting(heats, room));
            fits.max(stands_out).max(self.options.floor)
        };
        (0..self.options.capacity.len().saturating_sub(1)).map(&mut threshold).collect()
    }

    /// Moves cold pages away from a tier until it has at most `most` pages.
    fn make_room(&mut self, plan: &mut Plan, cold: &mut Vec<Run>, tier: usize, most: u64) {
        while plan.used[tier] > most {
            let Some(mut run) = cold.pop() else { return };
            let slower = tier + 1..self.options.capacity.len();
            let has_room = |&to: &usize| plan.used[to] + run.pages() <= self.part(to, self.options.high);
            let Some(to) = slower.into_iter().find(has_room) else { return };
            run.to = u8::try_from(to).expect("at most 8 tiers");
            if self.tokens < PAGE + RUN_BYTES {
                return;
            }
            self.take(plan, &run);
        }
    }

    /// Plans a move of as much of a run as may move now; nothing if the run has just moved.
    fn take(&mut self, plan: &mut Plan, run: &Run) {
        let most = self.tokens.saturating_sub(RUN_BYTES) / PAGE;
        // A huge page moves as a whole or not at all.
        if most == 0 || run.whole && most < run.pages() {
            return;
        }
        if self.recent.is_held(&run.range, plan.now, self.options.residence) {
            return;
        }
        let pages = run.pages().min(most);
        let what =
            Move { range: run.range.start..run.range.start + pages * PAGE, from: TierId(run.from), to: TierId(run.to) };
        self.tokens -= pages * PAGE + RUN_BYTES;
        let back = self.recent.note(&what, plan.now, self.options.payback);
        self.opinion.came_back += back;
        self.back += back as f64;
        self.moved += pages as f64;
        plan.used[usize::from(run.from)] -= pages;
        plan.used[usize::from(run.to)] += pages;
        *if what.is_promotion() { &mut self.opinion.promoted } else { &mut self.opinion.demoted } += pages;
        plan.moves.push(what);
    }
}

/// The moves planned so far.
struct Plan {
    moves: Vec<Move>,
    /// The pages on each tier after these moves.
    used: Vec<u64>,
    now: Duration,
}

/// Returns the heat from which the hottest pages fill `room` pages; those of just this heat may be more than fit.
fn fitting(heats: &[u64; 256], room: u64) -> u8 {
    let mut pages = 0;
    for heat in (0..=u8::MAX).rev() {
        pages += heats[usize::from(heat)];
        if pages >= room {
            return heat;
        }
    }
    0
}
