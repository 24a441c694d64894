//! The functions in front of the C library's: each counts its call, and has the C library execute it.
//!
//! A short call ends with a jump to the C library's function. One in 64 is timed instead. A call of 2 KiB or more is
//! recorded with its site, its ranges and its time.
//!
//! A thread with asynchronous cancellation may be unwound from each instruction. So none of these functions has
//! anything to drop, and none ends the process when it is unwound (`extern "C-unwind"`).
#![allow(unsafe_code, reason = "calls the C library's functions by address")]

use super::process::{self, Recorder};
use crate::gates;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use telpher_os::ticks_in_order as ticks;
use telpher_recording::{Call, Operation};

/// The address of a function that stands in front of the C library's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded(*mut c_void);

impl Recorded {
    /// Returns the address.
    pub(super) const fn address(self) -> *mut c_void {
        self.0
    }
}

/// Counts a short call, and returns whether it is to be timed. `None` if this thread has no table of its own: then
/// nothing is counted.
#[inline]
fn counted(operation: Operation, len: usize) -> Option<bool> {
    process::own_writer()?.count_own(operation, len)
}

/// Counts a short call of a thread that has no table of its own yet, or never. Returns true if it is to be timed.
fn counted_first(operation: Operation, len: usize) -> bool {
    process::writer(false).is_some_and(|writer| writer.count(operation, len))
}

/// Counts a call that is neither timed nor recorded with its site.
#[inline]
pub(super) fn count(operation: Operation, len: usize) {
    if counted(operation, len).is_none() {
        counted_first(operation, len);
    }
}

/// Executes a short call and records its time.
#[inline]
fn timed<T>(operation: Operation, len: usize, execute: impl FnOnce() -> T) -> T {
    let start = ticks();
    let result = execute();
    let time = ticks().wrapping_sub(start);
    if let Some(writer) = process::writer(false) {
        writer.time(operation, len, time);
    }
    result
}

/// Executes a call with a site and records it.
#[inline]
fn recorded<T>(call: &Call, execute: impl FnOnce() -> T) -> T {
    let Some(slot) = process::slot(true) else { return execute() };
    let (Some(writer), recorder) = (process::ready_writer(), process::recorder()) else { return execute() };
    let is_sampled = slot.samples();
    let check = (is_sampled || slot.affords_check()).then(FaultCheck::begin);
    let (mut start, mut end) = (None, None);
    let begun = writer.begin(call, || *start.insert(ticks()));
    let result = execute();
    // A signal handler may have forked meanwhile. Then this is the child: it has no recording, or one of its own, in
    // which this call has not begun.
    let (Some(writer), Some(recorder)) =
        (process::ready_writer(), process::recorder().filter(|now| is_same(now, recorder)))
    else {
        return result;
    };
    // The page faults are counted after the end, and most calls need neither.
    if check.is_some() {
        end = Some(ticks());
    }
    let faults = check.map(|check| check.end(slot));
    let is_first = writer.end(call, begun, || *end.get_or_insert_with(ticks), faults);
    if let (Some(start), Some(end)) = (start, end) {
        slot.note_copying(end.saturating_sub(start));
    }
    if is_first {
        recorder.note_site(call.return_address);
    }
    if is_sampled {
        recorder.note_time();
    }
    result
}

/// Counts the page faults of one call.
struct FaultCheck {
    before: u64,
    /// Ticks that the first half of the check took.
    took: u64,
}

impl FaultCheck {
    fn begin() -> FaultCheck {
        let start = ticks();
        let before = page_faults();
        FaultCheck { before, took: ticks().saturating_sub(start) }
    }

    /// Returns the page faults since the begin.
    fn end(self, slot: &process::Slot) -> u64 {
        let start = ticks();
        let faults = page_faults().saturating_sub(self.before);
        slot.note_check(self.took.saturating_add(ticks().saturating_sub(start)));
        faults
    }
}

fn is_same(now: &Recorder, before: Option<&Recorder>) -> bool {
    before.is_some_and(|before| std::ptr::eq(now, before))
}

/// Returns how many page faults without input this thread has had.
fn page_faults() -> u64 {
    // SAFETY: the structure is valid when all of its bytes are zero.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: writes into a local variable; the call cannot fail, so it leaves errno alone.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_minflt.cast_unsigned()
}

/// Defines the functions of one operation, for short and for long calls.
macro_rules! in_front_of {
    ($name:ident, $type:ty, $operation:ident, |$first:ident: $first_type:ty, $second:ident: $second_type:ty|
        -> $result:ty, [$destination:expr, $source:expr]) => {
        #[doc = concat!("In front of `", stringify!($operation), "`: the functions for short and for long calls.")]
        pub(super) const $name: [Recorded; 2] = {
            #[inline]
            unsafe fn original($first: $first_type, $second: $second_type, len: usize) -> $result {
                // SAFETY: the gate holds a function of this type; the program's own call.
                unsafe { transmute::<*mut c_void, $type>(gates::$name.original())($first, $second, len) }
            }
            /// Needs no stack, and ends with a jump, in nearly all calls.
            unsafe extern "C-unwind" fn short($first: $first_type, $second: $second_type, len: usize) -> $result {
                match counted(Operation::$operation, len) {
                    // SAFETY: the program's own call, here and in the other functions.
                    Some(false) => unsafe { original($first, $second, len) },
                    // SAFETY: as above.
                    Some(true) => unsafe { short_timed($first, $second, len) },
                    // SAFETY: as above.
                    None => unsafe { short_first($first, $second, len) },
                }
            }
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn short_timed($first: $first_type, $second: $second_type, len: usize) -> $result {
                // SAFETY: as in `short`.
                timed(Operation::$operation, len, || unsafe { original($first, $second, len) })
            }
            #[cold]
            #[inline(never)]
            unsafe extern "C-unwind" fn short_first($first: $first_type, $second: $second_type, len: usize) -> $result {
                if counted_first(Operation::$operation, len) {
                    // SAFETY: as in `short`.
                    return unsafe { short_timed($first, $second, len) };
                }
                // SAFETY: as in `short`.
                unsafe { original($first, $second, len) }
            }
            unsafe extern "C-unwind" fn long(
                $first: $first_type,
                $second: $second_type,
                len: usize,
                return_address: usize,
            ) -> $result {
                let (destination, source) = ($destination, $source);
                let call = Call { operation: Operation::$operation, destination, source, len, return_address };
                // SAFETY: as in `short`.
                recorded(&call, || unsafe { original($first, $second, len) })
            }
            [Recorded(short as *mut c_void), Recorded(long as *mut c_void)]
        };
    };
}

type Pointer = *mut c_void;
type Readable = *const c_void;

in_front_of!(COPY, gates::Move, Memcpy, |to: Pointer, from: Readable| -> Pointer, [to.addr(), from.addr()]);
in_front_of!(MOVE, gates::Move, Memmove, |to: Pointer, from: Readable| -> Pointer, [to.addr(), from.addr()]);
in_front_of!(MOVE_TO_END, gates::Move, Mempcpy, |to: Pointer, from: Readable| -> Pointer, [to.addr(), from.addr()]);
in_front_of!(FILL, gates::Fill, Memset, |to: Pointer, byte: c_int| -> Pointer, [to.addr(), 0]);
in_front_of!(COMPARE, gates::Compare, Memcmp, |a: Readable, b: Readable| -> c_int, [a.addr(), b.addr()]);
