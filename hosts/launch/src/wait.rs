//! Waiting for the program, and for what it leaves running.

use crate::signals::{Came, Signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpgid, getpgrp, kill_process, pidfd_open, set_child_subreaper,
};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Time after the program's end until the user is told what is still waited for. Source: chosen; children that end with their
/// parent take less.
const SILENCE: Duration = Duration::from_secs(1);

/// How long to wait after the first SIGTERM, unless told otherwise. Source: chosen; half of what Docker and a sixth of what systemd
/// give before SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);

/// How the program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// By itself, with this code.
    Exit(u8),
    /// By this signal.
    Signal(i32),
}

impl Ended {
    fn of(status: WaitStatus) -> Option<Self> {
        // The system keeps eight bits of either.
        let exit = status.exit_status().and_then(|code| u8::try_from(code).ok()).map(Ended::Exit);
        exit.or_else(|| status.terminating_signal().map(Ended::Signal))
    }

    /// The code of a program that has not ended within the grace period after SIGTERM: as if that had ended it.
    pub const STILL_RUNNING: u8 = 128 + 15;

    /// The code that tells of it, as a shell's: 128 and the signal's number.
    pub fn code(self) -> u8 {
        match self {
            Ended::Exit(code) => code,
            Ended::Signal(signal) => u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128)),
        }
    }
}

/// Makes this process the parent of what its descendants orphan, so that they stay in its sight (and it may reach their memory
/// where only ancestors may).
pub fn adopt_orphans() {
    // Refused by no kernel that has it; without it orphans are the system's, and are not waited for.
    let _ = set_child_subreaper(Pid::from_raw(1));
}

/// A program being waited for.
#[derive(Debug)]
pub struct Family<'a> {
    program: Pid,
    signals: &'a Signals,
    ended: Option<Ended>,
    /// Others than the program are there, or may be.
    others: bool,
    /// How long to wait after the first SIGTERM.
    grace: Duration,
    /// When waiting ends: set by the first SIGTERM.
    deadline: Option<Instant>,
}

impl<'a> Family<'a> {
    /// `grace`: how long to wait after the first SIGTERM.
    pub fn new(program: Pid, signals: &'a Signals, grace: Duration) -> Self {
        Family { program, signals, ended: None, others: true, grace, deadline: None }
    }

    /// Waits until the program has ended; signals to this process are handed on to it. `None` if it has not ended within the grace
    /// period after SIGTERM.
    pub fn wait(&mut self) -> Option<Ended> {
        // Wakes even where another thread has taken the news of the child.
        let handle = pidfd_open(self.program, PidfdFlags::empty()).ok();
        loop {
            self.collect();
            if self.ended.is_some() || self.is_over() {
                return self.ended;
            }
            let signals = self.signals.descriptor();
            let sources = std::iter::once(signals).chain(handle.as_ref().map(AsFd::as_fd));
            let mut sources: Vec<PollFd<'_>> =
                sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
            // An interruption is as good as news.
            let _ = poll(&mut sources, self.left(None).as_ref());
            while let Some(came) = self.signals.next() {
                self.hand_on(came);
            }
        }
    }

    /// Waits for what the program has left running: its descendants, which still have the device. Ends early if a signal says so, or
    /// the grace period is over. `tell` is called once if it takes longer than a moment, with what is waited for.
    pub fn wait_for_others(&mut self, tell: impl FnOnce(&str)) {
        let mut tell = Some(tell);
        loop {
            self.collect();
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

    /// What still runs, by number and name: to be read by people. Empty if nothing does.
    pub fn running(&self) -> String {
        descendants().join(", ")
    }

    /// True if the grace period after SIGTERM is over.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The time until the grace period is over, or `within`, whichever is less; `None` for as long as it takes.
    fn left(&self, within: Option<Duration>) -> Option<Timespec> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let least = [left, within].into_iter().flatten().min();
        least.and_then(|least| Timespec::try_from(least).ok())
    }

    /// Processes of the program's may still be there.
    pub fn has_others(&self) -> bool {
        self.others
    }

    /// Takes the news of all children.
    fn collect(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((child, status))) if child == self.program => {
                    if status.stopped() {
                        self.stop_too();
                    }
                    self.ended = self.ended.or(Ended::of(status));
                }
                // An orphan: nobody asks how it ended.
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => {
                    // No children at all.
                    self.others = false;
                    return;
                }
            }
        }
    }

    /// The program has stopped itself: a shell that manages its own jobs was suspended. Whoever manages this process is to see
    /// it, or he would wait for ever. In the foreground group both were stopped already.
    fn stop_too(&self) {
        if getpgid(Some(self.program)).is_ok_and(|group| group != getpgrp()) {
            let _ = kill_process(rustix::process::getpid(), Signal::STOP);
            let _ = kill_process(self.program, Signal::CONT);
        }
    }

    fn hand_on(&mut self, came: Came) {
        let Some(sender) = came.sender.filter(|_| came.signal != libc::SIGCHLD) else { return };
        // What the program sent it meant for us, or for its group, of which it has its own.
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

/// Children of a process, the last first, whichever of its threads they are said to be of.
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
    fn the_code_of_an_end_is_a_shell_s() {
        assert_eq!(Ended::Exit(3).code(), 3);
        assert_eq!(Ended::Signal(libc::SIGKILL).code(), 137);
        assert_eq!(Ended::Signal(i32::MAX).code(), 255);
    }
}
