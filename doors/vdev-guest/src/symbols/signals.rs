//! Signal actions and masks: the program sees what it has set, and the traps stay where they are.
#![allow(unsafe_code, reason = "stands in front of the C library's functions of these names")]

use crate::run;
use crate::start::start;
use crate::sys::{self, Errno, call, word};
use std::ffi::c_int;
use telpher_interpose::signals::{self, Action, Change};

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;
/// Answer of the old functions that failed.
const SIG_ERR: usize = usize::MAX;
/// Answer of sigset(3) for a blocked signal, and its request to block one.
const SIG_HOLD: usize = 2;

/// A negative errno of the interposer as an answer.
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

/// Sets a handler, with flags; the answer is the one before.
///
/// # Safety
/// The handler takes a signal's number.
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

/// signal(2), as the C library has it: BSD's.
///
/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn signal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { set_handler(number, handler, libc::SA_RESTART) }
}

/// signal(2) by another name.
///
/// # Safety
/// As signal(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn bsd_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: forwarded.
    unsafe { signal(number, handler) }
}

/// signal(2) by another name.
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
        // SAFETY: asks only.
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
    // SAFETY: to be ignored is no handler.
    if unsafe { set_handler(number, libc::SIG_IGN, 0) } == SIG_ERR { -1 } else { 0 }
}

/// siginterrupt(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    start();
    let restart = u64::from(libc::SA_RESTART.cast_unsigned());
    // SAFETY: asks only, then sets the handler that was there.
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

/// pthread_sigmask(3), which answers with the error itself.
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

/// sigblock(3), of the first 32 signals.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn sigblock(mask: c_int) -> c_int {
    start();
    low_half(signals::mask(Some((Change::Block, mask.cast_unsigned().into()))))
}

/// sigsetmask(3), of the first 32 signals.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn sigsetmask(mask: c_int) -> c_int {
    start();
    low_half(signals::mask(Some((Change::Set, mask.cast_unsigned().into()))))
}

/// siggetmask(3), of the first 32 signals.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn siggetmask() -> c_int {
    start();
    low_half(signals::mask(None))
}

#[allow(clippy::cast_possible_truncation, reason = "the functions know 32 signals")]
fn low_half(mask: u64) -> c_int {
    (mask as u32).cast_signed()
}

/// sigsuspend(2).
///
/// # Safety
/// As sigsuspend(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn sigsuspend(set: *const libc::sigset_t) -> c_int {
    start();
    // SAFETY: the caller's set.
    let Some(set) = (unsafe { set.as_ref() }) else { return answer(Err(libc::EFAULT)) };
    let mask = real_mask(signals::to_bits(set));
    let arguments = [(&raw const mask).addr(), SET_BYTES, 0, 0, 0, 0];
    // SAFETY: the mask outlives the call.
    sys::answer_int(unsafe { call(libc::SYS_rt_sigsuspend, arguments) }.map(|_| 0))
}

/// The set the kernel may be given for the program's, in a run.
fn real_mask(set: u64) -> u64 {
    if run::view().is_some() { signals::real_mask(set) } else { set }
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

/// ppoll(2).
///
/// # Safety
/// As ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ppoll(
    files: *mut libc::pollfd,
    count: libc::nfds_t,
    timeout: *const libc::timespec,
    set: *const libc::sigset_t,
) -> c_int {
    start();
    // SAFETY: the caller's set.
    let mask = unsafe { set.as_ref() }.map(|set| real_mask(signals::to_bits(set)));
    // The kernel writes the time that is left; the caller's stays as it is.
    // SAFETY: the caller's time.
    let mut left = unsafe { timeout.as_ref() }.copied();
    let arguments = [
        files.expose_provenance(),
        usize::try_from(count).unwrap_or(usize::MAX),
        left.as_mut().map_or(0, |left| std::ptr::from_mut(left).addr()),
        mask.as_ref().map_or(0, |mask| std::ptr::from_ref(mask).addr()),
        SET_BYTES,
        0,
    ];
    // SAFETY: forwarded; mask and time outlive the call.
    sys::answer_int(unsafe { call(libc::SYS_ppoll, arguments) }.map(sys::descriptor))
}

/// pselect(2).
///
/// # Safety
/// As pselect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut libc::fd_set,
    write: *mut libc::fd_set,
    except: *mut libc::fd_set,
    timeout: *const libc::timespec,
    set: *const libc::sigset_t,
) -> c_int {
    start();
    // SAFETY: the caller's set.
    let mask = unsafe { set.as_ref() }.map(|set| real_mask(signals::to_bits(set)));
    // SAFETY: the caller's time.
    let mut left = unsafe { timeout.as_ref() }.copied();
    // What the kernel's sixth argument points to: the mask and its size.
    let packed = [mask.as_ref().map_or(0, |mask| std::ptr::from_ref(mask).addr()), SET_BYTES];
    let arguments = [
        word(count),
        read.expose_provenance(),
        write.expose_provenance(),
        except.expose_provenance(),
        left.as_mut().map_or(0, |left| std::ptr::from_mut(left).addr()),
        packed.as_ptr().addr(),
    ];
    // SAFETY: forwarded; mask, time and pair outlive the call.
    sys::answer_int(unsafe { call(libc::SYS_pselect6, arguments) }.map(sys::descriptor))
}

/// epoll_pwait(2).
///
/// # Safety
/// As epoll_pwait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn epoll_pwait(
    fd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
    set: *const libc::sigset_t,
) -> c_int {
    start();
    // SAFETY: the caller's set.
    let mask = unsafe { set.as_ref() }.map(|set| real_mask(signals::to_bits(set)));
    let mask = mask.as_ref().map_or(0, |mask| std::ptr::from_ref(mask).addr());
    let arguments = [word(fd), events.expose_provenance(), word(most), word(timeout), mask, SET_BYTES];
    // SAFETY: forwarded; the mask outlives the call.
    sys::answer_int(unsafe { call(libc::SYS_epoll_pwait, arguments) }.map(sys::descriptor))
}
