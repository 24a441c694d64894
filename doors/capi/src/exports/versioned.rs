//! Bytes that change: versions, and blocks that are written back.

use super::cache::pool_of;
use super::{answer, change, end, hand_out, hand_out_if, look, timeout};
use crate::c_structs::{Synced, Tier, find};
use crate::cache::{Cache, Entry};
use crate::exports::Mover;
use crate::failure::{Failure, Refusal};
use crate::raw::{CallerBytes, CallerMemory};
use crate::versioned::{Reading, Versioned, WriteBack, Writing};
use std::ffi::{c_int, c_void};
use telpher_cache::Find;
use telpher_mem::Pool as Memory;

/// Memory from which blocks for writing are lent. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Pool(Memory);

/// Creates versioned bytes over a cache.
///
/// # Safety
///
/// See the [module's rules](crate); and the bytes are lent until the handle and all handles from it were freed, and are
/// written meanwhile only by the holder of the handle for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_versioned_new(
    versioned: *mut *mut Versioned,
    cache: *const Cache,
    data: *mut c_void,
    len: usize,
) -> c_int {
    // SAFETY: guaranteed by our caller, for all three.
    let make = || unsafe { Ok(Versioned::new(look("the cache", cache)?, CallerMemory::new(data, len)?)) };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(versioned, make) })
}

/// Writes how often the bytes were written.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_versioned_version(versioned: *const Versioned, version: *mut u64) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let (versioned, place) = unsafe {
            (look("the versioned bytes", versioned)?, change("the output pointer for the version", version)?)
        };
        *place = versioned.version();
        Ok(0)
    })
}

/// Frees versioned bytes, after the last reader and writer.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_versioned_free(versioned: *mut Versioned) -> c_int {
    if versioned.is_null() {
        return 0;
    }
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the versioned bytes", versioned) }?.withdraw()?;
        // SAFETY: came from `telpher_versioned_new` and is not used any more (guaranteed by our caller).
        drop(unsafe { Box::from_raw(versioned) });
        Ok(0)
    })
}

/// Begins to read; 0 if a writer takes longer than the time.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_versioned_read(
    versioned: *const Versioned,
    timeout_ns: i64,
    reading: *mut *mut Reading,
) -> c_int {
    // SAFETY: guaranteed by our caller.
    let make = || Ok(unsafe { look("the versioned bytes", versioned) }?.read(timeout(timeout_ns)?));
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out_if(reading, make) })
}

/// Writes how often the bytes were written before.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_reading_version(reading: *const Reading, version: *mut u64) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let (reading, place) =
            unsafe { (look("the reading", reading)?, change("the output pointer for the version", version)?) };
        *place = reading.version();
        Ok(0)
    })
}

/// Accesses a block of the bytes.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_reading_access(
    reading: *const Reading,
    offset: usize,
    len: usize,
    entry: *mut *mut Entry,
) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { hand_out(entry, || look("the reading", reading)?.access(offset, len)) })
}

/// Ends reading.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_reading_end(reading: *mut Reading) -> c_int {
    if reading.is_null() {
        return 0;
    }
    answer(|| {
        // SAFETY: guaranteed by our caller.
        if unsafe { look("the reading", reading) }?.has_entries() {
            let why = "handles to entries of this reading are left, and no writer can begin before; free them first";
            return Err(Failure::NotYet(libc::EBUSY, why));
        }
        // SAFETY: came from `telpher_versioned_read` and is not used any more (guaranteed by our caller).
        drop(unsafe { Box::from_raw(reading) });
        Ok(0)
    })
}

/// Begins to write; 0 if readers take longer than the time.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_versioned_write(
    versioned: *const Versioned,
    timeout_ns: i64,
    writing: *mut *mut Writing,
) -> c_int {
    // SAFETY: guaranteed by our caller.
    let make = || unsafe { look("the versioned bytes", versioned) }?.write(timeout(timeout_ns)?);
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out_if(writing, make) })
}

/// Ends writing: the bytes have a new version.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_writing_end(writing: *mut Writing) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(writing) }
}

/// Creates a pool from a tier's memory.
///
/// # Safety
///
/// See the [module's rules](crate); and the tier's functions follow the header's contract as long as the pool or any
/// block from it exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_pool_new(pool: *mut *mut Pool, tier: *const Tier) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { hand_out(pool, || Ok(Pool(pool_of(look("the tier", tier)?)?))) })
}

/// Frees a pool's handle.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_pool_free(pool: *mut Pool) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(pool) }
}

/// Copies a block to memory of the pool.
///
/// # Safety
///
/// See the [module's rules](crate); and the home is lent until the handle was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_write_back_fetch(
    block: *mut *mut WriteBack,
    mover: *const Mover,
    pool: *const Pool,
    home: *mut c_void,
    len: usize,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller, for both.
        let (mover, pool) = unsafe { (look("the mover", mover)?, look("the pool", pool)?) };
        // SAFETY: lent until the handle was freed, as our caller guarantees.
        let home = unsafe { CallerBytes::new(home, len) }?;
        WriteBack::fetch(&mover.inner, &pool.0, home)
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(block, make) })
}

/// Returns the address of the block's bytes in fast memory; NULL for NULL.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_write_back_bytes(block: *const WriteBack) -> *const c_void {
    // SAFETY: guaranteed by our caller. Nothing here panics.
    unsafe { block.as_ref() }.map_or(std::ptr::null(), |block| block.bytes().as_ptr().cast())
}

/// Announces that bytes will be written, and returns their address.
///
/// # Safety
///
/// See the [module's rules](crate); and `bytes` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_write_back_write(
    block: *mut WriteBack,
    offset: usize,
    len: usize,
    bytes: *mut *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let (block, place) =
            unsafe { (change("the block", block)?, change("the output pointer for the address", bytes)?) };
        *place = block.write(offset, len)?.as_mut_ptr().cast();
        Ok(0)
    })
}

/// Returns how many bytes a sync has to check; 0 for NULL.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_write_back_unsynced(block: *const WriteBack) -> usize {
    // SAFETY: guaranteed by our caller. Nothing here panics.
    unsafe { block.as_ref() }.map_or(0, WriteBack::unsynced)
}

/// Updates the home.
///
/// # Safety
///
/// See the [module's rules](crate); and `synced` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_write_back_sync(block: *mut WriteBack, find: u32, synced: *mut Synced) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let block = unsafe { change("the block", block) }?;
        let find = match find {
            find::TELPHER_FIND_WRITTEN => Find::Written,
            find::TELPHER_FIND_DIFFERING => Find::Differing,
            find::TELPHER_FIND_ANYWHERE => Find::Anywhere,
            other => return Err(Refusal::Find(other).into()),
        };
        let done = block.sync(find)?;
        // SAFETY: guaranteed by our caller.
        if let Ok(place) = unsafe { change("the output pointer for the numbers", synced) } {
            *place = done;
        }
        Ok(0)
    })
}

/// Frees a block; what was not synced is lost.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_write_back_free(block: *mut WriteBack) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(block) }
}
