//! Pages that change their tier by way of pools: out with `UFFDIO_MOVE`, a copy of the mover's, and in with `UFFDIO_MOVE`.

#[cfg(test)]
mod tests;
mod trapping;
pub(crate) mod userfault;
mod watch;

use crate::book::{Book, Lists, MOST_SPANS, Piece, alike_with};
use crate::config::{HUGE, HeapOptions, IN_HUGE, PAGE, TierId};
use crate::error::TierError;
use crate::exchange::Exchange;
use crate::exchange::trapping::ALL;
use crate::flight::{Aloft, LOOK, Stage, Why};
use crate::gate::{NoFork, hold_forks};
use crate::heat::NO_TIER;
use crate::keeper::Keeper;
use crate::shadows::Shadows;
use crate::slots::{Place, Slots};
use crate::stats::{Moved, Stats};
use crate::tracer::TracerCheck;
use crate::way::{Mechanism, Trapping, Watch, Way, whole_pages};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use telpher_mem::{PageSize, Tract};
use telpher_os::{Lineage, Scan, UserfaultFeatures};
use trapping::TrapPlaces;
use userfault::open_userfault;

/// Pools of each tier, and what moves pages through them.
#[derive(Debug)]
pub(crate) struct Pooled {
    options: HeapOptions,
    exchange: Arc<Exchange>,
    /// The pools, and with them the turn: one exchange at a time.
    pools: Mutex<Pools>,
    /// Where what is trapped lies, once somebody traps.
    traps: Mutex<Option<TrapPlaces>>,
    /// The process that has the thread, and the pools.
    lineage: Lineage,
    keeper: Option<Keeper>,
    /// By which it is asked whether a range is of one kind. One adopts at a time: who has the book.
    probe: Tract,
}

/// Bytes of a range that are asked about at once. Source: chosen; address space, of which one page is there.
const PROBE_BYTES: usize = 1 << 30;

/// The pools of each tier, by the size of their pages.
#[derive(Debug)]
struct Pools {
    tiers: Vec<[Slots; 2]>,
    shadows: Shadows,
    /// What a look found.
    found: Vec<Found>,
    /// Tiers of pages that are looked at.
    row: Vec<u8>,
    /// The heap's owner has all pages stay where they are.
    holds: bool,
    tracer: TracerCheck,
}

/// Neighbouring pages that may be moved, which are alike.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Address of the first byte.
    first: u64,
    /// How many pages of their size.
    units: usize,
    /// Where they are.
    tier: TierId,
    /// Huge pages, whole.
    huge: bool,
    /// The first one's old copy on the tier they go to; those of the others follow.
    shadow: Option<u64>,
}

impl Found {
    /// Small pages that each of them is of.
    fn unit_pages(self) -> usize {
        if self.huge { IN_HUGE } else { 1 }
    }

    /// Bytes of the first so many.
    fn bytes(self, units: usize) -> u64 {
        (units * self.unit_pages()) as u64 * PAGE
    }

    /// Begins where the other ends, and is of its kind.
    fn follows(self, other: Found) -> bool {
        let end = other.bytes(other.units);
        let shadow = other.shadow.map(|place| place + end);
        (self.first, self.tier, self.huge, self.shadow) == (other.first + end, other.tier, other.huge, shadow)
    }
}

thread_local! {
    /// This thread's number, which costs a system call to ask for.
    static THREAD: i32 = rustix::thread::gettid().as_raw_pid();
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
        let userfault = open_userfault()?;
        if options.holds_forks {
            hold_forks();
        }
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
        // A look ends where a huge page does.
        let row = vec![NO_TIER; batch.next_multiple_of(IN_HUGE) + IN_HUGE];
        let found = Vec::with_capacity(flight);
        let tracer = TracerCheck::default();
        let pools = Mutex::new(Pools { tiers: pools, shadows, found, row, holds: false, tracer });
        let (options, lineage) = (options.clone(), Lineage::current());
        let probe = Tract::new(PROBE_BYTES, PageSize::Small)?;
        probe.keep_from_children()?;
        let traps = Mutex::new(None);
        Ok(Pooled { options, exchange, pools, traps, lineage, keeper: Some(keeper), probe })
    }

    /// The kernel tells of forks.
    fn hears_forks(&self) -> bool {
        self.exchange.userfault.features().has(UserfaultFeatures::EVENT_FORK)
    }

    fn pieces_in(&self, mut range: Range<u64>) -> Vec<Piece> {
        // Nothing is allocated under the book's lock.
        let mut pieces: Vec<Piece> = Vec::with_capacity(64);
        while !self.exchange.book().pieces(&range, &mut pieces) {
            range.start = pieces.last().map_or(range.start, |last| last.range.end);
            pieces.reserve(pieces.len());
        }
        pieces
    }

    /// One exchange of what a look has found.
    fn move_found(&self, pools: &mut Pools, to: TierId) -> Moved {
        let mut moved = Moved::default();
        let found = std::mem::take(&mut pools.found);
        // Parts of at most so many pages, and as many of few.
        let mut plan = Vec::with_capacity(found.iter().map(|found| 1 + found.units * found.unit_pages() / LOOK).sum());
        // Those with old copies first: for lack of room the others may take such a copy's place.
        for with_shadow in [true, false] {
            for found in found.iter().filter(|found| found.shadow.is_some() == with_shadow) {
                let planned = pools.plan(self, *found, to, &mut plan);
                moved.left.no_room += ((found.units - planned) * found.unit_pages()) as u64;
            }
        }
        pools.found = found;
        let _no_fork = (self.options.holds_forks || !self.hears_forks()).then(NoFork::new);
        {
            let mut book = self.exchange.book();
            book.to = to;
            book.mover = Some(THREAD.with(|thread| *thread));
            // As many as it has room for: see `Pools::look`.
            book.flight.add(&plan);
            // What was discarded or has moved since the look stays as it is.
            book.drop_changed();
            book.stats.exchanges += 1;
        }
        // Whatever happens meanwhile, what is out comes back first.
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.exchange.take_out();
            #[cfg(test)]
            self.exchange.faults.out();
            if plan.iter().any(|part| part.shadowed) {
                self.exchange.compare(&self.options.mover);
            }
            self.exchange.copy(&self.options.mover);
        }));
        self.exchange.bring_back();
        // What happened on the way may have cut its parts; nobody cuts them any more.
        let parts = self.exchange.book().flight.len();
        plan.clear();
        plan.reserve(parts);
        {
            let mut book = self.exchange.book();
            plan.extend_from_slice(&book.flight);
            book.flight.clear();
            book.mover = None;
        }
        self.exchange.tell_lost();
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

    fn adopt(&self, range: Range<u64>, room: Option<Range<u64>>) -> Result<(), TierError> {
        // What is allocated, and what is let go, is so without the lock.
        let mut states = Book::states(self.options.home, &range);
        let mut larger = Lists::with_room(0);
        let end = Instant::now() + self.options.patience;
        loop {
            let mut book = self.exchange.book();
            if book.knows_of(&range) {
                if room.is_none() && Instant::now() < end {
                    // Of something that was here before, whose end is to be told of.
                    drop(book);
                    std::thread::sleep(Duration::from_micros(50));
                    continue;
                }
                return Err(TierError::Known { start: range.start, end: range.end });
            }
            if book.has_room() || book.grow(&mut larger) {
                if !book.adopt(range.clone(), &mut states) {
                    return Err(TierError::TooManySpans { most: MOST_SPANS });
                }
                let registered = self.exchange.register_live(room.clone().unwrap_or(range.clone()));
                // What has changed and was not told of yet would be told of what is known only now: the range may be a mapping's that has moved here.
                let registered = registered.and_then(|()| match room {
                    Some(_) => Ok(self.exchange.is_ours(&range, &self.probe)?),
                    None if self.exchange.userfault.is_changing() => Err(Errno::AGAIN.into()),
                    None => Ok(()),
                });
                if registered.is_err() {
                    book.forget(&range);
                }
                drop(book);
                match registered {
                    Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) && Instant::now() < end => {
                    }
                    registered => return registered.map_err(TierError::Register),
                }
                std::thread::sleep(Duration::from_micros(50));
                states = Book::states(self.options.home, &range);
                continue;
            }
            let lists = book.lists();
            drop(book);
            larger = Lists::with_room(lists.max(16) * 2);
        }
    }

    fn release(&self, range: &Range<u64>) {
        // In its turn: nothing of it is out.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        self.exchange.recall(range);
        for place in pools.shadows.forget_all(range) {
            pools.free_shadow(place);
        }
        // Only what is the heap's: beside it may lie a pool of our own. It is mapped and registered; there is nothing to refuse.
        for piece in self.pieces_in(range.clone()) {
            let _ = self.exchange.userfault.unregister(piece.range);
        }
        self.exchange.book().unmapped(range);
    }

    fn pieces(&self) -> Vec<Piece> {
        self.pieces_in(0..u64::MAX)
    }

    fn tiers(&self, first: u64, tiers: &mut [u8]) -> io::Result<()> {
        self.tiers_of(first, tiers)
    }

    fn watch(&self) -> Option<&dyn Watch> {
        self.tracks().then_some(self)
    }

    fn traps(&self) -> Option<&dyn Trapping> {
        Some(self)
    }

    fn residency(&self, range: Range<u64>) -> Result<Vec<u64>, TierError> {
        let mut on = vec![0; self.options.tiers.len()];
        let (mut runs, range) = (Vec::new(), whole_pages(&range));
        let trapped = self.trapped(&range);
        self.exchange.scan.present(range, |run| runs.push(run.start..run.end)).map_err(TierError::Scan)?;
        for (page, tier) in &trapped {
            let at = runs.partition_point(|run: &Range<u64>| run.end <= *page);
            // It may be back by now.
            if runs.get(at).is_none_or(|run| *page < run.start) {
                on[tier.index()] += 1;
            }
        }
        let mut row = [NO_TIER; IN_HUGE];
        for run in runs {
            for first in run.clone().step_by(IN_HUGE * 4096) {
                let pages = usize::try_from((run.end - first) / PAGE).unwrap_or(usize::MAX).min(IN_HUGE);
                self.exchange.book().tiers(first, [NO_TIER; 2], &mut row[..pages]);
                for tier in row[..pages].iter().filter(|tier| **tier != NO_TIER) {
                    on[usize::from(*tier)] += 1;
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
            let begun = Instant::now();
            self.exchange.recall(&at);
            let mut of_batch = Moved::default();
            at.start = pools.look(self, at.clone(), to, &mut of_batch).map_err(TierError::Scan)?;
            let any = !pools.found.is_empty();
            if any && pools.is_held() {
                let pages = |found: &Found| (found.units * found.unit_pages()) as u64;
                of_batch.left.held += pools.found.iter().map(pages).sum::<u64>();
            } else if any {
                of_batch.add(self.move_found(&mut pools, to));
            }
            let mut book = self.exchange.book();
            book.stats.moved.add(of_batch);
            book.stats.moving += begun.elapsed();
            drop(book);
            moved.add(of_batch);
        }
        Ok(moved)
    }

    fn tracer(&self) -> Option<u32> {
        // In its turn: no exchange is under way.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let tracer = pools.tracer.tracer()?;
        self.exchange.recall(&ALL);
        Some(tracer)
    }

    fn hold(&self, holds: bool) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.holds = holds;
        if holds {
            self.exchange.recall(&ALL);
        }
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
    /// Nothing is to go out now: the owner says so, or the process is traced.
    fn is_held(&mut self) -> bool {
        self.holds || self.tracer.tracer().is_some()
    }

    /// Finds pages that may be moved, as many as go at once. Returns up to where it has looked.
    fn look(&mut self, pooled: &Pooled, range: Range<u64>, to: TierId, moved: &mut Moved) -> std::io::Result<u64> {
        self.found.clear();
        let batch = pooled.options.batch;
        // Up to where a huge page may end, so that those that are found are found whole.
        let end = (range.start + batch as u64 * PAGE).next_multiple_of(HUGE).min(range.end);
        let mut runs = Vec::new();
        pooled.exchange.scan.present(range.start..end, |run| runs.push(run))?;
        let mut aloft = 0;
        for run in &runs {
            let pages = usize::try_from(run.pages()).expect("in the row");
            pooled.exchange.book().tiers(run.start, [NO_TIER; 2], &mut self.row[..pages]);
            let mut at = 0;
            while at < pages {
                let first = run.start + at as u64 * PAGE;
                let tier = self.row[at];
                let mut alike = alike_with(tier, &self.row[at..pages]);
                // A part of a huge page goes alone, and so do parts that are not of one tier: the kernel splits it.
                let huge = run.is_huge() && first.is_multiple_of(HUGE) && alike >= IN_HUGE;
                if huge {
                    alike = IN_HUGE;
                } else if run.is_huge() {
                    alike = alike.min(usize::try_from((HUGE - first % HUGE) / PAGE).expect("of a huge page"));
                }
                at += alike;
                let tier = match tier {
                    NO_TIER => {
                        moved.left.gone += alike as u64;
                        continue;
                    }
                    tier if tier == to.0 => {
                        moved.left.already += alike as u64;
                        continue;
                    }
                    tier => TierId(tier),
                };
                // The first goes in any case.
                let room = if huge && aloft == 0 { IN_HUGE } else { batch.saturating_sub(aloft) };
                let may = if huge && room < IN_HUGE { 0 } else { alike.min(room) };
                if may == 0 {
                    return Ok(first);
                }
                aloft += may;
                self.find(first, may, tier, huge, to);
                if may < alike {
                    return Ok(first + may as u64 * PAGE);
                }
            }
        }
        Ok(end)
    }

    /// Notes pages that may be moved.
    fn find(&mut self, first: u64, pages: usize, tier: TierId, huge: bool, to: TierId) {
        let mut add = |next: Found| match self.found.last_mut() {
            Some(last) if next.follows(*last) => last.units += next.units,
            _ => self.found.push(next),
        };
        if huge || !self.shadows.are_kept() {
            let units = if huge { pages / IN_HUGE } else { pages };
            return add(Found { first, units, tier, huge, shadow: None });
        }
        let places = self.tiers[to.index()][0].range();
        for page in (first..).step_by(4096).take(pages) {
            // Where its old copy is, if that is on this tier.
            let shadow = self.shadows.of(page).filter(|place| places.contains(place));
            add(Found { first: page, units: 1, tier, huge, shadow });
        }
    }

    /// Lends places for neighbours of one kind; returns how many of them go.
    fn plan(&mut self, pooled: &Pooled, found: Found, to: TierId, plan: &mut Vec<Aloft>) -> usize {
        let Found { first, tier, huge, shadow, .. } = found;
        let size = of(if huge { PageSize::Huge } else { PageSize::Small });
        let pages = found.unit_pages();
        let unit = found.bytes(1);
        let units = |range: &Range<u64>| usize::try_from((range.end - range.start) / unit).expect("places");
        let mut done = 0;
        while done < found.units {
            let Some(from) = self.tiers[tier.index()][size].lend(Place::Empty, found.units - done) else { break };
            let mut lent = 0;
            while lent < units(&from) {
                let most = units(&from) - lent;
                let free = match shadow {
                    Some(place) => Some(self.lend_shadows(first + found.bytes(done), place + found.bytes(done), most)),
                    None => self.lend_free(pooled, to, size, most),
                };
                let Some(free) = free else { break };
                let together = (LOOK / pages).max(1) * pages * 4096;
                for to in free.clone().step_by(together) {
                    let at = to - free.start;
                    let from = from.start + found.bytes(lent) + at;
                    let pages =
                        usize::try_from((free.end - to).min(together as u64) / PAGE).expect("pages of this process");
                    let live = first + found.bytes(done) + at;
                    let part = Aloft::planned(live, (from, to), pages, tier);
                    plan.push(Aloft { shadowed: shadow.is_some(), huge, ..part });
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

    /// The places of the old copies of so many pages, which are neighbours.
    fn lend_shadows(&mut self, first: u64, place: u64, pages: usize) -> Range<u64> {
        let end = place + pages as u64 * PAGE;
        for (page, place) in (first..).step_by(4096).zip((place..end).step_by(4096)) {
            let kept = self.shadows.forget(page);
            debug_assert_eq!(kept, Some(place), "nobody else was lent it");
        }
        let (tier, size) = self.slots_of(place).expect("a place of a pool");
        self.tiers[tier][size].lend_shadows(pages as u64);
        place..end
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
        for part in flight {
            let pages = part.pages as u64;
            let left = &mut moved.left;
            match part.stage {
                Stage::Back if part.source == part.to => {
                    moved.pages += pages;
                    moved.huge += self.slots_of(part.from).map_or(0, |(_, size)| if size == 1 { pages } else { 0 });
                }
                Stage::Back | Stage::Returned | Stage::Rescued => left.failed += pages,
                Stage::Left(Why::Pinned) | Stage::Busy => left.pinned += pages,
                Stage::Left(Why::Unsupported) => left.unsupported += pages,
                Stage::Left(Why::Gone) | Stage::Dropped { .. } => left.gone += pages,
                // Something was in its place, or a panic came before it was its turn.
                Stage::Left(Why::Blocked) | Stage::Planned => left.failed += pages,
                Stage::Out => unreachable!("everything has been brought back"),
            }
        }
        self.tiers.iter_mut().flatten().for_each(Slots::settled);
        // What a small page was copied from when it went to a faster tier.
        let keeps = self.shadows.are_kept();
        let has_shadow = |aloft: &Aloft, size: usize| {
            keeps && size == 0 && to < aloft.tier && aloft.stage == Stage::Back && aloft.source == aloft.to
        };
        let leaves_something = |stage| matches!(stage, Stage::Rescued | Stage::Left(Why::Blocked));
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
                // A huge page's parts are in one place.
                let mut pages = 0;
                let parts = rest.iter().take_while(|part| {
                    let more = pages == 0 || size == 1 && pages < IN_HUGE;
                    pages += if more { part.pages } else { 0 };
                    more
                });
                let (unit, behind) = rest.split_at(parts.count());
                let full = unit.iter().filter(|part| has_page(part)).map(|part| part.pages).sum::<usize>();
                let is_from = side(first) == first.from;
                let what = match full {
                    // There may be a page of zeros by now, or there is something else.
                    _ if is_from && unit.iter().any(|part| leaves_something(part.stage)) => Place::Broken,
                    0 => Place::Empty,
                    full if full < pages => Place::Broken,
                    _ if is_from && has_shadow(first, size) => Place::Shadow,
                    _ => Place::Full,
                };
                let unit = side(first)..side(first) + pages as u64 * PAGE;
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
                for (page, place) in aloft.range().step_by(4096).zip((aloft.from..).step_by(4096)) {
                    for place in self.shadows.keep(tier, page, place) {
                        self.free_shadow(place);
                    }
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
        std::mem::forget(self.traps.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}
