//! A guest's memory as its function accesses it: each operation in pieces that lie in one map.
//!
//! A piece with a file is accessed through its mapping, by the guarded kernels. A piece without a file is accessed by
//! messages to the client, if these are in use; otherwise it faults.
#![allow(unsafe_code, reason = "accesses mapped files of clients by address, and vouches for guests' descriptors")]

use crate::dma::DmaMap;
use crate::messages::MessageAccess;
use telpher_abi::Descriptor;
use telpher_mem::{FOLDED_BYTES, Fault, Local, PAGE_BYTES, Space, WriteHint};
use telpher_model::AddressSpaces;
use telpher_portal::Submission;

/// Bytes that are moved at once where one side has no file. Source: chosen; below the most data of one message.
const CHUNK: u64 = 64 << 10;

/// The kernels that access mapped files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels(Local);

impl Kernels {
    pub(crate) fn new() -> Kernels {
        // SAFETY: the `Local` is used in this module only, with addresses inside the mappings of a `DmaMap` that the
        // using `GuestSpace` borrows. They are files of other processes: this one has no reference to their bytes and
        // promises their owner nothing. No code here replaces or blocks the fault signals.
        Kernels(unsafe { Local::new() })
    }
}

/// Vouches for a descriptor that a guest has submitted.
pub(crate) fn vouch(descriptor: Descriptor) -> Submission {
    // SAFETY: the descriptor is offered to a function's device only, whose address spaces are `GuestSpaces`. There its
    // addresses are a guest's, and reach nothing but mapped files of other processes.
    unsafe { Submission::vouch(descriptor) }
}

/// A guest's memory. Without maps, every access faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestSpace<'a> {
    map: Option<&'a DmaMap>,
    kernels: Kernels,
    messages: Option<MessageAccess<'a>>,
}

/// The address spaces of a function: its own requests have the guest's memory; no PASID has any.
#[derive(Debug)]
pub(crate) struct GuestSpaces<'a> {
    own: GuestSpace<'a>,
    none: GuestSpace<'a>,
}

impl<'a> GuestSpaces<'a> {
    /// `map` is `None` while the function may not access memory.
    pub(crate) fn new(map: Option<&'a DmaMap>, kernels: Kernels, messages: Option<MessageAccess<'a>>) -> Self {
        GuestSpaces {
            own: GuestSpace { map, kernels, messages },
            none: GuestSpace { map: None, kernels, messages: None },
        }
    }
}

impl AddressSpaces for GuestSpaces<'_> {
    fn space(&self, pasid: Option<u32>) -> &dyn Space {
        if pasid.is_none() { &self.own } else { &self.none }
    }
}

/// Where the bytes of a piece are.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At this address of this process.
    Host(u64),
    /// With the client, at this guest address.
    Client(u64),
}

/// The part of a range that lies in one map.
#[derive(Clone, Copy, Debug)]
struct Piece {
    place: Place,
    len: u64,
}

impl GuestSpace<'_> {
    /// The first piece of a range; `None` if its first byte cannot be accessed.
    #[inline]
    fn piece(&self, address: u64, len: u64, write: bool) -> Option<Piece> {
        let (start, range) = self.map?.range_of(address)?;
        let at = address - start;
        let place = self.place(start, &range, at, write)?;
        Some(Piece { place, len: len.min(range.len - at) })
    }

    /// The last piece of the range of `len` bytes before `end`; `None` if its last byte cannot be accessed.
    fn last_piece(&self, end: u64, len: u64, write: bool) -> Option<Piece> {
        let (start, range) = self.map?.range_of(end.checked_sub(1)?)?;
        let len = len.min(end - start);
        Some(Piece { place: self.place(start, &range, end - len - start, write)?, len })
    }

    fn place(&self, start: u64, range: &crate::dma::DmaRange, at: u64, write: bool) -> Option<Place> {
        let allowed = if write { range.write } else { range.read };
        match range.host {
            _ if !allowed => None,
            Some(host) => Some(Place::Host(host + at)),
            None => self.messages.map(|_| Place::Client(start + at)),
        }
    }

    /// Reads from one piece; returns how many bytes were read.
    fn get(&self, place: Place, into: &mut [u8]) -> u64 {
        match place {
            Place::Host(host) => done(self.kernels.0.read(host, into), into.len()),
            Place::Client(address) => {
                done_if(self.messages.is_some_and(|client| client.read(address, into)), into.len())
            }
        }
    }

    /// Writes to one piece; returns how many bytes were written.
    fn put(&self, place: Place, from: &[u8], hint: WriteHint) -> u64 {
        match place {
            Place::Host(host) => done(self.kernels.0.write(host, from, hint), from.len()),
            Place::Client(address) => {
                done_if(self.messages.is_some_and(|client| client.write(address, from)), from.len())
            }
        }
    }

    /// Fails if a file of the guest has lost pages: what was read or written may have been a replacement.
    fn check(&self, address: u64, write: bool) -> Result<(), Fault> {
        let whole = self.map.is_none_or(DmaMap::is_whole);
        if whole { Ok(()) } else { Err(Fault { address, write, done: 0 }) }
    }

    /// Copies one piece to another of the same length, in ascending or descending order. Returns the bytes done, from
    /// the respective end, and whether the destination stopped it.
    fn copy(&self, dst: Place, src: Place, len: u64, backward: bool, hint: WriteHint) -> (u64, bool) {
        if let (Place::Host(dst), Place::Host(src)) = (dst, src) {
            let moved = match backward {
                false => self.kernels.0.move_forward(dst, src, len, hint),
                true => self.kernels.0.move_backward(dst, src, len, hint),
            };
            return moved.map_or_else(|fault| (fault.done, fault.write), |()| (len, false));
        }
        let mut buffer = vec![0; size(len.min(CHUNK))];
        let mut ready = 0;
        while ready < len {
            let count = (len - ready).min(CHUNK);
            let at = if backward { len - ready - count } else { ready };
            let part = &mut buffer[..size(count)];
            if self.get(src.plus(at), part) < count {
                return (ready, false);
            }
            if self.put(dst.plus(at), part, hint) < count {
                return (ready, true);
            }
            ready += count;
        }
        (len, false)
    }

    /// Compares the bytes of two sources in chunks; `other` fills its argument from an offset on, up to the first byte
    /// that it cannot read.
    fn compare_with(
        &self,
        a: u64,
        len: u64,
        mut other: impl FnMut(u64, &mut [u8]) -> Result<(), Fault>,
    ) -> Result<Option<u64>, Fault> {
        let (mut first, mut second) = (vec![0; size(len.min(CHUNK))], vec![0; size(len.min(CHUNK))]);
        let mut done = 0;
        while done < len {
            let count = size((len - done).min(CHUNK));
            let (first, second) = (&mut first[..count], &mut second[..count]);
            let reads = [self.read(a.wrapping_add(done), first), other(done, second)];
            let fault = reads.into_iter().filter_map(Result::err).min_by_key(|fault| fault.done);
            let valid = fault.map_or(count, |fault| size(fault.done));
            if let Some(at) = (0..valid).find(|at| first[*at] != second[*at]) {
                return Ok(Some(done + at as u64));
            }
            if let Some(fault) = fault {
                return Err(Fault { done: done + fault.done, ..fault });
            }
            done += count as u64;
        }
        Ok(None)
    }
}

impl Place {
    fn plus(self, bytes: u64) -> Place {
        match self {
            Place::Host(host) => Place::Host(host + bytes),
            Place::Client(address) => Place::Client(address + bytes),
        }
    }
}

fn done(result: Result<(), Fault>, len: usize) -> u64 {
    result.map_or_else(|fault| fault.done, |()| len as u64)
}

fn done_if(answered: bool, len: usize) -> u64 {
    if answered { len as u64 } else { 0 }
}

/// Converts a length within this process.
fn size(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// A repeated 16-byte pattern, turned so that byte `by` of it comes first.
fn turned(pattern: [u64; 2], by: u64) -> [u64; 2] {
    let whole = u128::from(pattern[0]) | u128::from(pattern[1]) << 64;
    let turned = whole.rotate_right(8 * u32::try_from(by % 16).unwrap_or_default());
    #[allow(clippy::cast_possible_truncation, reason = "the two halves")]
    [turned as u64, (turned >> 64) as u64]
}

impl Space for GuestSpace<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            let fault = Fault { address: at, write: false, done: done as u64 };
            let piece = self.piece(at, (into.len() - done) as u64, false).ok_or(fault)?;
            let got = self.get(piece.place, &mut into[done..done + size(piece.len)]);
            if got < piece.len {
                return Err(Fault { address: at.wrapping_add(got), write: false, done: done as u64 + got });
            }
            done += size(got);
        }
        self.check(address, false)
    }

    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        let mut done = 0;
        while done < from.len() {
            let at = address.wrapping_add(done as u64);
            let fault = Fault { address: at, write: true, done: done as u64 };
            let piece = self.piece(at, (from.len() - done) as u64, true).ok_or(fault)?;
            let put = self.put(piece.place, &from[done..done + size(piece.len)], hint);
            if put < piece.len {
                return Err(Fault { address: at.wrapping_add(put), write: true, done: done as u64 + put });
            }
            done += size(put);
        }
        self.check(address, true)
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let (to, from) = (dst.wrapping_add(done), src.wrapping_add(done));
            let source = self.piece(from, len - done, false).ok_or(Fault { address: from, write: false, done })?;
            let target = self.piece(to, source.len, true).ok_or(Fault { address: to, write: true, done })?;
            let (moved, write) = self.copy(target.place, source.place, target.len, false, hint);
            done += moved;
            if moved < target.len {
                let address = if write { to } else { from };
                return Err(Fault { address: address.wrapping_add(moved), write, done });
            }
        }
        self.check(dst, true)
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        if src.checked_add(len).is_none() || dst.checked_add(len).is_none() {
            return Err(Fault { address: u64::MAX, write: src.checked_add(len).is_some(), done: 0 });
        }
        let mut done = 0;
        while done < len {
            let left = len - done;
            // Cannot overflow: checked above. The byte that faults is the last one that is left.
            let (to, from) = (dst + left, src + left);
            let source = self.last_piece(from, left, false).ok_or(Fault { address: from - 1, write: false, done })?;
            let target = self.last_piece(to, source.len, true).ok_or(Fault { address: to - 1, write: true, done })?;
            let source = source.place.plus(source.len - target.len);
            let (moved, write) = self.copy(target.place, source, target.len, true, hint);
            done += moved;
            if moved < target.len {
                let address = if write { to } else { from };
                return Err(Fault { address: address - moved - 1, write, done });
            }
        }
        self.check(dst, true)
    }

    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let at = dst.wrapping_add(done);
            let piece = self.piece(at, len - done, true).ok_or(Fault { address: at, write: true, done })?;
            let pattern = turned(pattern, done);
            let put = match piece.place {
                Place::Host(host) => {
                    let filled = self.kernels.0.fill(host, pattern, piece.len, hint);
                    filled.map_or_else(|fault| fault.done, |()| piece.len)
                }
                Place::Client(_) => {
                    let count = piece.len.min(CHUNK);
                    let words = pattern.map(u64::to_le_bytes);
                    let bytes: Vec<u8> = words.as_flattened().iter().copied().cycle().take(size(count)).collect();
                    let put = self.put(piece.place, &bytes, hint);
                    if put == count {
                        done += put;
                        continue;
                    }
                    put
                }
            };
            done += put;
            if put < piece.len {
                return Err(Fault { address: at.wrapping_add(put), write: true, done });
            }
        }
        self.check(dst, true)
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        let one_piece = |address| self.piece(address, len, false).filter(|piece| piece.len == len);
        if let (Some(first), Some(second)) = (one_piece(a), one_piece(b))
            && let (Place::Host(first), Place::Host(second)) = (first.place, second.place)
            // A fault means that a file has changed; the slow path finds the byte.
            && let Ok(found) = self.kernels.0.compare(first, second, len)
        {
            return self.check(a, false).map(|()| found);
        }
        self.compare_with(a, len, |at, into| self.read(b.wrapping_add(at), into))
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        if let Some(Piece { place: Place::Host(host), len: all }) = self.piece(a, len, false)
            && all == len
            && let Ok(found) = self.kernels.0.compare_pattern(host, pattern, len)
        {
            return self.check(a, false).map(|()| found);
        }
        self.compare_with(a, len, |_, into| {
            // Chunks are multiples of the pattern.
            let bytes = pattern.to_le_bytes();
            into.iter_mut().zip(bytes.iter().cycle()).for_each(|(into, byte)| *into = *byte);
            Ok(())
        })
    }

    fn fold(&self, address: u64, len: u64, register: u32, by: &[u64; 2], into: &mut [u8; FOLDED_BYTES]) -> bool {
        match self.piece(address, len, false) {
            Some(Piece { place: Place::Host(host), len: all }) if all == len => {
                self.kernels.0.fold(host, len, register, by, into) && self.check(address, false).is_ok()
            }
            _ => false,
        }
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let at = address.wrapping_add(done);
            let piece = self.piece(at, len - done, false).ok_or(Fault { address: at, write: false, done })?;
            // A client flushes its own caches.
            if let Place::Host(host) = piece.place
                && let Err(fault) = self.kernels.0.flush(host, piece.len)
            {
                return Err(Fault { address: at.wrapping_add(fault.done), write: false, done: done + fault.done });
            }
            done += piece.len;
        }
        self.check(address, false)
    }

    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        let fault = |done| Fault { address: address.wrapping_add(done), write: true, done };
        let piece = self.piece(address, 32, true).ok_or(fault(0))?;
        if piece.len < 32 {
            // Maps consist of whole pages, and records are aligned, so this is a caller's mistake.
            return Err(fault(PAGE_BYTES - address % PAGE_BYTES));
        }
        match piece.place {
            Place::Host(host) => self.kernels.0.write_record(host, record).map_err(|_| fault(0))?,
            Place::Client(_) => {
                let words = record.map(u64::to_le_bytes);
                let bytes = words.as_flattened();
                // The status byte follows the others.
                let ordered = self.put(piece.place.plus(1), &bytes[1..], WriteHint::Cache) == 31
                    && self.put(piece.place, &bytes[..1], WriteHint::Cache) == 1;
                if !ordered {
                    return Err(fault(0));
                }
            }
        }
        self.check(address, true)
    }

    fn page_request(&self, _: u64, _: bool) -> bool {
        // The function has no page request service.
        false
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "the tests' numbers are small")]
mod tests {
    use super::*;
    use crate::dma::tests::{file, region};

    /// Three maps that follow each other, the second one read-only, and a gap behind them.
    fn pieces() -> DmaMap {
        let mut map = DmaMap::default();
        for (n, flags) in [(0, 3), (1, 1), (2, 3), (4, 3)] {
            map.add(region(0x1_0000 + n * 0x1000, 0x1000, flags), vec![file(0x1000)]).unwrap();
        }
        map
    }

    fn space(map: &DmaMap) -> GuestSpace<'_> {
        GuestSpace { map: Some(map), kernels: Kernels::new(), messages: None }
    }

    #[test]
    fn reads_span_maps_and_stop_at_gaps() {
        let map = pieces();
        let space = space(&map);
        space.write(0x1_2ff0, &[7; 16], WriteHint::Cache).unwrap();
        let mut bytes = [1; 0x3000];
        space.read(0x1_0000, &mut bytes).unwrap();
        assert_eq!((bytes[0x2fef], bytes[0x2ff0]), (0, 7));
        let fault = space.read(0x1_2000, &mut bytes).unwrap_err();
        assert_eq!(fault, Fault { address: 0x1_3000, write: false, done: 0x1000 });
    }

    #[test]
    fn read_only_memory_is_not_written() {
        let map = pieces();
        let space = space(&map);
        let fault = space.write(0x1_0ffe, &[1; 8], WriteHint::Cache).unwrap_err();
        assert_eq!(fault, Fault { address: 0x1_1000, write: true, done: 2 });
        let fault = space.fill(0x1_0ff8, [1, 2], 64, WriteHint::Cache).unwrap_err();
        assert_eq!((fault.address, fault.done), (0x1_1000, 8));
        let fault = space.move_backward(0x1_1000, 0x1_0000, 32, WriteHint::Cache).unwrap_err();
        assert_eq!(fault, Fault { address: 0x1_101f, write: true, done: 0 });
        assert_eq!(space.write_record(0x1_1000, &[1; 4]).unwrap_err().address, 0x1_1000);
    }

    #[test]
    fn moves_in_both_directions_cross_maps() {
        let mut map = DmaMap::default();
        let (a, b) = (file(0x1000), file(0x1000));
        map.add(region(0x1000, 0x1000, 3), vec![a]).unwrap();
        map.add(region(0x2000, 0x1000, 3), vec![b]).unwrap();
        let space = space(&map);
        let bytes: Vec<u8> = (0..=255).collect();
        for (src, dst) in [(0x1f80_u64, 0x1fa0_u64), (0x1fa0, 0x1f80)] {
            space.write(src, &bytes, WriteHint::Cache).unwrap();
            let moved = if src < dst {
                space.move_backward(dst, src, 256, WriteHint::Cache)
            } else {
                space.move_forward(dst, src, 256, WriteHint::Cache)
            };
            moved.unwrap();
            let mut seen = vec![0; 256];
            space.read(dst, &mut seen).unwrap();
            assert_eq!(seen, bytes);
        }
        let fault = space.move_backward(0x2f00, 0x1f00, 0x200, WriteHint::Cache).unwrap_err();
        assert_eq!(fault, Fault { address: 0x30ff, write: true, done: 0 });
        let fault = space.move_forward(0x1000, 0x2f00, 0x200, WriteHint::Cache).unwrap_err();
        assert_eq!(fault, Fault { address: 0x3000, write: false, done: 0x100 });
    }

    #[test]
    fn patterns_continue_across_maps() {
        let mut map = DmaMap::default();
        map.add(region(0x1000, 0x1000, 3), vec![file(0x1000)]).unwrap();
        map.add(region(0x2000, 0x1000, 3), vec![file(0x1000)]).unwrap();
        let space = space(&map);
        let pattern = [0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09];
        space.fill(0x1ffb, pattern, 21, WriteHint::Cache).unwrap();
        let mut seen = [0; 21];
        space.read(0x1ffb, &mut seen).unwrap();
        let expected: [u8; 21] = std::array::from_fn(|at| (at % 16) as u8 + 1);
        assert_eq!(seen, expected);
        assert_eq!(space.compare_pattern(0x1ffb, pattern[0], 21), Ok(Some(8)));
        assert_eq!(space.compare(0x1ffb, 0x200b, 5), Ok(None));
        assert_eq!(space.compare(0x1ffb, 0x200b, 6), Ok(Some(5)));
        assert_eq!(space.compare(0x2200, 0x2ff0, 32).unwrap_err().address, 0x3000);
    }

    #[test]
    fn a_range_without_a_file_faults_without_messages() {
        let mut map = DmaMap::default();
        map.add(region(0x1000, 0x1000, 3), Vec::new()).unwrap();
        assert_eq!(space(&map).read(0x1000, &mut [0]).unwrap_err().address, 0x1000);
        let none = GuestSpaces::new(Some(&map), Kernels::new(), None);
        assert!(none.space(Some(1)).read(0x1000, &mut [0]).is_err());
    }

    #[test]
    fn a_file_that_shrinks_makes_accesses_fault() {
        let memory = file(0x2000);
        let mut map = DmaMap::default();
        map.add(region(0, 0x2000, 3), vec![memory.try_clone().unwrap()]).unwrap();
        let space = space(&map);
        space.write(0x1000, &[5; 8], WriteHint::Cache).unwrap();
        rustix::fs::ftruncate(&memory, 0x1000).unwrap();
        assert_eq!(space.read(0x1000, &mut [0; 8]).unwrap_err().address, 0x1000);
        assert!(space.write_record(0x1000, &[1; 4]).is_err(), "and stay so");
    }
}
