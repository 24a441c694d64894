//! Unmodified programs under `telpher offload`: their memory functions have the same effect, and the device executes
//! the long calls.

use crate::harness::{Done, Runtime, TELPHER, client, client_with, finish, lacking, test_folder};
use crate::schemas;
use crate::skip::skip;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Offloads every call of 4 KiB and more to a modelled device.
pub(crate) const ALWAYS: [&str; 7] =
    ["--device", "model:spr", "--threshold", "4k", "--always", "--function", "copy,fill,compare"];

/// Runs a program with these options. Returns its result, and the counters of its processes.
pub(crate) fn offload(name: &str, options: &[&str], program: &[&str]) -> (Done, Vec<Value>) {
    let json = test_folder(name).join("offload.json");
    let mut command = Command::new(TELPHER);
    command.args(["offload", "--format", "json", "--output"]).arg(&json).args(options).arg("--").args(program);
    let done = finish(&mut command, None, Duration::from_secs(120));
    let counters = std::fs::read(&json).map_or(Vec::new(), |json| schemas::list(json, "processes"));
    (done, counters)
}

/// Returns the sum of a counter over all processes.
pub(crate) fn sum(processes: &[Value], counter: &str) -> u64 {
    processes.iter().map(|process| process[counter].as_u64().expect(counter)).sum()
}

fn word(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// The program compares every result with a loop over bytes: sizes around all limits, overlapping ranges, faults,
/// signal handlers that copy or leave, threads, children, constructors and destructors.
#[test]
fn every_call_has_its_effect_whatever_executes_it() {
    let Some(calls) = client("offload_calls") else { return };
    for device in ["model:spr", "model:full", "cpu"] {
        let options = [&ALWAYS[..], &["--device", device]].concat();
        // Two `--device` are two devices, so the first is left out.
        let (done, processes) = offload("offload_calls", &options[2..], &[word(&calls)]);
        assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{device}: {done}");
        let (by_device, bytes) = (sum(&processes, "device_calls"), sum(&processes, "device_bytes"));
        assert_eq!(by_device > 5000 && bytes > 1 << 30, device != "cpu", "{device}: {processes:?}");
        // Calls in handlers and in forked children.
        assert_eq!(sum(&processes, "other_calls") > 0, device != "cpu", "{device}: {processes:?}");
    }
}

#[test]
fn hot_copies_stay_with_the_cpu_and_the_effect_is_the_same() {
    let Some(calls) = client("offload_calls") else { return };
    let (done, processes) = offload("offload_learns", &["--device", "model:spr"], &[word(&calls)]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    assert!(sum(&processes, "timed_calls") > 0 && sum(&processes, "cpu_bytes") > 0, "{processes:?}");
    // Without --function, memset and memcmp stay with the C library.
    assert!(sum(&processes, "device_calls") < 5000, "{processes:?}");
}

/// Small coroutines, changed processor state, memcpy@GLIBC_2.2.5, `quick_exit`, overflows that `_FORTIFY_SOURCE`
/// notices; also with an auditor of the dynamic linker.
#[test]
fn calls_have_their_effect_in_unusual_surroundings() {
    let Some(program) = client("offload_contexts") else { return };
    let Some(auditor) = client_with("audits", "audits.so", &["-shared", "-fPIC"]) else { return };
    for auditor in [None, Some(word(&auditor))] {
        let audited: Vec<String> = auditor.iter().map(|auditor| format!("LD_AUDIT={auditor}")).collect();
        let words: Vec<&str> =
            [&["env"], &audited.iter().map(String::as_str).collect::<Vec<_>>()[..], &[word(&program)]].concat();
        let (done, processes) = offload("offload_contexts", &ALWAYS, &words);
        assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
        assert!(sum(&processes, "device_calls") > 20, "{processes:?}");
    }
    // A recording counts these calls too.
    let folder = test_folder("record_contexts").join("recording");
    let _ = std::fs::remove_dir_all(&folder);
    let mut record = Command::new(TELPHER);
    record.args(["record", "--quiet", "--folder"]).arg(&folder).arg("--").arg(&program);
    let done = finish(&mut record, None, Duration::from_secs(120));
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
}

/// Python's own tests of the types that copy most.
#[test]
fn python_passes_its_own_tests() {
    const NAME: &str = "python_passes_its_own_tests";
    if lacking(NAME, &[("python3", "python3")]) {
        return;
    }
    let tests = Command::new("python3").args(["-c", "import test.test_memoryview"]).output();
    if !tests.is_ok_and(|output| output.status.success()) {
        return skip(NAME, "Python's tests are not there (Debian package libpython3-testsuite)");
    }
    let tests = ["test.test_bytes", "test.test_memoryview", "test.test_mmap"];
    let program = [&["python3", "-m", "unittest", "-q"][..], &tests].concat();
    let (done, processes) = offload("offload_python", &ALWAYS, &program);
    assert_eq!(done.code(), 0, "{done}");
    assert!(sum(&processes, "device_calls") > 0, "{processes:?}");
}

/// A file is compressed and unpacked by programs that an unprepared shell starts with an empty environment.
#[test]
fn executed_programs_are_offloaded_too_and_their_data_survives() {
    const NAME: &str = "executed_programs_are_offloaded_too_and_their_data_survives";
    if lacking(NAME, &[("xz", "xz-utils"), ("gzip", "gzip"), ("sha256sum", "coreutils")]) {
        return;
    }
    let folder = test_folder("offload_archive");
    let plain: Vec<u8> =
        (0..3_000_000_u32).flat_map(|at| ((at / 7).wrapping_mul(2_654_435_761) >> 5).to_le_bytes()).collect();
    std::fs::write(folder.join("plain"), &plain).unwrap();
    let script = format!(
        "cd {} && env -i /usr/bin/xz -1 -k plain && /usr/bin/xz -dc plain.xz > again && cmp plain again && \
         gzip -c plain > plain.gz && gzip -dc plain.gz | cmp - plain && x=$(sha256sum < plain) && \
         test \"$x\" = \"$(sha256sum < again)\" && echo same",
        word(&folder)
    );
    let (done, processes) = offload("offload_exec", &ALWAYS, &["sh", "-c", &script]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "same"), "{done}");
    // Two of xz at least: shells and helpers are left alone.
    assert!(
        processes.iter().filter(|process| process["device_calls"].as_u64() > Some(0)).count() >= 2,
        "{processes:?}"
    );
}

/// Children of fork, of fork in a child, of daemon, those whose first long call a signal handler makes, or several
/// threads at once, or a thread that is being cancelled: each opens a device of its own, and a copy never calls the
/// program's allocator. A child that shares memory opens nothing, and one that runs no fork handler stays with the CPU.
///
/// Seen to fail with a device that is opened while the thread can be cancelled, on the program's stack, or by reading a
/// directory.
#[test]
fn forked_children_open_a_device_of_their_own() {
    let Some(children) = client("offload_children") else { return };
    for device in ["model:spr", "cpu"] {
        let options = [&["--device", device], &ALWAYS[2..]].concat();
        let (done, processes) = offload("offload_children", &options, &[word(&children)]);
        let lines: Vec<&str> = done.stdout.lines().collect();
        assert_eq!((done.code(), lines.last()), (0, Some(&"ok")), "{device}: {done}");
        if device == "cpu" {
            assert_eq!(processes.len(), 0, "{processes:?}");
            continue;
        }
        let pids = |kind: &str| {
            let of_kind = lines.iter().filter_map(|line| line.split_once(' ')).filter(|(name, _)| *name == kind);
            let pids: Vec<u64> = of_kind.map(|(_, pid)| pid.parse().expect("a number")).collect();
            assert!(!pids.is_empty(), "no {kind} in {done}");
            pids
        };
        let by_device = |pid: u64| {
            let found = processes.iter().find(|process| process["pid"] == pid);
            found.and_then(|process| process["device_calls"].as_u64()).unwrap_or(0)
        };
        for kind in ["parent", "fork", "grandchild", "vforked", "shared", "spawned", "daemon", "handler", "cancelled"] {
            assert!(pids(kind).into_iter().all(|pid| by_device(pid) >= 10), "{kind}: {done}\n{processes:?}");
        }
        assert_eq!(pids("threads").into_iter().filter(|pid| by_device(*pid) >= 10).count(), 8, "{processes:?}");
        for kind in ["clone", "_Fork"] {
            assert!(pids(kind).into_iter().all(|pid| by_device(pid) == 0), "{kind}: {processes:?}");
        }
        // Those of children that are young, or have no device.
        let parent = pids("parent")[0];
        let parent = processes.iter().find(|process| process["pid"] == parent).expect("the parent");
        assert!(parent["other_calls"].as_u64() > Some(0), "{parent}");
    }
}

#[test]
fn children_that_share_memory_stay_with_the_cpu() {
    let Some(children) = client("offload_children") else { return };
    let options = [&ALWAYS[..4], &["--always"]].concat();
    let (done, processes) = offload("offload_vfork", &options, &[word(&children), "vfork"]);
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""), "{done}");
    assert_eq!((sum(&processes, "device_calls"), sum(&processes, "other_calls")), (3, 20), "{processes:?}");
}

/// Regression: the second program of a process could not create its file of counters, and ran without offload.
#[test]
fn a_program_that_another_one_executes_in_its_process_is_offloaded() {
    let Some(counts) = client("offload_counts") else { return };
    // `nice` loads the library too, and executes the program.
    let (done, processes) = offload("offload_same_process", &ALWAYS, &["nice", "-n", "0", word(&counts), "20", "30"]);
    assert_eq!((done.code(), done.stderr.as_str(), processes.len()), (0, "", 1), "{done}");
    assert_eq!(sum(&processes, "device_calls"), 50, "{processes:?}");
}

/// Runs a program with variables of DTO, and returns its result, its counters and the line about the variables.
fn with_variables(
    name: &str,
    variables: &[(&str, &str)],
    options: &[&str],
    program: &[&str],
) -> (Done, Vec<Value>, String) {
    let json = test_folder(name).join("offload.json");
    let mut command = Command::new(TELPHER);
    command.args(["offload", "--format", "json", "--output"]).arg(&json).args(options).arg("--").args(program);
    command.envs(variables.iter().copied());
    let done = finish(&mut command, None, Duration::from_secs(120));
    let counters = std::fs::read(&json).map_or(Vec::new(), |json| schemas::list(json, "processes"));
    let stderr = done.stderr.lines().filter(|line| line.contains("variables of DTO")).collect::<Vec<_>>().join("\n");
    (done, counters, stderr)
}

/// `offload_counts` makes copies of 100 kB that do not overlap, and moves of 200 kB that do.
#[test]
fn variables_of_dto_are_honoured_and_options_win_over_them() {
    let Some(counts) = client("offload_counts") else { return };
    let run = |variables: &[(&str, &str)], options: &[&str]| {
        let options = [&["--device", "model:spr"], options].concat();
        let (done, processes, messages) =
            with_variables("offload_dto", variables, &options, &[word(&counts), "20", "30"]);
        assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
        ((sum(&processes, "device_calls"), sum(&processes, "other_calls")), messages)
    };
    let fixed = ("DTO_AUTO_ADJUST_KNOBS", "0");
    assert_eq!(run(&[fixed], &[]), ((50, 0), String::new()));
    assert_eq!(run(&[fixed, ("DTO_DSA_MEMCPY", "0")], &[]).0, (30, 0));
    assert_eq!(run(&[fixed, ("DTO_DSA_MEMMOVE", "0")], &[]).0, (20, 0));
    assert_eq!(run(&[fixed, ("DTO_DSA_MEMMOVE", "0")], &["--function", "memmove"]).0, (30, 0));
    assert_eq!(run(&[fixed, ("DTO_OVERLAPPING_MEMMOVE_ACTION", "0")], &[]).0, (20, 30));
    assert_eq!(run(&[fixed, ("DTO_MIN_BYTES", "150000")], &[]).0, (30, 0));
    assert_eq!(run(&[fixed, ("DTO_MIN_BYTES", "150000")], &["--threshold", "4k"]).0, (50, 0));
    let (by_device, messages) = run(&[fixed, ("DTO_MIN_BYTES", "150K"), ("DTO_WAIT_METHOD", "yield")], &[]);
    assert_eq!(by_device, (30, 0));
    assert!(messages.contains("DTO_MIN_BYTES=150K is read as 153600 bytes (DTO reads 150)"), "{messages}");
    assert!(messages.contains("DTO_WAIT_METHOD=yield") && messages.lines().count() == 1, "{messages}");
    // The option names the model, so neither of the two variables counts.
    assert_eq!(run(&[fixed, ("DTO_USESTDC_CALLS", "1"), ("DTO_WQ_LIST", "wq7.7")], &[]).0, (50, 0));
    let (done, _, _) = with_variables("offload_dto", &[("DTO_WQ_LIST", "wq99.9")], &[], &[word(&counts), "1", "1"]);
    assert!(done.code() == 125 && done.stderr.contains("cannot offload to hw:wq99.9"), "{done}");
    let none = [("DTO_USESTDC_CALLS", "1"), ("DTO_WQ_LIST", "wq99.9")];
    let (done, processes, _) = with_variables("offload_dto", &none, &[], &[word(&counts), "1", "1"]);
    assert_eq!((done.code(), processes.len()), (0, 0), "{done}");
}

/// The rows of DTO's table of counts: the lower bound of their sizes, and the numbers after it.
fn rows_of_dto(text: &str) -> HashMap<u64, Vec<u64>> {
    let (_, counts) = text.split_once("******** Number of Memory Operations ********\n").expect("a table of counts");
    let (counts, latencies) = counts.split_once("\n******** Average Memory").expect("a table of latencies");
    let row = |line: &str| {
        let (sizes, numbers) = line.split_once(" -- ")?;
        let first = sizes.trim_start().trim_start_matches(">=").split(['-', ' ']).next()?.parse().ok()?;
        Some((first, numbers.split_whitespace().map(|number| number.parse().expect("a number")).collect()))
    };
    let rows: HashMap<u64, Vec<u64>> = counts.lines().filter_map(row).collect();
    assert_eq!(latencies.matches("\n").count(), rows.len() + 3, "{text}");
    rows
}

/// Every number of the table follows from the program's calls: sets, copies, moves and comparisons of the C library,
/// of the device, and of the device with the rest left; bytes of each, and the reasons.
#[test]
fn the_table_of_dto_counts_every_call_of_the_program() {
    let Some(counts) = client("offload_counts") else { return };
    let table = |variables: &[(&str, &str)], options: &[&str], calls: &[&str]| {
        let mut command = Command::new(TELPHER);
        let device = if options.contains(&"--device") { &[][..] } else { &["--device", "model:spr"] };
        command.args(["offload", "--always"]).args(device).args(options).arg("--").arg(&counts).args(calls);
        command.envs(variables.iter().copied());
        let done = finish(&mut command, None, Duration::from_secs(120));
        assert_eq!((done.code(), done.stdout.as_str()), (0, "ok\n"), "{done}");
        (rows_of_dto(&done.stderr), done.stderr)
    };
    let all = ["--stats", "dto", "--threshold", "4k", "--function", "copy,fill,compare"];
    let (rows, text) = table(&[], &all, &["20", "30", "10", "5", "7"]);
    assert!(text.starts_with("DTO Run Time: "), "{text}");
    let none = [0; 5];
    let row = |stdc: [u64; 5], device: [u64; 5], failed: [u64; 5], reasons: [u64; 3]| {
        [&stdc[..], &device, &failed, &reasons].concat()
    };
    assert_eq!(rows[&98_304], row(none, [0, 20, 0, 0, 2_000_000], none, [0; 3]), "{text}");
    assert_eq!(rows[&196_608], row(none, [0, 0, 30, 0, 6_000_000], none, [0; 3]), "{text}");
    assert_eq!(rows[&299_008], row(none, [10, 0, 0, 0, 3_000_000], none, [0; 3]), "{text}");
    // The ranges differ in their first byte.
    assert_eq!(rows[&49_152], row(none, [0, 0, 0, 5, 0], none, [0; 3]), "{text}");
    // Short calls count too. Other parts of the program make some, the same in each run.
    let (more, _) = table(&[], &all, &["20", "30", "10", "5", "1007"]);
    assert_eq!((more[&0][1] - rows[&0][1], more[&0][4] - rows[&0][4]), (1000, 1_000_000), "{text}");

    // The device ends at a page without access, and the CPU does the rest: such a call counts twice, as in DTO.
    let (rows, text) = table(&[("DTO_COLLECT_STATS", "1")], &[], &["0", "0", "3", "0", "0", "4"]);
    let (by_device, by_cpu) = (4 * 49 * 4096, 4 * (400_000 - 49 * 4096));
    let expected = row([0, 4, 0, 0, by_cpu], none, [0, 4, 0, 0, by_device], [0, 4, 0]);
    assert_eq!(rows[&397_312], expected, "{text}");
    // memset stays with the C library unless it is selected.
    assert_eq!(rows[&299_008], row([3, 0, 0, 0, 900_000], none, none, [0; 3]), "{text}");

    // Without any device, all calls count as the C library's.
    let (rows, text) = table(&[], &["--stats", "dto", "--device", "cpu"], &["2"]);
    assert_eq!(rows[&98_304], row([0, 2, 0, 0, 200_000], none, none, [0; 3]), "{text}");
}

#[test]
fn the_table_of_dto_goes_where_the_user_wants_it() {
    let Some(counts) = client("offload_counts") else { return };
    let folder = test_folder("offload_dto_files");
    let run = |variables: &[(&str, &str)], options: &[&str]| {
        let mut command = Command::new(TELPHER);
        command.args(["offload", "--device", "model:spr"]).args(options).arg("--").arg(&counts).args(["1", "1"]);
        finish(command.envs(variables.iter().copied()), None, Duration::from_secs(120))
    };
    let (log, output) = (folder.join("log"), folder.join("output"));
    let statistics = [("DTO_COLLECT_STATS", "1"), ("DTO_LOG_FILE", word(&log))];
    let done = run(&statistics, &[]);
    assert_eq!((done.code(), done.stderr.as_str()), (0, ""), "{done}");
    let files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    // DTO appends the program's name and its number.
    assert!(word(file).starts_with(&format!("{}.offload_counts.", word(&log))), "{file:?}");
    assert_eq!(rows_of_dto(&std::fs::read_to_string(file).unwrap())[&98_304][1], 1);
    let done = run(&statistics, &["--output", word(&output)]);
    assert_eq!((done.code(), done.stderr.as_str(), std::fs::read_dir(&folder).unwrap().count()), (0, "", 2), "{done}");
    assert_eq!(rows_of_dto(&std::fs::read_to_string(&output).unwrap())[&98_304][1], 1);
    // An option wins over the variable.
    let done = run(&statistics[..1], &["--stats", "summary"]);
    assert!(done.code() == 0 && !done.stderr.contains("DTO Run Time"), "{done}");
    let done = run(&[], &["--stats", "dto", "--format", "json"]);
    assert!(done.code() == 125 && done.stderr.contains("leave out --format"), "{done}");
}

/// The user names a library, and then the program.
#[test]
fn calls_of_denied_programs_and_libraries_stay_with_the_cpu() {
    let Some(program) = client("record_calls") else { return };
    let Some(library) = client_with("record_library", "record_library.so", &["-shared", "-fPIC"]) else { return };
    let by_device = |deny: &[&str]| {
        let options = [&ALWAYS[..], deny].concat();
        let (done, processes) = offload("offload_deny", &options, &[word(&program), "library", word(&library)]);
        assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
        (sum(&processes, "device_calls"), sum(&processes, "other_calls"))
    };
    // 1000 calls of the program, and 1000 of the library.
    let (all, none) = by_device(&[]);
    assert!(all >= 2000, "{all} calls by the device, {none} by the CPU");
    let (others, denied) = by_device(&["--deny", "record_library"]);
    assert!((1000..all - 900).contains(&others) && denied >= 1000, "{others} calls by the device, {denied} denied");
    assert_eq!(by_device(&["--deny", "other,record_calls"]), (0, 0));
}

#[test]
fn what_cannot_be_offloaded_is_refused_with_the_shells_codes() {
    let code = |options: &[&str], program: &str| {
        let (done, _) = offload("offload_refused", options, &[program]);
        (done.code(), done.stderr)
    };
    let folder = test_folder("offload_static");
    let script: PathBuf = folder.join("not-executable");
    std::fs::write(&script, "x").unwrap();
    assert_eq!(code(&[], "no-such-program").0, 127);
    assert_eq!(code(&[], word(&script)).0, 126);
    let (missing, why) = code(&["--device", "hw:wq99.9"], "true");
    assert_eq!(missing, 125, "{why}");
    assert!(why.contains("cannot offload to hw:wq99.9"), "{why}");
    let (fine, why) = code(&[], "true");
    assert_eq!(fine, 0, "{why}");
    assert!(why.contains("no hardware queue") || Path::new("/dev/dsa").exists(), "{why}");
}

/// Runs a program by `env` with the printed variables only, as a systemd unit or a container does.
fn run_with(variables: &str, program: &[&str]) -> Done {
    // No character of the values has a meaning for a shell, for systemd or in a list of variables.
    assert!(variables.lines().all(|line| line.bytes().all(|b| b.is_ascii_alphanumeric() || b"=/.:_-,+@".contains(&b))));
    let mut command = Command::new("env");
    command.arg("-i").args(variables.lines()).args(program);
    finish(&mut command, None, Duration::from_secs(120))
}

#[test]
fn printed_variables_offload_a_program_that_another_one_starts() {
    let Some(calls) = client("offload_calls") else { return };
    let runtime = Runtime::new("offload-env");
    let print = |options: &[&str]| {
        let mut command = Command::new(TELPHER);
        command.args(["offload", "--print-env"]).args(options).env("XDG_CACHE_HOME", runtime.path());
        finish(&mut command, None, Duration::from_secs(120))
    };
    let device = ["--device", "model:spr", "--always", "--threshold", "4k"];
    let done = print(&device);
    assert_eq!((done.code(), done.stderr.as_str(), done.stdout.lines().count()), (0, "", 2), "{done}");
    let (library, settings) = done.stdout.trim().split_once('\n').expect("two lines");
    let library = library.strip_prefix("LD_PRELOAD=").expect("the library");
    assert!(library.starts_with(word(&runtime.path().join("telpher"))) && Path::new(library).is_file(), "{done}");
    assert!(settings.starts_with("TELPHER_OFFLOAD=version=") && settings.contains("device=model:spr"), "{done}");
    let ran = run_with(&done.stdout, &[word(&calls)]);
    assert_eq!((ran.code(), ran.stdout.trim(), ran.stderr.as_str()), (0, "ok", ""), "{ran}");
    // The program has the library, and reads its settings: it reports a device that does not exist.
    let done = print(&["--device", "hw:wq99.9"]);
    let ran = run_with(&done.stdout, &[word(&calls)]);
    assert!(ran.code() == 0 && ran.stderr.contains("runs without offload: cannot open wq99.9"), "{ran}");
    // The same build writes the same file; a user may name another one, also for the variables.
    let (named, list) = (runtime.path().join("libtelpher-offload.so"), runtime.path().join("list"));
    let done = print(&[&device[..], &["--library-file", word(&named), "--output", word(&list)]].concat());
    assert_eq!((done.code(), done.stdout.as_str()), (0, ""), "{done}");
    let list = std::fs::read_to_string(&list).unwrap();
    assert!(list.starts_with(&format!("LD_PRELOAD={}\n", word(&named))), "{list}");
    assert_eq!(std::fs::read(&named).unwrap(), std::fs::read(library).unwrap());
    let ran = run_with(&list, &["grep", "-c", "libtelpher-offload.so", "/proc/self/maps"]);
    assert!(ran.code() == 0 && ran.stdout.trim() != "0", "{ran}");
    for (wrong, why) in [
        (&["--library-file", "/dev/shm/a b.so"][..], "LD_PRELOAD cannot contain"),
        (&["--library-file", "/no/such/folder/a.so"], "cannot write the library to"),
        (&["--stats", "dto"], "leave out --stats dto"),
        (&["--device", "hw:wq0"], "queues are named like"),
    ] {
        let done = print(wrong);
        assert!(done.code() == 125 && done.stderr.contains(why) && done.stdout.is_empty(), "{wrong:?}: {done}");
    }
}

/// A program under `telpher offload` that copies when it is asked to.
struct Served {
    run: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pid: String,
}

impl Served {
    fn start(runtime: &Runtime, json: &Path, program: &Path) -> Served {
        let mut command = Command::new(TELPHER);
        command.args(["offload", "--device", "model:spr", "--always", "--format", "json", "--output"]).arg(json);
        command.arg("--").arg(program).env("TELPHER_RUNTIME_DIR", runtime.path());
        let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("telpher runs");
        let (input, output) = (run.stdin.take().unwrap(), run.stdout.take().unwrap());
        let mut served = Served { run, input, output: BufReader::new(output), pid: String::new() };
        served.pid = served.line();
        served
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the program can be read");
        line.trim_end().to_owned()
    }

    /// Makes so many copies.
    fn copy(&mut self, count: u64) {
        writeln!(self.input, "{count}").expect("the program reads");
        assert_eq!(self.line(), format!("done {count}"));
    }

    /// Ends the program and returns its exit code.
    fn end(mut self) -> Option<i32> {
        drop(self.input);
        self.run.wait().expect("telpher ends").code()
    }
}

/// Runs a command on processes of this runtime directory.
fn on_processes(runtime: &Runtime, words: &[&str]) -> Done {
    let mut command = Command::new(TELPHER);
    command.arg("offload").args(words).env("TELPHER_RUNTIME_DIR", runtime.path());
    finish(&mut command, None, Duration::from_secs(120))
}

/// Returns the row of a process in `telpher offload top`.
fn row_of(runtime: &Runtime, pid: &str) -> Value {
    let done = on_processes(runtime, &["top", "--once", "--format", "json", pid]);
    assert_eq!(done.code(), 0, "{done}");
    let rows = schemas::list(&done.stdout, "processes");
    assert_eq!(rows.len(), 1, "{done}");
    rows[0].clone()
}

#[test]
fn a_running_process_is_switched_to_the_cpu_and_back() {
    let Some(program) = client("offload_served") else { return };
    let (runtime, json) = (Runtime::new("offload-switch"), test_folder("offload_switch").join("offload.json"));
    let mut served = Served::start(&runtime, &json, &program);
    let pid = served.pid.clone();
    served.copy(10);
    let row = row_of(&runtime, &pid);
    assert_eq!(
        (&row["is_on"], &row["device_calls"], &row["command"]),
        (&true.into(), &10.into(), &"offload_served".into())
    );
    let site = &row["sites"][0];
    assert_eq!(
        (&site["calls"], &site["device_bytes"], &site["verdict"]),
        (&10.into(), &1_000_000.into(), &"device: always".into())
    );
    assert!(site["site"].as_str().unwrap().starts_with("main+0x"), "{row}");
    for (word, is_on) in [("off", false), ("off", false), ("on", true)] {
        let done = on_processes(&runtime, &[word, &pid]);
        assert_eq!((done.code(), done.stdout.as_str(), done.stderr.as_str()), (0, "", ""), "{done}");
        assert_eq!(row_of(&runtime, &pid)["is_on"], is_on);
        served.copy(20);
    }
    let row = row_of(&runtime, &pid);
    assert_eq!(
        (&row["device_calls"], &row["other_calls"], &row["cpu_bytes"]),
        (&30.into(), &40.into(), &4_000_000.into())
    );
    // This test's own process has no device.
    let done = on_processes(&runtime, &["off", &std::process::id().to_string()]);
    assert!(done.code() == 1 && done.stderr.contains("has no device under `telpher offload`"), "{done}");
    assert_eq!(served.end(), Some(0));
    let done = on_processes(&runtime, &["off", &pid]);
    assert!(done.code() == 1 && done.stderr.contains("has no device"), "{done}");
}

#[test]
fn the_live_table_shows_the_chosen_processes_and_ends_with_them() {
    let Some(program) = client("offload_served") else { return };
    let (runtime, folder) = (Runtime::new("offload-top"), test_folder("offload_top"));
    let done = on_processes(&runtime, &["top"]);
    assert!(done.code() == 1 && done.stderr.contains("no process has a device"), "{done}");
    let mut first = Served::start(&runtime, &folder.join("first"), &program);
    let mut second = Served::start(&runtime, &folder.join("second"), &program);
    first.copy(3);
    second.copy(4);
    let table = on_processes(&runtime, &["top", "--once"]);
    let line = |pid: &str| table.stdout.lines().find(|line| line.split_whitespace().next() == Some(pid));
    let words =
        |pid: &str| line(pid).unwrap_or_else(|| panic!("{table}")).split_whitespace().take(4).collect::<Vec<_>>();
    assert_eq!(words(&first.pid), [&first.pid, "offload_served", "device", "3"]);
    assert_eq!(words(&second.pid)[3], "4");
    // The call sites have a table of their own.
    let sites = table.stdout.lines().skip_while(|line| !line.contains("call site"));
    let site = sites.clone().find(|line| line.split_whitespace().next() == Some(&second.pid));
    assert!(site.is_some_and(|line| line.contains("main+0x") && line.contains("device: always")), "{table}");
    let only = on_processes(&runtime, &["top", "--every", "0.05", "--count", "3", "--format", "csv", &second.pid]);
    let lines: Vec<&str> = only.stdout.lines().collect();
    assert!(lines.len() == 6 && lines[5].contains(&second.pid) && !only.stdout.contains(&first.pid), "{only}");
    // Until no process is left: one line of JSON for each update, the last of them before the end of the program.
    let mut command = Command::new(TELPHER);
    command.args(["offload", "top", "--every", "0.05", "--format", "json", &first.pid]);
    command.env("TELPHER_RUNTIME_DIR", runtime.path()).stdout(Stdio::piped());
    let mut live = command.spawn().expect("telpher runs");
    let mut updates = BufReader::new(live.stdout.take().unwrap()).lines();
    let mut update = || Some(schemas::list(updates.next()?.ok()?, "processes"));
    assert_eq!(update().expect("an update")[0]["device_calls"], 3);
    first.copy(5);
    while update().expect("another update")[0]["device_calls"] != 8 {}
    assert_eq!(first.end(), Some(0));
    while update().is_some() {}
    assert!(live.wait().unwrap().success());
    // Or until its reader has gone, while the process still runs.
    let mut command = Command::new(TELPHER);
    command.args(["offload", "top", "--every", "0.05", &second.pid]).env("TELPHER_RUNTIME_DIR", runtime.path());
    let mut read_once = command.stdout(Stdio::piped()).spawn().expect("telpher runs");
    let mut line = String::new();
    BufReader::new(read_once.stdout.take().unwrap()).read_line(&mut line).expect("a line");
    assert!(read_once.wait().unwrap().success());
    assert_eq!(second.end(), Some(0));
}
