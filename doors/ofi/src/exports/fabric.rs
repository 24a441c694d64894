//! Fabrics.

use super::missing::{MISSING, fid_table};
use super::object::{bind_nothing, close, head, inner, no_control, open as open_object};
use super::{answer, domain, eq, read};
use crate::abi::flags as f;
use crate::abi::info::Info;
use crate::abi::objects::{Fid, FidDomain, FidEq, FidFabric};
use crate::abi::objects::{OpsFabric, OpsFid};
use crate::abi::queues::EqAttr;
use crate::domain::{Domain, Fabric};
use crate::event_queue::EventQueue;
use crate::failure::{Errno, INVALID};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

static FID: OpsFid = fid_table(close::<FidFabric>, bind_nothing, no_control);

static OPS: OpsFabric = OpsFabric {
    size: size_of::<OpsFabric>(),
    domain: open_domain,
    passive_ep: MISSING,
    eq_open,
    wait_open: MISSING,
    trywait,
    domain2: MISSING,
};

/// Opens a fabric.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn open(out: *mut *mut FidFabric, fabric: Fabric, context: *mut c_void) -> Result<(), Errno> {
    let api_version = fabric.api_version;
    let fid = FidFabric { fid: head::<FidFabric>(context, &FID), ops: &raw const OPS, api_version };
    // SAFETY: the caller's promise.
    unsafe { open_object(out, fid, Arc::new(fabric)) }
}

unsafe extern "C" fn open_domain(
    fabric: *mut FidFabric,
    info: *mut Info,
    out: *mut *mut FidDomain,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let fabric = unsafe { inner(fabric) }?;
        // SAFETY: as above.
        let info = unsafe { read(info) }?;
        // SAFETY: as above.
        let attr = unsafe { info.domain_attr.as_ref() };
        let automatic_progress = attr.is_some_and(|attr| attr.data_progress == f::PROGRESS_AUTO);
        let mr_mode = attr.map_or(0, |attr| attr.mr_mode);
        let object = Domain {
            fabric: Arc::clone(fabric),
            automatic_progress,
            virtual_addresses: mr_mode == f::MR_BASIC || mr_mode & f::MR_VIRT_ADDR != 0,
            chooses_keys: mr_mode == f::MR_BASIC || mr_mode & f::MR_PROV_KEY != 0,
            regions: Arc::default(),
            endpoints: Mutex::default(),
        };
        // SAFETY: as above.
        unsafe { domain::open(out, object, context) }
    })
}

unsafe extern "C" fn eq_open(
    fabric: *mut FidFabric,
    attr: *mut EqAttr,
    out: *mut *mut FidEq,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let fabric = unsafe { inner(fabric) }?;
        if !attr.is_null() {
            // SAFETY: as above.
            super::cq::check_wait_object(unsafe { read(attr) }?.wait_obj)?;
        }
        // SAFETY: as above.
        unsafe { eq::open(out, EventQueue::new(Arc::clone(fabric)), context) }
    })
}

/// Allows a program to wait for the file descriptors of queues; the queues have none.
unsafe extern "C" fn trywait(_: *mut FidFabric, fids: *mut *mut Fid, count: c_int) -> c_int {
    answer(|| if count > 0 && fids.is_null() { Err(INVALID) } else { Err(Errno(libc::ENOSYS)) })
}
