//! Access to a submitter's memory that stops when the submitter is killed.
//!
//! A thread in write(2) waits for the file system's answer even after kill -9: the process stays until its descriptors
//! have ended. So a long access is split into chunks, and before each chunk the submitting thread's pending signals are
//! checked. Once SIGKILL is pending, every access faults, and the rest of the write is not submitted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use telpher_mem::{Fault, Space, WriteHint};

/// Bytes accessed between two checks. Source: chosen; copying takes a few hundred microseconds, a check ten.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// SIGKILL in a signal mask of /proc/PID/status.
const KILL_BIT: u64 = 1 << (libc::SIGKILL - 1);

/// Whether the thread whose write(2) is executed has been killed.
#[derive(Debug, Default)]
pub(super) struct Killed {
    /// The thread's status file in /proc; `None` between two calls, and if it cannot be opened.
    status: Mutex<Option<File>>,
    /// The result of the last check; stays true, since a killed thread does nothing more.
    found: AtomicBool,
    /// Bytes accessed since the last check.
    accessed: AtomicU64,
}

impl Killed {
    /// Watches this thread from now on.
    pub(super) fn watch(&self, thread: u32) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = File::open(format!("/proc/{thread}/status")).ok();
        self.accessed.store(0, Ordering::Relaxed);
    }

    /// True if the last check found the thread killed.
    pub(super) fn found(&self) -> bool {
        self.found.load(Ordering::Relaxed)
    }

    /// Checks whether the thread has been killed.
    pub(super) fn check(&self) -> bool {
        // Relaxed, here and below: one thread at a time executes a file's descriptors.
        self.accessed.store(0, Ordering::Relaxed);
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = [0; 4096];
        let read = status.as_ref().and_then(|status| status.read_at(&mut text, 0).ok());
        if read.is_some_and(|len| has_kill_pending(&String::from_utf8_lossy(&text[..len]))) {
            self.found.store(true, Ordering::Relaxed);
        }
        self.found()
    }

    /// Counts `len` bytes; checks if this completes a chunk.
    fn check_after(&self, len: u64) -> bool {
        if self.accessed.fetch_add(len, Ordering::Relaxed).saturating_add(len) >= CHUNK_BYTES {
            self.check()
        } else {
            self.found()
        }
    }
}

/// True if SIGKILL is pending for a thread or its process, from the text of /proc/PID/status. Every thread of a process
/// that is killed or exits has SIGKILL among its own pending signals.
fn has_kill_pending(status: &str) -> bool {
    let pending =
        status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:")));
    pending.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & KILL_BIT != 0)
}

/// A memory whose accesses all fault once the submitter has been killed.
#[derive(Debug)]
pub(super) struct UntilKilled<S> {
    inner: S,
    killed: Arc<Killed>,
}

impl<S: Space> UntilKilled<S> {
    pub(super) fn new(inner: S, killed: Arc<Killed>) -> Self {
        UntilKilled { inner, killed }
    }

    /// Calls `access` for each chunk, with the bytes before it and its length. `at` and `write` describe the fault if
    /// the submitter has been killed. Ends with the first chunk that returns a value.
    fn in_chunks<T>(
        &self,
        (at, len, write): (u64, u64, bool),
        mut access: impl FnMut(u64, u64) -> Result<Option<T>, Fault>,
    ) -> Result<Option<T>, Fault> {
        let mut done = 0;
        loop {
            let chunk = (len - done).min(CHUNK_BYTES);
            if self.killed.check_after(chunk) {
                return Err(Fault { address: at.wrapping_add(done), write, done });
            }
            // Cannot overflow: both are at most `len`.
            let found = access(done, chunk).map_err(|fault| Fault { done: fault.done + done, ..fault })?;
            done += chunk;
            if found.is_some() || done >= len {
                return Ok(found);
            }
        }
    }

    fn all_chunks(
        &self,
        range: (u64, u64, bool),
        mut access: impl FnMut(u64, u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.in_chunks::<()>(range, |done, len| access(done, len).map(|()| None)).map(drop)
    }
}

impl<S: Space> Space for UntilKilled<S> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        if self.killed.check_after(into.len() as u64) {
            return Err(Fault { address, write: false, done: 0 });
        }
        self.inner.read(address, into)
    }

    fn write(&self, address: u64, from: &[u8], hint: WriteHint) -> Result<(), Fault> {
        if self.killed.check_after(from.len() as u64) {
            return Err(Fault { address, write: true, done: 0 });
        }
        self.inner.write(address, from, hint)
    }

    fn move_forward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.all_chunks((src, len, false), |done, chunk| {
            self.inner.move_forward(dst.wrapping_add(done), src.wrapping_add(done), chunk, hint)
        })
    }

    fn move_backward(&self, dst: u64, src: u64, len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.all_chunks((src, len, false), |done, chunk| {
            let low = len - done - chunk;
            self.inner.move_backward(dst.wrapping_add(low), src.wrapping_add(low), chunk, hint)
        })
    }

    fn fill(&self, dst: u64, pattern: [u64; 2], len: u64, hint: WriteHint) -> Result<(), Fault> {
        self.all_chunks((dst, len, true), |done, chunk| self.inner.fill(dst.wrapping_add(done), pattern, chunk, hint))
    }

    fn compare(&self, a: u64, b: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.in_chunks((a, len, false), |done, chunk| {
            let found = self.inner.compare(a.wrapping_add(done), b.wrapping_add(done), chunk)?;
            Ok(found.map(|at| at + done))
        })
    }

    fn compare_pattern(&self, a: u64, pattern: u64, len: u64) -> Result<Option<u64>, Fault> {
        self.in_chunks((a, len, false), |done, chunk| {
            let found = self.inner.compare_pattern(a.wrapping_add(done), pattern, chunk)?;
            Ok(found.map(|at| at + done))
        })
    }

    fn flush(&self, address: u64, len: u64) -> Result<(), Fault> {
        self.all_chunks((address, len, false), |done, chunk| self.inner.flush(address.wrapping_add(done), chunk))
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
    const LEN: u64 = 3 * CHUNK_BYTES + 777;

    fn memory() -> UntilKilled<MockSpace> {
        let space = MockSpace::new();
        for start in [SRC, DST] {
            space.map(start, usize::try_from(LEN / 4096).unwrap() + 2, Protection::ReadWrite);
        }
        UntilKilled::new(space, Arc::new(Killed::default()))
    }

    #[test]
    fn chunked_accesses_give_the_result_of_one_access() {
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
    fn a_fault_in_a_later_chunk_counts_the_bytes_before_it() {
        let memory = memory();
        let hole = SRC + 2 * CHUNK_BYTES + 4096;
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
    fn a_thread_that_was_not_killed_is_not_found_killed() {
        let killed = Killed::default();
        assert!(!killed.check());
        killed.watch(std::process::id());
        assert!(!killed.check() && !killed.found());
    }
}
