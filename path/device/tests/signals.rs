//! Engine threads and the program's signals. Runs in its own process, so that every thread of that name belongs to this
//! device.

use telpher_device::{ModelDevice, ModelOptions, Runner};

/// Returns the blocked signals from a thread's status file: bit *n* - 1 is signal *n*.
fn blocked(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("procfs lists the mask");
    u64::from_str_radix(mask.trim(), 16).expect("a hexadecimal number")
}

/// Returns the masks of this process's engine threads.
fn engines() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs lists this process's threads");
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    status.filter(|status| status.starts_with("Name:\ttelpher-engine")).map(|status| blocked(&status)).collect()
}

/// Regression: a handler that copied and waited, on the thread that had to do the copy, waited for ever.
#[test]
fn engines_run_no_program_handlers_but_handle_page_faults() {
    let mine = || blocked(&std::fs::read_to_string("/proc/thread-self/status").expect("procfs describes this thread"));
    let before = mine();
    let device = ModelDevice::start(ModelOptions::default().with_runner(Runner::Threaded)).expect("the default starts");
    assert_eq!(mine(), before, "the caller's own mask is as it was");
    let engines = loop {
        // A thread sets its own name.
        let found = engines();
        if !found.is_empty() {
            break found;
        }
        std::thread::yield_now();
    };
    let bit = |signal: i32| 1_u64 << (signal - 1);
    for mask in engines {
        for signal in [libc::SIGALRM, libc::SIGUSR1, libc::SIGINT, libc::SIGCHLD, libc::SIGRTMAX()] {
            assert_ne!(mask & bit(signal), 0, "signal {signal}");
        }
        assert_eq!(mask & (bit(libc::SIGSEGV) | bit(libc::SIGBUS)), 0, "page faults");
    }
    drop(device);
}
