//! Registered memory. Messages need none; MPIs register some memory at any rate, so the calls succeed and do nothing.

use super::missing::fid_table;
use super::object::{close, head, inner_of_fid, open};
use super::{answer, read};
use crate::abi::flags as f;
use crate::abi::objects::{Fid, FidDomain, FidMr};
use crate::abi::objects::{OpsFid, OpsMr};
use crate::abi::queues::MrAttr;
use crate::failure::{Errno, INVALID};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static FID: OpsFid = fid_table(close::<FidMr>, bind, control);

pub(crate) static OPS: OpsMr = OpsMr { size: size_of::<OpsMr>(), reg, regv, regattr };

/// # Safety
/// See the rules of `exports`.
unsafe fn register(domain: *mut Fid, key: u64, out: *mut *mut FidMr, context: *mut c_void) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let domain = unsafe { inner_of_fid::<FidDomain>(domain) }?;
    let fid = FidMr { fid: head::<FidMr>(context, &FID), mem_desc: std::ptr::null_mut(), key };
    // SAFETY: as above.
    unsafe { open(out, fid, Arc::clone(domain)) }
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    buf: *const c_void,
    len: usize,
    _access: u64,
    _offset: u64,
    requested_key: u64,
    _flags: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        if buf.is_null() && len > 0 {
            return Err(INVALID);
        }
        // SAFETY: the rules of `exports`.
        unsafe { register(domain, requested_key, out, context) }
    })
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const libc::iovec,
    count: usize,
    _access: u64,
    _offset: u64,
    requested_key: u64,
    _flags: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        if iov.is_null() && count > 0 {
            return Err(INVALID);
        }
        // SAFETY: the rules of `exports`.
        unsafe { register(domain, requested_key, out, context) }
    })
}

unsafe extern "C" fn regattr(domain: *mut Fid, attr: *const MrAttr, _flags: u64, out: *mut *mut FidMr) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so is the next one.
        let attr = unsafe { read(attr) }?;
        // SAFETY: as above.
        unsafe { register(domain, attr.requested_key, out, attr.context) }
    })
}

/// Regions are bound to endpoints, which changes nothing.
unsafe extern "C" fn bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn control(_: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    if command == f::ENABLE { 0 } else { -libc::ENOSYS }
}
