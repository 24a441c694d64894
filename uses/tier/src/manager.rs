//! A thread that finds hot pages of a heap and moves them.

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

pub(crate) use crate::clock::thread_cpu_time as cpu;

pub use report::{HotRow, Report, SourceReport, TierReport};

/// How a manager finds out which pages are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SourceKind {
    /// Sampled windows in which writes are tracked: `UFFDIO_WRITEPROTECT` and `PAGEMAP_SCAN`, Linux 6.7.
    Windows,
    /// DAMON, the kernel's own monitor, by accessed bits: it also sees reads and huge pages. It needs Linux 6.2,
    /// `CONFIG_DAMON_VADDR`, `CONFIG_DAMON_SYSFS` and root. A machine has one, so the request fails while other
    /// software uses it.
    Damon,
    /// A few pages at a time, drawn at random, are taken out and come back at the first touch: this also sees reads and
    /// huge pages. Needs [`Mechanism::Exchange`](crate::Mechanism::Exchange).
    ///
    /// While pages are out (at most 64 small and 8 huge ones, for as long as [`window`](ManagerOptions::window)), a
    /// core dump has zeros for them.
    Traps,
    /// Loads and stores that the processor samples itself: Intel's PEBS, AMD's IBS. It needs such a unit, which virtual
    /// machines mostly do not have, and `kernel.perf_event_paranoid` of 2 or less (1 for IBS) or `CAP_PERFMON`.
    /// **Unverified on silicon.** Used only on request.
    Perf,
}

impl SourceKind {
    /// All kinds.
    pub const ALL: [SourceKind; 4] = [SourceKind::Windows, SourceKind::Damon, SourceKind::Traps, SourceKind::Perf];

    /// Returns its name in options and reports.
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
    /// The sources to use; none for the best available: [`Damon`](SourceKind::Damon) once the heap has 64 MiB, if this
    /// user may use it and no other software does. Until then, otherwise, and if DAMON fails:
    /// [`Windows`](SourceKind::Windows) and [`Traps`](SourceKind::Traps) together. Advice ([`Heap::advise`]) is used in
    /// any case.
    pub sources: Option<Vec<SourceKind>>,
    /// How the policy decides what moves.
    pub policy: PolicyOptions,
    /// Whether to move what the policy decides; otherwise the manager only observes.
    pub moves: bool,
    /// How often it decides. It does so less often if that would cost more than seven tenths of `share`.
    pub pass: Duration,
    /// How long a window stays open, and a trapped page out; see [`SourceKind`]. Source: measured with a prototype; a
    /// window of 2 MiB every 10 ms costs about 1 % of a core.
    pub window: Duration,
    /// The fraction of a core that a source uses at most; it samples less often to stay below. For
    /// [`SourceKind::Damon`] this applies to the kernel's thread and, separately, to reading its results. Threads of
    /// the program wait for traps at most five times this share.
    pub share: f64,
}

impl ManagerOptions {
    /// Creates the default options for this heap.
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

/// Finds hot pages of a heap and moves pages, in a thread of its own, until it is dropped. Moved pages stay where they
/// are.
///
/// The thread touches no memory of the heap, so it can run in the process whose memory it moves. It allocates its own
/// data normally. If the allocator's memory belongs to the heap, give the manager another allocator.
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
        // A panic leaves no half-made change, and the panic itself is reported.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Manager {
    /// Starts the manager.
    ///
    /// # Errors
    /// [`TierError`]: a requested source is not available, the policy has another number of tiers than the heap, the
    /// system refuses a thread, or this is a forked child.
    pub fn start(heap: &Heap, options: ManagerOptions) -> Result<Manager, TierError> {
        heap.inner.is_ours()?;
        let (sources, choice) = choice::sources(heap, &options)?;
        Manager::with_choice(heap, &options, sources, choice)
    }

    /// Starts the manager with these sources instead of those of the options.
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
        // A starting thread allocates; the caller may fork as soon as this returns.
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

    /// Returns what it has found and done. **Staleness**: the manager goes on meanwhile; tiers are as of this call.
    ///
    /// # Errors
    /// [`TierError`]: this is a forked child, or the page tables cannot be read.
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

    /// Stops sampling and moving until [`resume`](Manager::resume). Nothing is tracked meanwhile; what was found is
    /// kept.
    pub fn pause(&self) {
        if self.lineage.is_current() {
            self.shared.state().pause(self.shared.begun.elapsed());
        }
    }

    /// Continues within a tenth of a second.
    pub fn resume(&self) {
        if self.lineage.is_current() {
            self.shared.state().resume(self.shared.begun.elapsed());
        }
    }

    /// Returns the addresses of hot pages by the policy's threshold, in order, with contiguous pages joined.
    /// **Staleness**: the manager goes on meanwhile.
    #[must_use]
    pub fn hot(&self) -> Vec<Range<u64>> {
        if self.lineage.is_current() { report::hot(&self.shared.state()) } else { Vec::new() }
    }

    /// Ends the manager and returns what it has found and done.
    ///
    /// # Errors
    /// As [`report`](Manager::report).
    pub fn stop(mut self) -> Result<Report, TierError> {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A forked child has no such thread.
        if self.lineage.is_current() {
            // The counter is far from its maximum, so this write does not block.
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

/// The manager's thread.
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

/// Does what is due; returns how long nothing is due.
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
        // Without the lock: a request for a report waits for no move.
        let start = cpu();
        let moved = shared.heap.migrate(what.range.clone(), what.to);
        let cpu = cpu().saturating_sub(start);
        shared.state().moved(now(), &what, moved, cpu);
    }
    shared.state().due().saturating_sub(now())
}

/// Waits; returns true if the thread is to end.
fn is_over(shared: &Shared, wait: Duration) -> bool {
    let mut waits = [PollFd::new(&shared.stop, PollFlags::IN)];
    let time =
        Timespec { tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX), tv_nsec: wait.subsec_nanos().into() };
    // A signal wakes it early, which is harmless.
    let _ = poll(&mut waits, Some(&time));
    waits[0].revents().contains(PollFlags::IN)
}
