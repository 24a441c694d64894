//! Files whose bytes survive.

use super::{answer, change, end, hand_out, look, put, text};
use crate::exports::Mover;
use crate::raw::Raw;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use telpher_mover::{DurableFile as Inner, Persistence};

/// A durable file. One thread at a time may use it.
#[derive(Debug)]
pub struct DurableFile(Inner);

/// Creates a file of `size` zero bytes.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_durable_create(file: *mut *mut DurableFile, path: *const c_char, size: u64) -> c_int {
    // SAFETY: guaranteed by our caller.
    let create = || Ok(DurableFile(Inner::create(Path::new(unsafe { text("the path", path) }?), size)?));
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(file, create) })
}

/// Opens a file.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_durable_open(file: *mut *mut DurableFile, path: *const c_char) -> c_int {
    // SAFETY: guaranteed by our caller.
    let open = || Ok(DurableFile(Inner::open(Path::new(unsafe { text("the path", path) }?))?));
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(file, open) })
}

/// Writes where the bytes of the file are, and how many it has.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_durable_bytes(
    file: *const DurableFile,
    bytes: *mut *const c_void,
    size: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let found = unsafe { look("the file", file) }?.0.bytes();
        // SAFETY: guaranteed by our caller.
        unsafe { put("the output pointer for the bytes", bytes, found.as_ptr().cast()) }?;
        // SAFETY: guaranteed by our caller.
        unsafe { put("the output pointer for the size", size, found.len() as u64) }
    })
}

/// Returns 1 if the file is in persistent memory that is mapped directly, 0 if not.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_durable_direct(file: *const DurableFile) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok((unsafe { look("the file", file) }?.0.persistence() == Persistence::Lines).into()))
}

/// Copies bytes to the file, and returns when they are durable.
///
/// # Safety
///
/// See the [module's rules](crate); and `from` is lent for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_durable_store(
    file: *mut DurableFile,
    mover: *const Mover,
    at: u64,
    from: *const c_void,
    len: usize,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let (file, mover) = unsafe { (change("the file", file)?, look("the mover", mover)?) };
        Raw::place("the source", from, len as u64)?;
        // SAFETY: not null, `len` bytes in the address space, and not written during the call (guaranteed by our
        // caller).
        let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) };
        mover.inner.store(from, &mut file.0, at)?;
        Ok(0)
    })
}

/// Closes the file.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_durable_free(file: *mut DurableFile) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(file) }
}
