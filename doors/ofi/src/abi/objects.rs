//! Objects: each begins with a [`Fid`], and points to tables of operations (`rdma/fabric.h`, `rdma/fi_domain.h`,
//! `rdma/fi_endpoint.h`, `rdma/fi_eq.h`).

use super::operations::{
    OpsAtomic, OpsAv, OpsCm, OpsCntr, OpsCollective, OpsCq, OpsDomain, OpsEp, OpsEq, OpsFabric, OpsFid, OpsMr, OpsMsg,
    OpsRma, OpsTagged,
};
use std::ffi::c_void;

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
