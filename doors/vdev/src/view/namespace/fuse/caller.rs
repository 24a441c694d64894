//! Who asks, from the number of a thread.
//!
//! A kernel compares address spaces; from outside, a process can be told by its number and start time, and its address space by
//! where its program and stack were put. That tells apart:
//! 1. a forked child: another process;
//! 2. another process that was given the descriptor: likewise;
//! 3. a process that took over a number: it started later;
//! 4. a program executed by the opener: process and start time stay, but stack and program lie elsewhere. This is as good as
//!    address space randomisation; with it off (`setarch -R`) the same program executed again is not seen to be another.
//!
//! Not told apart: a vfork child, or one made by clone(CLONE_VM), shares its parent's memory and would be let in by a kernel;
//! here it is another process, and is refused.

use std::fs;

/// An address space, as far as /proc tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    /// Process (thread group).
    pub(super) process: u32,
    /// When it started, in clock ticks since boot.
    started: u64,
    /// Where its program begins and its stack ends; zero for who may not know.
    layout: [u64; 2],
}

impl Identity {
    /// Whose thread it is; `None` if it has ended meanwhile, or is not to be seen from here.
    pub(super) fn of_thread(thread: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        Self::of_process(group.trim().parse().ok()?)
    }

    /// True if it is a thread of this process, in this address space.
    pub(super) fn has(&self, thread: u32) -> bool {
        // A process's first thread has its number: one file less to read for the many that have no other.
        let other = if thread == self.process { Self::of_process(thread) } else { Self::of_thread(thread) };
        other.as_ref() == Some(self)
    }

    fn of_process(process: u32) -> Option<Self> {
        parse(process, &fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
    }
}

/// Reads what proc_pid_stat(5) numbers 22, 26 and 28.
fn parse(process: u32, stat: &str) -> Option<Identity> {
    // The second field is a name in brackets, in which there may be blanks and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The rest begins with field 3.
    let field = |number: usize| fields.get(number - 3)?.parse().ok();
    Some(Identity { process, started: field(22)?, layout: [field(26)?, field(28)?] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_of_a_process_are_one_caller() {
        let own = Identity::of_thread(std::process::id()).unwrap();
        assert_eq!(own.process, std::process::id());
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert_eq!(Identity::of_thread(thread), Some(own));
        let other =
            std::thread::spawn(|| Identity::of_thread(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()));
        assert_eq!(other.join().unwrap(), Some(own));
        assert!(own.has(own.process) && own.has(thread) && !own.has(1));
    }

    #[test]
    fn another_process_is_another_caller() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Identity::of_thread(child.id());
        assert_ne!(identity, Identity::of_thread(std::process::id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Identity::of_thread(child.id()), None, "it has ended");
    }

    #[test]
    fn a_name_with_brackets_and_blanks_moves_no_field() {
        let stat = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21 22 100 200 300 0 0";
        let identity = parse(7, stat).unwrap();
        assert_eq!(identity, Identity { process: 7, started: 4711, layout: [100, 300] });
    }
}
