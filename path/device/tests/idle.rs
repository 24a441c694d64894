//! Engine threads without work. In a process of its own, so that only this device's threads are counted.

use std::path::PathBuf;
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, Runner};

/// The threads of this process.
fn threads() -> impl Iterator<Item = PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs lists this process's threads");
    tasks.map(|task| task.expect("a thread").path())
}

/// Nanoseconds that all but the `others` have run, and whether there are such and all of them sleep. An engine that has not
/// run yet has no name to be known by.
fn engines(others: &[PathBuf]) -> (u64, bool) {
    let (mut time, mut states) = (0, String::new());
    for thread in threads().filter(|thread| !others.contains(thread)) {
        let read = |file: &str| std::fs::read_to_string(thread.join(file)).expect("a thread of ours tells of itself");
        time += read("schedstat").split(' ').next().and_then(|ran| ran.parse::<u64>().ok()).expect("nanoseconds");
        // The state stands behind the name, which is in parentheses.
        states.extend(read("stat").rsplit(") ").next().expect("fields").chars().next());
    }
    (time, !states.is_empty() && states.chars().all(|state| state == 'S'))
}

#[test]
fn idle_engines_burn_no_cpu() {
    let others: Vec<PathBuf> = threads().collect();
    let device = ModelDevice::start(ModelOptions::default().with_runner(Runner::Threaded)).expect("the default starts");
    // Until every worker has stopped spinning, however long it waits for a processor before. One that sleeps may have yet to begin,
    // so that some of its spinning may be met behind this; engines that do burn never come to rest.
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let (time, asleep) = engines(&others);
        let used = time - before;
        if asleep && used < 2_000_000 {
            break;
        }
        assert!(time < 2_000_000_000, "engine threads ran {time} ns without work, {used} ns of the last 200 ms");
        before = time;
    }
    drop(device);
}
