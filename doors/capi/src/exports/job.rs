//! Jobs: operations that are started, polled and waited for.

use super::{answer, change, count, hand_out, look, timeout};
use crate::c_structs::{Op, OpResult};
use crate::exports::Mover;
use crate::failure::Failure;
use crate::job::{Job, for_c};
use crate::raw::Request;
use std::ffi::c_int;
use telpher_mover::Notifier;

/// Starts an operation.
///
/// # Safety
///
/// See the [module's rules](crate); and the operation's ranges are lent until the job has ended, or, if it is abandoned
/// or timed out, until the mover has nothing outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_start(mover: *const Mover, op: *const Op, job: *mut *mut Job) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let (mover, op) = unsafe { (look("the mover", mover)?, look("the operation", op)?) };
        // SAFETY: lent until the job has ended as our caller guarantees, and the job keeps the request until then.
        let start = || Ok(Job::start(&mover.inner, unsafe { Request::of(op) }?));
        // SAFETY: guaranteed by our caller.
        unsafe { hand_out_job(job, mover.notifier.get(), start) }
    })
}

/// Creates a job, and lets a notifier report its end by its handle's address. A notifier of a forked child's parent is
/// ignored.
///
/// # Safety
///
/// `out` is NULL or valid for a write.
pub(super) unsafe fn hand_out_job(
    out: *mut *mut Job,
    notifier: Option<&Notifier>,
    make: impl FnOnce() -> Result<Job, Failure>,
) -> Result<c_int, Failure> {
    // SAFETY: guaranteed by our caller.
    let answer = unsafe { hand_out(out, make) }?;
    if let Some(notifier) = notifier.filter(|notifier| notifier.is_own_process()) {
        // SAFETY: not null, because a handle was written. No other code has seen the handle yet.
        let job = unsafe { *out };
        let token = job.expose_provenance() as u64;
        // SAFETY: as above. The reference ends before the report.
        let prepared = unsafe { change("the job", job) }?.watch(notifier, token);
        // Last: another thread may get the handle by `telpher_mover_ended` and free it before this returns.
        drop(prepared);
    }
    Ok(answer)
}

/// Returns 1 if the job has ended, 0 if not; makes one step of progress.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_done(job: *mut Job) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(unsafe { change("the job", job) }?.is_done().into()))
}

/// Waits until the job has ended or a time has passed; returns 1 if it has ended, otherwise 0.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_wait(job: *mut Job, timeout_ns: i64) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let job = unsafe { change("the job", job) }?;
        Ok(job.wait(timeout(timeout_ns)?).into())
    })
}

/// Returns the number of results: one for an operation, one per member for a batch, none before the end.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_results(job: *const Job) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(unsafe { look("the job", job) }?.results())))
}

/// Writes a result of an ended job and returns its status.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_result(job: *const Job, index: u32, result: *mut OpResult) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let (words, failure) = for_c(unsafe { look("the job", job) }?.result(index.into())?);
        // SAFETY: guaranteed by our caller.
        if let Ok(result) = unsafe { change("the result", result) } {
            *result = words;
        }
        failure.map_or(Ok(0), Err)
    })
}

/// Frees a job's handle; waits until the job has ended.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_free(job: *mut Job) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { end(job, |job| job.wait(None)) })
}

/// Frees a job's handle at once; operations in flight continue.
///
/// # Safety
///
/// See the [module's rules](crate); and the ranges stay lent until the mover has nothing outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_abandon(job: *mut Job) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { end(job, Job::is_done) })
}

/// # Safety
///
/// NULL, or came from a function that creates jobs and is not used any more.
unsafe fn end(job: *mut Job, first: impl FnOnce(&mut Job) -> bool) -> Result<c_int, Failure> {
    if job.is_null() {
        return Ok(0);
    }
    // SAFETY: guaranteed by our caller.
    let mut job = unsafe { Box::from_raw(job) };
    first(&mut job);
    Ok(0)
}
