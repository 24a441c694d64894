//! Messages, completions, events and the attributes of queues (`rdma/fi_endpoint.h`, `rdma/fi_tagged.h`,
//! `rdma/fi_eq.h`, `rdma/fi_domain.h`).

use std::ffi::{c_char, c_void};

/// `fi_msg`.
#[repr(C)]
pub(crate) struct Msg {
    pub(crate) iov: *const libc::iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// `fi_msg_tagged`.
#[repr(C)]
pub(crate) struct MsgTagged {
    pub(crate) iov: *const libc::iovec,
    pub(crate) desc: *mut *mut c_void,
    pub(crate) iov_count: usize,
    pub(crate) addr: u64,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// `fi_cq_tagged_entry`. The entries of the other formats are its beginning.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CqEntry {
    pub(crate) op_context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: *mut c_void,
    pub(crate) data: u64,
    pub(crate) tag: u64,
}

/// `fi_cq_err_entry`, without the source address that version 1.20 appended.
#[repr(C)]
pub(crate) struct CqErrEntry {
    pub(crate) op_context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: *mut c_void,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) olen: usize,
    pub(crate) err: i32,
    pub(crate) prov_errno: i32,
    pub(crate) err_data: *mut c_void,
    pub(crate) err_data_size: usize,
}

/// `fi_cq_attr`.
#[repr(C)]
pub(crate) struct CqAttr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) format: i32,
    pub(crate) wait_obj: i32,
    pub(crate) signaling_vector: i32,
    pub(crate) wait_cond: i32,
    pub(crate) wait_set: *mut c_void,
}

/// `fi_cntr_attr`.
#[repr(C)]
pub(crate) struct CntrAttr {
    pub(crate) events: i32,
    pub(crate) wait_obj: i32,
    pub(crate) wait_set: *mut c_void,
    pub(crate) flags: u64,
}

/// `fi_eq_attr`.
#[repr(C)]
pub(crate) struct EqAttr {
    pub(crate) size: usize,
    pub(crate) flags: u64,
    pub(crate) wait_obj: i32,
    pub(crate) signaling_vector: i32,
    pub(crate) wait_set: *mut c_void,
}

/// `fi_eq_entry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EqEntry {
    pub(crate) fid: *mut c_void,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
}

/// `fi_av_attr`.
#[repr(C)]
pub(crate) struct AvAttr {
    pub(crate) kind: i32,
    pub(crate) rx_ctx_bits: i32,
    pub(crate) count: usize,
    pub(crate) ep_per_node: usize,
    pub(crate) name: *const c_char,
    pub(crate) map_addr: *mut c_void,
    pub(crate) flags: u64,
}

/// `fi_mr_attr`, without what version 2 appended.
#[repr(C)]
pub(crate) struct MrAttr {
    pub(crate) iov: *const libc::iovec,
    pub(crate) iov_count: usize,
    pub(crate) access: u64,
    pub(crate) offset: u64,
    pub(crate) requested_key: u64,
    pub(crate) context: *mut c_void,
    pub(crate) auth_key_size: usize,
    pub(crate) auth_key: *mut u8,
    pub(crate) iface: i32,
    pub(crate) device: u64,
}
