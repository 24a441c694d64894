//! Engine threads without work. Runs in its own process, so that only this device's threads are counted.

use std::path::PathBuf;
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, Runner};

/// Returns the threads of this process.
fn threads() -> impl Iterator<Item = PathBuf> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs lists this process's threads");
    tasks.map(|task| task.expect("a thread").path())
}

/// Returns the run time in nanoseconds of all threads except `others`, and whether such threads exist and all of them
/// sleep. An engine thread that has not run yet cannot be identified by name.
fn engines(others: &[PathBuf]) -> (u64, bool) {
    let (mut time, mut states) = (0, String::new());
    for thread in threads().filter(|thread| !others.contains(thread)) {
        let read = |file: &str| std::fs::read_to_string(thread.join(file)).expect("procfs describes our threads");
        time += read("schedstat").split(' ').next().and_then(|ran| ran.parse::<u64>().ok()).expect("nanoseconds");
        // The state follows the name, which is in parentheses.
        states.extend(read("stat").rsplit(") ").next().expect("fields").chars().next());
    }
    (time, !states.is_empty() && states.chars().all(|state| state == 'S'))
}

#[test]
fn idle_engines_use_no_cpu_time() {
    let others: Vec<PathBuf> = threads().collect();
    let device = ModelDevice::start(ModelOptions::default().with_runner(Runner::Threaded)).expect("the default starts");
    // Waits until every worker has stopped spinning, however long it first waits for a processor. A worker that sleeps
    // may not have started yet, so some of its spinning may fall into the measured time. Engines that really use CPU
    // time never come to rest.
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
