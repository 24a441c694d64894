//! Engine threads without work. In a process of its own, so that only this device's threads are counted.

use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, Runner};

/// Nanoseconds the engine threads of this process have run.
fn engine_time() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs lists this process's threads");
    tasks
        .filter_map(|task| {
            let task = task.ok()?.path();
            let name = std::fs::read_to_string(task.join("comm")).ok()?;
            let stat = std::fs::read_to_string(task.join("schedstat")).ok()?;
            name.starts_with("telpher-engine").then(|| stat.split(' ').next()?.parse::<u64>().ok()).flatten()
        })
        .sum()
}

#[test]
fn idle_engines_burn_no_cpu() {
    let device = ModelDevice::start(ModelOptions::default().with_runner(Runner::Threaded)).expect("the default starts");
    // Long enough for every worker to have stopped spinning.
    std::thread::sleep(Duration::from_millis(50));
    let before = engine_time();
    std::thread::sleep(Duration::from_millis(200));
    let used = engine_time() - before;
    assert!(used < 2_000_000, "engine threads ran {used} ns of 200 ms without work");
    drop(device);
}
