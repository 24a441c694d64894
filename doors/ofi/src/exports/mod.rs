//! The functions that libfabric and programs call. Each checks its pointers, converts structures, and calls an object.
//!
//! These rules apply to all of them and are not repeated below: **a pointer to an object** (`Fid…`) is NULL, or came
//! from the function that opens such objects and was not closed; **a pointer to a structure** is NULL or valid for its
//! size; **a buffer** is NULL or valid for its length; an *out* pointer may be written. libfabric's manual asks the
//! callers for this. NULL, alignment and the class of objects are checked before anything else.
//!
//! No panic leaves a function: [`answer`] and its relatives turn it into an error.
#![allow(unsafe_code, reason = "the C ABI: exported functions, and pointers that C vouches for")]

mod atomic;
mod av;
mod cntr;
mod cq;
mod domain;
mod entry;
mod ep;
mod eq;
mod fabric;
mod info;
mod missing;
mod mr;
mod msg;
mod object;
mod rma;
mod segments;
mod tagged;

pub use entry::fi_prov_ini;

use crate::failure::{Errno, INVALID};
use crate::log;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs a function's body. A panic is our bug; it ends here.
fn caught<T>(body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        log::warn(format_args!("a bug in telpher stopped a call; the line above says where"));
        Err(Errno(libc::ENOTRECOVERABLE))
    })
}

/// Runs the body of a function that returns a length, or a negative error number.
fn length(body: impl FnOnce() -> Result<usize, Errno>) -> isize {
    match caught(body) {
        // No queue and no buffer has more entries than a signed number can say.
        Ok(value) => isize::try_from(value).unwrap_or(isize::MAX),
        Err(Errno(number)) => -(number as isize),
    }
}

/// Runs the body of a function that starts an operation: it returns 0, or a negative error number.
fn started(body: impl FnOnce() -> Result<(), Errno>) -> isize {
    length(|| body().map(|()| 0))
}

/// Runs the body of a function that returns 0, or a negative error number.
fn answer(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match caught(body) {
        Ok(()) => 0,
        Err(Errno(number)) => -number,
    }
}

/// Reads a structure of the caller.
///
/// # Safety
/// See the rules of this module.
unsafe fn read<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(INVALID);
    }
    // SAFETY: it is not NULL and aligned; the caller vouches for the rest.
    Ok(unsafe { &*pointer })
}

/// Writes to an out pointer.
///
/// # Safety
/// See the rules of this module.
unsafe fn write<T>(pointer: *mut T, value: T) -> Result<(), Errno> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(INVALID);
    }
    // SAFETY: it is not NULL and aligned; the caller vouches for the rest.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Copies a text with its final zero byte into a buffer of the caller, as much as fits.
///
/// # Safety
/// See the rules of this module.
unsafe fn write_text(text: &std::ffi::CStr, buf: *mut c_char, len: usize) {
    if buf.is_null() || len == 0 {
        return;
    }
    let bytes = text.to_bytes();
    let count = bytes.len().min(len - 1);
    // SAFETY: the caller vouches for `len` bytes, and `count` is less.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.cast(), count);
        buf.add(count).write(0);
    }
}

/// Converts a timeout in milliseconds; a negative one means none.
fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}
