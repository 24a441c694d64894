//! Long calls: the device or the CPU executes them.
//!
//! ```text
//! entries ──► a long call ──► inside another one, or in a forked child? ──► CPU
//!                        └──► its site's verdict ──► device, or CPU (timed now and then)
//! ```
//!
//! The CPU's part is the C library's function, called on the program's stack with the program's arguments. So the
//! program gets its own faults where it expects them.
#![allow(unsafe_code, reason = "executes the program's calls by address, and calls the C library's functions")]

use crate::device::{self, Device};
use crate::gates::{cpu_compare, cpu_fill, cpu_move};
use crate::sites::Verdict;
use crate::thread::LongCall;
use std::ffi::{c_int, c_void};
use telpher_offload_wire::Counters;
use telpher_os::ticks;

/// Executes one long call of `len` bytes from `caller`.
#[inline]
fn execute<T>(caller: usize, len: usize, by_cpu: impl FnOnce() -> T, by_device: impl FnOnce(&Device) -> T) -> T {
    let Some(device) = device::get() else { return by_cpu() };
    if !device.is_of_this_process() {
        device.count(Counters::AT.forked, 1);
        return by_cpu();
    }
    let Some(call) = LongCall::enter() else {
        device.count(Counters::AT.nested, 1);
        return by_cpu();
    };
    let (verdict, site) = device.verdict(caller);
    match verdict {
        Verdict::Device => {
            device.count(Counters::AT.by_device, 1);
            by_device(device)
        }
        Verdict::Cpu => {
            // The C library's function is called as if this library were not there.
            drop(call);
            device.count(Counters::AT.hot, 1);
            device.count(Counters::AT.cpu_bytes, len as u64);
            by_cpu()
        }
        Verdict::Timed => {
            drop(call);
            device.count(Counters::AT.timed, 1);
            device.count(Counters::AT.cpu_bytes, len as u64);
            let begun = ticks();
            let result = by_cpu();
            if let Some(site) = site {
                device.learn(site, len, ticks().wrapping_sub(begun));
            }
            result
        }
    }
}

/// `memmove` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn move_long(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise, passed on to one of the two.
    let by_cpu = || unsafe { cpu_move(to, from, len) };
    if let Some(device) = device::get()
        && !device.may_copy(to, from, len)
    {
        device.count(Counters::AT.overlapping, 1);
        device.count(Counters::AT.cpu_bytes, len as u64);
        by_cpu();
    } else {
        // SAFETY: as above.
        execute(caller, len, by_cpu, |device| unsafe { device.copy(to, from, len) });
    }
    to
}

/// `mempcpy` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn move_to_end_long(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { move_long(to, from, len, caller) }.wrapping_byte_add(len)
}

/// `memset` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn fill_long(to: *mut c_void, byte: c_int, len: usize, caller: usize) -> *mut c_void {
    // SAFETY: as in `move_long`.
    execute(caller, len, || unsafe { cpu_fill(to, byte, len) }, |device| unsafe { device.fill(to, byte, len) });
    to
}

/// `memcmp` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn compare_long(a: *const c_void, b: *const c_void, len: usize, caller: usize) -> c_int {
    // SAFETY: as in `move_long`.
    execute(caller, len, || unsafe { cpu_compare(a, b, len) }, |device| unsafe { device.compare(a, b, len) })
}
