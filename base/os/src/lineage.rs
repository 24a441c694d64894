//! Identifies a process across forks, by a word that the kernel zeroes in every forked child.
//!
//! A child inherits its parent's memory, including everything that refers to the parent: queues of a device that know
//! the parent's address space, jobs in flight, locks. The owner of such an object keeps the [`Lineage`] in which it was
//! created, and checks whether it is still the current one. The kernel zeroes the word (`MADV_WIPEONFORK`, Linux 4.14),
//! so no `fork` is missed, not even one by a bare system call. Threads and children of `vfork` share memory, and count
//! as the same process.
#![allow(unsafe_code, reason = "a page that the kernel zeroes on fork, and the handler that replaces it")]

use crate::PAGE_BYTES;
use crate::new_memory::map_private;
use rustix::mm::{Advice, madvise, munmap};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Identifies the process in which an object was created.
///
/// ```
/// use telpher_os::Lineage;
///
/// let made_in = Lineage::current();
/// assert!(made_in.is_current()); // false in a child forked from here on
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lineage {
    /// The word that is zero in a new process.
    mark: &'static AtomicU64,
    /// The value of the word when this was created.
    number: u64,
}

impl Lineage {
    /// Returns the identity of this process. The first call of a process makes a system call or two; it never takes a
    /// lock.
    #[must_use]
    pub fn current() -> Lineage {
        /// The last number given by this process and its ancestors; an ancestor's number is never reused.
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let mark = mark();
        // Acquire: pairs with the Release below, for symmetry with `is_current`; only the number itself matters.
        let found = mark.load(Ordering::Acquire);
        if found != 0 {
            return Lineage { mark, number: found };
        }
        // Relaxed: only the number matters. It cannot overflow: there is one for each process of a family.
        let fresh = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
        // Release: see above. If several threads race, one stores its number and all use it.
        let number = match mark.compare_exchange(0, fresh, Ordering::Release, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => other,
        };
        Lineage { mark, number }
    }

    /// False if this process is a forked descendant of the one that created this value. One load; may be called from
    /// signal handlers.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        // Relaxed: a process sees its own mark, which changes only before the process' first instruction.
        self.mark.load(Ordering::Relaxed) == self.number
    }
}

/// Registers handlers for every later `fork` that goes through the C library. `before` runs in the thread that forks;
/// `after` runs in the same thread, in the parent and in the child.
///
/// # Panics
///
/// If the system has no memory for the registration.
pub fn on_fork(before: extern "C" fn(), after: extern "C" fn()) {
    // SAFETY: safe functions that live as long as this code.
    let refused = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    assert!(refused == 0, "out of memory: the system cannot remember fork handlers");
}

impl PartialEq for Lineage {
    fn eq(&self, other: &Lineage) -> bool {
        self.number == other.number
    }
}

impl Eq for Lineage {}

/// Returns the word; the same in all threads.
fn mark() -> &'static AtomicU64 {
    static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    // Acquire: pairs with the Release below; the word is initialised.
    let mut found = MARK.load(Ordering::Acquire);
    if found.is_null() {
        // An exchange instead of a lock: a fork may happen while another thread is in here.
        let made = wiped_page().unwrap_or_else(handled_word);
        // Release: see above.
        match MARK.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Acquire) {
            Ok(_) => found = made,
            // Another thread was first; our page stays allocated, unused.
            Err(theirs) => found = theirs,
        }
    }
    // SAFETY: not null; both functions return an aligned word that lives for ever and is only used as an atomic.
    unsafe { &*found }
}

/// Returns the first word of a page that the kernel zeroes in a child.
fn wiped_page() -> Option<*mut AtomicU64> {
    let len = usize::try_from(PAGE_BYTES).expect("a page is small");
    // SAFETY: the range is ours until it is unmapped, and no byte of it changes in this process.
    unsafe {
        let page = map_private(len).ok()?.as_ptr().cast();
        if madvise(page, len, Advice::LinuxWipeOnFork).is_err() {
            let _ = munmap(page, len);
            return None;
        }
        Some(page.cast())
    }
}

/// Returns a word that a fork handler zeroes in a child, for kernels or sandboxes without such pages. It misses a
/// `fork` that does not go through the C library.
fn handled_word() -> *mut AtomicU64 {
    static WORD: AtomicU64 = AtomicU64::new(0);
    extern "C" fn child() {
        // Relaxed: the child has only one thread so far.
        WORD.store(0, Ordering::Relaxed);
    }
    // SAFETY: the handler is async-signal-safe and lives as long as this code; no other handlers are registered.
    let refused = unsafe { libc::pthread_atfork(None, None, Some(child)) };
    assert!(refused == 0, "out of memory: no page and no fork handler to detect forks");
    (&raw const WORD).cast_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of `look` in a forked child.
    fn in_child(fork: impl FnOnce() -> i32, look: impl FnOnce() -> bool) -> bool {
        let child = fork();
        if child == 0 {
            let code = if look() { 0 } else { 1 };
            // SAFETY: ends the child without running any code of the parent.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: our own child, and a local variable for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    fn by_library() -> i32 {
        // SAFETY: the child only loads and stores atomics, makes system calls and exits.
        unsafe { libc::fork() }
    }

    fn by_system_call() -> i32 {
        // SAFETY: as above; without a new stack the child continues on a copy of its parent's.
        let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        i32::try_from(pid).unwrap_or(-1)
    }

    #[test]
    fn a_child_is_another_process_however_it_was_forked() {
        let here = Lineage::current();
        for fork in [by_library, by_system_call] {
            assert!(in_child(fork, || !here.is_current() && Lineage::current() != here));
            assert!(here.is_current() && Lineage::current() == here);
        }
    }

    #[test]
    fn a_grandchild_is_neither_its_parent_nor_its_grandparent() {
        let here = Lineage::current();
        assert!(in_child(by_library, || {
            let child = Lineage::current();
            child.is_current()
                && in_child(by_library, || {
                    let grandchild = Lineage::current();
                    grandchild.is_current() && !child.is_current() && !here.is_current() && grandchild != child
                })
        }));
    }

    #[test]
    fn a_thread_is_the_same_process() {
        let here = Lineage::current();
        assert!(std::thread::spawn(move || here.is_current() && Lineage::current() == here).join().unwrap());
    }

    #[test]
    fn without_wiped_pages_a_fork_handler_zeroes_the_word() {
        let word = handled_word();
        // SAFETY: a word that lives for ever.
        let word: &'static AtomicU64 = unsafe { &*word };
        // Relaxed: a fork orders memory by itself.
        word.store(7, Ordering::Relaxed);
        assert!(in_child(by_library, || word.load(Ordering::Relaxed) == 0));
        assert_eq!(word.load(Ordering::Relaxed), 7);
    }
}
