//! A part of guest memory that is read and written as words: a ring's table, or one of its indices.
//!
//! The guest writes it whenever it likes. So every access is one volatile or atomic access of an aligned word, never a reference, and what
//! was read once is not read again: the checks and the use see the same value.

use crate::GuestMemory;
use std::arch::asm;
use std::borrow::Borrow;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use zerocopy::{FromBytes, IntoBytes};

/// So many `T`s of guest memory, aligned. `K` keeps the memory mapped.
#[derive(Debug)]
pub(crate) struct Area<T, K = Arc<GuestMemory>> {
    base: *mut T,
    count: usize,
    _kept: K,
}

// SAFETY: the pointer is to memory of the process, which `_kept` keeps mapped; all access through it is by volatile or atomic operations,
// as between processes, and this type has no state besides.
unsafe impl<T: Send, K: Send> Send for Area<T, K> {}
// SAFETY: as above.
unsafe impl<T: Sync, K: Sync> Sync for Area<T, K> {}

impl<T: FromBytes + IntoBytes + Copy, K: Borrow<GuestMemory>> Area<T, K> {
    /// The area that the frontend names by its address `user`; `None` if it is not aligned, or does not lie whole in one region.
    pub(crate) fn of_user(memory: K, user: u64, count: usize) -> Option<Self> {
        let host = memory.borrow().of_user(user, u64::try_from(count.checked_mul(size_of::<T>())?).ok()?)?;
        Self::over(memory, host, count)
    }

    /// The area at a guest address, as for [`of_user`](Area::of_user).
    #[inline]
    pub(crate) fn of_guest(memory: K, guest: u64, count: usize) -> Option<Self> {
        let host = memory.borrow().host(guest, u32::try_from(count.checked_mul(size_of::<T>())?).ok()?)?;
        Self::over(memory, host, count)
    }

    /// `host` is that of so many bytes in the memory.
    fn over(memory: K, host: u64, count: usize) -> Option<Self> {
        let base = std::ptr::with_exposed_provenance_mut::<T>(usize::try_from(host).ok()?);
        base.is_aligned().then_some(Area { base, count, _kept: memory })
    }

    /// Its words, at hand.
    #[inline]
    pub(super) fn words(&self) -> Words<'_, T> {
        Words { base: self.base, count: self.count, _area: PhantomData }
    }

    /// The word at `index`, read once.
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

/// An area's words, to be kept in registers: what a loop looks at again after each word, it would load again after each word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a, T> {
    base: *mut T,
    count: usize,
    _area: PhantomData<&'a Area<T>>,
}

impl<T: FromBytes + IntoBytes + Copy> Words<'_, T> {
    /// The word at `index`, read once.
    #[inline]
    pub(crate) fn read(self, index: usize) -> T {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: within the area, which lies whole in a mapping that `_kept` keeps, and aligned, as was checked when it was made; any
        // bytes are a `T`. Volatile: the guest may write it meanwhile.
        unsafe { self.base.add(index).read_volatile() }
    }

    /// Writes the word at `index`.
    #[inline]
    pub(crate) fn write(self, index: usize, word: T) {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: as in `read`; the bytes are guest memory, to which no reference exists.
        unsafe { self.base.add(index).write_volatile(word) }
    }

    /// Asks the processor to fetch the word's cache line; any index will do.
    #[inline]
    pub(crate) fn prefetch(self, index: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: SSE is part of x86-64, and the instruction accesses nothing: a hint never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.wrapping_add(index).cast()) };
    }
}

/// Asks the processor for the cache line of an address, to be written.
#[inline]
pub(crate) fn prefetch_to_write(address: u64) {
    // SAFETY: the instruction accesses nothing: a hint never faults, and processors that do not know it do nothing.
    unsafe { asm!("prefetchw byte ptr [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Words that publish, or are published, whole.
macro_rules! atomic {
    ($word:ty, $atomic:ty) => {
        impl Words<'_, $word> {
            #[inline]
            fn atomic(&self, index: usize) -> &$atomic {
                assert!(index < self.count, "word {index} of {}", self.count);
                // SAFETY: within the area and aligned; the memory is mapped as long as the area lives, which is borrowed, and everybody
                // in this process accesses it by atomic or volatile operations; what the guest does is not in this program.
                unsafe { <$atomic>::from_ptr(self.base.add(index)) }
            }

            /// The word at `index`, and whatever was written before it.
            #[inline]
            pub(crate) fn acquire(self, index: usize) -> $word {
                // Acquire: pairs with the other side's barrier before it writes the word (VirtIO 1.2 §2.7.13.3.1, §2.8.21.2).
                self.atomic(index).load(Ordering::Acquire)
            }

            /// Writes the word at `index` after everything that was written before.
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
    /// Sets bits of the byte at `index`, after everything that was written before; others may set, and clear, bits of it meanwhile.
    #[inline]
    pub(crate) fn set_bits(&self, index: usize, bits: u8) {
        assert!(index < self.count, "byte {index} of {}", self.count);
        // SAFETY: as in `atomic` above; every address is aligned for a byte.
        let byte = unsafe { AtomicU8::from_ptr(self.base.add(index)) };
        // SeqCst: what the bits tell of is there before they are, for who clears them and then looks (vhost-user, "Migration").
        byte.fetch_or(bits, Ordering::SeqCst);
    }
}
