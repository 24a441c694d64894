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
        if self.held.load(Ordering::Relaxed) != 0 {
            return;
        }
        loop {
            let mut crew = match self.crew.try_lock() {
                Ok(crew) => crew,
                // A panic in the model is a bug, but a poisoned lock must not turn it into a hang.
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let mut last = Progress::Worked;
            while last == Progress::Worked {
                last = crew.step(core, group);
            }
            // A descriptor blocked on other work needs another turn only after somebody moved: its waiter will ask.
            let may_rest = last == Progress::Blocked;
            // SeqCst: between leaving and looking, so that what was submitted while we held the lock is seen here, or its
            // submitter finds the lock free. Whoever waits for a record drives, so a missed hand-over delays, never loses.
            let again = {
                drop(crew);
                fence(Ordering::SeqCst);
                !may_rest && has_work(core, group)
            };
            if !again {
                return;
            }
        }
    }

    /// Stops, or restarts, taking work.
    pub(crate) fn hold(&self, held: bool) {
        self.held.store(held.into(), Ordering::Relaxed);
    }

    /// Steps one engine once, held or not.
    pub(crate) fn step_one(&self, core: &Core, engine: usize) -> Progress {
        self.crew.lock().unwrap_or_else(std::sync::PoisonError::into_inner).step_one(core, engine)
    }
}

fn has_work(core: &Core, group: Option<usize>) -> bool {
    match group {
        Some(group) => core.device.group_has_work(group),
        None => (0..core.device.capabilities().grp_cap.groups()).any(|group| core.device.group_has_work(group.into())),
    }
}
