//! Sets and ends traps: see [`traps`](crate::traps).

#[cfg(test)]
mod tests;

use super::{UserfaultMove, size_index};
use crate::config::{ALL, HUGE, IN_HUGE, PAGE, TierId};
use crate::error::TierError;
use crate::exchange::Exchange;
use crate::fork_gate::{NoFork, Recaller, is_fork_announced};
use crate::mechanism::{TrapCandidate, Trapping};
use crate::slots::{SlotState, Slots};
use crate::traps::{MOST_HUGE, MOST_SMALL, Trap, TrapCost};
use std::io;
use std::ops::Range;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use telpher_mem::{PageSize, RawPages};

/// The slots for trapped pages.
#[derive(Debug)]
pub(super) struct TrapSlots {
    /// The slots for small pages and for huge pages.
    slots: [Slots; 2],
    /// The slots lent to the current round.
    lent: Vec<Range<u64>>,
    /// A page used to measure the cost of a touch.
    probe: RawPages,
    /// Recalls traps when the process forks.
    _recaller: Recaller,
}

/// Contiguous pages that may be trapped, and their slots.
struct Planned {
    live: u64,
    slot: u64,
    pages: usize,
    huge: bool,
}

fn slots(exchange: &Exchange, pages: PageSize) -> Result<Slots, TierError> {
    // Twice as many slots for huge pages, because some are split and are not used again.
    let slots = if pages == PageSize::Small { MOST_SMALL } else { 2 * MOST_HUGE };
    let slots = Slots::new(slots, pages, None)?;
    exchange.register(slots.range()).map_err(TierError::Register)?;
    Ok(slots)
}

impl TrapSlots {
    fn new(exchange: &Arc<Exchange>) -> Result<TrapSlots, TierError> {
        let slots = [slots(exchange, PageSize::Small)?, slots(exchange, PageSize::Huge)?];
        let probe = RawPages::new(4096, PageSize::Small)?;
        probe.keep_from_children()?;
        probe.populate(probe.start()..probe.start() + PAGE)?;
        exchange.register(probe.range()).map_err(TierError::Register)?;
        let recalled = Arc::clone(exchange);
        let recaller = Recaller::start(move || recalled.recall(&ALL)).map_err(TierError::Keeper)?;
        Ok(TrapSlots { slots, lent: Vec::new(), probe, _recaller: recaller })
    }

    /// Lends an empty slot for a huge page. When all slots have been split, new ones replace them.
    fn lend_huge(&mut self, exchange: &Exchange) -> Option<Range<u64>> {
        let huge = size_index(PageSize::Huge);
        let lent = self.slots[huge].lend(SlotState::Empty, 1).or_else(|| {
            if self.lent.iter().any(|lent| self.slots[huge].range().contains(&lent.start)) {
                return None;
            }
            self.slots[huge] = slots(exchange, PageSize::Huge).ok()?;
            self.slots[huge].lend(SlotState::Empty, 1)
        })?;
        self.lent.push(lent.clone());
        Some(lent)
    }

    fn lend_small(&mut self, most: usize) -> Option<Range<u64>> {
        let lent = self.slots[size_index(PageSize::Small)].lend(SlotState::Empty, most)?;
        self.lent.push(lent.clone());
        Some(lent)
    }

    /// Lends slots for the drawn pages, as far as these are present and there are slots.
    fn plan(&mut self, exchange: &Exchange, candidates: &[TrapCandidate]) -> io::Result<Vec<Planned>> {
        let (mut small, mut whole) = (Vec::<Range<u64>>::new(), Vec::<u64>::new());
        for TrapCandidate { pages, first } in candidates {
            exchange.scan.present(pages.clone(), |run| match run.is_huge() {
                true if *first && run.start == pages.start => whole.push(run.start - run.start % HUGE),
                true => {}
                false => small.push(run.start..run.end),
            })?;
        }
        // A page drawn twice is trapped once.
        whole.sort_unstable();
        whole.dedup();
        small.sort_unstable_by_key(|run| (run.start, run.end));
        let mut planned = Vec::with_capacity(whole.len() + 2 * small.len());
        for live in whole {
            let Some(lent) = self.lend_huge(exchange) else { break };
            planned.push(Planned { live, slot: lent.start, pages: IN_HUGE, huge: true });
        }
        let mut from = 0;
        for run in small {
            let mut live = run.start.max(from);
            from = from.max(run.end);
            while live < run.end {
                let wanted = usize::try_from((run.end - live) / PAGE).expect("as many as were candidates");
                let Some(lent) = self.lend_small(wanted) else { return Ok(planned) };
                let pages = usize::try_from((lent.end - lent.start) / PAGE).expect("no more than wanted");
                planned.push(Planned { live, slot: lent.start, pages, huge: false });
                live += pages as u64 * PAGE;
            }
        }
        Ok(planned)
    }

    /// Takes back the slots lent to the round. `ended` says what became of the traps.
    fn take_back(&mut self, exchange: &Exchange, ended: &[Trap]) {
        for lent in std::mem::take(&mut self.lent) {
            let size =
                size_index(if self.slots[0].range().contains(&lent.start) { PageSize::Small } else { PageSize::Huge });
            let unit = self.slots[size].unit();
            for slot in lent.step_by(usize::try_from(unit).expect("a unit is a `usize`")) {
                let trap = ended.iter().find(|trap| trap.slot == slot);
                let slot = slot..slot + unit;
                match trap {
                    Some(trap)
                        if unit == HUGE && (trap.is_split || !trap.is_left && !is_huge(exchange, trap.first)) =>
                    {
                        self.slots[size].give_back(slot, SlotState::Broken);
                    }
                    Some(trap) if trap.is_left => self.slots[size].clear(slot),
                    _ => self.slots[size].give_back(slot, SlotState::Empty),
                }
            }
        }
    }
}

#[cfg(test)]
impl TrapSlots {
    /// Asserts that no slot is lent or holds a page.
    pub(super) fn assert_settled(&self, exchange: &Exchange) {
        let mut there = 0;
        for slots in &self.slots {
            exchange.scan.there(slots.range(), |run| there += run.pages()).unwrap();
        }
        assert_eq!((self.lent.len(), there), (0, 0), "slots that are lent, pages in slots");
    }
}

/// Returns whether it is still a huge page. If the kernel has split it, the page tables below its slot stay, too.
fn is_huge(exchange: &Exchange, first: u64) -> bool {
    let mut huge = 0;
    let looked = exchange.scan.present(first..first + HUGE, |run| huge += if run.is_huge() { run.pages() } else { 0 });
    looked.is_ok() && huge == IN_HUGE as u64
}

impl UserfaultMove {
    /// Returns the trapped pages of a range, and their tiers.
    pub(super) fn trapped(&self, range: &Range<u64>) -> Vec<(u64, TierId)> {
        if self.exchange.page_map().traps.are_empty() {
            return Vec::new();
        }
        // Nothing is allocated under the page map's lock.
        let mut trapped = Vec::with_capacity(MOST_SMALL + MOST_HUGE * IN_HUGE);
        let map = self.exchange.page_map();
        for part in map.traps.parts() {
            let pages = part.live().step_by(4096).filter(|page| range.contains(page));
            trapped.extend(pages.filter_map(|page| Some((page, map.tier_of_trapped(page)?))));
        }
        trapped
    }

    pub(super) fn trap_slots(&self) -> MutexGuard<'_, Option<TrapSlots>> {
        self.traps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trapping for UserfaultMove {
    fn begin(&self) -> Result<(), TierError> {
        let mut slots = self.trap_slots();
        if slots.is_none() {
            *slots = Some(TrapSlots::new(&self.exchange)?);
        }
        Ok(())
    }

    fn set(&self, candidates: &[TrapCandidate]) -> io::Result<u64> {
        // Waits for its turn: a migration must find no page out that it has not recalled.
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slots = self.trap_slots();
        let Some(slots) = &mut *slots else { return Ok(0) };
        if !slots.lent.is_empty() || pools.is_held() {
            return Ok(0);
        }
        let planned = slots.plan(&self.exchange, candidates);
        // No traps are set while a process forks.
        let no_fork = NoFork::try_new();
        let (planned, no_fork) = match (planned, no_fork) {
            (Ok(planned), Some(no_fork)) => (planned, no_fork),
            (planned, _) => {
                slots.take_back(&self.exchange, &[]);
                return planned.map(|_| 0);
            }
        };
        let set = {
            let mut map = self.exchange.page_map();
            let before = map.stats.trapped;
            map.traps.hold(no_fork);
            // Nothing is freed under the lock.
            for plan in &planned {
                if map.order.waits() || !self.trap(&mut map, plan) {
                    break;
                }
            }
            map.traps.settle();
            map.stats.trapped - before
        };
        if set == 0 {
            self.end_round(slots);
        } else if is_fork_announced() {
            self.exchange.recall(&ALL);
        }
        Ok(set)
    }

    fn end(&self, each: &mut dyn FnMut(&Trap)) {
        let mut slots = self.trap_slots();
        let Some(slots) = &mut *slots else { return };
        self.end_round(slots).iter().for_each(each);
    }

    fn cost(&self) -> TrapCost {
        self.exchange.page_map().traps.cost
    }

    fn time_touch(&self) -> Option<Duration> {
        let mut slots = self.trap_slots();
        let slots = slots.as_mut().filter(|slots| slots.lent.is_empty())?;
        let lent = slots.lend_small(1)?;
        let mut ended = Vec::with_capacity(1);
        let time = self.exchange.time_touch(slots.probe.start(), lent.start, |trap| ended.push(*trap));
        slots.take_back(&self.exchange, &ended);
        time
    }
}

impl UserfaultMove {
    /// Brings back all trapped pages and takes back the slots of the round. Returns what became of its pages.
    fn end_round(&self, slots: &mut TrapSlots) -> Vec<Trap> {
        // Nothing is allocated under the page map's lock.
        let mut ended = Vec::with_capacity(MOST_SMALL + MOST_HUGE);
        self.exchange.end_traps(|trap| ended.push(*trap));
        slots.take_back(&self.exchange, &ended);
        ended
    }

    /// Takes out those of these pages that may be moved. Returns false if an event must be read first.
    fn trap(&self, map: &mut crate::page_map::PageMap, plan: &Planned) -> bool {
        let Planned { live, slot, pages, huge } = *plan;
        if huge {
            let may = map.may_move_huge(live) && map.traps.has_room(pages);
            return !may || self.exchange.trap(map, live, slot, pages, true);
        }
        let mut at = 0;
        while at < pages {
            let page = |at: usize| live + at as u64 * PAGE;
            let may = |at: &usize| map.tier_of(page(*at)).is_some();
            let len = (at..pages).take_while(may).count();
            if len > 0 && map.traps.has_room(len) {
                let slot = slot + at as u64 * PAGE;
                if !self.exchange.trap(map, page(at), slot, len, false) {
                    return false;
                }
            }
            at += len.max(1);
        }
        true
    }
}
