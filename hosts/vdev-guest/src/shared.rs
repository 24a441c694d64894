//! Memory shared with the host: mapped once, read and written through atomics, never seen by a forked child.
#![allow(unsafe_code, reason = "maps memory that others write, as structures made of atomics")]

use crate::sys::{Errno, call, word};
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use telpher_vdev_wire::board::{Board, Rows};
use telpher_vdev_wire::lease::Lease;

/// Structures that any process may scribble over while they are used: nothing but atomic integers.
///
/// # Safety
/// Every bit pattern is a value, and every field that changes is atomic.
pub(crate) unsafe trait Scribbled: Sync + 'static {}

// SAFETY: atomics of 32 bits, and reserved integers that nobody reads.
unsafe impl Scribbled for Board {}
// SAFETY: atomics of 32 bits.
unsafe impl Scribbled for Rows {}
// SAFETY: atomics of 64 bits.
unsafe impl Scribbled for Lease {}

/// A mapped structure; copies share the mapping, and the last one unmaps it.
#[derive(Debug)]
pub(crate) struct Shared<T: Scribbled>(Arc<Mapping<T>>);

#[derive(Debug)]
struct Mapping<T> {
    base: NonNull<T>,
    _of: PhantomData<T>,
}

// SAFETY: what is mapped is used through shared references to atomics.
unsafe impl<T: Scribbled> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Scribbled> Sync for Mapping<T> {}

impl<T: Scribbled> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<T: Scribbled> AsRef<T> for Shared<T> {
    fn as_ref(&self) -> &T {
        // SAFETY: mapped, whole pages of a memory file as long as the structure; of scribbled memory anything may be read.
        unsafe { self.0.base.as_ref() }
    }
}

impl<T: Scribbled> Shared<T> {
    /// Maps a descriptor's memory. The descriptor stays the caller's.
    ///
    /// # Errors
    /// The system's refusal; EIO if the memory is shorter than the structure.
    pub(crate) fn map(fd: RawFd) -> Result<Self, Errno> {
        Self::map_as(fd, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// The same of memory that only the host writes: a store faults.
    ///
    /// # Errors
    /// As for [`map`](Shared::map).
    pub(crate) fn map_for_reading(fd: RawFd) -> Result<Self, Errno> {
        Self::map_as(fd, libc::PROT_READ)
    }

    fn map_as(fd: RawFd, protection: i32) -> Result<Self, Errno> {
        // SAFETY: the caller's descriptor, borrowed for the call.
        let status = rustix::fs::fstat(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })?;
        let len = size_of::<T>();
        if usize::try_from(status.st_size).map_or(true, |size| size < len) {
            return Err(Errno::IO);
        }
        let arguments = [0, len, word(protection), word(libc::MAP_SHARED), word(fd), 0];
        // SAFETY: without MAP_FIXED the kernel picks a range nobody uses.
        let base = unsafe { call(libc::SYS_mmap, arguments) }?;
        // SAFETY: the range just mapped. A child has no business with it: it is another address space.
        let _ = unsafe { call(libc::SYS_madvise, [base, len, word(libc::MADV_DONTFORK), 0, 0, 0]) };
        let base = NonNull::new(std::ptr::with_exposed_provenance_mut(base)).ok_or(Errno::NOMEM)?;
        Ok(Shared(Arc::new(Mapping { base, _of: PhantomData })))
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        let arguments = [self.base.as_ptr().expose_provenance(), size_of::<T>(), 0, 0, 0, 0];
        // SAFETY: the range was mapped by `map`, and nobody has a reference any more.
        let _ = unsafe { call(libc::SYS_munmap, arguments) };
    }
}
