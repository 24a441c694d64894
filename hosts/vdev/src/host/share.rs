//! Memory shared with guests: sealed files in memory, mapped here too.
#![allow(unsafe_code, reason = "maps leases and boards, whose zero bytes are values and whose words are all atomic")]

use crate::tree::Errno;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use telpher_vdev_wire::board::{Board, Rows};
use telpher_vdev_wire::lease::Lease;

/// What may lie in memory that strangers write.
///
/// # Safety
/// Every byte pattern is a value, zero among them, and all of it is atomic: whatever another process stores there at any
/// moment, loads through `&Self` read some value.
pub(crate) unsafe trait Words: Sync {}

// SAFETY: a board is 32-bit atomics, and words that nobody reads.
unsafe impl Words for Board {}
// SAFETY: 32-bit atomics throughout.
unsafe impl Words for Rows {}
// SAFETY: a lease is 64-bit atomics throughout.
unsafe impl Words for Lease {}

/// A value in memory of its own, to be mapped by others as well. It cannot be made smaller by them, so it stays mapped.
#[derive(Debug)]
pub(crate) struct Shared<T: Words> {
    file: OwnedFd,
    address: NonNull<T>,
}

// SAFETY: the mapping is the process', and `T` is shared by reference only.
unsafe impl<T: Words> Send for Shared<T> {}
// SAFETY: as above; `T` is `Sync`.
unsafe impl<T: Words> Sync for Shared<T> {}

impl<T: Words> Shared<T> {
    /// A new one, all zero.
    pub(crate) fn new(name: &str) -> Result<Self, Errno> {
        Self::new_with(name, SealFlags::SEAL)
    }

    fn new_with(name: &str, seals: SealFlags) -> Result<Self, Errno> {
        const { assert!(align_of::<T>() <= 4096 && size_of::<T>() > 0, "a mapping begins at a page") };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            // A kernel older than that flag.
            .or_else(|_| memfd_create(name, flags))?;
        ftruncate(&file, size_of::<T>() as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | seals)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a wish for an address the system picks a range nobody uses.
        let base = unsafe { mmap(std::ptr::null_mut(), size_of::<T>(), protection, MapFlags::SHARED, &file, 0) }?;
        Ok(Shared { file, address: NonNull::new(base.cast()).ok_or(Errno::NOMEM)? })
    }

    /// The same, which only this process can write: other processes may map it for reading.
    pub(crate) fn new_for_readers(name: &str) -> Result<Self, Errno> {
        let shared = Self::new_with(name, SealFlags::empty())?;
        // This process' mapping is there already, and keeps its permission.
        fcntl_add_seals(&shared.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(shared)
    }

    /// The memory, to be handed to others.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<T: Words> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped as long as `self` lives, page aligned, and sealed against shrinking; any bytes are a value, and all
        // accesses are atomic (`Words`).
        unsafe { self.address.as_ref() }
    }
}

impl<T: Words> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference outlives `self`.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), size_of::<T>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_mapping_stores_the_other_loads_and_nobody_can_shrink_it() {
        let board = Shared::<Board>::new("board").unwrap();
        board.state.store(7, Ordering::Relaxed);
        let mut word = [0; 4];
        rustix::io::pread(board.file(), &mut word, 0).unwrap();
        assert_eq!(word, 7_u32.to_ne_bytes());
        assert_eq!(ftruncate(board.file(), 0), Err(Errno::PERM));
        assert_eq!(ftruncate(board.file(), 1 << 20), Err(Errno::PERM));
    }

    #[test]
    fn what_is_for_readers_no_other_mapping_writes() {
        let board = Shared::<Board>::new_for_readers("board").unwrap();
        board.state.store(7, Ordering::Relaxed);
        let map = |protection| {
            // SAFETY: without a wish for an address the system picks a free range; what is mapped is not
            // accessed.
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
