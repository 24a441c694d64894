//! The inline runner: the thread that submits or waits steps the engines.
//!
//! A submitting thread that finds another thread at the engines waits until that one has finished. So a thread's
//! descriptor has been executed when its submission returns, a queue holds at most as many waiting descriptors as there
//! are submitting threads, and no thread polls for a record on the core that the executing thread needs. Without this
//! wait, with more threads than cores, the executing thread was descheduled while the others spent their time slices
//! polling.

use super::combiner::Combiner;
use super::{Core, EngineSet, StepResult};
use crate::sync::{AtomicU32, Ordering, yield_now};
use telpher_model::Progress;
use telpher_os::Lineage;

/// Tries of a submitting thread before it leaves its descriptor to the executing thread. Source: chosen. At least half
/// a second, longer than a descriptor of common size takes, and a bound for a thread that never returns.
const TRIES: u32 = 1_000_000;

/// All engines, stepped by one thread at a time for itself and for threads that submitted meanwhile.
#[derive(Debug)]
pub(crate) struct Inline {
    engines: Combiner<EngineSet>,
    held: AtomicU32,
    /// The process that started it.
    started_in: Lineage,
}

impl Inline {
    pub(crate) fn new(engines: usize, lanes: usize) -> Self {
        let engines = Combiner::new(EngineSet::new(0..engines, lanes));
        Inline { engines, held: AtomicU32::new(0), started_in: Lineage::current() }
    }

    /// Executes the descriptor that a thread has just submitted to a queue, before the thread continues.
    ///
    /// The descriptor may be behind another whose thread has reserved its entry and not filled it yet; that one must
    /// arrive first.
    #[inline]
    pub(crate) fn submitted(&self, core: &Core, wq: usize) {
        let device = &core.device;
        let group = Some(device.group_of_wq(wq));
        let (_, tail) = device.wq_positions(wq);
        // A forked child has only one thread: a lock held by another thread of the parent stays held.
        let tries = if self.started_in.is_current() { TRIES } else { 0 };
        self.run(core, group, tries);
        for _ in 0..tries {
            let (head, end) = device.wq_positions(wq);
            if head >= tail || head >= end {
                return;
            }
            let had_arrived = device.wq_has_arrived(wq);
            if !had_arrived {
                yield_now();
            }
            self.run(core, group, tries);
            // The engines do not take it: they wait for something else, or are held.
            if had_arrived && device.wq_positions(wq).0 == head {
                return;
            }
        }
    }

    /// Steps the engines of one group, or of all, until none makes progress; another thread that steps them already
    /// does it. Includes work that other threads leave meanwhile.
    pub(crate) fn run_engines(&self, core: &Core, group: Option<usize>) {
        self.run(core, group, 0);
    }

    /// The same for a thread that polls: it does nothing if another thread steps engines.
    #[inline]
    pub(crate) fn run_if_free(&self, core: &Core, group: Option<usize>) {
        self.engines.run_if_free(|engines, others| self.step(engines, others, core, group));
    }

    #[inline]
    fn run(&self, core: &Core, group: Option<usize>, tries: u32) {
        self.engines.run(tries, |engines, others| self.step(engines, others, core, group));
    }

    /// Returns whether the engines are not held.
    #[inline]
    fn step(&self, engines: &mut EngineSet, others: bool, core: &Core, group: Option<usize>) -> bool {
        // Acquire: pairs with the Release in `hold`.
        let is_held = || self.held.load(Ordering::Acquire) != 0;
        // Work left by others may belong to any group.
        let group = if others { None } else { group };
        while !is_held() && engines.step(core, group) == StepResult::More {}
        !is_held()
    }

    /// Stops or restarts the execution. When it returns with `held`, no thread steps an engine.
    pub(crate) fn hold(&self, held: bool) {
        // Release: pairs with the Acquire in `run_engines`.
        self.held.store(held.into(), Ordering::Release);
        if held {
            // A thread that was stepping has seen it by the time it releases the lock.
            self.engines.exclusively(|_| ());
        }
    }

    /// Steps one engine once, even while held.
    pub(crate) fn step_one(&self, core: &Core, engine: usize) -> Progress {
        self.engines.exclusively(|engines| engines.step_one(core, engine))
    }
}
