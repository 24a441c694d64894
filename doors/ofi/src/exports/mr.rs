//! Registered memory. Messages need none; peers access it by its key.

use super::missing::fid_table;
use super::object::{close, head, inner_of_fid, open};
use super::segments::of_region;
use super::{answer, read};
use crate::abi::errors;
use crate::abi::flags as f;
use crate::abi::objects::{Fid, FidCntr, FidDomain, FidMr};
use crate::abi::objects::{OpsFid, OpsMr};
use crate::abi::queues::MrAttr;
use crate::domain::MemoryRegion;
use crate::failure::{Errno, INVALID};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use telpher_fabric::{Permissions, Segments};

static FID: OpsFid = fid_table(close::<FidMr>, bind, control);

pub(crate) static OPS: OpsMr = OpsMr { size: size_of::<OpsMr>(), reg, regv, regattr };

/// # Safety
/// See the rules of `exports`.
unsafe fn register(
    domain: *mut Fid,
    segments: Segments,
    access: u64,
    key: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let domain = unsafe { inner_of_fid::<FidDomain>(domain) }?;
    let permissions = Permissions { read: access & f::REMOTE_READ != 0, write: access & f::REMOTE_WRITE != 0 };
    let region = MemoryRegion::register(Arc::clone(domain), segments, permissions, key)?;
    let fid = FidMr { fid: head::<FidMr>(context, &FID), mem_desc: std::ptr::null_mut(), key: region.key() };
    // SAFETY: as above.
    unsafe { open(out, fid, Arc::new(region)) }
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    requested_key: u64,
    _flags: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let part = libc::iovec { iov_base: buf.cast_mut(), iov_len: len };
        // SAFETY: the rules of `exports`; so are the next ones.
        let segments = unsafe { of_region(&raw const part, 1) }?;
        // SAFETY: as above.
        unsafe { register(domain, segments, access, requested_key, out, context) }
    })
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    iov: *const libc::iovec,
    count: usize,
    access: u64,
    _offset: u64,
    requested_key: u64,
    _flags: u64,
    out: *mut *mut FidMr,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let segments = unsafe { of_region(iov, count) }?;
        // SAFETY: as above.
        unsafe { register(domain, segments, access, requested_key, out, context) }
    })
}

unsafe extern "C" fn regattr(domain: *mut Fid, attr: *const MrAttr, _flags: u64, out: *mut *mut FidMr) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let attr = unsafe { read(attr) }?;
        // SAFETY: as above.
        let segments = unsafe { of_region(attr.iov, attr.iov_count) }?;
        // SAFETY: as above.
        unsafe { register(domain, segments, attr.access, attr.requested_key, out, attr.context) }
    })
}

/// Programs may bind regions to endpoints, which changes nothing: all endpoints of a domain have the same regions. A
/// counter counts the writes and atomic operations of peers that change the region.
unsafe extern "C" fn bind(region: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        match unsafe { read(other) }?.class {
            f::CLASS_EP => Ok(()),
            f::CLASS_CNTR if flags != f::REMOTE_WRITE => Err(Errno(errors::EBADFLAGS)),
            f::CLASS_CNTR => {
                // SAFETY: as above.
                let region = unsafe { inner_of_fid::<FidMr>(region) }?;
                // SAFETY: as above.
                region.count_changes(unsafe { inner_of_fid::<FidCntr>(other) }?.changes_of_region())
            }
            _ => Err(INVALID),
        }
    })
}

unsafe extern "C" fn control(_: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    if command == f::ENABLE { 0 } else { -libc::ENOSYS }
}
