//! Shared memory whose pages are in one of two files. They move between the files by write protection, a copy, and a
//! new mapping, as HeMem moves them (Raybuck et al., SOSP 2021), in parts of any size. `telpher bench tier` compares a
//! heap with it.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use telpher_os::{Userfault, UserfaultFeatures};

/// The memory. A page has the same offset in both files.
pub(crate) struct Remapped {
    files: [File; 2],
    /// The mapping that programs use.
    visible: NonNull<u8>,
    len: usize,
    userfault: Userfault,
    /// For each page, the index of its file. The lock also serialises moves.
    file_of: Mutex<Vec<usize>>,
}

// SAFETY: threads share the words, which are atomic; everything else of the mappings is used only with the lock held.
unsafe impl Sync for Remapped {}

/// A file, and a mapping of all of it to copy from and to.
struct File {
    file: OwnedFd,
    all: NonNull<u8>,
}

const PAGE: usize = 4096;

impl Remapped {
    /// Creates `len` zero bytes, rounded up to whole pages, in the second file.
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
        let visible = unsafe { mmap(ptr::null_mut(), len, READ_WRITE, POPULATED, &files[1].file, 0)? };
        let visible = NonNull::new(visible.cast()).expect("mapped");
        let remapped = Remapped { files, visible, len, userfault, file_of: Mutex::new(vec![1; len / PAGE]) };
        remapped.userfault.register_writes(remapped.range())?;
        Ok(remapped)
    }

    /// Returns the addresses.
    pub(crate) fn range(&self) -> Range<u64> {
        let start = self.visible.as_ptr().expose_provenance() as u64;
        start..start + self.len as u64
    }

    /// Returns the words, which threads may change while pages move.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as `self`, page-aligned, and accessed only through these words; a moved page has the
        // same words.
        unsafe { std::slice::from_raw_parts(self.visible.as_ptr().cast(), self.len / 8) }
    }

    /// Moves `pages` pages from page `first` on to the other file; all must be in the same one.
    pub(crate) fn go(&self, first: usize, pages: usize) -> io::Result<()> {
        let mut file_of = self.file_of.lock().unwrap_or_else(PoisonError::into_inner);
        let from = file_of[first];
        assert!(file_of[first..first + pages].iter().all(|&file| file == from), "the pages are in one file");
        let (offset, len) = (first * PAGE, pages * PAGE);
        let start = self.range().start + offset as u64;
        let part = start..start + len as u64;
        self.userfault.protect(part.clone(), true)?;
        let [old, new] = [&self.files[from], &self.files[1 - from]];
        // SAFETY: both ranges lie in their mappings. The visible one is write-protected, and the other one is not
        // visible.
        unsafe { ptr::copy_nonoverlapping(old.all.as_ptr().add(offset), new.all.as_ptr().add(offset), len) };
        // SAFETY: a part of our own mapping, which shows the same bytes before and after.
        unsafe {
            mmap(
                self.visible.as_ptr().add(offset).cast(),
                len,
                READ_WRITE,
                POPULATED | MapFlags::FIXED,
                &new.file,
                offset as u64,
            )?;
        }
        file_of[first..first + pages].fill(1 - from);
        // The new mapping is not registered, and threads that waited on the old one must retry.
        self.userfault.register_writes(part.clone())?;
        self.userfault.wake(part);
        Ok(())
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
const POPULATED: MapFlags = MapFlags::SHARED.union(MapFlags::POPULATE);

impl Drop for Remapped {
    fn drop(&mut self) {
        for mapping in [self.visible, self.files[0].all, self.files[1].all] {
            // SAFETY: our own mappings, without references to them. munmap of a whole mapping cannot fail; if it did,
            // it would only leak.
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
        // A write goes to the file that holds the page.
        remapped.words()[40 * PAGE / 8].store(u64::MAX, Relaxed);
        let [fast, home] = [0, 1].map(|file| {
            let word: *const u64 = remapped.files[file].all.as_ptr().cast();
            // SAFETY: a word of our own mapping.
            unsafe { word.add(40 * PAGE / 8).read_volatile() }
        });
        assert_eq!((fast, home), (u64::MAX, 40 * PAGE as u64 / 8));
    }
}
