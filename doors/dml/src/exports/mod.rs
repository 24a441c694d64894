//! The functions of `dml.h` and `dml/detail/telpher.h`. Each only converts pointers.
//!
//! These rules apply to all of them and are not repeated below. **A pointer to a job** is NULL, or aligned to 8 and
//! valid for the 376 bytes that `dml_get_job_size` names. **A pointer to a task, descriptor or record** is aligned and
//! valid for its size. An *out* pointer is NULL or may be written. The callers guarantee this (`dml.h`, "Rules for all
//! functions"); NULL is checked before anything else. A panic would be a bug of ours; it ends the program, because it
//! cannot unwind into C.
#![allow(unsafe_code, reason = "the C ABI: exported symbols, and pointers that C vouches for")]
#![allow(clippy::missing_safety_doc, reason = "the module's documentation has the rules of all functions")]

mod batch;
mod jobs;
mod tasks;

pub use batch::*;
pub use jobs::*;
pub use tasks::*;

use crate::job::{ALIGNMENT, DmlJob, Path};
use crate::status::DmlStatus;
use crate::task::Task;

/// Converts a pointer to a job.
///
/// # Safety
/// As the module's documentation says; no other code accesses the job's 120 bytes for `'a`.
#[inline]
unsafe fn job<'a>(pointer: *mut DmlJob) -> Result<&'a mut DmlJob, DmlStatus> {
    // SAFETY: guaranteed by our caller. The state behind the job is not part of the reference.
    unsafe { pointer.as_mut() }.ok_or(DmlStatus::NULL_POINTER_ERROR)
}

/// Converts a pointer to a job that is only read.
///
/// # Safety
/// As for [`job`].
#[inline]
unsafe fn job_to_read<'a>(pointer: *const DmlJob) -> Result<&'a DmlJob, DmlStatus> {
    // SAFETY: guaranteed by our caller.
    unsafe { pointer.as_ref() }.ok_or(DmlStatus::NULL_POINTER_ERROR)
}

/// Finds the state of a job, and its path.
///
/// # Safety
/// As the module's documentation says; the job was initialised, or its memory is zero.
#[inline]
unsafe fn state<'a>(job: &DmlJob) -> Result<(&'a Task, Path), DmlStatus> {
    let address = job.internal_data_ptr;
    if address == 0 || !address.is_multiple_of(ALIGNMENT) {
        return Err(DmlStatus::JOB_CORRUPTED);
    }
    // SAFETY: the address that `dml_init_job` stored in the job: aligned, and valid for a task. A task is made of
    // cells, so that a device may write its record meanwhile, and every byte pattern is one.
    let task = unsafe { &*std::ptr::with_exposed_provenance::<Task>(address_of(address)) };
    let path = task.path().ok_or(DmlStatus::JOB_CORRUPTED)?;
    Ok((task, path))
}

/// Writes to an out pointer.
///
/// # Safety
/// NULL, or valid for a write.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), DmlStatus> {
    if place.is_null() {
        return Err(DmlStatus::NULL_POINTER_ERROR);
    }
    // SAFETY: not null, and guaranteed by our caller.
    unsafe { place.write(value) };
    Ok(())
}

/// Converts an address to the pointer type's width.
#[allow(clippy::cast_possible_truncation, reason = "x86-64 only: `telpher-hw` does not compile elsewhere")]
const fn address_of(address: u64) -> usize {
    address as usize
}

/// Converts a result to the status that C gets.
#[inline]
fn answer(result: Result<(), DmlStatus>) -> DmlStatus {
    match result {
        Ok(()) => DmlStatus::OK,
        Err(status) => status,
    }
}
