//! The C library's `syscall`, by which programs call perf_event_open(2): the C library has no function for it.
#![allow(unsafe_code, reason = "replaces a function of the C library")]

use crate::files::table::Kind;
use crate::perf::{self, Arguments};
use crate::{files, sys};
use std::ffi::{c_int, c_long};

/// Makes the system call directly: unlike `interpose!`, it does not look up the C library's function, since
/// allocators call `syscall` where the dynamic linker must not be called. The C library's is variadic; on x86-64, the
/// arguments are in the same places, whether they were passed or not.
///
/// # Safety
/// As the system call itself.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    if number == libc::SYS_perf_event_open {
        // The low half of a register is the int.
        let int = |word: usize| c_int::from_ne_bytes([0, 1, 2, 3].map(|at| word.to_ne_bytes()[at]));
        let arguments = Arguments {
            attributes: std::ptr::with_exposed_provenance(first),
            process: int(second),
            cpu: int(third),
            group: int(fourth),
            flags: fifth as u64,
        };
        if let Some(answer) = perf::open(&arguments) {
            if let Ok(fd) = answer {
                files::record_kind(fd, Kind::PerfEvent);
            }
            return sys::answer_int(answer).into();
        }
    }
    // SAFETY: the caller's promise.
    sys::answer(unsafe { sys::call(number, [first, second, third, fourth, fifth, sixth]) }) as c_long
}
