//! Accesses to the memory of peers (`rdma/fi_rma.h`).

use libc::iovec;
use std::ffi::c_void;

/// `fi_rma_iov`.
#[repr(C)]
pub(crate) struct RmaIov {
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) key: u64,
}

/// `fi_msg_rma`.
#[repr(C)]
pub(crate) struct MsgRma {
    pub(crate) iov: *const iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) rma_iov: *const RmaIov,
    pub(crate) rma_iov_count: usize,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}
