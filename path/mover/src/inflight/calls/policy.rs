//! The settings of memory calls, and the functions that their caller provides.

use crate::api::policy::Hint;
use crate::wait::Wait;
use std::fmt::{Arguments, Write};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The CPU's part of a memory call. The caller provides these functions, so that a bad address faults in the caller's
/// own code, on the stack of the thread that called.
///
/// They may be called in every place where a memory call is made, for example in a signal handler.
#[derive(Clone, Copy, Debug)]
pub struct CpuCalls {
    /// Copies `len` bytes from `src` to `dst` as memmove does: right for ranges that overlap.
    pub copy: unsafe fn(dst: *mut u8, src: *const u8, len: usize),
    /// Sets `len` bytes at `dst` to `byte`.
    pub fill: unsafe fn(dst: *mut u8, byte: u8, len: usize),
    /// Returns the offset of the first byte in which two ranges of `len` bytes differ.
    pub compare: unsafe fn(a: *const u8, b: *const u8, len: usize) -> Option<usize>,
}

/// The settings of memory calls. The functions in it must not make memory calls.
#[derive(Clone, Copy, Debug)]
pub struct MemoryCallsPolicy {
    /// Where results are written: cache or memory.
    pub hint: Hint,
    /// Whether the queues nearest to the calling thread's CPU are asked first. It matters only if the devices are on
    /// several NUMA nodes. The node of the memory does not count: to learn it takes a system call for each call.
    pub nearest: bool,
    /// How a thread waits for a record. `Sleep` and `Predicted` yield instead of sleeping, because a sleep may change
    /// errno.
    pub wait: Wait,
    /// The smallest transfer in bytes that is worth a descriptor. After a page fault, the CPU does the rest if it is
    /// shorter than twice this. It applies to no whole call: the caller decides which calls to make.
    pub threshold: u64,
    /// How often one piece is submitted again after page faults, before the CPU does its rest.
    pub resubmissions: u32,
    /// How long a record may be missing before its queue is asked whether it still works, and then again each time.
    pub patience: Duration,
    /// How long a record may be missing before its queue is given up. If the portal cannot guarantee that nothing
    /// touches memory any more, `give_up` is called.
    pub fatal: Duration,
    /// Makes `len` bytes from this address present after a page fault: for writes if the flag is true, otherwise for
    /// reads. Returns false if that failed; then the CPU does the rest of the piece. The default always returns false.
    pub populate: fn(address: *mut u8, len: usize, write: bool) -> bool,
    /// Called once for each queue, by its name, when a record is late and the queue reports that it works. The default
    /// writes a message to standard error.
    pub late: fn(queue: &str),
    /// Ends the process, or at least the thread for ever: memory may still be written, or its content is lost. The
    /// default writes the message to standard error and aborts.
    pub give_up: fn(message: Arguments<'_>) -> !,
}

impl MemoryCallsPolicy {
    /// The default of [`threshold`](MemoryCallsPolicy::threshold), and the length in bytes from which callers offload
    /// calls unless their user says otherwise.
    ///
    /// Source: a copy of cold data by one core takes as long as by a DSA from 8 to 16 KiB on. A core copies 16 KiB of
    /// uncached data in 1.75 µs (measured on an AMD EPYC virtual machine), a device in 1.37 µs (README of Intel's DTO).
    pub const THRESHOLD: u64 = 16 << 10;

    /// Offers of a piece before the queues count as full: the first, and one more. Source: chosen; to wait for room in
    /// a full queue takes longer than the CPU's copy.
    pub const OFFERS: u32 = 2;
}

impl Default for MemoryCallsPolicy {
    fn default() -> Self {
        MemoryCallsPolicy {
            hint: Hint::default(),
            nearest: true,
            wait: Wait::default(),
            threshold: MemoryCallsPolicy::THRESHOLD,
            resubmissions: DEFAULT_RESUBMISSIONS,
            patience: DEFAULT_PATIENCE,
            fatal: DEFAULT_FATAL,
            populate: |_, _, _| false,
            late: |queue| write_message(format_args!("{queue} is late with a completion record; still waiting")),
            give_up: |message| {
                write_message(message);
                std::process::abort()
            },
        }
    }
}

/// Source: assumed; a page that was populated twice and still faults is not reachable for the device.
const DEFAULT_RESUBMISSIONS: u32 = 3;

/// Source: assumed; a program that waits in memmove for longer than this has a problem.
const DEFAULT_PATIENCE: Duration = Duration::from_millis(100);

/// Source: assumed; long enough for a queue that other programs keep busy.
const DEFAULT_FATAL: Duration = Duration::from_secs(10);

/// Writes a line to standard error without a lock, an allocation or a change of errno.
fn write_message(message: Arguments<'_>) {
    let mut line = Line { bytes: [0; 256], len: 0 };
    // A message that is too long is cut off.
    let _ = line.write_fmt(format_args!("telpher: {message}"));
    line.bytes[line.len] = b'\n';
    // SAFETY: the number of standard error. The C library uses it in the same way, and a write to a closed one fails.
    let standard_error = unsafe { BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(standard_error, &line.bytes[..=line.len]);
}

/// A message in memory of its own.
struct Line {
    bytes: [u8; 256],
    /// Bytes used; the last byte stays free for the line's end.
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..255];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
