//! Steps of a long call, during which the thread is not cancelled and the program's signal handlers wait.
//!
//! A thread with asynchronous cancellation (PTHREAD_CANCEL_ASYNCHRONOUS) is unwound from any instruction. In a Rust
//! function with something to drop that ends the process, and a device would go on writing. So the step runs with
//! cancellation disabled, and a cancellation that comes meanwhile acts afterwards, in a frame that is written in
//! assembly. The frames above it, in [`calls`](crate::calls), have nothing to drop.
//!
//! Handlers are deferred before cancellation is disabled and until it is as before. So a handler that leaves a call by
//! `siglongjmp` finds the program's own state. If the thread is unwound in between, the frame's `personality` ends the
//! deferral, so that the program's cleanup functions run without it.
#![allow(unsafe_code, reason = "a frame in assembly that can be unwound from each instruction")]

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr;
use telpher_interpose::signals::{Deferral, defer, end_deferrals, note_cancellations};

unsafe extern "C-unwind" {
    /// Enables or disables cancellation of this thread. Disabled, it is not cancelled in functions that are
    /// cancellation points, such as read(2). That alone is not enough: glibc 2.36 acts on a cancellation whose signal
    /// was under way, and if one acts when this enables it again, the thread does not get the result PTHREAD_CANCELED.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    /// Sets when this thread may be cancelled. With the asynchronous type, a waiting cancellation acts at once.
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// Source: glibc, pthread.h, here and in the next three.
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

/// Calls a step with its argument.
#[inline]
pub(crate) fn uncancelled<T>(step: extern "C" fn(&mut T), argument: &mut T) {
    // SAFETY: a function that takes a reference, and the reference as a pointer.
    unsafe {
        let step = transmute::<extern "C" fn(&mut T), extern "C" fn(*mut c_void)>(step);
        guard(step, ptr::from_mut(argument).cast());
    }
}

/// Calls the step: handlers deferred, cancellation neither asynchronous nor enabled, the step, all as before.
///
/// # Safety
/// The step may be called with the argument.
#[unsafe(naked)]
unsafe extern "C-unwind" fn guard(step: extern "C" fn(*mut c_void), argument: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        // The distance to the function, in four bytes. Source: LSB, DW_EH_PE_pcrel and DW_EH_PE_sdata4.
        ".cfi_personality 0x1b, {personality}",
        "endbr64",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rbx, 0",
        "push r12",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset r12, 0",
        // The type and the state of before, and whether the deferral ends.
        "sub rsp, 24",
        ".cfi_adjust_cfa_offset 24",
        "mov rbx, rdi",
        "mov r12, rsi",
        "call {begin}",
        "mov dword ptr [rsp + 16], eax",
        "mov dword ptr [rsp], {deferred}",
        "mov edi, {deferred}",
        "mov rsi, rsp",
        "call qword ptr [rip + {set_type}@GOTPCREL]",
        "mov dword ptr [rsp + 8], {enable}",
        "mov edi, {disable}",
        "lea rsi, [rsp + 8]",
        "call qword ptr [rip + {set_state}@GOTPCREL]",
        "cmp dword ptr [rsp], {asynchronous}",
        "jne 3f",
        "call {note}",
        "3:",
        "mov rdi, r12",
        "call rbx",
        "mov edi, dword ptr [rsp + 8]",
        "xor esi, esi",
        "call qword ptr [rip + {set_state}@GOTPCREL]",
        "cmp dword ptr [rsp], {asynchronous}",
        "jne 2f",
        // A waiting cancellation acts here.
        "mov edi, {asynchronous}",
        "xor esi, esi",
        "call qword ptr [rip + {set_type}@GOTPCREL]",
        "2:",
        "mov edi, dword ptr [rsp + 16]",
        "call {end}",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "pop r12",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore r12",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_restore rbx",
        "ret",
        ".cfi_endproc",
        personality = sym personality,
        begin = sym begin,
        end = sym end,
        note = sym note,
        set_state = sym pthread_setcancelstate,
        set_type = sym pthread_setcanceltype,
        enable = const ENABLE,
        disable = const DISABLE,
        deferred = const DEFERRED,
        asynchronous = const ASYNCHRONOUS,
    )
}

/// Defers the handlers. Returns what `end` takes.
extern "C-unwind" fn begin() -> c_int {
    defer().leave_open().into()
}

/// Lets a cancellation of an asynchronous thread be noted.
extern "C" fn note() {
    note_cancellations();
}

/// Ends the deferral: handlers run here, and may leave by `siglongjmp`.
extern "C-unwind" fn end(ends: c_int) {
    drop(Deferral::take_over(ends != 0));
}

/// Called by the unwinder for the frame of `guard`: the thread is cancelled, and its deferral ends.
/// Source: Itanium C++ ABI, Exception Handling, 1.6.3.
unsafe extern "C" fn personality(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut c_void,
    _context: *mut c_void,
) -> c_int {
    const CLEANUP_PHASE: c_int = 2;
    const CONTINUE_UNWIND: c_int = 8;
    if actions & CLEANUP_PHASE != 0 {
        end_deferrals();
    }
    CONTINUE_UNWIND
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        let mut state = 7;
        // SAFETY: sets the state to what it is.
        unsafe {
            pthread_setcancelstate(DISABLE, &raw mut state);
            pthread_setcancelstate(state, ptr::null_mut());
        }
        state
    }

    #[test]
    fn a_step_runs_with_cancellation_disabled_and_leaves_the_state_as_it_was() {
        extern "C" fn step((inside, count): &mut (c_int, u32)) {
            (*inside, *count) = (state(), *count + 1);
        }
        let mut argument = (7, 3);
        assert_eq!(state(), ENABLE);
        uncancelled(step, &mut argument);
        assert_eq!((argument, state()), ((DISABLE, 4), ENABLE));
        // SAFETY: disables cancellation of this thread for a moment.
        unsafe { pthread_setcancelstate(DISABLE, ptr::null_mut()) };
        uncancelled(step, &mut argument);
        assert_eq!((argument, state()), ((DISABLE, 5), DISABLE));
        // SAFETY: as above.
        unsafe { pthread_setcancelstate(ENABLE, ptr::null_mut()) };
    }
}
