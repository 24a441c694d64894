//! Atomic operations on the memory of peers.

use super::object::inner;
use super::rma::{At, call as access_call};
use super::segments::of_elements;
use super::{answer, read, started, write as write_out};
use crate::abi::accesses::{AtomicAttr, Ioc, MsgAtomic};
use crate::abi::flags as f;
use crate::abi::objects::{FidDomain, FidEp, OpsAtomic};
use crate::endpoint::AccessCall;
use crate::failure::{Errno, INVALID};
use crate::limits;
use std::ffi::{c_int, c_void};
use telpher_fabric::{AccessKind, Atomic, AtomicForm, AtomicOp, Number};

pub(crate) static OPS: OpsAtomic = OpsAtomic {
    size: size_of::<OpsAtomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// Returns an operation by its numbers.
fn atomic(datatype: c_int, op: c_int) -> Result<Atomic, Errno> {
    let found = |number: c_int| usize::try_from(number).map_err(|_| INVALID);
    let of = Number::ALL.get(found(datatype)?).ok_or(Errno(libc::EOPNOTSUPP))?;
    let op = AtomicOp::ALL.get(found(op)?).ok_or(Errno(libc::EOPNOTSUPP))?;
    Ok(Atomic { op: *op, of: *of })
}

/// Returns the most elements of an operation; an error if it does not exist.
fn most_elements(datatype: c_int, op: c_int, form: AtomicForm) -> Result<AtomicAttr, Errno> {
    let atomic = atomic(datatype, op)?;
    if !atomic.exists(form) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let size = usize::try_from(atomic.of.bytes()).expect("a few");
    Ok(AtomicAttr { count: limits::atomic_bytes() / size, size })
}

/// TypedOp an operation is: its type and its number.
struct TypedOp(c_int, c_int);

/// An array of elements.
struct Elements(*const Ioc, usize);

const NONE: Elements = Elements(std::ptr::null(), 0);

/// Composes a call. Results are NULL for operations that return nothing.
///
/// # Safety
/// See the rules of `exports`.
unsafe fn call(
    at: At,
    TypedOp(datatype, op): TypedOp,
    operands: Elements,
    compares: Elements,
    results: Option<Elements>,
    context: *mut c_void,
) -> Result<AccessCall, Errno> {
    let atomic = atomic(datatype, op)?;
    let size = usize::try_from(atomic.of.bytes()).expect("a few");
    // SAFETY: the caller's promise.
    let segments = |of: &Elements| unsafe { of_elements(of.0, of.1, size) };
    let results = results.as_ref().map(segments).transpose()?;
    // A read has no operands, whatever the buffer is.
    let operands = if atomic.op == AtomicOp::Read { NONE } else { operands };
    let operands = segments(&operands)?;
    let len = results.map_or(operands.len(), |results| results.len());
    let kind = AccessKind::Atomic { atomic, len, operands, compares: segments(&compares)?, results };
    Ok(access_call(kind, at, context))
}

/// Composes a call of a message.
///
/// # Safety
/// See the rules of `exports`.
unsafe fn call_of(
    msg: *const MsgAtomic,
    compares: Elements,
    results: Option<Elements>,
    flags: u64,
) -> Result<AccessCall, Errno> {
    // SAFETY: the caller's promise.
    let msg = unsafe { read(msg) }?;
    if msg.rma_ioc_count != 1 {
        return Err(INVALID);
    }
    // SAFETY: as above.
    let remote = unsafe { read(msg.rma_ioc) }?;
    let (at, what) = (At(msg.addr, remote.addr, remote.key), TypedOp(msg.datatype, msg.op));
    // SAFETY: as above.
    let call = unsafe { call(at, what, Elements(msg.ioc, msg.ioc_count), compares, results, msg.context) }?;
    let size = atomic(msg.datatype, msg.op)?.of.bytes();
    match call.kind {
        AccessKind::Atomic { len, .. } if Some(len) == (remote.count as u64).checked_mul(size) => {
            Ok(AccessCall { flags: Some(flags), ..call })
        }
        _ => Err(INVALID),
    }
}

fn ioc(buffer: *const c_void, count: usize) -> Ioc {
    Ioc { addr: buffer.cast_mut(), count }
}

unsafe extern "C" fn write(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    started(|| {
        let operands = ioc(buf, count);
        let (at, what) = (At(peer, address, key), TypedOp(datatype, op));
        // SAFETY: the rules of `exports`; so for all functions below.
        unsafe { inner(ep)?.access(call(at, what, Elements(&raw const operands, 1), NONE, None, context)?) }
    })
}

unsafe extern "C" fn writev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    started(|| {
        let (at, what) = (At(peer, address, key), TypedOp(datatype, op));
        // SAFETY: as above.
        unsafe { inner(ep)?.access(call(at, what, Elements(iov, count), NONE, None, context)?) }
    })
}

unsafe extern "C" fn writemsg(ep: *mut FidEp, msg: *const MsgAtomic, flags: u64) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.access(call_of(msg, NONE, None, flags)?) })
}

unsafe extern "C" fn inject(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    started(|| {
        let operands = ioc(buf, count);
        let (at, what) = (At(peer, address, key), TypedOp(datatype, op));
        // SAFETY: as above.
        let call = unsafe { call(at, what, Elements(&raw const operands, 1), NONE, None, std::ptr::null_mut()) }?;
        // SAFETY: as above.
        unsafe { inner(ep) }?.access(AccessCall { silent: true, ..call })
    })
}

unsafe extern "C" fn readwrite(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    started(|| {
        let (operands, results) = (ioc(buf, count), ioc(result, count));
        let (at, what) = (At(peer, address, key), TypedOp(datatype, op));
        let (operands, results) = (Elements(&raw const operands, 1), Elements(&raw const results, 1));
        // SAFETY: as above.
        unsafe { inner(ep)?.access(call(at, what, operands, NONE, Some(results), context)?) }
    })
}

unsafe extern "C" fn readwritev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    results: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    started(|| {
        let (at, what) = (At(peer, address, key), TypedOp(datatype, op));
        let (operands, results) = (Elements(iov, count), Elements(results, result_count));
        // SAFETY: as above.
        unsafe { inner(ep)?.access(call(at, what, operands, NONE, Some(results), context)?) }
    })
}

unsafe extern "C" fn readwritemsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    results: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: as above.
    started(|| unsafe { inner(ep)?.access(call_of(msg, NONE, Some(Elements(results, result_count)), flags)?) })
}

unsafe extern "C" fn compwrite(
    ep: *mut FidEp,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    started(|| {
        let [operands, compares, results] = [buf, compare, result.cast_const()].map(|buffer| ioc(buffer, count));
        let (at, what) = (At(peer, address, key), TypedOp(datatype, op));
        let (operands, compares) = (Elements(&raw const operands, 1), Elements(&raw const compares, 1));
        let results = Some(Elements(&raw const results, 1));
        // SAFETY: as above.
        unsafe { inner(ep)?.access(call(at, what, operands, compares, results, context)?) }
    })
}

unsafe extern "C" fn compwritev(
    ep: *mut FidEp,
    iov: *const Ioc,
    _desc: *mut *mut c_void,
    count: usize,
    compares: *const Ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    started(|| {
        let (at, what) = (At(peer, address, key), TypedOp(datatype, op));
        let (operands, compares) = (Elements(iov, count), Elements(compares, compare_count));
        let results = Some(Elements(results, result_count));
        // SAFETY: as above.
        unsafe { inner(ep)?.access(call(at, what, operands, compares, results, context)?) }
    })
}

unsafe extern "C" fn compwritemsg(
    ep: *mut FidEp,
    msg: *const MsgAtomic,
    compares: *const Ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    results: *mut Ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    started(|| {
        let (compares, results) = (Elements(compares, compare_count), Elements(results, result_count));
        // SAFETY: as above.
        unsafe { inner(ep)?.access(call_of(msg, compares, Some(results), flags)?) }
    })
}

/// # Safety
/// See the rules of `exports`.
unsafe fn valid(ep: *mut FidEp, datatype: c_int, op: c_int, form: AtomicForm, count: *mut usize) -> Result<(), Errno> {
    // SAFETY: the caller's promise; so is the next one.
    unsafe { inner(ep) }?;
    // SAFETY: as above.
    unsafe { write_out(count, most_elements(datatype, op, form)?.count) }
}

unsafe extern "C" fn writevalid(ep: *mut FidEp, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { valid(ep, datatype, op, AtomicForm::Plain, count) })
}

unsafe extern "C" fn readwritevalid(ep: *mut FidEp, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { valid(ep, datatype, op, AtomicForm::Fetch, count) })
}

unsafe extern "C" fn compwritevalid(ep: *mut FidEp, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { valid(ep, datatype, op, AtomicForm::Compare, count) })
}

/// Tells how many elements of an operation are possible.
pub(crate) unsafe extern "C" fn query(
    domain: *mut FidDomain,
    datatype: c_int,
    op: c_int,
    attr: *mut AtomicAttr,
    flags: u64,
) -> c_int {
    answer(|| {
        let form = match flags {
            0 => AtomicForm::Plain,
            f::FETCH_ATOMIC => AtomicForm::Fetch,
            f::COMPARE_ATOMIC => AtomicForm::Compare,
            // Atomic operations with tags.
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        // SAFETY: as above.
        unsafe { inner(domain) }?;
        // SAFETY: as above.
        unsafe { write_out(attr, most_elements(datatype, op, form)?) }
    })
}
