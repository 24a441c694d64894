//! Whether another process traces this one: a debugger, strace, a checkpoint tool.
//!
//! A tracer reads the memory of a stopped thread with `PTRACE_PEEKDATA` or `/proc/PID/mem`. On these two paths the
//! kernel does not wait for a missing page: it calls `get_user_pages_remote` without `FAULT_FLAG_ALLOW_RETRY`, and a
//! page that is out causes `EIO` (Linux, mm/memory.c, `__access_remote_vm`, and fs/userfaultfd.c, `handle_userfault`).
//! So no page of a traced process is taken out.

use rustix::fs::{Mode, OFlags, open};
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest time to reuse the answer for the first thread. Source: chosen; reading the file takes 17 µs here, less
/// than 2 % of a millisecond, and only while pages move.
const LEADER: Duration = Duration::from_millis(1);
/// The shortest time to reuse the answer for the other threads. Source: chosen.
const THREADS: Duration = Duration::from_millis(50);
/// Checking all threads takes at most this fraction of the time. Source: chosen.
const SHARE: u32 = 100;

/// The last answers, and when each is renewed.
#[derive(Debug, Default)]
pub(crate) struct TracerCheck {
    of_leader: Option<u32>,
    of_threads: Option<u32>,
    leader_due: Option<Instant>,
    threads_due: Option<Instant>,
}

impl TracerCheck {
    /// Returns the process that traces a thread of this one. Debuggers trace the first thread, which is checked more
    /// often than the others.
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

/// Returns the process that traces any thread.
fn of_threads() -> Option<u32> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    threads.flatten().find_map(|thread| tracer_in(&thread.path().join("status")))
}

/// Returns the tracer named in a status file; none if the file cannot be read, because without /proc a process cannot
/// tell.
fn tracer_in(path: &Path) -> Option<u32> {
    // The line is among the first ten; the longest of them holds a name of at most 64 bytes. Source: Linux,
    // fs/proc/array.c, proc_pid_status.
    let mut bytes = [0; 1024];
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(&file, &mut bytes).ok()?;
    tracer_of(&bytes[..len])
}

/// Returns the process in the line `TracerPid`; 0 means none.
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
        // The kernel escapes names, so a name cannot fake a line.
        assert_eq!(tracer_of(b"Name:\tTracerPid:\t7\n"), None);
        assert_eq!(tracer_of(b""), None);
    }

    #[test]
    fn this_process_is_not_traced_unless_its_status_says_so() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap();
        let expected = line.trim().parse::<u32>().unwrap();
        assert_eq!(TracerCheck::default().tracer().unwrap_or(0), expected);
        assert_eq!(tracer_in(Path::new("/proc/no/such/status")), None);
    }
}
