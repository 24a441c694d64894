//! The memory behind the handle of a window, for the descriptors of this process.
//!
//! ```text
//! descriptor ─► replica: its copy of the table ─► WindowMemory ─► host: checks the access again, and does it
//! ```

use crate::control;
use telpher_device::WindowSpaces;
use telpher_mem::{Fault, Space, WriteHint};
use telpher_model::Window;
use telpher_vdev_wire::message::{WINDOW_BYTES, WindowAccess};

/// Bytes of a buffer on the stack, which may be that of a signal handler. Source: chosen.
const PIECE: usize = 1024;

/// The windows that the descriptors of one open file use.
#[derive(Debug)]
pub(crate) struct FileWindows {
    /// Number of the file.
    pub(crate) open: u64,
}

impl WindowSpaces for FileWindows {
    fn with(&self, window: &Window, act: &mut dyn FnMut(&dyn Space)) {
        // The replica adds the base that it knows to an offset; the host adds the window's.
        let base = if window.hides_addresses() { window.base } else { 0 };
        act(&WindowMemory { open: self.open, handle: window.handle, generation: window.generation, base });
    }
}

/// The memory that a window gives access to, as a descriptor has looked it up: once the window has changed, every
/// access fails. Absent pages are brought in.
#[derive(Debug)]
struct WindowMemory {
    open: u64,
    handle: u16,
    generation: u64,
    /// The address of offset 0; 0 for a window in address mode.
    base: u64,
}

impl WindowMemory {
    fn access(&self, address: u64, len: usize) -> WindowAccess {
        WindowAccess {
            address: address.wrapping_sub(self.base),
            generation: self.generation,
            // Fits: at most WINDOW_BYTES.
            len: u32::try_from(len).unwrap_or_default(),
            handle: self.handle.into(),
        }
    }

    /// Calls `each` with the parts of a range, of at most `most` bytes; it returns how many bytes were moved.
    fn in_parts(
        (address, len, most): (u64, u64, usize),
        write: bool,
        mut each: impl FnMut(u64, usize, u64) -> Result<usize, Fault>,
    ) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let part = usize::try_from(len - done).unwrap_or(most).min(most);
            let at = address.wrapping_add(done);
            match each(at, part, done) {
                Ok(0) => return Err(Fault { address: at, write, done }),
                Ok(moved) => done += moved as u64,
                Err(fault) => return Err(Fault { done: done + fault.done, ..fault }),
            }
        }
        Ok(())
    }

    /// Moves bytes between two places, of which the lower or the higher are moved first.
    fn relay(&self, dst: u64, src: u64, len: u64, backward: bool) -> Result<(), Fault> {
        let mut buffer = [0; PIECE];
        let mut done = 0;
        while done < len {
            let part = usize::try_from(len - done).unwrap_or(PIECE).min(PIECE);
            let at = if backward { len - done - part as u64 } else { done };
            let stopped = |fault: Fault| Fault { done: if backward { done } else { done + fault.done }, ..fault };
            self.read(src.wrapping_add(at), &mut buffer[..part]).map_err(stopped)?;
            self.write(dst.wrapping_add(at), &buffer[..part], WriteHint::Cache).map_err(stopped)?;
            done += part as u64;
        }
        Ok(())
    }

    /// Finds the first byte of a range that is not as expected; `expected` fills a buffer for an offset.
    fn differs(
        &self,
        address: u64,
        len: u64,
        mut expected: impl FnMut(u64, &mut [u8]) -> Result<(), Fault>,
    ) -> Result<Option<u64>, Fault> {
        let (mut bytes, mut other) = ([0; PIECE], [0; PIECE]);
        let mut difference = None;
        Self::in_parts((address, len, PIECE), false, |at, part, done| {
            if difference.is_none() {
                self.read(at, &mut bytes[..part])?;
                expected(done, &mut other[..part])?;
                let differs = bytes[..part].iter().zip(&other[..part]).position(|(one, other)| one != other);
                difference = differs.map(|offset| done + offset as u64);
            }
            Ok(part)
        })?;
        Ok(difference)
    }
}

/// Fills a buffer with a pattern of 16 bytes that repeats from offset 0 on.
fn repeat([low, high]: [u64; 2], offset: u64, into: &mut [u8]) {
    let pattern = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
    // Below 16.
    let skip = usize::try_from(offset % 16).unwrap_or_default();
    let bytes = pattern.iter().cycle().skip(skip);
    into.iter_mut().zip(bytes).for_each(|(byte, with)| *byte = *with);
}

impl Space for WindowMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let len = into.len() as u64;
        Self::in_parts((address, len, WINDOW_BYTES), false, |at, part, done| {
            // Fits: within `into`.
            let from = usize::try_from(done).unwrap_or_default();
            Ok(control::read_window(self.open, &self.access(at, part), &mut into[from..from + part]).unwrap_or(0))
        })
    }

    fn write(&self, address: u64, from: &[u8], _: WriteHint) -> Result<(), Fault> {
        Self::in_parts((address, from.len() as u64, WINDOW_BYTES), true, |at, part, done| {
            // Fits: within `from`.
            let first = usize::try_from(done).unwrap_or_default();
            Ok(control::write_window(self.open, &self.access(at, part), &from[first..first + part]).unwrap_or(0))
        })
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        self.relay(dst, src, len, false)
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, _: WriteHint) -> Result<(), Fault> {
        self.relay(dst, src, len, true)
    }

    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        let mut bytes = [0; PIECE];
        Self::in_parts((dst, len, PIECE), true, |at, part, done| {
            repeat(pattern, done, &mut bytes[..part]);
            self.write(at, &bytes[..part], hint).map(|()| part)
        })
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.differs(a, len, |done, into| self.read(b.wrapping_add(done), into))
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.differs(a, len, |done, into| {
            repeat([pattern; 2], done, into);
            Ok(())
        })
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        // Caches are coherent, and no instruction flushes the lines of another process's addresses.
        if len == 0 { Ok(()) } else { self.read(address, &mut [0]) }
    }

    fn write_record(&self, address: u64, _: &[u64; 4]) -> Result<(), Fault> {
        // Records are in the submitter's own memory (SPEC §3.14).
        Err(Fault { address, write: true, done: 0 })
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        control::touch_window(self.open, &self.access(address, 1), write).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_goes_on_at_any_offset() {
        let mut whole = [0; 40];
        repeat([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908], 0, &mut whole);
        let expected: Vec<u8> = (0..40).map(|byte| byte % 16).collect();
        assert_eq!(whole[..], expected[..]);
        for offset in 0..20 {
            let mut part = [0; 20];
            repeat([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908], offset, &mut part);
            let from = usize::try_from(offset).unwrap();
            assert_eq!(part[..], expected[from..from + 20]);
        }
    }

    #[test]
    fn a_fault_in_a_later_part_counts_the_parts_before() {
        let len = 3 * WINDOW_BYTES as u64;
        let stop = WINDOW_BYTES as u64 + 100;
        let moved = WindowMemory::in_parts((0x1000, len, WINDOW_BYTES), true, |_, part, done| {
            Ok(usize::try_from(stop - done).unwrap().min(part))
        });
        assert_eq!(moved, Err(Fault { address: 0x1000 + stop, write: true, done: stop }));
        let inner = Fault { address: 7, write: false, done: 5 };
        let failed =
            WindowMemory::in_parts(
                (0, len, WINDOW_BYTES),
                true,
                |_, part, done| if done == 0 { Ok(part) } else { Err(inner) },
            );
        assert_eq!(failed, Err(Fault { done: WINDOW_BYTES as u64 + 5, ..inner }));
    }
}
