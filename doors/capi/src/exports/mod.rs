//! The functions of `telpher.h`. Each only converts pointers to handles and operations.
//!
//! These rules apply to all of them and are not repeated below: **a pointer to a handle** is NULL or
//! came from the function that creates such handles and was not passed to one that frees it; **a pointer to a
//! structure** is NULL or aligned and valid for its size; **a text** is NULL or ends in a zero byte; an *out* pointer
//! may be written. The callers guarantee this (`telpher.h`, "Rules for all functions"); NULL is checked before anything
//! else.
#![allow(unsafe_code, reason = "the C ABI: exported symbols, and pointers that C vouches for")]

mod about;
mod batch;
mod cache;
mod channel;
mod device;
mod durable;
mod job;
mod mover;
mod switch;
mod tier;
mod versioned;
mod vhost;
mod window;

pub use about::*;
pub use batch::*;
pub use cache::*;
pub use channel::*;
pub use device::*;
pub use durable::*;
pub use job::*;
pub use mover::*;
pub use switch::*;
pub use tier::*;
pub use versioned::*;
pub use vhost::*;
pub use window::*;

pub use crate::cache::{Cache, Entry, Prefetch};
pub use crate::channel::Channel;
pub use crate::device::Device;
pub use crate::job::Job;
pub use crate::switch::PacketSwitch;
pub use crate::tier::{TierArena, TierHeap, TierManager};
pub use crate::versioned::{Reading, Versioned, WriteBack, Writing};
pub use crate::vhost::{VhostDmaQueue, VhostPool, VhostPort, VhostSocket};

use crate::failure::{Failure, Refusal};
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Checks the header's thread rules at compile time.
const _: () = {
    const fn any_thread<T: Send + Sync>() {}
    const fn one_thread_at_a_time<T: Send>() {}
    any_thread::<Device>();
    any_thread::<Mover>();
    any_thread::<Cache>();
    any_thread::<Entry>();
    any_thread::<Prefetch>();
    any_thread::<Versioned>();
    any_thread::<Reading>();
    any_thread::<Pool>();
    any_thread::<VhostPool>();
    any_thread::<VhostDmaQueue>();
    any_thread::<VhostPort>();
    any_thread::<VhostSocket>();
    any_thread::<PacketSwitch>();
    any_thread::<TierHeap>();
    any_thread::<TierArena>();
    any_thread::<TierManager>();
    any_thread::<Grant>();
    any_thread::<Window>();
    one_thread_at_a_time::<DurableFile>();
    one_thread_at_a_time::<Job>();
    one_thread_at_a_time::<Batch>();
    one_thread_at_a_time::<Channel>();
    one_thread_at_a_time::<Writing>();
    one_thread_at_a_time::<WriteBack>();
};

/// Runs a function's body: stores its failure, and stops a panic (our bug) from unwinding into C.
fn answer(body: impl FnOnce() -> Result<c_int, Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(failure)) => failure.report(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            Failure::Other(libc::ENOTRECOVERABLE, format!("a bug in telpher: {text}")).report()
        }
    }
}

/// Converts a pointer to a reference.
///
/// # Safety
///
/// NULL, or valid for reads for `'a` while no code writes it.
unsafe fn look<'a, T>(what: &'static str, pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: guaranteed by our caller.
    Ok(unsafe { pointer.as_ref() }.ok_or(Refusal::Null(what))?)
}

/// Converts a pointer to a mutable reference.
///
/// # Safety
///
/// NULL, or valid for reads and writes for `'a` while no other code accesses it.
unsafe fn change<'a, T>(what: &'static str, pointer: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: guaranteed by our caller.
    Ok(unsafe { pointer.as_mut() }.ok_or(Refusal::Null(what))?)
}

/// Converts a text.
///
/// # Safety
///
/// NULL, or ends in a zero byte and does not change for `'a`.
unsafe fn text<'a>(what: &'static str, pointer: *const c_char) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Refusal::Null(what).into());
    }
    // SAFETY: not null, and guaranteed by our caller.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_str().map_err(|_| Refusal::Text)?)
}

/// Converts options: a text, or none for NULL.
///
/// # Safety
///
/// As for [`text`].
unsafe fn options<'a>(pointer: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: guaranteed by our caller.
    if pointer.is_null() { Ok("") } else { unsafe { text("the options", pointer) } }
}

/// Writes a structure.
///
/// # Safety
///
/// `place` is NULL or valid for a write.
unsafe fn put<T>(what: &'static str, place: *mut T, value: T) -> Result<c_int, Failure> {
    if place.is_null() {
        return Err(Refusal::Null(what).into());
    }
    // SAFETY: not null, and guaranteed by our caller.
    unsafe { place.write(value) };
    Ok(0)
}

/// Creates a handle and writes it to `out`, which is checked first.
///
/// # Safety
///
/// `out` is NULL or valid for a write.
unsafe fn hand_out<T>(out: *mut *mut T, make: impl FnOnce() -> Result<T, Failure>) -> Result<c_int, Failure> {
    // SAFETY: guaranteed by our caller.
    unsafe { hand_out_if(out, || make().map(Some)) }?;
    Ok(0)
}

/// As [`hand_out`], if there is a handle. Returns 1, or 0 without one; then NULL was written.
///
/// # Safety
///
/// As for [`hand_out`].
unsafe fn hand_out_if<T>(
    out: *mut *mut T,
    make: impl FnOnce() -> Result<Option<T>, Failure>,
) -> Result<c_int, Failure> {
    if out.is_null() {
        return Err(Refusal::Null("the output pointer for the handle").into());
    }
    // SAFETY: not null, and guaranteed by our caller. NULL until there is a handle, so that a caller that ignores
    // the return value has no dangling pointer.
    unsafe { out.write(std::ptr::null_mut()) };
    let Some(made) = make()? else { return Ok(0) };
    // SAFETY: as above.
    unsafe { out.write(Box::into_raw(Box::new(made))) };
    Ok(1)
}

/// Frees a handle, if it is not NULL.
///
/// # Safety
///
/// NULL, or came from [`hand_out`] and is not used any more.
unsafe fn end<T>(handle: *mut T) {
    if !handle.is_null() {
        answer(|| {
            // SAFETY: guaranteed by our caller: a box with no other owner.
            drop(unsafe { Box::from_raw(handle) });
            Ok(0)
        });
    }
}

/// Writes a text with its zero byte to a buffer, truncated to its size, and returns the full length, like `snprintf`
/// does.
///
/// # Safety
///
/// `buffer` is NULL with `size` 0, or valid for `size` bytes of writes.
unsafe fn copy_text(text: &str, buffer: *mut c_char, size: usize) -> Result<c_int, Failure> {
    if size > 0 {
        if buffer.is_null() {
            return Err(Refusal::Null("the text buffer").into());
        }
        let n = text.len().min(size - 1);
        // SAFETY: `n + 1 <= size` bytes by our caller; a new text does not overlap C's memory.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), n);
            buffer.add(n).write(0);
        }
    }
    Ok(count(text.len()))
}

/// Converts a time limit in nanoseconds; `None` for -1, which is no limit.
fn timeout(nanos: i64) -> Result<Option<Duration>, Failure> {
    match u64::try_from(nanos) {
        Ok(nanos) => Ok(Some(Duration::from_nanos(nanos))),
        Err(_) if nanos == -1 => Ok(None),
        Err(_) => Err(Refusal::Timeout(nanos).into()),
    }
}

/// Converts a number to the return type of C functions.
fn count(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}
