//! A mutex for a value that one thread uses nearly always. That thread locks it without atomic instructions.
//!
//! An atomic instruction takes as long as about twenty others, and waits until all stores before it are visible: also
//! those to cache lines that another core has.

use super::bias::{Bias, NoBarrier, Turns};
use super::sync::{MutexGuard, prepare_fences};
use super::this_thread;
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::ops::{Deref, DerefMut};

/// A mutex that favors the first thread that locks it, until other threads have locked it often. Threads that panic do
/// not poison it.
///
/// A thread that locks it again before it has dropped its guard waits for ever. A thread may end while it is favored; a
/// thread that is started in its place may then be favored. In a forked child, a mutex that another thread of the
/// parent had locked stays locked, as with any mutex.
pub struct BiasedMutex<T> {
    bias: Bias,
    /// The turn of the guard that has one. Not in the guard, so that a guard fits in two registers: one that is copied
    /// through memory costs as much time as the atomic instructions that are saved.
    turn: UnsafeCell<ManuallyDrop<Option<MutexGuard<'static, Turns>>>>,
    value: UnsafeCell<T>,
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
        BiasedMutex::with_bias(value, prepare_fences())
    }

    /// Creates a mutex that favors no thread.
    #[must_use]
    pub fn unbiased(value: T) -> BiasedMutex<T> {
        BiasedMutex::with_bias(value, false)
    }

    fn with_bias(value: T, favors: bool) -> BiasedMutex<T> {
        BiasedMutex {
            bias: Bias::new(favors),
            turn: UnsafeCell::new(ManuallyDrop::new(None)),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until no other thread has the value, and takes it.
    ///
    /// # Errors
    ///
    /// Another thread is favored, and the system refuses `membarrier`, which it has permitted when the mutex was
    /// created.
    #[inline]
    pub fn lock(&self) -> Result<BiasedGuard<'_, T>, NoBarrier> {
        if self.bias.try_enter(this_thread()) {
            return Ok(BiasedGuard { mutex: self, has_turn: false, _stays: PhantomData });
        }
        self.lock_in_turn(true)
    }

    /// Locks like [`lock`](BiasedMutex::lock). The call is not counted: the mutex goes on favoring its thread however
    /// often others call this.
    ///
    /// # Errors
    ///
    /// As for [`lock`](BiasedMutex::lock).
    pub fn lock_as_guest(&self) -> Result<BiasedGuard<'_, T>, NoBarrier> {
        self.lock_in_turn(false)
    }

    #[cold]
    fn lock_in_turn(&self, counts: bool) -> Result<BiasedGuard<'_, T>, NoBarrier> {
        let turns = self.bias.take_turn(this_thread(), counts)?;
        // SAFETY: only the lifetime changes. The guard below borrows the mutex until it takes the turn out and drops
        // it. If it is forgotten, the turn stays where it is, and is neither used nor dropped.
        let turn = unsafe { mem::transmute::<MutexGuard<'_, Turns>, MutexGuard<'static, Turns>>(turns) };
        // SAFETY: this thread has the turn.
        unsafe { *self.turn.get() = ManuallyDrop::new(Some(turn)) };
        Ok(BiasedGuard { mutex: self, has_turn: true, _stays: PhantomData })
    }

    /// Ends the turn of the guard that is dropped.
    #[cold]
    fn end_turn(&self) {
        // SAFETY: this thread has the turn: its guard was returned by `lock_in_turn`.
        if let Some(turn) = unsafe { (*self.turn.get()).take() } {
            self.bias.leave_turn(turn);
        }
    }
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard. Guards with a turn exclude each other by it. One without a turn belongs to
        // the favored thread, which has set `is_inside` and seen that no thread wants the value; a thread with a turn
        // has said that it wants it, and has seen `is_inside` unset after the barrier. See `Bias`.
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
            self.mutex.bias.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bias::MOST_BY_OTHERS;
    use super::super::sync::fence_all;
    use super::*;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::Arc;
    use std::time::Duration;

    fn is_cheap<T>(mutex: &BiasedMutex<T>) -> bool {
        !mutex.lock().unwrap().has_turn
    }

    fn by_another_thread<T: Send>(mutex: &BiasedMutex<T>, act: impl FnOnce(&BiasedMutex<T>) + Send) {
        std::thread::scope(|scope| scope.spawn(|| act(mutex)).join()).unwrap();
    }

    #[test]
    fn the_first_thread_is_favored_until_others_lock_often() {
        let mutex = BiasedMutex::new(0);
        assert!(prepare_fences() && !is_cheap(&mutex) && is_cheap(&mutex));
        by_another_thread(&mutex, |mutex| assert!(!is_cheap(mutex) && !is_cheap(mutex)));
        assert!(is_cheap(&mutex));
        by_another_thread(&mutex, |mutex| (0..100).for_each(|_| drop(mutex.lock_as_guest().unwrap())));
        assert!(is_cheap(&mutex), "guests are not counted");
        by_another_thread(&mutex, |mutex| (0..MOST_BY_OTHERS).for_each(|_| *mutex.lock().unwrap() += 1));
        assert!(!is_cheap(&mutex) && !is_cheap(&mutex));
        assert_eq!(*mutex.lock().unwrap(), MOST_BY_OTHERS);
    }

    #[test]
    fn a_guest_is_not_favored() {
        let mutex = BiasedMutex::new(0);
        by_another_thread(&mutex, |mutex| drop(mutex.lock_as_guest().unwrap()));
        assert!(!is_cheap(&mutex) && is_cheap(&mutex));
        let unbiased = BiasedMutex::unbiased(0);
        assert!((0..3).all(|_| !is_cheap(&unbiased)));
    }

    /// Seen to fail when the favored thread did not set `is_wanted` for its turn.
    #[test]
    fn the_favored_thread_does_not_enter_while_it_has_a_turn() {
        let mutex = BiasedMutex::new(0);
        let guard = mutex.lock().unwrap();
        assert!(guard.has_turn && !mutex.bias.try_enter(this_thread()));
        drop(guard);
        let guard = mutex.lock().unwrap();
        assert!(!guard.has_turn && !mutex.bias.try_enter(this_thread()));
    }

    #[test]
    fn a_thread_that_ends_while_it_is_favored_leaves_the_mutex_to_others() {
        let mutex = BiasedMutex::new(0);
        by_another_thread(&mutex, |mutex| assert!(!is_cheap(mutex) && is_cheap(mutex)));
        for _ in 0..2 * MOST_BY_OTHERS {
            by_another_thread(&mutex, |mutex| *mutex.lock().unwrap() += 1);
        }
        *mutex.lock().unwrap() += 1;
        assert_eq!(*mutex.lock().unwrap(), 2 * MOST_BY_OTHERS + 1);
    }

    #[test]
    fn each_side_waits_for_the_other() {
        for guests in [true, false] {
            let mutex = BiasedMutex::new(Vec::new());
            drop(mutex.lock().unwrap());
            let other = |mutex: &BiasedMutex<Vec<u32>>| {
                let guard = if guests { mutex.lock_as_guest() } else { mutex.lock() };
                guard.unwrap().push(2);
            };
            let mut guard = mutex.lock().unwrap();
            assert!(!guard.has_turn);
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| other(&mutex));
                // The other thread says that it wants the value, and waits.
                while !mutex.bias.is_wanted() {
                    std::thread::yield_now();
                }
                assert!(!waits.is_finished());
                guard.push(1);
                drop(guard);
                waits.join().unwrap();
            });
            assert_eq!(*mutex.lock().unwrap(), [1, 2], "{guests}");
        }
    }

    /// Seen to end the process when the thread slept by a function of the C library.
    #[test]
    fn a_thread_that_waits_is_not_canceled() {
        const DISABLE: libc::c_int = 1;
        unsafe extern "C" {
            fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
        }
        let mutex = Arc::new(BiasedMutex::new(0));
        drop(mutex.lock().unwrap());
        let guard = mutex.lock().unwrap();
        let waits = std::thread::spawn({
            let mutex = Arc::clone(&mutex);
            move || {
                *mutex.lock_as_guest().unwrap() += 1;
                // SAFETY: glibc's function; no old state is asked for.
                unsafe { pthread_setcancelstate(DISABLE, std::ptr::null_mut()) }
            }
        });
        while !mutex.bias.is_wanted() {
            std::thread::yield_now();
        }
        // SAFETY: the thread runs, since it waits for this one.
        assert_eq!(unsafe { libc::pthread_cancel(waits.as_pthread_t()) }, 0);
        // Time for its looks and some sleeps.
        std::thread::sleep(Duration::from_millis(20));
        drop(guard);
        assert_eq!(waits.join().unwrap(), 0);
        assert_eq!(*mutex.lock().unwrap(), 1);
    }

    #[test]
    fn no_change_is_lost() {
        const EACH: u64 = 20_000;
        let mutex = BiasedMutex::new((0_u64, 0_u64));
        drop(mutex.lock().unwrap());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let mut guard = mutex.lock_as_guest().unwrap();
                        guard.0 += 1;
                        guard.1 += 1;
                    }
                });
            }
            for _ in 0..50 * EACH {
                let mut guard = mutex.lock().unwrap();
                guard.0 += 1;
                assert_eq!(guard.0, guard.1 + 1);
                guard.1 += 1;
            }
        });
        assert_eq!(*mutex.lock().unwrap(), (52 * EACH, 52 * EACH));
    }

    #[test]
    fn a_panic_does_not_poison() {
        let mutex = BiasedMutex::new(7);
        drop(mutex.lock().unwrap());
        for _ in 0..2 {
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _guard = mutex.lock().unwrap();
                panic!("expected by the test");
            }));
            assert!(unwound.is_err() && *mutex.lock().unwrap() == 7);
        }
    }

    /// Makes the kernel refuse `membarrier` to this thread, with EPERM.
    fn refuse_barriers() {
        fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
            libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k }
        }
        let number = u32::try_from(libc::SYS_membarrier).unwrap();
        let mut steps = [
            // The number of the system call is the first word.
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs()),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: steps.as_mut_ptr() };
        // SAFETY: the kernel copies the filter, whose length is right. It concerns this thread only.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        assert!(done, "a filter of system calls: {}", std::io::Error::last_os_error());
    }

    #[test]
    fn a_thread_without_barriers_is_refused_and_others_go_on() {
        let mutex = BiasedMutex::new(0);
        drop(mutex.lock().unwrap());
        by_another_thread(&mutex, |mutex| {
            refuse_barriers();
            for _ in 0..2 * MOST_BY_OTHERS {
                assert_eq!(mutex.lock().unwrap_err(), NoBarrier);
                assert_eq!(mutex.lock_as_guest().unwrap_err(), NoBarrier);
            }
            let without = BiasedMutex::new(1);
            assert!((0..3).all(|_| !is_cheap(&without)), "no thread is favored where there are no barriers");
        });
        assert!(is_cheap(&mutex));
        by_another_thread(&mutex, |mutex| *mutex.lock().unwrap() += 1);
        assert_eq!(*mutex.lock().unwrap(), 1);
    }

    #[test]
    fn a_forked_child_has_barriers() {
        assert!(prepare_fences());
        // SAFETY: the child only makes system calls and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = if fence_all() { 0 } else { 1 };
            // SAFETY: ends the child without running any code of the parent.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: our own child, and a local variable for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    }
}
