//! Connections that do nothing.

use super::target::{BLOCK_BYTES, NQN, RunningTarget, failed};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::questions::Experiment;
use std::fs;
use std::thread;
use std::time::Duration;
use telpher_nvmf::command::io::READ;
use telpher_nvmf::initiator::Transfer;
use telpher_nvmf::initiator::requests;
use telpher_nvmf::load::{Association, LoadOptions, Pattern};
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "idle",
    question: "What do 256 idle connections cost the target?",
    cores: 1,
    weight: 0.5,
    measure,
};

/// Controllers; each has an admin queue and an I/O queue.
const CONTROLLERS: u64 = 128;
/// Most bytes of a connection. Source: issue.
const MOST_KIB: f64 = 64.0;
/// How long the connections are watched.
const WATCHED: Duration = Duration::from_secs(1);
/// Most share of a core that counts as none. Source: chosen; one wake-up in a second, which takes 100 µs.
const MOST_SHARE: f64 = 0.0001;

/// KiB of this process that are in memory.
fn resident_kib() -> Result<u64, BenchError> {
    let status = fs::read_to_string("/proc/self/status").map_err(failed("reading /proc/self/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| BenchError::NotHere("idle: /proc/self/status has no VmRSS".into()))
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let target = RunningTarget::start(machine.core(1))?;
    let options = LoadOptions { keep_alive_ms: 600_000, ..LoadOptions::new(target.address, NQN, Pattern::RandRead4k) };
    let before = resident_kib()?;
    let mut hosts = Vec::new();
    for _ in 0..CONTROLLERS {
        let mut association = Association::connect(&options, 1)?;
        let (mut queue, _) = association.open_queue(128)?;
        // One command each, so that what a connection keeps after work is counted.
        let read = requests::blocks(READ, 1, 1, 0, 1);
        queue.succeed("a Read", read, Transfer::ToHost(BLOCK_BYTES), options.patience)?;
        hosts.push((association, queue));
    }
    let after = resident_kib()?;
    // The loop finishes what it is doing.
    thread::sleep(Duration::from_millis(50));
    let begin = target.cpu();
    thread::sleep(WATCHED.min(time.max(Duration::from_millis(50))));
    let used = target.cpu().saturating_sub(begin);
    let connections = 2 * CONTROLLERS;
    let watched = WATCHED.min(time.max(Duration::from_millis(50))).as_secs_f64();
    Ok(vec![
        Row::new(
            format!("{connections} idle connections: CPU time of the target"),
            used.as_secs_f64() / watched,
            "of a core",
            Some(Goal::AtMost(MOST_SHARE)),
            format!("over {watched:.2} s"),
        ),
        Row::new(
            "memory of an idle connection, with the host's side in the same process",
            after.saturating_sub(before) as f64 / connections as f64,
            "KiB",
            Some(Goal::AtMost(MOST_KIB)),
            format!("resident memory before and after {connections} connections, each with one command done"),
        ),
    ])
}
