//! A part of guest memory that is read and written word by word: a ring's table, or one of its indices.
//!
//! The guest can write it at any time. So every access is one volatile or atomic access of an aligned word, never
//! through a reference. A word that was read is not read again, so checks and use see the same value.

use crate::GuestMemory;
use std::arch::asm;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// An aligned array of `count` `T`s in guest memory. `K` keeps the memory mapped.
#[derive(Debug)]
pub(crate) struct Area<T, K = Arc<GuestMemory>> {
    base: *mut T,
    count: usize,
    _kept: K,
}

// SAFETY: the pointer is to memory of this process, which `_kept` keeps mapped. All accesses through it are volatile or
// atomic, as between processes, and this type has no other state.
unsafe impl<T: Send, K: Send> Send for Area<T, K> {}
// SAFETY: as above.
unsafe impl<T: Sync, K: Sync> Sync for Area<T, K> {}

impl<T: FromBytes + IntoBytes + Copy, K: Borrow<GuestMemory>> Area<T, K> {
    /// The area at the frontend's address `user`; `None` if it is not aligned, or does not lie completely in one
    /// region.
    pub(crate) fn of_user(memory: K, user: u64, count: usize) -> Option<Self> {
        let host = memory.borrow().of_user(user, u64::try_from(count.checked_mul(size_of::<T>())?).ok()?)?;
        Self::over(memory, host, count)
    }

    /// The area at a guest address; `None` as for [`of_user`](Area::of_user).
    #[inline]
    pub(crate) fn of_guest(memory: K, guest: u64, count: usize) -> Option<Self> {
        let host = memory.borrow().host(guest, u32::try_from(count.checked_mul(size_of::<T>())?).ok()?)?;
        Self::over(memory, host, count)
    }

    /// Creates the area from the host address of its bytes in the memory.
    fn over(memory: K, host: u64, count: usize) -> Option<Self> {
        let base = std::ptr::with_exposed_provenance_mut::<T>(usize::try_from(host).ok()?);
        base.is_aligned().then_some(Area { base, count, _kept: memory })
    }

    /// The area's words, for use in a loop.
    #[inline]
    pub(super) fn words(&self) -> Words<'_, T> {
        Words { base: self.base, count: self.count, _area: PhantomData }
    }

    /// Reads the word at `index` once.
    #[inline]
    pub(crate) fn read(&self, index: usize) -> T {
        self.words().read(index)
    }

    /// Writes the word at `index`.
    #[inline]
    pub(crate) fn write(&self, index: usize, word: T) {
        self.words().write(index, word);
    }
}

/// An area's words, kept in registers: a loop would otherwise reload pointer and count after each word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a, T> {
    base: *mut T,
    count: usize,
    _area: PhantomData<&'a Area<T>>,
}

impl<T: FromBytes + IntoBytes + Copy> Words<'_, T> {
    /// Reads the word at `index` once.
    #[inline]
    pub(crate) fn read(self, index: usize) -> T {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: inside the area, which lies in a mapping that `_kept` keeps, and aligned; both were checked when the
        // area was created. Any bytes are a valid `T`. Volatile: the guest may write the word at the same time.
        unsafe { self.base.add(index).read_volatile() }
    }

    /// Writes the word at `index`.
    #[inline]
    pub(crate) fn write(self, index: usize, word: T) {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: as in `read`; the bytes are guest memory, to which no reference exists.
        unsafe { self.base.add(index).write_volatile(word) }
    }

    /// Prefetches the word's cache line; any index is allowed.
    #[inline]
    pub(crate) fn prefetch(self, index: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and the instruction accesses nothing: a hint never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.wrapping_add(index).cast()) };
    }
}

/// Prefetches an address's cache line for writing.
#[inline]
pub(crate) fn prefetch_to_write(address: u64) {
    // SAFETY: the instruction accesses nothing: a hint never faults, and processors without it do nothing.
    unsafe { asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Acquire and release access to words.
macro_rules! atomic {
    ($word:ty, $atomic:ty) => {
        impl Words<'_, $word> {
            #[inline]
            fn atomic(&self, index: usize) -> &$atomic {
                assert!(index < self.count, "word {index} of {}", self.count);
                // SAFETY: inside the area and aligned. The memory is mapped as long as the area lives, which is
                // borrowed. All code in this process accesses it by atomic or volatile operations; the guest's accesses
                // are outside this program.
                unsafe { <$atomic>::from_ptr(self.base.add(index)) }
            }

            /// Reads the word at `index` with acquire ordering.
            #[inline]
            pub(crate) fn acquire(self, index: usize) -> $word {
                // Acquire: pairs with the other side's barrier before it writes the word (VirtIO 1.2 §2.7.13.3.1,
                // §2.8.21.2).
                self.atomic(index).load(Ordering::Acquire)
            }

            /// Writes the word at `index` with release ordering.
            #[inline]
            pub(crate) fn release(self, index: usize, word: $word) {
                // Release: pairs with the other side's barrier after it reads the word (VirtIO 1.2 §2.7.14, §2.8.22).
                self.atomic(index).store(word, Ordering::Release);
            }
        }

        impl<K: Borrow<GuestMemory>> Area<$word, K> {
            /// As [`Words::acquire`].
            #[inline]
            pub(crate) fn acquire(&self, index: usize) -> $word {
                self.words().acquire(index)
            }

            /// As [`Words::release`].
            #[inline]
            pub(crate) fn release(&self, index: usize, word: $word) {
                self.words().release(index, word);
            }
        }
    };
}
atomic!(u16, AtomicU16);
atomic!(u64, AtomicU64);
impl<K> Area<u8, K> {
    /// Sets bits of the byte at `index`, after all earlier writes. Other threads and the frontend may set or clear bits
    /// of it at the same time.
    #[inline]
    pub(crate) fn set_bits(&self, index: usize, bits: u8) {
        assert!(index < self.count, "byte {index} of {}", self.count);
        // SAFETY: as in `atomic` above; every address is aligned for a byte.
        let byte = unsafe { AtomicU8::from_ptr(self.base.add(index)) };
        // SeqCst: the writes that the bits report are visible before the bits, for a frontend that clears them and then
        // reads (vhost-user, "Migration").
        byte.fetch_or(bits, Ordering::SeqCst);
    }
}
