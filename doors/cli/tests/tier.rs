//! `telpher tier` from a user's view: exit codes, errors, the final report and the live view.

mod schemas;
#[path = "../../../ci/skip.rs"]
mod skip;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use telpher_os::{Scan, Userfault, UserfaultFeatures};

const TIERS: [&str; 4] = ["--tier", "fast=64m", "--tier", "slow"];

fn telpher(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    command.arg("tier").args(args);
    command
}

fn output(args: &[&str]) -> Output {
    telpher(args).output().expect("telpher runs")
}

/// Runs `tier run` with two tiers of one node, more options, and a program.
fn run(options: &[&str], program: &[&str]) -> Output {
    let mut args = vec!["run"];
    args.extend(TIERS);
    args.extend(options);
    args.push("--");
    args.extend(program);
    output(&args)
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Skips and returns true if pages cannot be moved on this machine.
fn lacking(test: &str) -> bool {
    let lacks = Scan::open().is_err() || Userfault::open(UserfaultFeatures::MOVE).is_err();
    if lacks {
        skip::skip(test, "the kernel has no userfaultfd that moves pages, or not for this user (Linux 6.8)");
    }
    lacks
}

fn test_folder(name: &str) -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tier").join(name);
    let _ = std::fs::remove_dir_all(&room);
    std::fs::create_dir_all(&room).unwrap();
    room
}

/// Returns the processes in a result; none without a result, while there is nothing to show.
fn processes(json: &[u8]) -> Vec<Value> {
    if json.is_empty() { Vec::new() } else { schemas::list(json, "processes") }
}

#[test]
fn the_exit_code_is_the_programs() {
    if lacking("the_exit_code_is_the_programs") {
        return;
    }
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143)] {
        let ended = run(&["--quiet"], &["sh", "-c", script]);
        assert_eq!(ended.status.code(), Some(code), "{script}: {}", error(&ended));
        assert_eq!(error(&ended), "", "{script}");
    }
    assert_eq!(run(&[], &["no-such-program-here"]).status.code(), Some(127));
    assert_eq!(run(&[], &["/etc/passwd"]).status.code(), Some(126));
}

/// The bench's own programs check their results and their data themselves, and their checksums are compared.
#[test]
fn programs_with_random_accesses_have_the_same_answers_with_all_pages_moving() {
    if lacking("programs_with_random_accesses_have_the_same_answers_with_all_pages_moving") {
        return;
    }
    let json = test_folder("workloads").join("states.json");
    for parameters in ["cross-sections points=200 lookups=20000", "shortest-paths scale=12 sources=8"] {
        let words = |more: &str| {
            let words = format!("bench tier --workload {parameters} threads=2 {more}");
            words.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let checksum = |ended: &Output| {
            let said = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert_eq!(ended.status.code(), Some(0), "{said}{}", error(ended));
            said.lines().find_map(|line| line.strip_prefix("checksum: ")).unwrap_or_else(|| panic!("{said}")).to_owned()
        };
        let alone = Command::new(env!("CARGO_BIN_EXE_telpher")).args(words("")).output().unwrap();
        let managed = |more: &str| {
            let program = [vec![env!("CARGO_BIN_EXE_telpher").to_owned()], words(more)].concat();
            let options = ["--quiet", "--shuffle", "--format", "json", "--output", json.to_str().unwrap()];
            run(&options, &program.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(checksum(&managed("")), checksum(&alone), "{parameters}");
        let states = processes(&std::fs::read(&json).unwrap());
        let sum = |what: &str| states.iter().map(|state| state["counts"][what].as_u64().unwrap()).sum::<u64>();
        assert!(sum("promoted") > 0 && sum("demoted") > 0, "{parameters}: {states:?}");
        assert_eq!(sum("lost"), 0, "{parameters}: {states:?}");
        // A changed bit is a wrong result.
        let wrong = managed("damage=1");
        assert_eq!(wrong.status.code(), Some(1), "{}", error(&wrong));
        assert!(error(&wrong).contains("wrong result of ") && wrong.stdout.is_empty(), "{}", error(&wrong));
    }
}

#[test]
fn invalid_options_are_one_sentence_errors_before_anything_runs() {
    if lacking("invalid_options_are_one_sentence_errors_before_anything_runs") {
        return;
    }
    let refused = |args: &[&str], part: &str| {
        let refused = output(args);
        let message = error(&refused);
        assert_eq!(refused.status.code(), Some(125), "{message}");
        assert!(
            message.starts_with("telpher: ") && message.contains(part) && message.lines().count() == 1,
            "{message}"
        );
        assert!(refused.stdout.is_empty());
    };
    let tiers = ["run", "--tier", "fast=64m", "--tier", "slow"];
    let with = |options: &[&'static str]| {
        let mut args = tiers.to_vec();
        args.extend(options);
        args.extend(["--", "echo", "it runs"]);
        args
    };
    refused(&["run", "--tier", "fast", "--tier", "slow", "--", "true"], "fast has neither a node nor a size");
    refused(&["run", "--tier", "fast=1m", "--", "true"], "name 2 to 8");
    refused(&with(&["--home", "middle"]), "there is no tier middle");
    refused(&with(&["--device", "model:none"]), "model:none");
    refused(&with(&["--mechanism", "move-pages"]), "give each tier a node of its own");
    refused(&with(&["--html", "/proc/no/such.html"]), "cannot write /proc/no/such.html");
    // Most virtual machines have no sampling unit.
    let units = ["cpu/events/mem-loads", "cpu_core/events/mem-loads", "cpu_atom/events/mem-loads", "ibs_op"];
    if units.iter().all(|unit| !Path::new("/sys/bus/event_source/devices").join(unit).exists()) {
        refused(&with(&["--source", "perf"]), "no unit that samples addresses");
    }
    let static_program = test_folder("static").join("static");
    let source = "void _start(void) { __asm__(\"mov $60,%eax; xor %edi,%edi; syscall\"); }";
    let mut gcc = Command::new("gcc");
    gcc.args(["-static", "-nostdlib", "-x", "c", "-", "-o"]).arg(&static_program).stdin(Stdio::piped());
    match gcc.spawn() {
        Err(_) => {
            skip::skip("invalid_options_are_one_sentence_errors_before_anything_runs", "no gcc (Debian package gcc)")
        }
        Ok(mut gcc) => {
            use std::io::Write;
            gcc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
            assert!(gcc.wait().unwrap().success());
            let refused = run(&[], &[static_program.to_str().unwrap()]);
            assert_eq!(refused.status.code(), Some(126));
            assert!(
                error(&refused).contains("is statically linked, so nothing can be preloaded into it"),
                "{}",
                error(&refused)
            );
        }
    }
}

/// The user `nobody` may not open a userfaultfd by either mechanism, with the system's default settings.
#[test]
fn a_user_without_userfaultfd_gets_both_ways_to_obtain_it() {
    const NAME: &str = "a_user_without_userfaultfd_gets_both_ways_to_obtain_it";
    let may = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    if may.trim() != "0" || !rustix::process::getuid().is_root() {
        return skip::skip(NAME, "not root, or vm.unprivileged_userfaultfd is not 0");
    }
    // In a folder that the user `nobody` may enter.
    let copy = std::env::temp_dir().join(format!("telpher-nobody-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_telpher"), &copy).unwrap();
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]).arg(&copy);
    setpriv
        .args(["tier", "run"])
        .args(TIERS)
        .args(["--", "true"])
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("TELPHER_RUNTIME_DIR");
    let refused = setpriv.output();
    std::fs::remove_file(&copy).unwrap();
    let Ok(refused) = refused else { return skip::skip(NAME, "no setpriv (Debian package util-linux)") };
    let message = error(&refused);
    assert_eq!(refused.status.code(), Some(125), "{message}");
    assert!(message.contains("CAP_SYS_PTRACE") && message.contains("/dev/userfaultfd"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

/// A Python program that allocates memory and holds it.
const HOLDS: &str = "import time; b = bytearray(48 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\n\
                     print('ready', flush=True); time.sleep(100)";

#[test]
fn a_run_can_be_watched_and_a_killed_process_is_reported() {
    const NAME: &str = "a_run_can_be_watched_and_a_killed_process_is_reported";
    if lacking(NAME) || Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let room = test_folder("watched");
    let (json, html) = (room.join("tiers.json"), room.join("tiers.html"));
    let mut args = vec![
        "run",
        "--shuffle",
        "--limit",
        "256m",
        "--format",
        "json",
        "--output",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
    ];
    args.extend(TIERS);
    args.extend(["--", "python3", "-c", HOLDS]);
    // Not in the build folder: the path must be short.
    let runtime = std::path::Path::new("/dev/shm").join(format!("test-watched-{}", std::process::id()));
    std::fs::create_dir(&runtime).unwrap();
    let mut command = telpher(&args);
    command.env("TELPHER_RUNTIME_DIR", &runtime).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let top = |more: &[&str]| {
        let mut top = telpher(&["top", "--once"]);
        top.args(more).env("TELPHER_RUNTIME_DIR", &runtime);
        top.output().unwrap()
    };
    let end = Instant::now() + Duration::from_secs(60);
    let (pid, picture) = loop {
        let reported = processes(&top(&["--format", "json"]).stdout);
        let of_program = reported.iter().find(|state| state["counts"]["moved"].as_u64() > Some(5000));
        if let Some(state) = of_program {
            let pid = state["pid"].as_u64().unwrap().to_string();
            break (pid.clone(), String::from_utf8(top(&[&pid]).stdout).unwrap());
        }
        assert!(Instant::now() < end, "nothing was told: {reported:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    for part in ["fast", "slow (home)", "exchanges by UFFDIO_MOVE", "mappings managed: ", &format!("process {pid}, ")] {
        assert!(picture.contains(part), "{part} is missing: {picture}");
    }
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    let ended = running.wait().unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut running.stderr.take().unwrap(), &mut text).unwrap();
    assert_eq!(ended.code(), Some(137), "{text}");
    assert!(!text.contains("process"), "the summary is in the file: {text}");
    let reported = processes(&std::fs::read(&json).unwrap());
    let state = reported.iter().find(|state| state["pid"].as_u64() == pid.parse().ok()).unwrap();
    assert_eq!((state["counts"]["lost"].as_u64(), state["ended"].as_bool()), (Some(0), Some(false)));
    let page = std::fs::read_to_string(&html).unwrap();
    for part in ["<svg", "Memory on each tier", "python3", "fast", "MiB"] {
        assert!(page.contains(part), "{part} is missing");
    }
    let refused = top(&[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(error(&refused).contains("no program runs under `telpher tier run`"), "{}", error(&refused));
    let left: Vec<_> = std::fs::read_dir(&runtime).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_string_lossy().ends_with(".so")), "folders of runs go with them: {left:?}");
    std::fs::remove_dir_all(&runtime).unwrap();
}

/// Holds memory until its input has a line, then frees it.
const LETS_GO: &str = "import mmap, sys\nb = mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
                       for i in range(0, len(b), 4096): b[i] = 1\nsys.stdin.readline()\nb.close()";

#[test]
fn the_final_report_has_the_peak_of_memory_freed_before_the_end() {
    const NAME: &str = "the_final_report_has_the_peak_of_memory_freed_before_the_end";
    if lacking(NAME) || Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let json = test_folder("peak").join("tiers.json");
    let mut args = vec!["run", "--format", "json", "--output", json.to_str().unwrap()];
    args.extend(TIERS);
    args.extend(["--", "python3", "-c", LETS_GO]);
    let mut running = telpher(&args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pages = |state: &Value, what: &str| -> u64 {
        state["tiers"].as_array().into_iter().flatten().filter_map(|tier| tier[what].as_u64()).sum()
    };
    let most = (48 << 20) / 4096;
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let reported = output(&["top", "--once", "--format", "json"]);
        let reported = processes(&reported.stdout);
        if reported.iter().any(|state| pages(state, "most_pages") >= most) {
            break;
        }
        assert!(Instant::now() < end, "the peak is not told of: {reported:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(running.stdin.take());
    let ended = running.wait_with_output().unwrap();
    let message = error(&ended);
    assert!(ended.status.success(), "{message}");
    let reported = processes(&std::fs::read(&json).unwrap());
    // `python3` may be a script that starts other programs first.
    let state = reported.iter().max_by_key(|state| pages(state, "most_pages"));
    let state = state.expect("the report has a process");
    assert!(pages(state, "most_pages") >= most && pages(state, "mean_pages") > 0, "{state}");
    assert!(pages(state, "pages") < most / 2, "it was let go: {state}");
    assert!(!message.contains("peak"), "the summary is in the file: {message}");
    // Without a file, the summary is text on standard error.
    let mut args = vec!["run"];
    args.extend(TIERS);
    args.extend(["--", "python3", "-c", "b = bytearray(48 << 20)"]);
    let message = error(&output(&args));
    assert!(
        message.contains("peak") && message.contains("average") && message.contains("transparent huge pages: "),
        "{message}"
    );
}

#[test]
fn a_run_too_short_to_be_managed_says_so() {
    if lacking("a_run_too_short_to_be_managed_says_so") {
        return;
    }
    let ended = run(&[], &["true"]);
    let message = error(&ended);
    assert!(ended.status.success() && message.contains("moved 0 pages; of process "), "{message}");
    assert!(message.contains("no mapping was managed; new ones are looked for every 50 ms"), "{message}");
}
