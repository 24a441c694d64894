//! Where the calls of each function go, and the C library's functions behind them.
//!
//! A gate is closed before the start, after the end, and for functions that are not offloaded: no call is as long as
//! its threshold, and shorter calls go to the C library. `telpher record` also counts short calls, with a function of
//! its own in front of the C library's.
#![allow(unsafe_code, reason = "calls the C library's functions by address")]

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use telpher_interpose::preload::{own_compare, own_fill, own_move};

/// Copies of fewer bytes are done by the exported function itself, while calls are offloaded.
/// Source: measured by `telpher bench offload`; up to here, two or four loads and stores cost less than another jump.
pub(crate) const SMALL: usize = 65;

/// Where the calls of one function go. The exported function reads one cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Gate {
    /// Calls of at least this many bytes are long.
    threshold: AtomicUsize,
    /// The function for shorter calls: the C library's, or one that counts them.
    short: AtomicPtr<c_void>,
    /// The function for long calls. Its fourth argument is the return address.
    long: AtomicPtr<c_void>,
    /// The C library's function.
    original: AtomicPtr<c_void>,
    /// Copies of fewer bytes are done by the exported function. It is 0 while calls are counted, and where the C
    /// library's function may be a sanitizer's.
    small: AtomicUsize,
    /// Copies of fewer bytes are counted and done by the exported function. It is 0 except under `telpher record`.
    counted: AtomicUsize,
}

/// The threshold that no call reaches: a length above `isize::MAX` is not legal.
pub(crate) const NEVER: usize = usize::MAX;

/// Where the exported functions find [`Gate::small`].
pub(crate) const SMALL_OFFSET: usize = std::mem::offset_of!(Gate, small);
/// Where they find [`Gate::counted`].
pub(crate) const COUNTED_OFFSET: usize = std::mem::offset_of!(Gate, counted);

impl Gate {
    const fn new(original: *mut c_void) -> Gate {
        Gate {
            threshold: AtomicUsize::new(NEVER),
            short: AtomicPtr::new(original),
            // Reached only after `divert_long`.
            long: AtomicPtr::new(original),
            original: AtomicPtr::new(original),
            small: AtomicUsize::new(0),
            counted: AtomicUsize::new(0),
        }
    }

    /// Returns the C library's function.
    #[inline]
    pub(crate) fn original(&self) -> *mut c_void {
        // Relaxed: the address of code, which publishes nothing.
        self.original.load(Ordering::Relaxed)
    }

    /// Sets the C library's function, for all calls.
    pub(crate) fn set_original(&self, original: *mut c_void) {
        self.original.store(original, Ordering::Relaxed);
        self.short.store(original, Ordering::Relaxed);
    }

    /// Sets another function for calls of at least this many bytes.
    pub(crate) fn divert_long(&self, threshold: usize, long: *mut c_void) {
        // Release, and in this order: a thread that sees the threshold also sees the function, and what it needs.
        self.long.store(long, Ordering::Release);
        self.threshold.store(threshold, Ordering::Release);
    }

    /// Sets another function for shorter calls.
    pub(crate) fn divert_short(&self, short: *mut c_void) {
        // Release: a thread that sees the function also sees what it needs.
        self.short.store(short, Ordering::Release);
    }

    /// Lets the exported function do copies of fewer than [`SMALL`] bytes, if they are below the threshold.
    pub(crate) fn copy_small(&self) {
        self.small.store(self.threshold.load(Ordering::Relaxed).min(SMALL), Ordering::Relaxed);
    }

    /// Lets the exported function count and do copies of fewer than [`SMALL`] bytes.
    pub(crate) fn count_small(&self) {
        self.counted.store(self.threshold.load(Ordering::Relaxed).min(SMALL), Ordering::Relaxed);
    }

    /// Lets the C library execute all further calls.
    pub(crate) fn close(&self) {
        self.small.store(0, Ordering::Relaxed);
        self.counted.store(0, Ordering::Relaxed);
        self.threshold.store(NEVER, Ordering::Relaxed);
        self.short.store(self.original(), Ordering::Relaxed);
    }
}

/// `memcpy`. Its ranges may overlap as those of `memmove`: old programs rely on it, and glibc executes both by the same
/// code on today's processors.
pub(crate) static COPY: Gate = Gate::new(own_move as *mut c_void);
/// `memmove`, `bcopy`.
pub(crate) static MOVE: Gate = Gate::new(own_move as *mut c_void);
/// `mempcpy`.
pub(crate) static MOVE_TO_END: Gate = Gate::new(own_move_to_end as *mut c_void);
/// `memset`.
pub(crate) static FILL: Gate = Gate::new(own_fill as *mut c_void);
/// `memcmp`, `bcmp`, `__memcmpeq`.
pub(crate) static COMPARE: Gate = Gate::new(own_compare as *mut c_void);

/// `mempcpy`, for calls before the C library's is known.
unsafe extern "C" fn own_move_to_end(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { own_move(to, from, len) }.wrapping_byte_add(len)
}

/// `memmove`. The C library unwinds a thread from these functions if it is cancelled asynchronously.
pub(crate) type Move = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, usize) -> *mut c_void;
/// `memset`.
pub(crate) type Fill = unsafe extern "C-unwind" fn(*mut c_void, c_int, usize) -> *mut c_void;
/// `memcmp`.
pub(crate) type Compare = unsafe extern "C-unwind" fn(*const c_void, *const c_void, usize) -> c_int;

/// The C library's `memmove`.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe fn cpu_move(to: *mut c_void, from: *const c_void, len: usize) {
    // SAFETY: the gate holds a function of this type; the caller's promise for the ranges.
    unsafe { transmute::<*mut c_void, Move>(MOVE.original())(to, from, len) };
}

/// The C library's `memset`.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe fn cpu_fill(to: *mut c_void, byte: c_int, len: usize) {
    // SAFETY: as in `cpu_move`.
    unsafe { transmute::<*mut c_void, Fill>(FILL.original())(to, byte, len) };
}

/// The C library's `memcmp`.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe fn cpu_compare(a: *const c_void, b: *const c_void, len: usize) -> c_int {
    // SAFETY: as in `cpu_move`.
    unsafe { transmute::<*mut c_void, Compare>(COMPARE.original())(a, b, len) }
}
