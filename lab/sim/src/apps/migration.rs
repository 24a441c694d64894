//! The kernel moves pages (Baik et al.; `migrate_pages()`): isolate, unmap, copy, map, each call a number of pages together, copied by
//! the core page by page or by a device through dmaengine where they are many enough. And a program that goes the faster, the more of
//! its pages have been moved to fast memory.

use super::{Report, measure};
use crate::places::Place;
use crate::ps::Ps;
use crate::scenario::Measure;
use crate::work::{Lane, Library, Wait, Walk};
use crate::world::{Core, World};
use std::cell::Cell;
use std::rc::Rc;
use telpher_abi::{Descriptor, Opcode};

/// Pages that are moved, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migration {
    /// Pages in all.
    pub pages: u64,
    /// Bytes of each.
    pub page: u32,
    /// Pages of a call.
    pub together: u32,
    /// Node of the core that moves them.
    pub core: usize,
    /// Node they are on.
    pub from: usize,
    /// Node they come to.
    pub to: usize,
    /// What a page takes besides being copied: isolating, unmapping, flushing translations, mapping.
    pub besides: Ps,
    /// Has pages copied by a device.
    pub offload: Option<Offload>,
}

/// When and where a device copies pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offload {
    /// Calls of more pages than that.
    pub above: u32,
    /// The kernel's queue.
    pub lane: Lane,
}

/// Descriptors of one batch at most: what Linux configures a queue for if it is told to (`max_batch_size`).
const MOST_TOGETHER: usize = 1024;

impl Migration {
    /// Compaction of a node: pages of 4 KiB, a block of 512 in a call, copied by the core.
    ///
    /// Derived: what a page takes besides, from the share that copying has in migrating, 26.6 % (Linux, RFC "page migration batching
    /// and DMA offload"), with 0.5 us for copying one (LightDSA, random 4 KiB by one core). Assumed: a block in a call, for the unit of
    /// compaction is a block.
    #[must_use]
    pub const fn compacting() -> Self {
        Migration {
            pages: 1 << 14,
            page: 4096,
            together: 512,
            core: 0,
            from: 0,
            to: 0,
            besides: Ps::from_nanos(1380),
            offload: None,
        }
    }

    /// By a device, for calls of more than 32 pages (Baik et al.).
    #[must_use]
    pub const fn by(self, lane: Lane) -> Self {
        Migration { offload: Some(Offload { above: 32, lane }), ..self }
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let moved = self.spawn(world);
        let migration = *self;
        Box::new(move |_| migration.measures(&moved))
    }

    /// Adds the thread that moves them; what it tells.
    fn spawn(self, world: &mut World) -> Rc<Moved> {
        let moved = Rc::new(Moved::default());
        let tells = moved.clone();
        let (from, to) = (world.places.add(Place::on(self.from)), world.places.add(Place::on(self.to)));
        world.spawn(self.core, move |core| async move {
            while tells.pages.get() < self.pages {
                let pages = u64::from(self.together.max(1)).min(self.pages - tells.pages.get());
                core.busy(self.besides * pages).await;
                let begin = core.now();
                match self.offload {
                    Some(offload) if pages > offload.above.into() => {
                        let (given, written) = self.offload(&core, offload.lane, pages, from, to).await;
                        add(&tells.giving, given.since(begin));
                        add(&tells.device, written.since(given));
                        add(&tells.after, core.now().since(written));
                    }
                    _ => self.copy(&core, pages).await,
                }
                tells.call(&core, begin, pages);
            }
        });
        moved
    }

    /// The core copies pages, wherever they are.
    async fn copy(self, core: &Core, pages: u64) {
        let core = core.with_walk(Walk::Random);
        for _ in 0..pages {
            core.software(Opcode::MemoryMove, self.page.into(), Place::on(self.from), Place::on(self.to)).await;
        }
    }

    /// A device does: scatter lists and their mapping once a call, whatever it takes to tell the device of so many. When the device
    /// had all of it, and when its last record was written.
    async fn offload(self, core: &Core, lane: Lane, pages: u64, from: u64, to: u64) -> (Ps, Ps) {
        let copy = |page: u64| {
            let at = page * u64::from(self.page);
            World::descriptor(Opcode::MemoryMove, from + at, to + at, self.page)
        };
        let copies: Vec<Descriptor> = (0..pages).map(copy).collect();
        let (first, more) = (core.with_library(Library::Kernel), core.with_library(Library::Raw));
        let mut tickets = Vec::new();
        for (number, part) in copies.chunks(MOST_TOGETHER).enumerate() {
            tickets.push(if number == 0 { &first } else { &more }.submit_batch(lane, part).await);
        }
        let (given, mut written) = (core.now(), Ps::ZERO);
        for (number, ticket) in tickets.iter().enumerate() {
            if number == 0 { &first } else { &more }.wait(ticket, Wait::Poll).await;
            written = written.max(ticket.done_at().unwrap_or_default());
        }
        (given, written.max(given))
    }

    fn measures(&self, moved: &Moved) -> Vec<Measure> {
        let mut measures = moved.measures(self.page);
        if self.offload.is_some() {
            measures.extend([
                moved.of_a_call("giving away", moved.giving.get()),
                moved.of_a_call("device at work", moved.device.get()),
                moved.of_a_call("seeing and unmapping", moved.after.get()),
            ]);
        }
        measures
    }
}

/// How far a migration is, and where its time went.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) pages: Cell<u64>,
    calls: Cell<u64>,
    copying: Cell<Ps>,
    end: Cell<Ps>,
    /// Of the copying, by a device: until it has all of it, until the last record, until the core knows and has cleaned up.
    giving: Cell<Ps>,
    device: Cell<Ps>,
    after: Cell<Ps>,
}

fn add(to: &Cell<Ps>, time: Ps) {
    to.set(to.get() + time);
}

impl Moved {
    /// A call is over whose copying began then; what follows the copying is told by `ends`.
    pub(super) fn call(&self, core: &Core, copying: Ps, pages: u64) {
        add(&self.copying, core.now().since(copying));
        self.pages.set(self.pages.get() + pages);
        self.calls.set(self.calls.get() + 1);
        self.ends(core);
    }

    /// All that was begun is over.
    pub(super) fn ends(&self, core: &Core) {
        self.end.set(core.now());
    }

    #[allow(clippy::cast_precision_loss, reason = "for people")]
    fn of_a_call(&self, name: &str, time: Ps) -> Measure {
        measure(name, time.as_nanos_f64() / 1e3 / self.calls.get().max(1) as f64, "us")
    }

    /// What came of pages of so many bytes.
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub(super) fn measures(&self, page: u32) -> Vec<Measure> {
        let (took, copying) = (self.end.get(), self.copying.get());
        let bytes = self.pages.get() * u64::from(page);
        let share = |part: Ps, of: Ps| part.as_secs_f64() / of.as_secs_f64().max(1e-12);
        vec![
            measure("migration", took.as_nanos_f64() / 1e6, "ms"),
            self.of_a_call("a call", took),
            self.of_a_call("copies of a call", copying),
            measure("copying", share(copying, took) * 100.0, "%"),
            measure("moved", bytes as f64 / took.as_secs_f64().max(1e-12) / 1e9, "GB/s"),
        ]
    }
}

/// A program whose pages are moved from slow memory to fast while it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promotion {
    /// What it takes with all of them in fast memory.
    pub work: Ps,
    /// What it takes with all of them in slow memory, in per cent of that.
    pub slow_percent: u32,
    /// How its pages are moved; none are if there are 0.
    pub migration: Migration,
}

/// Steps of a program's work.
const STEPS: u64 = 4096;

impl Promotion {
    pub(super) fn start(&self, world: &mut World) -> Report {
        let moved = self.migration.spawn(world);
        let (promotion, end) = (*self, Rc::new(Cell::new(Ps::ZERO)));
        let (of, at_end) = (moved.clone(), end.clone());
        world.spawn(self.migration.core, move |core| async move {
            for _ in 0..STEPS {
                core.busy(promotion.step(of.pages.get())).await;
            }
            at_end.set(core.now());
        });
        Box::new(move |_| {
            let mut measures = vec![measure("execution", end.get().as_nanos_f64() / 1e6, "ms")];
            measures.extend(promotion.migration.measures(&moved));
            measures
        })
    }

    /// A step of the work when so many pages have been moved: accesses go to all pages alike.
    fn step(&self, moved: u64) -> Ps {
        let fast = Ps(self.work.0 / STEPS);
        let Some(pages) = std::num::NonZeroU64::new(self.migration.pages) else {
            return Ps(fast.0 * u64::from(self.slow_percent) / 100);
        };
        let more = u128::from(fast.0) * u128::from(self.slow_percent.saturating_sub(100)) / 100;
        let slow = u128::from(pages.get() - moved.min(pages.get()));
        // Cannot fail: no more than `more`, which is a part of a time.
        fast + Ps(u64::try_from(more * slow / u128::from(pages.get())).unwrap_or(u64::MAX))
    }
}
