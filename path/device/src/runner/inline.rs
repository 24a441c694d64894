//! The inline runner: the thread that submits, or that waits, steps the engines.
//!
//! A submitting thread that finds another one at the engines waits for its turn. So a thread's descriptor has been
//! executed when its submission returns, no more descriptors wait in a queue than threads submit, and no thread polls
//! for a record on the core that the executing thread needs: with more threads than cores the executing one was
//! descheduled and the others used up their time slices polling.

use super::combiner::Combiner;
use super::{Core, Crew, Round};
use crate::sync::{AtomicU32, Ordering, yield_now};
use telpher_model::Progress;
use telpher_os::Lineage;

/// Tries of a submitting thread to have its turn, before it leaves its descriptor to the thread that has it. Source:
/// chosen; half a second at least, more than a descriptor of common size takes, and an end to a wait for a thread that
/// does not come back.
const TRIES: u32 = 1_000_000;

/// All engines, stepped by one thread at a time for itself and for those who submitted meanwhile.
#[derive(Debug)]
pub(crate) struct Inline {
    crew: Combiner<Crew>,
    held: AtomicU32,
    /// The process in which its threads are.
    started_in: Lineage,
}

impl Inline {
    pub(crate) fn new(engines: usize, lanes: usize) -> Self {
        let crew = Combiner::new(Crew::new(0..engines, lanes));
        Inline { crew, held: AtomicU32::new(0), started_in: Lineage::current() }
    }

    /// Executes what a thread has just submitted to a queue, before it goes on.
    ///
    /// A descriptor may lie behind one whose thread has its place in the queue and has not put it there yet: that one must
    /// arrive first.
    #[inline]
    pub(crate) fn submitted(&self, core: &Core, wq: usize) {
        let device = &core.device;
        let group = Some(device.group_of_wq(wq));
        let (_, tail) = device.wq_positions(wq);
        // A forked child has only one thread: what another one held in its parent stays held.
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

    /// Steps the engines of one group, or of all, until none can go on, unless another thread does already; work that
    /// others leave meanwhile included.
    #[inline]
    pub(crate) fn pump(&self, core: &Core, group: Option<usize>) {
        self.run(core, group, 0);
    }

    #[inline]
    fn run(&self, core: &Core, group: Option<usize>, tries: u32) {
        // Acquire: pairs with the Release in `hold`.
        let is_held = || self.held.load(Ordering::Acquire) != 0;
        self.crew.run(tries, |crew, others| {
            // What others left may be any group's.
            let group = if others { None } else { group };
            while !is_held() && crew.step(core, group) == Round::More {}
            !is_held()
        });
    }

    /// Stops, or restarts, taking work. When it returns with `held`, no thread steps an engine.
    pub(crate) fn hold(&self, held: bool) {
        // Release: pairs with the Acquire in `pump`.
        self.held.store(held.into(), Ordering::Release);
        if held {
            // Whoever was pumping has seen it by the time it lets go.
            self.crew.exclusively(|_| ());
        }
    }

    /// Steps one engine once, held or not.
    pub(crate) fn step_one(&self, core: &Core, engine: usize) -> Progress {
        self.crew.exclusively(|crew| crew.step_one(core, engine))
    }
}
