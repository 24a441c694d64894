//! Objects and their tables of operations (`rdma/fabric.h`, `rdma/fi_domain.h`, `rdma/fi_endpoint.h`, `rdma/fi_eq.h`).
//!
//! Each object begins with a [`Fid`] and points to tables. Each table begins with its size in bytes, and all slots are
//! filled: callers of the common operations do not look whether a slot is empty.

use super::accesses::{AtomicAttr, Ioc, MsgAtomic, MsgRma};
use super::info::{FabricAttr, Info};
use super::queues::{AvAttr, CntrAttr, CqAttr, CqErrEntry, EqAttr, MrAttr, Msg, MsgTagged};
use libc::iovec;
use std::ffi::{c_char, c_int, c_void};

/// `fi_provider` (`rdma/providers/fi_prov.h`).
#[repr(C)]
pub(crate) struct Provider {
    pub(crate) version: u32,
    pub(crate) fi_version: u32,
    /// The core's own.
    pub(crate) context: [*mut c_void; 4],
    pub(crate) name: *const c_char,
    pub(crate) getinfo: unsafe extern "C" fn(
        version: u32,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const Info,
        info: *mut *mut Info,
    ) -> i32,
    pub(crate) fabric: unsafe extern "C" fn(attr: *mut FabricAttr, fabric: *mut *mut FidFabric, *mut c_void) -> i32,
    pub(crate) cleanup: extern "C" fn(),
}

/// `fid`.
#[repr(C)]
pub(crate) struct Fid {
    pub(crate) class: usize,
    pub(crate) context: *mut c_void,
    pub(crate) ops: *const OpsFid,
}

/// `fid_fabric`.
#[repr(C)]
pub(crate) struct FidFabric {
    pub(crate) fid: Fid,
    pub(crate) ops: *const OpsFabric,
    pub(crate) api_version: u32,
}

/// `fid_domain`.
#[repr(C)]
pub(crate) struct FidDomain {
    pub(crate) fid: Fid,
    pub(crate) ops: *const OpsDomain,
    pub(crate) mr: *const OpsMr,
}

/// `fid_ep`.
#[repr(C)]
pub(crate) struct FidEp {
    pub(crate) fid: Fid,
    pub(crate) ops: *const OpsEp,
    pub(crate) cm: *const OpsCm,
    pub(crate) msg: *const OpsMsg,
    pub(crate) rma: *const OpsRma,
    pub(crate) tagged: *const OpsTagged,
    pub(crate) atomic: *const OpsAtomic,
    pub(crate) collective: *const OpsCollective,
}

/// `fid_av`.
#[repr(C)]
pub(crate) struct FidAv {
    pub(crate) fid: Fid,
    pub(crate) ops: *const OpsAv,
}

/// `fid_mr`.
#[repr(C)]
pub(crate) struct FidMr {
    pub(crate) fid: Fid,
    pub(crate) mem_desc: *mut c_void,
    pub(crate) key: u64,
}

/// `fid_eq`.
#[repr(C)]
pub(crate) struct FidEq {
    pub(crate) fid: Fid,
    pub(crate) ops: *const OpsEq,
}

/// `fid_cq`.
#[repr(C)]
pub(crate) struct FidCq {
    pub(crate) fid: Fid,
    pub(crate) ops: *const OpsCq,
}

/// `fid_cntr`.
#[repr(C)]
pub(crate) struct FidCntr {
    pub(crate) fid: Fid,
    pub(crate) ops: *const OpsCntr,
}

/// A slot whose operation this provider does not have. It ignores its arguments: in the calling convention of x86-64
/// they belong to the caller, in registers and on the stack.
pub(crate) type Missing = extern "C" fn() -> isize;

type Context = *mut c_void;
type Desc = *mut c_void;
type Descs = *mut *mut c_void;

/// `fi_ops`.
#[repr(C)]
pub(crate) struct OpsFid {
    pub(crate) size: usize,
    pub(crate) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(crate) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(crate) control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
    pub(crate) ops_open: Missing,
    pub(crate) tostr: Missing,
    pub(crate) ops_set: Missing,
}

/// `fi_ops_fabric`.
#[repr(C)]
pub(crate) struct OpsFabric {
    pub(crate) size: usize,
    pub(crate) domain: unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut FidDomain, Context) -> c_int,
    pub(crate) passive_ep: Missing,
    pub(crate) eq_open: unsafe extern "C" fn(*mut FidFabric, *mut EqAttr, *mut *mut FidEq, Context) -> c_int,
    pub(crate) wait_open: Missing,
    pub(crate) trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
    pub(crate) domain2: Missing,
}

/// `fi_ops_domain`.
#[repr(C)]
pub(crate) struct OpsDomain {
    pub(crate) size: usize,
    pub(crate) av_open: unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, Context) -> c_int,
    pub(crate) cq_open: unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, Context) -> c_int,
    pub(crate) endpoint: unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, Context) -> c_int,
    pub(crate) scalable_ep: Missing,
    pub(crate) cntr_open: unsafe extern "C" fn(*mut FidDomain, *mut CntrAttr, *mut *mut FidCntr, Context) -> c_int,
    pub(crate) poll_open: Missing,
    pub(crate) stx_ctx: Missing,
    pub(crate) srx_ctx: Missing,
    pub(crate) query_atomic: unsafe extern "C" fn(*mut FidDomain, c_int, c_int, *mut AtomicAttr, u64) -> c_int,
    pub(crate) query_collective: Missing,
    pub(crate) endpoint2: Missing,
}

/// `fi_ops_mr`.
#[repr(C)]
pub(crate) struct OpsMr {
    pub(crate) size: usize,
    pub(crate) reg: unsafe extern "C" fn(
        domain: *mut Fid,
        buf: *const c_void,
        len: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut FidMr,
        context: Context,
    ) -> c_int,
    pub(crate) regv: unsafe extern "C" fn(
        domain: *mut Fid,
        iov: *const iovec,
        count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        flags: u64,
        mr: *mut *mut FidMr,
        context: Context,
    ) -> c_int,
    pub(crate) regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
}

/// `fi_ops_av`, with the three slots that version 1.20 appended.
#[repr(C)]
pub(crate) struct OpsAv {
    pub(crate) size: usize,
    pub(crate) insert: unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut u64, u64, Context) -> c_int,
    pub(crate) insertsvc: Missing,
    pub(crate) insertsym: Missing,
    pub(crate) remove: unsafe extern "C" fn(*mut FidAv, *mut u64, usize, u64) -> c_int,
    pub(crate) lookup: unsafe extern "C" fn(*mut FidAv, u64, *mut c_void, *mut usize) -> c_int,
    pub(crate) straddr: unsafe extern "C" fn(*mut FidAv, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    pub(crate) av_set: Missing,
    pub(crate) insert_auth_key: Missing,
    pub(crate) lookup_auth_key: Missing,
    pub(crate) set_user_id: Missing,
}

/// `fi_ops_eq`.
#[repr(C)]
pub(crate) struct OpsEq {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut FidEq, *mut u32, *mut c_void, usize, u64) -> isize,
    pub(crate) readerr: unsafe extern "C" fn(*mut FidEq, *mut c_void, u64) -> isize,
    pub(crate) write: unsafe extern "C" fn(*mut FidEq, u32, *const c_void, usize, u64) -> isize,
    pub(crate) sread: unsafe extern "C" fn(*mut FidEq, *mut u32, *mut c_void, usize, c_int, u64) -> isize,
    pub(crate) strerror: unsafe extern "C" fn(*mut FidEq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `fi_ops_cq`.
#[repr(C)]
pub(crate) struct OpsCq {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize) -> isize,
    pub(crate) readfrom: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *mut u64) -> isize,
    pub(crate) readerr: unsafe extern "C" fn(*mut FidCq, *mut CqErrEntry, u64) -> isize,
    pub(crate) sread: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *const c_void, c_int) -> isize,
    pub(crate) sreadfrom: unsafe extern "C" fn(*mut FidCq, *mut c_void, usize, *mut u64, *const c_void, c_int) -> isize,
    pub(crate) signal: unsafe extern "C" fn(*mut FidCq) -> c_int,
    pub(crate) strerror: unsafe extern "C" fn(*mut FidCq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
}

/// `fi_ops_cntr`.
#[repr(C)]
pub(crate) struct OpsCntr {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub(crate) readerr: unsafe extern "C" fn(*mut FidCntr) -> u64,
    pub(crate) add: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub(crate) set: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub(crate) wait: unsafe extern "C" fn(*mut FidCntr, u64, c_int) -> c_int,
    pub(crate) adderr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
    pub(crate) seterr: unsafe extern "C" fn(*mut FidCntr, u64) -> c_int,
}

/// `fi_ops_ep`.
#[repr(C)]
pub(crate) struct OpsEp {
    pub(crate) size: usize,
    pub(crate) cancel: unsafe extern "C" fn(*mut Fid, Context) -> isize,
    pub(crate) getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *mut c_void, *mut usize) -> c_int,
    pub(crate) setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
    pub(crate) tx_ctx: Missing,
    pub(crate) rx_ctx: Missing,
    pub(crate) rx_size_left: Missing,
    pub(crate) tx_size_left: Missing,
}

/// `fi_ops_cm`.
#[repr(C)]
pub(crate) struct OpsCm {
    pub(crate) size: usize,
    pub(crate) setname: Missing,
    pub(crate) getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    pub(crate) getpeer: Missing,
    pub(crate) connect: Missing,
    pub(crate) listen: Missing,
    pub(crate) accept: Missing,
    pub(crate) reject: Missing,
    pub(crate) shutdown: Missing,
    pub(crate) join: Missing,
}

/// `fi_ops_msg`.
#[repr(C)]
pub(crate) struct OpsMsg {
    pub(crate) size: usize,
    pub(crate) recv: unsafe extern "C" fn(*mut FidEp, *mut c_void, usize, Desc, u64, Context) -> isize,
    pub(crate) recvv: unsafe extern "C" fn(*mut FidEp, *const iovec, Descs, usize, u64, Context) -> isize,
    pub(crate) recvmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub(crate) send: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, Desc, u64, Context) -> isize,
    pub(crate) sendv: unsafe extern "C" fn(*mut FidEp, *const iovec, Descs, usize, u64, Context) -> isize,
    pub(crate) sendmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64) -> isize,
    pub(crate) senddata: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, Desc, u64, u64, Context) -> isize,
    pub(crate) injectdata: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64) -> isize,
}

/// `fi_ops_tagged`. The last two numbers of a send are the address and the tag.
#[repr(C)]
pub(crate) struct OpsTagged {
    pub(crate) size: usize,
    pub(crate) recv: unsafe extern "C" fn(*mut FidEp, *mut c_void, usize, Desc, u64, u64, u64, Context) -> isize,
    pub(crate) recvv: unsafe extern "C" fn(*mut FidEp, *const iovec, Descs, usize, u64, u64, u64, Context) -> isize,
    pub(crate) recvmsg: unsafe extern "C" fn(*mut FidEp, *const MsgTagged, u64) -> isize,
    pub(crate) send: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, Desc, u64, u64, Context) -> isize,
    pub(crate) sendv: unsafe extern "C" fn(*mut FidEp, *const iovec, Descs, usize, u64, u64, Context) -> isize,
    pub(crate) sendmsg: unsafe extern "C" fn(*mut FidEp, *const MsgTagged, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64) -> isize,
    pub(crate) senddata: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, Desc, u64, u64, u64, Context) -> isize,
    pub(crate) injectdata: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64, u64) -> isize,
}

/// `fi_ops_rma`. The numbers after a descriptor are the word for the peer if there is one, the peer, the address in its
/// memory, and the key.
#[repr(C)]
pub(crate) struct OpsRma {
    pub(crate) size: usize,
    pub(crate) read: unsafe extern "C" fn(*mut FidEp, *mut c_void, usize, Desc, u64, u64, u64, Context) -> isize,
    pub(crate) readv: unsafe extern "C" fn(*mut FidEp, *const iovec, Descs, usize, u64, u64, u64, Context) -> isize,
    pub(crate) readmsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub(crate) write: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, Desc, u64, u64, u64, Context) -> isize,
    pub(crate) writev: unsafe extern "C" fn(*mut FidEp, *const iovec, Descs, usize, u64, u64, u64, Context) -> isize,
    pub(crate) writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgRma, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64, u64) -> isize,
    pub(crate) writedata:
        unsafe extern "C" fn(*mut FidEp, *const c_void, usize, Desc, u64, u64, u64, u64, Context) -> isize,
    pub(crate) injectdata: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64, u64, u64) -> isize,
}

/// `fi_ops_atomic`. The numbers are the peer, the address in its memory and the key, then the type and the operation.
#[repr(C)]
pub(crate) struct OpsAtomic {
    pub(crate) size: usize,
    pub(crate) write:
        unsafe extern "C" fn(*mut FidEp, *const c_void, usize, Desc, u64, u64, u64, c_int, c_int, Context) -> isize,
    pub(crate) writev:
        unsafe extern "C" fn(*mut FidEp, *const Ioc, Descs, usize, u64, u64, u64, c_int, c_int, Context) -> isize,
    pub(crate) writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, u64) -> isize,
    pub(crate) inject: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64, u64, c_int, c_int) -> isize,
    pub(crate) readwrite: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        Desc,
        result: *mut c_void,
        Desc,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        Context,
    ) -> isize,
    pub(crate) readwritev: unsafe extern "C" fn(
        *mut FidEp,
        *const Ioc,
        Descs,
        usize,
        results: *mut Ioc,
        Descs,
        usize,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        Context,
    ) -> isize,
    pub(crate) readwritemsg:
        unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, results: *mut Ioc, Descs, usize, u64) -> isize,
    pub(crate) compwrite: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        Desc,
        compare: *const c_void,
        Desc,
        result: *mut c_void,
        Desc,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        Context,
    ) -> isize,
    pub(crate) compwritev: unsafe extern "C" fn(
        *mut FidEp,
        *const Ioc,
        Descs,
        usize,
        compares: *const Ioc,
        Descs,
        usize,
        results: *mut Ioc,
        Descs,
        usize,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        Context,
    ) -> isize,
    pub(crate) compwritemsg: unsafe extern "C" fn(
        *mut FidEp,
        *const MsgAtomic,
        compares: *const Ioc,
        Descs,
        usize,
        results: *mut Ioc,
        Descs,
        usize,
        u64,
    ) -> isize,
    pub(crate) writevalid: unsafe extern "C" fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
    pub(crate) readwritevalid: unsafe extern "C" fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
    pub(crate) compwritevalid: unsafe extern "C" fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int,
}

/// `fi_ops_collective`: eleven operations.
#[repr(C)]
pub(crate) struct OpsCollective {
    pub(crate) size: usize,
    pub(crate) slots: [Missing; 11],
}
