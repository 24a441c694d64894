//! From the addresses of a request to slices for the CPU.

use crate::api::error::JobError;
use crate::api::outcome::Outcome;
use crate::api::policy::Hint;
use crate::inflight::cpu;
use crate::plan::request::{Range, Request};
use telpher_abi::{Opcode, SglFormat};
use telpher_mem::PAGE_BYTES;

/// # Safety
///
/// `[address, address + len)` is valid for reads for `'a` and no other code writes it meanwhile. With `len` 0 there is
/// no condition.
#[inline(always)]
pub(super) unsafe fn bytes<'a>(address: u64, len: u64) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: non-null because valid; our caller vouches for validity and exclusiveness. Lengths of real memory fit
    // `usize`, and addresses come from buffers whose provenance was exposed when their address was taken.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(size(address)), size(len)) }
}

/// # Safety
///
/// `[address, address + len)` is valid for reads and writes for `'a` and no other code has it. With `len` 0 there is no
/// condition.
#[inline(always)]
pub(super) unsafe fn bytes_mut<'a>(address: u64, len: u64) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: as in `bytes`, for writes too.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(size(address)), size(len)) }
}

#[inline(always)]
fn size(value: u64) -> usize {
    usize::try_from(value).expect("addresses and lengths of this process fit its pointers")
}

/// Does the rest of a request on the CPU.
///
/// # Safety
///
/// The ranges of the request are valid for reads, its destinations for writes. No other code and no device has them
/// meanwhile. The ranges of one request are disjoint, except for a memory move.
pub(super) unsafe fn finish(request: &Request, hint: Hint) -> Result<Outcome, JobError> {
    let (d, len, base, unit) = (request.template(), request.len(), request.base, request.unit());
    // SAFETY (of every block below): the ranges are those of `Request::ranges`, which our caller vouches for. A
    // source and a destination of one request are disjoint, so the exclusive slice is alone.
    let outcome = match request.opcode() {
        Opcode::Nop | Opcode::Drain => Outcome::Done,
        Opcode::MemoryMove => {
            let hint = if request.is_durable() { Hint::Memory } else { hint };
            // SAFETY: as above; parts of the request's ranges.
            request.moves().iter().for_each(|part| unsafe { relocate(part, hint) });
            if request.is_durable() {
                // Also the bytes that a device has done: it reads them back only when it does the last one.
                // SAFETY: as above; the bytes before the rest belong to the original request.
                telpher_ops::flush::write_back(unsafe { bytes(d.dst() - base, base + len) });
            }
            Outcome::Done
        }
        // SAFETY: as above.
        Opcode::Fill => cpu::fill(&d, unsafe { bytes_mut(d.dst(), len) }, hint),
        Opcode::Compare => {
            // SAFETY: as above; two shared slices.
            let (a, b) = unsafe { (bytes(d.src(), len), bytes(d.dst(), len)) };
            cpu::compared(telpher_ops::compare(a, b))
        }
        // SAFETY: as above.
        Opcode::ComparePattern => cpu::compared(telpher_ops::compare_pattern(unsafe { bytes(d.src(), len) }, d.dst())),
        Opcode::CreateDelta => {
            // SAFETY: as above.
            let record = unsafe { bytes_mut(d.delta_address(), u64::from(d.max_delta_size())) };
            // SAFETY: as above.
            cpu::create_delta(unsafe { bytes(d.src(), len) }, unsafe { bytes(d.dst(), len) }, record)
        }
        Opcode::ApplyDelta => {
            // SAFETY: as above; the entry before belongs to the original request, whose first `base` bytes are done.
            let before = (base >= cpu::ENTRY).then(|| unsafe { bytes(d.src() - cpu::ENTRY, cpu::ENTRY) });
            // SAFETY: as above.
            let dst = unsafe { bytes_mut(d.dst(), u64::from(d.size())) };
            // SAFETY: as above.
            return cpu::apply_delta(unsafe { bytes(d.src(), len) }, dst, base, before);
        }
        Opcode::Dualcast => {
            // SAFETY: as above; the two destinations are disjoint.
            let (first, second) = unsafe { (bytes_mut(d.dst(), len), bytes_mut(d.dst2(), len)) };
            // SAFETY: as above.
            telpher_ops::dualcast(unsafe { bytes(d.src(), len) }, first, second, hint);
            Outcome::Done
        }
        // SAFETY: as above.
        Opcode::CrcGeneration => cpu::crc(&d, unsafe { bytes(d.src(), len) }),
        // SAFETY: as above.
        Opcode::CopyCrc => cpu::copy_crc(&d, unsafe { bytes(d.src(), len) }, unsafe { bytes_mut(d.dst(), len) }, hint),
        // SAFETY: as above.
        Opcode::DifCheck => cpu::dif_check(&d, unsafe { bytes(d.src(), len) }, unit),
        // SAFETY: as above.
        op @ (Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate | Opcode::DixGenerate) => {
            // SAFETY: as above.
            let (src, dst) = unsafe { (bytes(d.src(), len), bytes_mut(d.dst(), request.dif_dest(len))) };
            match op {
                Opcode::DifInsert => cpu::dif_insert(&d, src, dst),
                Opcode::DixGenerate => cpu::dix_generate(&d, src, dst),
                Opcode::DifStrip => cpu::dif_strip(&d, src, dst, unit),
                _ => cpu::dif_update(&d, src, dst, unit),
            }
        }
        Opcode::TypeConversion => {
            // SAFETY: as above.
            let (src, dst) = unsafe { (bytes(d.src(), len), bytes_mut(d.dst(), request.result_bytes(len))) };
            Outcome::Computed(request.seen | cpu::convert(&d, src, dst)?)
        }
        op @ (Opcode::Reduce | Opcode::ReduceDualcast) => {
            // SAFETY: as above; two shared slices.
            let (a, b) = unsafe { (bytes(d.src(), len), bytes(d.dst(), len)) };
            // SAFETY: as above.
            let dst = unsafe { bytes_mut(d.reduce_dst(), request.result_bytes(len)) };
            // SAFETY: as above; the two destinations are disjoint.
            let second = (op == Opcode::ReduceDualcast)
                .then(|| unsafe { bytes_mut(d.reduce_dst2(), request.result_bytes(len)) });
            Outcome::Computed(request.seen | cpu::reduce(&d, [a, b], dst, second)?)
        }
        // SAFETY: as above.
        Opcode::GatherReduce | Opcode::GatherCopy | Opcode::ScatterCopy | Opcode::ScatterFill => unsafe {
            listed(request, hint)?
        },
        Opcode::TranslationFetch => {
            let mut done = 0;
            while done < len {
                let page = Range { address: d.src() + done, len: 1, written: false };
                // SAFETY: as above; a byte of the range.
                unsafe { touch(&page) };
                // To the begin of the next page.
                done += PAGE_BYTES - page.address % PAGE_BYTES;
            }
            Outcome::Done
        }
        Opcode::CacheFlush => {
            // SAFETY: as above.
            telpher_ops::flush::flush(unsafe { bytes(d.dst(), len) });
            Outcome::Done
        }
        op => return Err(JobError::Unsupported { op }),
    };
    Ok(outcome.shifted(base))
}

/// Executes an operation whose blocks a list names.
///
/// # Safety
///
/// As for [`finish`]: each block that the list names lies in the request's memory.
unsafe fn listed(request: &Request, hint: Hint) -> Result<Outcome, JobError> {
    let (d, op, block) = (request.template(), request.opcode(), request.list_block());
    let Some(format) = SglFormat::from_code(d.sgl_format_code()) else { return Err(JobError::Unsupported { op }) };
    let gathers = matches!(op, Opcode::GatherReduce | Opcode::GatherCopy);
    let list = if gathers { d.src() } else { d.dst() };
    // SAFETY: a range of the request, which our caller vouches for, and so are those below. The list, the range and the
    // memory are disjoint, and at most one of them is written; blocks are used one at a time.
    let list = unsafe { bytes(list, request.list_bytes(request.len())) };
    let addresses = telpher_ops::sgl::addresses(format, d.sgl_base(), list, block);
    if op == Opcode::GatherReduce {
        // SAFETY: as above.
        let dst = unsafe { bytes_mut(d.dst(), request.result_bytes(request.len())) };
        // SAFETY: as above.
        let blocks = addresses.map(|address| unsafe { bytes(address, block) });
        return Ok(Outcome::Computed(request.seen | cpu::gather_reduce(&d, blocks, dst)?));
    }
    for (at, address) in (0_u64..).zip(addresses) {
        let before = at * block;
        // SAFETY: as above.
        let here = || unsafe { bytes_mut(address, block) };
        let copy = |src: &[u8], dst: &mut [u8]| match hint {
            Hint::Memory if src.len() >= telpher_ops::STREAM_BYTES => telpher_ops::copy(src, dst, hint),
            _ => telpher_ops::sgl::copy_buffer(src, dst),
        };
        match op {
            Opcode::GatherCopy => {
                // SAFETY: as above.
                copy(unsafe { bytes(address, block) }, unsafe { bytes_mut(d.dst() + before, block) });
            }
            // SAFETY: as above.
            Opcode::ScatterCopy => copy(unsafe { bytes(d.src() + before, block) }, here()),
            _ if hint == Hint::Memory => telpher_ops::fill(here(), d.src(), hint),
            _ => telpher_ops::sgl::fill_buffer(here(), d.src()),
        }
    }
    Ok(Outcome::Done)
}

/// Executes one memory move.
///
/// # Safety
///
/// As for [`finish`]; source and destination may overlap.
unsafe fn relocate(part: &Request, hint: Hint) {
    let (d, len) = (part.template(), part.len());
    if len == 0 {
        return;
    }
    if part.overlaps() {
        let src: *const u8 = std::ptr::with_exposed_provenance(size(d.src()));
        // SAFETY: both ranges are valid by our caller; `copy` allows them to overlap.
        unsafe { std::ptr::copy(src, std::ptr::with_exposed_provenance_mut(size(d.dst())), size(len)) };
    } else {
        // SAFETY: both ranges are valid by our caller and disjoint.
        telpher_ops::copy(unsafe { bytes(d.src(), len) }, unsafe { bytes_mut(d.dst(), len) }, hint);
    }
}

/// Touches the first byte of a range, so that its page is present: with a write if the range is to be written.
///
/// # Safety
///
/// The range is not empty and is valid for that access, and no other code has it.
pub(super) unsafe fn touch(range: &Range) {
    let address: *mut u8 = std::ptr::with_exposed_provenance_mut(size(range.address));
    // SAFETY: valid by our caller; volatile, so that the access happens.
    let byte = unsafe { address.read_volatile() };
    if range.written {
        // SAFETY: as above, for a write of what is already there.
        unsafe { address.write_volatile(byte) };
    }
}
