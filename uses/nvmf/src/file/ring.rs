//! Operations that the kernel executes in an io_uring, with the buffers that it reads and writes.
//!
//! The ring owns the buffers and the file of each operation until the kernel has reported its end, also when the ring
//! is dropped. So the kernel never accesses memory that was freed.
#![allow(unsafe_code, reason = "entries name memory of this process by address")]

use super::buffer::Buffer;
use crate::engine::Segment;
use io_uring::opcode::{Fallocate, Fsync, Read, Write};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, squeue};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The most operations at a time. With the read of the wake-up event they fit into a ring of 256 entries.
pub(super) const MOST_OPERATIONS: usize = 255;

/// The most bytes of one read or write. Source: read(2) and write(2) transfer at most 2 GiB less one page.
const MOST_BYTES: usize = 1 << 30;

/// The number of the read of the wake-up event; operations have smaller ones.
const WAKE: u64 = u64::MAX;

/// What the kernel is to do.
#[derive(Debug)]
pub(super) enum Operation {
    /// Reads from `position` the bytes that the buffer lacks; after the end of the operation, it has those that came.
    Read { buffer: Buffer, position: u64 },
    /// Writes the segment from `position`; if `is_durable`, it survives a crash of the machine afterwards (RWF_DSYNC).
    Write { data: Segment, position: u64, is_durable: bool },
    /// Calls fdatasync.
    Sync,
    /// Calls fallocate.
    Fallocate { mode: FallocateFlags, start: u64, len: u64 },
}

/// An operation that has ended, with the context of its owner.
#[derive(Debug)]
pub(super) struct Ended<C> {
    /// What was done; the kernel does not use the buffers any more.
    pub(super) operation: Operation,
    /// The context.
    pub(super) context: C,
    /// The number of bytes read or written, or the kernel's error.
    pub(super) result: io::Result<usize>,
}

/// What belongs to an operation in the kernel.
struct InFlight<C> {
    file: Arc<File>,
    operation: Operation,
    context: C,
}

/// Wakes the thread that waits in [`Ring::wait`].
#[derive(Clone, Debug)]
pub(super) struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the current or the next [`Ring::wait`].
    pub(super) fn wake(&self) {
        // It fails only if the counter is full; then the event is set anyway.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// An io_uring for one thread.
pub(super) struct Ring<C> {
    ring: IoUring,
    /// Operations by their numbers. The kernel may access the memory of those that are present.
    in_flight: Vec<Option<InFlight<C>>>,
    free: Vec<usize>,
    waker: Waker,
    /// The counter of the wake-up event, which the kernel writes while `is_wake_armed`.
    wake_counter: Vec<u8>,
    is_wake_armed: bool,
}

impl<C> Ring<C> {
    /// Creates the ring. The thread that creates it must use it.
    ///
    /// # Errors
    /// The kernel has no io_uring, or refuses it to this process, or lacks an operation.
    pub(super) fn new() -> io::Result<Ring<C>> {
        let entries = u32::try_from(MOST_OPERATIONS + 1).expect("a small number");
        let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = match modern {
            // Both flags are known since Linux 6.1.
            Err(error) if error.kind() == ErrorKind::InvalidInput => IoUring::new(entries)?,
            other => other?,
        };
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if ![Read::CODE, Write::CODE, Fsync::CODE, Fallocate::CODE].iter().all(|&code| probe.is_supported(code)) {
            return Err(ErrorKind::Unsupported.into());
        }
        let waker = Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?));
        let in_flight = (0..MOST_OPERATIONS).map(|_| None).collect();
        let free = (0..MOST_OPERATIONS).rev().collect();
        Ok(Ring { ring, in_flight, free, waker, wake_counter: vec![0; 8], is_wake_armed: false })
    }

    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The number of operations that may be started now.
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == MOST_OPERATIONS
    }

    /// Prepares an operation; [`Ring::wait`] hands all prepared ones to the kernel. There must be room.
    pub(super) fn start(&mut self, file: Arc<File>, operation: Operation, context: C) {
        let number = self.free.pop().expect("the caller has seen that there is room");
        let new = self.in_flight[number].insert(InFlight { file, operation, context });
        let fd = Fd(new.file.as_raw_fd());
        let entry = match &mut new.operation {
            Operation::Read { buffer, position } => {
                let into = buffer.unfilled();
                Read::new(fd, into.as_mut_ptr().cast(), most(into.len())).offset(*position).build()
            }
            Operation::Write { data, position, is_durable } => {
                let from = data.as_slice();
                let flags = if *is_durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
                let write = Write::new(fd, from.as_ptr(), most(from.len())).offset(*position);
                write.rw_flags(flags.bits().cast_signed()).build()
            }
            Operation::Sync => Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Operation::Fallocate { mode, start, len } => {
                Fallocate::new(fd, *len).offset(*start).mode(mode.bits().cast_signed()).build()
            }
        };
        // SAFETY: the file and the buffers are in `in_flight`, which gives them back only after the kernel has reported
        // the end of this operation; `drop` waits for it. Nothing else accesses them until then, except readers of a
        // shared segment, which the kernel only reads, too. The bytes of a Vec stay where they are when it moves.
        unsafe { self.push(&entry.user_data(number as u64)) }
    }

    /// Hands the prepared operations to the kernel, and waits until one ends or [`Waker::wake`] is called.
    pub(super) fn wait(&mut self) {
        if !self.is_wake_armed {
            self.is_wake_armed = true;
            let into = self.wake_counter.as_mut_ptr();
            let entry = Read::new(Fd(self.waker.0.as_raw_fd()), into, 8).build().user_data(WAKE);
            // SAFETY: the counter and the event belong to this value, whose `drop` waits for the end of this read, and
            // nothing else accesses the counter.
            unsafe { self.push(&entry) }
        }
        if let Err(error) = self.ring.submit_and_wait(1)
            && error.kind() != ErrorKind::Interrupted
        {
            // The kernel lacks memory. The entries stay in the queue, and the next call hands them over.
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Appends the operations that have ended.
    pub(super) fn take_ended(&mut self, ended: &mut Vec<Ended<C>>) {
        for entry in self.ring.completion() {
            if entry.user_data() == WAKE {
                self.is_wake_armed = false;
                continue;
            }
            let number = usize::try_from(entry.user_data()).expect("64-bit system");
            let InFlight { mut operation, context, .. } =
                self.in_flight[number].take().expect("the kernel reports each operation once");
            self.free.push(number);
            let result = usize::try_from(entry.result());
            let result = result.map_err(|_| io::Error::from_raw_os_error(-entry.result()));
            if let (Operation::Read { buffer, .. }, Ok(count)) = (&mut operation, &result) {
                // SAFETY: the kernel has written this many bytes from the address that `start` gave it: that of the
                // first unfilled byte, which has not changed since.
                unsafe { buffer.add_filled(*count) }
            }
            ended.push(Ended { operation, context, result });
        }
    }

    /// # Safety
    /// The memory and the file that the entry names stay valid until the kernel reports its end.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: as this function's caller promises.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the ring has an entry for each operation and for the wake-up event");
    }
}

impl<C> Drop for Ring<C> {
    /// Waits for the operations in the kernel.
    fn drop(&mut self) {
        let mut ended = Vec::new();
        while !self.is_idle() || self.is_wake_armed {
            if self.is_idle() {
                self.waker.wake();
            }
            self.wait();
            self.take_ended(&mut ended);
        }
    }
}

fn most(len: usize) -> u32 {
    u32::try_from(len.min(MOST_BYTES)).expect("at most a GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    /// A ring, unless the kernel refuses it; the tests of `tests/server/file` report that.
    fn ring() -> Option<Ring<u32>> {
        Ring::new().ok()
    }

    fn read(len: usize) -> Operation {
        Operation::Read { buffer: Buffer::new(len, 512), position: 0 }
    }

    #[test]
    fn a_ring_takes_255_operations_and_reports_each_once() {
        let Some(mut ring) = ring() else { return };
        let file = Arc::new(File::open("/dev/zero").unwrap());
        for context in 0..255 {
            assert_eq!(ring.room(), 255 - usize::try_from(context).unwrap());
            ring.start(Arc::clone(&file), read(4096), context);
        }
        assert_eq!(ring.room(), 0);
        let (mut ended, mut seen) = (Vec::new(), [false; 255]);
        while !ring.is_idle() {
            ring.wait();
            ring.take_ended(&mut ended);
            for Ended { operation, context, result } in ended.drain(..) {
                assert!(!std::mem::replace(&mut seen[usize::try_from(context).unwrap()], true));
                assert_eq!(result.unwrap(), 4096);
                let Operation::Read { buffer, .. } = operation else { panic!("{operation:?}") };
                assert_eq!(buffer.into_segment().as_slice(), [0; 4096]);
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    #[test]
    fn waking_ends_one_wait_before_it_begins_or_during_it() {
        let Some(mut ring) = ring() else { return };
        let waker = ring.waker();
        let (next, round) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            for () in round {
                waker.wake();
            }
        });
        ring.waker().wake();
        ring.wait();
        ring.take_ended(&mut Vec::new());
        for _ in 0..100 {
            next.send(()).unwrap();
            ring.wait();
            ring.take_ended(&mut Vec::new());
        }
        drop(next);
        thread.join().unwrap();
        assert!(ring.is_idle());
    }

    #[test]
    fn a_dropped_ring_waits_for_the_operations_that_use_its_buffers() {
        let Some(mut ring) = ring() else { return };
        let (source, mut sink) = std::io::pipe().unwrap();
        let has_written = Arc::new(AtomicBool::new(false));
        ring.start(Arc::new(File::from(OwnedFd::from(source))), read(4096), 1);
        // The kernel has the read and waits for bytes.
        ring.waker().wake();
        ring.wait();
        ring.take_ended(&mut Vec::new());
        assert!(!ring.is_idle());
        let (begin, begun) = mpsc::channel::<()>();
        let flag = Arc::clone(&has_written);
        let thread = std::thread::spawn(move || {
            begun.recv().unwrap();
            // Both orderings pair with the system calls that write to and read from the pipe.
            flag.store(true, Ordering::SeqCst);
            sink.write_all(&[7; 4096]).unwrap();
        });
        begin.send(()).unwrap();
        drop(ring);
        assert!(has_written.load(Ordering::SeqCst), "the drop has waited for the read");
        thread.join().unwrap();
    }
}
