//! New memory straight from the kernel, for code that may not use an allocator.
#![allow(unsafe_code, reason = "maps memory")]

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::os::fd::IntoRawFd as _;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// The name of memory files in which processes publish what they count. Readers find them in `/proc/PID/fd`.
pub const PUBLISHED: &str = "telpher-metrics";
/// The name of memory files in which the modelled devices of a process count what they do. Readers find them beside the
/// others.
pub const PUBLISHED_DEVICES: &str = "telpher-devices";

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

/// The least number of the descriptor of published words: high, because programs count on low numbers, and known, so
/// that readers need not look at every descriptor. Source: chosen; below 1024, the usual limit.
pub const PUBLISHED_FROM: i32 = 900;

/// Returns new words, all zero, which other processes of this user can read and write through `/proc/PID/fd`. They stay
/// mapped, and their file open, as long as the process lives; its forked children share them. The file cannot shrink.
/// Its number is the first free one from [`PUBLISHED_FROM`] on.
///
/// # Errors
/// The system's refusal; also if the process may not have descriptors with such numbers.
pub fn published_words(words: usize) -> Result<&'static [AtomicU64], Errno> {
    published_words_as(PUBLISHED, words)
}

/// Returns [`published_words`] in a file of another name, such as [`PUBLISHED_DEVICES`]. The words begin at a page.
///
/// # Errors
/// As of [`published_words`].
pub fn published_words_as(name: &str, words: usize) -> Result<&'static [AtomicU64], Errno> {
    let bytes = words.checked_mul(size_of::<AtomicU64>()).filter(|bytes| *bytes != 0).ok_or(Errno::INVAL)?;
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&file, bytes as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: without MAP_FIXED the kernel picks a range that is not used.
    let memory = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, &file, 0) }?;
    // Open for ever: readers find it by its descriptor.
    let file = fcntl_dupfd_cloexec(&file, PUBLISHED_FROM)?;
    let _ = file.into_raw_fd();
    // SAFETY: the mapping begins at a page, has these words, and is never unmapped; the seals keep its file from
    // shrinking. Every access, also of other processes, is that of an atomic.
    Ok(unsafe { std::slice::from_raw_parts(memory.cast(), words) })
}

/// Returns [`published_words`]; where the system refuses them, words of this process alone. Both stay until the process
/// ends.
#[must_use]
pub fn published_words_or_own(words: usize) -> &'static [AtomicU64] {
    let own = || Box::leak((0..words).map(|_| AtomicU64::new(0)).collect());
    published_words(words).unwrap_or_else(|_| own())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn published_words_are_found_by_their_name_and_shared() {
        let words = published_words(1000).unwrap();
        assert!(words.len() == 1000 && words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words[999].store(7, Ordering::Relaxed);
        let is_it = |path: &std::path::PathBuf| {
            let name = std::fs::read_link(path).unwrap_or_default();
            let is_named = name.to_str() == Some(&format!("/memfd:{PUBLISHED} (deleted)"));
            is_named && std::fs::read(path).is_ok_and(|bytes| bytes.len() == 8000 && bytes[7992] == 7)
        };
        let found = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()).find(is_it).unwrap();
        let file = std::fs::File::options().write(true).open(found).unwrap();
        assert!(file.set_len(0).is_err(), "the file is sealed");
        assert_eq!(published_words(0).err(), Some(Errno::INVAL));
    }

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
