//! Faults of the guarded kernels, answered by somebody else's signal handler.
//!
//! Who stands in front of a whole process (its handlers, and what the program may do to them) cannot have a second library
//! install handlers behind it. It [`adopt`]s the signals before the first [`Local`](crate::Local), and asks [`landing`] first
//! whenever SIGSEGV or SIGBUS arrives.
#![allow(unsafe_code, reason = "declares the promise of who takes the signals over")]

use crate::local::trap;

/// Where a kernel goes on after a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landing {
    /// The new instruction pointer.
    pub instruction: u64,
    /// The new r11; all other registers stay.
    pub r11: u64,
}

/// Leaves SIGSEGV and SIGBUS to the caller: no [`Local`](crate::Local) made from now on installs a handler.
///
/// # Safety
/// From now on, for every SIGSEGV and SIGBUS that the processor raises (positive `si_code`, other than `BUS_MCEERR_AO`) and whose
/// instruction has a [`landing`], the caller lets the thread go on there; and no thread drives operations with these signals
/// blocked.
pub unsafe fn adopt() {
    trap::adopt();
}

/// The landing of a guarded kernel's instruction; `None` for everybody else's. Async-signal-safe: reads constant data only.
#[must_use]
pub fn landing(instruction: u64) -> Option<Landing> {
    let (landing, value) = trap::lookup(usize::try_from(instruction).ok()?)?;
    Some(Landing { instruction: landing as u64, r11: i64::from(value).cast_unsigned() })
}
