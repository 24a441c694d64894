//! Endpoints: what is bound to them, their options and their address.

use super::missing::{COLLECTIVE, MISSING, fid_table};
use super::object::{close, head, inner_of_fid, open as open_object};
use super::{answer, atomic, av::write_address, msg, read, rma, started, tagged, write};
use crate::abi::errors;
use crate::abi::flags as f;
use crate::abi::objects::{Fid, FidAv, FidCntr, FidCq, FidEp, FidEq};
use crate::abi::objects::{OpsCm, OpsEp, OpsFid};
use crate::endpoint::Ep;
use crate::failure::{Errno, INVALID};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static FID: OpsFid = fid_table(close::<FidEp>, bind, control);

static OPS: OpsEp = OpsEp {
    size: size_of::<OpsEp>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: MISSING,
    rx_ctx: MISSING,
    rx_size_left: MISSING,
    tx_size_left: MISSING,
};

static CM: OpsCm = OpsCm {
    size: size_of::<OpsCm>(),
    setname: MISSING,
    getname,
    getpeer: MISSING,
    connect: MISSING,
    listen: MISSING,
    accept: MISSING,
    reject: MISSING,
    shutdown: MISSING,
    join: MISSING,
};

/// Opens an endpoint.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn open(out: *mut *mut FidEp, endpoint: Ep, context: *mut c_void) -> Result<(), Errno> {
    let fid = FidEp {
        fid: head::<FidEp>(context, &FID),
        ops: &raw const OPS,
        cm: &raw const CM,
        msg: &raw const msg::OPS,
        rma: &raw const rma::OPS,
        tagged: &raw const tagged::OPS,
        atomic: &raw const atomic::OPS,
        collective: &raw const COLLECTIVE,
    };
    // SAFETY: the caller's promise.
    unsafe { open_object(out, fid, Arc::new(endpoint)) }
}

unsafe extern "C" fn bind(endpoint: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let endpoint = unsafe { inner_of_fid::<FidEp>(endpoint) }?;
        // SAFETY: as above.
        match unsafe { read(other) }?.class {
            // SAFETY: as above.
            f::CLASS_AV => endpoint.bind_av(Arc::clone(unsafe { inner_of_fid::<FidAv>(other) }?)),
            // SAFETY: as above.
            f::CLASS_CQ => endpoint.bind_queue(Arc::clone(unsafe { inner_of_fid::<FidCq>(other) }?), flags),
            // SAFETY: as above.
            f::CLASS_CNTR => endpoint.bind_counter(unsafe { inner_of_fid::<FidCntr>(other) }?, flags),
            // SAFETY: as above.
            f::CLASS_EQ => endpoint.bind_events(Arc::clone(unsafe { inner_of_fid::<FidEq>(other) }?)),
            _ => Err(INVALID),
        }
    })
}

unsafe extern "C" fn control(endpoint: *mut Fid, command: c_int, _: *mut c_void) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`.
        let endpoint = unsafe { inner_of_fid::<FidEp>(endpoint) }?;
        if command == f::ENABLE { endpoint.enable() } else { Err(Errno(libc::ENOSYS)) }
    })
}

unsafe extern "C" fn cancel(endpoint: *mut Fid, context: *mut c_void) -> isize {
    started(|| {
        // SAFETY: the rules of `exports`.
        let endpoint = unsafe { inner_of_fid::<FidEp>(endpoint) }?;
        endpoint.cancel(context.expose_provenance() as u64)
    })
}

unsafe extern "C" fn getopt(
    endpoint: *mut Fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so are the next ones.
        let endpoint = unsafe { inner_of_fid::<FidEp>(endpoint) }?;
        let found = match (level, name) {
            (f::OPT_ENDPOINT, f::OPT_MIN_MULTI_RECV) => endpoint.min_multi_recv(),
            (f::OPT_ENDPOINT, f::OPT_CM_DATA_SIZE) => 0,
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        };
        // SAFETY: as above.
        if *unsafe { read(len) }? < size_of::<usize>() {
            return Err(Errno(errors::ETOOSMALL));
        }
        // SAFETY: as above.
        unsafe {
            write(value.cast::<usize>(), usize::try_from(found).map_err(|_| INVALID)?)?;
            write(len, size_of::<usize>())
        }
    })
}

unsafe extern "C" fn setopt(endpoint: *mut Fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so is the next one.
        let endpoint = unsafe { inner_of_fid::<FidEp>(endpoint) }?;
        match (level, name) {
            (f::OPT_ENDPOINT, f::OPT_MIN_MULTI_RECV) if len == size_of::<usize>() => {
                // SAFETY: as above.
                endpoint.set_min_multi_recv(*unsafe { read(value.cast::<usize>()) }? as u64);
                Ok(())
            }
            (f::OPT_ENDPOINT, f::OPT_MIN_MULTI_RECV) => Err(INVALID),
            _ => Err(Errno(libc::ENOPROTOOPT)),
        }
    })
}

/// Copies the address that peers insert; `ETOOSMALL` if it does not fit.
unsafe extern "C" fn getname(endpoint: *mut Fid, addr: *mut c_void, len: *mut usize) -> c_int {
    answer(|| {
        // SAFETY: the rules of `exports`; so is the next one.
        let endpoint = unsafe { inner_of_fid::<FidEp>(endpoint) }?;
        // SAFETY: as above.
        if unsafe { write_address(&endpoint.address(), addr, len) }? {
            return Ok(());
        }
        Err(Errno(errors::ETOOSMALL))
    })
}
