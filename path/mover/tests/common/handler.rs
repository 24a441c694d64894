//! A SIGUSR1 handler that copies with a mover and checks the result; for these tests and for programs under `telpher
//! run`.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(unsafe_code, reason = "handles a signal, and sends it")]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use telpher_mover::{Mover, Outcome};

/// The handler's mover, the number of its calls, and the number of its correct copies.
static MOVER: AtomicPtr<Mover> = AtomicPtr::new(std::ptr::null_mut());
static CALLED: AtomicUsize = AtomicUsize::new(0);
static COPIED: AtomicUsize = AtomicUsize::new(0);
const BYTES: usize = 20_000;
static FROM: [u8; BYTES] = [0xa5; BYTES];

extern "C" fn copies(_: i32) {
    // SAFETY: null, or a mover that lives longer than it is stored here.
    let Some(mover) = (unsafe { MOVER.load(Ordering::SeqCst).as_ref() }) else { return };
    let mut to = [0; BYTES];
    if mover.copy_slices(&FROM, &mut to) == Ok(Outcome::Done) && to == FROM {
        COPIED.fetch_add(1, Ordering::SeqCst);
    }
    CALLED.fetch_add(1, Ordering::SeqCst);
}

/// Runs `f` while SIGUSR1 copies with `mover`; returns the number of correct copies.
pub(crate) fn with_handler(mover: &Mover, f: impl FnOnce()) -> usize {
    CALLED.store(0, Ordering::SeqCst);
    COPIED.store(0, Ordering::SeqCst);
    MOVER.store(std::ptr::from_ref(mover).cast_mut(), Ordering::SeqCst);
    // SAFETY: installs the handler of this file.
    unsafe { libc::signal(libc::SIGUSR1, copies as *const () as libc::sighandler_t) };
    f();
    MOVER.store(std::ptr::null_mut(), Ordering::SeqCst);
    COPIED.load(Ordering::SeqCst)
}

/// Runs `f` repeatedly while this thread is interrupted `times` times, each time after the previous signal was handled.
/// Returns the number of correct copies.
pub(crate) fn interrupted(mover: &Mover, times: usize, mut f: impl FnMut()) -> usize {
    let done = AtomicBool::new(false);
    // SAFETY: names this thread, which outlives the other.
    let target = unsafe { libc::pthread_self() };
    with_handler(mover, || {
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for n in 1..=times {
                    // SAFETY: the target thread waits for this one.
                    unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
                    while CALLED.load(Ordering::SeqCst) < n {
                        std::thread::yield_now();
                    }
                }
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) {
                f();
            }
        });
    })
}
