//! Threads that run no signal handlers of the program, and a mutex that favors a thread.
#![allow(unsafe_code, reason = "changes a thread's signal mask for a moment; reads its number; a mutex; membarrier")]

mod bias;
mod biased_mutex;
mod sync;

pub use bias::NoBarrier;
pub use biased_mutex::{BiasedGuard, BiasedMutex};

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// Signals that an instruction of the thread itself raises. If they were blocked, the kernel would end the process
/// without calling a handler.
const OWN: [libc::c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that handles no signals sent to the process. The kernel delivers them to the program's threads, and
/// keeps them pending while those block them. The thread still handles signals that it raises itself, and those by
/// which the C library changes the user ids of all threads.
///
/// # Errors
///
/// The system refuses to start a thread.
pub fn spawn_unsignalled<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: the sets are locals of this thread; the first is filled before it is used. The old mask is restored
    // before this returns. The C library leaves its own signals out of the mask.
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

/// Returns a number that no other thread has at the same time. It is even, and not 0.
#[inline]
fn this_thread() -> usize {
    let number: usize;
    // SAFETY: the first word of a thread's block, to which FS points, is the block's own address. Source: ELF Handling
    // For Thread-Local Storage, x86-64.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) number, options(pure, readonly, nostack, preserves_flags)) };
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the signals that this thread blocks.
    fn blocked() -> Vec<libc::c_int> {
        let mut mask = MaybeUninit::uninit();
        // SAFETY: reads the mask only.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr());
            (1..=libc::SIGRTMAX()).filter(|&signal| libc::sigismember(mask.as_ptr(), signal) == 1).collect()
        }
    }

    #[test]
    fn an_unsignalled_thread_blocks_all_but_its_own_signals() {
        let before = blocked();
        let there = spawn_unsignalled("quiet", blocked).unwrap().join().unwrap();
        for signal in [libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD, libc::SIGPROF, libc::SIGRTMAX()] {
            assert!(there.contains(&signal), "{signal} of {there:?}");
        }
        assert!(OWN.iter().all(|signal| !there.contains(signal)), "{there:?}");
        assert_eq!(blocked(), before);
    }
}
