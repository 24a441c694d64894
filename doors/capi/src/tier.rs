//! Memory on several tiers: heaps and arenas, and their state as numbers for C.

use crate::c_structs::{TierInfo, TierMoved, TierReport, TierStats, tier_advice, tier_mechanism};
use crate::failure::{Failure, Refusal};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use telpher_mem::PageSize;
use telpher_tier::{Advice, Arena, Heap, HeapOptions, Manager, ManagerOptions, Mechanism, Moved, SharedArena, TierId};

/// Memory on several tiers. Any number of threads may use it at once.
#[derive(Debug)]
pub struct TierHeap(pub(crate) Heap);

/// Memory of a heap. Any number of threads may use it at once; C uses its bytes freely.
#[derive(Debug)]
pub struct TierArena {
    range: Range<u64>,
    memory: Mutex<Memory>,
}

#[derive(Debug)]
enum Memory {
    Private(Arena),
    /// Kept only for its destructor.
    Shared(#[allow(dead_code, reason = "its drop is what it is kept for")] SharedArena),
}

/// The thread that finds hot and cold pages and moves them. Any number of threads may use it at once.
#[derive(Debug)]
pub struct TierManager(Manager);

/// Bytes of a page; all counts here are in pages.
const PAGE: u64 = telpher_mem::PAGE_BYTES;

impl TierHeap {
    pub(crate) fn new(options: HeapOptions) -> Result<TierHeap, Failure> {
        Ok(TierHeap(Heap::new(options)?))
    }

    pub(crate) fn arena(&self, len: usize, pages: PageSize) -> Result<TierArena, Failure> {
        let arena = self.0.arena(len, pages)?;
        Ok(TierArena { range: arena.addresses(), memory: Mutex::new(Memory::Private(arena)) })
    }

    pub(crate) fn shared_arena(&self, len: usize) -> Result<TierArena, Failure> {
        let arena = self.0.shared_arena(len)?;
        Ok(TierArena { range: arena.addresses(), memory: Mutex::new(Memory::Shared(arena)) })
    }

    pub(crate) fn migrate(&self, range: Range<u64>, to: u32) -> Result<TierMoved, Failure> {
        Ok(moved_of(self.0.migrate(range, self.tier(to)?)?))
    }

    pub(crate) fn advise(&self, range: Range<u64>, advice: u32, tier: u32) -> Result<(), Failure> {
        let advice = match advice {
            tier_advice::TELPHER_TIER_HOT => Advice::Hot,
            tier_advice::TELPHER_TIER_COLD => Advice::Cold,
            tier_advice::TELPHER_TIER_PIN => Advice::Pin(self.tier(tier)?),
            tier_advice::TELPHER_TIER_UNPIN => Advice::Unpin,
            other => return Err(Refusal::Advice(other).into()),
        };
        Ok(self.0.advise(range, advice)?)
    }

    pub(crate) fn manage(&self, change: impl FnOnce(&mut ManagerOptions)) -> Result<TierManager, Failure> {
        let mut options = ManagerOptions::new(&self.0);
        change(&mut options);
        Ok(TierManager(Manager::start(&self.0, options)?))
    }

    /// A tier, if there is one.
    fn tier(&self, index: u32) -> Result<TierId, Failure> {
        let count = self.0.options().tiers.len();
        let found = u8::try_from(index).ok().filter(|index| usize::from(*index) < count).map(TierId);
        Ok(found.ok_or(Refusal::Index { what: "tier", index: index.into(), count: count as u64 })?)
    }

    pub(crate) fn mechanism(&self) -> u32 {
        match self.0.mechanism() {
            Mechanism::Exchange => tier_mechanism::TELPHER_TIER_EXCHANGE,
            Mechanism::MovePages => tier_mechanism::TELPHER_TIER_MOVE_PAGES,
            Mechanism::Remap => tier_mechanism::TELPHER_TIER_REMAP,
            _ => tier_mechanism::TELPHER_TIER_OTHER_WAY,
        }
    }

    pub(crate) fn info(&self, index: u32) -> Result<TierInfo, Failure> {
        let tier = self.tier(index)?;
        let (options, at) = (self.0.options(), usize::from(tier.0));
        let of_tier = &options.tiers[at];
        let mut name = [0; 32];
        // Truncated at a character boundary.
        let fits = |cut: &usize| of_tier.name.is_char_boundary(*cut);
        let cut = (0..name.len()).rev().find(fits).unwrap_or(0);
        name[..cut].copy_from_slice(&of_tier.name.as_bytes()[..cut]);
        Ok(TierInfo {
            name,
            size: of_tier.bytes,
            free_pages: self.0.free()[at],
            old_copies: self.0.shadows()[at],
            node: of_tier.node.map_or(-1, |node| i32::try_from(node).unwrap_or(i32::MAX)),
            home: (options.home == tier).into(),
            reserved: [0; 4],
        })
    }

    pub(crate) fn stats(&self) -> TierStats {
        let stats = self.0.stats();
        TierStats {
            moved: moved_of(stats.moved),
            not_copied: stats.not_copied,
            exchanges: stats.exchanges,
            dropped: stats.dropped,
            copied_back: stats.copied_back,
            fills: stats.fills,
            forks: stats.forks,
            copied_to_children: stats.copied_to_children,
            misreported: stats.misreported,
            returned_early: stats.returned_early,
            lost: stats.lost,
            moving_ns: nanos(stats.moving),
            copying_ns: nanos(stats.copying),
            reserved: [0; 4],
        }
    }
}

/// The C representation.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl TierManager {
    pub(crate) fn report(&self) -> Result<TierReport, Failure> {
        let report = self.0.report()?;
        let looking = report.sources.iter().map(|source| source.cost.cpu).sum::<Duration>() + report.deciding.cpu;
        let mut exported = TierReport {
            time_ns: nanos(report.time),
            promoted: report.promoted,
            demoted: report.demoted,
            stayed: report.left.all(),
            waiting: report.waiting as u64,
            looking_ns: nanos(looking),
            moving_ns: nanos(report.moving.cpu),
            resting: report.opinion.resting_until.is_some_and(|until| until > report.time).into(),
            failed: report.failed.is_some().into(),
            ..TierReport::default()
        };
        for (at, tier) in report.tiers.iter().enumerate().take(exported.pages.len()) {
            (exported.pages[at], exported.hot[at]) = (tier.pages, tier.hot);
        }
        Ok(exported)
    }
}

impl TierArena {
    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Its contents are always consistent.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discards the whole pages of a range of offsets.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), Failure> {
        let size = self.range.end - self.range.start;
        let end = offset.checked_add(len).filter(|end| *end <= size);
        let end = end.ok_or(Refusal::Outside { offset, len, size })?;
        let place = |offset| usize::try_from(offset).map_err(|_| Refusal::Outside { offset, len, size });
        match &mut *self.memory() {
            Memory::Private(arena) => Ok(arena.discard(place(offset)?..place(end)?)?),
            Memory::Shared(_) => {
                let why = "the memory of a shared arena cannot be discarded; it lives as long as the arena";
                Err(Failure::NotYet(libc::EOPNOTSUPP, why))
            }
        }
    }
}

/// Checks that a range is whole pages, at least one.
pub(crate) fn whole_pages(range: Range<u64>) -> Result<Range<u64>, Failure> {
    let whole = !range.is_empty() && range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE);
    let (start, len) = (range.start, range.end.saturating_sub(range.start));
    if whole { Ok(range) } else { Err(Refusal::Pages { address: start, len }.into()) }
}

fn moved_of(moved: Moved) -> TierMoved {
    TierMoved {
        pages: moved.pages,
        huge: moved.huge,
        already: moved.left.already,
        pinned: moved.left.pinned,
        unsupported: moved.left.unsupported,
        gone: moved.left.gone,
        no_room: moved.left.no_room,
        failed: moved.left.failed,
        held: moved.left.held,
        reserved: [0; 3],
    }
}
