//! A mutex for a value that one thread uses nearly always. That thread locks it without atomic instructions.
//!
//! ```text
//! favored thread:  is_inside = true;  is_wanted?  no ─► the value;  is_inside = false
//!                                                 yes ─► is_inside = false, and on as the others
//! other threads:   turns.lock;  is_wanted = true;  membarrier;  wait until !is_inside ─► the value
//! ```
//!
//! The favored thread writes one flag and reads the other; the others do it the other way around. Without a barrier
//! between the two accesses, each side may miss the other's flag. `membarrier` makes every thread of the process
//! execute one, so the favored thread needs none of its own. Source: membarrier(2), and "biased locking" of Java's
//! monitors.
//!
//! An atomic instruction takes as long as about twenty others, and waits until all stores before it are visible: also
//! those to cache lines that another core has.

use super::this_thread;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Locks by other threads after which no thread is favored any more. Source: chosen; each costs a system call that
/// interrupts the favored thread, some microseconds.
const MOST_BY_OTHERS: u32 = 16;

/// No thread is favored. No thread has this number: it is odd.
const NO_THREAD: usize = usize::MAX;
/// The first thread that locks will be favored.
const FIRST_THREAD: usize = 0;

/// A mutex that favors the first thread that locks it. Threads that panic do not poison it.
///
/// A thread that locks it again before it has dropped its guard waits for ever.
pub struct BiasedMutex<T> {
    favored: AtomicUsize,
    /// True while the favored thread has the value, or tries to take it.
    is_inside: AtomicBool,
    /// True while another thread has or wants the value, and for good once no thread is favored.
    is_wanted: AtomicBool,
    turns: Mutex<Turns>,
    /// The turn of the guard that has one. Not in the guard, so that a guard fits in two registers: one that is copied
    /// through memory costs as much time as the atomic instructions that are saved.
    turn: UnsafeCell<ManuallyDrop<Option<MutexGuard<'static, Turns>>>>,
    value: UnsafeCell<T>,
}

/// What the threads that take turns know.
#[derive(Debug)]
struct Turns {
    /// Locks by threads that are not favored.
    by_others: u32,
}

// SAFETY: at most one guard exists at a time, see `lock` and `lock_in_turn`, and only guards give access to the value.
// The turn is accessed by the thread that has it.
unsafe impl<T: Send> Sync for BiasedMutex<T> {}
// SAFETY: as above. A turn that is there while the mutex moves is that of a guard that was forgotten, and is never
// used.
unsafe impl<T: Send> Send for BiasedMutex<T> {}

impl<T: fmt::Debug> fmt::Debug for BiasedMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value may be in use.
        f.debug_struct("BiasedMutex").finish_non_exhaustive()
    }
}

/// Access to the value of a [`BiasedMutex`], until it is dropped.
#[derive(Debug)]
pub struct BiasedGuard<'a, T> {
    mutex: &'a BiasedMutex<T>,
    /// False if the favored thread has locked without a turn.
    has_turn: bool,
    /// Stays in its thread, and is not shared with others.
    _stays: PhantomData<*mut T>,
}

impl<T> BiasedMutex<T> {
    /// Creates a mutex that favors the first thread that locks it. Where the system has no `membarrier`, it favors
    /// none.
    #[must_use]
    pub fn new(value: T) -> BiasedMutex<T> {
        BiasedMutex::with_favored(value, if can_fence() { FIRST_THREAD } else { NO_THREAD })
    }

    /// Creates a mutex that favors no thread.
    #[must_use]
    pub fn unbiased(value: T) -> BiasedMutex<T> {
        BiasedMutex::with_favored(value, NO_THREAD)
    }

    fn with_favored(value: T, favored: usize) -> BiasedMutex<T> {
        BiasedMutex {
            favored: AtomicUsize::new(favored),
            is_inside: AtomicBool::new(false),
            is_wanted: AtomicBool::new(favored == NO_THREAD),
            turns: Mutex::new(Turns { by_others: 0 }),
            turn: UnsafeCell::new(ManuallyDrop::new(None)),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until no other thread has the value, and takes it.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        // Relaxed: only this thread compares its own number with success, and it has seen its own writes. A guard of
        // this thread that exists sends it to the turns, where it waits for ever.
        if self.favored.load(Ordering::Relaxed) == this_thread() && !self.is_inside.load(Ordering::Relaxed) {
            // Relaxed: see the fence.
            self.is_inside.store(true, Ordering::Relaxed);
            // The compiler keeps the order of the two accesses. For the processor, the barrier of `fence_all` stands
            // here if another thread executes it now; otherwise it comes before or after both accesses. Then either
            // this thread sees `is_wanted`, or the other one sees `is_inside`.
            compiler_fence(Ordering::SeqCst);
            // Acquire: pairs with the Release in `drop` of another thread, which has used the value.
            if !self.is_wanted.load(Ordering::Acquire) {
                return BiasedGuard { mutex: self, has_turn: false, _stays: PhantomData };
            }
            // Release: as in `drop`.
            self.is_inside.store(false, Ordering::Release);
        }
        self.lock_in_turn(true)
    }

    /// Locks like [`lock`](BiasedMutex::lock). The call is not counted: the mutex goes on favoring its thread however
    /// often others call this.
    pub fn lock_as_guest(&self) -> BiasedGuard<'_, T> {
        self.lock_in_turn(false)
    }

    #[cold]
    fn lock_in_turn(&self, counts: bool) -> BiasedGuard<'_, T> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let this = this_thread();
        // Relaxed, also below: changed while the turn is held, and see `lock`.
        let favored = match self.favored.load(Ordering::Relaxed) {
            FIRST_THREAD if counts => {
                self.favored.store(this, Ordering::Relaxed);
                this
            }
            favored => favored,
        };
        // With the turn, the favored thread excludes all others. Without a favored thread, the turn is all there is:
        // `is_wanted` is true for good, so the one that was favored does not get past it.
        if favored == NO_THREAD {
            return self.guard_with(turns);
        }
        if favored != this {
            self.is_wanted.store(true, Ordering::Relaxed);
            fence_all();
            turns.by_others += u32::from(counts);
            if turns.by_others >= MOST_BY_OTHERS {
                self.favored.store(NO_THREAD, Ordering::Relaxed);
            }
        }
        // Acquire: pairs with the Release in `drop`; the favored thread has used the value.
        while self.is_inside.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        self.guard_with(turns)
    }

    /// Ends the turn of the guard that is dropped.
    #[cold]
    fn end_turn(&self) {
        // SAFETY: this thread has the turn: its guard was returned by `guard_with`.
        let turn = unsafe { (*self.turn.get()).take() };
        if self.favored.load(Ordering::Relaxed) != NO_THREAD {
            // Release: pairs with the Acquire in `lock`.
            self.is_wanted.store(false, Ordering::Release);
        }
        drop(turn);
    }

    /// Returns the guard that ends this turn.
    #[inline]
    fn guard_with<'a>(&'a self, turns: MutexGuard<'a, Turns>) -> BiasedGuard<'a, T> {
        // SAFETY: only the lifetime changes. The guard below borrows the mutex until it takes the turn out and drops
        // it. If it is forgotten, the turn stays where it is, and is neither used nor dropped.
        let turn = unsafe { mem::transmute::<MutexGuard<'a, Turns>, MutexGuard<'static, Turns>>(turns) };
        // SAFETY: this thread has the turn.
        unsafe { *self.turn.get() = ManuallyDrop::new(Some(turn)) };
        BiasedGuard { mutex: self, has_turn: true, _stays: PhantomData }
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard. Guards with a turn exclude each other by it. One without a turn belongs to
        // the favored thread, which has set `is_inside` and seen that no other thread wants the value; a thread with a
        // turn has said that it wants it, and has seen `is_inside` unset after the barrier.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; this guard is borrowed exclusively.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.has_turn {
            self.mutex.end_turn();
        } else {
            // Release: pairs with the Acquire in `lock_in_turn`.
            self.mutex.is_inside.store(false, Ordering::Release);
        }
    }
}

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the system call accesses no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Returns whether [`fence_all`] works, and prepares it.
fn can_fence() -> bool {
    static CAN_FENCE: OnceLock<bool> = OnceLock::new();
    *CAN_FENCE.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED))
}

/// Makes all threads of the process execute a memory barrier.
///
/// # Panics
/// If the system refuses what it has permitted before.
fn fence_all() {
    assert!(membarrier(PRIVATE_EXPEDITED), "membarrier was permitted when this process began, and now is not");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_cheap<T>(mutex: &BiasedMutex<T>) -> bool {
        !mutex.lock().has_turn
    }

    fn by_another_thread<T: Send>(mutex: &BiasedMutex<T>, act: impl FnOnce(&BiasedMutex<T>) + Send) {
        std::thread::scope(|scope| scope.spawn(|| act(mutex)).join()).unwrap();
    }

    #[test]
    fn the_first_thread_is_favored_until_others_lock_often() {
        let mutex = BiasedMutex::new(0);
        assert!(can_fence() && !is_cheap(&mutex) && is_cheap(&mutex));
        by_another_thread(&mutex, |mutex| assert!(!is_cheap(mutex) && !is_cheap(mutex)));
        assert!(is_cheap(&mutex));
        by_another_thread(&mutex, |mutex| (0..100).for_each(|_| drop(mutex.lock_as_guest())));
        assert!(is_cheap(&mutex), "guests are not counted");
        by_another_thread(&mutex, |mutex| (0..MOST_BY_OTHERS).for_each(|_| *mutex.lock() += 1));
        assert!(!is_cheap(&mutex) && !is_cheap(&mutex));
        assert_eq!(*mutex.lock(), MOST_BY_OTHERS);
    }

    #[test]
    fn a_guest_is_not_favored() {
        let mutex = BiasedMutex::new(0);
        by_another_thread(&mutex, |mutex| drop(mutex.lock_as_guest()));
        assert!(!is_cheap(&mutex) && is_cheap(&mutex));
        let unbiased = BiasedMutex::unbiased(0);
        assert!((0..3).all(|_| !is_cheap(&unbiased)));
    }

    #[test]
    fn each_side_waits_for_the_other() {
        for guests in [true, false] {
            let mutex = BiasedMutex::new(Vec::new());
            drop(mutex.lock());
            let other = |mutex: &BiasedMutex<Vec<u32>>| {
                let mut guard = if guests { mutex.lock_as_guest() } else { mutex.lock() };
                guard.push(2);
            };
            let mut guard = mutex.lock();
            assert!(!guard.has_turn);
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| other(&mutex));
                // The other thread says that it wants the value, and waits.
                while !mutex.is_wanted.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                assert!(!waits.is_finished());
                guard.push(1);
                drop(guard);
                waits.join().unwrap();
            });
            assert_eq!(*mutex.lock(), [1, 2], "{guests}");
        }
    }

    #[test]
    fn no_change_is_lost() {
        const EACH: u64 = 20_000;
        let mutex = BiasedMutex::new((0_u64, 0_u64));
        drop(mutex.lock());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let mut guard = mutex.lock_as_guest();
                        guard.0 += 1;
                        guard.1 += 1;
                    }
                });
            }
            for _ in 0..50 * EACH {
                let mut guard = mutex.lock();
                guard.0 += 1;
                assert_eq!(guard.0, guard.1 + 1);
                guard.1 += 1;
            }
        });
        assert_eq!(*mutex.lock(), (52 * EACH, 52 * EACH));
    }

    #[test]
    fn a_panic_does_not_poison() {
        let mutex = BiasedMutex::new(7);
        drop(mutex.lock());
        for _ in 0..2 {
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _guard = mutex.lock();
                panic!("expected by the test");
            }));
            assert!(unwound.is_err() && *mutex.lock() == 7);
        }
    }
}
