//! The workloads of the page experiments: pages that move to the other tier and back, the same copies alone, and the
//! kernel's calls without a heap.

use super::interleaved::InterleavedLoad;
use crate::BenchError;
use crate::buffers::fill_known;
use crate::ffi::Called;
use crate::measure::median;
use crate::questions::Experiment;
use std::time::Duration;
use telpher_mem::{PAGE_BYTES, PageSize, Region};
use telpher_mover::Mover;
use telpher_os::TransparentHugePages;
use telpher_tier::{Arena, Heap, HeapOptions, TierId, TierOptions};

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PAGE_BYTES);
/// Bytes of an arena: twice the last-level cache of many processors. Source: chosen.
pub(super) const ARENA: usize = 64 << 20;

/// The tier to which pages move, and the tier to which they return.
pub(super) const FAST: TierId = TierId(0);
pub(super) const HOME: TierId = TierId(1);

/// Creates a heap of two tiers that moves `batch` pages at a time.
pub(super) fn heap(batch: usize) -> Result<Heap, BenchError> {
    let tier = |name: &str| TierOptions { name: name.into(), node: None, bytes: 4 * ARENA as u64 };
    Ok(Heap::new(HeapOptions { batch, ..HeapOptions::new(vec![tier("fast"), tier("home")]) })?)
}

/// One competitor; a step is one batch.
pub(super) enum MoveMethod {
    /// Moves pages of a heap.
    Move(Box<MovedArena>),
    /// Only copies bytes.
    Copy(Box<Copier>),
    /// Moves pages by the kernel's calls; with the time of each call, one value per batch.
    Calls(Box<Called>, Vec<[Duration; 3]>),
}

/// An arena whose pages move there and back, batch by batch.
pub(super) struct MovedArena {
    heap: Heap,
    arena: Arena,
    /// The requested page size.
    size: PageSize,
    /// Pages in a batch, and their distance in pages.
    pages: usize,
    apart: usize,
    /// Offset of the next batch, and whether it is away.
    at: usize,
    away: bool,
    /// Time per page without its copy, in nanoseconds, one value per batch.
    without_copy: Vec<f64>,
}

/// Copies a batch from a buffer to a destination and back, as a heap does. A heap reuses its destinations, so there is
/// only one here.
pub(super) struct Copier {
    mover: Mover,
    buffer: Region,
    place: Region,
    at: usize,
    away: bool,
}

impl MoveMethod {
    /// Moves `pages` pages of `size` at a time, with a distance of `apart` pages.
    pub(super) fn shuttle(size: PageSize, pages: usize, apart: usize) -> Result<MoveMethod, BenchError> {
        let heap = heap(pages)?;
        let mut arena = heap.arena(ARENA, size)?;
        // Only touched pages are present.
        let known = known(apart);
        for (page, known) in arena.chunks_exact_mut(PAGE).zip(known.chunks_exact(PAGE)).step_by(apart) {
            page.copy_from_slice(known);
        }
        Ok(MoveMethod::Move(Box::new(MovedArena {
            heap,
            arena,
            size,
            pages,
            apart,
            at: 0,
            away: false,
            without_copy: Vec::new(),
        })))
    }

    /// Makes only the copies of batches of `pages` pages.
    pub(super) fn copier(size: PageSize, pages: usize) -> Result<MoveMethod, BenchError> {
        let (mut buffer, mut place) = (Region::new(ARENA, size)?, Region::new(pages * PAGE, size)?);
        buffer.populate()?;
        place.populate()?;
        Ok(MoveMethod::Copy(Box::new(Copier { mover: Mover::cpu(), buffer, place, at: 0, away: false })))
    }

    /// Moves batches of `pages` pages by the kernel's calls alone.
    pub(super) fn calls(size: PageSize, pages: usize) -> Result<MoveMethod, BenchError> {
        let called = Called::new(ARENA, pages * PAGE, size).map_err(not_here)?;
        Ok(MoveMethod::Calls(Box::new(called), Vec::new()))
    }

    /// Runs one batch and returns its number of pages.
    pub(super) fn step(&mut self) -> Result<u64, BenchError> {
        match self {
            MoveMethod::Calls(called, took) => {
                took.push(called.go().map_err(not_here)?);
                Ok(called.unit() / PAGE_BYTES)
            }
            MoveMethod::Move(shuttle) => shuttle.step(),
            MoveMethod::Copy(copier) => copier.step(),
        }
    }

    /// Returns a competitor with one thread.
    pub(super) fn alone<'a>(self) -> InterleavedLoad<'a, MoveMethod> {
        InterleavedLoad { states: vec![self], step: &MoveMethod::step }
    }

    /// Returns nanoseconds per page without its copy, measured by the heap: the median of all batches.
    pub(super) fn without_copy(&self) -> f64 {
        match self {
            MoveMethod::Move(shuttle) => median(&mut shuttle.without_copy.clone()),
            MoveMethod::Copy(_) | MoveMethod::Calls(..) => f64::NAN,
        }
    }

    /// Returns microseconds per batch of each of the kernel's calls (query, out and in): the medians of all batches.
    pub(super) fn calls_took(&self) -> [f64; 3] {
        let MoveMethod::Calls(_, took) = self else { return [f64::NAN; 3] };
        std::array::from_fn(|call| {
            median(&mut took.iter().map(|took| took[call].as_secs_f64() * 1e6).collect::<Vec<_>>())
        })
    }

    /// Compares every byte with its original.
    pub(super) fn check(&self, contest: &Experiment) -> Result<(), BenchError> {
        let MoveMethod::Move(shuttle) = self else { return Ok(()) };
        contest.arrived(&known(shuttle.apart), &shuttle.arena)
    }
}

fn not_here(error: std::io::Error) -> BenchError {
    BenchError::NotHere(format!("the kernel does not move pages by its calls alone: {error}"))
}

/// Returns the contents of an arena in which one page in `apart` was written.
fn known(apart: usize) -> Vec<u8> {
    let mut bytes = vec![0; ARENA];
    fill_known(&mut bytes, apart as u64);
    let pages = bytes.chunks_exact_mut(PAGE).enumerate();
    pages.filter(|(number, _)| number % apart != 0).for_each(|(_, page)| page.fill(0));
    bytes
}

impl MovedArena {
    fn step(&mut self) -> Result<u64, BenchError> {
        let len = self.pages * self.apart * PAGE;
        let start = self.arena.addresses().start + self.at as u64;
        let to = if self.away { HOME } else { FAST };
        let before = self.heap.stats();
        let moved = self.heap.migrate(start..start + len as u64, to)?;
        if moved.pages != self.pages as u64 {
            let pages = self.pages;
            return Err(BenchError::NotHere(format!("{pages} pages were to move, and this became of them: {moved:?}")));
        }
        if self.size == PageSize::Huge && moved.huge != moved.pages {
            return Err(BenchError::NotHere(format!(
                "huge pages were to move, and {} of {} pages were small ones; transparent huge pages: {}; if they are \
                 not off, the system has no huge page free: echo 1 > /proc/sys/vm/compact_memory may make some",
                moved.pages - moved.huge,
                moved.pages,
                TransparentHugePages::setting()
            )));
        }
        let after = self.heap.stats();
        let took = (after.moving - before.moving).saturating_sub(after.copying - before.copying);
        self.without_copy.push(took.as_nanos() as f64 / self.pages as f64);
        if self.away {
            self.at = (self.at + len) % ARENA;
        }
        self.away = !self.away;
        Ok(moved.pages)
    }
}

impl Copier {
    fn step(&mut self) -> Result<u64, BenchError> {
        let Copier { mover, buffer, place, at, away } = self;
        let bytes = <[u8]>::len(place);
        let there = &mut buffer[*at..*at + bytes];
        let copied = if *away { mover.copy_slices(place, there) } else { mover.copy_slices(there, place) };
        copied.map_err(|source| BenchError::Job { op: "move".into(), route: "cpu".into(), source })?;
        if *away {
            *at = (*at + bytes) % ARENA;
        }
        *away = !*away;
        Ok((bytes / PAGE) as u64)
    }
}
