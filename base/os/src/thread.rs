//! Threads on which no handler of the program's runs.
#![allow(unsafe_code, reason = "changes the calling thread's signal mask for a moment")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// What an instruction of a thread's own raises. Blocked, it would end the process without the handler that may know better.
const OWN: [libc::c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that takes no signals of the process': they go to the program's threads, as if this one were not there, and wait while those
/// block them. What the thread itself raises it takes, and so does it those by which the C library changes all threads' identity.
///
/// # Errors
///
/// The system refuses a thread.
pub fn spawn_unsignalled<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: sets of this thread's own, the first of which is filled first. The mask is what it was when this returns; the C library leaves its own
    // signals out of it.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in OWN {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    // SAFETY: the call above has filled it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    thread
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which signals this thread blocks.
    fn blocked() -> Vec<libc::c_int> {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: asks only.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
            (1..=libc::SIGRTMAX()).filter(|&signal| libc::sigismember(mask.as_ptr(), signal) == 1).collect()
        }
    }

    #[test]
    fn such_a_thread_takes_its_own_signals_and_no_others_and_its_maker_all_that_it_did() {
        let before = blocked();
        let there = spawn_unsignalled("quiet", blocked).unwrap().join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD, libc::SIGPROF, libc::SIGRTMAX()] {
            assert!(there.contains(&signal), "{signal} of {there:?}");
        }
        assert!(OWN.iter().all(|signal| !there.contains(signal)), "{there:?}");
        assert_eq!(blocked(), before);
    }
}
