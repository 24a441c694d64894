//! The exchange mechanism: pages move out to pools with `UFFDIO_MOVE`, are copied by the mover, and move in with
//! `UFFDIO_MOVE`.

#[cfg(test)]
mod tests;
mod trapping;
pub(crate) mod userfault;
mod watch;

use crate::config::{ALL, HUGE, HeapOptions, IN_HUGE, Mechanism, PAGE, TierId};
use crate::error::TierError;
use crate::exchange::Exchange;
use crate::fault_handler::FaultHandler;
use crate::fork_gate::{NoFork, hold_forks};
use crate::heat::NO_TIER;
use crate::in_flight::{LOOK, MovingRun, NotTaken, Stage};
use crate::mechanism::{Backend, Trapping, Watch, whole_pages};
use crate::page_map::{Lists, MOST_SPANS, PageMap, RegionPart, equal_prefix_len};
use crate::shadows::Shadows;
use crate::slots::{SlotState, Slots};
use crate::stats::{Moved, Stats};
use crate::tracer::TracerCheck;
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use telpher_mem::{PageSize, RawPages};
use telpher_os::{Lineage, Scan, UserfaultFeatures};
use trapping::TrapSlots;
use userfault::open_userfault;

/// The pools of each tier, and the exchange that moves pages through them.
#[derive(Debug)]
pub(crate) struct UserfaultMove {
    options: HeapOptions,
    exchange: Arc<Exchange>,
    /// The pools. Holding the lock is the turn: one exchange at a time.
    pools: Mutex<Pools>,
    /// The slots for trapped pages, created when traps are first used.
    traps: Mutex<Option<TrapSlots>>,
    /// The process that owns the thread and the pools.
    lineage: Lineage,
    fault_handler: Option<FaultHandler>,
    /// Used to check that a range is homogeneous. One thread adopts at a time: the one that holds the page map's lock.
    probe: RawPages,
}

/// Bytes of a range that are checked at once. Source: chosen; this is address space, of which one page is present.
const PROBE_BYTES: usize = 1 << 30;

/// The pools of each tier, by page size.
#[derive(Debug)]
struct Pools {
    tiers: Vec<[Slots; 2]>,
    shadows: Shadows,
    /// The pages that a scan found.
    found: Vec<Found>,
    /// Tiers of the scanned pages.
    row: Vec<u8>,
    /// The heap's owner wants all pages to stay where they are.
    holds: bool,
    tracer: TracerCheck,
}

/// Contiguous pages that may be moved, with the same properties.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// The address of the first byte.
    first: u64,
    /// The number of pages of their size.
    units: usize,
    /// The tier they are on.
    tier: TierId,
    /// They are whole huge pages.
    huge: bool,
    /// The slot of the first page's old copy on the destination tier; those of the other pages follow it.
    shadow: Option<u64>,
}

impl Found {
    /// Returns the number of small pages in each page.
    fn unit_pages(self) -> usize {
        if self.huge { IN_HUGE } else { 1 }
    }

    /// Returns the bytes of the first `units` pages.
    fn bytes(self, units: usize) -> u64 {
        (units * self.unit_pages()) as u64 * PAGE
    }

    /// Returns whether this begins where the other ends, with the same properties.
    fn follows(self, other: Found) -> bool {
        let end = other.bytes(other.units);
        let shadow = other.shadow.map(|slot| slot + end);
        (self.first, self.tier, self.huge, self.shadow) == (other.first + end, other.tier, other.huge, shadow)
    }
}

thread_local! {
    /// The thread's number, kept because reading it costs a system call.
    static THREAD: i32 = rustix::thread::gettid().as_raw_pid();
}

fn size_index(pages: PageSize) -> usize {
    usize::from(pages == PageSize::Huge)
}

impl UserfaultMove {
    /// Creates empty pools from these options.
    ///
    /// # Errors
    /// [`TierError`]: the system refuses what this mechanism needs.
    pub(crate) fn new(options: &HeapOptions) -> Result<UserfaultMove, TierError> {
        let (tiers, batch) = (options.tiers.len(), options.batch);
        let scan = Scan::open().map_err(TierError::Scan)?;
        let userfault = open_userfault()?;
        if options.delay_forks {
            hold_forks();
        }
        let in_flight = batch.max(IN_HUGE);
        let home = options.home;
        let shadows = usize::try_from(options.shadow_bytes / PAGE).unwrap_or(usize::MAX);
        let mut pools = Vec::new();
        for (tier, of_tier) in options.tiers.iter().enumerate() {
            let bytes = if tier == home.index() { options.spare_bytes } else { of_tier.bytes };
            let slots = |unit: u64| usize::try_from(bytes.div_ceil(unit)).unwrap_or(usize::MAX);
            // Old copies need more slots on the home tier; on another tier they take some of its slots.
            let more = if tier == home.index() { shadows } else { 0 };
            // Slots for one batch more than there may be free pages: taken pages are put there.
            let small = slots(PAGE).saturating_add(in_flight).saturating_add(more);
            let small = Slots::new(small, PageSize::Small, of_tier.node)?;
            let huge = Slots::new(slots(HUGE).saturating_add(in_flight / IN_HUGE), PageSize::Huge, of_tier.node)?;
            pools.push([small, huge]);
        }
        let map = PageMap::new(home, in_flight);
        let exchange = Arc::new(Exchange::new(userfault, scan, map, home, options.retry_timeout));
        for slots in pools.iter().flatten() {
            exchange.register(slots.range()).map_err(TierError::Register)?;
        }
        let fault_handler = FaultHandler::start(&exchange).map_err(TierError::Keeper)?;
        let shadows = Shadows::new(tiers, shadows);
        // A scan ends at the end of a huge page.
        let row = vec![NO_TIER; batch.next_multiple_of(IN_HUGE) + IN_HUGE];
        let found = Vec::with_capacity(in_flight);
        let tracer = TracerCheck::default();
        let pools = Mutex::new(Pools { tiers: pools, shadows, found, row, holds: false, tracer });
        let (options, lineage) = (options.clone(), Lineage::current());
        let probe = RawPages::new(PROBE_BYTES, PageSize::Small)?;
        probe.keep_from_children()?;
        let traps = Mutex::new(None);
        Ok(UserfaultMove { options, exchange, pools, traps, lineage, fault_handler: Some(fault_handler), probe })
    }

    /// Returns whether the kernel reports forks.
    fn hears_forks(&self) -> bool {
        self.exchange.userfault.features().has(UserfaultFeatures::EVENT_FORK)
    }

    fn region_parts_in(&self, mut range: Range<u64>) -> Vec<RegionPart> {
        // Nothing is allocated under the page map's lock.
        let mut region_parts: Vec<RegionPart> = Vec::with_capacity(64);
        while !self.exchange.page_map().region_parts(&range, &mut region_parts) {
            range.start = region_parts.last().map_or(range.start, |last| last.range.end);
            region_parts.reserve(region_parts.len());
        }
        region_parts
    }

    /// Moves what a scan has found, in one exchange.
    fn move_found(&self, pools: &mut Pools, to: TierId) -> Moved {
        let mut moved = Moved::default();
        let found = std::mem::take(&mut pools.found);
        // Runs of at most `LOOK` pages, and one more for each of the found.
        let mut plan = Vec::with_capacity(found.iter().map(|found| 1 + found.units * found.unit_pages() / LOOK).sum());
        // Pages with old copies first: without room, the others may take such a copy's slot.
        for with_shadow in [true, false] {
            for found in found.iter().filter(|found| found.shadow.is_some() == with_shadow) {
                let planned = pools.plan(self, *found, to, &mut plan);
                moved.left.no_room += ((found.units - planned) * found.unit_pages()) as u64;
            }
        }
        pools.found = found;
        let _no_fork = (self.options.delay_forks || !self.hears_forks()).then(NoFork::new);
        {
            let mut map = self.exchange.page_map();
            map.to = to;
            map.mover = Some(THREAD.with(|thread| *thread));
            // There is room for all: see `Pools::look`.
            map.in_flight.add(&plan);
            // Pages discarded or moved since the scan stay as they are.
            map.drop_changed();
            map.stats.exchanges += 1;
        }
        // Even after a panic, the pages that are out come back first.
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
        // Events may have split the runs; they cannot split them any more.
        let parts = self.exchange.page_map().in_flight.len();
        plan.clear();
        plan.reserve(parts);
        {
            let mut map = self.exchange.page_map();
            plan.extend_from_slice(&map.in_flight);
            map.in_flight.clear();
            map.mover = None;
        }
        self.exchange.report_lost();
        pools.settle(&plan, to, &mut moved);
        let spare = self.options.spare_bytes;
        let home = &mut pools.tiers[self.options.home.index()];
        home[0].shed(spare / PAGE);
        home[1].shed(spare / HUGE);
        if let Err(panic) = done {
            self.exchange.page_map().stats.moved += moved;
            resume_unwind(panic);
        }
        moved
    }
}

impl Backend for UserfaultMove {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Exchange
    }

    fn adopt(&self, range: Range<u64>, room: Option<Range<u64>>) -> Result<(), TierError> {
        // Allocations are made and freed without the lock.
        let mut states = PageMap::states(self.options.home, &range);
        let mut larger = Lists::with_room(0);
        let end = Instant::now() + self.options.retry_timeout;
        loop {
            let mut map = self.exchange.page_map();
            if map.knows_of(&range) {
                if room.is_none() && Instant::now() < end {
                    // The range was part of a mapping that is gone; its event will come.
                    drop(map);
                    std::thread::sleep(Duration::from_micros(50));
                    continue;
                }
                return Err(TierError::Known { start: range.start, end: range.end });
            }
            if map.has_room() || map.grow(&mut larger) {
                if !map.adopt(range.clone(), &mut states) {
                    return Err(TierError::TooManySpans { most: MOST_SPANS });
                }
                let registered = self.exchange.register_live(room.clone().unwrap_or(range.clone()));
                // A change that is not reported yet would be reported for a range that is known only now: a mapping may
                // have moved here.
                let registered = registered.and_then(|()| match room {
                    Some(_) => Ok(self.exchange.is_ours(&range, &self.probe)?),
                    None if self.exchange.userfault.is_changing() => Err(Errno::AGAIN.into()),
                    None => Ok(()),
                });
                if registered.is_err() {
                    map.forget(&range);
                }
                drop(map);
                match registered {
                    Err(error) if error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) && Instant::now() < end => {
                    }
                    registered => return registered.map_err(TierError::Register),
                }
                std::thread::sleep(Duration::from_micros(50));
                states = PageMap::states(self.options.home, &range);
                continue;
            }
            let lists = map.lists();
            drop(map);
            larger = Lists::with_room(lists.max(16) * 2);
        }
    }

    fn release(&self, range: &Range<u64>) {
        // Waits for its turn: no page of the range is out.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        self.exchange.recall(range);
        for slot in pools.shadows.forget_all(range) {
            pools.free_shadow(slot);
        }
        // Unregisters only what is the heap's, because a pool may lie beside it. The parts are mapped and registered,
        // so nothing is refused.
        for region_part in self.region_parts_in(range.clone()) {
            let _ = self.exchange.userfault.unregister(region_part.range);
        }
        self.exchange.page_map().unmapped(range);
    }

    fn region_parts(&self) -> Vec<RegionPart> {
        self.region_parts_in(0..u64::MAX)
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
            // The page may have come back by now.
            if runs.get(at).is_none_or(|run| *page < run.start) {
                on[tier.index()] += 1;
            }
        }
        let mut row = [NO_TIER; IN_HUGE];
        for run in runs {
            for first in run.clone().step_by(IN_HUGE * 4096) {
                let pages = usize::try_from((run.end - first) / PAGE).unwrap_or(usize::MAX).min(IN_HUGE);
                self.exchange.page_map().tiers(first, [NO_TIER; 2], &mut row[..pages]);
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
            // Other threads get a turn between batches.
            let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            let start = Instant::now();
            self.exchange.recall(&at);
            let mut of_batch = Moved::default();
            at.start = pools.look(self, at.clone(), to, &mut of_batch).map_err(TierError::Scan)?;
            let any = !pools.found.is_empty();
            if any && pools.is_held() {
                let pages = |found: &Found| (found.units * found.unit_pages()) as u64;
                of_batch.left.held += pools.found.iter().map(pages).sum::<u64>();
            } else if any {
                of_batch += self.move_found(&mut pools, to);
            }
            let mut map = self.exchange.page_map();
            map.stats.moved += of_batch;
            map.stats.moving += start.elapsed();
            drop(map);
            moved += of_batch;
        }
        Ok(moved)
    }

    fn tracer(&self) -> Option<u32> {
        // Waits for its turn: no exchange is under way.
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
        self.exchange.page_map().stats
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
    /// Returns whether no page may go out now: the owner wants it, or the process is traced.
    fn is_held(&mut self) -> bool {
        self.holds || self.tracer.tracer().is_some()
    }

    /// Finds pages that may be moved, up to one batch. Returns the address at which the scan stopped.
    fn look(
        &mut self,
        mechanism: &UserfaultMove,
        range: Range<u64>,
        to: TierId,
        moved: &mut Moved,
    ) -> std::io::Result<u64> {
        self.found.clear();
        let batch = mechanism.options.batch;
        // Up to the end of a huge page, so that huge pages are found whole.
        let end = (range.start + batch as u64 * PAGE).next_multiple_of(HUGE).min(range.end);
        let mut runs = Vec::new();
        mechanism.exchange.scan.present(range.start..end, |run| runs.push(run))?;
        let mut moving = 0;
        for run in &runs {
            let pages = usize::try_from(run.pages()).expect("in the row");
            mechanism.exchange.page_map().tiers(run.start, [NO_TIER; 2], &mut self.row[..pages]);
            let mut at = 0;
            while at < pages {
                let first = run.start + at as u64 * PAGE;
                let tier = self.row[at];
                let mut alike = equal_prefix_len(tier, &self.row[at..pages]);
                // A part of a huge page moves alone, and so do parts that are on different tiers: the kernel splits the
                // huge page.
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
                // The first one moves even if it is larger than a batch.
                let room = if huge && moving == 0 { IN_HUGE } else { batch.saturating_sub(moving) };
                let may = if huge && room < IN_HUGE { 0 } else { alike.min(room) };
                if may == 0 {
                    return Ok(first);
                }
                moving += may;
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
        let slots = self.tiers[to.index()][0].range();
        for page in (first..).step_by(4096).take(pages) {
            // The slot of its old copy, if that is on the destination tier.
            let shadow = self.shadows.of(page).filter(|slot| slots.contains(slot));
            add(Found { first: page, units: 1, tier, huge, shadow });
        }
    }

    /// Lends slots for contiguous pages and plans their runs. Returns how many of the pages will move.
    fn plan(&mut self, mechanism: &UserfaultMove, found: Found, to: TierId, plan: &mut Vec<MovingRun>) -> usize {
        let Found { first, tier, huge, shadow, .. } = found;
        let size = size_index(if huge { PageSize::Huge } else { PageSize::Small });
        let pages = found.unit_pages();
        let unit = found.bytes(1);
        let units = |range: &Range<u64>| usize::try_from((range.end - range.start) / unit).expect("slots");
        let mut done = 0;
        while done < found.units {
            let Some(from) = self.tiers[tier.index()][size].lend(SlotState::Empty, found.units - done) else { break };
            let mut lent = 0;
            while lent < units(&from) {
                let most = units(&from) - lent;
                let free = match shadow {
                    Some(slot) => Some(self.lend_shadows(first + found.bytes(done), slot + found.bytes(done), most)),
                    None => self.lend_free(mechanism, to, size, most),
                };
                let Some(free) = free else { break };
                let together = (LOOK / pages).max(1) * pages * 4096;
                for to in free.clone().step_by(together) {
                    let at = to - free.start;
                    let from = from.start + found.bytes(lent) + at;
                    let pages =
                        usize::try_from((free.end - to).min(together as u64) / PAGE).expect("pages of this process");
                    let live = first + found.bytes(done) + at;
                    let part = MovingRun::planned(live, (from, to), pages, tier);
                    plan.push(MovingRun { shadowed: shadow.is_some(), huge, ..part });
                }
                lent += units(&free);
                done += units(&free);
            }
            let unused = from.start + lent as u64 * unit..from.end;
            if !unused.is_empty() {
                self.tiers[tier.index()][size].give_back(unused, SlotState::Empty);
                break;
            }
        }
        done
    }

    /// Lends the slots of the old copies of these contiguous pages.
    fn lend_shadows(&mut self, first: u64, slot: u64, pages: usize) -> Range<u64> {
        let end = slot + pages as u64 * PAGE;
        for (page, slot) in (first..).step_by(4096).zip((slot..end).step_by(4096)) {
            let kept = self.shadows.forget(page);
            debug_assert_eq!(kept, Some(slot), "the old copy is where the scan found it");
        }
        let (tier, size) = self.slots_of(slot).expect("a slot of a pool");
        self.tiers[tier][size].lend_shadows(pages as u64);
        slot..end
    }

    /// Turns an old copy, already removed from the list, into a free page.
    fn free_shadow(&mut self, slot: u64) {
        let (tier, size) = self.slots_of(slot).expect("a slot of a pool");
        self.tiers[tier][size].free_shadow(slot);
    }

    /// Lends free pages of a tier. It takes free pages of the pool, new pages from the kernel within the tier's limit,
    /// or old copies.
    fn lend_free(&mut self, mechanism: &UserfaultMove, to: TierId, size: usize, most: usize) -> Option<Range<u64>> {
        if self.tiers[to.index()][size].full() == 0 {
            let in_unit = if size == 1 { IN_HUGE as u64 } else { 1 };
            let bound =
                if to == mechanism.options.home { u64::MAX } else { mechanism.options.tiers[to.index()].bytes / PAGE };
            let has = |slots: &Slots| slots.full_pages() + slots.shadow_pages() + slots.lent_full();
            let taken = mechanism.exchange.page_map().live(to) + self.tiers[to.index()].iter().map(has).sum::<u64>();
            let may = usize::try_from((most as u64).min(bound.saturating_sub(taken) / in_unit)).unwrap_or(usize::MAX);
            let filled = if may > 0 { self.tiers[to.index()][size].fill(may, &mechanism.exchange) } else { 0 };
            if filled == 0 && size == 0 {
                for _ in 0..most {
                    let Some(slot) = self.shadows.oldest_of(to.index()) else { break };
                    self.free_shadow(slot);
                }
            }
        }
        self.tiers[to.index()][size].lend(SlotState::Full, most)
    }

    /// Takes back the slots of a batch and counts the outcomes.
    fn settle(&mut self, in_flight: &[MovingRun], to: TierId, moved: &mut Moved) {
        for part in in_flight {
            let pages = part.pages as u64;
            let left = &mut moved.left;
            match part.stage {
                Stage::Back if part.source == part.to => {
                    moved.pages += pages;
                    moved.huge += self.slots_of(part.from).map_or(0, |(_, size)| if size == 1 { pages } else { 0 });
                }
                Stage::Back | Stage::Returned | Stage::Rescued => left.failed += pages,
                Stage::Unmoved(NotTaken::Pinned) | Stage::Busy => left.pinned += pages,
                Stage::Unmoved(NotTaken::Unsupported) => left.unsupported += pages,
                Stage::Unmoved(NotTaken::Gone) | Stage::Dropped { .. } => left.gone += pages,
                // Something was in its slot, or a panic came before its turn.
                Stage::Unmoved(NotTaken::Blocked) | Stage::Planned => left.failed += pages,
                Stage::Out => unreachable!("everything has been brought back"),
            }
        }
        self.tiers.iter_mut().flatten().for_each(Slots::settled);
        // Whether this run leaves its original as an old copy: small pages that moved to a faster tier.
        let keeps = self.shadows.are_kept();
        let has_shadow = |moving: &MovingRun, size: usize| {
            keeps && size == 0 && to < moving.tier && moving.stage == Stage::Back && moving.source == moving.to
        };
        let leaves_something = |stage| matches!(stage, Stage::Rescued | Stage::Unmoved(NotTaken::Blocked));
        for address_of in [|moving: &MovingRun| moving.from, |moving: &MovingRun| moving.to] {
            let has_page = |moving: &MovingRun| {
                let is_from = address_of(moving) == moving.from;
                match moving.stage {
                    Stage::Back => address_of(moving) != moving.source,
                    Stage::Returned | Stage::Dropped { out: true } => true,
                    _ => !is_from,
                }
            };
            let mut rest = in_flight;
            // Contiguous slots with the same content are given back together.
            let (mut slots, mut alike) = (0..0, (0, 0, SlotState::Empty));
            while let Some(first) = rest.first() {
                let (tier, size) = self.slots_of(address_of(first)).expect("a slot of a pool");
                // The parts of a huge page share one slot.
                let mut pages = 0;
                let parts = rest.iter().take_while(|part| {
                    let more = pages == 0 || size == 1 && pages < IN_HUGE;
                    pages += if more { part.pages } else { 0 };
                    more
                });
                let (unit, behind) = rest.split_at(parts.count());
                let full = unit.iter().filter(|part| has_page(part)).map(|part| part.pages).sum::<usize>();
                let is_from = address_of(first) == first.from;
                let what = match full {
                    // A page of zeros may be there by now, or something else.
                    _ if is_from && unit.iter().any(|part| leaves_something(part.stage)) => SlotState::Broken,
                    0 => SlotState::Empty,
                    full if full < pages => SlotState::Broken,
                    _ if is_from && has_shadow(first, size) => SlotState::Shadow,
                    _ => SlotState::Full,
                };
                let unit = address_of(first)..address_of(first) + pages as u64 * PAGE;
                if (slots.end, alike) == (unit.start, (tier, size, what)) {
                    slots.end = unit.end;
                } else {
                    let before = std::mem::replace(&mut slots, unit);
                    self.give_back(before, std::mem::replace(&mut alike, (tier, size, what)));
                }
                rest = behind;
            }
            self.give_back(slots, alike);
        }
        for moving in in_flight.iter().filter(|moving| has_shadow(moving, 0)) {
            let (tier, size) = self.slots_of(moving.from).expect("a slot of a pool");
            if size == 0 {
                for (page, slot) in moving.range().step_by(4096).zip((moving.from..).step_by(4096)) {
                    for slot in self.shadows.keep(tier, page, slot) {
                        self.free_shadow(slot);
                    }
                }
            }
        }
    }

    fn give_back(&mut self, slots: Range<u64>, (tier, size, what): (usize, usize, SlotState)) {
        if !slots.is_empty() {
            self.tiers[tier][size].give_back(slots, what);
        }
    }

    /// Returns the tier and the page size index of the pool that contains an address.
    fn slots_of(&self, address: u64) -> Option<(usize, usize)> {
        self.tiers.iter().enumerate().find_map(|(tier, sizes)| {
            sizes.iter().position(|slots| slots.range().contains(&address)).map(|size| (tier, size))
        })
    }
}

impl Drop for UserfaultMove {
    fn drop(&mut self) {
        if self.lineage.is_current() {
            return;
        }
        // A forked child has neither the thread nor the pools; its memory at these addresses may be used for something
        // else by now.
        if let Some(fault_handler) = self.fault_handler.take() {
            fault_handler.forget();
        }
        let pools = self.pools.get_mut().unwrap_or_else(PoisonError::into_inner);
        pools.tiers.drain(..).flatten().for_each(std::mem::forget);
        std::mem::forget(self.traps.get_mut().unwrap_or_else(PoisonError::into_inner).take());
    }
}
