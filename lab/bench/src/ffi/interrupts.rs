//! Signals that interrupt the system calls of a thread, for tests.

use std::os::unix::thread::JoinHandleExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// The signal: one that nothing else in a test sends.
const SIGNAL: libc::c_int = libc::SIGWINCH;

/// Signals that were handled.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Sends signals to a thread, whose handler does not restart system calls, until `enough` were handled or the thread
/// has ended.
pub(crate) fn interrupt<T>(thread: &JoinHandle<T>, enough: usize) {
    // SAFETY: an all-zero sigaction is a valid value: no flags, an empty mask. The handler only adds to an atomic
    // number.
    let failed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(failed, 0, "the signal may be handled");
    while HANDLED.load(Ordering::SeqCst) < enough && !thread.is_finished() {
        // SAFETY: the handle keeps the thread's identifier valid.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), SIGNAL) };
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}
