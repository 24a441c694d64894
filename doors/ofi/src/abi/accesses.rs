//! Accesses to the memory of peers (`rdma/fi_rma.h`, `rdma/fi_atomic.h`).

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

/// `fi_ioc`.
#[repr(C)]
pub(crate) struct Ioc {
    pub(crate) addr: *mut c_void,
    pub(crate) count: usize,
}

/// `fi_rma_ioc`.
#[repr(C)]
pub(crate) struct RmaIoc {
    pub(crate) addr: u64,
    pub(crate) count: usize,
    pub(crate) key: u64,
}

/// `fi_msg_atomic`.
#[repr(C)]
pub(crate) struct MsgAtomic {
    pub(crate) ioc: *const Ioc,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) ioc_count: usize,
    pub(crate) addr: u64,
    pub(crate) rma_ioc: *const RmaIoc,
    pub(crate) rma_ioc_count: usize,
    pub(crate) datatype: i32,
    pub(crate) op: i32,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// `fi_atomic_attr`.
#[repr(C)]
pub(crate) struct AtomicAttr {
    pub(crate) count: usize,
    pub(crate) size: usize,
}
