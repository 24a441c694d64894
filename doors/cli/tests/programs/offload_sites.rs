//! What `telpher offload` learns about call sites: shown while the program runs and at its end, and kept for the next
//! run.

use crate::harness::{TELPHER, client, finish, test_folder};
use crate::offload::{offload, sum};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A modelled device, which learns.
const MODEL: [&str; 2] = ["--device", "model:spr"];

fn word(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Returns the call site of a function, of the process that has it.
fn site<'a>(processes: &'a [Value], function: &str) -> &'a Value {
    let sites = processes.iter().filter_map(|process| process["sites"].as_array()).flatten();
    let of_function = |site: &&Value| {
        site["site"].as_str().is_some_and(|name| name.strip_prefix(function).is_some_and(|rest| rest.starts_with('+')))
    };
    sites.clone().find(of_function).unwrap_or_else(|| panic!("no {function} in {:?}", sites.collect::<Vec<_>>()))
}

/// The data is flushed from the caches before each copy, so that no noise makes it look cached.
#[test]
fn what_one_run_has_learned_the_next_one_uses_from_the_first_call_on() {
    let Some(program) = client("offload_cold") else { return };
    let file = test_folder("offload_learned").join("learned.txt");
    let _ = std::fs::remove_file(&file);
    let options = [&MODEL[..], &["--learned", word(&file)]].concat();
    let (done, processes) = offload("offload_learned_first", &options, &[word(&program), "100"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let first = site(&processes, "copy_from_memory");
    assert_eq!((&first["verdict"], &first["calls"]), (&"device".into(), &100.into()), "{first}");
    assert!(sum(&processes, "timed_calls") >= 2, "it learns from the CPU's copies: {processes:?}");
    assert_eq!(first["device_bytes"].as_u64().unwrap() + first["cpu_bytes"].as_u64().unwrap(), 100 << 16, "{first}");
    assert!(first["file"].as_str().unwrap().ends_with("/offload_cold"), "{first}");
    let text = std::fs::read_to_string(&file).expect("verdicts");
    let line = text.lines().find(|line| line.contains("offload_cold")).unwrap_or_else(|| panic!("{text}"));
    let offset = format!(" {:#x} ", first["offset"].as_u64().unwrap());
    assert!(line.starts_with("device ") && line.contains(&offset), "{text}");
    let options = [&MODEL[..], &["--verdicts", word(&file)]].concat();
    let (done, processes) = offload("offload_learned_second", &options, &[word(&program), "100"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let second = site(&processes, "copy_from_memory");
    assert_eq!((&second["verdict"], &second["device_calls"]), (&"device: given".into(), &100.into()), "{second}");
    assert_eq!(sum(&processes, "timed_calls"), 0, "{processes:?}");
}

#[test]
fn a_killed_program_leaves_what_it_has_learned() {
    let Some(program) = client("offload_cold") else { return };
    let file = test_folder("offload_learned_killed").join("learned.txt");
    let _ = std::fs::remove_file(&file);
    let options = [&MODEL[..], &["--learned", word(&file)]].concat();
    let (done, _) = offload("offload_killed", &options, &[word(&program), "50", "kill"]);
    assert_eq!(done.code(), 137, "{done}");
    let text = std::fs::read_to_string(&file).expect("verdicts");
    assert!(text.lines().any(|line| line.starts_with("device ") && line.contains("offload_cold")), "{text}");
    // A file that cannot be written is noticed before the program runs.
    let options = [&MODEL[..], &["--learned", "/no/such/folder/learned.txt"]].concat();
    let (done, _) = offload("offload_killed", &options, &[word(&program), "1"]);
    assert!(done.code() == 125 && done.stdout.is_empty() && done.stderr.contains("/no/such/folder"), "{done}");
}

/// The CPU is slow at pages that are touched first, so that their data seems to be in memory. The modelled device stops
/// at a page without access, as others do at absent ones.
#[test]
fn a_site_whose_pages_are_absent_goes_back_to_the_cpu() {
    let Some(program) = client("offload_cold") else { return };
    let (done, processes) = offload("offload_absent", &MODEL, &[word(&program), "60", "absent"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let site = site(&processes, "copy_from_memory");
    assert_eq!((&site["verdict"], &site["calls"]), (&"CPU: pages absent".into(), &60.into()), "{site}");
    let by_device = site["device_calls"].as_u64().unwrap();
    assert!((1..20).contains(&by_device) && sum(&processes, "faults") >= by_device, "{processes:?}");
}

#[test]
fn the_summary_shows_call_sites_on_demand() {
    let Some(program) = client("offload_counts") else { return };
    let run = |options: &[&str]| {
        let mut command = Command::new(TELPHER);
        command.arg("offload").args(MODEL).arg("--always").args(options).arg("--").args([word(&program), "20", "30"]);
        let done = finish(&mut command, None, Duration::from_secs(120));
        assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
        done.stderr
    };
    assert!(!run(&[]).contains("call site"));
    let text = run(&["--sites"]);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("main+0x")).collect();
    let words = |line: &str| line.split_whitespace().skip(2).map(String::from).collect::<Vec<_>>().join(" ");
    let found: Vec<String> = lines.into_iter().map(words).collect();
    assert_eq!(found, ["30 5.722 MiB 100 % device: always", "20 1.907 MiB 100 % device: always"], "{text}");
    let csv = run(&["--sites", "--format", "csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines.len() == 3 && lines[0].contains("verdict") && csv.contains("device: always"), "{csv}");
    assert!(!run(&["--format", "csv"]).contains("verdict"));
}
