//! Pages that change their tier by way of pools: out with `UFFDIO_MOVE`, a copy of the mover's, and in with `UFFDIO_MOVE`.

#[cfg(test)]
mod tests;

use crate::book::{Aloft, Book, Lists, MOST_SPANS, Stage, Why};
use crate::config::{HUGE, HeapOptions, IN_HUGE, PAGE, TierId};
use crate::error::TierError;
use crate::exchange::Exchange;
use crate::gate::{NoFork, hold_forks};
use crate::keeper::Keeper;
use crate::shadows::Shadows;
use crate::slots::{Place, Slots};
use crate::stats::{Moved, Stats};
use crate::way::{Mechanism, Way, whole_pages};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use telpher_mem::{Lineage, PageSize, Scan, Userfault, UserfaultError, UserfaultFeatures};

/// What is told of besides faults.
pub(crate) const EVENTS: UserfaultFeatures = UserfaultFeatures::EVENT_REMAP
    .and(UserfaultFeatures::EVENT_REMOVE)
    .and(UserfaultFeatures::EVENT_UNMAP)
    .and(UserfaultFeatures::MOVE);

/// Pools of each tier, and what moves pages through them.
#[derive(Debug)]
pub(crate) struct Pooled {
    options: HeapOptions,
    exchange: Arc<Exchange>,
    /// The pools, and with them the turn: one exchange at a time.
    pools: Mutex<Pools>,
    /// The process that has the thread, and the pools.
    lineage: Lineage,
    keeper: Option<Keeper>,
}

/// The pools of each tier, by the size of their pages.
#[derive(Debug)]
struct Pools {
    tiers: Vec<[Slots; 2]>,
    shadows: Shadows,
    /// What a look found.
    found: Vec<Found>,
}

/// A page that may be moved.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Address of its first byte.
    first: u64,
    /// Where it is.
    tier: TierId,
    /// A huge page, whole.
    huge: bool,
    /// Its old copy on the tier it goes to.
    shadow: Option<u64>,
}

impl Found {
    /// Small pages it is of.
    fn pages(self) -> usize {
        if self.huge { IN_HUGE } else { 1 }
    }

    /// Begins where the other ends, and is of its kind.
    fn follows(self, other: Found) -> bool {
        let kind = |found: Found| (found.tier, found.huge, found.shadow.is_some());
        other.first + other.pages() as u64 * PAGE == self.first && kind(other) == kind(self)
    }
}

fn of(pages: PageSize) -> usize {
    usize::from(pages == PageSize::Huge)
}

impl Pooled {
    /// Empty pools, as these options have them.
    ///
    /// # Errors
    /// [`TierError`]: the system refuses what this way of moving pages wants.
    pub(crate) fn new(options: &HeapOptions) -> Result<Pooled, TierError> {
        let (tiers, batch) = (options.tiers.len(), options.batch);
        let scan = Scan::open().map_err(TierError::Scan)?;
        let userfault = match Userfault::open(EVENTS.and(UserfaultFeatures::EVENT_FORK)) {
            Err(UserfaultError::Forbidden(_)) => {
                let userfault = Userfault::open(EVENTS)?;
                hold_forks();
                userfault
            }
            opened => opened?,
        };
        let flight = batch.max(IN_HUGE);
        let home = options.home;
        let shadows = usize::try_from(options.shadow_bytes / PAGE).unwrap_or(usize::MAX);
        let mut pools = Vec::new();
        for (tier, of_tier) in options.tiers.iter().enumerate() {
            let bytes = if tier == home.index() { options.spare_bytes } else { of_tier.bytes };
            let places = |unit: u64| usize::try_from(bytes.div_ceil(unit)).unwrap_or(usize::MAX);
            // Old copies are of the home tier's beyond what it keeps free, and of another one's among what it has.
            let more = if tier == home.index() { shadows } else { 0 };
            // One more flight than there may be free pages: where what is taken out is put.
            let small = places(PAGE).saturating_add(flight).saturating_add(more);
            let small = Slots::new(small, PageSize::Small, of_tier.node)?;
            let huge = Slots::new(places(HUGE).saturating_add(flight / IN_HUGE), PageSize::Huge, of_tier.node)?;
            pools.push([small, huge]);
        }
        let book = Book::new(home, flight);
        let exchange = Arc::new(Exchange::new(userfault, scan, book, home, options.patience));
        for slots in pools.iter().flatten() {
            exchange.register(slots.range()).map_err(TierError::Register)?;
        }
        let keeper = Keeper::start(&exchange).map_err(TierError::Keeper)?;
        let shadows = Shadows::new(tiers, shadows);
        let pools = Mutex::new(Pools { tiers: pools, shadows, found: Vec::with_capacity(flight) });
        let (options, lineage) = (options.clone(), Lineage::current());
        Ok(Pooled { options, exchange, pools, lineage, keeper: Some(keeper) })
    }

    /// The kernel tells of forks.
    fn hears_forks(&self) -> bool {
        self.exchange.userfault.features().has(UserfaultFeatures::EVENT_FORK)
    }

    /// One exchange of what a look has found.
    fn move_found(&self, pools: &mut Pools, to: TierId) -> Moved {
        let mut moved = Moved::default();
        let mut plan = Vec::with_capacity(pools.found.iter().map(|found| found.pages()).sum());
        let found = std::mem::take(&mut pools.found);
        // Those with old copies first: for lack of room the others may take such a copy's place.
        for with_shadow in [true, false] {
            let neighbours = found.chunk_by(|one, next| next.follows(*one));
            for neighbours in neighbours.filter(|pages| pages[0].shadow.is_some() == with_shadow) {
                let planned = pools.plan(self, neighbours, to, &mut plan);
                moved.left.no_room += ((neighbours.len() - planned) * neighbours[0].pages()) as u64;
            }
        }
        pools.found = found;
        let _no_fork = (!self.hears_forks()).then(NoFork::new);
        {
            let mut book = self.exchange.book();
            book.to = to;
            // As many as it has room for: see `Pools::look`.
            book.flight.extend_from_slice(&plan);
            // What was discarded or has moved since the look stays as it is.
            for at in 0..book.flight.len() {
                let Aloft { live, tier, .. } = book.flight[at];
                if book.tier_of(live) != Some(tier) {
                    book.dropped(at);
                }
            }
            book.stats.exchanges += 1;
        }
        // Whatever happens meanwhile, what is out comes back first.
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.exchange.take_out();
            self.exchange.compare(&self.options.mover);
            self.exchange.copy(&self.options.mover);
        }));
        self.exchange.bring_back();
        plan.clear();
        {
            let mut book = self.exchange.book();
            plan.extend_from_slice(&book.flight);
            book.flight.clear();
        }
        pools.settle(&plan, to, &mut moved);
        let spare = self.options.spare_bytes;
        let home = &mut pools.tiers[self.options.home.index()];
        home[0].shed(spare / PAGE);
        home[1].shed(spare / HUGE);
        if let Err(panic) = done {
            self.exchange.book().stats.moved.add(moved);
            resume_unwind(panic);
        }
        moved
    }
}

impl Way for Pooled {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Exchange
    }

    fn adopt(&self, range: Range<u64>) -> Result<(), TierError> {
        // What is allocated, and what is let go, is so without the lock.
        let mut states = Book::states(self.options.home, &range);
        let mut larger = Lists::with_room(0);
        loop {
            let mut book = self.exchange.book();
            if book.has_room() || book.grow(&mut larger) {
                if !book.adopt(range.clone(), &mut states) {
                    return Err(TierError::TooManySpans { most: MOST_SPANS });
                }
                let registered = self.exchange.register(range.clone());
                if registered.is_err() {
                    book.unmapped(&range);
                }
                drop(book);
                return registered.map_err(TierError::Register);
            }
            let lists = book.lists();
            drop(book);
            larger = Lists::with_room(lists.max(16) * 2);
        }
    }

    fn release(&self, range: &Range<u64>) {
        // In its turn: nothing of it is out.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        for place in pools.shadows.forget_all(range) {
            pools.free_shadow(place);
        }
        // The range is mapped and registered; there is nothing to refuse.
        let _ = self.exchange.userfault.unregister(range.clone());
        self.exchange.book().unmapped(range);
    }

    fn residency(&self, range: Range<u64>) -> Result<Vec<u64>, TierError> {
        let mut on = vec![0; self.options.tiers.len()];
        let mut runs = Vec::new();
        self.exchange
            .scan
            .present(whole_pages(&range), |run| runs.push(run.start..run.end))
            .map_err(TierError::Scan)?;
        for run in runs {
            let book = self.exchange.book();
            for page in run.step_by(4096) {
                if let Some(tier) = book.tier_of(page) {
                    on[tier.index()] += 1;
                }
            }
        }
        Ok(on)
    }

    fn migrate(&self, range: Range<u64>, to: TierId) -> Result<Moved, TierError> {
        let (mut moved, mut at) = (Moved::default(), whole_pages(&range));
        while at.start < at.end {
            // Others have their turn between batches.
            let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            at.start = pools.look(self, at.clone(), to, &mut moved).map_err(TierError::Scan)?;
            if !pools.found.is_empty() {
                moved.add(self.move_found(&mut pools, to));
            }
        }
        self.exchange.book().stats.moved.add(moved);
        Ok(moved)
    }

    fn stats(&self) -> Stats {
        self.exchange.book().stats
    }

    fn free(&self) -> Vec<u64> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.tiers.iter().map(|sizes| sizes.iter().map(Slots::full_pages).sum()).collect()
    }

    fn shadows(&self) -> Vec<u64> {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.tiers.iter().map(|sizes| sizes.iter().map(Slots::shadow_pages).sum()).collect()
    }
}

impl Pools {
    /// Finds pages that may be moved, as many as go at once. Returns up to where it has looked.
    fn look(&mut self, pooled: &Pooled, range: Range<u64>, to: TierId, moved: &mut Moved) -> std::io::Result<u64> {
        self.found.clear();
        let batch = pooled.options.batch;
        // Up to where a huge page may end, so that those that are found are found whole.
        let end = (range.start + batch as u64 * PAGE).next_multiple_of(HUGE).min(range.end);
        let mut runs = Vec::new();
        pooled.exchange.scan.present(range.start..end, |run| runs.push(run))?;
        let book = pooled.exchange.book();
        let mut aloft = 0;
        for run in &runs {
            let mut page = run.start;
            while page < run.end {
                let whole = run.is_huge() && page.is_multiple_of(HUGE) && page + HUGE <= run.end;
                // A part of a huge page goes alone, and so do parts that are not of one tier: the kernel splits it.
                let huge = whole.then(|| book.tier_of_huge(page)).flatten();
                let (tier, huge) = (huge.or_else(|| book.tier_of(page)), huge.is_some());
                let pages = if huge { IN_HUGE } else { 1 };
                match tier {
                    None => moved.left.gone += 1,
                    Some(tier) if tier == to => moved.left.already += pages as u64,
                    // The first goes in any case.
                    Some(_) if aloft > 0 && aloft + pages > batch => return Ok(page),
                    Some(tier) => {
                        let shadow = if huge { None } else { self.shadow_on(to, page) };
                        self.found.push(Found { first: page, tier, huge, shadow });
                        aloft += pages;
                    }
                }
                page += pages as u64 * PAGE;
            }
        }
        Ok(end)
    }

    /// Lends places for neighbours of one kind; returns how many of them go.
    fn plan(&mut self, pooled: &Pooled, found: &[Found], to: TierId, plan: &mut Vec<Aloft>) -> usize {
        let Found { first, tier, huge, shadow } = found[0];
        let size = of(if huge { PageSize::Huge } else { PageSize::Small });
        let pages = found[0].pages();
        let unit = pages as u64 * PAGE;
        let units = |range: &Range<u64>| usize::try_from((range.end - range.start) / unit).expect("places");
        let mut done = 0;
        while done < found.len() {
            let Some(from) = self.tiers[tier.index()][size].lend(Place::Empty, found.len() - done) else { break };
            let mut lent = 0;
            while lent < units(&from) {
                let most = units(&from) - lent;
                let free = match shadow {
                    Some(_) => Some(self.lend_shadows(&found[done..done + most])),
                    None => self.lend_free(pooled, to, size, most),
                };
                let Some(free) = free else { break };
                for at in 0..(units(&free) * pages) as u64 {
                    let from = from.start + lent as u64 * unit + at * PAGE;
                    let live = first + done as u64 * unit + at * PAGE;
                    let to = free.start + at * PAGE;
                    let (source, stage, shadowed) = (from, Stage::Planned, shadow.is_some());
                    plan.push(Aloft { live, from, to, source, stage, tier, shadowed });
                }
                lent += units(&free);
                done += units(&free);
            }
            let unused = from.start + lent as u64 * unit..from.end;
            if !unused.is_empty() {
                self.tiers[tier.index()][size].give_back(unused, Place::Empty);
                break;
            }
        }
        done
    }

    /// Where a page's old copy is, if that is on this tier.
    fn shadow_on(&self, tier: TierId, page: u64) -> Option<u64> {
        let place = self.shadows.of(page)?;
        self.tiers[tier.index()][0].range().contains(&place).then_some(place)
    }

    /// The places of the old copies of these pages, as far as they are neighbours.
    fn lend_shadows(&mut self, found: &[Found]) -> Range<u64> {
        let first = found[0].shadow.expect("pages that have old copies");
        let neighbours =
            found.iter().zip((first..).step_by(4096)).take_while(|(page, place)| page.shadow == Some(*place));
        let pages = neighbours.count();
        for (page, place) in found[..pages].iter().zip((first..).step_by(4096)) {
            let kept = self.shadows.forget(page.first);
            debug_assert_eq!(kept, Some(place), "nobody else was lent it");
            let (tier, size) = self.slots_of(place).expect("a place of a pool");
            self.tiers[tier][size].lend_shadow();
        }
        first..first + pages as u64 * PAGE
    }

    /// An old copy, which nobody knows any more, is a free page.
    fn free_shadow(&mut self, place: u64) {
        let (tier, size) = self.slots_of(place).expect("a place of a pool");
        self.tiers[tier][size].free_shadow(place);
    }

    /// Free pages of a tier: of those it has, of the system's within the tier's bound, or of its old copies.
    fn lend_free(&mut self, pooled: &Pooled, to: TierId, size: usize, most: usize) -> Option<Range<u64>> {
        if self.tiers[to.index()][size].full() == 0 {
            let in_unit = if size == 1 { IN_HUGE as u64 } else { 1 };
            let bound =
                if to == pooled.options.home { u64::MAX } else { pooled.options.tiers[to.index()].bytes / PAGE };
            let has = |slots: &Slots| slots.full_pages() + slots.shadow_pages() + slots.lent_full();
            let taken = pooled.exchange.book().live(to) + self.tiers[to.index()].iter().map(has).sum::<u64>();
            let may = usize::try_from((most as u64).min(bound.saturating_sub(taken) / in_unit)).unwrap_or(usize::MAX);
            let filled = if may > 0 { self.tiers[to.index()][size].fill(may, &pooled.exchange) } else { 0 };
            if filled == 0 && size == 0 {
                for _ in 0..most {
                    let Some(place) = self.shadows.oldest_of(to.index()) else { break };
                    self.free_shadow(place);
                }
            }
        }
        self.tiers[to.index()][size].lend(Place::Full, most)
    }

    /// Gives the places of a flight back, and counts.
    fn settle(&mut self, flight: &[Aloft], to: TierId, moved: &mut Moved) {
        for aloft in flight {
            let huge = self.slots_of(aloft.from).is_some_and(|(_, size)| size == 1);
            match aloft.stage {
                Stage::Back if aloft.source == aloft.to => {
                    moved.pages += 1;
                    moved.huge += u64::from(huge);
                }
                Stage::Back | Stage::Returned => moved.left.failed += 1,
                Stage::Left(Why::Pinned) | Stage::Busy => moved.left.pinned += 1,
                Stage::Left(Why::Unsupported) => moved.left.unsupported += 1,
                Stage::Left(Why::Gone) | Stage::Dropped { .. } => moved.left.gone += 1,
                Stage::Planned | Stage::Out => unreachable!("everything has been brought back"),
            }
        }
        self.tiers.iter_mut().flatten().for_each(Slots::settled);
        // What a small page was copied from when it went to a faster tier.
        let keeps = self.shadows.are_kept();
        let has_shadow = |aloft: &Aloft, size: usize| {
            keeps && size == 0 && to < aloft.tier && aloft.stage == Stage::Back && aloft.source == aloft.to
        };
        for side in [|aloft: &Aloft| aloft.from, |aloft: &Aloft| aloft.to] {
            let has_page = |aloft: &Aloft| {
                let is_from = side(aloft) == aloft.from;
                match aloft.stage {
                    Stage::Back => side(aloft) != aloft.source,
                    Stage::Returned | Stage::Dropped { out: true } => true,
                    _ => !is_from,
                }
            };
            let mut rest = flight;
            // Neighbours that are alike come back together.
            let (mut places, mut alike) = (0..0, (0, 0, Place::Empty));
            while let Some(first) = rest.first() {
                let (tier, size) = self.slots_of(side(first)).expect("a place of a pool");
                let count = if size == 1 { IN_HUGE } else { 1 };
                let (unit, behind) = rest.split_at(count);
                let full = unit.iter().filter(|aloft| has_page(aloft)).count();
                let what = match full {
                    0 => Place::Empty,
                    full if full < count => Place::Broken,
                    _ if side(first) == first.from && has_shadow(first, size) => Place::Shadow,
                    _ => Place::Full,
                };
                let unit = side(first)..side(first) + count as u64 * PAGE;
                if (places.end, alike) == (unit.start, (tier, size, what)) {
                    places.end = unit.end;
                } else {
                    let before = std::mem::replace(&mut places, unit);
                    self.give_back(before, std::mem::replace(&mut alike, (tier, size, what)));
                }
                rest = behind;
            }
            self.give_back(places, alike);
        }
        for aloft in flight.iter().filter(|aloft| has_shadow(aloft, 0)) {
            let (tier, size) = self.slots_of(aloft.from).expect("a place of a pool");
            if size == 0 {
                for place in self.shadows.keep(tier, aloft.live, aloft.from) {
                    self.free_shadow(place);
                }
            }
        }
    }

    fn give_back(&mut self, places: Range<u64>, (tier, size, what): (usize, usize, Place)) {
        if !places.is_empty() {
            self.tiers[tier][size].give_back(places, what);
        }
    }

    /// Which tier's places, of which size, an address is in.
    fn slots_of(&self, address: u64) -> Option<(usize, usize)> {
        self.tiers.iter().enumerate().find_map(|(tier, sizes)| {
            sizes.iter().position(|slots| slots.range().contains(&address)).map(|size| (tier, size))
        })
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if self.lineage.is_current() {
            return;
        }
        // A forked child has neither the thread nor the pools; what is at their addresses by now is somebody else's.
        if let Some(keeper) = self.keeper.take() {
            keeper.forget();
        }
        let pools = self.pools.get_mut().unwrap_or_else(PoisonError::into_inner);
        pools.tiers.drain(..).flatten().for_each(std::mem::forget);
    }
}
