//! The exported functions: one comparison and one indirect jump in front of the C library's.
//!
//! Each function has a gate: calls shorter than its threshold continue in the C library at once, all others in
//! [`calls`](crate::calls) or [`record`](crate::record).
#![allow(unsafe_code, reason = "exports functions with the C library's names, written in assembly")]

use crate::gates::{COMPARE, COPY, FILL, MOVE, MOVE_TO_END};
use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

/// Defines an exported function whose third argument is the length.
macro_rules! entry {
    ($(#[$doc:meta])* $name:ident, $second:ty, $result:ty, $gate:path) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C library's function of this name.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name(first: *mut c_void, second: $second, len: usize) -> $result {
            naked_asm!(
                "endbr64",
                "cmp rdx, qword ptr [rip + {gate}]",
                "jae 2f",
                "jmp qword ptr [rip + {gate} + 8]",
                "2:",
                // The fourth argument: where the call came from.
                "mov rcx, qword ptr [rsp]",
                "jmp qword ptr [rip + {gate} + 16]",
                gate = sym $gate,
            )
        }
    };
}

entry!(
    /// Copies; the ranges may overlap.
    memcpy, *const c_void, *mut c_void, COPY
);
entry!(
    /// Copies; the ranges may overlap.
    memmove, *const c_void, *mut c_void, MOVE
);
entry!(
    /// Copies, and returns the end of the destination.
    mempcpy, *const c_void, *mut c_void, MOVE_TO_END
);
entry!(
    /// Copies, and returns the end of the destination.
    __mempcpy, *const c_void, *mut c_void, MOVE_TO_END
);
entry!(
    /// Fills with one byte.
    memset, c_int, *mut c_void, FILL
);
entry!(
    /// Compares; the result's sign is that of the first difference.
    memcmp, *const c_void, c_int, COMPARE
);
entry!(
    /// Compares; the result is 0 if the ranges are equal.
    bcmp, *const c_void, c_int, COMPARE
);
entry!(
    /// Compares; the result is 0 if the ranges are equal.
    __memcmpeq, *const c_void, c_int, COMPARE
);

/// Copies; the ranges may overlap. The source comes first.
///
/// # Safety
/// As for the C library's function of this name.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn bcopy(from: *const c_void, to: *mut c_void, len: usize) {
    naked_asm!("endbr64", "xchg rdi, rsi", "jmp {}", sym memmove)
}

/// Defines a function that the compiler calls with the size of the destination, if it knows the size.
macro_rules! checked {
    ($name:ident, $first:ty, $second:ty, $unchecked:path) => {
        /// Ends the process if the length exceeds the size of the destination, the fourth argument.
        ///
        /// # Safety
        /// As for the C library's function of this name.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name(to: $first, second: $second, len: usize, room: usize) -> $first {
            naked_asm!(
                "endbr64",
                "cmp rcx, rdx",
                "jb 2f",
                "jmp {unchecked}",
                "2:",
                "jmp qword ptr [rip + {fail}@GOTPCREL]",
                unchecked = sym $unchecked,
                fail = sym $crate::entries::__chk_fail,
            )
        }
    };
}

pub(crate) use checked;

unsafe extern "C" {
    /// Reports an overflow and ends the process.
    pub(crate) fn __chk_fail() -> !;
}

checked!(__memcpy_chk, *mut c_void, *const c_void, memcpy);
checked!(__memmove_chk, *mut c_void, *const c_void, memmove);
checked!(__mempcpy_chk, *mut c_void, *const c_void, mempcpy);
checked!(__memset_chk, *mut c_void, c_int, memset);
