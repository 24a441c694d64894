//! A thread that looks at a heap's memory, and moves it.

mod choice;
mod report;
mod state;

use crate::error::TierError;
use crate::heap::Heap;
use crate::heat::Source;
use crate::policy::PolicyOptions;
use choice::Choice;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use state::State;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telpher_os::{Lineage, spawn_unsignalled};

pub(crate) use crate::clock::of_this_thread as cpu;

pub use report::{HotRow, Report, SourceReport, TierReport};

/// Who looks at a heap's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SourceKind {
    /// Sampled windows in which writes are tracked: `UFFDIO_WRITEPROTECT` and `PAGEMAP_SCAN`, Linux 6.7.
    Windows,
    /// DAMON, the kernel's own monitor, by its accessed bits: reads, too, and huge pages. It wants Linux 6.2, `CONFIG_DAMON_VADDR`, `CONFIG_DAMON_SYSFS`
    /// and root, and a machine has one: it is refused where anybody else uses it.
    Damon,
    /// A few pages at a time, drawn by lot, are taken out, and go back to who touches them first: reads and huge pages are seen, too. Wants
    /// [`Mechanism::Exchange`](crate::Mechanism::Exchange).
    ///
    /// While they are out, at most 64 small and 8 huge ones for as long as [`window`](ManagerOptions::window), they are zeros in a core dump.
    Traps,
    /// Samples of loads and stores that a processor's own unit takes: Intel's PEBS, AMD's IBS. It wants such a unit, which virtual machines mostly do not
    /// have, and `kernel.perf_event_paranoid` of 2 or less (1 for IBS) or `CAP_PERFMON`. **Unverified on silicon.** Never taken unless asked for.
    Perf,
}

impl SourceKind {
    /// All there are.
    pub const ALL: [SourceKind; 4] = [SourceKind::Windows, SourceKind::Damon, SourceKind::Traps, SourceKind::Perf];

    /// Its name, as options and reports have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            SourceKind::Windows => "windows",
            SourceKind::Damon => "damon",
            SourceKind::Traps => "traps",
            SourceKind::Perf => "perf",
        }
    }
}

/// How a [`Manager`] works.
#[derive(Clone, PartialEq, Debug)]
pub struct ManagerOptions {
    /// Who looks; none for the best that there is here: [`Damon`](SourceKind::Damon) once the heap has 64 MiB, if this user may and nobody else has it, and
    /// else, until then, and should it fail, [`Windows`](SourceKind::Windows) and
    /// [`Traps`](SourceKind::Traps) together. What the program says ([`Heap::advise`]) is heard in any case.
    pub sources: Option<Vec<SourceKind>>,
    /// How it decides what moves.
    pub policy: PolicyOptions,
    /// It moves what the policy says; else it only looks.
    pub moves: bool,
    /// How often it decides. It does so less often where that would cost more than seven tenths of `share`.
    pub pass: Duration,
    /// How long a window stays, and a page that is trapped; see [`SourceKind`]. Source: measured with a prototype, one of 2 MiB every 10 ms costs about a hundredth of a core.
    pub window: Duration,
    /// The part of a core that a source takes at most, by looking less often: of [`SourceKind::Damon`] so much for the kernel's thread, and as much to ask it.
    /// Threads of the program wait for traps at most five times as much.
    pub share: f64,
}

impl ManagerOptions {
    /// For this heap.
    #[must_use]
    pub fn new(heap: &Heap) -> ManagerOptions {
        ManagerOptions {
            sources: None,
            policy: PolicyOptions::new(heap.options()),
            moves: true,
            pass: Duration::from_millis(250),
            window: Duration::from_millis(10),
            share: 0.007,
        }
    }
}

/// Looks at a heap's memory and moves it, by a thread of its own, until it is dropped. What has moved stays where it is.
///
/// The thread touches no memory of the heap's, so that it may run in the process whose memory it moves. What it keeps is allocated as any memory:
/// where the allocator's memory is the heap's, too, it is to be given another.
///
/// ```no_run
/// use telpher_mem::PageSize;
/// use telpher_tier::{Heap, HeapOptions, Manager, ManagerOptions, TierOptions};
///
/// let tier = |name: &str, node| TierOptions { name: name.into(), node: Some(node), bytes: 1 << 30 };
/// let heap = Heap::new(HeapOptions::new(vec![tier("hbm", 1), tier("ddr", 0)]))?;
/// let arena = heap.arena(1 << 30, PageSize::Small)?;
/// let manager = Manager::start(&heap, ManagerOptions::new(&heap))?;
/// // … the program works …
/// let report = manager.stop()?;
/// println!("{} pages promoted, {} demoted", report.promoted, report.demoted);
/// # Ok::<(), telpher_tier::TierError>(())
/// ```
#[derive(Debug)]
pub struct Manager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    lineage: Lineage,
}

#[derive(Debug)]
struct Shared {
    heap: Heap,
    stop: OwnedFd,
    begun: Instant,
    state: Mutex<State>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // What a panic left is no less true than before; that there was one is told.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Manager {
    /// Starts it.
    ///
    /// # Errors
    /// [`TierError`]: a source that was asked for is not to be had here, the policy's tiers are not the heap's, the system refuses a thread, or this is a
    /// forked child.
    pub fn start(heap: &Heap, options: ManagerOptions) -> Result<Manager, TierError> {
        heap.inner.is_ours()?;
        let (sources, choice) = choice::sources(heap, &options)?;
        Manager::with_choice(heap, &options, sources, choice)
    }

    /// With these, whatever the options say of sources.
    ///
    /// # Errors
    /// As [`start`](Manager::start).
    pub fn with_sources(
        heap: &Heap,
        options: &ManagerOptions,
        sources: Vec<Box<dyn Source>>,
    ) -> Result<Manager, TierError> {
        Manager::with_choice(heap, options, sources, Choice::default())
    }

    fn with_choice(
        heap: &Heap,
        options: &ManagerOptions,
        sources: Vec<Box<dyn Source>>,
        choice: Choice,
    ) -> Result<Manager, TierError> {
        heap.inner.is_ours()?;
        let (tiers, capacity) = (heap.options().tiers.len(), options.policy.capacity.len());
        if tiers != capacity {
            return Err(TierError::PolicyTiers { tiers, capacity });
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| TierError::Keeper(error.into()))?;
        let state = Mutex::new(State::new(options, sources, choice));
        let shared = Arc::new(Shared { heap: heap.clone(), stop, begun: Instant::now(), state });
        // A thread that begins allocates; whoever is told of it may fork at once.
        let begun = Arc::new(Barrier::new(2));
        let (its, begins) = (Arc::clone(&shared), Arc::clone(&begun));
        let thread = spawn_unsignalled("telpher-manager", move || {
            begins.wait();
            run(&its);
        });
        let thread = thread.map_err(TierError::Keeper)?;
        begun.wait();
        Ok(Manager { shared, thread: Some(thread), lineage: Lineage::current() })
    }

    /// What it has found and done. **Staleness**: it goes on meanwhile; tiers are as they were asked for now.
    ///
    /// # Errors
    /// [`TierError`]: this is a forked child, or the page tables cannot be asked.
    pub fn report(&self) -> Result<Report, TierError> {
        if !self.lineage.is_current() {
            return Err(TierError::Forked);
        }
        let free = self.shared.heap.free();
        let stats = self.shared.heap.stats();
        let now = self.shared.begun.elapsed();
        let mut state = self.shared.state();
        state.follow(&self.shared.heap).map_err(TierError::Scan)?;
        Ok(report::of(&state, &self.shared.heap, now, &free, stats))
    }

    /// Neither looks nor moves from now on, until it is told to [go on](Manager::resume). Nothing is tracked meanwhile, and what was found is kept.
    pub fn pause(&self) {
        if self.lineage.is_current() {
            self.shared.state().pause(self.shared.begun.elapsed());
        }
    }

    /// Goes on, within a tenth of a second.
    pub fn resume(&self) {
        if self.lineage.is_current() {
            self.shared.state().resume(self.shared.begun.elapsed());
        }
    }

    /// The addresses of pages that are hot, as the policy has it, in order; neighbours together. **Staleness**: it goes on meanwhile.
    #[must_use]
    pub fn hot(&self) -> Vec<Range<u64>> {
        if self.lineage.is_current() { report::hot(&self.shared.state()) } else { Vec::new() }
    }

    /// Ends it, and tells what it has found and done.
    ///
    /// # Errors
    /// As [`report`](Manager::report).
    pub fn stop(mut self) -> Result<Report, TierError> {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // In a forked child there is no such thread.
        if self.lineage.is_current() {
            // A counter far from its end takes a one without waiting.
            let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
            let _ = thread.join();
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.end();
    }
}

/// The thread.
fn run(shared: &Shared) {
    let done = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let wait = once(shared);
            if is_over(shared, wait) {
                return;
            }
        }
    }));
    let mut state = shared.state();
    state.rest();
    if let Err(panic) = done {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        state.failed = Some(text.to_string());
    }
}

/// What is due; returns how long nothing is.
fn once(shared: &Shared) -> Duration {
    let now = || shared.begun.elapsed();
    let next = {
        let mut state = shared.state();
        if state.is_paused() {
            return state::PAUSED;
        }
        state.look(now(), &shared.heap);
        state.decide(now(), &shared.heap);
        state.next_move()
    };
    if let Some(what) = next {
        // Not under the lock: whoever asks for a report waits for no move.
        let begun = cpu();
        let moved = shared.heap.migrate(what.range.clone(), what.to);
        let cpu = cpu().saturating_sub(begun);
        shared.state().moved(now(), &what, moved, cpu);
    }
    shared.state().due().saturating_sub(now())
}

/// Waits; true if it is to end.
fn is_over(shared: &Shared, wait: Duration) -> bool {
    let mut waits = [PollFd::new(&shared.stop, PollFlags::IN)];
    let time =
        Timespec { tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX), tv_nsec: wait.subsec_nanos().into() };
    // A signal wakes it early, which does no harm.
    let _ = poll(&mut waits, Some(&time));
    waits[0].revents().contains(PollFlags::IN)
}
