//! `telpher offload` beside other libraries and tools that take part in a process: allocators, tiered memory,
//! sanitizers and valgrind.

use crate::harness::{Done, TELPHER, client, client_with, finish, lacking, test_folder};
use crate::offload::{ALWAYS, offload, sum};
use crate::schemas;
use crate::skip::skip;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Allocators that programs preload, and their Debian packages.
const ALLOCATORS: [(&str, &str); 3] = [
    ("libjemalloc.so.2", "libjemalloc2"),
    ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    ("libmimalloc.so.2", "libmimalloc2.0"),
];

fn word(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Starts a program with another library before or behind the library of this command.
fn beside(library: &str, is_before: bool, program: &Path) -> (Done, Vec<Value>) {
    let list = if is_before { format!("{library}:$LD_PRELOAD") } else { format!("$LD_PRELOAD:{library}") };
    // The shell is left alone, and has the variable for its children.
    let script = format!("LD_PRELOAD=\"{list}\" exec {} brief", word(program));
    offload("offload_beside", &ALWAYS, &["sh", "-c", &script])
}

/// The allocators call memset and memcpy from their first allocation on, partly with a lock held.
#[test]
fn every_call_has_its_effect_beside_other_allocators() {
    const NAME: &str = "every_call_has_its_effect_beside_other_allocators";
    let Some(calls) = client("offload_calls") else { return };
    for (library, package) in ALLOCATORS {
        let probe = Command::new("true").env("LD_PRELOAD", library).output().expect("true runs");
        // The dynamic linker reports a library that it does not find, and goes on.
        if !probe.stderr.is_empty() {
            skip(NAME, &format!("no {library} (Debian package {package})"));
            continue;
        }
        for is_before in [true, false] {
            let (done, processes) = beside(library, is_before, &calls);
            let case = format!("{library}, {}", if is_before { "before" } else { "behind" });
            assert_eq!((done.code(), done.stdout.trim(), done.stderr.as_str()), (0, "ok", ""), "{case}: {done}");
            let by_device = sum(&processes, "device_calls");
            assert!(by_device > 1500, "{case}: {by_device} calls by the device, {processes:?}");
        }
    }
}

/// Runs a program that the library leaves alone. Returns the reason that it prints.
fn refused(test: &str, program: &[&str]) -> (Done, String) {
    let (done, processes) = offload(test, &ALWAYS, program);
    assert_eq!(sum(&processes, "device_calls"), 0, "{done}");
    let reasons: Vec<&str> = done.stderr.lines().filter(|line| line.contains("runs without offload: ")).collect();
    let [reason] = reasons[..] else { panic!("not one reason: {done}") };
    let reason = reason.to_owned();
    (done, reason)
}

/// Their runtimes replace the memory functions to check the program's arguments.
#[test]
fn programs_with_a_sanitizer_run_unchanged_and_are_reported() {
    const NAME: &str = "programs_with_a_sanitizer_run_unchanged_and_are_reported";
    if lacking(NAME, &[("gcc", "gcc")]) {
        return;
    }
    for (flag, sanitizer) in [("address", "AddressSanitizer"), ("thread", "ThreadSanitizer")] {
        let option = format!("-fsanitize={flag}");
        let counts = client_with("offload_counts", &format!("offload_counts_{flag}"), &[&option]);
        let Some(counts) = counts else { return };
        // The runtime maps fixed addresses, which some kernels give to other mappings.
        if !Command::new(&counts).arg("1").output().is_ok_and(|output| output.status.success()) {
            skip(NAME, &format!("{sanitizer} does not work on this machine"));
            continue;
        }
        let (done, reason) = refused(&format!("offload_{flag}"), &[word(&counts), "20", "30"]);
        assert_eq!((done.code(), done.stdout.as_str()), (0, "ok\n"), "{done}");
        assert!(reason.contains(sanitizer), "{done}");
    }
}

#[test]
fn a_program_under_valgrind_runs_unchanged_and_is_reported() {
    const NAME: &str = "a_program_under_valgrind_runs_unchanged_and_is_reported";
    if lacking(NAME, &[("valgrind", "valgrind")]) {
        return;
    }
    let Some(counts) = client("offload_counts") else { return };
    let valgrind = ["valgrind", "--quiet", "--error-exitcode=9", word(&counts), "2", "3"];
    let (done, reason) = refused("offload_valgrind", &valgrind);
    assert_eq!((done.code(), done.stdout.as_str()), (0, "ok\n"), "{done}");
    assert!(reason.ends_with("valgrind replaces these functions itself"), "{done}");
}

/// A program that is setuid loads no library of its user's choice.
#[test]
fn a_setuid_program_is_refused_before_it_starts() {
    const NAME: &str = "a_setuid_program_is_refused_before_it_starts";
    if !rustix::process::getuid().is_root() {
        return skip(NAME, "only root can make a program that is setuid to another user");
    }
    let path = test_folder("offload_setuid").join("program");
    std::fs::copy("/bin/true", &path).expect("room for a program");
    std::os::unix::fs::chown(&path, Some(1), None).expect("root changes the owner");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).expect("setuid");
    let (done, _) = offload("offload_setuid_run", &ALWAYS, &[word(&path)]);
    assert!(done.code() == 126 && done.stderr.contains("setuid"), "{done}");
}

/// Pages move between two tiers while their bytes are copied by the device of the program, in both orders of the two
/// commands.
#[test]
fn every_call_has_its_effect_in_memory_that_moves_between_tiers() {
    const NAME: &str = "every_call_has_its_effect_in_memory_that_moves_between_tiers";
    if crate::tier::cannot(NAME) {
        return;
    }
    let Some(calls) = client("offload_calls") else { return };
    let folder = test_folder("offload_tier");
    let [counters, report] = ["offload.json", "tier.json"].map(|name| folder.join(name));
    let offload = |program: &[&str]| {
        let words = [TELPHER, "offload", "--format", "json", "--output", word(&counters)];
        [&words[..], &ALWAYS, &["--"], program].concat().iter().map(ToString::to_string).collect::<Vec<String>>()
    };
    let tier = |program: &[&str]| {
        let tiers = ["--tier", "fast=256m", "--tier", "slow", "--shuffle", "--limit", "2g"];
        let words = [TELPHER, "tier", "run", "--format", "json", "--output", word(&report)];
        [&words[..], &tiers, &["--"], program].concat().iter().map(ToString::to_string).collect::<Vec<String>>()
    };
    let words = |words: Vec<String>, outer: &dyn Fn(&[&str]) -> Vec<String>| {
        outer(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for command in [words(offload(&[word(&calls), "brief"]), &tier), words(tier(&[word(&calls), "brief"]), &offload)] {
        let mut process = Command::new(&command[0]);
        let done = finish(process.args(&command[1..]), None, Duration::from_secs(120));
        assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
        let read = |path: &Path| schemas::list(std::fs::read(path).expect("a file"), "processes");
        let processes = read(&counters);
        let by_device = sum(&processes, "device_calls");
        assert!(by_device > 1000, "{by_device} calls by the device, {processes:?}");
        let states = read(&report);
        let moved = states.iter().map(|state| state["counts"]["moved"].as_u64());
        assert!(moved.flatten().sum::<u64>() > 0, "{states:?}");
    }
}
