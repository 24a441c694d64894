//! `telpher top`: the numbers of a run's devices are those of its programs.

use crate::harness::{Run, Runtime, TELPHER, View, client, finish, in_both_views};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Runs `telpher top` inside of the run: two processes have a queue open, and a third one has closed it.
fn counted(view: View, test: &str, inject: &str) -> Option<(String, Value)> {
    let program = client("counted")?;
    let program = program.to_str().expect("UTF-8");
    let runtime = Runtime::new(test);
    let mut run = Run::on_two_queues(view);
    if !inject.is_empty() {
        run = run.with("--inject").with(inject);
    }
    let top = format!("{TELPHER} top --once --format json");
    let mut command = run.command(&[
        "/bin/sh",
        "-ec",
        &format!("{program} 3 100 4 true; {program} 5 1000 6 '{program} 7 10000 8 \"{top}\"'"),
    ]);
    command.env("TELPHER_RUNTIME_DIR", runtime.path());
    let done = finish(&mut command, None, Duration::from_secs(120));
    done.expect_success();
    let (retries, printed): (Vec<&str>, Vec<&str>) = done.stdout.lines().partition(|line| line.starts_with("retries "));
    let snapshot = serde_json::from_str::<Vec<Value>>(&printed.join("\n")).ok().and_then(|mut list| list.pop());
    Some((retries.join("\n"), snapshot.unwrap_or_default()))
}

/// Returns the rows of the run. Inside of a run, `/sys` shows its devices as hardware, too.
fn of_run<'a>(snapshot: &'a Value, rows: &str) -> Vec<&'a Value> {
    let rows = snapshot[rows].as_array().expect("rows");
    rows.iter().filter(|row| row["source"].as_str().expect("a source").starts_with("run-")).collect()
}

fn sum(rows: &[&Value], column: &str) -> u64 {
    rows.iter().map(|row| row[column].as_u64().unwrap_or_else(|| panic!("{column} of {row}"))).sum()
}

const WORK: [&str; 5] = ["descriptors", "members", "read_bytes", "written_bytes", "faults"];

in_both_views! {
    fn the_sum_of_the_processes_is_the_total_of_the_device_and_of_the_programs(view: View) {
        let name = format!("top-sum-{}", view.name());
        let Some((_, snapshot)) = counted(view, &name, "") else { return };
        let bytes = 300 + 5000 + 70_000;
        let expected = [33, 0, bytes, bytes, 0];
        for rows in ["devices", "queues", "engines", "processes"] {
            let rows = of_run(&snapshot, rows);
            assert_eq!(WORK.map(|column| sum(&rows, column)), expected, "{rows:?}");
        }
        let device = of_run(&snapshot, "devices")[0];
        assert_eq!(device["operations"], serde_json::json!([["nop", 18], ["memory-move", 15]]), "{device}");
        assert_eq!((device["errors"].as_u64(), device["clients"].as_u64()), (Some(0), Some(2)), "{device}");
        let processes = of_run(&snapshot, "processes");
        let work = |row: &&Value| (row["command"].as_str().unwrap().to_owned(), row["descriptors"].as_u64().unwrap());
        let mut works: Vec<_> = processes.iter().map(work).collect();
        works.sort();
        assert_eq!(works, [("1 closed".into(), 7), ("counted".into(), 11), ("counted".into(), 15)]);
        let engines = of_run(&snapshot, "engines");
        assert!(engines.iter().all(|row| row["busy_ns"]["unknown"] == "not recorded"), "{engines:?}");
    }

    fn injected_retries_are_counted(view: View) {
        let name = format!("top-retries-{}", view.name());
        let Some((printed, snapshot)) = counted(view, &name, "retry=50%/burst:20,seed=1") else { return };
        let seen: u64 = printed.lines().map(|line| line["retries ".len()..].parse::<u64>().unwrap()).sum();
        assert!(seen > 0, "{printed}");
        for rows in ["devices", "queues", "processes"] {
            assert_eq!(sum(&of_run(&snapshot, rows), "retries"), seen, "{rows}");
        }
        assert_eq!(sum(&of_run(&snapshot, "devices"), "descriptors"), 33);
    }
}

#[test]
fn without_a_device_the_message_says_what_to_do() {
    if std::path::Path::new("/sys/bus/dsa/devices").exists() {
        return crate::skip::skip("without_a_device_the_message_says_what_to_do", "this machine has devices");
    }
    let runtime = Runtime::new("top-none");
    for words in [&["top", "--once"][..], &["top", "--pcm", "--once"]] {
        let mut command = Command::new(TELPHER);
        command.args(words).env("TELPHER_RUNTIME_DIR", runtime.path());
        let done = finish(&mut command, None, Duration::from_secs(120));
        assert_eq!(done.code(), 1, "{done}");
        assert!(done.stderr.contains("no DSA device is in use"), "{done}");
    }
}
