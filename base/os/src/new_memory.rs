//! New memory straight from the kernel, for code that may not use an allocator.
#![allow(unsafe_code, reason = "maps memory")]

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ptr::{self, NonNull};

/// Maps memory of this process: readable, writable and zero. A forked child gets a copy. It stays mapped until the
/// caller unmaps it.
///
/// # Errors
/// The system's refusal.
pub fn map_private(bytes: usize) -> Result<NonNull<u8>, Errno> {
    map(bytes, MapFlags::PRIVATE)
}

/// Maps memory that this process shares with the children that it forks later: readable, writable and zero. It stays
/// mapped until the caller unmaps it.
///
/// # Errors
/// The system's refusal.
pub fn map_shared(bytes: usize) -> Result<NonNull<u8>, Errno> {
    map(bytes, MapFlags::SHARED)
}

fn map(bytes: usize, flags: MapFlags) -> Result<NonNull<u8>, Errno> {
    // SAFETY: without MAP_FIXED the kernel picks a range that is not used.
    let memory = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
    NonNull::new(memory.cast()).ok_or(Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_memory_is_zero_and_writable_and_a_child_shares_only_what_is_shared() {
        let [private, shared] = [map_private(8192).unwrap(), map_shared(8192).unwrap()];
        for memory in [private, shared] {
            // SAFETY: the mapping has these bytes, and no other code knows it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), 8192) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes[8191] = 1;
        }
        // SAFETY: the child writes into these mappings, and ends without running any other code.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                private.write(2);
                shared.write(2);
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, ptr::null_mut(), 0), child);
            assert_eq!([private.read_volatile(), shared.read_volatile()], [0, 2]);
        }
        assert_eq!(map_private(0), Err(Errno::INVAL));
    }
}
