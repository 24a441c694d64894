//! Page migration by the kernel (Baik et al.; `migrate_pages()`). Each call isolates, unmaps, copies and maps a number
//! of pages; the core copies page by page, or a device through dmaengine if there are enough. Also a program that runs
//! faster the more of its pages have moved to fast memory.

use super::{Report, measure};
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::scenario::Measure;
use crate::workload::{AccessPattern, Library, QueueId, Wait};
use crate::world::{Core, World};
use std::cell::Cell;
use std::rc::Rc;
use telpher_abi::{Descriptor, Opcode};

/// Pages that are moved, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migration {
    /// Total number of pages.
    pub pages: u64,
    /// Bytes of each page.
    pub page: u32,
    /// Pages of a call.
    pub together: u32,
    /// Node of the core that moves them.
    pub core: usize,
    /// Node of the pages before.
    pub from: usize,
    /// Node of the pages afterwards.
    pub to: usize,
    /// Time of a page besides its copy: isolating, unmapping, flushing translations, mapping.
    pub besides: Picos,
    /// Lets a device copy pages.
    pub offload: Option<MigrationOffload>,
}

/// When a device copies pages, and which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MigrationOffload {
    /// Calls with more pages than this use the device.
    pub above: u32,
    /// The kernel's queue.
    pub queue: QueueId,
}

/// Most descriptors of a batch: what Linux configures for a queue on request (`max_batch_size`).
const MOST_TOGETHER: usize = 1024;

impl Migration {
    /// Compaction of a node: pages of 4 KiB, a block of 512 in a call, copied by the core.
    ///
    /// Derived: the time of a page besides its copy, from copying's share of migrating, 26.6 % (Linux, RFC "page
    /// migration batching and DMA offload"), with 0.5 us for copying one (LightDSA, random 4 KiB by one core). Assumed:
    /// a block in a call, because compaction works by blocks.
    #[must_use]
    pub const fn compacting() -> Self {
        Migration {
            pages: 1 << 14,
            page: 4096,
            together: 512,
            core: 0,
            from: 0,
            to: 0,
            besides: Picos::from_nanos(1380),
            offload: None,
        }
    }

    /// By a device, for calls of more than 32 pages (Baik et al.).
    #[must_use]
    pub const fn by(self, queue: QueueId) -> Self {
        Migration { offload: Some(MigrationOffload { above: 32, queue }), ..self }
    }

    pub(super) fn start(&self, world: &mut World) -> Report {
        let moved = self.spawn(world);
        let migration = *self;
        Box::new(move |_| migration.measures(&moved))
    }

    /// Adds the thread that moves them; returns its progress.
    fn spawn(self, world: &mut World) -> Rc<Moved> {
        let moved = Rc::new(Moved::default());
        let progress = moved.clone();
        let (from, to) =
            (world.places.add(BufferPlacement::on(self.from)), world.places.add(BufferPlacement::on(self.to)));
        world.spawn(self.core, move |core| async move {
            while progress.pages.get() < self.pages {
                let pages = u64::from(self.together.max(1)).min(self.pages - progress.pages.get());
                core.busy(self.besides * pages).await;
                let begin = core.now();
                match self.offload {
                    Some(offload) if pages > offload.above.into() => {
                        let (given, written) = self.offload(&core, offload.queue, pages, from, to).await;
                        add(&progress.giving, given.since(begin));
                        add(&progress.device, written.since(given));
                        add(&progress.after, core.now().since(written));
                    }
                    _ => self.copy(&core, pages).await,
                }
                progress.call(&core, begin, pages);
            }
        });
        moved
    }

    /// The core copies pages at random addresses.
    async fn copy(self, core: &Core, pages: u64) {
        let core = core.with_walk(AccessPattern::Random);
        for _ in 0..pages {
            core.software(
                Opcode::MemoryMove,
                self.page.into(),
                BufferPlacement::on(self.from),
                BufferPlacement::on(self.to),
            )
            .await;
        }
    }

    /// A device copies: scatter lists and their mapping once a call, independent of the number of batches. Returns when
    /// the device had all of it, and when its last record was written.
    async fn offload(self, core: &Core, queue: QueueId, pages: u64, from: u64, to: u64) -> (Picos, Picos) {
        let copy = |page: u64| {
            let at = page * u64::from(self.page);
            World::descriptor(Opcode::MemoryMove, from + at, to + at, self.page)
        };
        let copies: Vec<Descriptor> = (0..pages).map(copy).collect();
        let (first, more) = (core.with_library(Library::Kernel), core.with_library(Library::Raw));
        let mut tickets = Vec::new();
        for (number, part) in copies.chunks(MOST_TOGETHER).enumerate() {
            tickets.push(if number == 0 { &first } else { &more }.submit_batch(queue, part).await);
        }
        let (given, mut written) = (core.now(), Picos::ZERO);
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

/// The progress of a migration, and its times.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) pages: Cell<u64>,
    calls: Cell<u64>,
    copying: Cell<Picos>,
    end: Cell<Picos>,
    /// Times of copies by a device: until it has all of them, until the last record, until the core has seen it and
    /// cleaned up.
    giving: Cell<Picos>,
    device: Cell<Picos>,
    after: Cell<Picos>,
}

fn add(to: &Cell<Picos>, time: Picos) {
    to.set(to.get() + time);
}

impl Moved {
    /// A call is done whose copying began at `copying`.
    pub(super) fn call(&self, core: &Core, copying: Picos, pages: u64) {
        add(&self.copying, core.now().since(copying));
        self.pages.set(self.pages.get() + pages);
        self.calls.set(self.calls.get() + 1);
        self.ends(core);
    }

    /// Records the current time as the end of the work so far.
    pub(super) fn ends(&self, core: &Core) {
        self.end.set(core.now());
    }

    #[allow(clippy::cast_precision_loss, reason = "for display")]
    fn of_a_call(&self, name: &str, time: Picos) -> Measure {
        measure(name, time.as_nanos_f64() / 1e3 / self.calls.get().max(1) as f64, "us")
    }

    /// The results for pages of `page` bytes.
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    pub(super) fn measures(&self, page: u32) -> Vec<Measure> {
        let (took, copying) = (self.end.get(), self.copying.get());
        let bytes = self.pages.get() * u64::from(page);
        let share = |part: Picos, of: Picos| part.as_secs_f64() / of.as_secs_f64().max(1e-12);
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
    /// Its run time with all pages in fast memory.
    pub work: Picos,
    /// Its run time with all pages in slow memory, in per cent of `work`.
    pub slow_percent: u32,
    /// How its pages are moved; with 0 pages none are.
    pub migration: Migration,
}

/// Steps of a program's work.
const STEPS: u64 = 4096;

impl Promotion {
    pub(super) fn start(&self, world: &mut World) -> Report {
        let moved = self.migration.spawn(world);
        let (promotion, end) = (*self, Rc::new(Cell::new(Picos::ZERO)));
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

    /// The time of a step when `moved` pages have been moved: all pages are accessed equally often.
    fn step(&self, moved: u64) -> Picos {
        let fast = Picos(self.work.0 / STEPS);
        let Some(pages) = std::num::NonZeroU64::new(self.migration.pages) else {
            return Picos(fast.0 * u64::from(self.slow_percent) / 100);
        };
        let more = u128::from(fast.0) * u128::from(self.slow_percent.saturating_sub(100)) / 100;
        let slow = u128::from(pages.get() - moved.min(pages.get()));
        // Cannot fail: at most `more`, which is a part of a time.
        fast + Picos(u64::try_from(more * slow / u128::from(pages.get())).unwrap_or(u64::MAX))
    }
}
