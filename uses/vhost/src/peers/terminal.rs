//! A program on its own terminal: tests type lines, read the output, and kill it on drop.
//!
//! A terminal and not a pipe: with a pipe a program holds output back until a block is full, and testpmd would seem not
//! to answer. Standard error is kept separately ([`Terminal::log`]), because other threads write there in the middle of
//! an answer.
//!
//! The program leads a process group, which is killed when the [`Terminal`] is dropped. If the test itself is killed,
//! the kernel kills the program (`setpriv --pdeathsig`).

use super::PeerError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// How long a killed program may take to end. Source: assumed; the kernel frees a GiB of huge pages in some 100 ms, and
/// a busy machine takes many times as long.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// A running program.
#[derive(Debug)]
pub struct Terminal {
    name: String,
    child: Child,
    /// Our end of its terminal.
    ours: File,
    /// Its standard error.
    log: File,
    /// All its output.
    output: String,
    /// How much of the output was returned as an answer already.
    answered: usize,
}

impl Terminal {
    /// Starts a program; errors call it `name`. It dies with the thread that calls this.
    ///
    /// # Errors
    /// [`PeerError::Start`]
    pub fn start(name: &str, program: &str, arguments: &[impl AsRef<OsStr>]) -> Result<Terminal, PeerError> {
        let started = || -> io::Result<Terminal> {
            let (ours, theirs) = pair()?;
            let log = File::from(memfd_create(name, MemfdFlags::CLOEXEC)?);
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", program]).args(arguments).process_group(0);
            command.stdin(theirs.try_clone()?).stdout(theirs).stderr(log.try_clone()?);
            let child = command.spawn()?;
            Ok(Terminal { name: name.to_owned(), child, ours, log, output: String::new(), answered: 0 })
        };
        started().map_err(|source| PeerError::Start { name: name.to_owned(), source })
    }

    /// Types a line.
    ///
    /// # Errors
    /// [`PeerError::Deaf`]
    pub fn line(&mut self, line: &str) -> Result<(), PeerError> {
        let typed = self.ours.write_all(format!("{line}\n").as_bytes());
        typed.map_err(|source| PeerError::Deaf {
            name: self.name.clone(),
            line: line.to_owned(),
            output: self.last(),
            source,
        })
    }

    /// Waits until the program prints `wanted`. Returns its output since the last answer, without `wanted`.
    ///
    /// # Errors
    /// [`PeerError::Silent`] if it ends, or has not printed `wanted` in time.
    pub fn until(&mut self, wanted: &str, within: Duration) -> Result<String, PeerError> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(at) = self.output[self.answered..].find(wanted) {
                let answer = self.output[self.answered..self.answered + at].to_owned();
                self.answered += at + wanted.len();
                return Ok(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.read_more(left) {
                let (name, wanted, output) = (self.name.clone(), wanted.to_owned(), self.last());
                return Err(PeerError::Silent { name, wanted, within, output });
            }
        }
    }

    /// What the program has written to standard error.
    #[must_use]
    pub fn log(&self) -> String {
        let (mut log, mut bytes) = (Vec::new(), [0; 4096]);
        // `read_at` does not move the file position, at which the program keeps writing.
        while let Ok(count @ 1..) = self.log.read_at(&mut bytes, log.len() as u64) {
            log.extend_from_slice(&bytes[..count]);
        }
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The program's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether it is still running.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Kills it and all its child processes with SIGKILL, and waits until it has ended. Returns `None` if it has not
    /// ended within half a minute: it sleeps in the kernel, where no signal reaches it (state D of ps(1)).
    pub fn kill(&mut self) -> Option<ExitStatus> {
        // The pid of a child that was not waited for cannot be reused. An error means that it has ended.
        let group = Pid::from_child(&self.child);
        if self.runs() {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.wait_for_exit(KILL_TIMEOUT)
    }

    /// Its exit status, if it ends within this time.
    fn wait_for_exit(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        // Readable when it has ended, pidfd_open(2).
        let ends = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()).ok();
        loop {
            let status = self.child.try_wait().ok().flatten();
            let left = deadline.saturating_duration_since(Instant::now());
            if status.is_some() || left.is_zero() {
                return status;
            }
            match &ends {
                Some(ends) => {
                    let _ = poll(&mut [PollFd::new(ends, PollFlags::IN)], Timespec::try_from(left).ok().as_ref());
                }
                // No descriptors left: poll.
                None => std::thread::sleep(left.min(Duration::from_millis(1))),
            }
        }
    }

    /// The name that errors use.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All its output.
    #[must_use]
    pub fn output(&self) -> &str {
        &self.output
    }

    /// The end of its output and of its standard error, for error messages.
    fn last(&self) -> String {
        const BYTES: usize = 2000;
        let end =
            |text: &str| String::from_utf8_lossy(&text.as_bytes()[text.len().saturating_sub(BYTES)..]).into_owned();
        format!("{}\n{}", end(&self.output), end(&self.log()))
    }

    /// Reads more output, waiting at most `within`; returns false if there was none.
    fn read_more(&mut self, within: Duration) -> bool {
        let within = Timespec::try_from(within).ok();
        let mut polled = [PollFd::new(&self.ours, PollFlags::IN)];
        let readable = match poll(&mut polled, within.as_ref()) {
            Ok(count) => count > 0,
            // The caller retries.
            Err(rustix::io::Errno::INTR) => return true,
            Err(_) => false,
        };
        let mut bytes = [0; 4096];
        // Reading a terminal that no process has open fails: its program has ended.
        match if readable { self.ours.read(&mut bytes).unwrap_or(0) } else { 0 } {
            0 => false,
            heard => {
                // The output of testpmd and of a guest is ASCII; other characters may be damaged.
                self.output += &String::from_utf8_lossy(&bytes[..heard]).replace('\r', "");
                true
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let gone = self.kill().is_some();
        if !gone {
            eprintln!("--- {} was killed and has not ended within {KILL_TIMEOUT:?}; it is left running", self.name);
        }
        if std::thread::panicking() {
            // What is left to read; a program that has not ended could print for ever.
            let most = self.output.len() + MAX_FINAL_OUTPUT;
            while self.output.len() < most && self.read_more(Duration::ZERO) {}
            eprintln!("--- {} printed:\n{}\n--- and to standard error:\n{}\n---", self.name, self.output, self.log());
        }
    }
}

/// The most output that is read after a program has ended. Source: what a terminal holds, 64 KiB (N_TTY and its flip
/// buffers), and some.
const MAX_FINAL_OUTPUT: usize = 1 << 20;

/// Creates a terminal in raw mode and returns both ends.
fn pair() -> rustix::io::Result<(File, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let theirs = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    let mut how = tcgetattr(theirs.as_fd())?;
    how.make_raw();
    tcsetattr(theirs.as_fd(), OptionalActions::Now, &how)?;
    Ok((File::from(ours), theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_at_a_terminal_answers_line_by_line() {
        let mut shell =
            Terminal::start("shell", "sh", &["-c", "while read -r line; do echo \"<$line>\"; done"]).unwrap();
        shell.line("one").unwrap();
        assert_eq!(shell.until("\n", SOON).unwrap(), "<one>");
        shell.line("two").unwrap();
        shell.line("three").unwrap();
        assert_eq!(shell.until("three", SOON).unwrap(), "<two>\n<");
        assert!(shell.runs());
    }

    #[test]
    fn standard_error_is_not_part_of_the_answers() {
        let mut shell =
            Terminal::start("shell", "sh", &["-c", "echo log >&2; echo answer; echo more >&2; read -r line"]).unwrap();
        assert_eq!(shell.until("\n", SOON).unwrap(), "answer");
        shell.line("end").unwrap();
        let status = shell.wait_for_exit(SOON).expect("it ends");
        assert_eq!((shell.log().as_str(), status.success()), ("log\nmore\n", true));
    }

    #[test]
    fn a_silent_program_times_out() {
        let mut sleeper = Terminal::start("sleeper", "sleep", &["60"]).unwrap();
        let error = sleeper.until("anything", Duration::from_millis(10)).unwrap_err().to_string();
        assert!(error.starts_with("sleeper did not print \"anything\" within 10ms"), "{error}");
    }

    #[test]
    fn an_ended_program_is_noticed_at_once() {
        let mut brief = Terminal::start("brief", "echo", &["less"]).unwrap();
        let error = brief.until("more", Duration::from_secs(3600)).unwrap_err().to_string();
        assert!(error.starts_with("brief did not print \"more\"") && error.contains("less"), "{error}");
    }

    /// A process in state D ends as little as one that was not killed.
    #[test]
    fn waiting_for_an_exit_times_out() {
        let mut sleeper = Terminal::start("sleeper", "sleep", &["3600"]).unwrap();
        let began = Instant::now();
        assert_eq!(sleeper.wait_for_exit(Duration::from_millis(20)), None);
        assert!(began.elapsed() >= Duration::from_millis(20) && sleeper.runs());
        assert_eq!(sleeper.kill().and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status)), Some(9));
        // `kill` may be called repeatedly.
        assert!(sleeper.kill().is_some() && !sleeper.runs());
    }

    #[test]
    fn a_program_with_endless_output_times_out() {
        let mut chatter = Terminal::start("chatter", "yes", &[] as &[&str]).unwrap();
        let began = Instant::now();
        assert!(chatter.until("no", Duration::from_millis(20)).is_err());
        assert!(began.elapsed() < SOON);
        assert!(chatter.output().starts_with("y\ny\n") || began.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn waiting_uses_no_cpu_time() {
        let mut sleeper = Terminal::start("sleeper", "sleep", &["3600"]).unwrap();
        let used = || Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).unwrap();
        let before = used();
        assert!(sleeper.until("anything", Duration::from_millis(300)).is_err());
        assert_eq!(sleeper.wait_for_exit(Duration::from_millis(300)), None);
        assert!(used() - before < Duration::from_millis(100), "{:?} of 600 ms", used() - before);
    }

    #[test]
    fn its_child_processes_are_killed_with_it() {
        let mut shell = Terminal::start("shell", "sh", &["-c", "sleep 3600 & echo $!; wait"]).unwrap();
        let pid = shell.until("\n", SOON).unwrap();
        let status = format!("/proc/{pid}/status");
        assert!(std::fs::read_to_string(&status).is_ok_and(|status| status.contains("sleep") || status.contains("sh")));
        drop(shell);
        // Killed, but its new parent may not have reaped it yet.
        let deadline = Instant::now() + SOON;
        while std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ")) {
            assert!(Instant::now() < deadline, "{pid} still runs");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_program_dies_with_the_thread_that_started_it() {
        let start = || {
            let mut shell = Terminal::start("shell", "sh", &["-c", "echo here; exec sleep 3600"]).unwrap();
            // By now the kernel knows the parent-death signal.
            shell.until("here", SOON).unwrap();
            shell
        };
        let mut shell = std::thread::spawn(start).join().expect("a shell");
        let deadline = Instant::now() + SOON;
        while shell.runs() {
            assert!(Instant::now() < deadline, "it still runs");
            std::thread::yield_now();
        }
        let status = shell.kill().expect("it has ended");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}
