//! Which process of a family this is: a word that the kernel empties in every forked child.
//!
//! A child inherits its parent's memory and with it everything that names the parent: queues of a device that know the
//! parent's address space, jobs in flight, locks. Whoever holds such a thing keeps the [`Lineage`] it was made in and
//! asks whether that is still the present one. The kernel answers (`MADV_WIPEONFORK`, Linux 4.14), so that no `fork`
//! is missed, also not one by a bare system call; threads and children of `vfork` share memory, and are the same
//! process here.
#![allow(unsafe_code, reason = "a page that the kernel empties on fork, and the handler that stands in for it")]

use crate::PAGE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// The process in which something was made.
///
/// ```
/// use telpher_os::Lineage;
///
/// let made_in = Lineage::current();
/// assert!(made_in.is_current()); // false in a child forked from here on
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Lineage {
    /// The word that is empty in a new process.
    mark: &'static AtomicU64,
    /// What stood in it.
    number: u64,
}

impl Lineage {
    /// This process. The first call of a process makes a system call or two; takes no lock ever.
    #[must_use]
    pub fn current() -> Lineage {
        /// Numbers given so far, by this process and those it descends from: an ancestor's number never comes again.
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let mark = mark();
        // Acquire: pairs with the Release below, for symmetry with `is_current`; the number itself is all there is.
        let found = mark.load(Ordering::Acquire);
        if found != 0 {
            return Lineage { mark, number: found };
        }
        // Relaxed: only the number counts. It cannot run over: one for each process of a family.
        let fresh = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
        // Release: see above. Of several threads one gives the number and all take it.
        let number = match mark.compare_exchange(0, fresh, Ordering::Release, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(other) => other,
        };
        Lineage { mark, number }
    }

    /// False if this process is a forked descendant of the one in which this value was made. One load; may be called from
    /// signal handlers.
    #[inline]
    #[must_use]
    pub fn is_current(&self) -> bool {
        // Relaxed: a process sees its own mark, which changes only before its first instruction.
        self.mark.load(Ordering::Relaxed) == self.number
    }
}

/// Calls `before` in the thread that forks, and `after` in the same thread of the parent and of the child; for every `fork`
/// from now on that goes through the C library.
///
/// # Panics
///
/// If there is no memory to remember that.
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

/// The word; the same in all threads.
fn mark() -> &'static AtomicU64 {
    static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    // Acquire: pairs with the Release below; what is pointed to is ready.
    let mut found = MARK.load(Ordering::Acquire);
    if found.is_null() {
        // By exchange and not behind a lock: a fork may happen while another thread is in here.
        let made = wiped_page().unwrap_or_else(handled_word);
        // Release: see above.
        match MARK.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Acquire) {
            Ok(_) => found = made,
            // Another thread was first; our page stays, unused.
            Err(theirs) => found = theirs,
        }
    }
    // SAFETY: not null; both makers give an aligned word that lives for ever and is only used as an atomic.
    unsafe { &*found }
}

/// The first word of a page that the kernel empties in a child.
fn wiped_page() -> Option<*mut AtomicU64> {
    let len = usize::try_from(PAGE_BYTES).expect("a page is small");
    // SAFETY: without MAP_FIXED the kernel picks a range that is not used. The range is ours until it is unmapped, and no byte of it changes
    // in this process.
    unsafe {
        let page =
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?;
        if madvise(page, len, Advice::LinuxWipeOnFork).is_err() {
            let _ = munmap(page, len);
            return None;
        }
        Some(page.cast())
    }
}

/// A word that a handler empties in a child, for kernels or sandboxes without such pages. Misses a `fork` that does not go
/// through the C library.
fn handled_word() -> *mut AtomicU64 {
    static WORD: AtomicU64 = AtomicU64::new(0);
    extern "C" fn child() {
        // Relaxed: the child has one thread yet.
        WORD.store(0, Ordering::Relaxed);
    }
    // SAFETY: the handler is async-signal-safe and lives as long as this code; no other handlers are registered.
    let refused = unsafe { libc::pthread_atfork(None, None, Some(child)) };
    assert!(refused == 0, "out of memory: neither a page nor a fork handler to tell a child from its parent by");
    (&raw const WORD).cast_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child of `fork` finds.
    fn in_child(fork: impl FnOnce() -> i32, look: impl FnOnce() -> bool) -> bool {
        let child = fork();
        if child == 0 {
            let code = if look() { 0 } else { 1 };
            // SAFETY: ends the child without anything of the parent's being run.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: our own child, a place of our own for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    fn by_library() -> i32 {
        // SAFETY: the child only loads and stores atomics, makes system calls and exits.
        unsafe { libc::fork() }
    }

    fn by_system_call() -> i32 {
        // SAFETY: as above; no new stack, so it goes on where its parent is.
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
    fn without_pages_of_that_kind_a_handler_empties_the_word() {
        let word = handled_word();
        // SAFETY: a word that lives for ever.
        let word: &'static AtomicU64 = unsafe { &*word };
        // Relaxed: forks order themselves.
        word.store(7, Ordering::Relaxed);
        assert!(in_child(by_library, || word.load(Ordering::Relaxed) == 0));
        assert_eq!(word.load(Ordering::Relaxed), 7);
    }
}
