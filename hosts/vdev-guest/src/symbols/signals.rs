//! Signal actions and masks: the program sees what it has set, and this library's traps stay installed.
#![allow(unsafe_code, reason = "replaces the C library's functions of these names")]

use super::originals::interpose;
use super::polling::{never_writable, poll_by};
use crate::run;
use crate::start::start;
use crate::sys::{self, Errno, call};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec};
use std::ffi::c_int;
use telpher_interpose::signals::{self, Action, Change};

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;
/// Result of the old functions on failure.
const SIG_ERR: usize = usize::MAX;
/// Result of sigset(3) for a blocked signal, and its argument that blocks one.
const SIG_HOLD: usize = 2;
/// A zero timeout.
static AT_ONCE: timespec = timespec { tv_sec: 0, tv_nsec: 0 };

/// Converts the interposer's errno to a result.
fn answer(result: Result<(), i32>) -> c_int {
    sys::answer_int(result.map(|()| 0).map_err(Errno::from_raw_os_error))
}

/// sigaction(2).
///
/// # Safety
/// As sigaction(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    start();
    // SAFETY: forwarded.
    answer(unsafe { signals::sigaction(signal, new, old) })
}

/// The same under the C library's internal name, which older programs use.
///
/// # Safety
/// As sigaction(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: forwarded.
    unsafe { sigaction(signal, new, old) }
}

/// Sets a handler, with flags; returns the former one.
///
/// # Safety
/// The handler is a function that takes a signal's number.
unsafe fn set_handler(signal: c_int, handler: usize, flags: c_int) -> usize {
    start();
    let bit = if flags & libc::SA_NODEFER == 0 { bit_of(signal) } else { 0 };
    let new = Action { handler, flags: u64::from(flags.cast_unsigned()), mask: bit };
    // SAFETY: forwarded.
    match unsafe { signals::action(signal, Some(new)) } {
        Ok(before) => before.handler,
        Err(errno) => {
            sys::set_errno(Errno::from_raw_os_error(errno));
            SIG_ERR
        }
    }
}

fn bit_of(signal: c_int) -> u64 {
    if (1..=64).contains(&signal) { 1 << (signal - 1) } else { 0 }
}

/// signal(2), as in the C library: with BSD semantics.
///
/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn signal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { set_handler(number, handler, libc::SA_RESTART) }
}

/// signal(2) under another name.
///
/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn bsd_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { signal(number, handler) }
}

/// signal(2) under another name.
///
/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ssignal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { signal(number, handler) }
}

/// System V's signal: the action is used once, and its signal is not blocked meanwhile.
///
/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { set_handler(number, handler, libc::SA_RESETHAND | libc::SA_NODEFER) }
}

/// System V's signal under the name that strict standard modes use.
///
/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { sysv_signal(number, handler) }
}

/// sigset(3).
///
/// # Safety
/// As sigset(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigset(number: c_int, handler: usize) -> usize {
    start();
    let bit = bit_of(number);
    let held = signals::mask(None) & bit != 0;
    let before = if handler == SIG_HOLD {
        signals::mask(Some((Change::Block, bit)));
        // SAFETY: only reads the action.
        unsafe { signals::action(number, None) }.map_or(SIG_ERR, |action| action.handler)
    } else {
        // SAFETY: forwarded.
        let before = unsafe { set_handler(number, handler, 0) };
        if before != SIG_ERR {
            signals::mask(Some((Change::Unblock, bit)));
        }
        before
    };
    if held && before != SIG_ERR { SIG_HOLD } else { before }
}

/// sighold(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn sighold(number: c_int) -> c_int {
    change_one(number, Change::Block)
}

/// sigrelse(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn sigrelse(number: c_int) -> c_int {
    change_one(number, Change::Unblock)
}

fn change_one(number: c_int, change: Change) -> c_int {
    start();
    let bit = bit_of(number);
    if bit == 0 {
        return answer(Err(libc::EINVAL));
    }
    signals::mask(Some((change, bit)));
    0
}

/// sigignore(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn sigignore(number: c_int) -> c_int {
    // SAFETY: SIG_IGN is not a function.
    if unsafe { set_handler(number, libc::SIG_IGN, 0) } == SIG_ERR { -1 } else { 0 }
}

/// siginterrupt(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    start();
    let restart = u64::from(libc::SA_RESTART.cast_unsigned());
    // SAFETY: reads the action, then sets the same handler.
    let changed = unsafe {
        signals::action(number, None).and_then(|action| {
            let flags = if interrupts == 0 { action.flags | restart } else { action.flags & !restart };
            signals::action(number, Some(Action { flags, ..action }))
        })
    };
    answer(changed.map(|_| ()))
}

/// sigprocmask(2).
///
/// # Safety
/// As sigprocmask(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigprocmask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    start();
    // SAFETY: forwarded.
    answer(unsafe { signals::sigprocmask(how, set, old) })
}

/// pthread_sigmask(3), which returns the error itself.
///
/// # Safety
/// As pthread_sigmask(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    start();
    // SAFETY: forwarded.
    unsafe { signals::sigprocmask(how, set, old) }.err().unwrap_or(0)
}

/// sigblock(3), for the first 32 signals.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn sigblock(mask: c_int) -> c_int {
    start();
    low_half(signals::mask(Some((Change::Block, mask.cast_unsigned().into()))))
}

/// sigsetmask(3), for the first 32 signals.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn sigsetmask(mask: c_int) -> c_int {
    start();
    low_half(signals::mask(Some((Change::Set, mask.cast_unsigned().into()))))
}

/// siggetmask(3), for the first 32 signals.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn siggetmask() -> c_int {
    start();
    low_half(signals::mask(None))
}

#[allow(clippy::cast_possible_truncation, reason = "the functions support 32 signals")]
fn low_half(mask: u64) -> c_int {
    (mask as u32).cast_signed()
}

/// The set to pass to the kernel for the program's set, within a run; `None` for a null pointer.
///
/// # Safety
/// The set is null or readable.
unsafe fn real_set(set: *const sigset_t) -> Option<sigset_t> {
    start();
    // SAFETY: the caller's set.
    let mut real = unsafe { set.as_ref() }.copied()?;
    if run::view().is_some() {
        real = signals::from_bits(signals::real_mask(signals::to_bits(&real)));
    }
    Some(real)
}

/// A pointer to the copy, or null.
fn pointer<T>(copy: Option<&T>) -> *const T {
    copy.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// sigpending(2).
///
/// # Safety
/// As sigpending(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigpending(set: *mut libc::sigset_t) -> c_int {
    start();
    let mut pending = 0_u64;
    let arguments = [(&raw mut pending).addr(), SET_BYTES, 0, 0, 0, 0];
    // SAFETY: the word outlives the call.
    let asked = unsafe { call(libc::SYS_rt_sigpending, arguments) };
    // SAFETY: the caller's set.
    if let (Ok(_), Some(set)) = (asked, unsafe { set.as_mut() }) {
        *set = signals::from_bits(pending | signals::pending());
    }
    sys::answer_int(asked.map(|_| 0))
}

// Functions that wait call the C library's, because a thread can be cancelled in them.
interpose! {
    fn sigsuspend(set: *const sigset_t) -> c_int { |next| {
        let real = real_set(set);
        if real.is_none() { answer(Err(libc::EFAULT)) } else { next(pointer(real.as_ref())) }
    } }
    fn ppoll(entries: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t) -> c_int { |next| {
        let real = real_set(set);
        poll_by(entries, count, |waits| next(entries, count, if waits { timeout } else { &raw const AT_ONCE }, pointer(real.as_ref())))
    } }
    fn __ppoll_chk(
        entries: *mut pollfd, count: nfds_t, timeout: *const timespec, set: *const sigset_t, room: usize,
    ) -> c_int { |next| {
        let real = real_set(set);
        let next = |timeout| next(entries, count, timeout, pointer(real.as_ref()), room);
        // The C library aborts a program whose array is too short; the array must not be read before.
        if (room / size_of::<pollfd>()) as u64 >= count {
            poll_by(entries, count, |waits| next(if waits { timeout } else { &raw const AT_ONCE }))
        } else {
            next(timeout)
        }
    } }
    fn pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, set: *const sigset_t,
    ) -> c_int { |next| {
        never_writable(count, write);
        let real = real_set(set);
        next(count, read, write, except, timeout, pointer(real.as_ref()))
    } }
    fn epoll_pwait(fd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, set: *const sigset_t) -> c_int { |next| {
        let real = real_set(set);
        next(fd, events, most, timeout, pointer(real.as_ref()))
    } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;
    use std::ptr::null_mut;

    type Body = extern "C" fn(*mut c_void) -> *mut c_void;

    /// The result of a cancelled thread.
    const CANCELED: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);

    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }

    extern "C" fn in_sigsuspend(set: *mut c_void) -> *mut c_void {
        // SAFETY: the set of the case, which waits for this thread.
        unsafe { sigsuspend(set.cast()) };
        null_mut()
    }

    extern "C" fn in_ppoll(set: *mut c_void) -> *mut c_void {
        // SAFETY: as above; no entries.
        unsafe { ppoll(null_mut(), 0, null_mut(), set.cast()) };
        null_mut()
    }

    extern "C" fn in_checked_ppoll(set: *mut c_void) -> *mut c_void {
        // SAFETY: as above.
        unsafe { __ppoll_chk(null_mut(), 0, null_mut(), set.cast(), 0) };
        null_mut()
    }

    extern "C" fn in_pselect(set: *mut c_void) -> *mut c_void {
        // SAFETY: as above; no sets of descriptors.
        unsafe { pselect(0, null_mut(), null_mut(), null_mut(), null_mut(), set.cast()) };
        null_mut()
    }

    extern "C" fn in_epoll_pwait(set: *mut c_void) -> *mut c_void {
        let mut event = epoll_event { events: 0, u64: 0 };
        // SAFETY: as above; one event.
        unsafe { epoll_pwait(libc::epoll_create1(libc::EPOLL_CLOEXEC), &raw mut event, 1, -1, set.cast()) };
        null_mut()
    }

    #[test]
    fn a_thread_that_waits_can_be_cancelled() {
        for body in [in_sigsuspend, in_ppoll, in_checked_ppoll, in_pselect, in_epoll_pwait] as [Body; 5] {
            let mut set = signals::from_bits(0);
            let (mut thread, mut result) = (0, null_mut());
            // SAFETY: the set outlives the thread, which is joined.
            unsafe {
                assert_eq!(libc::pthread_create(&raw mut thread, std::ptr::null(), body, (&raw mut set).cast()), 0);
                std::thread::sleep(std::time::Duration::from_millis(20));
                assert_eq!(pthread_cancel(thread), 0);
                assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            }
            assert_eq!(result, CANCELED);
        }
    }

    #[test]
    fn a_wait_ends_at_its_timeout() {
        let (at_once, none) = (&raw const AT_ONCE, std::ptr::null());
        // SAFETY: null pointers where they are allowed.
        unsafe {
            assert_eq!(ppoll(null_mut(), 0, at_once, none), 0);
            assert_eq!(pselect(0, null_mut(), null_mut(), null_mut(), at_once, none), 0);
            assert_eq!((sigsuspend(none), sys::errno()), (-1, libc::EFAULT));
        }
    }
}
