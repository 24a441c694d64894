//! Lists of operations that are submitted together.

use super::{answer, change, count, end, hand_out, look};
use crate::c_structs::{Op, flag};
use crate::exports::Mover;
use crate::exports::job::hand_out_job;
use crate::failure::{Failure, Refusal};
use crate::job::Job;
use crate::raw::{Request, dispatch};
use std::ffi::c_int;
use std::sync::{Arc, OnceLock};
use telpher_mover::{Batch as Inner, Key, Notifier};

/// A list being built, by one thread at a time.
#[derive(Debug)]
pub struct Batch {
    inner: Inner,
    /// Its mover's.
    notifier: Arc<OnceLock<Notifier>>,
}

/// Creates an empty list.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_batch_new(mover: *const Mover, batch: *mut *mut Batch) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let mover = unsafe { look("the mover", mover) }?;
        Ok(Batch { inner: mover.inner.batch(), notifier: Arc::clone(&mover.notifier) })
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(batch, make) })
}

/// Adds an operation and returns its number.
///
/// # Safety
///
/// See the [module's rules](crate); and the operation's ranges are lent until the batch is freed or its job has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_batch_add(batch: *mut Batch, op: *const Op) -> c_int {
    fn number<B>(key: Key<B>) -> usize {
        key.index()
    }
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let (batch, op) = unsafe { (change("the batch", batch)?, look("the operation", op)?) };
        // SAFETY: lent as our caller guarantees until the batch or its job drops the request.
        let request = unsafe { Request::of(op) }?;
        if matches!(request, Request::Drain) {
            let why = "a drain cannot be a member of a batch; submit the batch, then drain";
            return Err(Failure::Other(libc::EOPNOTSUPP, why.into()));
        }
        if op.flags & flag::TELPHER_FENCE != 0 {
            batch.inner.fence();
        }
        let inner = &mut batch.inner;
        Ok(count(dispatch!(request, inner, number, {
            Request::Nop | Request::Drain => number(inner.nop()),
            Request::Compare(a, b, Some(difference)) => number(inner.compare_expecting(a, b, difference)),
        })))
    })
}

/// Submits a list and frees its handle; creates the job.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_batch_submit(batch: *mut Batch, job: *mut *mut Job) -> c_int {
    answer(|| {
        // SAFETY: NULL, or came from `telpher_batch_new` (guaranteed by our caller).
        let notifier = unsafe { batch.as_ref() }.map(|batch| Arc::clone(&batch.notifier));
        let submit = || {
            if batch.is_null() {
                return Err(Refusal::Null("the batch").into());
            }
            // SAFETY: came from `telpher_batch_new` and is not used any more (guaranteed by our caller).
            let Batch { inner, .. } = *unsafe { Box::from_raw(batch) };
            Ok(Job::batch(inner.submit()))
        };
        // SAFETY: guaranteed by our caller.
        unsafe { hand_out_job(job, notifier.as_ref().and_then(|notifier| notifier.get()), submit) }
    })
}

/// Frees a list that was not submitted.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_batch_free(batch: *mut Batch) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(batch) }
}
