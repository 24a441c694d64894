//! Temporarily reserved huge pages.

use super::PeerError;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Huge pages of 2 MiB, reserved until this is dropped or the process ends in any way.
#[derive(Debug)]
pub struct HugePages {
    /// A shell that waits for the end of its input, then restores the previous number.
    keeper: Child,
    _said: BufReader<ChildStdout>,
}

/// Source: Documentation/admin-guide/mm/hugetlbpage.rst of Linux.
const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

impl HugePages {
    /// Makes sure that `count` pages are free. On drop the machine has as many as before. Concurrent reservations
    /// disturb each other, so callers must take turns.
    ///
    /// # Errors
    /// [`PeerError::Missing`], with the reason, if the machine has not enough memory or the user lacks permission;
    /// [`PeerError::Start`] if there is no shell.
    pub fn reserve(count: u64) -> Result<HugePages, PeerError> {
        let missing = |why: &str| PeerError::Missing(why.to_owned());
        let number = |file: &str| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let numbers = number(RESERVED).zip(number(FREE));
        let (reserved, free) = numbers.ok_or_else(|| missing("this kernel has no huge pages of 2 MiB"))?;
        let wanted = reserved + count.saturating_sub(free);
        // In a separate process: if this process were killed, the machine would lose the memory.
        let script = format!(
            "trap '' INT TERM\nif echo {wanted} >{RESERVED}; then echo done; else echo refused; fi\n\
             read -r end\necho {reserved} >{RESERVED}"
        );
        let mut keeper = Command::new("sh");
        keeper
            .args(["-c", &script])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let start = |source| PeerError::Start { name: "a shell".to_owned(), source };
        let mut keeper = keeper.spawn().map_err(start)?;
        let mut stdout = BufReader::new(keeper.stdout.take().expect("piped above"));
        let mut line = String::new();
        stdout.read_line(&mut line).map_err(start)?;
        let pages = HugePages { keeper, _said: stdout };
        match number(FREE).unwrap_or(0) {
            _ if line != "done\n" => Err(missing("huge pages can be reserved by root only")),
            free if free < count => {
                let why = format!("the machine has {free} huge pages of 2 MiB to spare; {count} are needed");
                Err(PeerError::Missing(why))
            }
            _ => Ok(pages),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
