//! Operations that the provider does not have.

use crate::abi::objects::Fid;
use crate::abi::objects::{Missing, OpsCollective, OpsFid};
use std::ffi::{c_int, c_void};

extern "C" fn not_supported() -> isize {
    -(libc::ENOSYS as isize)
}

/// Fills a slot of a table.
pub(crate) const MISSING: Missing = not_supported;

/// Collective operations are not offered.
pub(crate) static COLLECTIVE: OpsCollective = OpsCollective { size: size_of::<OpsCollective>(), slots: [MISSING; 11] };

/// Makes the table with which every object begins.
pub(crate) const fn fid_table(
    close: unsafe extern "C" fn(*mut Fid) -> c_int,
    bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
) -> OpsFid {
    let size = size_of::<OpsFid>();
    OpsFid { size, close, bind, control, ops_open: MISSING, tostr: MISSING, ops_set: MISSING }
}
