//! Memory shared with the host: mapped once, accessed through atomics, not inherited by a forked child.
#![allow(unsafe_code, reason = "maps memory that other processes write, as structures of atomics")]

use crate::sys::{Errno, call, word};
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use telpher_vdev_wire::file_memory::FileMemory;
use telpher_vdev_wire::queue_state::{OccupancySlots, QueueState};

/// Structures that other processes may overwrite at any time: they contain only atomic integers.
///
/// # Safety
/// Every bit pattern is valid, and every field that changes is atomic.
pub(crate) unsafe trait AtomicLayout: Sync + 'static {}

// SAFETY: 32-bit atomics, and padding that is never read.
unsafe impl AtomicLayout for QueueState {}
// SAFETY: all fields are 32-bit atomics.
unsafe impl AtomicLayout for OccupancySlots {}
// SAFETY: all fields are 64-bit atomics.
unsafe impl AtomicLayout for FileMemory {}

/// A mapped structure; clones share the mapping, and the last one unmaps it.
#[derive(Debug)]
pub(crate) struct Shared<T: AtomicLayout>(Arc<Mapping<T>>);

#[derive(Debug)]
struct Mapping<T> {
    base: NonNull<T>,
    _of: PhantomData<T>,
}

// SAFETY: the mapping is used through shared references to atomics.
unsafe impl<T: AtomicLayout> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: AtomicLayout> Sync for Mapping<T> {}

impl<T: AtomicLayout> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<T: AtomicLayout> AsRef<T> for Shared<T> {
    fn as_ref(&self) -> &T {
        // SAFETY: mapped, at least as long as the structure; every bit pattern is valid (`AtomicLayout`).
        unsafe { self.0.base.as_ref() }
    }
}

impl<T: AtomicLayout> Shared<T> {
    /// Maps a descriptor's memory. The caller keeps the descriptor.
    ///
    /// # Errors
    /// The system's refusal; EIO if the memory is shorter than the structure.
    pub(crate) fn map(fd: RawFd) -> Result<Self, Errno> {
        Self::map_as(fd, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps memory that only the host writes: a store faults.
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
        // SAFETY: without MAP_FIXED the kernel picks a free range.
        let base = unsafe { call(libc::SYS_mmap, arguments) }?;
        // SAFETY: the range just mapped. A child must not inherit it, because it is another address space.
        let _ = unsafe { call(libc::SYS_madvise, [base, len, word(libc::MADV_DONTFORK), 0, 0, 0]) };
        let base = NonNull::new(std::ptr::with_exposed_provenance_mut(base)).ok_or(Errno::NOMEM)?;
        Ok(Shared(Arc::new(Mapping { base, _of: PhantomData })))
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        let arguments = [self.base.as_ptr().expose_provenance(), size_of::<T>(), 0, 0, 0, 0];
        // SAFETY: the range was mapped by `map`, and no reference to it is left.
        let _ = unsafe { call(libc::SYS_munmap, arguments) };
    }
}
