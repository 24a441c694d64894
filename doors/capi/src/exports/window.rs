//! Grants of the caller's memory to other processes, and windows to theirs.

use super::{answer, change, count, end, hand_out, look, put, timeout};
use crate::exports::Mover;
use crate::failure::{Failure, Refusal};
use crate::raw::Raw;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use telpher_mover::{Grant as Lent, NotGranted, Outcome, StillInUse, Window as Inner, WindowDone, WindowError};

/// Memory of the caller that other processes access, until it is revoked. Any number of threads may use it.
#[derive(Debug)]
pub struct Grant(Mutex<State>);

/// What has become of a grant.
#[derive(Debug)]
enum State {
    /// Other processes may use the memory.
    Lent(Lent<Raw>),
    /// A thread waits for the end of their accesses. It does not hold the lock, so other calls do not wait for it.
    Revoking,
    /// The memory is its owner's again.
    Revoked,
}

/// Memory that another process has granted. Any number of threads may use it.
#[derive(Debug)]
pub struct Window(Inner);

/// Time limit of a grant that is freed without having been revoked. Source: chosen; an access takes some microseconds.
const FREE_LIMIT: Duration = Duration::from_secs(1);

impl Grant {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn revoke(&self, within: Duration) -> Result<(), Failure> {
        let grant = {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, State::Revoking) {
                State::Lent(grant) => grant,
                State::Revoking => return Err(Failure::NotYet(libc::EBUSY, "another thread is revoking the grant")),
                State::Revoked => {
                    *state = State::Revoked;
                    return Ok(());
                }
            }
        };
        let revoked = grant.revoke(within);
        let mut state = self.lock();
        match revoked {
            Ok(_) => {
                *state = State::Revoked;
                Ok(())
            }
            Err(StillInUse { grant, source }) => {
                *state = State::Lent(*grant);
                Err(source.into())
            }
        }
    }
}

/// A function of the mover that grants memory.
type Lend = fn(&telpher_mover::Mover, Raw) -> Result<Lent<Raw>, NotGranted<Raw>>;

/// Grants memory of the caller by `lend`, which says what other processes may do with it.
///
/// # Safety
///
/// As for [`telpher_grant_new`].
unsafe fn grant_memory(
    grant: *mut *mut Grant,
    mover: *const Mover,
    start: *const c_void,
    len: usize,
    lend: Lend,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller, for both.
        let (mover, memory) = unsafe { (look("the mover", mover)?, Raw::new("the memory", start, len as u64)?) };
        let lent = lend(&mover.inner, memory).map_err(|refused| refused.source)?;
        Ok(Grant(Mutex::new(State::Lent(lent))))
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(grant, make) })
}

/// Lets other processes read and write memory of the caller.
///
/// # Safety
///
/// See the [module's rules](crate); and the memory is lent until it was revoked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_grant_new(
    grant: *mut *mut Grant,
    mover: *const Mover,
    start: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: guaranteed by our caller.
    unsafe { grant_memory(grant, mover, start, len, telpher_mover::Mover::grant) }
}

/// Lets other processes read memory of the caller.
///
/// # Safety
///
/// As for [`telpher_grant_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_grant_new_readable(
    grant: *mut *mut Grant,
    mover: *const Mover,
    start: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: guaranteed by our caller.
    unsafe { grant_memory(grant, mover, start, len, telpher_mover::Mover::grant_readable) }
}

/// Writes the file descriptors of a grant and returns how many it has.
///
/// # Safety
///
/// See the [module's rules](crate); and `files` is valid for `room` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_grant_files(grant: *const Grant, files: *mut i32, room: u32) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let grant = unsafe { look("the grant", grant) }?;
        let state = grant.lock();
        let State::Lent(lent) = &*state else {
            return Err(Failure::Other(libc::EINVAL, "the grant was revoked".into()));
        };
        let numbers: Vec<i32> = lent.files().iter().map(AsRawFd::as_raw_fd).collect();
        for (at, number) in numbers.iter().enumerate().take(room as usize) {
            // SAFETY: below `room`; guaranteed by our caller.
            *unsafe { change("the list of files", files.wrapping_add(at)) }? = *number;
        }
        Ok(count(numbers.len()))
    })
}

/// Ends a grant and waits for accesses in progress.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_grant_revoke(grant: *const Grant, timeout_ns: i64) -> c_int {
    answer(|| {
        let within = timeout(timeout_ns)?.unwrap_or(Duration::MAX);
        // SAFETY: guaranteed by our caller.
        unsafe { look("the grant", grant) }?.revoke(within)?;
        Ok(0)
    })
}

/// Frees a grant's handle; it is revoked before.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_grant_free(grant: *mut Grant) -> c_int {
    if grant.is_null() {
        return 0;
    }
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the grant", grant) }?.revoke(FREE_LIMIT)?;
        // SAFETY: came from `hand_out` and is not used any more (guaranteed by our caller).
        drop(unsafe { Box::from_raw(grant) });
        Ok(0)
    })
}

/// Opens a window to memory of another process.
///
/// # Safety
///
/// See the [module's rules](crate); and `files` is valid for `count` numbers, each of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_window_open(
    window: *mut *mut Window,
    mover: *const Mover,
    files: *const i32,
    count: u32,
) -> c_int {
    let open = || {
        // SAFETY: guaranteed by our caller.
        let mover = unsafe { look("the mover", mover) }?;
        let mut borrowed = Vec::new();
        // A grant has two at most; the mover refuses another number.
        for at in 0..count.min(3) as usize {
            // SAFETY: below `count`; guaranteed by our caller.
            let number = *unsafe { look("the list of files", files.wrapping_add(at)) }?;
            if number < 0 {
                return Err(Failure::Other(libc::EBADF, format!("{number} is no file descriptor")));
            }
            // SAFETY: not -1, and open during this call (guaranteed by our caller).
            borrowed.push(unsafe { BorrowedFd::borrow_raw(number) });
        }
        Ok(Window(mover.inner.open_window(&borrowed)?))
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(window, open) })
}

/// Writes the number of granted bytes.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_window_size(window: *const Window, size: *mut u64) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { put("the output pointer for the size", size, look("the window", window)?.0.len()) })
}

/// Copies bytes out of a window.
///
/// # Safety
///
/// See the [module's rules](crate); and `into` is lent for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_window_read(window: *const Window, at: u64, into: *mut c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let window = unsafe { look("the window", window) }?;
        Raw::place("the destination", into, len as u64)?;
        // SAFETY: not null, `len` bytes in the address space, and ours alone during the call (guaranteed by our
        // caller).
        let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), len) };
        window.0.read(at, into)?;
        Ok(0)
    })
}

/// Copies bytes into a window.
///
/// # Safety
///
/// See the [module's rules](crate); and `from` is lent for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_window_write(
    window: *const Window,
    at: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let (window, from) = unsafe { (look("the window", window)?, bytes(from, len)?) };
        window.0.write(at, from)?;
        Ok(0)
    })
}

/// Repeats a pattern over bytes of a window.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_window_fill(window: *const Window, at: u64, len: u64, pattern: u64) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the window", window) }?.0.fill(at, len, pattern)?;
        Ok(0)
    })
}

/// Compares bytes of a window with bytes of the caller.
///
/// # Safety
///
/// See the [module's rules](crate); `with` is lent for the call, and `difference` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_window_compare(
    window: *const Window,
    at: u64,
    with: *const c_void,
    len: usize,
    difference: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let (window, with) = unsafe { (look("the window", window)?, bytes(with, len)?) };
        // SAFETY: guaranteed by our caller.
        unsafe { compared(window.0.compare(at, with), difference) }
    })
}

/// Compares bytes of a window with a repeated pattern.
///
/// # Safety
///
/// See the [module's rules](crate); and `difference` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_window_compare_pattern(
    window: *const Window,
    at: u64,
    len: u64,
    pattern: u64,
    difference: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let window = unsafe { look("the window", window) }?;
        // SAFETY: guaranteed by our caller.
        unsafe { compared(window.0.compare_pattern(at, len, pattern), difference) }
    })
}

/// Frees a window's handle.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_window_free(window: *mut Window) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(window) }
}

/// Returns 1 and the offset of the first difference, or 0.
///
/// # Safety
///
/// `difference` is NULL or writable.
unsafe fn compared(done: Result<WindowDone, WindowError>, difference: *mut u64) -> Result<c_int, Failure> {
    let Outcome::Different { at } = done?.outcome else { return Ok(0) };
    // SAFETY: guaranteed by our caller.
    if let Some(difference) = unsafe { difference.as_mut() } {
        *difference = at;
    }
    Ok(1)
}

/// Converts a range to a slice.
///
/// # Safety
///
/// No code writes the range for `'a`, if it is valid.
unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8], Refusal> {
    Raw::place("the source", start, len as u64)?;
    // SAFETY: not null, `len` bytes in the address space, and not written (guaranteed by our caller).
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) })
}
