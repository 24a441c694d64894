//! Forks that the kernel does not report: in a separate process without `CAP_SYS_PTRACE`, which opens its userfaultfd
//! through the device.
#![allow(unsafe_code, reason = "gives a capability up, and forks")]

mod common;

use common::stress::{Over, soak};
use common::{FAST, HOME, heap_with, skip};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use telpher_mem::PageSize;
use telpher_os::{Userfault, UserfaultError, UserfaultFeatures};

const NAME: &str = "an_unreported_fork_waits_until_no_page_is_out";
/// Set in the process without the capability.
const WITHOUT: &str = "TELPHER_TIER_WITHOUT_PTRACE";

/// Source: UAPI linux/capability.h.
const CAP_SYS_PTRACE: libc::c_ulong = 19;

#[test]
fn an_unreported_fork_waits_until_no_page_is_out() {
    if std::env::var_os(WITHOUT).is_some() {
        return forks_under_migration();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([NAME, "--nocapture"]).env(WITHOUT, "1").stderr(Stdio::inherit());
    // SAFETY: one system call, between fork and exec. If it is not permitted, the process lacks the capability as well.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0);
            Ok(())
        });
    }
    let run = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && stdout.contains("1 passed"), "{}: {stdout}", run.status);
}

fn forks_under_migration() {
    if let Ok(userfault) = Userfault::open(UserfaultFeatures::EVENT_FORK) {
        panic!("the kernel reports forks: {userfault:?}");
    }
    if let Err(UserfaultError::Forbidden(error)) = Userfault::open(UserfaultFeatures::MOVE) {
        return skip::skip(NAME, &format!("this user may not open a userfaultfd without CAP_SYS_PTRACE: {error}"));
    }
    let Some(heap) = heap_with(NAME, 8 << 20, |options| options.batch = 64) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    for (page, bytes) in arena.chunks_exact_mut(4096).enumerate() {
        bytes.fill(u8::try_from(page % 251 + 1).unwrap());
    }
    let is_as_it_was = |bytes: &[u8]| {
        bytes
            .chunks_exact(4096)
            .enumerate()
            .all(|(page, bytes)| bytes.iter().all(|&b| usize::from(b) == page % 251 + 1))
    };
    let over = AtomicBool::new(false);
    let mut forks = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for to in [FAST, HOME].into_iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                heap.migrate(arena.addresses(), to).unwrap();
            }
        });
        let _over = Over(&over);
        let end = Instant::now() + soak();
        while Instant::now() < end || heap.stats().moved.pages < 5000 {
            // SAFETY: the child reads its memory and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let same = is_as_it_was(&arena);
                // SAFETY: ends the child without running any code of the parent.
                unsafe { libc::_exit(i32::from(!same)) };
            }
            let mut status = 0;
            // SAFETY: our own child, and a local variable for its status.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child has the parent's pages, after {forks} forks");
            forks += 1;
        }
    });
    assert!(is_as_it_was(&arena));
    let stats = heap.stats();
    assert!(forks > 10 && stats.forks == 0, "{forks} forks, {stats:?}");
    assert_eq!((stats.copied_to_children, stats.copied_back, stats.lost), (0, 0, 0), "{stats:?}");
}
