//! What the core of libfabric calls: it finds the provider, asks what it offers, and opens fabrics.

use super::info;
use super::{answer, fabric, read};
use crate::abi::flags as f;
use crate::abi::info::{FabricAttr, Info};
use crate::abi::objects::FidFabric;
use crate::abi::objects::Provider;
use crate::capabilities::{NAME, offer};
use crate::domain::Fabric;
use crate::failure::{Errno, INVALID};
use crate::log;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};

/// The one [`Provider`], which the core may write to.
#[repr(transparent)]
struct Shared(UnsafeCell<Provider>);

// SAFETY: this library never reads or writes it; the core does, under its own lock.
unsafe impl Sync for Shared {}

static PROVIDER: Shared = Shared(UnsafeCell::new(Provider {
    version: 1 << 16,
    fi_version: f::VERSION,
    context: [std::ptr::null_mut(); 4],
    name: c"telpher".as_ptr(),
    getinfo,
    fabric: open_fabric,
    cleanup,
}));

/// Returns the provider to libfabric's core, which looks this function up by its name.
// SAFETY: no other function of a process has this name, except those of other providers, which the core looks up in
// their own libraries.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut c_void {
    PROVIDER.0.get().cast()
}

extern "C" fn cleanup() {}

/// Answers with an offer, or with `ENODATA` and the reason in the log.
unsafe extern "C" fn getinfo(
    _version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const Info,
    out: *mut *mut Info,
) -> c_int {
    answer(|| {
        if out.is_null() || !out.is_aligned() {
            return Err(INVALID);
        }
        let hints = if hints.is_null() {
            None
        } else {
            // SAFETY: the core's promise; so are the next ones.
            Some(unsafe { info::hints(read(hints)?) })
        };
        let mut hints = hints.unwrap_or_default();
        hints.names_node = !node.is_null() || !service.is_null();
        hints.names_source |= hints.names_node && flags & f::GETINFO_SOURCE != 0;
        let offer = offer(Some(&hints)).map_err(|refusal| {
            log::info(format_args!("not offered: {refusal}"));
            Errno(libc::ENODATA)
        })?;
        let info = info::allocate(&offer)?;
        // SAFETY: it was checked above.
        unsafe { out.write(info) };
        Ok(())
    })
}

/// Opens a fabric.
unsafe extern "C" fn open_fabric(attr: *mut FabricAttr, out: *mut *mut FidFabric, context: *mut c_void) -> c_int {
    answer(|| {
        let mut api_version = f::VERSION;
        if !attr.is_null() {
            // SAFETY: the core's promise; so is the next one.
            let attr = unsafe { read(attr) }?;
            // SAFETY: as above.
            let name = unsafe { info::text(attr.name) };
            if name.is_some_and(|name| name != NAME) {
                return Err(INVALID);
            }
            // A program that wrote its attributes by itself may leave the version at zero.
            if attr.api_version != 0 {
                api_version = attr.api_version;
            }
        }
        // SAFETY: the core's promise.
        unsafe { fabric::open(out, Fabric { api_version }, context) }?;
        log::info(format_args!("chosen: a program opened the fabric"));
        Ok(())
    })
}
