//! A program moves its pages without the kernel's migration, as in `telpher-tier`. One system call takes them out of
//! the program into a pool, they are copied by the program's addresses to free pages of the other tier, and another
//! call brings those in.
//!
//! ```text
//! UFFDIO_MOVE out ─► copy, one batch a device ─► UFFDIO_MOVE in        an access to a page waits meanwhile
//! ```

use super::migration::Moved;
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::workload::{AccessPattern, Library, QueueId, Wait};
use crate::world::{Core, World};
use std::rc::Rc;
use telpher_abi::{Descriptor, Opcode};

/// Pages that are exchanged with those of a pool, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// Total number of pages.
    pub pages: u64,
    /// Bytes of each page: 4 KiB, or 2 MiB.
    pub page: u32,
    /// Pages moved together.
    pub together: u32,
    /// True if the pages are adjacent, and also those that they are exchanged with.
    pub neighbours: bool,
    /// Node of the core that moves them.
    pub core: usize,
    /// Node of the pages before.
    pub from: usize,
    /// Node of the pages afterwards.
    pub to: usize,
    /// Queues that copy equal parts; if empty, the core copies.
    pub queues: Vec<QueueId>,
}

/// Most bytes of a descriptor: a huge page. Source: Linux's default configuration of a queue (`max_transfer_size`).
const MOST_BYTES: u64 = 2 << 20;
/// Most descriptors of a batch, as in the simulated kernel migration.
const MOST_TOGETHER: usize = 1024;

/// Time to take out and bring in a number of pages together, in nanoseconds, without the copy: both system calls and
/// bookkeeping.
///
/// Source: measured with the prototype of `telpher-tier` on an AMD EPYC, Linux 6.18, an idle process whose other
/// threads do not run: 2.27, 0.54, 0.32, 0.20 and 0.15 us a page. `telpher bench tier` measures the same of the crate.
const NEIGHBOURS: &[(u64, u64)] = &[(1, 2_270), (8, 4_320), (32, 10_240), (128, 25_600), (512, 76_800)];
/// The same for pages that are not adjacent, each with its own system calls: 2.27, 2.20 and 2.18 us a page. Source: as
/// above.
const APART: &[(u64, u64)] = &[(1, 2_270), (32, 70_400), (512, 1_116_160)];
/// The same for huge pages: 4.4 us each. Source: as above, one at a time; ASSUMED for more.
const HUGE: &[(u64, u64)] = &[(1, 4_400)];

/// Interpolates a table linearly; beyond its last point in proportion.
fn besides(table: &[(u64, u64)], pages: u64) -> Picos {
    let mut before = (0, 0);
    for &(of, nanos) in table {
        if pages <= of {
            let (more, wide) = (nanos - before.1, of - before.0);
            return Picos::from_nanos(before.1) + Picos(more * 1000 * (pages - before.0) / wide);
        }
        before = (of, nanos);
    }
    Picos(before.1 * 1000 * pages / before.0.max(1))
}

impl Exchange {
    /// Adjacent small pages move from the other socket to this one; the core copies them.
    #[must_use]
    pub fn promoting(together: u32) -> Self {
        Exchange { pages: 1 << 13, page: 4096, together, neighbours: true, core: 0, from: 1, to: 0, queues: Vec::new() }
    }

    /// The same for huge pages.
    #[must_use]
    pub fn promoting_huge(together: u32) -> Self {
        Exchange { pages: 64, page: 2 << 20, ..Exchange::promoting(together) }
    }

    /// Copied by devices.
    #[must_use]
    pub fn by(self, queues: Vec<QueueId>) -> Self {
        Exchange { queues, ..self }
    }

    /// Time to take out and bring in `pages` pages, without the copy.
    #[must_use]
    pub fn besides(&self, pages: u64) -> Picos {
        let table = match (self.page > 4096, self.neighbours) {
            (true, _) => HUGE,
            (false, true) => NEIGHBOURS,
            (false, false) => APART,
        };
        besides(table, pages)
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let (moved, app) = (Rc::new(Moved::default()), Rc::new(self.clone()));
        let place = |node| BufferPlacement { page: self.page.into(), ..BufferPlacement::on(node) };
        let (from, to) = (world.places.add(place(self.from)), world.places.add(place(self.to)));
        let (progress, does) = (moved.clone(), app.clone());
        world.spawn(self.core, move |core| async move {
            while progress.pages.get() < does.pages {
                let pages = u64::from(does.together.max(1)).min(does.pages - progress.pages.get());
                let besides = does.besides(pages);
                let out = Picos(besides.0 / 2);
                core.busy(out).await;
                let begin = core.now();
                does.copy(&core, pages, from, to).await;
                progress.call(&core, begin, pages);
                core.busy(besides - out).await;
                progress.ends(&core);
            }
        });
        Box::new(move |_| {
            let mut measures = moved.measures(app.page);
            let total = measures.iter().find(|it| it.name == "migration").map_or(0.0, |it| it.value * 1e3);
            #[allow(clippy::cast_precision_loss, reason = "for display")]
            measures.push(measure("a page", total / moved.pages.get().max(1) as f64, "us"));
            measures
        })
    }

    /// Runs of contiguous bytes of `pages` pages.
    fn runs(&self, pages: u64) -> impl Iterator<Item = (u64, u64)> {
        let page = u64::from(self.page);
        let (runs, bytes) = if self.neighbours { (1, pages * page) } else { (pages, page) };
        // Pages apart: every second page.
        (0..runs).map(move |run| (run * 2 * page, bytes))
    }

    pub(super) async fn copy(&self, core: &Core, pages: u64, from: u64, to: u64) {
        if self.queues.is_empty() {
            let walk = if self.neighbours { AccessPattern::Sequential } else { AccessPattern::Random };
            let core = core.with_walk(walk);
            let place = |node| BufferPlacement { page: self.page.into(), ..BufferPlacement::on(node) };
            for (_, bytes) in self.runs(pages) {
                core.software(Opcode::MemoryMove, bytes, place(self.from), place(self.to)).await;
            }
            return;
        }
        let core = core.with_library(Library::Lean);
        let mut tickets = Vec::new();
        for (queue, part) in self.queues.iter().zip(self.parts(pages, from, to)) {
            for list in part.chunks(MOST_TOGETHER) {
                tickets.push(core.submit_batch(*queue, list).await);
            }
        }
        for ticket in &tickets {
            core.wait(ticket, Wait::Poll).await;
        }
    }

    /// The descriptors of each queue: runs are cut so that all queues have as many bytes, within 4 KiB.
    fn parts(&self, pages: u64, from: u64, to: u64) -> Vec<Vec<Descriptor>> {
        let all = pages * u64::from(self.page);
        let each = all.div_ceil(self.queues.len() as u64).next_multiple_of(4096);
        let mut parts = vec![Vec::new(); self.queues.len()];
        let mut done = 0;
        for (begin, bytes) in self.runs(pages) {
            let mut at = 0;
            while at < bytes {
                let (part, room) = (done / each, each - done % each);
                let piece = (bytes - at).min(room).min(MOST_BYTES);
                // Cannot fail: at most a huge page, and at most as many parts as queues.
                let (size, part) = (u32::try_from(piece).unwrap_or(0), usize::try_from(part).unwrap_or(0));
                let place = begin + at;
                parts[part].push(World::descriptor(Opcode::MemoryMove, from + place, to + place, size));
                (at, done) = (at + piece, done + piece);
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_interpolated_between_measured_points() {
        let of = |pages| Exchange::promoting(1).besides(pages).as_nanos_f64();
        for (pages, nanos) in NEIGHBOURS {
            assert_eq!(of(*pages), *nanos as f64, "{pages} pages");
        }
        assert_eq!((of(20), of(1024)), ((4_320.0 + 10_240.0) / 2.0, 153_600.0));
        assert!((1..2000).all(|pages| of(pages) < of(pages + 1)));
        let huge = Exchange::promoting_huge(1);
        assert_eq!((huge.besides(1), huge.besides(4)), (Picos::from_nanos(4_400), Picos::from_nanos(17_600)));
    }

    #[test]
    fn every_byte_is_copied_once_and_queues_have_equal_parts() {
        let queue = |device| QueueId { device, wq: 0, shared: false };
        for (page, neighbours) in [(4096, true), (4096, false), (2 << 20, true)] {
            for (devices, pages) in [(1, 1), (1, 512), (2, 3), (3, 512), (4, 32), (4, 1)] {
                let app = Exchange { page, neighbours, ..Exchange::promoting(1) }.by((0..devices).map(queue).collect());
                let parts = app.parts(pages, 0, 0);
                let mut covered: Vec<(u64, u64)> =
                    parts.iter().flatten().map(|it| (it.src(), it.src() + u64::from(it.size()))).collect();
                covered.sort_unstable();
                let bytes: u64 = covered.iter().map(|it| it.1 - it.0).sum();
                assert_eq!(bytes, pages * u64::from(page));
                assert!(covered.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{covered:?}");
                let of = |part: &Vec<Descriptor>| part.iter().map(|it| u64::from(it.size())).sum::<u64>();
                let most = parts.iter().map(of).max().unwrap();
                assert!(most <= (bytes / u64::from(devices)).next_multiple_of(4096) + 4096, "{most} of {bytes}");
            }
        }
    }
}
