//! Memory of a C caller as the mover's buffers.
#![allow(unsafe_code, reason = "C's pointers become buffers, as the caller guarantees")]

mod cache;
mod request;

pub(crate) use cache::{Allocator, CallerBytes, CallerMemory, pointer, policies};
pub(crate) use request::{Request, dispatch};

use crate::failure::Refusal;
use std::ffi::c_void;
use telpher_mem::{StableBuf, StableBufMut};

/// A range of the caller's memory, lent for one operation.
///
/// Its creator was guaranteed that until it is dropped the range stays mapped and initialised, no other code writes it,
/// and, if the operation writes it, no other code reads it either. The mover drops it after it has seen the device's
/// record (or never), so the guarantee ends when the header says so.
#[derive(Debug)]
pub(crate) struct Raw {
    address: u64,
    len: usize,
}

/// The upper end of user-space addresses: the lower half of the address space. Source: x86-64, canonical addresses of
/// at most 57 bits; everything above belongs to the kernel.
const LIMIT: u64 = 1 << 56;

impl Raw {
    /// Creates a range, if it is valid: not null, not empty, and within the address space.
    ///
    /// # Safety
    ///
    /// The guarantee of [`Raw`], as long as the value lives, if the range is valid.
    pub(crate) unsafe fn new(what: &'static str, start: *const c_void, len: u64) -> Result<Raw, Refusal> {
        let (address, len) = Raw::place(what, start, len)?;
        Ok(Raw { address, len })
    }

    /// The address of a range, if it is valid; without any guarantee about its bytes.
    pub(crate) fn place(what: &'static str, start: *const c_void, len: u64) -> Result<(u64, usize), Refusal> {
        if start.is_null() {
            return Err(Refusal::Null(what));
        }
        if len == 0 {
            return Err(Refusal::Empty(what));
        }
        let address = start.expose_provenance() as u64;
        match (address.checked_add(len), usize::try_from(len)) {
            (Some(end), Ok(len)) if end <= LIMIT => Ok((address, len)),
            _ => Err(Refusal::Beyond { what, address, len }),
        }
    }

    /// The two ranges of a copy.
    ///
    /// # Safety
    ///
    /// As for [`Raw::new`], for both.
    pub(crate) unsafe fn two(src: *const c_void, dst: *mut c_void, len: u64) -> Result<(Raw, Raw), Refusal> {
        // SAFETY: our caller's promise, for both.
        let (src, dst) = unsafe { (Raw::new("the source", src, len)?, Raw::new("the destination", dst, len)?) };
        Ok((request::apart(src, &[&dst])?, dst))
    }

    /// Like `two`, without an error message, for the fast path of the smallest copies.
    ///
    /// # Safety
    ///
    /// As for [`Raw::two`].
    #[inline(always)]
    pub(crate) unsafe fn pair(src: *const c_void, dst: *mut c_void, len: usize) -> Option<(Raw, Raw)> {
        let (from, to) = (src.expose_provenance() as u64, dst.expose_provenance() as u64);
        let good = !src.is_null()
            && !dst.is_null()
            && len != 0
            && len as u64 <= LIMIT
            // Cannot underflow because of the line above.
            && from.max(to) <= LIMIT - len as u64
            && from.abs_diff(to) >= len as u64;
        good.then_some((Raw { address: from, len }, Raw { address: to, len }))
    }

    /// The smallest range that contains both. They touch or overlap, so it contains no other bytes.
    fn covering(self, other: &Raw) -> Raw {
        let start = self.address.min(other.address);
        let end = self.end().max(other.end());
        // Both lengths fit `usize` and the ranges overlap, so their union fits as well (it lies below LIMIT).
        Raw { address: start, len: usize::try_from(end - start).unwrap_or(self.len) }
    }

    fn end(&self) -> u64 {
        self.address + self.len as u64
    }

    /// Returns whether they overlap.
    pub(crate) fn overlaps(&self, other: &Raw) -> bool {
        self.address < other.end() && other.address < self.end()
    }

    /// The distance from an earlier range's start to its start.
    fn behind(&self, earlier: &Raw) -> usize {
        usize::try_from(self.address - earlier.address).unwrap_or(usize::MAX)
    }

    /// The bytes, during one call.
    ///
    /// # Safety
    ///
    /// No code writes them while the slice lives.
    pub(crate) unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: mapped and initialised as guaranteed for `Raw`, not null, and no longer than the address space.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.start()), self.len) }
    }

    /// The bytes, mutable, during one call.
    ///
    /// # Safety
    ///
    /// No other code accesses them while the slice lives.
    pub(crate) unsafe fn bytes_mut<'a>(&self) -> &'a mut [u8] {
        // SAFETY: as in `bytes`, and exclusive as our caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(self.start()), self.len) }
    }

    fn start(&self) -> usize {
        // It came from a pointer.
        usize::try_from(self.address).unwrap_or(usize::MAX)
    }
}

// SAFETY: the two numbers never change, and the bytes behind them are as guaranteed for `Raw`.
unsafe impl StableBuf for Raw {
    fn address(&self) -> u64 {
        self.address
    }
    fn len(&self) -> usize {
        self.len
    }
}
// SAFETY: a `Raw` is a destination only where the request says so, and for destinations the guarantee is exclusive.
unsafe impl StableBufMut for Raw {
    fn address_mut(&mut self) -> u64 {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(address: usize, len: u64) -> Result<Raw, Refusal> {
        // SAFETY: the bytes are never accessed.
        unsafe { Raw::new("the source", std::ptr::without_provenance(address), len) }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        assert!(matches!(raw(0, 1), Err(Refusal::Null("the source"))));
        assert!(matches!(raw(0, 0), Err(Refusal::Null("the source"))));
        assert!(matches!(raw(4096, 0), Err(Refusal::Empty("the source"))));
        for (address, len) in [(4096, u64::MAX), (usize::MAX, 1), (usize::MAX, 2), (4096, 1 << 56), (1 << 63, 1)] {
            assert!(matches!(raw(address, len), Err(Refusal::Beyond { .. })), "{address:#x}+{len:#x}");
        }
        assert_eq!(raw(4096, (1 << 56) - 4096).unwrap().end(), LIMIT);
    }

    #[test]
    fn ranges_overlap_if_they_share_a_byte() {
        let at = |address, len| raw(address, len).unwrap();
        for (a, b, shared) in [((100, 10), (110, 5), false), ((100, 10), (109, 1), true), ((100, 10), (90, 11), true)] {
            let (a, b) = (at(a.0, a.1), at(b.0, b.1));
            assert_eq!((a.overlaps(&b), b.overlaps(&a)), (shared, shared));
        }
        // The fast check agrees with the full one.
        let at_pointer = |address| std::ptr::without_provenance_mut::<c_void>(address);
        for (src, dst, len) in [
            (100, 110, 10),
            (110, 100, 10),
            (100, 109, 10),
            (109, 100, 10),
            (100, 100, 1),
            (100, 200, 0),
            (0, 200, 8),
            (200, 0, 8),
            (200, 300, usize::MAX),
            (usize::MAX, 300, 8),
            (200, usize::MAX, 8),
            (1 << 56, 8, 8),
            ((1 << 56) - 8, 8, 8),
            ((1 << 56) - 7, 8, 8),
        ] {
            // SAFETY: the bytes are never accessed.
            let long = unsafe { Raw::two(at_pointer(src), at_pointer(dst), len as u64) };
            // SAFETY: as above.
            let short = unsafe { Raw::pair(at_pointer(src), at_pointer(dst), len) };
            assert_eq!(long.is_ok(), short.is_some(), "{src:#x} {dst:#x} {len:#x}");
        }
        let whole = at(100, 10).covering(&at(105, 10));
        assert_eq!((whole.address, whole.len), (100, 15));
    }
}
