//! Whether another process traces this one: a debugger, strace, a tool that makes checkpoints.
//!
//! A tracer reads the memory of a stopped thread with `PTRACE_PEEKDATA` or `/proc/PID/mem`. The kernel does not wait for a missing page on those two
//! paths: it calls `get_user_pages_remote` without `FAULT_FLAG_ALLOW_RETRY`, and a page that is out is `EIO` (Linux, mm/memory.c, `__access_remote_vm`, and
//! fs/userfaultfd.c, `handle_userfault`). So nothing is taken out of a process that is traced.

use rustix::fs::{Mode, OFlags, open};
use std::path::Path;
use std::time::{Duration, Instant};

/// How old an answer about the first thread may be. Source: chosen; reading the file takes 17 µs here, of a millisecond less than a fiftieth, and only
/// while pages move.
const LEADER: Duration = Duration::from_millis(1);
/// How old an answer about the other threads may be at least. Source: chosen.
const THREADS: Duration = Duration::from_millis(50);
/// Asking about all threads takes at most one part of so many. Source: chosen.
const SHARE: u32 = 100;

/// The last answers, and when each is asked for again.
#[derive(Debug, Default)]
pub(crate) struct TracerCheck {
    of_leader: Option<u32>,
    of_threads: Option<u32>,
    leader_due: Option<Instant>,
    threads_due: Option<Instant>,
}

impl TracerCheck {
    /// The process that traces a thread of this one. Debuggers trace the first thread, which is asked about more often than the others.
    pub(crate) fn tracer(&mut self) -> Option<u32> {
        let now = Instant::now();
        let is_due = |due: Option<Instant>| due.is_none_or(|due| due <= now);
        if is_due(self.leader_due) {
            self.leader_due = Some(now + LEADER);
            self.of_leader = tracer_in(Path::new("/proc/self/status"));
        }
        if is_due(self.threads_due) {
            self.of_threads = of_threads();
            self.threads_due = Some(now + THREADS.max(now.elapsed() * SHARE));
        }
        self.of_leader.or(self.of_threads)
    }
}

/// The process that traces some thread.
fn of_threads() -> Option<u32> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    threads.flatten().find_map(|thread| tracer_in(&thread.path().join("status")))
}

/// The tracer that a status file names; none if it cannot be read: without /proc a process cannot tell.
fn tracer_in(path: &Path) -> Option<u32> {
    // The line is among the first ten, of which one has a name of at most 64 bytes. Source: Linux, fs/proc/array.c, proc_pid_status.
    let mut bytes = [0; 1024];
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(&file, &mut bytes).ok()?;
    tracer_of(&bytes[..len])
}

/// The process in the line `TracerPid`; 0 is none.
fn tracer_of(status: &[u8]) -> Option<u32> {
    const LINE: &[u8] = b"\nTracerPid:\t";
    let at = status.windows(LINE.len()).position(|window| window == LINE)? + LINE.len();
    let digits = status[at..].iter().take_while(|byte| byte.is_ascii_digit());
    let pid = digits.fold(0_u32, |pid, digit| pid.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')));
    (pid != 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tracer_is_read_from_its_line_and_zero_is_none() {
        assert_eq!(tracer_of(b"Name:\tx\nPPid:\t1\nTracerPid:\t4711\nUid:\t0\n"), Some(4711));
        assert_eq!(tracer_of(b"Name:\tx\nPPid:\t1\nTracerPid:\t0\nUid:\t0\n"), None);
        // A name is escaped, so that it has no line of its own.
        assert_eq!(tracer_of(b"Name:\tTracerPid:\t7\n"), None);
        assert_eq!(tracer_of(b""), None);
    }

    #[test]
    fn this_process_is_not_traced_unless_its_status_says_so() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap();
        let told = line.trim().parse::<u32>().unwrap();
        assert_eq!(TracerCheck::default().tracer().unwrap_or(0), told);
        assert_eq!(tracer_in(Path::new("/proc/no/such/status")), None);
    }
}
