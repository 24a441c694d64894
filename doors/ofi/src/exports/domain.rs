//! Domains.

use super::missing::{MISSING, fid_table};
use super::object::{bind_nothing, close, head, inner, no_control, open as open_object};
use super::{answer, atomic, av, cntr, cq, ep, mr, read};
use crate::abi::flags as f;
use crate::abi::info::Info;
use crate::abi::objects::{FidAv, FidCntr, FidCq, FidDomain, FidEp};
use crate::abi::objects::{OpsDomain, OpsFid};
use crate::abi::queues::{AvAttr, CntrAttr, CqAttr};
use crate::address_vector::AddressVector;
use crate::capabilities::{ACCESS_DIRECTIONS, ACCESSES, ALL, DIRECTIONS, RX_OP_FLAGS, TX_OP_FLAGS};
use crate::completion_queue::CompletionQueue;
use crate::counter::Counter;
use crate::domain::Domain;
use crate::endpoint::{Ep, EpOptions};
use crate::failure::{Errno, INVALID};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static FID: OpsFid = fid_table(close::<FidDomain>, bind_nothing, no_control);

static OPS: OpsDomain = OpsDomain {
    size: size_of::<OpsDomain>(),
    av_open,
    cq_open,
    endpoint,
    scalable_ep: MISSING,
    cntr_open,
    poll_open: MISSING,
    stx_ctx: MISSING,
    srx_ctx: MISSING,
    query_atomic: atomic::query,
    query_collective: MISSING,
    endpoint2: MISSING,
};

/// Opens a domain.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn open(out: *mut *mut FidDomain, domain: Domain, context: *mut c_void) -> Result<(), Errno> {
    let fid = FidDomain { fid: head::<FidDomain>(context, &FID), ops: &raw const OPS, mr: &raw const mr::OPS };
    // SAFETY: the caller's promise.
    unsafe { open_object(out, fid, Arc::new(domain)) }
}

unsafe extern "C" fn av_open(
    domain: *mut FidDomain,
    attr: *mut AvAttr,
    out: *mut *mut FidAv,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let domain = unsafe { inner(domain) }?;
        // SAFETY: as above.
        let asked = unsafe { read(attr) }?;
        // A name asks for a vector that processes share; flags ask for events or read-only vectors.
        if !asked.name.is_null() || asked.flags != 0 {
            return Err(Errno(libc::ENOSYS));
        }
        if ![0, f::AV_MAP, f::AV_TABLE].contains(&asked.kind) || asked.rx_ctx_bits != 0 {
            return Err(INVALID);
        }
        if asked.kind == 0 {
            // Programs read the type that was chosen.
            // SAFETY: as above; the reference to the structure is not used from here on.
            unsafe { (&raw mut (*attr).kind).write(f::AV_TABLE) };
        }
        // SAFETY: as above.
        unsafe { av::open(out, AddressVector::new(Arc::clone(domain)), context) }
    })
}

unsafe extern "C" fn cq_open(
    domain: *mut FidDomain,
    attr: *mut CqAttr,
    out: *mut *mut FidCq,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let domain = unsafe { inner(domain) }?;
        // SAFETY: as above.
        let attr = unsafe { read(attr) }?;
        cq::check_wait_object(attr.wait_obj)?;
        let format = cq::format(attr.format)?;
        // SAFETY: as above.
        unsafe { cq::open(out, CompletionQueue::new(Arc::clone(domain), format), context) }
    })
}

unsafe extern "C" fn cntr_open(
    domain: *mut FidDomain,
    attr: *mut CntrAttr,
    out: *mut *mut FidCntr,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let domain = unsafe { inner(domain) }?;
        if !attr.is_null() {
            // SAFETY: as above.
            let attr = unsafe { read(attr) }?;
            cq::check_wait_object(attr.wait_obj)?;
            // Other counters count bytes.
            if attr.events != 0 || attr.flags != 0 {
                return Err(Errno(libc::ENOSYS));
            }
        }
        // SAFETY: as above.
        unsafe { cntr::open(out, Counter::new(Arc::clone(domain)), context) }
    })
}

unsafe extern "C" fn endpoint(
    domain: *mut FidDomain,
    info: *mut Info,
    out: *mut *mut FidEp,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        if out.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the rules of `exports`; so are the next ones.
        let domain = unsafe { inner(domain) }?;
        // SAFETY: as above.
        let info = unsafe { read(info) }?;
        // SAFETY: as above.
        let ep = unsafe { info.ep_attr.as_ref() };
        if ep.is_some_and(|ep| ep.kind != f::EP_UNSPEC && ep.kind != f::EP_RDM) {
            return Err(INVALID);
        }
        if info.caps & !ALL != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        // SAFETY: as above.
        let tx_flags = unsafe { info.tx_attr.as_ref() }.map_or(0, |tx| tx.op_flags);
        // SAFETY: as above.
        let rx_flags = unsafe { info.rx_attr.as_ref() }.map_or(0, |rx| rx.op_flags);
        let any = info.caps & (DIRECTIONS | ACCESS_DIRECTIONS) == 0;
        let starts = any || info.caps & (f::SEND | f::READ | f::WRITE) != 0;
        let options = EpOptions {
            accesses: info.caps & ACCESSES != 0,
            counts_peers: info.caps & f::RMA_EVENT != 0,
            directed: info.caps & f::DIRECTED_RECV != 0,
            directions: (starts, any || info.caps & f::RECV != 0),
            tx_flags: tx_flags & TX_OP_FLAGS,
            rx_flags: rx_flags & RX_OP_FLAGS,
        };
        let endpoint = Ep::open(Arc::clone(domain), options)?;
        // SAFETY: as above.
        unsafe { ep::open(out, endpoint, context) }
    })
}
