//! Movers, and synchronous operations.

use super::{answer, change, copy_text, count, hand_out, look, text};
use crate::c_structs::{Op, OpResult, opcode};
use crate::failure::{Failure, Refusal};
use crate::job::{Ended, Job, for_c};
use crate::options::{Of, Options};
use crate::raw::{Raw, Request};
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::with_exposed_provenance_mut;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use telpher_mover::{Learning, Mover as Inner, Notifier, Opcode, Outcome};

/// A mover, and a value that its functions check on every call. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Mover {
    pub(super) inner: Inner,
    /// Reports the ends of jobs, once the program has asked for a descriptor. Shared with lists that are being built.
    pub(super) notifier: Arc<OnceLock<Notifier>>,
    /// Shorter copies always use the CPU, on a path without code that could unwind.
    small: u64,
}

/// Creates a mover over a device's queues; over none for `device` NULL.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_mover_new(
    mover: *mut *mut Mover,
    device: *const crate::device::Device,
    options: *const c_char,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let Options { policy, queues, tuning, .. } = Options::parse(Of::Mover, unsafe { super::options(options) }?)?;
        // SAFETY: guaranteed by our caller.
        let inner = match unsafe { device.as_ref() } {
            Some(device) => device.mover(queues.as_deref(), policy)?,
            None => Inner::new([], policy),
        };
        if let Some(tuning) = &tuning {
            inner.load_costs(tuning);
        }
        let alone = inner.portals().next().is_none();
        let small = match policy.learning {
            _ if alone => u64::MAX,
            Learning::Off => policy.threshold.of(Opcode::MemoryMove),
            // A learned policy may send any copy to a device.
            Learning::On => 0,
        };
        Ok(Mover { inner, notifier: Arc::default(), small })
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(mover, make) })
}

/// Frees a mover's handle, after no device uses memory of abandoned operations.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_mover_free(mover: *mut Mover) -> c_int {
    if mover.is_null() {
        return 0;
    }
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let inner = &unsafe { look("the mover", mover) }?.inner;
        let end = Instant::now() + inner.policy().linger;
        while outstanding(inner) > 0 {
            inner.drive();
            if Instant::now() >= end {
                let why = "abandoned operations have no completion record yet; the mover stays valid, free it later";
                return Err(Failure::NotYet(libc::EBUSY, why));
            }
            std::thread::yield_now();
        }
        // SAFETY: came from `telpher_mover_new` and is not used any more (guaranteed by our caller).
        let Mover { inner, notifier, .. } = *unsafe { Box::from_raw(mover) };
        drop(inner);
        // So that nothing of the mover is in use afterwards, unless a watched job or a batch still needs it.
        if let Some(notifier) = Arc::into_inner(notifier).and_then(OnceLock::into_inner) {
            notifier.close();
        }
        Ok(0)
    })
}

fn outstanding(inner: &Inner) -> usize {
    inner.orphaned() + inner.quarantined()
}

/// Returns the current value of an option as text.
///
/// # Safety
///
/// See the [module's rules](crate); and `buffer` is valid for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_mover_option(
    mover: *const Mover,
    key: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let (mover, key) = unsafe { (look("the mover", mover)?, text("the option", key)?) };
        let value = mover.inner.policy().get(key);
        let value = value.ok_or_else(|| Refusal::Option(format!("a mover has no setting '{key}'")))?;
        // SAFETY: guaranteed by our caller.
        unsafe { copy_text(&value, buffer, size) }
    })
}

/// The number of operations that were abandoned or timed out and whose memory a device may still use.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_mover_outstanding(mover: *const Mover) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(outstanding(&unsafe { look("the mover", mover) }?.inner))))
}

/// Runs devices without a thread of their own, and detects the end of abandoned operations.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_mover_drive(mover: *const Mover) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the mover", mover) }?.inner.drive();
        Ok(0)
    })
}

/// Returns a descriptor that is readable while there are jobs whose end `telpher_mover_ended` has not reported.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_mover_fd(mover: *const Mover) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let mover = unsafe { look("the mover", mover) }?;
        if mover.notifier.get().is_none() {
            let notifier = mover.inner.notifier().map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                Failure::Other(errno, format!("cannot report the ends of jobs by a descriptor: {error}"))
            })?;
            // Another thread may have been faster; then this notifier's thread ends.
            let _ = mover.notifier.set(notifier);
        }
        Ok(notifier_of(mover)?.map_or(-libc::EIO, |notifier| notifier.as_fd().as_raw_fd()))
    })
}

/// Returns the notifier of a mover, if it has one; a forked child cannot use its parent's.
fn notifier_of(mover: &Mover) -> Result<Option<&Notifier>, Failure> {
    let notifier = mover.notifier.get();
    if notifier.is_some_and(|notifier| !notifier.is_own_process()) {
        let why = "the descriptor of this mover belongs to the process that forked this one; create a mover here";
        return Err(Failure::NotYet(libc::ECHILD, why));
    }
    Ok(notifier)
}

/// Writes the handles of jobs that have ended to a list; returns how many.
///
/// # Safety
///
/// See the [module's rules](crate); and `jobs` is valid for `most` pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_mover_ended(mover: *const Mover, jobs: *mut *mut Job, most: usize) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let mover = unsafe { look("the mover", mover) }?;
        if jobs.is_null() {
            return Err(Refusal::Null("the list of jobs").into());
        }
        let most = most.min(c_int::MAX as usize);
        let tokens = notifier_of(mover)?.map_or(Vec::new(), |notifier| notifier.take_ended(most));
        for (index, &token) in tokens.iter().enumerate() {
            // A token is the address of a handle, see `hand_out_job`.
            let job = with_exposed_provenance_mut(usize::try_from(token).unwrap_or_default());
            // SAFETY: `index < most`, and valid for that many as our caller guarantees.
            unsafe { jobs.add(index).write(job) };
        }
        Ok(count(tokens.len()))
    })
}

/// Executes one operation and waits for it.
///
/// # Safety
///
/// See the [module's rules](crate); and the operation's ranges are lent until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_run(mover: *const Mover, op: *const Op, result: *mut OpResult) -> c_int {
    answer(|| {
        let run = || {
            // SAFETY: guaranteed by our caller.
            let (mover, op) = unsafe { (look("the mover", mover)?, look("the operation", op)?) };
            // SAFETY: lent until this returns, and then the request has ended or the mover counts it as outstanding,
            // for which the header has its own rule.
            Ok(Job::run(&mover.inner, unsafe { Request::of(op) }?))
        };
        let (words, failure) = match run() {
            Ok(ended) => for_c(&ended),
            Err(failure) => (OpResult::refused(&failure), Some(failure)),
        };
        // SAFETY: guaranteed by our caller.
        if let Ok(result) = unsafe { change("the result", result) } {
            *result = words;
        }
        failure.map_or(Ok(0), Err)
    })
}

/// Executes one operation of the short functions below.
///
/// # Safety
///
/// As for [`telpher_run`].
unsafe fn simply(mover: *const Mover, op: &Op) -> Result<Outcome, Failure> {
    // SAFETY: guaranteed by our caller.
    let mover = unsafe { look("the mover", mover) }?;
    // SAFETY: as in `telpher_run`.
    let (result, _): Ended = Job::run(&mover.inner, unsafe { Request::of(op) }?);
    Ok(result?)
}

/// An operation with all fields zero.
const NOTHING: Op = Op {
    opcode: opcode::TELPHER_NOP,
    flags: 0,
    user_data: 0,
    src: std::ptr::null(),
    src2: std::ptr::null(),
    dst: std::ptr::null_mut(),
    dst2: std::ptr::null_mut(),
    len: 0,
    dst_len: 0,
    pattern: [0; 2],
    seed: 0,
    dif: crate::c_structs::Dif { block: 0, flags: 0, source: 0, dest: 0 },
    tags: crate::c_structs::Tags { ref_tag: 0, app_tag: 0, app_mask: 0 },
    new_tags: crate::c_structs::Tags { ref_tag: 0, app_tag: 0, app_mask: 0 },
    arithmetic: crate::c_structs::Arithmetic { input: 0, output: 0, compute: 0, flags: 0 },
    block: 0,
    src2_len: 0,
    reserved: [0; 1],
};

/// Copies `len` bytes between ranges that do not overlap.
///
/// # Safety
///
/// See the [module's rules](crate); and both ranges are lent until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_copy(mover: *const Mover, dst: *mut c_void, src: *const c_void, len: usize) -> c_int {
    // SAFETY: guaranteed by our caller.
    if let Some(handle) = unsafe { mover.as_ref() }
        && (len as u64) < handle.small
        // SAFETY: lent by our caller until we return.
        && let Some((src, dst)) = unsafe { Raw::pair(src, dst, len) }
    {
        // SAFETY: lent by our caller until we return, and `pair` checked that they are two ranges.
        return match handle.inner.copy_slices(unsafe { src.bytes() }, unsafe { dst.bytes_mut() }) {
            Ok(_) => 0,
            Err(error) => Failure::Job(error).report(),
        };
    }
    // SAFETY: guaranteed by our caller.
    unsafe { copy_far(mover, dst, src, len) }
}

/// A copy that is large or invalid.
///
/// # Safety
///
/// As for [`telpher_copy`].
#[cold]
#[inline(never)]
unsafe fn copy_far(mover: *const Mover, dst: *mut c_void, src: *const c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let mover = unsafe { look("the mover", mover) }?;
        // SAFETY: lent by our caller until we return; a scope has ended by then.
        let (from, to) = unsafe { Raw::two(src, dst, len as u64) }?;
        // SAFETY: as above, and `two` checked that they do not overlap.
        mover.inner.copy_slices(unsafe { from.bytes() }, unsafe { to.bytes_mut() })?;
        Ok(0)
    })
}

/// Copies `len` bytes between ranges that may overlap.
///
/// # Safety
///
/// As for [`telpher_copy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_move(mover: *const Mover, dst: *mut c_void, src: *const c_void, len: usize) -> c_int {
    let op = Op { opcode: opcode::TELPHER_MOVE, src, dst, len: len as u64, ..NOTHING };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { simply(mover, &op) }.map(|_| 0))
}

/// Repeats the 8 bytes of `pattern` over `len` bytes.
///
/// # Safety
///
/// As for [`telpher_copy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_fill(mover: *const Mover, dst: *mut c_void, pattern: u64, len: usize) -> c_int {
    let op = Op { opcode: opcode::TELPHER_FILL, dst, pattern: [pattern, 0], len: len as u64, ..NOTHING };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { simply(mover, &op) }.map(|_| 0))
}

/// Compares two ranges: returns 0 if equal, or 1 and the offset of the first difference.
///
/// # Safety
///
/// As for [`telpher_copy`]; and `at` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_compare(
    mover: *const Mover,
    a: *const c_void,
    b: *const c_void,
    len: usize,
    at: *mut u64,
) -> c_int {
    let op = Op { opcode: opcode::TELPHER_COMPARE, src: a, src2: b, len: len as u64, ..NOTHING };
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let Some(difference) = unsafe { simply(mover, &op) }?.difference() else { return Ok(0) };
        // SAFETY: guaranteed by our caller.
        if let Ok(at) = unsafe { change("the output pointer for the offset", at) } {
            *at = difference;
        }
        Ok(1)
    })
}

/// The CRC32C of a range, continued from `seed`.
///
/// # Safety
///
/// As for [`telpher_copy`]; and `crc` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_crc32c(
    mover: *const Mover,
    src: *const c_void,
    len: usize,
    seed: u32,
    crc: *mut u32,
) -> c_int {
    let op = Op { opcode: opcode::TELPHER_CRC, src, len: len as u64, seed, ..NOTHING };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { checksum(mover, &op, crc) })
}

/// Copies a range and computes its CRC32C in the same pass.
///
/// # Safety
///
/// As for [`telpher_copy`]; and `crc` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_copy_crc32c(
    mover: *const Mover,
    dst: *mut c_void,
    src: *const c_void,
    len: usize,
    seed: u32,
    crc: *mut u32,
) -> c_int {
    let op = Op { opcode: opcode::TELPHER_COPY_CRC, src, dst, len: len as u64, seed, ..NOTHING };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { checksum(mover, &op, crc) })
}

/// # Safety
///
/// As for [`telpher_crc32c`].
unsafe fn checksum(mover: *const Mover, op: &Op, crc: *mut u32) -> Result<c_int, Failure> {
    // SAFETY: guaranteed by our caller. Checked first: a checksum without an output pointer is a mistake.
    let place = unsafe { change("the output pointer for the checksum", crc) }?;
    // SAFETY: guaranteed by our caller.
    let outcome = unsafe { simply(mover, op) }?;
    *place = outcome.crc().ok_or(Refusal::Option(format!("a checksum operation gave {outcome:?}")))?;
    Ok(0)
}
