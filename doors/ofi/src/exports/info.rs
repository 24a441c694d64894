//! `fi_info` of applications read, and our own written.

use crate::abi::flags as f;
use crate::abi::info::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr};
use crate::capabilities::{ADDRESS_FORMAT, DirectionHints, DomainHints, EpHints, Hints, NAME, Offer, PROTOCOL};
use crate::failure::Errno;
use crate::limits;
use std::ffi::{CStr, CString, c_char, c_void};
use telpher_fabric::address::ADDRESS_BYTES;
use telpher_fabric::buffer::MOST_SEGMENTS;

/// Bytes of each allocated structure. Source: more than any known version has (224), so that fields which newer
/// versions append read as zero.
const ALLOCATED: usize = 512;

/// Reads a text; `None` for NULL.
///
/// # Safety
/// It is NULL or ends in a zero byte.
pub(crate) unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// Reads the hints of an application.
///
/// # Safety
/// The pointers in it are NULL or valid.
pub(crate) unsafe fn hints(info: &Info) -> Hints {
    // SAFETY: the caller's promise; so are the next ones.
    let tx = unsafe { info.tx_attr.as_ref() };
    // SAFETY: as above.
    let rx = unsafe { info.rx_attr.as_ref() };
    // SAFETY: as above.
    let ep = unsafe { info.ep_attr.as_ref() };
    // SAFETY: as above.
    let domain = unsafe { info.domain_attr.as_ref() };
    // SAFETY: as above.
    let fabric = unsafe { info.fabric_attr.as_ref() };
    let peer = (!info.dest_addr.is_null() && info.dest_addrlen > 0).then(|| {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(info.dest_addr.cast::<u8>(), info.dest_addrlen) }.to_vec()
    });
    Hints {
        caps: info.caps,
        addr_format: info.addr_format,
        names_source: !info.src_addr.is_null(),
        names_node: false,
        accepts_request: !info.handle.is_null(),
        peer,
        tx: tx.map(tx_hints),
        rx: rx.map(rx_hints),
        ep: ep.map(ep_hints),
        // SAFETY: as above.
        domain: domain.map(|domain| unsafe { domain_hints(domain) }),
        // SAFETY: as above.
        fabric: fabric.and_then(|fabric| unsafe { text(fabric.name) }),
        // SAFETY: as above.
        provider: fabric.and_then(|fabric| unsafe { text(fabric.prov_name) }),
    }
}

fn tx_hints(tx: &TxAttr) -> DirectionHints {
    DirectionHints {
        caps: tx.caps,
        op_flags: tx.op_flags,
        msg_order: tx.msg_order,
        comp_order: tx.comp_order,
        inject_size: tx.inject_size,
        size: tx.size,
        iov_limit: tx.iov_limit,
        rma_iov_limit: tx.rma_iov_limit,
    }
}

fn rx_hints(rx: &RxAttr) -> DirectionHints {
    DirectionHints {
        caps: rx.caps,
        op_flags: rx.op_flags,
        msg_order: rx.msg_order,
        comp_order: rx.comp_order,
        size: rx.size,
        iov_limit: rx.iov_limit,
        ..DirectionHints::default()
    }
}

fn ep_hints(ep: &EpAttr) -> EpHints {
    EpHints {
        kind: ep.kind,
        protocol: ep.protocol,
        protocol_version: ep.protocol_version,
        max_msg_size: ep.max_msg_size,
        max_order_size: ep.max_order_raw_size.max(ep.max_order_war_size).max(ep.max_order_waw_size),
        mem_tag_format: ep.mem_tag_format,
        tx_ctx_cnt: ep.tx_ctx_cnt,
        rx_ctx_cnt: ep.rx_ctx_cnt,
        auth_key_size: ep.auth_key_size,
    }
}

/// # Safety
/// The name is NULL or ends in a zero byte.
unsafe fn domain_hints(domain: &DomainAttr) -> DomainHints {
    DomainHints {
        // SAFETY: the caller's promise.
        name: unsafe { text(domain.name) },
        threading: domain.threading,
        control_progress: domain.control_progress,
        data_progress: domain.data_progress,
        resource_mgmt: domain.resource_mgmt,
        av_type: domain.av_type,
        mr_mode: domain.mr_mode,
        mr_key_size: domain.mr_key_size,
        cq_data_size: domain.cq_data_size,
        objects: domain
            .cq_cnt
            .max(domain.ep_cnt)
            .max(domain.cntr_cnt)
            .max(domain.tx_ctx_cnt)
            .max(domain.rx_ctx_cnt)
            .max(domain.mr_cnt),
        contexts_of_ep: domain.max_ep_tx_ctx.max(domain.max_ep_rx_ctx),
        shared_contexts: domain.max_ep_stx_ctx.max(domain.max_ep_srx_ctx),
        mr_iov_limit: domain.mr_iov_limit,
        caps: domain.caps,
        auth_key_size: domain.auth_key_size,
        max_err_data: domain.max_err_data,
    }
}

/// Allocates a zeroed structure that the core frees with `free`.
fn zeroed<T>() -> Result<*mut T, Errno> {
    const { assert!(size_of::<T>() <= ALLOCATED && align_of::<T>() <= 16) };
    // SAFETY: any size may be passed.
    let pointer = unsafe { libc::calloc(1, ALLOCATED) };
    if pointer.is_null() { Err(Errno(libc::ENOMEM)) } else { Ok(pointer.cast()) }
}

/// Copies bytes into memory that the core frees with `free`.
fn copied(bytes: &[u8]) -> Result<*mut c_void, Errno> {
    // SAFETY: any size may be passed.
    let pointer = unsafe { libc::malloc(bytes.len().max(1)) };
    if pointer.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the memory is new and has this size.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer.cast(), bytes.len()) };
    Ok(pointer)
}

/// Copies our name.
fn name() -> Result<*mut c_char, Errno> {
    let name = CString::new(NAME).expect("it has no zero byte");
    copied(name.as_bytes_with_nul()).map(<*mut c_void>::cast)
}

/// Returns an `fi_info` that the core frees, with an offer. Memory is leaked only if there is too little of it.
pub(crate) fn allocate(offer: &Offer) -> Result<*mut Info, Errno> {
    let info = zeroed::<Info>()?;
    let (tx, rx, ep) = (zeroed::<TxAttr>()?, zeroed::<RxAttr>()?, zeroed::<EpAttr>()?);
    let (domain, fabric) = (zeroed::<DomainAttr>()?, zeroed::<FabricAttr>()?);
    let dest_addr = offer.peer.as_deref().map(copied).transpose()?;
    let (domain_name, fabric_name) = (name()?, name()?);
    // SAFETY: the pointers are to new, zeroed memory, and a zero is valid for each field.
    let (info_ref, tx_ref, rx_ref, ep_ref, domain_ref, fabric_ref) =
        unsafe { (&mut *info, &mut *tx, &mut *rx, &mut *ep, &mut *domain, &mut *fabric) };
    *tx_ref = TxAttr {
        caps: offer.tx_caps,
        mode: 0,
        op_flags: offer.tx_op_flags,
        msg_order: offer.msg_order,
        comp_order: 0,
        inject_size: limits::inject_bytes(),
        size: offer.tx_size,
        iov_limit: MOST_SEGMENTS,
        rma_iov_limit: limits::REMOTE_RANGES,
        tclass: 0,
    };
    *rx_ref = RxAttr {
        caps: offer.rx_caps,
        mode: 0,
        op_flags: offer.rx_op_flags,
        msg_order: offer.msg_order,
        comp_order: 0,
        total_buffered_recv: 0,
        size: offer.rx_size,
        iov_limit: MOST_SEGMENTS,
    };
    *ep_ref = EpAttr {
        kind: f::EP_RDM,
        protocol: PROTOCOL,
        protocol_version: limits::PROTOCOL_VERSION,
        max_msg_size: limits::MESSAGE_BYTES,
        msg_prefix_size: 0,
        max_order_raw_size: offer.max_order_size,
        max_order_war_size: offer.max_order_size,
        max_order_waw_size: offer.max_order_size,
        mem_tag_format: offer.mem_tag_format,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
    };
    *domain_ref = DomainAttr {
        domain: std::ptr::null_mut(),
        name: domain_name,
        threading: offer.threading,
        control_progress: offer.control_progress,
        data_progress: offer.data_progress,
        resource_mgmt: f::RM_ENABLED,
        av_type: offer.av_type,
        mr_mode: offer.mr_mode,
        mr_key_size: size_of::<u64>(),
        cq_data_size: size_of::<u64>(),
        cq_cnt: limits::OBJECTS,
        ep_cnt: limits::OBJECTS,
        tx_ctx_cnt: limits::OBJECTS,
        rx_ctx_cnt: limits::OBJECTS,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 0,
        max_ep_srx_ctx: 0,
        cntr_cnt: limits::OBJECTS,
        mr_iov_limit: MOST_SEGMENTS,
        caps: offer.domain_caps,
        mode: 0,
        auth_key: std::ptr::null_mut(),
        auth_key_size: 0,
        max_err_data: 0,
        mr_cnt: limits::OBJECTS,
        tclass: 0,
    };
    *fabric_ref = FabricAttr {
        fabric: std::ptr::null_mut(),
        name: fabric_name,
        // The core fills in the provider's name and the version of its interface.
        prov_name: std::ptr::null_mut(),
        prov_version: 1 << 16,
        api_version: 0,
    };
    *info_ref = Info {
        next: std::ptr::null_mut(),
        caps: offer.caps,
        mode: 0,
        addr_format: ADDRESS_FORMAT,
        src_addrlen: 0,
        dest_addrlen: if dest_addr.is_some() { ADDRESS_BYTES } else { 0 },
        src_addr: std::ptr::null_mut(),
        dest_addr: dest_addr.unwrap_or(std::ptr::null_mut()),
        handle: std::ptr::null_mut(),
        tx_attr: tx,
        rx_attr: rx,
        ep_attr: ep,
        domain_attr: domain,
        fabric_attr: fabric,
        nic: std::ptr::null_mut(),
    };
    Ok(info)
}
