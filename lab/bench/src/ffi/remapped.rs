//! Shared memory whose pages are of one of two files, and change it by protection from writes, a copy, and another mapping in their place: as HeMem
//! moves them (Raybuck et al., SOSP 2021), in pieces of any size. What `telpher bench tier` measures against.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use telpher_os::{Userfault, UserfaultFeatures};

/// The memory. A page is at the same offset in both files.
pub(crate) struct Remapped {
    files: [File; 2],
    /// What programs use.
    seen: NonNull<u8>,
    len: usize,
    userfault: Userfault,
    /// Of each page, the file it is of; one thread at a time moves pages.
    of: Mutex<Vec<usize>>,
}

// SAFETY: threads share the words, which are atomic, and what else there is of the mappings is used by one at a time, which has the lock.
unsafe impl Sync for Remapped {}

/// A file, and where all of it can be copied from and to.
struct File {
    file: OwnedFd,
    all: NonNull<u8>,
}

const PAGE: usize = 4096;

impl Remapped {
    /// So many bytes, whole pages, which are zeros of the second file.
    pub(crate) fn new(len: usize) -> io::Result<Remapped> {
        let len = len.next_multiple_of(PAGE);
        let userfault = Userfault::open(UserfaultFeatures::PROTECT_SHARED).map_err(io::Error::other)?;
        let file = || {
            let file = memfd_create("telpher-bench", MemfdFlags::CLOEXEC)?;
            ftruncate(&file, len as u64)?;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let all = unsafe { mmap(ptr::null_mut(), len, READ_WRITE, POPULATED, &file, 0)? };
            Ok::<_, io::Error>(File { file, all: NonNull::new(all.cast()).expect("mapped") })
        };
        let files = [file()?, file()?];
        // SAFETY: as above.
        let seen = unsafe { mmap(ptr::null_mut(), len, READ_WRITE, POPULATED, &files[1].file, 0)? };
        let seen = NonNull::new(seen.cast()).expect("mapped");
        let remapped = Remapped { files, seen, len, userfault, of: Mutex::new(vec![1; len / PAGE]) };
        remapped.userfault.register_writes(remapped.range())?;
        Ok(remapped)
    }

    /// Its addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        let start = self.seen.as_ptr().expose_provenance() as u64;
        start..start + self.len as u64
    }

    /// Its words, which threads may change while its pages move.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as `self`, page-aligned, and used through these words alone; a page that moves has the same words there.
        unsafe { std::slice::from_raw_parts(self.seen.as_ptr().cast(), self.len / 8) }
    }

    /// Moves so many pages from the first on to the other file, all of which are of one.
    pub(crate) fn go(&self, first: usize, pages: usize) -> io::Result<()> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let from = of[first];
        assert!(of[first..first + pages].iter().all(|&of| of == from), "they are of one file");
        let (offset, len) = (first * PAGE, pages * PAGE);
        let start = self.range().start + offset as u64;
        let part = start..start + len as u64;
        self.userfault.protect(part.clone(), true)?;
        let [old, new] = [&self.files[from], &self.files[1 - from]];
        // SAFETY: both lie in their mappings. What is seen of the one nobody writes while it is protected, and the other is seen nowhere.
        unsafe { ptr::copy_nonoverlapping(old.all.as_ptr().add(offset), new.all.as_ptr().add(offset), len) };
        // SAFETY: a part of our own mapping, in which the same bytes are seen before and after.
        unsafe {
            mmap(
                self.seen.as_ptr().add(offset).cast(),
                len,
                READ_WRITE,
                POPULATED | MapFlags::FIXED,
                &new.file,
                offset as u64,
            )?;
        }
        of[first..first + pages].fill(1 - from);
        // The new mapping is not registered, and who waited for the old one looks again.
        self.userfault.register_writes(part.clone())?;
        self.userfault.wake(part);
        Ok(())
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const POPULATED: MapFlags = MapFlags::SHARED.union(MapFlags::POPULATE);

impl Drop for Remapped {
    fn drop(&mut self) {
        for mapping in [self.seen, self.files[0].all, self.files[1].all] {
            // SAFETY: our own mappings, which nobody has a reference to any more. They are whole: a refusal is not possible, and would leave them.
            let _ = unsafe { munmap(mapping.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn pages_change_their_file_and_keep_their_words() {
        let remapped = Remapped::new(64 * PAGE).unwrap();
        remapped.words().iter().zip(0..).for_each(|(word, number)| word.store(number, Relaxed));
        for (first, pages) in [(0, 16), (16, 1), (32, 32), (0, 16), (17, 3)] {
            remapped.go(first, pages).unwrap();
            assert!(remapped.words().iter().zip(0..).all(|(word, number)| word.load(Relaxed) == number));
        }
        // What is written goes to the file that the page is of.
        remapped.words()[40 * PAGE / 8].store(u64::MAX, Relaxed);
        let [fast, home] = [0, 1].map(|file| {
            let word: *const u64 = remapped.files[file].all.as_ptr().cast();
            // SAFETY: a word of our own mapping.
            unsafe { word.add(40 * PAGE / 8).read_volatile() }
        });
        assert_eq!((fast, home), (u64::MAX, 40 * PAGE as u64 / 8));
    }
}
