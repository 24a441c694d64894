//! Words anywhere in a shared mapping.

use super::SharedMapping;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Consecutive 64-bit words of a [`SharedMapping`], which stays mapped as long as this exists. Atomics, so that a
/// change by another process is a value and no fault.
#[derive(Clone, Debug)]
pub struct SharedWords64 {
    /// Keeps the words mapped.
    mapping: Arc<SharedMapping>,
    first: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the words are atomics in a mapping that belongs to the process, not to a thread.
unsafe impl Send for SharedWords64 {}
// SAFETY: as above.
unsafe impl Sync for SharedWords64 {}

impl SharedWords64 {
    /// Returns the `count` words from byte `offset` of the mapping; `None` if one of them is outside, or if the first
    /// is not at a multiple of 8 bytes.
    #[must_use]
    pub fn new(mapping: &Arc<SharedMapping>, offset: usize, count: usize) -> Option<SharedWords64> {
        let end = count.checked_mul(size_of::<AtomicU64>())?.checked_add(offset)?;
        if end > mapping.len() || !mapping.address().wrapping_add(offset as u64).is_multiple_of(8) {
            return None;
        }
        // SAFETY: `offset` is at most the end of the mapping, see above.
        let first = unsafe { mapping.base.add(mapping.skipped + offset) }.cast();
        Some(SharedWords64 { mapping: Arc::clone(mapping), first, count })
    }

    /// Returns the mapping.
    #[must_use]
    pub fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }
}

impl Deref for SharedWords64 {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `new` has checked that the words are aligned and lie in the mapping, which this value keeps. Any bits
        // are a valid word, and atomics may be changed by others.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Mapping;
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_are_those_of_the_file_and_never_outside() {
        let file = Mapping::memory_file(2 * 4096).unwrap();
        let [one, other] = [0; 2].map(|start| Arc::new(SharedMapping::map(file.as_fd(), start, 8192).unwrap()));
        let (here, there) = (SharedWords64::new(&one, 64, 4).unwrap(), SharedWords64::new(&other, 72, 1).unwrap());
        here[1].store(7, Ordering::Relaxed);
        assert_eq!((there[0].load(Ordering::Relaxed), here.len(), there.mapping().len()), (7, 4, 8192));
        assert_eq!(SharedWords64::new(&one, 0, 1024).unwrap().len(), 1024);
        for (offset, count) in [(0, 1025), (8, 1024), (8192, 1), (4, 1), (8, usize::MAX), (usize::MAX - 7, 1)] {
            assert!(SharedWords64::new(&one, offset, count).is_none(), "{count} words from byte {offset}");
        }
        drop(one);
        here[0].store(1, Ordering::Relaxed);
    }

    #[test]
    fn a_prefetch_changes_nothing_inside_or_outside() {
        let file = Mapping::memory_file(4096).unwrap();
        let mapping = SharedMapping::map(file.as_fd(), 0, 4096).unwrap();
        file.set_len(0).unwrap();
        [0, 4095, 4096, usize::MAX].into_iter().for_each(|at| {
            mapping.prefetch(at);
            mapping.prefetch_for_write(at);
        });
        assert!(mapping.is_whole());
    }
}
