//! Accesses to the memory of peers.

use super::object::inner;
use super::segments::{of_array, of_buffer};
use super::{read as read_structure, started};
use crate::abi::accesses::MsgRma;
use crate::abi::flags as f;
use crate::abi::objects::{FidEp, OpsRma};
use crate::endpoint::AccessCall;
use crate::failure::{Errno, INVALID};
use libc::iovec;
use std::ffi::c_void;
use telpher_fabric::{AccessKind, RemoteAddress, Segments};

pub(crate) static OPS: OpsRma =
    OpsRma { size: size_of::<OpsRma>(), read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata };

/// Where an access goes: the peer, the address in its memory, and the key.
#[derive(Clone, Copy)]
pub(super) struct At(pub(super) u64, pub(super) u64, pub(super) u64);

/// Composes a call that has the flags of its endpoint.
pub(super) fn call(kind: AccessKind, at: At, context: *mut c_void) -> AccessCall {
    let At(peer, address, key) = at;
    let context = context.expose_provenance() as u64;
    AccessCall { kind, peer, remote: RemoteAddress { key, address }, context, flags: None, silent: false }
}

fn read_call(into: Segments, at: At, context: *mut c_void) -> AccessCall {
    call(AccessKind::Read { into }, at, context)
}

fn write_call(from: Segments, data: Option<u64>, at: At, context: *mut c_void) -> AccessCall {
    call(AccessKind::Write { from, data }, at, context)
}

/// Reads the parts of a message: its segments, and where it goes. An access has one range of remote memory, which is as
/// long as the segments.
///
/// # Safety
/// See the rules of `exports`.
unsafe fn parts(msg: &MsgRma) -> Result<(Segments, At), Errno> {
    // SAFETY: the caller's promise.
    let segments = unsafe { of_array(msg.iov, msg.iov_count) }?;
    if msg.rma_iov_count != 1 {
        return Err(INVALID);
    }
    // SAFETY: as above.
    let remote = unsafe { read_structure(msg.rma_iov) }?;
    if remote.len as u64 != segments.len() {
        return Err(INVALID);
    }
    Ok((segments, At(msg.addr, remote.addr, remote.key)))
}

unsafe extern "C" fn read(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the rules of `exports`; so for all functions below.
    started(|| unsafe { inner(ep)?.access(read_call(of_buffer(buf, len)?, At(peer, address, key), context)) })
}

unsafe extern "C" fn readv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.access(read_call(of_array(iov, count)?, At(peer, address, key), context)) })
}

unsafe extern "C" fn readmsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    started(|| {
        // SAFETY: as above.
        let msg = unsafe { read_structure(msg) }?;
        // SAFETY: as above.
        let (segments, at) = unsafe { parts(msg) }?;
        // SAFETY: as above.
        unsafe { inner(ep) }?.access(AccessCall { flags: Some(flags), ..read_call(segments, at, msg.context) })
    })
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.access(write_call(of_buffer(buf, len)?, None, At(peer, address, key), context)) })
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.access(write_call(of_array(iov, count)?, None, At(peer, address, key), context)) })
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgRma, flags: u64) -> isize {
    started(|| {
        // SAFETY: as above.
        let msg = unsafe { read_structure(msg) }?;
        // SAFETY: as above.
        let (segments, at) = unsafe { parts(msg) }?;
        let data = (flags & f::REMOTE_CQ_DATA != 0).then_some(msg.data);
        // SAFETY: as above.
        unsafe { inner(ep) }?.access(AccessCall { flags: Some(flags), ..write_call(segments, data, at, msg.context) })
    })
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    peer: u64,
    address: u64,
    key: u64,
) -> isize {
    started(|| {
        // SAFETY: as above.
        let segments = unsafe { of_buffer(buf, len) }?;
        let call = write_call(segments, None, At(peer, address, key), std::ptr::null_mut());
        // SAFETY: as above.
        unsafe { inner(ep) }?.access(AccessCall { silent: true, ..call })
    })
}

unsafe extern "C" fn writedata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    started(|| {
        // SAFETY: as above.
        let segments = unsafe { of_buffer(buf, len) }?;
        // SAFETY: as above.
        unsafe { inner(ep) }?.access(write_call(segments, Some(data), At(peer, address, key), context))
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: u64,
    address: u64,
    key: u64,
) -> isize {
    started(|| {
        // SAFETY: as above.
        let segments = unsafe { of_buffer(buf, len) }?;
        let call = write_call(segments, Some(data), At(peer, address, key), std::ptr::null_mut());
        // SAFETY: as above.
        unsafe { inner(ep) }?.access(AccessCall { silent: true, ..call })
    })
}
