//! Engine threads and the program's signals. In a process of its own, so that every thread of that name is this device's.

use telpher_device::{ModelDevice, ModelOptions, Runner};

/// What the status of a thread says of its blocked signals: bit *n* - 1 is signal *n*.
fn blocked(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("procfs tells the mask");
    u64::from_str_radix(mask.trim(), 16).expect("a hexadecimal number")
}

/// The masks of this process's engine threads.
fn engines() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs lists this process's threads");
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("status")).ok());
    status.filter(|status| status.starts_with("Name:\ttelpher-engine")).map(|status| blocked(&status)).collect()
}

/// A handler that copied and waited, on the thread that had to do the copy, waited for ever.
#[test]
fn no_handler_of_the_program_runs_on_an_engine_and_page_faults_still_do() {
    let mine = || blocked(&std::fs::read_to_string("/proc/thread-self/status").expect("procfs describes this thread"));
    let before = mine();
    let device = ModelDevice::start(ModelOptions::default().with_runner(Runner::Threaded)).expect("the default starts");
    assert_eq!(mine(), before, "the caller's own mask is as it was");
    let engines = loop {
        // A thread gives itself its name.
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
