//! A program at a terminal of its own: typed at, listened to, and gone when the test is.
//!
//! A terminal rather than a pipe: a program whose output is a pipe keeps back what it says until a block is full, and testpmd then answers
//! nothing. What it writes to its standard error is kept apart ([`Terminal::log`]): other threads write there, in the midst of an answer.
//!
//! The program is the first of a process group, which is killed when the [`Terminal`] is dropped; and should the test itself be
//! killed, the kernel kills the program (`setpriv --pdeathsig`).

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

/// How long a program that was killed has to end. Source: assumed; the kernel takes its memory apart, a GiB of huge pages in some 100 ms, and a
/// machine with much else to do takes many times as long.
const ENDS: Duration = Duration::from_secs(30);

/// A program that runs.
#[derive(Debug)]
pub struct Terminal {
    name: String,
    child: Child,
    /// Our end of its terminal.
    ours: File,
    /// Its standard error.
    log: File,
    /// All it has said.
    said: String,
    /// How much of that has been an answer already.
    answered: usize,
}

impl Terminal {
    /// Starts a program, which errors call `name`. It dies with the thread that calls this.
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
            Ok(Terminal { name: name.to_owned(), child, ours, log, said: String::new(), answered: 0 })
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
            said: self.last(),
            source,
        })
    }

    /// Waits until the program has said this, and answers what it said since the last answer, without it.
    ///
    /// # Errors
    /// [`PeerError::Silent`] if it ends or has not said it in time, whatever else it says.
    pub fn until(&mut self, wanted: &str, within: Duration) -> Result<String, PeerError> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(at) = self.said[self.answered..].find(wanted) {
                let answer = self.said[self.answered..self.answered + at].to_owned();
                self.answered += at + wanted.len();
                return Ok(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.hear(left) {
                let (name, wanted, said) = (self.name.clone(), wanted.to_owned(), self.last());
                return Err(PeerError::Silent { name, wanted, within, said });
            }
        }
    }

    /// What the program has written to its standard error.
    #[must_use]
    pub fn log(&self) -> String {
        let (mut log, mut bytes) = (Vec::new(), [0; 4096]);
        // Read from where it lies, as the program goes on writing at the end.
        while let Ok(count @ 1..) = self.log.read_at(&mut bytes, log.len() as u64) {
            log.extend_from_slice(&bytes[..count]);
        }
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True if it still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Kills it and all it has started as SIGKILL does, without time for a farewell, and waits until it is gone. `None` if it is not within half a
    /// minute: it sleeps in the kernel, where no signal reaches it (state D of ps(1)).
    pub fn kill(&mut self) -> Option<ExitStatus> {
        // The pid of a child that was not waited for is nobody else's. An error means that it is gone.
        let group = Pid::from_child(&self.child);
        if self.runs() {
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.ended(ENDS)
    }

    /// How it ended, if it does so within this time.
    fn ended(&mut self, within: Duration) -> Option<ExitStatus> {
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
                // No descriptors left: now and then.
                None => std::thread::sleep(left.min(Duration::from_millis(1))),
            }
        }
    }

    /// What errors call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All it has said.
    #[must_use]
    pub fn said(&self) -> &str {
        &self.said
    }

    /// The end of what it has said, and of what it has written to its standard error: enough to see why it says no more.
    fn last(&self) -> String {
        const BYTES: usize = 2000;
        let end =
            |text: &str| String::from_utf8_lossy(&text.as_bytes()[text.len().saturating_sub(BYTES)..]).into_owned();
        format!("{}\n{}", end(&self.said), end(&self.log()))
    }

    /// Listens for so long at most; false if nothing more was said.
    fn hear(&mut self, within: Duration) -> bool {
        let within = Timespec::try_from(within).ok();
        let mut polled = [PollFd::new(&self.ours, PollFlags::IN)];
        let readable = match poll(&mut polled, within.as_ref()) {
            Ok(count) => count > 0,
            // Who waits looks again.
            Err(rustix::io::Errno::INTR) => return true,
            Err(_) => false,
        };
        let mut bytes = [0; 4096];
        // A terminal nobody has open any more answers with an error: its program ended.
        match if readable { self.ours.read(&mut bytes).unwrap_or(0) } else { 0 } {
            0 => false,
            heard => {
                // What testpmd and a guest say is ASCII; anything else need not be whole.
                self.said += &String::from_utf8_lossy(&bytes[..heard]).replace('\r', "");
                true
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let gone = self.kill().is_some();
        if !gone {
            eprintln!("--- {} was killed and has not ended within {ENDS:?}; it is left where it is", self.name);
        }
        if std::thread::panicking() {
            // What there is; one that is not gone may say more for ever.
            let most = self.said.len() + LAST_WORDS;
            while self.said.len() < most && self.hear(Duration::ZERO) {}
            eprintln!("--- {} said:\n{}\n--- and to its standard error:\n{}\n---", self.name, self.said, self.log());
        }
    }
}

/// Bytes of what a program said last that are heard when it is gone. Source: what a terminal holds, 64 KiB (N_TTY and its flip buffers), and some.
const LAST_WORDS: usize = 1 << 20;

/// Both ends of a new terminal, which changes and echoes nothing.
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
    fn what_it_logs_is_not_in_its_answers() {
        let mut shell =
            Terminal::start("shell", "sh", &["-c", "echo log >&2; echo answer; echo more >&2; read -r line"]).unwrap();
        assert_eq!(shell.until("\n", SOON).unwrap(), "answer");
        shell.line("end").unwrap();
        let status = shell.ended(SOON).expect("it ends");
        assert_eq!((shell.log().as_str(), status.success()), ("log\nmore\n", true));
    }

    #[test]
    fn one_that_says_nothing_is_not_waited_for() {
        let mut sleeper = Terminal::start("sleeper", "sleep", &["60"]).unwrap();
        let error = sleeper.until("anything", Duration::from_millis(10)).unwrap_err().to_string();
        assert!(error.starts_with("sleeper did not say \"anything\" within 10ms"), "{error}");
    }

    #[test]
    fn one_that_has_ended_is_not_waited_for() {
        let mut brief = Terminal::start("brief", "echo", &["less"]).unwrap();
        let error = brief.until("more", Duration::from_secs(3600)).unwrap_err().to_string();
        assert!(error.starts_with("brief did not say \"more\"") && error.contains("less"), "{error}");
    }

    /// One in state D ends as little as one that nobody has killed.
    #[test]
    fn one_that_does_not_end_is_not_waited_for() {
        let mut sleeper = Terminal::start("sleeper", "sleep", &["3600"]).unwrap();
        let began = Instant::now();
        assert_eq!(sleeper.ended(Duration::from_millis(20)), None);
        assert!(began.elapsed() >= Duration::from_millis(20) && sleeper.runs());
        assert_eq!(sleeper.kill().and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status)), Some(9));
        // As often as it is asked.
        assert!(sleeper.kill().is_some() && !sleeper.runs());
    }

    #[test]
    fn one_that_says_something_else_for_ever_is_not_listened_to_for_ever() {
        let mut chatter = Terminal::start("chatter", "yes", &[] as &[&str]).unwrap();
        let began = Instant::now();
        assert!(chatter.until("no", Duration::from_millis(20)).is_err());
        assert!(began.elapsed() < SOON);
        assert!(chatter.said().starts_with("y\ny\n") || began.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn waiting_takes_no_turns() {
        let mut sleeper = Terminal::start("sleeper", "sleep", &["3600"]).unwrap();
        let used = || Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)).unwrap();
        let before = used();
        assert!(sleeper.until("anything", Duration::from_millis(300)).is_err());
        assert_eq!(sleeper.ended(Duration::from_millis(300)), None);
        assert!(used() - before < Duration::from_millis(100), "{:?} of 600 ms", used() - before);
    }

    #[test]
    fn what_it_started_goes_with_it() {
        let mut shell = Terminal::start("shell", "sh", &["-c", "sleep 3600 & echo $!; wait"]).unwrap();
        let pid = shell.until("\n", SOON).unwrap();
        let status = format!("/proc/{pid}/status");
        assert!(std::fs::read_to_string(&status).is_ok_and(|status| status.contains("sleep") || status.contains("sh")));
        drop(shell);
        // Killed, but the one who inherited it may not have taken note yet.
        let deadline = Instant::now() + SOON;
        while std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ")) {
            assert!(Instant::now() < deadline, "{pid} still runs");
            std::thread::yield_now();
        }
    }

    #[test]
    fn it_dies_with_the_thread_that_started_it() {
        let start = || {
            let mut shell = Terminal::start("shell", "sh", &["-c", "echo here; exec sleep 3600"]).unwrap();
            // The kernel has been told by now.
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
