//! Memory shared with guests: sealed memfds, also mapped in the host.
#![allow(unsafe_code, reason = "maps shared structures that consist of atomics and for which zero bytes are valid")]

use crate::tree::Errno;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use telpher_vdev_wire::file_memory::FileMemory;
use telpher_vdev_wire::queue_state::{OccupancySlots, QueueState};

/// Types that may lie in memory that untrusted processes write.
///
/// # Safety
/// Every byte pattern, including all zero, is a valid value, and every accessible field is atomic: whatever another
/// process stores at any moment, a load through `&Self` returns some value.
pub(crate) unsafe trait AtomicLayout: Sync {}

// SAFETY: 32-bit atomics, and padding that is never read.
unsafe impl AtomicLayout for QueueState {}
// SAFETY: all fields are 32-bit atomics.
unsafe impl AtomicLayout for OccupancySlots {}
// SAFETY: all fields are 64-bit atomics.
unsafe impl AtomicLayout for FileMemory {}

/// A value in a memfd that other processes can map. They cannot shrink it, so the mapping stays valid.
#[derive(Debug)]
pub(crate) struct Shared<T: AtomicLayout> {
    file: OwnedFd,
    address: NonNull<T>,
}

// SAFETY: the mapping belongs to the process, and `T` is shared by reference only.
unsafe impl<T: AtomicLayout> Send for Shared<T> {}
// SAFETY: as above; `T` is `Sync`.
unsafe impl<T: AtomicLayout> Sync for Shared<T> {}

impl<T: AtomicLayout> Shared<T> {
    /// Creates a value with all bytes zero.
    pub(crate) fn new(name: &str) -> Result<Self, Errno> {
        Self::new_with(name, SealFlags::SEAL)
    }

    fn new_with(name: &str, seals: SealFlags) -> Result<Self, Errno> {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0, "a mapping begins at a page") };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            // Older kernels do not know the flag.
            .or_else(|_| memfd_create(name, flags))?;
        ftruncate(&file, size_of::<T>() as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | seals)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a requested address the kernel picks a free range.
        let base = unsafe { mmap(std::ptr::null_mut(), size_of::<T>(), protection, MapFlags::SHARED, &file, 0) }?;
        Ok(Shared { file, address: NonNull::new(base.cast()).ok_or(Errno::NOMEM)? })
    }

    /// Creates a value that only this process can write; other processes may map it for reading.
    pub(crate) fn new_for_readers(name: &str) -> Result<Self, Errno> {
        let shared = Self::new_with(name, SealFlags::empty())?;
        // This process's mapping exists already and keeps its write permission.
        fcntl_add_seals(&shared.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(shared)
    }

    /// The memfd, to be sent to guests.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<T: AtomicLayout> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped while `self` lives, page-aligned, and sealed against shrinking; every byte pattern is valid,
        // and all accesses are atomic (`AtomicLayout`).
        unsafe { self.address.as_ref() }
    }
}

impl<T: AtomicLayout> AsRef<T> for Shared<T> {
    fn as_ref(&self) -> &T {
        self
    }
}

impl<T: AtomicLayout> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), size_of::<T>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn stores_are_visible_through_the_file_which_cannot_be_resized() {
        let board = Shared::<QueueState>::new("board").unwrap();
        board.state.store(7, Ordering::Relaxed);
        let mut word = [0; 4];
        rustix::io::pread(board.file(), &mut word, 0).unwrap();
        assert_eq!(word, 7_u32.to_ne_bytes());
        assert_eq!(ftruncate(board.file(), 0), Err(Errno::PERM));
        assert_eq!(ftruncate(board.file(), 1 << 20), Err(Errno::PERM));
    }

    #[test]
    fn memory_for_readers_cannot_be_mapped_for_writing() {
        let board = Shared::<QueueState>::new_for_readers("board").unwrap();
        board.state.store(7, Ordering::Relaxed);
        let map = |protection| {
            // SAFETY: without a requested address the kernel picks a free range; the mapping is not accessed.
            unsafe { mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, board.file(), 0) }
        };
        assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
        assert_eq!(rustix::io::pwrite(board.file(), &[1], 0), Err(Errno::PERM));
        let base = map(ProtFlags::READ).unwrap();
        // SAFETY: the range just mapped, to which no reference exists.
        unsafe {
            assert_eq!(rustix::mm::mprotect(base, 4096, rustix::mm::MprotectFlags::WRITE), Err(Errno::ACCESS));
            munmap(base, 4096).unwrap();
        }
        assert_eq!(ftruncate(board.file(), 0), Err(Errno::PERM));
        board.state.store(8, Ordering::Relaxed);
        let mut word = [0; 4];
        rustix::io::pread(board.file(), &mut word, 0).unwrap();
        assert_eq!(word, 8_u32.to_ne_bytes());
    }
}
