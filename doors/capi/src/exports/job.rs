//! Operations that are started, looked at and waited for.

use super::{answer, change, count, hand_out, look, timeout};
use crate::exports::Mover;
use crate::failure::Failure;
use crate::job::{Job, told};
use crate::raw::Request;
use crate::words::{Op, OpResult};
use std::ffi::c_int;

/// Puts an operation on its way.
///
/// # Safety
///
/// See the [module's rules](crate); and the operation's ranges are lent until the job has ended, or, if it is abandoned
/// or given up, until the mover has nothing outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_start(mover: *const Mover, op: *const Op, job: *mut *mut Job) -> c_int {
    let start = || {
        // SAFETY: our caller's promise.
        let (mover, op) = unsafe { (look("the mover", mover)?, look("the operation", op)?) };
        // SAFETY: lent until the job has ended by our caller's promise, and the job keeps the request until then.
        Ok(Job::start(&mover.inner, unsafe { Request::of(op) }?))
    };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(job, start) })
}

/// 1 if the job has ended, 0 if not; takes one step.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_done(job: *mut Job) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(unsafe { change("the job", job) }?.is_done().into()))
}

/// Waits until the job has ended or a time has passed; 1 if it has ended, 0 if not.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_wait(job: *mut Job, timeout_ns: i64) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise.
        let job = unsafe { change("the job", job) }?;
        Ok(job.wait(timeout(timeout_ns)?).into())
    })
}

/// How many results a job has: one for an operation, one a member for a batch, none before the end.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_results(job: *const Job) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(count(unsafe { look("the job", job) }?.results())))
}

/// What an ended job's operation of that number came to; returns its status.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_result(job: *const Job, index: u32, result: *mut OpResult) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise.
        let (words, failure) = told(unsafe { look("the job", job) }?.result(index.into())?);
        // SAFETY: our caller's promise.
        if let Ok(result) = unsafe { change("the result", result) } {
            *result = words;
        }
        failure.map_or(Ok(0), Err)
    })
}

/// Ends a job's handle; waits until the job has ended.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_free(job: *mut Job) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| unsafe { end(job, |job| job.wait(None)) })
}

/// Ends a job's handle at once; what is under way goes on without anybody waiting.
///
/// # Safety
///
/// See the [module's rules](crate); and the ranges stay lent until the mover has nothing outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_job_abandon(job: *mut Job) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| unsafe { end(job, Job::is_done) })
}

/// # Safety
///
/// NULL, or came from a function that makes jobs and is used no more.
unsafe fn end(job: *mut Job, first: impl FnOnce(&mut Job) -> bool) -> Result<c_int, Failure> {
    if job.is_null() {
        return Ok(0);
    }
    // SAFETY: our caller's promise.
    let mut job = unsafe { Box::from_raw(job) };
    first(&mut job);
    Ok(0)
}
