//! Tables over the words of a mapping.
#![allow(unsafe_code, reason = "words of a mapping become tables of words")]

use crate::layout::{Boundaries, ModuleEntry, Progress, SiteCounters, ThreadTable};
use crate::sync::AtomicU64;
use crate::trace_slot::TraceSlot;

/// A type that consists of nothing but [`AtomicU64`].
///
/// # Safety
/// It is `repr(C)`, and all its fields are `AtomicU64` or arrays or structs of them.
pub(crate) unsafe trait Words {}

// SAFETY: the type itself.
unsafe impl Words for AtomicU64 {}
// SAFETY: `repr(C)`; see its fields, as for those below.
unsafe impl Words for Progress<AtomicU64> {}
// SAFETY: see above.
unsafe impl Words for Boundaries<AtomicU64> {}
// SAFETY: see above.
unsafe impl Words for ModuleEntry<AtomicU64> {}
// SAFETY: see above.
unsafe impl Words for ThreadTable<AtomicU64> {}
// SAFETY: see above.
unsafe impl Words for SiteCounters<AtomicU64> {}
// SAFETY: see above.
unsafe impl Words for TraceSlot {}

/// Returns the words as a table; words after the last whole entry are left out.
pub(crate) fn table<T: Words>(words: &[AtomicU64]) -> &[T] {
    let entries = size_of_val(words) / size_of::<T>();
    // SAFETY: `T` consists of `AtomicU64` only, so it has their alignment, and every content is valid. `entries` of
    // them are inside the slice, whose lifetime and shared access the result keeps.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), entries) }
}

/// Returns the words of a mapping.
///
/// # Safety
/// - `start` to `start + bytes` is mapped, readable and writable, during all of `'m`.
/// - `start` is a multiple of 8.
/// - During `'m`, this process accesses the range only through atomics.
pub(crate) unsafe fn words<'m>(start: *mut u8, bytes: usize) -> &'m [AtomicU64] {
    // SAFETY: the caller vouches for the range, its alignment and its lifetime. `AtomicU64` has the layout of `u64`,
    // may have any content, and may be changed by other processes.
    unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>().cast_const(), bytes / 8) }
}
