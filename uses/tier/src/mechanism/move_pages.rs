//! Moves pages between NUMA nodes with `move_pages(2)`, for kernels without `UFFDIO_MOVE`.

use crate::config::{HeapOptions, MAX_TIERS, Mechanism, PAGE, TierId};
use crate::error::TierError;
use crate::heat::NO_TIER;
use crate::mechanism::{Backend, whole_pages};
use crate::page_map::RegionPart;
use crate::stats::{Moved, Stats, Unmoved};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use telpher_mem::{PageSize, RawPages};
use telpher_os::Nodes;

/// Tiers that are NUMA nodes.
#[derive(Debug)]
pub(crate) struct MovePages {
    options: HeapOptions,
    /// The node of each tier.
    nodes: Vec<u32>,
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
struct Account {
    /// Sorted by address.
    region_parts: Vec<RegionPart>,
    /// The number of ranges ever adopted.
    ids: u64,
    /// Pages on each tier at the last count, adjusted by later moves but not by the program's discards.
    live: [u64; MAX_TIERS],
    stats: Stats,
    /// The heap's owner wants all pages to stay where they are.
    holds: bool,
}

impl MovePages {
    /// Creates the tiers of these options.
    ///
    /// # Errors
    /// [`TierError`]: a tier is not a node, or not one to which pages can be moved.
    pub(crate) fn new(options: &HeapOptions) -> Result<MovePages, TierError> {
        let nodes: Option<Vec<u32>> = options.tiers.iter().map(|tier| tier.node).collect();
        let nodes = nodes.ok_or(TierError::Nodes)?;
        if BTreeSet::from_iter(&nodes).len() < nodes.len() {
            return Err(TierError::Nodes);
        }
        // Tries to move one page to each node. A busy page or a full node also shows that the node exists.
        let page = RawPages::new(4096, PageSize::Small)?;
        page.populate(page.start()..page.start() + PAGE)?;
        for &node in &nodes {
            let mut answers = [Ok(node)];
            let asked = Self::send(&[page.start()], node, &mut answers).and_then(|_| match answers[0] {
                Err(errno) if !is_passing(errno) => Err(errno.into()),
                _ => Ok(()),
            });
            asked.map_err(|source| TierError::Node { node, source })?;
        }
        Ok(MovePages { options: options.clone(), nodes, account: Mutex::default() })
    }

    fn account(&self) -> std::sync::MutexGuard<'_, Account> {
        // No change leaves the data inconsistent.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel to move pages to a node and returns its answers; true if it has stopped because the node has no
    /// memory.
    fn send(pages: &[u64], node: u32, answers: &mut [Result<u32, Errno>]) -> io::Result<bool> {
        match Nodes::move_pages(pages, node, answers) {
            Err(error) if error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => Ok(true),
            asked => asked.map(|()| false),
        }
    }

    fn tier_of(&self, node: u32) -> Option<usize> {
        self.nodes.iter().position(|&of_tier| of_tier == node)
    }

    /// Returns the present pages of a range and their nodes.
    fn look(range: Range<u64>) -> io::Result<Vec<(u64, u32)>> {
        let pages: Vec<u64> = range.step_by(4096).collect();
        let mut answers = vec![Err(Errno::NOENT); pages.len()];
        Nodes::of_pages(&pages, &mut answers)?;
        Ok(pages.into_iter().zip(answers).filter_map(|(page, answer)| Some((page, answer.ok()?))).collect())
    }

    /// Returns the parts of a range that are the heap's, each at most one batch long.
    fn parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let most = self.options.batch as u64 * PAGE;
        let account = self.account();
        let ours =
            account.region_parts.iter().map(|ours| ours.range.start.max(range.start)..ours.range.end.min(range.end));
        let split = |ours: Range<u64>| {
            let end = ours.end;
            ours.step_by(usize::try_from(most).expect("a batch")).map(move |start| start..(start + most).min(end))
        };
        ours.flat_map(split).collect()
    }

    fn count(&self, range: &Range<u64>) -> Result<[u64; MAX_TIERS], TierError> {
        let mut on = [0; MAX_TIERS];
        for part in self.parts(range) {
            for (_, node) in Self::look(part).map_err(|error| self.error(self.options.home, error))? {
                if let Some(tier) = self.tier_of(node) {
                    on[tier] += 1;
                }
            }
        }
        Ok(on)
    }

    fn error(&self, to: TierId, source: io::Error) -> TierError {
        TierError::Node { node: self.nodes[to.index()], source }
    }

    /// Returns how many more pages a tier takes.
    fn room(&self, to: TierId, wanted: u64) -> Result<u64, TierError> {
        if to == self.options.home {
            return Ok(wanted);
        }
        let most = self.options.tiers[to.index()].bytes / PAGE;
        if self.account().live[to.index()] + wanted > most {
            // The kernel does not report discards, so the pages are counted again.
            let live = self.count(&(0..u64::MAX))?;
            self.account().live = live;
        }
        Ok(wanted.min(most.saturating_sub(self.account().live[to.index()])))
    }

    /// Moves the present pages of a part.
    fn migrate_part(&self, part: Range<u64>, to: TierId) -> Result<Moved, TierError> {
        let (mut moved, node) = (Moved::default(), self.nodes[to.index()]);
        let mut found = Self::look(part).map_err(|error| self.error(to, error))?;
        let there = found.len();
        found.retain(|&(_, on)| on != node);
        moved.left.already = (there - found.len()) as u64;
        if self.account().holds {
            moved.left.held = found.len() as u64;
            return Ok(moved);
        }
        let room = self.room(to, found.len() as u64)?;
        moved.left.no_room = found.len() as u64 - room;
        found.truncate(usize::try_from(room).expect("no more than there are"));
        if found.is_empty() {
            return Ok(moved);
        }
        let pages: Vec<u64> = found.iter().map(|&(page, _)| page).collect();
        let mut answers = vec![Err(Errno::AGAIN); pages.len()];
        let mut is_full = Self::send(&pages, node, &mut answers).map_err(|error| self.error(to, error))?;
        // The kernel stops at the first page that it cannot move. For the other parts of a huge page it reports "busy",
        // because the first part takes them along.
        Nodes::of_pages(&pages, &mut answers).map_err(|error| self.error(to, error))?;
        let mut live = [0_i64; MAX_TIERS];
        for (&(page, before), answer) in found.iter().zip(&mut answers) {
            if *answer == Ok(before) {
                if !is_full {
                    // Tries the page alone, to learn the reason.
                    let alone = std::slice::from_mut(answer);
                    is_full = Self::send(&[page], node, alone).map_err(|error| self.error(to, error))?;
                }
                if is_full {
                    *answer = Err(Errno::NOMEM);
                }
            }
            match *answer {
                Ok(on) if on == node => {
                    moved.pages += 1;
                    live[to.index()] += 1;
                    self.tier_of(before).into_iter().for_each(|tier| live[tier] -= 1);
                }
                other => *stayed(&mut moved.left, other) += 1,
            }
        }
        let mut account = self.account();
        account.stats.exchanges += 1;
        for (live, by) in account.live.iter_mut().zip(live) {
            *live = live.saturating_add_signed(by);
        }
        Ok(moved)
    }
}

/// Returns whether the answer may differ for the next page, or later.
fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::BUSY | Errno::AGAIN | Errno::NOMEM)
}

/// Returns the counter for a page that stayed, by the kernel's answer. Source: move_pages(2).
fn stayed(left: &mut Unmoved, answer: Result<u32, Errno>) -> &mut u64 {
    match answer {
        // The page is pinned, or shared with another process.
        Err(Errno::BUSY | Errno::ACCESS | Errno::AGAIN) => &mut left.pinned,
        Err(Errno::NOENT | Errno::FAULT) => &mut left.gone,
        Err(Errno::NOMEM) => &mut left.no_room,
        Err(_) => &mut left.unsupported,
        // The page is on a third node, because something else has moved it.
        Ok(_) => &mut left.failed,
    }
}

impl Backend for MovePages {
    fn mechanism(&self) -> Mechanism {
        Mechanism::MovePages
    }

    fn hold(&self, holds: bool) {
        self.account().holds = holds;
    }

    fn adopt(&self, range: Range<u64>, _room: Option<Range<u64>>) -> Result<(), TierError> {
        let mut account = self.account();
        if account.region_parts.iter().any(|ours| ours.range.start < range.end && range.start < ours.range.end) {
            return Err(TierError::Known { start: range.start, end: range.end });
        }
        account.ids += 1;
        let region = account.ids;
        let at = account.region_parts.partition_point(|ours| ours.range.start < range.start);
        account.region_parts.insert(at, RegionPart { range, region, first: 0 });
        Ok(())
    }

    fn release(&self, range: &Range<u64>) {
        let mut account = self.account();
        let rest = std::mem::take(&mut account.region_parts).into_iter().flat_map(|ours| {
            let before = ours.range.start..ours.range.end.min(range.start);
            let behind = ours.range.start.max(range.end)..ours.range.end;
            [before, behind].into_iter().filter(|rest| rest.start < rest.end).map(move |rest| {
                let skipped = usize::try_from((rest.start - ours.range.start) / PAGE).expect("pages of this process");
                RegionPart { range: rest, region: ours.region, first: ours.first + skipped }
            })
        });
        account.region_parts = rest.collect();
    }

    fn region_parts(&self) -> Vec<RegionPart> {
        self.account().region_parts.clone()
    }

    fn tiers(&self, first: u64, tiers: &mut [u8]) -> io::Result<()> {
        tiers.fill(NO_TIER);
        for part in self.parts(&(first..first + tiers.len() as u64 * PAGE)) {
            for (page, node) in Self::look(part)? {
                let index = usize::try_from((page - first) / PAGE).expect("within `tiers`");
                tiers[index] = self.tier_of(node).map_or(NO_TIER, |tier| u8::try_from(tier).expect("at most 8"));
            }
        }
        Ok(())
    }

    fn migrate(&self, range: Range<u64>, to: TierId) -> Result<Moved, TierError> {
        let (mut moved, mut moving) = (Moved::default(), Duration::ZERO);
        for part in self.parts(&whole_pages(&range)) {
            let start = Instant::now();
            moved += self.migrate_part(part, to)?;
            moving += start.elapsed();
        }
        let mut account = self.account();
        account.stats.moved += moved;
        account.stats.moving += moving;
        Ok(moved)
    }

    fn residency(&self, range: Range<u64>) -> Result<Vec<u64>, TierError> {
        Ok(self.count(&whole_pages(&range))?[..self.nodes.len()].to_vec())
    }

    fn stats(&self) -> Stats {
        self.account().stats
    }

    fn free(&self) -> Vec<u64> {
        vec![0; self.nodes.len()]
    }

    fn shadows(&self) -> Vec<u64> {
        vec![0; self.nodes.len()]
    }
}
