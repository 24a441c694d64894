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
use crate::thread::{LongCall, cpu_ticks};
use crate::{children, vfork};
use std::ffi::{c_int, c_void};
use telpher_mover::CallResult;
use telpher_offload_wire::Counters;
use telpher_offload_wire::statistics::Operation;
use telpher_os::ticks;

/// One call.
#[derive(Clone, Copy, Debug)]
struct Call {
    operation: Operation,
    len: usize,
    /// The return address.
    caller: usize,
    /// Whether it copies between overlapping ranges.
    overlaps: bool,
}

/// Executes one call.
#[inline]
fn execute<T>(call: Call, by_cpu: impl FnOnce() -> T, by_device: impl FnOnce(&Device) -> (T, CallResult)) -> T {
    let Some(device) = device::get() else { return by_cpu() };
    let Some(statistics) = device.statistics().filter(|statistics| statistics.has_caller(call.caller)) else {
        return choose(call, device, by_cpu, by_device).0;
    };
    let begun = ticks();
    let (value, result) = choose(call, device, by_cpu, by_device);
    statistics.count(call.operation, call.len, ticks().wrapping_sub(begun), result);
    value
}

/// Executes one call by the device or the CPU. Returns what the device did, unless the CPU executed all of it.
#[inline]
fn choose<T>(
    call: Call,
    device: &'static Device,
    by_cpu: impl FnOnce() -> T,
    by_device: impl FnOnce(&Device) -> (T, CallResult),
) -> (T, Option<CallResult>) {
    let Call { operation, len, caller, overlaps } = call;
    // Shorter calls come here only to be counted.
    if len < device.threshold(operation) {
        return (by_cpu(), None);
    }
    let Some(device) = of_this_process(device).filter(|_| !vfork::is_child()) else {
        device.count(Counters::AT.forked, 1);
        return (by_cpu(), None);
    };
    if device.is_switched_off() {
        device.count(Counters::AT.switched_off, 1);
        device.count(Counters::AT.cpu_bytes, len as u64);
        return (by_cpu(), None);
    }
    if overlaps && !device.copies_overlapping() {
        device.count(Counters::AT.overlapping, 1);
        device.count(Counters::AT.cpu_bytes, len as u64);
        return (by_cpu(), None);
    }
    let Some(long_call) = LongCall::enter() else {
        device.count(Counters::AT.nested, 1);
        return (by_cpu(), None);
    };
    let (verdict, site) = device.verdict(caller);
    if verdict == Verdict::Device {
        device.count(Counters::AT.by_device, 1);
        cpu_ticks().set(0);
        let (value, result) = by_device(device);
        if let Some(site) = site {
            site.count_device(result.device_bytes, result.cpu_bytes, result.faults > 0);
        }
        return (value, Some(result));
    }
    // The C library's function is called as if this library were not there.
    drop(long_call);
    let counter = match verdict {
        Verdict::Cpu => Counters::AT.hot,
        Verdict::Absent => Counters::AT.absent,
        Verdict::Timed => Counters::AT.timed,
        Verdict::Device | Verdict::Denied => Counters::AT.denied,
    };
    device.count(counter, 1);
    device.count(Counters::AT.cpu_bytes, len as u64);
    let Some(site) = site else { return (by_cpu(), None) };
    site.count_cpu(len);
    if verdict != Verdict::Timed {
        return (by_cpu(), None);
    }
    let begun = ticks();
    let value = by_cpu();
    device.learn(site, len, ticks().wrapping_sub(begun));
    (value, None)
}

/// Returns the device of this process, which may be a forked child of the one that opened `device`.
#[inline]
fn of_this_process(device: &'static Device) -> Option<&'static Device> {
    if device.is_of_this_process() { Some(device) } else { children::device_of_child(device) }
}

/// Copies a long range.
///
/// # Safety
/// As for the C library's `memmove`.
#[inline]
unsafe fn copy(operation: Operation, to: *mut c_void, from: *const c_void, len: usize, caller: usize) {
    let overlaps = to.addr().abs_diff(from.addr()) < len;
    let call = Call { operation, len, caller, overlaps };
    // SAFETY: the caller's promise, passed on to one of the two.
    execute(call, || unsafe { cpu_move(to, from, len) }, |device| ((), unsafe { device.copy(to, from, len) }));
}

/// `memcpy` of a long range.
///
/// # Safety
/// As for the C library's `memmove`.
pub(crate) unsafe extern "C" fn copy_long(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { copy(Operation::Copy, to, from, len, caller) };
    to
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
    // SAFETY: the caller's promise.
    unsafe { copy(Operation::Move, to, from, len, caller) };
    to
}

/// `mempcpy` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn copy_to_end_long(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { copy_long(to, from, len, caller) }.wrapping_byte_add(len)
}

/// `memset` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn fill_long(to: *mut c_void, byte: c_int, len: usize, caller: usize) -> *mut c_void {
    let call = Call { operation: Operation::Set, len, caller, overlaps: false };
    // SAFETY: as in `copy`.
    execute(call, || unsafe { cpu_fill(to, byte, len) }, |device| ((), unsafe { device.fill(to, byte, len) }));
    to
}

/// `memcmp` of a long range.
///
/// # Safety
/// As for the C library's function.
pub(crate) unsafe extern "C" fn compare_long(a: *const c_void, b: *const c_void, len: usize, caller: usize) -> c_int {
    let call = Call { operation: Operation::Compare, len, caller, overlaps: false };
    // SAFETY: as in `copy`.
    execute(call, || unsafe { cpu_compare(a, b, len) }, |device| unsafe { device.compare(a, b, len) })
}
