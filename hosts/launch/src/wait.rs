//! Waits for the program and for its descendants.

use crate::signals::{ReceivedSignal, Signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgid, getpgrp, kill_process, pidfd_open, set_child_subreaper,
};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Time between the program's end and the message that names the processes still running. Source: chosen; children that
/// end with their parent take less.
const SILENCE: Duration = Duration::from_secs(1);

/// Default time to wait after the first SIGTERM. Source: chosen; half of Docker's and a sixth of systemd's time before
/// SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);

/// How the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It exited with this code.
    Exit(u8),
    /// This signal ended it.
    Signal(i32),
}

impl Ended {
    fn of(status: WaitStatus) -> Option<Self> {
        // The kernel keeps eight bits of either.
        let exit = status.exit_status().and_then(|code| u8::try_from(code).ok()).map(Ended::Exit);
        exit.or_else(|| status.terminating_signal().map(Ended::Signal))
    }

    /// The exit code for a program that has not ended within the grace period after SIGTERM: as if SIGTERM had ended
    /// it.
    pub const STILL_RUNNING: u8 = 128 + 15;

    /// The exit code, as a shell reports it: for a signal, 128 plus its number.
    pub fn code(self) -> u8 {
        match self {
            Ended::Exit(code) => code,
            Ended::Signal(signal) => u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128)),
        }
    }
}

/// Makes this process the parent of orphaned descendants, so that it can wait for them (and access their memory where
/// only ancestors may).
pub fn adopt_orphans() {
    // No supported kernel refuses this. Without it, init adopts the orphans, and this process does not wait for them.
    let _ = set_child_subreaper(Pid::from_raw(1));
}

/// The program that this process waits for, and its descendants.
#[derive(Debug)]
pub struct ProcessTree<'a> {
    program: Pid,
    signals: &'a Signals,
    ended: Option<Ended>,
    /// Other child processes exist, or may exist.
    others: bool,
    /// How long to wait after the first SIGTERM.
    grace: Duration,
    /// When waiting ends: set by the first SIGTERM.
    deadline: Option<Instant>,
}

impl<'a> ProcessTree<'a> {
    /// `grace`: how long to wait after the first SIGTERM.
    pub fn new(program: Pid, signals: &'a Signals, grace: Duration) -> Self {
        ProcessTree { program, signals, ended: None, others: true, grace, deadline: None }
    }

    /// Waits until the program has ended, and forwards signals to it. `None` if it has not ended within the grace
    /// period after SIGTERM.
    pub fn wait(&mut self) -> Option<Ended> {
        // The pidfd wakes this thread even if another thread has consumed SIGCHLD.
        let handle = pidfd_open(self.program, PidfdFlags::empty()).ok();
        loop {
            self.reap();
            if self.ended.is_some() || self.is_over() {
                return self.ended;
            }
            let signals = self.signals.descriptor();
            let sources = std::iter::once(signals).chain(handle.as_ref().map(AsFd::as_fd));
            let mut sources: Vec<PollFd<'_>> =
                sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
            // EINTR and an event have the same effect: another round.
            let _ = poll(&mut sources, self.left(None).as_ref());
            while let Some(came) = self.signals.next() {
                self.forward(came);
            }
        }
    }

    /// Waits for the program's descendants, which still have the device. Ends early at a terminating signal or at the
    /// end of the grace period. After `SILENCE` it calls `tell` once with the processes it waits for.
    pub fn wait_for_others(&mut self, tell: impl FnOnce(&str)) {
        let mut tell = Some(tell);
        loop {
            self.reap();
            if !self.others || self.is_over() {
                return;
            }
            let timeout = self.left(tell.is_some().then_some(SILENCE));
            let mut sources = [PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN)];
            let woken = poll(&mut sources, timeout.as_ref());
            if let (Ok(0), Some(tell)) = (woken, tell.take_if(|_| woken == Ok(0) && !self.is_over())) {
                tell(&self.running());
            }
            while let Some(came) = self.signals.next() {
                if matches!(came.signal, libc::SIGINT | libc::SIGTERM | libc::SIGQUIT | libc::SIGHUP) {
                    return;
                }
            }
        }
    }

    /// The running descendants by number and name, for a message. Empty if none runs.
    pub fn running(&self) -> String {
        descendants().join(", ")
    }

    /// True if the grace period after SIGTERM is over.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The time until the grace period is over, or `within` if that is less; `None` if neither is set.
    fn left(&self, within: Option<Duration>) -> Option<Timespec> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let least = [left, within].into_iter().flatten().min();
        least.and_then(|least| Timespec::try_from(least).ok())
    }

    /// True if descendants of the program may still run.
    pub fn has_others(&self) -> bool {
        self.others
    }

    /// Reaps all children that have ended or stopped.
    fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((child, status))) if child == self.program => {
                    if status.stopped() {
                        self.stop_with_program();
                    }
                    self.ended = self.ended.or(Ended::of(status));
                }
                // An orphan; its exit status is not needed.
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => {
                    // No children are left.
                    self.others = false;
                    return;
                }
            }
        }
    }

    /// The program has stopped: for example, a shell with job control was suspended. This process stops too, or its own
    /// parent shell would wait forever. In the foreground group both are stopped already.
    fn stop_with_program(&self) {
        if getpgid(Some(self.program)).is_ok_and(|group| group != getpgrp()) {
            let _ = kill_process(rustix::process::getpid(), Signal::STOP);
            let _ = kill_process(self.program, Signal::CONT);
        }
    }

    fn forward(&mut self, came: ReceivedSignal) {
        let Some(sender) = came.sender.filter(|_| came.signal != libc::SIGCHLD) else { return };
        // A signal from the program is meant for this process or for the whole process group, so it is not sent back.
        if let Some(signal) = Signal::from_named_raw(came.signal)
            && i64::from(sender) != i64::from(self.program.as_raw_pid())
        {
            let _ = kill_process(self.program, signal);
            if signal == Signal::TERM {
                self.deadline.get_or_insert_with(|| Instant::now() + self.grace);
            }
        }
    }
}

/// Descendants of this process that have not ended, by number and name, parents first.
fn descendants() -> Vec<String> {
    let mut found = children("self");
    let mut named = Vec::new();
    while let Some(number) = found.pop() {
        let status = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        // Source: proc(5): the name in parentheses, then the state, Z for a process that has ended.
        let Some((name, rest)) = status.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')) else { continue };
        if !rest.trim_start().starts_with(['Z', 'X']) {
            named.push(format!("{number} ({name})"));
        }
        found.extend(children(&number));
    }
    named
}

/// Children of all threads of a process, the last first.
fn children(process: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let mut numbers: Vec<String> =
        lists.flat_map(|list| list.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect();
    numbers.reverse();
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(Ended::Exit(3).code(), 3);
        assert_eq!(Ended::Signal(libc::SIGKILL).code(), 137);
        assert_eq!(Ended::Signal(i32::MAX).code(), 255);
    }
}
