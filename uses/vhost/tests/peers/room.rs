//! What a test has of the machine while it runs: two cores, which tests take in turn, and a folder.

use rustix::fs::{FlockOperation, flock};
use rustix::thread::sched_getaffinity;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Two CPUs and a folder for sockets and files.
#[derive(Debug)]
pub(crate) struct Room {
    folder: PathBuf,
    cpus: [usize; 2],
    /// Locked; given back when it is closed.
    _cores: File,
}

impl Room {
    /// Waits until no other test has a room, whichever process it is in.
    ///
    /// Peers poll: two of them are as many as two cores bear.
    pub(crate) fn take() -> Room {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Nobody writes to it, so that another user's file does as well.
        let cores = std::env::temp_dir().join("telpher-cores.lock");
        let cores = File::open(&cores).or_else(|_| File::create(&cores)).expect("a file to lock");
        flock(&cores, FlockOperation::LockExclusive).expect("the lock");
        // In the temporary folder, whose name is short: the name of a socket has at most 107 bytes.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("telpher-peers-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder of the test's own");
        let allowed = sched_getaffinity(None).expect("the CPUs this process may run on");
        let mut allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        let one = allowed.next().expect("a CPU");
        Room { folder, cpus: [one, allowed.next().unwrap_or(one)], _cores: cores }
    }

    /// Where files of this name go.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The CPU of those who answer, and that of those who ask; the same if there is but one.
    pub(crate) fn cpus(&self) -> [usize; 2] {
        self.cpus
    }

    /// A word that no other test has, for names that all programs of a machine share.
    pub(crate) fn word(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).expect("made above, of ASCII")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// True if PATH leads to the program.
fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|folder| folder.join(program).is_file())
}

/// What a program is needed for is named by its Debian package.
pub(crate) fn lacking(programs: &[(&str, &str)]) -> Option<String> {
    let (program, package) = programs.iter().find(|(program, _)| !have(program))?;
    Some(format!("no {program} (Debian package {package})"))
}

/// Huge pages of 2 MiB, reserved until this is dropped, or the test is killed.
#[derive(Debug)]
pub(crate) struct HugePages {
    /// Waits for its input to end, then sets the number back.
    keeper: Child,
    _said: BufReader<ChildStdout>,
}

/// Source: Documentation/admin-guide/mm/hugetlbpage.rst of Linux.
const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

impl HugePages {
    /// Sees to it that so many are free. To be asked for by whoever has a [`Room`], and dropped before it.
    ///
    /// # Errors
    /// Why not, if the machine has none to spare or the user may not ask.
    pub(crate) fn reserve(count: u64) -> Result<HugePages, String> {
        let number = |file: &str| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let numbers = number(RESERVED).zip(number(FREE));
        let (reserved, free) = numbers.ok_or("this kernel has no huge pages of 2 MiB")?;
        let wanted = reserved + count.saturating_sub(free);
        // Not this process: whoever kills it would leave the machine without the memory.
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
        let mut keeper = keeper.spawn().map_err(|error| format!("no shell: {error}"))?;
        let mut said = BufReader::new(keeper.stdout.take().expect("piped above"));
        let mut line = String::new();
        said.read_line(&mut line).map_err(|error| error.to_string())?;
        let pages = HugePages { keeper, _said: said };
        match number(FREE).unwrap_or(0) {
            _ if line != "done\n" => Err("huge pages can be reserved by root only".into()),
            free if free < count => Err(format!("the machine has {free} huge pages to spare; {count} are needed")),
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

/// Where cargo keeps what it builds, and `ci/install.sh` what the tests need.
pub(crate) fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's folder for tests lies in its target folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_taken_in_turn() {
        let room = Room::take();
        let other = std::thread::spawn(Room::take);
        // Not a proof that it waits, but one that tries did not get it.
        for _ in 0..100 {
            assert!(!other.is_finished());
            std::thread::yield_now();
        }
        let (file, word) = (room.file("file"), room.word().to_owned());
        std::fs::write(&file, "").expect("a file");
        drop(room);
        assert!(!file.exists());
        assert_ne!(other.join().expect("a room").word(), word);
    }

    #[test]
    fn huge_pages_are_given_back() {
        let _room = Room::take();
        let now = || std::fs::read_to_string(RESERVED).unwrap_or_default();
        let before = now();
        match HugePages::reserve(2) {
            Ok(pages) => {
                let free = std::fs::read_to_string(FREE).expect("a number");
                assert!(free.trim().parse::<u64>().is_ok_and(|free| free >= 2), "{free} free");
                drop(pages);
            }
            Err(why) => crate::skip::skip("huge_pages_are_given_back", &why),
        }
        assert_eq!(now(), before);
    }

    #[test]
    fn what_is_lacking_is_named_with_its_package() {
        assert_eq!(lacking(&[("sh", "dash")]), None);
        let lacks = lacking(&[("sh", "dash"), ("no-such-program", "no-such-package")]);
        assert_eq!(lacks.as_deref(), Some("no no-such-program (Debian package no-such-package)"));
    }
}
