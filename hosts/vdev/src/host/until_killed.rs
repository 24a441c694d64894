//! A submitter's memory, until the submitter is killed.
//!
//! A thread in write(2) waits for the file system's answer, whatever signal comes: after kill -9 the process stays
//! until its descriptors have ended. So a long access is cut into pieces, and before each piece the submitting thread's
//! pending signals are looked at. Once SIGKILL is among them every access faults, and what is left of the write is not
//! submitted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use telpher_mem::{Fault, Space, WriteHint};

/// Bytes of memory accessed between two looks. Source: chosen; some hundred microseconds, beside ten for a look.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// SIGKILL in a mask of /proc/PID/status.
const KILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// Whether the thread whose write(2) is executed has been killed.
#[derive(Debug, Default)]
pub(super) struct Killed {
    /// The thread's state as the kernel shows it; `None` between two calls, and where the kernel does not show it.
    status: Mutex<Option<File>>,
    /// What the last look found; stays, since a killed thread does nothing more.
    found: AtomicBool,
    /// Bytes accessed since the last look.
    accessed: AtomicU64,
}

impl Killed {
    /// From now on the thread is this one.
    pub(super) fn watch(&self, thread: u32) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = File::open(format!("/proc/{thread}/status")).ok();
        self.accessed.store(0, Ordering::Relaxed);
    }

    /// True if the last look found the thread killed.
    pub(super) fn found(&self) -> bool {
        self.found.load(Ordering::Relaxed)
    }

    /// Looks.
    pub(super) fn look(&self) -> bool {
        // Relaxed, here and below: one thread executes a file's descriptors at a time.
        self.accessed.store(0, Ordering::Relaxed);
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = [0; 4096];
        let read = status.as_ref().and_then(|status| status.read_at(&mut text, 0).ok());
        if read.is_some_and(|len| has_kill_pending(&String::from_utf8_lossy(&text[..len]))) {
            self.found.store(true, Ordering::Relaxed);
        }
        self.found()
    }

    /// Looks if so many bytes more make a piece.
    fn look_after(&self, len: u64) -> bool {
        if self.accessed.fetch_add(len, Ordering::Relaxed).saturating_add(len) >= PIECE_BYTES {
            self.look()
        } else {
            self.found()
        }
    }
}

/// True if SIGKILL waits for a thread, by its /proc/PID/status: its own or its process'. Every thread of a process that
/// is killed, or that exits, has it among its own.
fn has_kill_pending(status: &str) -> bool {
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & KILL_BIT != 0)
}

/// The memory. After the submitter was killed every access faults where it is.
#[derive(Debug)]
pub(super) struct UntilKilled<S> {
    inner: S,
    killed: Arc<Killed>,
}

impl<S: Space> UntilKilled<S> {
    pub(super) fn new(inner: S, killed: Arc<Killed>) -> Self {
        UntilKilled { inner, killed }
    }

    /// Calls `access` for each piece: how many bytes lie before it, and its length. `at` and `write` say what faults if
    /// the submitter has been killed. Ends with the first piece that yields something.
    fn in_pieces<T>(
        &self,
        (at, len, write): (u64, u64, bool),
        mut access: impl FnMut(u64, u64) -> Result<Option<T>, Fault>,
    ) -> Result<Option<T>, Fault> {
        let mut done = 0;
        loop {
            let piece = (len - done).min(PIECE_BYTES);
            if self.killed.look_after(piece) {
                return Err(Fault { address: at.wrapping_add(done), write, done });
            }
            // Below `len`, and so is the sum.
            let found = access(done, piece).map_err(|fault| Fault { done: fault.done + done, ..fault })?;
            done += piece;
            if found.is_some() || done >= len {
                return Ok(found);
            }
        }
    }

    fn all_pieces(
        &self,
        range: (u64, u64, bool),
        mut access: impl FnMut(u64, u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.in_pieces::<()>(range, |done, len| access(done, len).map(|()| None)).map(drop)
    }
}

impl<S: Space> Space for UntilKilled<S> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        if self.killed.look_after(into.len() as u64) {
            return Err(Fault { address, write: false, done: 0 });
        }
        self.inner.read(address, into)
    }

    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        if self.killed.look_after(from.len() as u64) {
            return Err(Fault { address, write: true, done: 0 });
        }
        self.inner.write(address, from, hint)
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.all_pieces((src, len, false), |done, piece| {
            self.inner.move_forward(dst.wrapping_add(done), src.wrapping_add(done), piece, hint)
        })
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.all_pieces((src, len, false), |done, piece| {
            let low = len - done - piece;
            self.inner.move_backward(dst.wrapping_add(low), src.wrapping_add(low), piece, hint)
        })
    }

    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.all_pieces((dst, len, true), |done, piece| self.inner.fill(dst.wrapping_add(done), pattern, piece, hint))
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.in_pieces((a, len, false), |done, piece| {
            let found = self.inner.compare(a.wrapping_add(done), b.wrapping_add(done), piece)?;
            Ok(found.map(|at| at + done))
        })
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.in_pieces((a, len, false), |done, piece| {
            let found = self.inner.compare_pattern(a.wrapping_add(done), pattern, piece)?;
            Ok(found.map(|at| at + done))
        })
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        self.all_pieces((address, len, false), |done, piece| self.inner.flush(address.wrapping_add(done), piece))
    }

    fn write_record(&self, address: u64, record: &[u64; 4]) -> Result<(), Fault> {
        if self.killed.found() {
            return Err(Fault { address, write: true, done: 0 });
        }
        self.inner.write_record(address, record)
    }

    fn page_request(&self, address: u64, write: bool) -> bool {
        !self.killed.found() && self.inner.page_request(address, write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_mem::{MockSpace, Protection};

    const SRC: u64 = 0x10_0000;
    const DST: u64 = 0x1000_0000;
    const LEN: u64 = 3 * PIECE_BYTES + 777;

    fn memory() -> UntilKilled<MockSpace> {
        let space = MockSpace::new();
        for start in [SRC, DST] {
            space.map(start, usize::try_from(LEN / 4096).unwrap() + 2, Protection::ReadWrite);
        }
        UntilKilled::new(space, Arc::new(Killed::default()))
    }

    #[test]
    fn pieces_put_together_are_what_the_whole_is() {
        let memory = memory();
        let bytes: Vec<u8> = (0..LEN).map(|i| u8::try_from((i * 31 + i / 251) % 256).unwrap()).collect();
        memory.inner.poke(SRC, &bytes);
        for copy in [UntilKilled::move_forward, UntilKilled::move_backward] {
            memory.inner.poke(DST, &vec![0; bytes.len()]);
            assert_eq!(copy(&memory, DST + 3, SRC, LEN, WriteHint::Cache), Ok(()));
            assert!(memory.inner.peek(DST + 3, bytes.len()) == bytes);
        }
        assert_eq!(memory.compare(DST + 3, SRC, LEN), Ok(None));
        let last = LEN - 5;
        memory.inner.poke(DST + 3 + last, &[bytes[usize::try_from(last).unwrap()] ^ 1]);
        assert_eq!(memory.compare(DST + 3, SRC, LEN), Ok(Some(last)));
        let pattern = [0x0102_0304_0506_0708, 0x1112_1314_1516_1718];
        assert_eq!(memory.fill(DST, pattern, LEN, WriteHint::Cache), Ok(()));
        let unit: Vec<u8> = pattern.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        assert!(memory.inner.peek(DST, bytes.len()).iter().zip(unit.iter().cycle()).all(|(byte, unit)| byte == unit));
        assert_eq!(memory.fill(DST, [pattern[0]; 2], LEN, WriteHint::Cache), Ok(()));
        assert_eq!(memory.compare_pattern(DST, pattern[0], LEN), Ok(None));
        assert_eq!(memory.flush(DST, LEN), Ok(()));
    }

    #[test]
    fn a_fault_in_a_later_piece_counts_the_pieces_before_it() {
        let memory = memory();
        let hole = SRC + 2 * PIECE_BYTES + 4096;
        memory.inner.unmap(hole);
        let fault = memory.move_forward(DST, SRC, LEN, WriteHint::Cache).unwrap_err();
        assert_eq!((fault.address, fault.write, fault.done), (hole, false, hole - SRC));
        let fault = memory.move_backward(DST, SRC, LEN, WriteHint::Cache).unwrap_err();
        assert_eq!((fault.address / 4096, fault.done), (hole / 4096, SRC + LEN - hole - 4096));
    }

    #[test]
    fn nothing_is_accessed_once_the_submitter_was_killed() {
        let memory = memory();
        memory.killed.found.store(true, Ordering::Relaxed);
        let fault = |done| Fault { address: DST, write: true, done };
        assert_eq!(memory.fill(DST, [1; 2], LEN, WriteHint::Cache), Err(fault(0)));
        assert_eq!(memory.write(DST, &[1], WriteHint::Cache), Err(fault(0)));
        assert_eq!(memory.write_record(DST, &[1; 4]), Err(fault(0)));
        assert!(memory.read(SRC, &mut [0]).is_err() && memory.compare(SRC, DST, LEN).is_err());
        assert!(!memory.page_request(DST, true));
        assert!(memory.inner.peek(DST, 4096).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn sigkill_is_seen_among_the_signals_of_a_thread_and_of_its_process() {
        let status = |own: u64, shared: u64| {
            format!("Name:\tx\nSigQ:\t1/2\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t0000000000000100\n")
        };
        assert!(has_kill_pending(&status(0x100, 0)) && has_kill_pending(&status(0, 0x101)));
        assert!(!has_kill_pending(&status(0, 0)) && !has_kill_pending(&status(!0x100, 0x80)));
        assert!(!has_kill_pending("") && !has_kill_pending("SigPnd:\tnonsense\n"));
    }

    #[test]
    fn a_thread_that_nothing_has_killed_goes_on() {
        let killed = Killed::default();
        assert!(!killed.look());
        killed.watch(std::process::id());
        assert!(!killed.look() && !killed.found());
    }
}
