//! Where the bytes of a [`Remote`](super::Remote) come from: a process, or what a process has granted.

use super::vm::{Order, Process, in_page};
use crate::grant::{GrantError, GrantedMemory};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

#[derive(Debug)]
pub(super) enum Source {
    /// All memory of a process.
    Process(Process),
    /// A range of it, at its addresses there.
    Granted(GrantedMemory),
}

impl Source {
    /// As [`Process::read`].
    pub(super) fn read(&self, address: u64, into: &mut [u8], order: Order) -> usize {
        match self {
            Source::Process(process) => process.read(address, into, order),
            Source::Granted(memory) => {
                pieces(memory, address, into.len(), order, |at, part| memory.read(at, &mut into[part]))
            }
        }
    }

    /// As [`Process::write`].
    pub(super) fn write(&self, address: u64, from: &[u8], order: Order) -> usize {
        match self {
            Source::Process(process) => process.write(address, from, order),
            Source::Granted(memory) => {
                pieces(memory, address, from.len(), order, |at, part| memory.write(at, &from[part]))
            }
        }
    }

    /// As [`Process::write_first_byte_last`].
    pub(super) fn write_first_byte_last(&self, address: u64, from: &[u8; 32]) -> bool {
        match self {
            Source::Process(process) => process.write_first_byte_last(address, from),
            Source::Granted(memory) => {
                let at = address.wrapping_sub(memory.file().address());
                // All of it or nothing: the first byte is written last.
                memory.file().check(at, from.len() as u64, true).is_ok()
                    && memory.write(at.wrapping_add(1), &from[1..]).is_ok()
                    && memory.write(at, &from[..1]).is_ok()
            }
        }
    }

    /// As [`Process::pin_for_writing`]. Each access to granted memory brings its pages in.
    pub(super) fn pin_for_writing(&self, address: u64) {
        if let Source::Process(process) = self {
            process.pin_for_writing(address);
        }
    }

    /// As [`Process::is_writable`].
    pub(super) fn is_writable(&self, address: u64) -> bool {
        match self {
            Source::Process(process) => process.is_writable(address),
            Source::Granted(memory) => {
                memory.file().access().writes()
                    && memory.read(address.wrapping_sub(memory.file().address()), &mut [0]).is_ok()
            }
        }
    }

    /// As [`Process::pagemap`]; the pages of granted memory are not shown.
    pub(super) fn pagemap(&self) -> io::Result<OwnedFd> {
        match self {
            Source::Process(process) => process.pagemap(),
            Source::Granted(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Copies the part of a range that lies in granted memory, from the end that `order` starts with; returns how many
/// bytes were copied. `copy` takes an offset in the granted memory and the part of the range.
fn pieces(
    memory: &GrantedMemory,
    address: u64,
    len: usize,
    order: Order,
    mut copy: impl FnMut(u64, Range<usize>) -> Result<(), GrantError>,
) -> usize {
    let at = address.wrapping_sub(memory.file().address());
    if order == Order::Ascending {
        let inside = memory.file().len().checked_sub(at).filter(|&inside| inside > 0);
        let part = inside.map_or(0, |inside| len.min(usize::try_from(inside).unwrap_or(usize::MAX)));
        return match copy(at, 0..part) {
            Ok(()) => part,
            // At most `part`, which is a length.
            Err(GrantError::Gone { at: stopped }) => usize::try_from(stopped.wrapping_sub(at)).unwrap_or(0).min(part),
            Err(_) => 0,
        };
    }
    // Bytes in front of the granted memory.
    let outside = usize::try_from(memory.file().address().saturating_sub(address)).unwrap_or(usize::MAX);
    // Page by page from the top, so that nothing below a failure is written.
    let mut end = len;
    while end > outside {
        let last = in_page(address.wrapping_add(end as u64).wrapping_sub(1)) + 1;
        let part = end.saturating_sub(last).max(outside)..end;
        if copy(at.wrapping_add(part.start as u64), part.clone()).is_err() {
            break;
        }
        end = part.start;
    }
    len - end
}
