//! A thread that executes the requests of files with one io_uring.
//!
//! ```text
//! start: tasks ─► Queue ─► the thread: one call for all operations of a burst ─► kernel ─► Loops: answers
//! ```
//!
//! The thread sleeps in io_uring_enter until an operation ends or the first task of a burst comes. Tasks beyond
//! [`MOST_OPERATIONS`] wait in the queue.

use super::buffer::SpareMemory;
use super::contents::{Admitted, DEALLOCATE, ZERO_MODES, ZEROES, write_status};
use super::queue::{Queue, Taken, Task};
use super::ring::{Ended, Operation, Ring, Waker};
use crate::engine::{JobId, Segment, Segments};
use crate::loops::Loops;
use crate::status::Status;
use crate::storage::{StorageRequest, StorageResult};
use rustix::fs::FallocateFlags;
use std::io::{self, ErrorKind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use telpher_os::spawn_unsignalled;

/// Starts the thread. It ends when the queue is stopped and empty, and it has answered all requests.
///
/// # Errors
/// The kernel refuses the thread or the io_uring.
pub(super) fn start(queue: &Arc<Queue>, loops: &Arc<Loops>) -> io::Result<(JoinHandle<()>, Waker)> {
    let (queue, loops) = (Arc::clone(queue), Arc::clone(loops));
    let (created, result) = mpsc::channel();
    let thread = spawn_unsignalled("nvmf-uring", move || {
        // Only the thread that creates a ring may use it.
        match Ring::new() {
            Ok(ring) => {
                let _ = created.send(Ok(ring.waker()));
                run(ring, &queue, &loops);
            }
            Err(error) => {
                let _ = created.send(Err(error));
            }
        }
    })?;
    match result.recv() {
        Ok(Ok(waker)) => Ok((thread, waker)),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => Err(io::Error::other("the thread of the io_uring ended")),
    }
}

fn run(mut ring: Ring<Running>, queue: &Queue, loops: &Loops) {
    let (mut tasks, mut ended) = (Vec::new(), Vec::new());
    let mut spare = SpareMemory::default();
    loop {
        let taken = queue.take(ring.room(), &mut tasks);
        for Task { admitted, id, request } in tasks.drain(..) {
            let next = begin(&admitted, request, &mut spare);
            go_on(&mut ring, loops, admitted, id, next);
        }
        match taken {
            // Some requests needed no operation.
            Taken::Some if ring.room() > 0 => continue,
            Taken::Ended if ring.is_idle() => return,
            _ => ring.wait(),
        }
        ring.take_ended(&mut ended);
        for Ended { operation, context, result } in ended.drain(..) {
            let Running { admitted, id, step } = context;
            let next = advance(&admitted, operation, step, result, &mut spare);
            go_on(&mut ring, loops, admitted, id, next);
        }
    }
}

/// A request of which the kernel executes an operation.
struct Running {
    admitted: Admitted,
    id: JobId,
    step: Step,
}

/// The operation of a request that the kernel executes, and what must be known afterwards.
enum Step {
    /// The read of the bytes that are left.
    Read,
    /// The write of the bytes that are left.
    Write,
    /// The last operation of a request, or its only one.
    Flush,
    /// Write Zeroes by fallocate.
    Zero {
        zeroes: Zeroes,
        /// The modes that were not tried.
        modes: &'static [FallocateFlags],
    },
    /// Write Zeroes by a write of the first bytes.
    WriteZeroes(Zeroes),
    /// A range of Deallocate.
    Deallocate {
        /// The ranges after it.
        ranges: std::vec::IntoIter<(u64, u64)>,
    },
}

/// The bytes that are still to be zeroed.
struct Zeroes {
    start: u64,
    end: u64,
    force: bool,
}

/// What a request does next.
enum Next {
    Start(Operation, Step),
    Answer(StorageResult),
}

fn go_on(ring: &mut Ring<Running>, loops: &Loops, admitted: Admitted, id: JobId, next: Next) {
    match next {
        Next::Start(operation, step) => {
            let file = Arc::clone(admitted.file());
            ring.start(file, operation, Running { admitted, id, step });
        }
        Next::Answer(result) => {
            drop(admitted);
            loops.answer(id, result);
        }
    }
}

/// The first operation of a request.
fn begin(admitted: &Admitted, request: StorageRequest, spare: &mut SpareMemory) -> Next {
    match request {
        StorageRequest::Read { start: position, len } => {
            let Ok(len) = usize::try_from(len) else { return Next::Answer(Err(Status::INTERNAL_ERROR)) };
            Next::Start(Operation::Read { buffer: admitted.buffer(len), position }, Step::Read)
        }
        StorageRequest::Write { start: position, pieces, force: is_durable } => {
            let data = admitted.gather(pieces, spare);
            Next::Start(Operation::Write { data, position, is_durable }, Step::Write)
        }
        StorageRequest::Flush => flush(),
        StorageRequest::WriteZeroes { start, len: 0, force } => zeroed(&Zeroes { start, end: start, force }),
        StorageRequest::WriteZeroes { start, len, force } => {
            zero(admitted, Zeroes { start, end: start + len, force }, &ZERO_MODES)
        }
        StorageRequest::Deallocate { ranges } => deallocate(ranges.into_iter()),
    }
}

/// The next operation of a request after one has ended.
fn advance(
    admitted: &Admitted,
    operation: Operation,
    step: Step,
    result: io::Result<usize>,
    spare: &mut SpareMemory,
) -> Next {
    if let Err(error) = &result
        && matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock)
    {
        return Next::Start(operation, step);
    }
    match (step, operation) {
        (Step::Read, Operation::Read { buffer, position }) => match result {
            Ok(_) if buffer.missing() == 0 => Next::Answer(Ok(Segments::from([buffer.into_segment()]))),
            // The file ends here: it was cut.
            Ok(0) | Err(_) => Next::Answer(Err(Status::READ_ERROR)),
            Ok(count) => Next::Start(Operation::Read { buffer, position: position + count as u64 }, Step::Read),
        },
        (Step::Write, Operation::Write { data, position, is_durable }) => match result {
            Ok(count) if count == data.len() => {
                spare.keep(data);
                done()
            }
            Ok(0) => Next::Answer(Err(Status::WRITE_FAULT)),
            Ok(count) => {
                let range = data.range().start + count..data.range().end;
                let data = data.with_range(range);
                Next::Start(Operation::Write { data, position: position + count as u64, is_durable }, Step::Write)
            }
            Err(error) => Next::Answer(Err(write_status(&error))),
        },
        (Step::Zero { zeroes, .. }, _) if result.is_ok() => zeroed(&zeroes),
        (Step::Zero { zeroes, modes }, _) => zero(admitted, zeroes, modes),
        (Step::WriteZeroes(mut zeroes), Operation::Write { data, .. }) => match result {
            Ok(0) => Next::Answer(Err(Status::WRITE_FAULT)),
            Ok(count) => {
                zeroes.start += count as u64;
                write_zeroes(data, zeroes)
            }
            Err(error) => Next::Answer(Err(write_status(&error))),
        },
        // It is a hint: a file system that cannot make holes keeps the blocks.
        (Step::Deallocate { ranges }, _) => deallocate(ranges),
        (_, _) => match result {
            Ok(_) => done(),
            Err(error) => Next::Answer(Err(write_status(&error))),
        },
    }
}

fn done() -> Next {
    Next::Answer(Ok(Segments::new()))
}

fn flush() -> Next {
    Next::Start(Operation::Sync, Step::Flush)
}

fn zeroed(zeroes: &Zeroes) -> Next {
    if zeroes.force { flush() } else { done() }
}

fn zero(admitted: &Admitted, zeroes: Zeroes, modes: &'static [FallocateFlags]) -> Next {
    let Some((&mode, modes)) = modes.split_first() else {
        return write_zeroes(admitted.zeroes(), zeroes);
    };
    let operation = Operation::Fallocate { mode, start: zeroes.start, len: zeroes.end - zeroes.start };
    Next::Start(operation, Step::Zero { zeroes, modes })
}

/// Writes as many zeroes of `data` as are needed.
fn write_zeroes(data: Segment, zeroes: Zeroes) -> Next {
    let left = zeroes.end - zeroes.start;
    if left == 0 {
        return zeroed(&zeroes);
    }
    let start = data.range().start;
    let data = data.with_range(start..start + usize::try_from(left).unwrap_or(usize::MAX).min(ZEROES));
    let position = zeroes.start;
    Next::Start(Operation::Write { data, position, is_durable: false }, Step::WriteZeroes(zeroes))
}

fn deallocate(mut ranges: std::vec::IntoIter<(u64, u64)>) -> Next {
    let Some((start, len)) = ranges.next() else { return done() };
    Next::Start(Operation::Fallocate { mode: DEALLOCATE, start, len }, Step::Deallocate { ranges })
}

#[cfg(test)]
mod tests;
