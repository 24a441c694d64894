//! Event queues.

use super::missing::fid_table;
use super::object::{bind_nothing, close, head, inner, no_control, open as open_object};
use super::{length, timeout};
use crate::abi::flags as f;
use crate::abi::objects::FidEq;
use crate::abi::objects::{OpsEq, OpsFid};
use crate::abi::queues::EqEntry;
use crate::event_queue::{Event, EventQueue};
use crate::failure::{AGAIN, Errno, INVALID};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Instant;

static FID: OpsFid = fid_table(close::<FidEq>, bind_nothing, no_control);

static OPS: OpsEq = OpsEq { size: size_of::<OpsEq>(), read, readerr, write: write_event, sread, strerror };

/// Opens an event queue.
///
/// # Safety
/// See the rules of `exports`.
pub(crate) unsafe fn open(out: *mut *mut FidEq, queue: EventQueue, context: *mut c_void) -> Result<(), Errno> {
    let fid = FidEq { fid: head::<FidEq>(context, &FID), ops: &raw const OPS };
    // SAFETY: the caller's promise.
    unsafe { open_object(out, fid, Arc::new(queue)) }
}

/// # Safety
/// See the rules of `exports`.
unsafe fn read_event(
    queue: &EventQueue,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> Result<usize, Errno> {
    if buf.is_null() && len > 0 {
        return Err(INVALID);
    }
    if event.is_null() || !event.is_aligned() {
        return Err(INVALID);
    }
    // Once: between two reads, another thread could take the event.
    let first = queue.read(len, flags & f::PEEK != 0)?;
    // SAFETY: the caller's promise; the queue returns no more than `len` bytes.
    unsafe {
        event.write(first.number);
        std::ptr::copy_nonoverlapping(first.bytes.as_ptr(), buf.cast::<u8>(), first.bytes.len());
    }
    Ok(first.bytes.len())
}

unsafe extern "C" fn read(queue: *mut FidEq, event: *mut u32, buf: *mut c_void, len: usize, flags: u64) -> isize {
    // SAFETY: the rules of `exports`.
    length(|| unsafe { read_event(inner(queue)?, event, buf, len, flags) })
}

unsafe extern "C" fn sread(
    queue: *mut FidEq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    milliseconds: c_int,
    flags: u64,
) -> isize {
    length(|| {
        // SAFETY: the rules of `exports`; so is the next one.
        let queue = unsafe { inner(queue) }?;
        let start = Instant::now();
        loop {
            // SAFETY: as above.
            match unsafe { read_event(queue, event, buf, len, flags) } {
                Err(AGAIN) => {}
                answer => return answer,
            }
            if timeout(milliseconds).is_some_and(|timeout| start.elapsed() >= timeout) {
                return Err(AGAIN);
            }
            std::thread::yield_now();
        }
    })
}

/// There are no failed events.
unsafe extern "C" fn readerr(queue: *mut FidEq, _: *mut c_void, _: u64) -> isize {
    // SAFETY: the rules of `exports`.
    length(|| unsafe { inner(queue) }.and(Err(AGAIN)))
}

unsafe extern "C" fn write_event(queue: *mut FidEq, number: u32, buf: *const c_void, len: usize, flags: u64) -> isize {
    length(|| {
        // SAFETY: the rules of `exports`; so is the next one.
        let queue = unsafe { inner(queue) }?;
        if flags != 0 || len > size_of::<EqEntry>() || (buf.is_null() && len > 0) {
            return Err(INVALID);
        }
        let bytes = match len {
            0 => Vec::new(),
            // SAFETY: as above.
            _ => unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len) }.to_vec(),
        };
        queue.write(Event { number, bytes });
        Ok(len)
    })
}

unsafe extern "C" fn strerror(
    _: *mut FidEq,
    number: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = crate::failure::explain(number);
    // SAFETY: the rules of `exports`.
    unsafe { super::write_text(text, buf, len) };
    text.as_ptr()
}
