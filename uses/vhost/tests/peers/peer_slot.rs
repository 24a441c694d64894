//! The machine's resources for a running test: two cores, which tests use in turn, and a folder.

use rustix::fs::{FlockOperation, flock};
use rustix::thread::sched_getaffinity;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use telpher_vhost::peers::TestpmdSetup;

/// Two CPUs and a folder for sockets and files.
#[derive(Debug)]
pub(crate) struct PeerSlot {
    folder: PathBuf,
    cpus: [usize; 2],
    /// Locked; the lock is released when the file is closed.
    _cores: File,
}

impl PeerSlot {
    /// Waits until no other test, in any process, has a slot.
    ///
    /// Peers poll: two cores can run only two of them.
    pub(crate) fn take() -> PeerSlot {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // It is never written, so another user's file works as well.
        let cores = std::env::temp_dir().join("telpher-cores.lock");
        let cores = File::open(&cores).or_else(|_| File::create(&cores)).expect("a file to lock");
        flock(&cores, FlockOperation::LockExclusive).expect("the lock");
        // In the temporary folder, whose name is short: a socket's path has at most 107 bytes.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("telpher-peers-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder of the test's own");
        let allowed = sched_getaffinity(None).expect("the CPUs this process may run on");
        let mut allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        let one = allowed.next().expect("a CPU");
        PeerSlot { folder, cpus: [one, allowed.next().unwrap_or(one)], _cores: cores }
    }

    /// The path of a file with this name.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The CPU of the answering side, and that of the asking side; the same if there is only one.
    pub(crate) fn cpus(&self) -> [usize; 2] {
        self.cpus
    }

    /// The options of a testpmd on one of the two CPUs.
    pub(crate) fn seat<'a>(&'a self, name: &'a str, cpu: usize) -> TestpmdSetup<'a> {
        TestpmdSetup::new(name, self.cpus[cpu], &self.folder)
    }

    /// A unique word, for names that all programs of a machine share.
    pub(crate) fn word(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).expect("made above, of ASCII")
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Where cargo keeps its output, and `ci/install.sh` what the tests need.
pub(crate) fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's folder for tests lies in its target folder")
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_vhost::peers::HugePages;

    const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

    #[test]
    fn peer_slots_are_used_one_at_a_time() {
        let slot = PeerSlot::take();
        let other = std::thread::spawn(PeerSlot::take);
        // Not a proof that it waits, but an attempt did not get the lock.
        for _ in 0..100 {
            assert!(!other.is_finished());
            std::thread::yield_now();
        }
        let (file, word) = (slot.file("file"), slot.word().to_owned());
        std::fs::write(&file, "").expect("a file");
        drop(slot);
        assert!(!file.exists());
        assert_ne!(other.join().expect("a slot").word(), word);
    }

    #[test]
    fn huge_pages_are_released() {
        let _room = PeerSlot::take();
        let now = || std::fs::read_to_string(RESERVED).unwrap_or_default();
        let before = now();
        match HugePages::reserve(2) {
            Ok(pages) => {
                let free = std::fs::read_to_string(FREE).expect("a number");
                assert!(free.trim().parse::<u64>().is_ok_and(|free| free >= 2), "{free} free");
                drop(pages);
            }
            Err(why) => crate::skip::skip("huge_pages_are_released", &why.to_string()),
        }
        assert_eq!(now(), before);
    }
}
