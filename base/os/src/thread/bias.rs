//! The protocol of a [`BiasedMutex`](super::BiasedMutex): which thread may have the value.
//!
//! ```text
//! favored thread:  is_inside = true;  fence_favored;  is_wanted?  no ─► the value;  is_inside = false
//!                                                                 yes ─► is_inside = false, and on as the others
//! other threads:   turns.lock;  is_wanted = true;  fence_all;  wait until !is_inside ─► the value
//! ```
//!
//! The favored thread writes one flag and reads the other; the others do it the other way around. Without a barrier
//! between the two accesses, each side may miss the other's flag. `membarrier` makes every running thread of the
//! process execute one, so the favored thread needs none of its own. Source: membarrier(2),
//! MEMBARRIER_CMD_PRIVATE_EXPEDITED; "biased locking" of Java's monitors.
//!
//! `tests/loom_bias.rs` checks this file.

use super::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};
use super::sync::{fence_all, fence_favored, pause};

/// Locks by other threads after which no thread is favored any more. Source: chosen; each costs a system call that
/// interrupts the favored thread, some microseconds.
#[cfg(not(loom))]
pub(super) const MOST_BY_OTHERS: u32 = 16;
/// Few, so that loom sees the end of the favor.
#[cfg(loom)]
pub(super) const MOST_BY_OTHERS: u32 = 2;

/// No thread is favored. No thread has this number: it is odd.
const NO_THREAD: usize = usize::MAX;
/// The first thread that locks will be favored.
const FIRST_THREAD: usize = 0;

/// The system refuses the barrier that it has permitted before, so a thread cannot know whether the favored one has the
/// value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoBarrier;

/// The flags of a mutex, without its value.
#[derive(Debug)]
pub(super) struct Bias {
    favored: AtomicUsize,
    /// True while the favored thread has the value without a turn, or tries to take it.
    is_inside: AtomicBool,
    /// True while a thread has or wants the value by its turn, and for good once no thread is favored.
    is_wanted: AtomicBool,
    turns: Mutex<Turns>,
}

/// What the threads that take turns know.
#[derive(Debug)]
pub(super) struct Turns {
    /// Locks by threads that are not favored.
    by_others: u32,
}

impl Bias {
    /// Creates the flags of a mutex that no thread has. It favors its first thread, or none.
    pub(super) fn new(favors: bool) -> Bias {
        Bias {
            favored: AtomicUsize::new(if favors { FIRST_THREAD } else { NO_THREAD }),
            is_inside: AtomicBool::new(false),
            is_wanted: AtomicBool::new(!favors),
            turns: Mutex::new(Turns { by_others: 0 }),
        }
    }

    /// Takes the value if `this` thread is favored and no thread wants it. True if it has it now, until
    /// [`leave`](Bias::leave).
    #[inline]
    pub(super) fn try_enter(&self, this: usize) -> bool {
        // Relaxed: only this thread compares its own number with success, and it has seen its own writes.
        // Acquire: pairs with the Release in `leave`. A thread that has ended may have had this thread's number.
        if self.favored.load(Ordering::Relaxed) != this || self.is_inside.load(Ordering::Acquire) {
            return false;
        }
        // Relaxed: see the fence.
        self.is_inside.store(true, Ordering::Relaxed);
        // If another thread executes `fence_all` now, a barrier stands here. Otherwise it comes before or after both
        // accesses. Then either this thread sees `is_wanted`, or the other one sees `is_inside`.
        fence_favored();
        // Acquire: pairs with the Release in `leave_turn` of another thread, which has used the value.
        if self.is_wanted.load(Ordering::Acquire) {
            self.leave();
            return false;
        }
        true
    }

    /// Gives back what [`try_enter`](Bias::try_enter) has taken.
    #[inline]
    pub(super) fn leave(&self) {
        // Release: pairs with the Acquire in `take_turn` and `try_enter`.
        self.is_inside.store(false, Ordering::Release);
    }

    /// Waits until no other thread has the value, and takes it until [`leave_turn`](Bias::leave_turn). A call that does
    /// not count neither begins nor ends the favor of a thread.
    ///
    /// # Errors
    ///
    /// The system refuses the barrier, and another thread is favored. The favor stays as it was.
    pub(super) fn take_turn(&self, this: usize, counts: bool) -> Result<MutexGuard<'_, Turns>, NoBarrier> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed, also below: changed while the turn is held, and see `try_enter`.
        let favored = self.favored.load(Ordering::Relaxed);
        if favored == NO_THREAD {
            // The turn is all there is: `is_wanted` is true for good, so the thread that was favored does not get past
            // it.
            return Ok(turns);
        }
        // Also if this thread is favored: it must not enter a second time without a turn.
        self.is_wanted.store(true, Ordering::Relaxed);
        if favored == FIRST_THREAD {
            if counts {
                self.favored.store(this, Ordering::Relaxed);
            }
            return Ok(turns);
        }
        if favored != this {
            if !fence_all() {
                // Release: as in `leave_turn`.
                self.is_wanted.store(false, Ordering::Release);
                return Err(NoBarrier);
            }
            turns.by_others += u32::from(counts);
            if turns.by_others >= MOST_BY_OTHERS {
                self.favored.store(NO_THREAD, Ordering::Relaxed);
            }
        }
        let mut looks = 0;
        // Acquire: pairs with the Release in `leave`; the favored thread has used the value.
        while self.is_inside.load(Ordering::Acquire) {
            pause(looks);
            looks = looks.saturating_add(1);
        }
        Ok(turns)
    }

    /// Gives back what [`take_turn`](Bias::take_turn) has taken.
    pub(super) fn leave_turn(&self, turns: MutexGuard<'_, Turns>) {
        // Relaxed: this thread still has the turn.
        if self.favored.load(Ordering::Relaxed) != NO_THREAD {
            // Release: pairs with the Acquire in `try_enter`.
            self.is_wanted.store(false, Ordering::Release);
        }
        drop(turns);
    }

    /// True while a thread has or wants the value by its turn.
    #[cfg(test)]
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }
}
