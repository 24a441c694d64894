//! The inline runner: whoever submits, or waits, steps the engines.

use super::combiner::Combiner;
use super::{Core, Crew, Round};
use crate::sync::{AtomicU32, Ordering};
use telpher_model::Progress;

/// All engines, stepped by one thread at a time for itself and for those who submitted meanwhile.
#[derive(Debug)]
pub(crate) struct Inline {
    crew: Combiner<Crew>,
    held: AtomicU32,
}

impl Inline {
    pub(crate) fn new(engines: usize, lanes: usize) -> Self {
        Inline { crew: Combiner::new(Crew::new(0..engines, lanes)), held: AtomicU32::new(0) }
    }

    /// Steps the engines of one group, or of all, until none can go on; work that others leave meanwhile included.
    #[inline]
    pub(crate) fn pump(&self, core: &Core, group: Option<usize>) {
        // Acquire: pairs with the Release in `hold`.
        let is_held = || self.held.load(Ordering::Acquire) != 0;
        self.crew.run(|crew, others| {
            // What others left may be any group's.
            let group = if others { None } else { group };
            while !is_held() && crew.step(core, group) == Round::More {}
            !is_held()
        });
    }

    /// Stops, or restarts, taking work. When it returns with `held`, nobody steps an engine.
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
