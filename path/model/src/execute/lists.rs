//! Gather Reduce, Gather Copy, Scatter Copy and Scatter Fill. Source: SPEC §8.3.22 to §8.3.25.

use super::{Counted, End, Ended, OperandSpaces, Pages, Scratch, Stop, arrays, copy, index};
use crate::arrays::{BufferList, GatherReduce, ListTransfer, Transfer};
use crate::operand::Domain;
use telpher_abi::{ComputeResult, OperandId, Status};
use telpher_mem::WriteHint;

/// Bytes of a list that are read at a time.
const LIST_BYTES: usize = 512;

/// The entries of a list, read in parts.
struct Entries<'l> {
    list: &'l BufferList,
    part: [u8; LIST_BYTES],
    /// First entry of the part, and the entries in it.
    first: u64,
    count: u64,
    /// The fault that ended the part.
    stop: Option<Stop>,
}

impl<'l> Entries<'l> {
    fn new(list: &'l BufferList) -> Self {
        Entries { list, part: [0; LIST_BYTES], first: 0, count: 0, stop: None }
    }

    /// Returns the address of the buffer of an entry. Entries are asked for in their order.
    fn buffer(&mut self, pages: &mut Pages<'_>, entry: u64) -> Result<u64, Stop> {
        let bytes = u64::from(self.list.format.entry_bytes());
        if entry >= self.first + self.count {
            if let Some(stop) = self.stop.take() {
                return Err(stop);
            }
            let part = &mut self.part[..index((self.list.entries - entry).min(LIST_BYTES as u64 / bytes) * bytes)];
            let read = pages.read(self.list.address.wrapping_add(entry * bytes), part);
            (self.first, self.count) = (entry, part.len() as u64 / bytes);
            if let Err((valid, stop)) = read {
                self.count = valid as u64 / bytes;
                self.stop = Some(stop);
                return self.buffer(pages, entry);
            }
        }
        let at = index((entry - self.first) * bytes);
        let entry = &self.part[at..at + index(bytes)];
        Ok(telpher_ops::sgl::address(self.list.format, self.list.base, entry, self.list.buffer_bytes))
    }
}

/// Adds the number of entries that are done.
fn with_entries(end: End, entries: u64) -> End {
    // Cannot lose bits: the number of entries has 16.
    let entries = u16::try_from(entries).unwrap_or(u16::MAX);
    end.map_record(|record| record.with_sgl_entries_done(entries))
}

pub(super) fn gather_reduce(
    spaces: &OperandSpaces<'_>,
    block: bool,
    scratch: &mut Scratch,
    gather: &GatherReduce,
) -> Counted {
    let mut pages = [spaces.pages(Domain::Own, block)];
    let end = reduce(&mut pages[0], scratch, gather);
    Counted::of(end, &pages)
}

/// Bytes completed are always 0: after a fault the operation starts again.
fn reduce(pages: &mut Pages<'_>, scratch: &mut Scratch, gather: &GatherReduce) -> Ended {
    let arithmetic = &gather.arithmetic;
    let mut entries = Entries::new(&gather.list);
    let source = &mut scratch.a[..index(gather.list.buffer_bytes)];
    let result = &mut scratch.b[..index(gather.elements * u64::from(arithmetic.output.bytes()))];
    let mut seen = ComputeResult::empty();
    for entry in 0..gather.list.entries {
        let buffer = entries
            .buffer(pages, entry)
            .map_err(|stop| with_entries(stop.after(0, OperandId::ScatterGatherList), entry))?;
        if !buffer.is_multiple_of(arithmetic.input.bytes().into()) {
            return Ok(with_entries(End::of(Status::AddressAlignment), entry));
        }
        pages.read(buffer, source).map_err(|(_, stop)| with_entries(stop.after(0, OperandId::Source1), entry))?;
        seen |= if entry == 0 {
            telpher_ops::convert(arithmetic, source, result)
        } else {
            telpher_ops::fold(arithmetic, gather.compute, source, result)
        };
    }
    pages
        .write(gather.dst, result, gather.hint)
        .map_err(|(_, stop)| with_entries(stop.after(0, OperandId::Destination1), gather.list.entries))?;
    Ok(arrays::finished(seen, gather.check_result))
}

pub(super) fn transfer(
    spaces: &OperandSpaces<'_>,
    block: bool,
    scratch: &mut Scratch,
    transfer: &ListTransfer,
) -> Counted {
    let range = match transfer.transfer {
        Transfer::Gather(operand) | Transfer::Scatter(operand) => operand.domain,
        Transfer::Fill(_) => Domain::Own,
    };
    let mut pages =
        [spaces.pages(Domain::Own, block), spaces.pages(transfer.buffers, block), spaces.pages(range, block)];
    let end = run(&mut pages, scratch, transfer);
    Counted::of(end, &pages)
}

/// Bytes completed may include a part of the buffer after the entries that are done; doing it again is harmless.
fn run([own, buffers, range]: &mut [Pages<'_>; 3], scratch: &mut Scratch, transfer: &ListTransfer) -> Ended {
    let len = transfer.list.buffer_bytes;
    let mut entries = Entries::new(&transfer.list);
    for entry in 0..transfer.list.entries {
        let before = entry * len;
        let partial = |stop: Stop, bytes: u64, operand| with_entries(stop.after(before + bytes, operand), entry);
        let buffer = entries.buffer(own, entry).map_err(|stop| partial(stop, 0, OperandId::ScatterGatherList))?;
        let writes = !matches!(transfer.transfer, Transfer::Gather(_));
        let buffer = match buffers.window {
            None => buffer,
            Some(window) => match window.locate(buffer, len, writes) {
                Ok(address) => address,
                Err(status) => {
                    let end = End::of(status).map_record(|record| record.with_fault_handle(window.handle));
                    return Ok(with_entries(end, entry));
                }
            },
        };
        let moved = match transfer.transfer {
            Transfer::Gather(dst) => {
                let to = dst.address.wrapping_add(before);
                copy_buffer(buffers, range, scratch, [buffer, to], (len, transfer.hint))
            }
            Transfer::Scatter(src) => {
                let from = src.address.wrapping_add(before);
                copy_buffer(range, buffers, scratch, [from, buffer], (len, transfer.hint))
            }
            Transfer::Fill(pattern) => copy::fill_part(buffers, buffer, [pattern; 2], len, transfer.hint)
                .map_err(|(bytes, stop)| (bytes, stop, OperandId::Destination1)),
        };
        moved.map_err(|(bytes, stop, operand)| partial(stop, bytes, operand))?;
    }
    Ok(End::success())
}

/// Copies one buffer through the runner's buffer. An error includes the bytes copied.
fn copy_buffer(
    from: &mut Pages<'_>,
    to: &mut Pages<'_>,
    scratch: &mut Scratch,
    [src, dst]: [u64; 2],
    (len, hint): (u64, WriteHint),
) -> Result<(), (u64, Stop, OperandId)> {
    let mut done = 0;
    while done < len {
        let piece = &mut scratch.a[..index((len - done).min(super::SCRATCH as u64))];
        let (valid, stopped) = match from.read(src.wrapping_add(done), piece) {
            Ok(()) => (piece.len(), None),
            Err((valid, stop)) => (valid, Some(stop)),
        };
        to.write(dst.wrapping_add(done), &piece[..valid], hint)
            .map_err(|(written, stop)| (done + written as u64, stop, OperandId::Destination1))?;
        done += valid as u64;
        if let Some(stop) = stopped {
            return Err((done, stop, OperandId::Source1));
        }
    }
    Ok(())
}
