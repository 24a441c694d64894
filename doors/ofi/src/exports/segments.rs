//! Buffers of C as segments of messages.

use crate::abi::accesses::Ioc;
use crate::abi::flags as f;
use crate::failure::{Errno, INVALID};
use std::ffi::c_void;
use telpher_fabric::buffer::MOST_SEGMENTS;
use telpher_fabric::{Buffer, Segments};

/// Makes one segment of a buffer.
///
/// # Safety
/// The buffer belongs to the operation until its completion, as libfabric's manual asks.
#[inline]
pub(crate) unsafe fn of_buffer(buf: *const c_void, len: usize) -> Result<Segments, Errno> {
    if buf.is_null() && len > 0 {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    let buffer = unsafe { Buffer::vouch(buf.expose_provenance() as u64, len as u64) };
    Segments::of(buffer).ok_or(INVALID)
}

/// Makes segments of the array of a receive. A probe has no buffer, and programs leave its fields as they were.
///
/// # Safety
/// As for [`of_array`].
pub(crate) unsafe fn of_receive(flags: u64, iov: *const libc::iovec, count: usize) -> Result<Segments, Errno> {
    if flags & (f::PEEK | f::DISCARD) != 0 {
        return Ok(Segments::default());
    }
    // SAFETY: the caller's promise.
    unsafe { of_array(iov, count) }
}

/// Makes segments of an array of buffers.
///
/// # Safety
/// The array is valid for `count` entries; for the buffers, see [`of_buffer`].
pub(crate) unsafe fn of_array(iov: *const libc::iovec, count: usize) -> Result<Segments, Errno> {
    if count == 0 {
        return Ok(Segments::default());
    }
    if iov.is_null() || !iov.is_aligned() || count > MOST_SEGMENTS {
        return Err(INVALID);
    }
    let mut buffers = [Buffer::default(); MOST_SEGMENTS];
    // SAFETY: the pointer is not NULL and aligned, and the caller vouches for the entries.
    for (buffer, entry) in buffers.iter_mut().zip(unsafe { std::slice::from_raw_parts(iov, count) }) {
        if entry.iov_base.is_null() && entry.iov_len > 0 {
            return Err(INVALID);
        }
        // SAFETY: the caller's promise.
        *buffer = unsafe { Buffer::vouch(entry.iov_base.expose_provenance() as u64, entry.iov_len as u64) };
    }
    Segments::new(&buffers[..count]).ok_or(INVALID)
}

/// Makes segments of an array of elements of `size` bytes.
///
/// # Safety
/// As for [`of_array`].
pub(crate) unsafe fn of_elements(ioc: *const Ioc, count: usize, size: usize) -> Result<Segments, Errno> {
    if count == 0 {
        return Ok(Segments::default());
    }
    if ioc.is_null() || !ioc.is_aligned() || count > MOST_SEGMENTS {
        return Err(INVALID);
    }
    let mut buffers = [Buffer::default(); MOST_SEGMENTS];
    // SAFETY: the pointer is not NULL and aligned, and the caller vouches for the entries.
    for (buffer, entry) in buffers.iter_mut().zip(unsafe { std::slice::from_raw_parts(ioc, count) }) {
        let len = entry.count.checked_mul(size).ok_or(INVALID)?;
        if entry.addr.is_null() && len > 0 {
            return Err(INVALID);
        }
        // SAFETY: the caller's promise.
        *buffer = unsafe { Buffer::vouch(entry.addr.expose_provenance() as u64, len as u64) };
    }
    Segments::new(&buffers[..count]).ok_or(INVALID)
}

/// Makes segments of the memory of a region. A program may register more than is mapped, up to its whole address space
/// from address 0; no process has memory in the upper half.
///
/// # Safety
/// As for [`of_array`], until the region is closed.
pub(crate) unsafe fn of_region(iov: *const libc::iovec, count: usize) -> Result<Segments, Errno> {
    if iov.is_null() || !iov.is_aligned() || !(1..=MOST_SEGMENTS).contains(&count) {
        return Err(INVALID);
    }
    let mut buffers = [Buffer::default(); MOST_SEGMENTS];
    // SAFETY: the pointer is not NULL and aligned, and the caller vouches for the entries.
    for (buffer, entry) in buffers.iter_mut().zip(unsafe { std::slice::from_raw_parts(iov, count) }) {
        let address = entry.iov_base.expose_provenance() as u64;
        let len = (entry.iov_len as u64).min((1_u64 << 63).saturating_sub(address));
        // SAFETY: the caller's promise.
        *buffer = unsafe { Buffer::vouch(address, len) };
    }
    Segments::new(&buffers[..count]).ok_or(INVALID)
}
