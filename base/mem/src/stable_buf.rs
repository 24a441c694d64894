//! Buffers whose bytes stay at the same address while the value moves.
//!
//! The executor of an operation knows a buffer only by its address. A buffer in flight must therefore not move, not be
//! freed, and not be accessed through Rust references. [`StableBuf`] promises the first. Owning the value ensures the
//! others: only the in-flight slot has it.
//!
//! **Aliasing.** `Box<[u8]>` and `&'static mut [u8]` promise the compiler that no other pointer reaches their bytes.
//! *Moving* such a value renews the promise: an address taken before the move must not be used after it. Users of these
//! traits therefore keep this order. First put the value where it stays until the operation has ended (a slot, or a
//! `MaybeUninit`, which renews nothing when it is moved itself). *Then* take its address. Do not move, borrow or drop
//! the value until the operation has ended. For `Vec<u8>`, `Arc<[u8]>`, [`Region`] and `&'static [u8]` moving is
//! harmless, but users need not know which kind they have. The address is taken with its provenance exposed, so that
//! kernels and devices, which use plain numbers, may access the bytes.
#![allow(unsafe_code, reason = "the traits are promises the compiler cannot check")]

use crate::Region;
use std::ops::Range;
use std::sync::Arc;

/// Owned bytes to read, whose address does not change when the value moves.
///
/// # Safety
/// As long as the value is neither dropped nor mutably borrowed, even if it is moved:
/// - [`address`](StableBuf::address) and [`len`](StableBuf::len) return the same values;
/// - the `len` bytes from `address` stay mapped, initialised and readable, and no code writes them.
pub unsafe trait StableBuf: Send + 'static {
    /// Returns the address of the first byte, for reading; its provenance is exposed. An empty buffer returns some
    /// aligned number.
    fn address(&self) -> u64;

    /// Returns the length in bytes.
    fn len(&self) -> usize;

    /// True if the buffer is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the bytes of a buffer that no device writes now.
pub fn contents<B: StableBuf>(buf: &B) -> &[u8] {
    if buf.is_empty() {
        return &[];
    }
    let start: *const u8 = std::ptr::with_exposed_provenance(usize::try_from(buf.address()).expect("64-bit addresses"));
    // SAFETY: `StableBuf` promises that these bytes stay mapped, initialised and readable, and that no code writes
    // them, as long as `buf` is neither dropped nor mutably borrowed, which the slice's borrow prevents.
    unsafe { std::slice::from_raw_parts(start, buf.len()) }
}

/// Owned bytes to write.
///
/// # Safety
/// As for [`StableBuf`]. Also, the bytes may be written by address as long as the value is neither moved, borrowed nor
/// dropped; no other code reads or writes them then. [`address_mut`](StableBufMut::address_mut) returns the same number
/// as [`address`](StableBuf::address).
pub unsafe trait StableBufMut: StableBuf {
    /// Returns the address of the first byte, for writing as well; its provenance is exposed.
    fn address_mut(&mut self) -> u64;
}

#[inline]
fn exposed(pointer: *const u8) -> u64 {
    pointer.expose_provenance() as u64
}

#[inline]
fn exposed_mut(pointer: *mut u8) -> u64 {
    pointer.expose_provenance() as u64
}

// SAFETY: the heap block stays in place until the Vec is grown, shrunk or dropped. All of these need the Vec mutably or
// by value, and a mere move changes nothing. `len` bytes are initialised.
unsafe impl StableBuf for Vec<u8> {
    #[inline]
    fn address(&self) -> u64 {
        exposed(self.as_ptr())
    }
    #[inline]
    fn len(&self) -> usize {
        self.as_slice().len()
    }
}
// SAFETY: a Vec owns its block alone.
unsafe impl StableBufMut for Vec<u8> {
    #[inline]
    fn address_mut(&mut self) -> u64 {
        exposed_mut(self.as_mut_ptr())
    }
}

// SAFETY: as for Vec; the module's documentation explains why the address is taken after the last move.
unsafe impl StableBuf for Box<[u8]> {
    fn address(&self) -> u64 {
        exposed(self.as_ptr())
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}
// SAFETY: a Box owns its block alone.
unsafe impl StableBufMut for Box<[u8]> {
    fn address_mut(&mut self) -> u64 {
        exposed_mut(self.as_mut_ptr())
    }
}

// SAFETY: borrowed for ever and shared, so no code moves or writes the bytes.
unsafe impl StableBuf for &'static [u8] {
    fn address(&self) -> u64 {
        exposed(self.as_ptr())
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: borrowed for ever, so no code moves or frees the bytes.
unsafe impl StableBuf for &'static mut [u8] {
    fn address(&self) -> u64 {
        exposed(self.as_ptr())
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}
// SAFETY: borrowed for ever and exclusively.
unsafe impl StableBufMut for &'static mut [u8] {
    fn address_mut(&mut self) -> u64 {
        exposed_mut(self.as_mut_ptr())
    }
}

// SAFETY: this Arc keeps the block alive. Other Arcs may read it; none can write it as long as this one lives, because
// `Arc::get_mut` requires a single Arc.
unsafe impl StableBuf for Arc<[u8]> {
    fn address(&self) -> u64 {
        exposed(self.as_ptr())
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}

// SAFETY: this Arc keeps the buffer alive and in place. Through an Arc it is only shared; as long as a second Arc
// lives, no code gets it mutably, as above.
unsafe impl<B: StableBuf + Sync> StableBuf for Arc<B> {
    #[inline]
    fn address(&self) -> u64 {
        (**self).address()
    }
    #[inline]
    fn len(&self) -> usize {
        StableBuf::len(&**self)
    }
}

// SAFETY: the mapping stays in place until the Region is dropped.
unsafe impl StableBuf for Region {
    fn address(&self) -> u64 {
        exposed(self.as_ptr())
    }
    fn len(&self) -> usize {
        (**self).len()
    }
}
// SAFETY: a Region owns its mapping alone.
unsafe impl StableBufMut for Region {
    fn address_mut(&mut self) -> u64 {
        exposed_mut(self.as_mut_ptr())
    }
}

/// A part of a buffer, which is itself a buffer.
///
/// ```
/// use telpher_mem::{Slice, StableBuf};
///
/// let part = Slice::new(vec![0_u8; 100], 10..30).expect("in range");
/// assert_eq!(part.len(), 20);
/// assert_eq!(part.address(), part.whole().address() + 10);
/// let whole: Vec<u8> = part.into_whole();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice<B> {
    whole: B,
    start: usize,
    len: usize,
}

/// Error: the range does not lie in its buffer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("bytes {} to {} do not lie in a buffer of {len} bytes", range.start, range.end)]
pub struct OutOfRange<B> {
    /// The buffer, given back.
    pub buffer: B,
    /// The range asked for.
    pub range: Range<usize>,
    /// The length of the buffer in bytes.
    pub len: usize,
}

impl<B: StableBuf> Slice<B> {
    /// Creates a buffer of the bytes of `range`.
    ///
    /// # Errors
    /// [`OutOfRange`], with the buffer, if the range is reversed or exceeds the buffer.
    #[inline]
    pub fn new(whole: B, range: Range<usize>) -> Result<Slice<B>, OutOfRange<B>> {
        let len = whole.len();
        if range.start > range.end || range.end > len {
            return Err(OutOfRange { buffer: whole, range, len });
        }
        Ok(Slice { whole, start: range.start, len: range.end - range.start })
    }

    /// Creates a buffer of the bytes of `range` of a clone of `whole`; `None`, without a clone, if the range is
    /// reversed or exceeds the buffer.
    #[inline]
    pub fn of_clone(whole: &B, range: Range<usize>) -> Option<Slice<B>>
    where
        B: Clone,
    {
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= whole.len())?;
        Some(Slice { whole: whole.clone(), start: range.start, len })
    }

    /// Returns the whole buffer.
    pub fn whole(&self) -> &B {
        &self.whole
    }

    /// Gives the whole buffer back.
    pub fn into_whole(self) -> B {
        self.whole
    }

    /// Returns the range of this part in the whole buffer.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

// SAFETY: a part of a stable buffer. `whole` changes by value only, so the range checked in `new` stays valid.
unsafe impl<B: StableBuf> StableBuf for Slice<B> {
    #[inline]
    fn address(&self) -> u64 {
        self.whole.address() + self.start as u64
    }
    #[inline]
    fn len(&self) -> usize {
        self.len
    }
}
// SAFETY: as above.
unsafe impl<B: StableBufMut> StableBufMut for Slice<B> {
    #[inline]
    fn address_mut(&mut self) -> u64 {
        self.whole.address_mut() + self.start as u64
    }
}

/// A buffer with a tag that is dropped right after it. Dropping the tag signals that neither the program nor a device
/// uses the bytes any more.
///
/// ```
/// use std::sync::Arc;
/// use telpher_mem::{StableBuf, Tagged};
///
/// let there = Arc::new(());
/// let tagged = Tagged::new(vec![0_u8; 100], Arc::clone(&there));
/// assert_eq!((StableBuf::len(&tagged), Arc::strong_count(&there)), (100, 2));
/// drop(tagged);
/// assert_eq!(Arc::strong_count(&there), 1);
/// ```
#[derive(Clone, Debug)]
pub struct Tagged<B, T> {
    // The order matters: fields are dropped in the order of their declaration.
    buffer: B,
    tag: T,
}

impl<B, T> Tagged<B, T> {
    /// Combines a buffer with the tag that is dropped after it.
    pub const fn new(buffer: B, tag: T) -> Self {
        Tagged { buffer, tag }
    }

    /// Returns the buffer.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// Returns the tag.
    pub fn tag(&self) -> &T {
        &self.tag
    }
}

// SAFETY: the buffer is stable, and no code gets it mutably. The tag does not access its bytes.
unsafe impl<B: StableBuf, T: Send + 'static> StableBuf for Tagged<B, T> {
    fn address(&self) -> u64 {
        self.buffer.address()
    }
    fn len(&self) -> usize {
        self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageSize;

    fn stays<B: StableBufMut>(mut buf: B, len: usize) {
        let (address, writable) = (buf.address(), buf.address_mut());
        assert_eq!((address, len), (writable, StableBuf::len(&buf)));
        let moved = Box::new(buf);
        assert_eq!((moved.address(), StableBuf::len(&*moved)), (address, len));
    }

    #[test]
    fn moving_the_value_leaves_the_bytes_where_they_are() {
        stays(vec![1; 100], 100);
        stays(vec![1; 100].into_boxed_slice(), 100);
        let leaked: &'static mut [u8] = Box::leak(vec![1; 10].into_boxed_slice());
        stays(leaked, 10);
        stays(Region::new(5000, PageSize::Small).unwrap(), 5000);
        stays(Slice::new(vec![1; 100], 5..25).unwrap(), 20);
        let shared: Arc<[u8]> = Arc::from([1; 10]);
        assert_eq!(shared.clone().address(), shared.address());
    }

    #[test]
    fn a_range_outside_gives_the_buffer_back() {
        #[allow(clippy::reversed_empty_ranges, reason = "a range that must be refused")]
        for range in [0..11, 5..4, 11..11, usize::MAX..usize::MAX] {
            let error = Slice::new(vec![7; 10], range).unwrap_err();
            assert_eq!(error.buffer, [7; 10]);
            assert_eq!(Slice::of_clone(&error.buffer, error.range), None);
        }
        assert_eq!(
            Slice::new(vec![7; 10], 3..11).unwrap_err().to_string(),
            "bytes 3 to 11 do not lie in a buffer of 10 bytes"
        );
        assert!(StableBuf::is_empty(&Slice::new(vec![7; 10], 10..10).unwrap()));
    }

    #[test]
    fn slices_of_slices_add_up() {
        let inner = Slice::new(vec![0; 100], 10..60).unwrap();
        let outer = Slice::new(inner, 5..10).unwrap();
        assert_eq!(outer.address(), outer.whole().whole().address() + 15);
        assert_eq!(outer.range(), 5..10);
        let shared: Arc<[u8]> = Arc::from([0; 100]);
        let part = Slice::of_clone(&shared, 5..10).unwrap();
        assert_eq!((part.address(), part.range()), (shared.address() + 5, 5..10));
    }
}
