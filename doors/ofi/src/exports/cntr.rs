//! Counters.

use super::missing::fid_table;
use super::object::{bind_nothing, close, head, inner, no_control, open as open_object};
use super::{answer, caught, timeout};
use crate::abi::objects::FidCntr;
use crate::abi::objects::{OpsCntr, OpsFid};
use crate::counter::{Counted, Counter};
use crate::failure::Errno;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static FID: OpsFid = fid_table(close::<FidCntr>, bind_nothing, no_control);

static OPS: OpsCntr = OpsCntr { size: size_of::<OpsCntr>(), read, readerr, add, set, wait, adderr, seterr };

/// Opens a counter.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn open(out: *mut *mut FidCntr, counter: Counter, context: *mut c_void) -> Result<(), Errno> {
    let fid = FidCntr { fid: head::<FidCntr>(context, &FID), ops: &raw const OPS };
    // SAFETY: the caller's promise.
    unsafe { open_object(out, fid, Arc::new(counter)) }
}

unsafe extern "C" fn read(counter: *mut FidCntr) -> u64 {
    // SAFETY: the rules of `exports`; so for all functions below.
    caught(|| unsafe { inner(counter) }.map(|counter| counter.read(Counted::Successes))).unwrap_or(0)
}

unsafe extern "C" fn readerr(counter: *mut FidCntr) -> u64 {
    // SAFETY: as above.
    caught(|| unsafe { inner(counter) }.map(|counter| counter.read(Counted::Failures))).unwrap_or(0)
}

unsafe extern "C" fn add(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { inner(counter) }.map(|counter| counter.add(Counted::Successes, value)))
}

unsafe extern "C" fn set(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { inner(counter) }.map(|counter| counter.set(Counted::Successes, value)))
}

unsafe extern "C" fn adderr(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { inner(counter) }.map(|counter| counter.add(Counted::Failures, value)))
}

unsafe extern "C" fn seterr(counter: *mut FidCntr, value: u64) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { inner(counter) }.map(|counter| counter.set(Counted::Failures, value)))
}

unsafe extern "C" fn wait(counter: *mut FidCntr, threshold: u64, milliseconds: c_int) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { inner(counter) }?.wait(threshold, timeout(milliseconds)))
}
