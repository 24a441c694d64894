//! The inline runner: whoever submits, or waits, steps the engines.

use super::{Core, Crew};
use crate::sync::{AtomicU32, Ordering, fence};
use std::sync::{Mutex, TryLockError};
use telpher_model::Progress;

/// All engines behind one lock that nobody waits for: who finds it taken leaves its work to the holder, who looks again
/// before going.
#[derive(Debug)]
pub(crate) struct Inline {
    crew: Mutex<Crew>,
    held: AtomicU32,
}

impl Inline {
    pub(crate) fn new(engines: usize) -> Self {
        Inline { crew: Mutex::new(Crew::new(0..engines)), held: AtomicU32::new(0) }
    }

    /// Steps the engines of one group, or of all, until none can go on.
    #[inline]
    pub(crate) fn pump(&self, core: &Core, group: Option<usize>) {
        let mut group = group;
        loop {
            let accepted = core.device.accepted();
            let mut crew = match self.crew.try_lock() {
                Ok(crew) => crew,
                // A panic in the model is a bug, but a poisoned lock must not turn it into a hang.
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let mut last = Progress::Worked;
            // Acquire: pairs with the Release in `hold`.
            while last == Progress::Worked && self.held.load(Ordering::Acquire) == 0 {
                last = crew.step(core, group);
            }
            if self.held.load(Ordering::Acquire) != 0 {
                return;
            }
            // SeqCst: between leaving and looking, so that what was submitted while we held the lock is seen here, or its
            // submitter finds the lock free. Whoever waits for a record drives, so a missed hand-over delays, never loses.
            drop(crew);
            fence(Ordering::SeqCst);
            // A descriptor blocked on other work needs another turn only after somebody brought more: its waiter will ask.
            let again = if last == Progress::Blocked { core.device.accepted() != accepted } else { has_work(core) };
            if !again {
                return;
            }
            // What others left to the holder may be any group's.
            group = None;
        }
    }

    /// Stops, or restarts, taking work. When it returns with `held`, nobody steps an engine.
    pub(crate) fn hold(&self, held: bool) {
        // Release: pairs with the Acquire in `pump`.
        self.held.store(held.into(), Ordering::Release);
        if held {
            // Whoever was pumping has seen it by the time it lets go.
            drop(self.crew.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        }
    }

    /// Steps one engine once, held or not.
    pub(crate) fn step_one(&self, core: &Core, engine: usize) -> Progress {
        self.crew.lock().unwrap_or_else(std::sync::PoisonError::into_inner).step_one(core, engine)
    }
}

fn has_work(core: &Core) -> bool {
    (0..core.device.capabilities().grp_cap.groups()).any(|group| core.device.group_has_work(group.into()))
}
