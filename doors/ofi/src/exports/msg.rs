//! Messages without tags.

use super::object::inner;
use super::segments::{of_array, of_buffer, of_receive};
use super::{read, started};
use crate::abi::flags as f;
use crate::abi::objects::FidEp;
use crate::abi::objects::OpsMsg;
use crate::abi::queues::Msg;
use crate::endpoint::{ReceiveCall, SendCall};
use libc::iovec;
use std::ffi::c_void;
use telpher_fabric::Segments;

pub(crate) static OPS: OpsMsg =
    OpsMsg { size: size_of::<OpsMsg>(), recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata };

fn plain_send(segments: Segments, to: u64, data: Option<u64>, context: *mut c_void) -> SendCall {
    SendCall::new(segments, to, None, data, context.expose_provenance() as u64)
}

fn plain_receive(segments: Segments, from: u64, context: *mut c_void) -> ReceiveCall {
    ReceiveCall::new(segments, from, None, context.expose_provenance() as u64)
}

unsafe extern "C" fn recv(
    ep: *mut FidEp,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the rules of `exports`; so for all functions below.
    started(|| unsafe { inner(ep)?.receive(plain_receive(of_buffer(buf, len)?, from, context)) })
}

unsafe extern "C" fn recvv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.receive(plain_receive(of_array(iov, count)?, from, context)) })
}

unsafe extern "C" fn recvmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    started(|| {
        // SAFETY: as above.
        let msg = unsafe { read(msg) }?;
        // SAFETY: as above.
        let segments = unsafe { of_receive(flags, msg.iov, msg.iov_count) }?;
        let call = ReceiveCall { flags: Some(flags), ..plain_receive(segments, msg.addr, msg.context) };
        // SAFETY: as above.
        unsafe { inner(ep) }?.receive(call)
    })
}

unsafe extern "C" fn send(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.send(plain_send(of_buffer(buf, len)?, to, None, context)) })
}

unsafe extern "C" fn sendv(
    ep: *mut FidEp,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.send(plain_send(of_array(iov, count)?, to, None, context)) })
}

unsafe extern "C" fn sendmsg(ep: *mut FidEp, msg: *const Msg, flags: u64) -> isize {
    started(|| {
        // SAFETY: as above.
        let msg = unsafe { read(msg) }?;
        // SAFETY: as above.
        let segments = unsafe { of_array(msg.iov, msg.iov_count) }?;
        let data = (flags & f::REMOTE_CQ_DATA != 0).then_some(msg.data);
        let call = SendCall { flags: Some(flags), ..plain_send(segments, msg.addr, data, msg.context) };
        // SAFETY: as above.
        unsafe { inner(ep) }?.send(call)
    })
}

unsafe extern "C" fn inject(ep: *mut FidEp, buf: *const c_void, len: usize, to: u64) -> isize {
    started(|| {
        // SAFETY: as above.
        let segments = unsafe { of_buffer(buf, len) }?;
        let call = SendCall { silent: true, ..plain_send(segments, to, None, std::ptr::null_mut()) };
        // SAFETY: as above.
        unsafe { inner(ep) }?.send(call)
    })
}

unsafe extern "C" fn senddata(
    ep: *mut FidEp,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.send(plain_send(of_buffer(buf, len)?, to, Some(data), context)) })
}

unsafe extern "C" fn injectdata(ep: *mut FidEp, buf: *const c_void, len: usize, data: u64, to: u64) -> isize {
    started(|| {
        // SAFETY: as above.
        let segments = unsafe { of_buffer(buf, len) }?;
        let call = SendCall { silent: true, ..plain_send(segments, to, Some(data), std::ptr::null_mut()) };
        // SAFETY: as above.
        unsafe { inner(ep) }?.send(call)
    })
}
