//! Identifies the address space of a process without a guest.
//!
//! A guest identifies its address space by a random number. For other processes, the process number and the memory map
//! serve: a forked child is another process, and an executed program has its stack at another address. Without address
//! space randomisation the stack may be at the same address; then the new program is taken for its predecessor.

/// The data that distinguishes address spaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// The process, whichever of its threads was given.
    pub(crate) process: u32,
    /// Start addresses of its code, stack and heap.
    map: [u64; 3],
}

/// Fields of /proc/PID/stat after the name, counted from the state as 0. Source: proc_pid_stat(5), fields 26, 28 and
/// 47.
const MAP_FIELDS: [usize; 3] = [23, 25, 44];

impl Identity {
    /// The identity of a process, given any of its threads; `None` if there is no such thread.
    pub(crate) fn of(thread: u32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()?;
        let stat = std::fs::read(format!("/proc/{thread}/stat")).ok()?;
        Some(Identity { process, map: map_of(&stat)? })
    }
}

fn map_of(stat: &[u8]) -> Option<[u64; 3]> {
    // The name is in parentheses and may contain parentheses.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(&stat[end + 1..]).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let mut map = [0; 3];
    for (address, field) in map.iter_mut().zip(MAP_FIELDS) {
        *address = fields.get(field)?.parse().ok()?;
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_skipped() {
        let numbers: Vec<String> = (4..53).map(|field| field.to_string()).collect();
        let stat = format!("12 (a) b) S {}", numbers.join(" "));
        assert_eq!(map_of(stat.as_bytes()), Some([26, 28, 47]));
        assert_eq!(map_of(b"12 (a) S 1 2 3"), None);
        assert_eq!(map_of(b""), None);
    }

    #[test]
    fn exec_changes_the_identity() {
        use std::io::Write;
        let script = "read line; exec sleep 1000";
        let mut command = std::process::Command::new("sh");
        let mut child = command.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let name = || std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap();
        let wait_for = |wanted: &str| {
            (0..60_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                name().trim() == wanted
            })
        };
        assert!(wait_for("sh"));
        let before = Identity::of(child.id()).unwrap();
        writeln!(child.stdin.as_ref().unwrap()).unwrap();
        assert!(wait_for("sleep"));
        let after = Identity::of(child.id()).unwrap();
        assert_eq!(before.process, after.process);
        assert_ne!(before, after);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn threads_share_an_identity_and_children_have_their_own() {
        let own = Identity::of(std::process::id()).unwrap();
        assert_eq!(own.process, std::process::id());
        let thread = std::thread::spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
            Identity::of(thread).unwrap()
        });
        assert_eq!(thread.join().unwrap(), own);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        assert_ne!(Identity::of(child.id()), Some(own));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Identity::of(child.id()), None);
    }
}
