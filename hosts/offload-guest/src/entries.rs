//! The exported functions: one or two comparisons and one indirect jump in front of the C library's.
//!
//! Each function has a gate: calls shorter than its threshold continue in the C library at once, all others in
//! [`calls`](crate::calls) or [`record`](crate::record). While calls are offloaded or recorded, copies of at most 64
//! bytes are done here: a jump to the C library would cost more than the copy. A recorded one is counted by one
//! addition.
//!
//! None of them uses the stack, and `.cfi_startproc` alone says so to an unwinder: a thread with asynchronous
//! cancellation may be unwound from each instruction.
#![allow(unsafe_code, reason = "exports functions with the C library's names, written in assembly")]

use crate::gates::{COMPARE, COPY, COUNTED_OFFSET, FILL, MOVE, MOVE_TO_END, SMALL_OFFSET};
use crate::record::{COUNTERS_OFFSET, SMALL_CALLS_BYTES};
use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use telpher_recording::{Operation, SMALL_SAMPLED};

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
                ".cfi_startproc",
                "endbr64",
                "cmp rdx, qword ptr [rip + {gate}]",
                "jae 2f",
                "jmp qword ptr [rip + {gate} + 8]",
                "2:",
                // The fourth argument: where the call came from.
                "mov rcx, qword ptr [rsp]",
                "jmp qword ptr [rip + {gate} + 16]",
                ".cfi_endproc",
                gate = sym $gate,
            )
        }
    };
}

/// The instructions that copy 16 to 64 bytes and return.
///
/// All bytes are loaded before the first is stored, so the ranges may overlap. Two loads, from the start and from the
/// end, cover each length up to twice their size. Source: the technique of glibc's `memmove`.
macro_rules! copy_16_to_64 {
    () => {
        "
            movups xmm0, xmmword ptr [rsi]
            movups xmm1, xmmword ptr [rsi + rdx - 16]
            cmp edx, 32
            jbe 5f
            // 33 to 64 bytes.
            movups xmm2, xmmword ptr [rsi + 16]
            movups xmm3, xmmword ptr [rsi + rdx - 32]
            movups xmmword ptr [rdi], xmm0
            movups xmmword ptr [rdi + 16], xmm2
            movups xmmword ptr [rdi + rdx - 32], xmm3
            movups xmmword ptr [rdi + rdx - 16], xmm1
            ret
            // 16 to 32 bytes.
        5:
            movups xmmword ptr [rdi], xmm0
            movups xmmword ptr [rdi + rdx - 16], xmm1
            ret"
    };
}

/// The instructions that copy less than 16 bytes and return, in the same manner.
macro_rules! copy_below_16 {
    () => {
        "
            cmp edx, 8
            jb 2f
            // 8 to 15 bytes.
            mov rcx, qword ptr [rsi]
            mov rsi, qword ptr [rsi + rdx - 8]
            mov qword ptr [rdi], rcx
            mov qword ptr [rdi + rdx - 8], rsi
            ret
        2:
            cmp edx, 4
            jb 3f
            // 4 to 7 bytes.
            mov ecx, dword ptr [rsi]
            mov esi, dword ptr [rsi + rdx - 4]
            mov dword ptr [rdi], ecx
            mov dword ptr [rdi + rdx - 4], esi
            ret
        3:
            cmp edx, 1
            jb 6f
            movzx ecx, byte ptr [rsi]
            je 5f
            // 2 or 3 bytes.
            movzx esi, word ptr [rsi + rdx - 2]
            mov word ptr [rdi + rdx - 2], si
        5:
            mov byte ptr [rdi], cl
        6:
            ret"
    };
}

/// Defines an exported function that copies. `$result` is the instruction that computes the result. Recorded calls
/// count as `$operation`.
///
/// A loop of short copies takes a nanosecond or two for each, so every jump that is taken counts: it costs about a
/// cycle. The function begins at a cache line, and has the copying instructions twice, for calls that are counted and
/// for those that are not. Those that are not counted begin with the longer copies, because the C library copies 64
/// bytes without a jump, and 8 bytes with two. Of those that are counted, the shorter ones come first.
macro_rules! copying_entry {
    ($(#[$doc:meta])* $name:ident, $gate:path, $operation:ident, $result:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C library's function of this name.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name(first: *mut c_void, second: *const c_void, len: usize) -> *mut c_void {
            naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "cmp rdx, qword ptr [rip + {gate} + {small}]",
                "jae 7f",
                $result,
                "cmp edx, 16",
                "jb 4f",
                copy_16_to_64!(),
                ".p2align 4",
                "4:",
                copy_below_16!(),
                ".p2align 6",
                "7:",
                "cmp rdx, qword ptr [rip + {gate} + {counted}]",
                "jae 8f",
                // The counters of the thread, if it has some in this process; see `record::process`.
                "mov rcx, qword ptr [rip + telpher_record_slot@GOTTPOFF]",
                "mov rcx, qword ptr fs:[rcx]",
                "mov rcx, qword ptr [rcx + {counters}]",
                "test rcx, rcx",
                "jz 9f",
                // One instruction adds, so that a signal handler loses no count. The function for short calls counts
                // those that may be timed.
                "lea rcx, [rcx + 8 * rdx]",
                "cmp byte ptr [rcx + {row}], {sampled}",
                "je 9f",
                "inc qword ptr [rcx + {row}]",
                $result,
                "cmp edx, 16",
                "jae 4f",
                copy_below_16!(),
                ".p2align 4",
                "4:",
                copy_16_to_64!(),
                "8:",
                "cmp rdx, qword ptr [rip + {gate}]",
                "jae 7f",
                "9:",
                "jmp qword ptr [rip + {gate} + 8]",
                "7:",
                // The fourth argument: where the call came from.
                "mov rcx, qword ptr [rsp]",
                "jmp qword ptr [rip + {gate} + 16]",
                ".cfi_endproc",
                gate = sym $gate,
                small = const SMALL_OFFSET,
                counted = const COUNTED_OFFSET,
                counters = const COUNTERS_OFFSET,
                row = const Operation::$operation as usize * SMALL_CALLS_BYTES,
                sampled = const SMALL_SAMPLED,
            )
        }
    };
}

copying_entry!(
    /// Copies; the ranges may overlap.
    memcpy, COPY, Memcpy, "mov rax, rdi"
);
copying_entry!(
    /// Copies; the ranges may overlap.
    memmove, MOVE, Memmove, "mov rax, rdi"
);
copying_entry!(
    /// Copies, and returns the end of the destination.
    mempcpy, MOVE_TO_END, Mempcpy, "lea rax, [rdi + rdx]"
);
copying_entry!(
    /// Copies, and returns the end of the destination.
    __mempcpy, MOVE_TO_END, Mempcpy, "lea rax, [rdi + rdx]"
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
    naked_asm!(".cfi_startproc", "endbr64", "xchg rdi, rsi", "jmp {}", ".cfi_endproc", sym memmove)
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
                ".cfi_startproc",
                "endbr64",
                "cmp rcx, rdx",
                "jb 2f",
                "jmp {unchecked}",
                "2:",
                "jmp qword ptr [rip + {fail}@GOTPCREL]",
                ".cfi_endproc",
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

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

    /// The alignment inside of the function is that of its section.
    #[test]
    fn copying_functions_begin_at_a_cache_line() {
        for function in [memcpy as Copy, memmove, mempcpy, __mempcpy] {
            assert!((function as usize).is_multiple_of(64), "{function:p}");
        }
    }

    #[test]
    fn small_copies_have_the_effect_of_the_c_library_at_each_length_and_overlap() {
        const ROOM: usize = 256;
        let functions: [(Copy, &crate::gates::Gate, bool); 4] = [
            (memcpy, &COPY, false),
            (memmove, &MOVE, false),
            (mempcpy, &MOVE_TO_END, true),
            (__mempcpy, &MOVE_TO_END, true),
        ];
        for (function, gate, returns_end) in functions {
            gate.copy_small();
            for len in 0..=80 {
                for (from, to) in (0..ROOM - len).step_by(7).flat_map(|from| [(from, 90), (90, from)]) {
                    let before: [u8; ROOM] = std::array::from_fn(|index| index.to_le_bytes()[0] ^ 0x5a);
                    let (mut expected, mut bytes) = (before, before);
                    expected.copy_within(from..from + len, to);
                    let base = bytes.as_mut_ptr();
                    // SAFETY: both ranges are in the array.
                    let (destination, result) = unsafe {
                        let destination = base.add(to).cast();
                        (destination, function(destination, base.add(from).cast(), len))
                    };
                    assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
                    let offset = if returns_end { len } else { 0 };
                    assert_eq!(result, destination.wrapping_byte_add(offset), "{len} bytes");
                }
            }
        }
    }
}
