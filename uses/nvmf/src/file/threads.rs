//! Threads that execute the requests of files with pread, pwritev2, fdatasync and fallocate.

use super::buffer::SpareMemory;
use super::contents::{Admitted, DEALLOCATE, ZERO_MODES, ZEROES, write_status};
use super::queue::{Queue, Task};
use crate::engine::Segments;
use crate::loops::Loops;
use crate::status::Status;
use crate::storage::{StorageRequest, StorageResult};
use rustix::fs::fallocate;
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::thread::JoinHandle;
use telpher_os::spawn_unsignalled;

/// Starts the thread with this number. It ends when the queue is stopped and empty.
pub(super) fn start(number: usize, queue: &Arc<Queue>, loops: &Arc<Loops>) -> io::Result<JoinHandle<()>> {
    let (queue, loops) = (Arc::clone(queue), Arc::clone(loops));
    spawn_unsignalled(&format!("nvmf-file-{number}"), move || {
        let mut spare = SpareMemory::default();
        while let Some(Task { admitted, id, request }) = queue.wait() {
            let result = execute(&admitted, request, &mut spare);
            drop(admitted);
            loops.answer(id, result);
        }
    })
}

fn execute(admitted: &Admitted, request: StorageRequest, spare: &mut SpareMemory) -> StorageResult {
    let file = admitted.file();
    match request {
        StorageRequest::Read { start, len } => {
            let mut buffer = admitted.buffer(usize::try_from(len).map_err(|_| Status::INTERNAL_ERROR)?);
            buffer.read(file, start).map_err(|_| Status::READ_ERROR)?;
            return Ok(Segments::from([buffer.into_segment()]));
        }
        StorageRequest::Write { start, pieces, force } => {
            let data = admitted.gather(pieces, spare);
            let written = write_all(file, data.as_slice(), start, force);
            spare.keep(data);
            written.map_err(|error| write_status(&error))?;
        }
        StorageRequest::Flush => flush(file)?,
        StorageRequest::WriteZeroes { start, len, force } => {
            write_zeroes(admitted, start, len)?;
            if force {
                flush(file)?;
            }
        }
        StorageRequest::Deallocate { ranges } => {
            for (start, len) in ranges {
                // It is a hint: a file system that cannot make holes keeps the blocks.
                let _ = fallocate(file, DEALLOCATE, start, len);
            }
        }
    }
    Ok(Segments::new())
}

fn flush(file: &File) -> Result<(), Status> {
    file.sync_data().map_err(|error| write_status(&error))
}

/// Writes all bytes; if `is_durable`, they survive a crash of the machine afterwards.
fn write_all(file: &File, mut bytes: &[u8], mut position: u64, is_durable: bool) -> io::Result<()> {
    let flags = if is_durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    while !bytes.is_empty() {
        match pwritev2(file, &[IoSlice::new(bytes)], position, flags) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = &bytes[count..];
                position += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn write_zeroes(admitted: &Admitted, start: u64, len: u64) -> Result<(), Status> {
    // fallocate refuses a length of 0.
    if len == 0 || ZERO_MODES.iter().any(|&mode| fallocate(admitted.file(), mode, start, len).is_ok()) {
        return Ok(());
    }
    let zeroes = admitted.zeroes();
    let mut position = start;
    let end = start + len;
    while position < end {
        let part = usize::try_from(end - position).unwrap_or(usize::MAX).min(ZEROES);
        let written = write_all(admitted.file(), &zeroes.as_slice()[..part], position, false);
        written.map_err(|error| write_status(&error))?;
        position += part as u64;
    }
    Ok(())
}
