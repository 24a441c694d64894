//! Lets a foreign signal handler handle the faults of the guarded kernels.
//!
//! A library that controls all signal handlers of a process cannot let a second library install handlers behind it. It
//! [`adopt`]s the signals before the first [`Local`](crate::Local) is created. Whenever SIGSEGV or SIGBUS arrives, it
//! calls [`landing`] first.
#![allow(unsafe_code, reason = "declares the promise of the caller that takes the signals over")]

use crate::local::trap;

/// Where a kernel continues after a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResumePoint {
    /// The new instruction pointer.
    pub instruction: u64,
    /// The new r11; all other registers keep their values.
    pub r11: u64,
}

/// Leaves SIGSEGV and SIGBUS to the caller: no [`Local`](crate::Local) made from now on installs a handler.
///
/// # Safety
/// From now on, for every SIGSEGV and SIGBUS that the processor raises (positive `si_code`, other than `BUS_MCEERR_AO`)
/// at an instruction that has a [`landing`], the caller continues the thread at that landing. No thread runs operations
/// while these signals are blocked.
pub unsafe fn adopt() {
    trap::adopt();
}

/// Continues the thread of a fault at the landing of its instruction. Returns false if it has none: the fault is not
/// one of a guarded kernel.
pub fn resume(context: &mut libc::ucontext_t) -> bool {
    trap::resume(context)
}

/// Returns the landing of an instruction of a guarded kernel, `None` for all other instructions. Async-signal-safe:
/// reads constant data only.
#[must_use]
pub fn landing(instruction: u64) -> Option<ResumePoint> {
    let (landing, value) = trap::lookup(usize::try_from(instruction).ok()?)?;
    Some(ResumePoint { instruction: landing as u64, r11: i64::from(value).cast_unsigned() })
}
