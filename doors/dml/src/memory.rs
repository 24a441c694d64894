//! This process' memory for operations of the CPU, and descriptors for queues: the promises about addresses.
#![allow(unsafe_code, reason = "the caller of the C interface vouches for the addresses of its operations")]

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::OnceLock;
use telpher_abi::Descriptor;
use telpher_mem::Local;
use telpher_model::overlaps;
use telpher_portal::Submission;

/// Returns this process' memory. An address that is not mapped is a page fault in the record, not a signal.
#[inline]
pub(crate) fn own_memory() -> &'static Local {
    static MEMORY: OnceLock<Local> = OnceLock::new();
    // SAFETY: only descriptors of the C interface reach it. Their submitter lends the ranges until the record is
    // written (dml.h, "What must stay alive"), and no Rust reference of this library points at them.
    MEMORY.get_or_init(|| unsafe { Local::new() })
}

/// Lends the source and the destinations of an operation, each an address and a length, to `work`. Returns `None`
/// without a call if the source is empty, if an address is null, if two of the ranges share a byte, or if a page is not
/// mapped. A destination may be empty.
///
/// What the pages allow is found before the call. If another process shortens a mapped file meanwhile, the work ends
/// with a signal.
#[inline]
pub(crate) fn with_ranges<const N: usize, R>(
    src: (u64, u64),
    dst: [(u64, u64); N],
    work: impl FnOnce(&[u8], [&mut [u8]; N]) -> R,
) -> Option<R> {
    let (src_address, src_len) = (usize::try_from(src.0).ok()?, usize::try_from(src.1).ok()?);
    if src_len == 0 || !is_reached(src, false) {
        return None;
    }
    for (at, &one) in dst.iter().enumerate() {
        let shares = |other: (u64, u64)| overlaps(one.0, one.1, other.0, other.1);
        if shares(src) || dst[..at].iter().any(|&other| shares(other)) || !is_reached(one, true) {
            return None;
        }
    }
    // SAFETY: not null, and every page of it has just been read, so it lies in this process' memory. Only descriptors
    // of the C interface reach it. Their submitter lends the range until the record is written, and no other code
    // writes it meanwhile (dml.h, "What must stay alive").
    let source = unsafe { from_raw_parts(with_exposed_provenance(src_address), src_len) };
    let destinations = dst.map(|(address, len)| match (usize::try_from(address), usize::try_from(len)) {
        // SAFETY: as above; every page of it has just been written, it shares no byte with the other ranges, and no
        // other code accesses it meanwhile.
        (Ok(address), Ok(len)) if len > 0 => unsafe { from_raw_parts_mut(with_exposed_provenance_mut(address), len) },
        _ => &mut [],
    });
    Some(work(source, destinations))
}

/// True if an address is not null, and every byte behind it can be accessed; also for an empty range.
#[inline]
fn is_reached((address, len): (u64, u64), write: bool) -> bool {
    len == 0 || address != 0 && own_memory().reaches(address, len, write)
}

/// Vouches for a descriptor of the C interface.
#[inline]
pub(crate) fn lent(descriptor: Descriptor) -> Submission {
    // SAFETY: the submitter lends every range of the descriptor and of its batch members, and the memory of its
    // records, until the records are written (dml.h, "What must stay alive").
    unsafe { Submission::vouch(descriptor) }
}
