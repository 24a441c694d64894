//! The cache: searches its tiers, and starts copies of missing blocks.

use crate::config::{Config, Placement, PlacementRequest, TierConfig};
use crate::entry::Entry;
use crate::error::{AccessError, ConfigError};
use crate::handle::Handle;
use crate::index::Span;
use crate::prefetch::Prefetch;
use crate::reads::ActiveReads;
use crate::schedule::{Priority, Schedule};
use crate::shared_copy::Turn;
use crate::source::Source;
use crate::stats::{Counters, Stats};
use crate::tier::{Shared, Tier};
use std::fmt::{self, Debug};
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;
use telpher_mover::Mover;
use telpher_os::Nodes;

/// Copies of blocks in fast memory, made by a device and lent to many threads. Cloning is cheap and yields the same
/// cache.
///
/// ```
/// use std::sync::Arc;
/// use telpher_cache::{Cache, Config};
/// use telpher_mem::{Pool, PoolOptions};
/// use telpher_mover::Mover;
///
/// let fast = Pool::new(PoolOptions::new(1 << 20))?;
/// let cache = Cache::new(Mover::cpu(), Config::new([fast]))?;
///
/// let column: Arc<[u8]> = vec![7; 100_000].into();
/// let block = cache.access(&column, 0..65_536)?;      // at once: the copy begins
/// assert_eq!(block.wait()[..3], [7, 7, 7]);           // or block.location() without waiting
/// let part = cache.access(&column, 100..200)?;        // of the same copy
/// assert!(part.location().is_fast());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # On drop
///
/// Entries in use stay as long as their handles.
pub struct Cache<S: Source>(Arc<Inner<S>>);

struct Inner<S: Source> {
    tiers: Box<[Arc<Tier<S>>]>,
    shared: Arc<Shared<S>>,
    place: ResolvedPlacement,
    nodes: Nodes,
}

/// A [`Placement`] with its tiers resolved.
enum ResolvedPlacement {
    Fixed(usize),
    Near(Box<[usize]>),
    Interleaved(u64),
    Chosen(Arc<dyn Fn(&PlacementRequest) -> usize + Send + Sync>),
}

impl<S: Source> Cache<S> {
    /// Creates a cache whose copies are made by this mover.
    ///
    /// # Errors
    /// [`ConfigError`] if there is no tier, or a policy names a missing one.
    pub fn new(mover: Mover, config: Config) -> Result<Self, ConfigError> {
        let tiers = config.tiers.len();
        if tiers == 0 {
            return Err(ConfigError::NoTier);
        }
        let nodes = Nodes::of_this_machine();
        let place = match config.placement {
            Placement::Fixed(tier) if tier >= tiers => return Err(ConfigError::NoSuchTier { tier, tiers }),
            Placement::Fixed(tier) => ResolvedPlacement::Fixed(tier),
            Placement::Interleaved { bytes } => ResolvedPlacement::Interleaved(bytes.max(1)),
            Placement::Chosen(choose) => ResolvedPlacement::Chosen(choose),
            Placement::Near if tiers == 1 => ResolvedPlacement::Fixed(0),
            Placement::Near => ResolvedPlacement::Near(nearest(&config.tiers, &nodes)),
        };
        let (schedule, counters) = (Schedule::new(config.in_flight, tiers), Counters::new());
        let shared =
            Arc::new(Shared { mover, counters, schedule, reads: ActiveReads::new(), eviction: config.eviction });
        let tiers = config.tiers.into_iter().enumerate();
        let tiers = tiers.map(|(number, tier)| Tier::new(number, tier.pool, &shared)).collect();
        Ok(Cache(Arc::new(Inner { tiers, shared, place, nodes })))
    }

    /// Returns the block of `range` of a source. If an entry contains all of it, the handle refers to that entry,
    /// whether its copy is complete or in flight. Otherwise a new entry is created; its copy begins at once, or when
    /// fewer copies are in flight ([`Config::in_flight`]). Never waits for a copy; a block that is too short for the
    /// mover's devices is copied before this returns.
    ///
    /// # Errors
    /// [`AccessError`] if the range is empty or exceeds the source.
    #[inline]
    pub fn access(&self, source: &S, range: Range<usize>) -> Result<Handle<S>, AccessError> {
        let span = span(source, range)?;
        let tier = self.tier_for(span);
        Ok(match tier.find(span).or_else(|| self.elsewhere(span, tier)) {
            Some(entry) => self.hit(entry, span),
            None => self.miss(source, span, tier),
        })
    }

    /// Like [`access`](Cache::access), in a given tier, whatever the placement policy.
    ///
    /// # Errors
    /// As [`access`](Cache::access), and if there is no such tier.
    pub fn access_in(&self, tier: usize, source: &S, range: Range<usize>) -> Result<Handle<S>, AccessError> {
        let span = span(source, range)?;
        let tiers = &self.0.tiers;
        let tier = tiers.get(tier).ok_or(AccessError::NoSuchTier { tier, tiers: tiers.len() })?;
        Ok(match tier.find(span) {
            Some(entry) => self.hit(entry, span),
            None => self.miss(source, span, tier),
        })
    }

    /// Returns the block if an entry contains it; otherwise copies nothing. This is the thesis' *weak access* (Fürst,
    /// §4.1.4).
    ///
    /// # Errors
    /// As [`access`](Cache::access).
    pub fn peek(&self, source: &S, range: Range<usize>) -> Result<Option<Handle<S>>, AccessError> {
        let span = span(source, range)?;
        let counters = &self.0.shared.counters;
        let tier = self.tier_for(span);
        let found = tier.find(span).or_else(|| self.elsewhere(span, tier));
        match found {
            Some(_) => counters.one(Stats::AT.hits),
            None => {
                counters.one(Stats::AT.misses);
                counters.one(Stats::AT.weak_misses);
            }
        }
        Ok(found.map(|entry| Handle::new(entry, span)))
    }

    /// Announces that a block will be accessed. Its copy begins when few enough are in flight, the most urgent first,
    /// and when there is memory without evicting blocks that are in use, or prefetched and not used yet. Until then,
    /// [`drive`](Cache::drive), waits and further prefetches check whether it can begin.
    ///
    /// # Errors
    /// As [`access`](Cache::access).
    pub fn prefetch(&self, source: &S, range: Range<usize>, priority: Priority) -> Result<Prefetch<S>, AccessError> {
        let span = span(source, range)?;
        let tier = self.tier_for(span);
        let shared = &self.0.shared;
        shared.counters.one(Stats::AT.prefetches);
        // Not `find`, which would count as a use.
        let there = tier
            .look(span)
            .or_else(|| self.elsewhere(span, tier))
            .map_or_else(|| tier.insert(Entry::wanted(source, span, tier, Some(priority)), false), Err);
        let entry = match there {
            Ok(new) => {
                shared.schedule.ahead(priority, &new);
                new
            }
            Err(there) => {
                if there.raise(priority) {
                    shared.schedule.ahead(priority, &there);
                }
                there
            }
        };
        Ok(Prefetch::new(self.clone(), &entry))
    }

    #[inline]
    fn hit(&self, entry: Arc<Entry<S>>, span: Span) -> Handle<S> {
        self.0.shared.counters.one(Stats::AT.hits);
        // Prefetched and not begun: an access goes before prefetches.
        if entry.demand() {
            self.0.shared.schedule.demand(&entry);
        }
        Handle::new(entry, span)
    }

    /// Kept out of the code for hits.
    #[cold]
    #[inline(never)]
    fn miss(&self, source: &S, span: Span, tier: &Arc<Tier<S>>) -> Handle<S> {
        let shared = &self.0.shared;
        match tier.insert(Entry::wanted(source, span, tier, None), true) {
            Ok(entry) => {
                shared.counters.one(Stats::AT.misses);
                shared.schedule.demand(&entry);
                Handle::new(entry, span)
            }
            Err(there) => self.hit(there, span),
        }
    }

    /// Returns an entry that contains a block which would be placed in another tier: a part of a block may begin in
    /// another stripe than the block.
    #[cold]
    fn elsewhere(&self, span: Span, but: &Arc<Tier<S>>) -> Option<Arc<Entry<S>>> {
        let ResolvedPlacement::Interleaved(_) = self.0.place else { return None };
        self.0.tiers.iter().filter(|tier| !Arc::ptr_eq(tier, but)).find_map(|tier| tier.find(span))
    }

    #[inline]
    fn tier_for(&self, span: Span) -> &Arc<Tier<S>> {
        let tiers = &self.0.tiers;
        let tier = match &self.0.place {
            ResolvedPlacement::Fixed(tier) => *tier,
            ResolvedPlacement::Interleaved(bytes) => {
                usize::try_from(span.start / bytes % tiers.len() as u64).unwrap_or(0)
            }
            ResolvedPlacement::Near(tier_of) => {
                let node = self.0.nodes.of_this_thread().and_then(|node| usize::try_from(node).ok());
                node.and_then(|node| tier_of.get(node)).copied().unwrap_or(0)
            }
            ResolvedPlacement::Chosen(choose) => {
                let asked =
                    PlacementRequest { address: span.start, len: span.len, node: self.0.nodes.of_this_thread() };
                choose(&asked).min(tiers.len() - 1)
            }
        };
        &tiers[tier]
    }

    /// Returns whether a copy of the block would be on another NUMA node than the block itself; otherwise a copy gains
    /// nothing. Returns none if that is unknown: the tier belongs to a foreign allocator, or a page is not present yet.
    /// Costs two system calls if the machine has several nodes, and none otherwise.
    ///
    /// # Errors
    /// As [`access`](Cache::access).
    pub fn is_apart(&self, source: &S, range: Range<usize>) -> Result<Option<bool>, AccessError> {
        let span = span(source, range)?;
        let tier = self.tier_for(span);
        let node = |address| self.0.nodes.of_page(address);
        Ok(tier.pool().address().and_then(node).zip(node(span.start)).map(|(tier, block)| tier != block))
    }

    /// Reports that bytes of a source have changed, or will: entries with any of them are removed, and their handles
    /// become [stale](Handle::is_stale). Returns the number of entries.
    ///
    /// # Errors
    /// As [`access`](Cache::access).
    pub fn invalidate(&self, source: &S, range: Range<usize>) -> Result<usize, AccessError> {
        Ok(self.forget(span(source, range)?).len())
    }

    /// Like [`invalidate`](Cache::invalidate), for bytes that will be gone: when it returns, nothing reads them for the
    /// cache any more. Copies that have not begun are cancelled. Copies in flight are waited for, including dropped
    /// ones that the mover still has. Needed for sources that are lent, not for those that own their bytes. The mover
    /// gives up a device that does not answer ([`Policy::limit`](telpher_mover::Policy::limit)).
    ///
    /// # Errors
    /// As [`access`](Cache::access).
    pub fn withdraw(&self, source: &S, range: Range<usize>) -> Result<usize, AccessError> {
        let span = span(source, range)?;
        let mut entries = self.forget(span);
        let gone = entries.len();
        entries.extend(self.0.tiers.iter().flat_map(|tier| tier.outside(span)));
        for entry in entries {
            self.0.shared.mover.wait(|| match entry.wind_up() {
                Turn::Done(_) => Poll::Ready(()),
                Turn::NotYet | Turn::Another => Poll::Pending,
            });
        }
        self.0.shared.schedule.drive();
        // Copies whose handles are all dropped belong to the mover and continue. No other copy can begin, because all
        // entries of these bytes were ended.
        let (mover, reads) = (&self.0.shared.mover, &self.0.shared.reads);
        mover.wait(|| {
            if !reads.any(|read| read.overlaps(span)) {
                return Poll::Ready(());
            }
            mover.drive();
            Poll::Pending
        });
        Ok(gone)
    }

    /// Removes and returns the entries that had any of these bytes.
    fn forget(&self, span: Span) -> Vec<Arc<Entry<S>>> {
        let gone: Vec<_> = self.0.tiers.iter().flat_map(|tier| tier.invalidate(span)).collect();
        self.0.shared.counters.add(Stats::AT.invalidations, gone.len() as u64);
        gone
    }

    /// Removes the unused entries; returns how many.
    pub fn flush(&self) -> usize {
        self.0.tiers.iter().map(|tier| tier.clear(false)).sum()
    }

    /// Removes all entries; returns how many. Handles keep theirs.
    pub fn clear(&self) -> usize {
        self.0.tiers.iter().map(|tier| tier.clear(true)).sum()
    }

    /// Starts copies that may begin, and drives executors without a thread. A program that only prefetches and checks
    /// calls it now and then; waiting does the same.
    pub fn drive(&self) {
        self.0.shared.mover.drive();
        self.0.shared.schedule.drive();
    }

    /// Returns what it has done and contains.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (in_flight, waiting) = self.0.shared.schedule.counts();
        Stats {
            entries: self.0.tiers.iter().map(|tier| tier.len() as u64).sum(),
            in_flight: in_flight as u64,
            waiting: waiting as u64,
            bytes: self.0.tiers.iter().map(|tier| tier.pool().lent() as u64).sum(),
            ..self.0.shared.counters.read()
        }
    }

    /// Returns the mover that makes its copies.
    #[must_use]
    pub fn mover(&self) -> &Mover {
        &self.0.shared.mover
    }

    /// Returns the machine's nodes at the time when the cache was created.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.0.nodes
    }

    pub(crate) fn cancelled(&self) {
        self.0.shared.counters.one(Stats::AT.cancelled);
    }
}

/// Returns for each node the nearest tier, the first of equals; the first tier if none has a node.
fn nearest(tiers: &[TierConfig], nodes: &Nodes) -> Box<[usize]> {
    let near: Vec<(usize, u32)> = tiers.iter().enumerate().filter_map(|(at, tier)| Some((at, tier.near?))).collect();
    let nearest = |from| near.iter().min_by_key(|(_, to)| nodes.distance(from, *to)).map_or(0, |(at, _)| *at);
    (0..nodes.count()).map(nearest).collect()
}

/// Returns the addresses of a range, if it is inside the source.
#[inline]
fn span<S: Source>(source: &S, range: Range<usize>) -> Result<Span, AccessError> {
    let len = source.len();
    if range.start.max(range.end) > len {
        return Err(AccessError::Outside { range, len });
    }
    if range.start >= range.end {
        return Err(AccessError::Empty);
    }
    // Cannot overflow: a source is in memory, and the range is inside it.
    Ok(Span { start: source.address() + range.start as u64, len: (range.end - range.start) as u64 })
}

impl<S: Source> Clone for Cache<S> {
    fn clone(&self) -> Self {
        Cache(Arc::clone(&self.0))
    }
}

impl<S: Source> Debug for Cache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl<S: Source> Drop for Inner<S> {
    fn drop(&mut self) {
        // Copies in flight and waiting ones refer to their tier, which refers to them.
        self.shared.schedule.clear();
        for tier in &self.tiers {
            tier.clear(true);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use telpher_mem::{PageSize, Pool, PoolOptions, Region};

    /// Returns the nodes of this machine that have memory.
    fn nodes_with_memory() -> Vec<u32> {
        let nodes = Nodes::of_this_machine();
        (0..nodes.count())
            .filter(|&node| Pool::new(PoolOptions { node: Some(node), ..PoolOptions::new(4096) }).is_ok())
            .collect()
    }

    #[test]
    fn the_nearest_tier_is_the_least_distant_and_the_first_of_equals() {
        let directory = std::env::temp_dir().join(format!("telpher-cache-nodes-{}", std::process::id()));
        // Two nodes with cores and two with memory; nodes 2 and 3 are equally far from 0.
        for (node, distances) in ["10 21 13 13", "21 10 23 14", "13 23 10 23", "13 14 23 10"].iter().enumerate() {
            let node = directory.join(format!("node{node}"));
            std::fs::create_dir_all(&node).unwrap();
            std::fs::write(node.join("distance"), distances).unwrap();
        }
        std::fs::write(directory.join("online"), "0-3").unwrap();
        let nodes = Nodes::read(&directory);
        std::fs::remove_dir_all(&directory).unwrap();
        let tier = |near| TierConfig { pool: Pool::new(PoolOptions::new(64)).unwrap(), near };
        let of = |near: &[Option<u32>]| nearest(&near.iter().copied().map(tier).collect::<Vec<_>>(), &nodes).to_vec();
        assert_eq!(of(&[None, Some(2), Some(3)]), [1, 2, 1, 2]);
        assert_eq!(of(&[Some(1), Some(0)]), [1, 0, 1, 1]);
        assert_eq!(of(&[None, None]), [0; 4], "no tier has a node: the first tier");
        assert_eq!(of(&[None, Some(9)]), [1; 4], "the only tier with a node");
    }

    #[test]
    fn is_apart_is_true_if_the_copy_would_be_on_another_node() {
        let nodes = nodes_with_memory();
        for &from in &nodes {
            let mut source = Region::new(8192, PageSize::Small).unwrap();
            source.bind(from).unwrap();
            source.populate().unwrap();
            let source = Arc::new(source);
            for &to in &nodes {
                let pool = Pool::new(PoolOptions { node: Some(to), ..PoolOptions::new(8192) }).unwrap();
                let cache = Cache::new(Mover::cpu(), Config::new([pool])).unwrap();
                assert_eq!(cache.is_apart(&source, 4096..8192), Ok(Some(from != to)), "{from} to {to}");
                assert!(cache.is_apart(&source, 0..8193).is_err());
            }
        }
    }
}
