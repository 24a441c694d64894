//! SIGUSR1 copies by a mover and looks at what came of it; for these tests and for programs under `telpher run`.
#![allow(dead_code, reason = "each test uses a part of it")]
#![allow(unsafe_code, reason = "handles a signal, and sends it")]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use telpher_mover::{Mover, Outcome};

/// What the handler copies by, how often it was called, and how often that went well.
static MOVER: AtomicPtr<Mover> = AtomicPtr::new(std::ptr::null_mut());
static CALLED: AtomicUsize = AtomicUsize::new(0);
static COPIED: AtomicUsize = AtomicUsize::new(0);
const BYTES: usize = 20_000;
static FROM: [u8; BYTES] = [0xa5; BYTES];

extern "C" fn copies(_: i32) {
    // SAFETY: null, or a mover that outlives its being named here.
    let Some(mover) = (unsafe { MOVER.load(Ordering::SeqCst).as_ref() }) else { return };
    let mut to = [0; BYTES];
    if mover.copy_slices(&FROM, &mut to) == Ok(Outcome::Done) && to == FROM {
        COPIED.fetch_add(1, Ordering::SeqCst);
    }
    CALLED.fetch_add(1, Ordering::SeqCst);
}

/// Runs `f` while SIGUSR1 copies by `mover`; how often that went well.
pub(crate) fn with_handler(mover: &Mover, f: impl FnOnce()) -> usize {
    CALLED.store(0, Ordering::SeqCst);
    COPIED.store(0, Ordering::SeqCst);
    MOVER.store(std::ptr::from_ref(mover).cast_mut(), Ordering::SeqCst);
    // SAFETY: a handler that does what this file is about.
    unsafe { libc::signal(libc::SIGUSR1, copies as *const () as libc::sighandler_t) };
    f();
    MOVER.store(std::ptr::null_mut(), Ordering::SeqCst);
    COPIED.load(Ordering::SeqCst)
}

/// Runs `f` again and again while this thread is interrupted so many times, the next time when the one before has been answered;
/// how many of those copies went well.
pub(crate) fn interrupted(mover: &Mover, times: usize, mut f: impl FnMut()) -> usize {
    let done = AtomicBool::new(false);
    // SAFETY: names this thread, which outlives the other.
    let target = unsafe { libc::pthread_self() };
    with_handler(mover, || {
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for n in 1..=times {
                    // SAFETY: the thread waits for this one.
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
