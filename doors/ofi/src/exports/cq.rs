//! Completion queues.

use super::missing::fid_table;
use super::object::{bind_nothing, close, head, inner, open as open_object};
use super::{answer, length, timeout, write, write_text};
use crate::abi::flags as f;
use crate::abi::objects::{Fid, FidCq};
use crate::abi::objects::{OpsCq, OpsFid};
use crate::abi::queues::{CqEntry, CqErrEntry};
use crate::bound::BoundEndpoint;
use crate::completion_queue::{CompletionQueue, Format};
use crate::failure::{Errno, INVALID, explain, of_operation};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Weak};
use telpher_fabric::{Completion, Failure, Operation};

static FID: OpsFid = fid_table(close::<FidCq>, bind_nothing, control);

static OPS: OpsCq = OpsCq { size: size_of::<OpsCq>(), read, readfrom, readerr, sread, sreadfrom, signal, strerror };

/// Opens a completion queue.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn open(out: *mut *mut FidCq, queue: CompletionQueue, context: *mut c_void) -> Result<(), Errno> {
    let fid = FidCq { fid: head::<FidCq>(context, &FID), ops: &raw const OPS };
    // SAFETY: the caller's promise.
    unsafe { open_object(out, fid, Arc::new(queue)) }
}

/// Refuses wait objects that programs could wait for by themselves: queues are polled, also by the calls that wait.
pub(crate) fn check_wait_object(wait: i32) -> Result<(), Errno> {
    if [f::WAIT_NONE, f::WAIT_UNSPEC, f::WAIT_YIELD].contains(&wait) { Ok(()) } else { Err(Errno(libc::ENOSYS)) }
}

/// Converts a format.
pub(crate) fn format(format: i32) -> Result<Format, Errno> {
    match format {
        // Programs that leave the choice to the provider must be prepared for any format; this is the shortest.
        f::CQ_UNSPEC | f::CQ_CONTEXT => Ok(Format::Context),
        f::CQ_MSG => Ok(Format::Msg),
        f::CQ_DATA => Ok(Format::Data),
        f::CQ_TAGGED => Ok(Format::Tagged),
        _ => Err(Errno(libc::ENOSYS)),
    }
}

/// Bytes of an entry: a beginning of [`CqEntry`].
const fn entry_bytes(format: Format) -> usize {
    match format {
        Format::Context => 8,
        Format::Msg => 24,
        Format::Data => 40,
        Format::Tagged => size_of::<CqEntry>(),
    }
}

/// Returns a word of a program as the pointer that it was.
fn pointer(word: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(word).expect("64-bit system"))
}

fn flags(completion: &Completion) -> u64 {
    let kind = if completion.is_tagged { f::TAGGED } else { f::MSG };
    let operation = match completion.operation {
        Operation::Send => f::SEND | kind,
        Operation::Receive | Operation::Probe => f::RECV | kind,
        Operation::Read => f::READ | f::RMA,
        Operation::Write => f::WRITE | f::RMA,
        Operation::Atomic => f::WRITE | f::ATOMIC,
        Operation::FetchAtomic => f::READ | f::ATOMIC,
        Operation::WrittenByPeer => f::REMOTE_WRITE | f::RMA,
    };
    let data = if completion.data.is_some() { f::REMOTE_CQ_DATA } else { 0 };
    let releases = if completion.releases_buffer { f::MULTI_RECV } else { 0 };
    operation | data | releases
}

fn entry(completion: &Completion) -> CqEntry {
    CqEntry {
        op_context: pointer(completion.context),
        flags: flags(completion),
        len: usize::try_from(completion.len).expect("64-bit system"),
        buf: pointer(completion.address),
        data: completion.data.unwrap_or(0),
        tag: completion.tag,
    }
}

/// Writes a completion to a place in an array of entries.
///
/// # Safety
/// `buf` has room for `place + 1` entries of the format.
#[inline]
unsafe fn write_entry(buf: *mut c_void, place: usize, format: Format, completion: &Completion) {
    // SAFETY: the caller vouches for the place.
    let to = unsafe { buf.cast::<u8>().add(place * entry_bytes(format)) };
    // SAFETY: as above. The shortest entry is a pointer, and the start of the array is aligned for it.
    unsafe {
        match format {
            Format::Context => to.cast::<*mut c_void>().write(pointer(completion.context)),
            Format::Msg => write_beginning::<{ entry_bytes(Format::Msg) }>(to, completion),
            Format::Data => write_beginning::<{ entry_bytes(Format::Data) }>(to, completion),
            Format::Tagged => write_beginning::<{ entry_bytes(Format::Tagged) }>(to, completion),
        }
    }
}

/// Writes the first `BYTES` bytes of an entry. Their number is a constant, so the copy is a few stores.
///
/// # Safety
/// `to` has room for them.
#[inline]
unsafe fn write_beginning<const BYTES: usize>(to: *mut u8, completion: &Completion) {
    const { assert!(BYTES <= size_of::<CqEntry>()) };
    let entry = entry(completion);
    // SAFETY: the caller vouches for the place, and the entry has as many bytes.
    unsafe { std::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), to, BYTES) };
}

/// How a call reads: whether it waits, and for how long.
#[derive(Clone, Copy)]
enum Waits {
    No,
    For(c_int),
}

/// # Safety
/// See the rules of `exports`; `sources` is NULL or has `count` entries.
unsafe fn read_entries(
    queue: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
    waits: Waits,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise; so are the next ones.
    let queue = unsafe { inner(queue) }?;
    if (buf.is_null() && count > 0) || !buf.cast::<u64>().is_aligned() || !sources.is_aligned() {
        return Err(INVALID);
    }
    let format = queue.format();
    let mut place = 0;
    let mut put = |completion: &Completion| {
        // SAFETY: `buf` has room for `count` entries of this format.
        unsafe { write_entry(buf, place, format, completion) };
        place += 1;
        place - 1
    };
    // With sources, `take` below calls the endpoint.
    if sources.is_null()
        && let Waits::No = waits
        && let Some(answer) = queue.read_sole(count, |completion| {
            put(completion);
        })
    {
        return answer;
    }
    let take = |completion: &Completion, endpoint: &Weak<dyn BoundEndpoint>| {
        let place = put(completion);
        if !sources.is_null() {
            let number = completion.source.and_then(|source| endpoint.upgrade()?.number_of(&source));
            // SAFETY: as above.
            unsafe { sources.add(place).write(number.unwrap_or(f::ADDRESS_UNSPECIFIED)) };
        }
    };
    match waits {
        Waits::No => queue.read(count, take),
        Waits::For(milliseconds) => queue.read_waiting(count, timeout(milliseconds), take),
    }
}

unsafe extern "C" fn read(queue: *mut FidCq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the rules of `exports`; so for all functions below.
    length(|| unsafe { read_entries(queue, buf, count, std::ptr::null_mut(), Waits::No) })
}

unsafe extern "C" fn readfrom(queue: *mut FidCq, buf: *mut c_void, count: usize, sources: *mut u64) -> isize {
    // SAFETY: as above.
    length(|| unsafe { read_entries(queue, buf, count, sources, Waits::No) })
}

unsafe extern "C" fn sread(
    queue: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    _condition: *const c_void,
    milliseconds: c_int,
) -> isize {
    // SAFETY: as above.
    length(|| unsafe { read_entries(queue, buf, count, std::ptr::null_mut(), Waits::For(milliseconds)) })
}

unsafe extern "C" fn sreadfrom(
    queue: *mut FidCq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    milliseconds: c_int,
) -> isize {
    // SAFETY: as above.
    length(|| unsafe { read_entries(queue, buf, count, sources, Waits::For(milliseconds)) })
}

unsafe extern "C" fn readerr(queue: *mut FidCq, out: *mut CqErrEntry, _flags: u64) -> isize {
    length(|| {
        if out.is_null() || !out.is_aligned() {
            return Err(INVALID);
        }
        // SAFETY: as above.
        let queue = unsafe { inner(queue) }?;
        let completion = queue.read_failure()?;
        let Err(failure) = completion.result else { return Err(INVALID) };
        let entry = entry(&completion);
        let Errno(number) = of_operation(failure);
        let excess = if let Failure::Truncated { excess } = failure { excess } else { 0 };
        // SAFETY: as above.
        unsafe {
            (*out).op_context = entry.op_context;
            (*out).flags = entry.flags;
            (*out).len = entry.len;
            (*out).buf = entry.buf;
            (*out).data = entry.data;
            (*out).tag = entry.tag;
            (*out).olen = usize::try_from(excess).expect("64-bit system");
            (*out).err = number;
            (*out).prov_errno = number;
            // There are no details. A caller that has set a size keeps its own buffer for them. The entries of programs
            // for versions before 1.5 end before the size. Source: fi_cq(3), "fi_cq_readerr".
            let has_size = queue.api_version() >= f::VERSION_WITH_SIZES;
            if !has_size || (*out).err_data_size == 0 {
                (*out).err_data = std::ptr::null_mut();
            }
            if has_size {
                (*out).err_data_size = 0;
            }
        }
        Ok(1)
    })
}

unsafe extern "C" fn signal(queue: *mut FidCq) -> c_int {
    // SAFETY: as above.
    answer(|| unsafe { inner(queue) }.map(|queue| queue.signal()))
}

unsafe extern "C" fn strerror(
    _: *mut FidCq,
    number: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = explain(number);
    // SAFETY: as above.
    unsafe { write_text(text, buf, len) };
    text.as_ptr()
}

/// Tells which wait object the queue has; there is none to wait for.
unsafe extern "C" fn control(_: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    answer(|| match command {
        // SAFETY: as above.
        f::GET_WAIT_OBJECT => unsafe { write(arg.cast::<c_int>(), f::WAIT_NONE) },
        _ => Err(Errno(libc::ENOSYS)),
    })
}
