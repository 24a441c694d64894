//! A tier's pool of slots for pages of one size. A slot is empty or holds a free page or an old copy.

use crate::config::PAGE;
use crate::exchange::Exchange;
use crate::runs::Runs;
use std::ops::Range;
use telpher_mem::{MapError, PageSize, RawPages};
use telpher_os::Nodes;

/// Bytes requested from the kernel at once. Source: chosen, four huge pages.
const REFILL_BYTES: usize = 4 * (2 << 20);

/// The content of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlotState {
    /// Nothing: a page can be moved there.
    Empty,
    /// A free page.
    Full,
    /// An old copy of a page.
    Shadow,
    /// Something other than what the slot was lent for. A huge slot of which parts were moved out is not lent again:
    /// the page tables below it stay, so no huge page can be moved there as a whole. A small slot becomes empty when
    /// its content is discarded.
    Broken,
}

/// The slots for pages of one size.
#[derive(Debug)]
pub(crate) struct Slots {
    tract: RawPages,
    /// Where new pages come from. The kernel fills this memory itself, which it does not do for memory registered with
    /// the userfaultfd.
    refill: RawPages,
    pages: PageSize,
    node: Option<u32>,
    /// Slots that are empty, and slots that hold free pages.
    empty: Runs,
    full: Runs,
    /// The number of free pages, of those that are lent, and of old copies.
    full_slots: u64,
    lent_full: u64,
    shadows: u64,
    /// This process' memory, if a test wants free pages overwritten.
    #[cfg(test)]
    pub(crate) poison: Option<std::fs::File>,
}

impl Slots {
    /// Creates this many slots, all empty.
    pub(crate) fn new(slots: usize, pages: PageSize, node: Option<u32>) -> Result<Slots, MapError> {
        let tract = RawPages::new(slots.saturating_mul(Self::bytes_of(pages)), pages)?;
        let refill = RawPages::new(REFILL_BYTES, pages)?;
        for tract in [&tract, &refill] {
            if let Some(node) = node {
                tract.bind(node)?;
            }
            tract.keep_from_children()?;
        }
        Ok(Slots {
            tract,
            refill,
            pages,
            node,
            empty: Runs::of(0..slots),
            full: Runs::default(),
            full_slots: 0,
            lent_full: 0,
            shadows: 0,
            #[cfg(test)]
            poison: None,
        })
    }

    fn bytes_of(pages: PageSize) -> usize {
        match pages {
            PageSize::Small => 4096,
            PageSize::Huge => 2 << 20,
        }
    }

    /// Returns the size of a slot in bytes.
    pub(crate) fn unit(&self) -> u64 {
        Self::bytes_of(self.pages) as u64
    }

    /// Returns the addresses of the slots.
    pub(crate) fn range(&self) -> Range<u64> {
        self.tract.range()
    }

    /// Returns the number of free pages of this size.
    pub(crate) fn full(&self) -> u64 {
        self.full_slots
    }

    /// Returns the free pages in units of 4 KiB.
    pub(crate) fn full_pages(&self) -> u64 {
        self.full_slots * self.unit() / PAGE
    }

    /// Returns the lent pages that were free, in units of 4 KiB.
    pub(crate) fn lent_full(&self) -> u64 {
        self.lent_full * self.unit() / PAGE
    }

    /// Returns the old copies in units of 4 KiB.
    pub(crate) fn shadow_pages(&self) -> u64 {
        self.shadows * self.unit() / PAGE
    }

    /// Lends slots with old copies, to bring the copies back or to overwrite them.
    pub(crate) fn lend_shadows(&mut self, slots: u64) {
        self.shadows -= slots;
        self.lent_full += slots;
    }

    /// Turns an old copy into a free page.
    pub(crate) fn free_shadow(&mut self, address: u64) {
        self.shadows -= 1;
        self.give_back(address..address + self.unit(), SlotState::Full);
    }

    /// Notes that all lent slots have come back.
    pub(crate) fn settled(&mut self) {
        self.lent_full = 0;
    }

    fn address(&self, slot: usize) -> u64 {
        self.tract.start() + slot as u64 * self.unit()
    }

    fn slot(&self, address: u64) -> usize {
        usize::try_from((address - self.tract.start()) / self.unit()).expect("in the tract")
    }

    /// Lends up to `most` contiguous slots that are empty or hold a free page; exactly `most` if there is such a run.
    pub(crate) fn lend(&mut self, what: SlotState, most: usize) -> Option<Range<u64>> {
        let run = if what == SlotState::Full { self.full.take(most) } else { self.empty.take(most) }?;
        if what == SlotState::Full {
            self.full_slots -= run.len() as u64;
            self.lent_full += run.len() as u64;
        }
        Some(self.address(run.start)..self.address(run.end))
    }

    /// Takes lent slots back.
    pub(crate) fn give_back(&mut self, addresses: Range<u64>, what: SlotState) {
        let run = self.slot(addresses.start)..self.slot(addresses.end);
        match what {
            SlotState::Full => {
                #[cfg(test)]
                if let Some(memory) = &self.poison {
                    let poison = vec![tests::POISON; run.len() * Self::bytes_of(self.pages)];
                    let written = std::os::unix::fs::FileExt::write_all_at(memory, &poison, addresses.start);
                    written.expect("free pages are there");
                }
                self.full_slots += run.len() as u64;
                self.full.put(run);
            }
            SlotState::Empty => self.empty.put(run),
            SlotState::Shadow => self.shadows += run.len() as u64,
            // The rest of its content goes back to the kernel. If the kernel refuses, the content stays there, unused.
            SlotState::Broken => {
                if self.tract.discard(addresses).is_ok() && self.pages == PageSize::Small {
                    self.empty.put(run);
                }
            }
        }
    }

    /// Returns the content of lent slots to the kernel and marks them empty. If the kernel refuses, the content stays
    /// there, unused.
    pub(crate) fn clear(&mut self, addresses: Range<u64>) {
        if self.tract.discard(addresses.clone()).is_ok() {
            self.give_back(addresses, SlotState::Empty);
        }
    }

    /// Moves up to `most` new pages from the kernel into empty slots and returns how many. It returns fewer without
    /// empty slots, memory on the node, or huge pages.
    pub(crate) fn fill(&mut self, most: usize, exchange: &Exchange) -> u64 {
        let unit = usize::try_from(self.unit()).expect("a unit is a `usize`");
        let mut filled = 0;
        while filled < most as u64 {
            let rest = most - usize::try_from(filled).expect("no more than most");
            let Some(run) = self.lend(SlotState::Empty, rest.min(REFILL_BYTES / unit)) else { return filled };
            if !self.has_node_room_for(run.end - run.start) {
                self.give_back(run, SlotState::Empty);
                return filled;
            }
            let fresh = self.refill.start()..self.refill.start() + (run.end - run.start);
            // If the kernel refuses, some of the pages are there, or none.
            let _ = self.refill.populate(fresh.clone());
            let mut came = 0;
            for (slot, from) in run.step_by(unit).zip(fresh.step_by(unit)) {
                let whole = self.is_whole(from, exchange) && exchange.put_fresh(slot, from, self.unit());
                came += u64::from(whole);
                let what = if whole { SlotState::Full } else { SlotState::Empty };
                self.give_back(slot..slot + self.unit(), what);
            }
            filled += came;
            if came == 0 || filled < most as u64 && came * self.unit() < REFILL_BYTES as u64 {
                // Pages that were allocated and did not move go back to the kernel.
                let _ = self.refill.discard(self.refill.range());
                return filled;
            }
        }
        filled
    }

    /// Returns whether the node has this much memory and a reserve. For memory bound to a single node, the kernel kills
    /// processes before it refuses an allocation (Linux, mm/oom_kill.c: `CONSTRAINT_MEMORY_POLICY`).
    fn has_node_room_for(&self, bytes: u64) -> bool {
        /// The reserve. Source: chosen, a multiple of what the kernel keeps itself (`vm.min_free_kbytes`).
        const LEFT: u64 = 32 << 20;
        // Without a number for the node, the request is tried.
        self.node.and_then(Nodes::free_bytes).is_none_or(|free| free >= bytes + LEFT)
    }

    /// Returns whether one page of this size is present.
    fn is_whole(&self, address: u64, exchange: &Exchange) -> bool {
        let (mut there, huge) = (0, self.pages == PageSize::Huge);
        let looked = exchange.scan.present(address..address + self.unit(), |run| {
            there += if huge && !run.is_huge() { 0 } else { run.pages() };
        });
        looked.is_ok() && there * PAGE == self.unit()
    }

    /// Returns free pages to the kernel until at most `keep` are left.
    pub(crate) fn shed(&mut self, keep: u64) {
        /// Slots at once. Source: chosen.
        const RUN: u64 = 512;
        while self.full() > keep {
            let most = usize::try_from((self.full() - keep).min(RUN)).expect("a run");
            let Some(run) = self.lend(SlotState::Full, most) else { return };
            let what = if self.tract.discard(run.clone()).is_ok() { SlotState::Empty } else { SlotState::Full };
            self.lent_full -= (run.end - run.start) / self.unit();
            self.give_back(run, what);
            if what == SlotState::Full {
                return;
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::{HUGE, TierId};
    use crate::fault_handler::FaultHandler;
    use crate::mechanism::userfault_move::userfault::EVENTS;
    use crate::page_map::PageMap;
    use std::sync::Arc;
    use std::time::Duration;
    use telpher_os::{Scan, Userfault};

    /// The content of free pages, where a test asks for it.
    pub(crate) const POISON: u8 = 0xa5;

    /// Creates slots and an exchange that fills them; none if the kernel lacks a feature.
    fn slots(slots: usize, pages: PageSize) -> Option<(Slots, Arc<Exchange>, FaultHandler)> {
        let (scan, userfault) = (Scan::open().ok()?, Userfault::open(EVENTS).ok()?);
        let exchange = Exchange::new(userfault, scan, PageMap::new(TierId(1), 1), TierId(1), Duration::from_secs(1));
        let exchange = Arc::new(exchange);
        let slots = Slots::new(slots, pages, None).unwrap();
        exchange.register(slots.range()).unwrap();
        let fault_handler = FaultHandler::start(&exchange).unwrap();
        Some((slots, exchange, fault_handler))
    }

    /// Returns the number of empty slots and of slots with free pages.
    fn count(slots: &Slots) -> [usize; 2] {
        [slots.empty.len(), slots.full.len()]
    }

    #[test]
    fn free_pages_come_from_the_system_and_go_back() {
        let Some((mut slots, exchange, _fault_handler)) = slots(100, PageSize::Small) else { return };
        assert_eq!(slots.lend(SlotState::Full, 1), None);
        assert_eq!((slots.fill(30, &exchange), slots.fill(80, &exchange), slots.fill(1, &exchange)), (30, 70, 0));
        assert_eq!((slots.full(), slots.full_pages(), count(&slots)), (100, 100, [0, 100]));
        slots.shed(40);
        assert_eq!((slots.full(), count(&slots)), (40, [60, 40]));
        let mut there = 0;
        exchange.scan.present(slots.range(), |run| there += run.pages()).unwrap();
        assert_eq!(there, 40, "pages given back are not present");
    }

    #[test]
    fn the_longest_runs_are_lent_first() {
        let Some((mut slots, exchange, _fault_handler)) = slots(64, PageSize::Small) else { return };
        slots.fill(64, &exchange);
        let all = slots.lend(SlotState::Full, 64).unwrap();
        // Every fourth slot stays lent: the rest are runs of three, and one run at the end.
        for (slot, address) in all.clone().step_by(4096).enumerate() {
            if slot % 4 != 3 || slot == 63 {
                slots.give_back(address..address + PAGE, SlotState::Full);
            }
        }
        let lens: Vec<u64> =
            std::iter::from_fn(|| slots.lend(SlotState::Full, 8)).map(|run| (run.end - run.start) / 4096).collect();
        assert_eq!(lens.iter().sum::<u64>(), 49);
        assert!(lens.windows(2).all(|pair| pair[0] >= pair[1]) && lens[0] == 4 && lens[1] == 3, "{lens:?}");
        assert_eq!(slots.lend(SlotState::Empty, 1), None);
        slots.give_back(all.start..all.start + PAGE, SlotState::Empty);
        assert_eq!(slots.lend(SlotState::Empty, 9), Some(all.start..all.start + 4096));
    }

    #[test]
    fn a_huge_slot_that_was_split_is_not_reused() {
        let Some((mut slots, exchange, _fault_handler)) = slots(2, PageSize::Huge) else { return };
        if slots.fill(2, &exchange) < 2 {
            return;
        }
        let run = slots.lend(SlotState::Full, 1).unwrap();
        slots.give_back(run, SlotState::Broken);
        assert!(slots.lend(SlotState::Full, 2).is_some_and(|run| run.end - run.start == HUGE));
        assert_eq!((slots.fill(1, &exchange), slots.lend(SlotState::Empty, 1)), (0, None));
    }
}
