//! Copies under `telpher offload` for `TELPHER_SOAK_SECONDS` in each of four configurations: absent pages, pages
//! without access, signal handlers, threads, children, and `offload off` and `on` meanwhile. One configuration uses the
//! queue of a `telpher run` that injects faults and refuses descriptors. No byte may be wrong. In longer runs, Python's
//! own tests of threads and children follow.
//!
//! `./soak` runs it for half an hour.

mod schemas;
#[path = "../../../ci/skip.rs"]
mod skip;

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const TELPHER: &str = env!("CARGO_BIN_EXE_telpher");

/// Offloads every call of 4 KiB and more.
const ALWAYS: [&str; 5] = ["--threshold", "4k", "--always", "--function", "copy,fill,compare"];

/// How long calls stay on one executor before the process is switched. Source: chosen.
const SWITCHED: Duration = Duration::from_millis(30);

fn seconds() -> u64 {
    std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// A folder for the files of one test.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("soak-offload-{name}"));
    std::fs::create_dir_all(&folder).expect("our own folder");
    folder
}

/// Builds the program that copies and checks; `None` without a compiler.
fn program(test: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sources/offload_soak.c");
    let program = folder("program").join("offload_soak");
    let mut gcc = Command::new("gcc");
    // The compiler must not turn the loops over single bytes into calls of the functions that they check.
    gcc.args(["-std=gnu11", "-O2", "-g", "-fno-builtin", "-fno-tree-loop-distribute-patterns", "-pthread", "-o"]);
    match gcc.arg(&program).arg(source).output() {
        Ok(built) => assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr)),
        Err(_) => {
            skip::skip(test, "no gcc (Debian package gcc)");
            return None;
        }
    }
    Some(program)
}

/// Runs the program with these options, and switches it to the CPU and back all the time. `host` is the command that
/// runs `telpher offload`, if there is one. Returns the counters of the processes.
fn soak(program: &Path, name: &str, host: &[&str], options: &[&str], seed: u64) -> Vec<Value> {
    let folder = folder(name);
    let (json, runtime) = (folder.join("offload.json"), folder.join("runtime"));
    let _ = std::fs::remove_file(&json);
    std::fs::create_dir_all(&runtime).expect("our own folder");
    let telpher = |host: &[&str]| {
        let words = [host, &[TELPHER, "offload"]].concat();
        let mut command = Command::new(words[0]);
        command.env("TELPHER_RUNTIME_DIR", &runtime).args(&words[1..]);
        command
    };
    let mut run = telpher(host);
    run.args(options).args(["--format", "json", "--output"]).arg(&json).arg("--").arg(program);
    run.args([seconds().to_string(), seed.to_string()]).stdout(Stdio::piped());
    let mut run = run.spawn().expect("telpher runs");
    let mut output = BufReader::new(run.stdout.take().expect("a pipe"));
    let mut pid = String::new();
    output.read_line(&mut pid).expect("the program's number");
    for word in ["off", "on"].into_iter().cycle() {
        if run.try_wait().expect("a child").is_some() {
            break;
        }
        // The program may end before it is switched.
        let _ = telpher(&[]).args([word, pid.trim()]).stderr(Stdio::null()).status().expect("telpher runs");
        std::thread::sleep(SWITCHED);
    }
    let mut answer = String::new();
    output.read_to_string(&mut answer).expect("text");
    let status = run.wait().expect("a child");
    assert!(status.success() && answer.starts_with("ok "), "{name}, seed {seed}: {status}: {answer}");
    schemas::list(std::fs::read(&json).expect("counters"), "processes")
}

#[test]
fn no_byte_is_wrong_whatever_happens_meanwhile() {
    let Some(program) = program("no_byte_is_wrong_whatever_happens_meanwhile") else { return };
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_secs());
    let hardware = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sources/dto_defects.json");
    let hardware = hardware.to_str().expect("a path of this project");
    let faults = format!("fault=10%,retry=20%/burst:20,seed={seed}");
    let host = [TELPHER, "run", "--hardware", hardware, "--inject", &faults, "--"];
    let learning = ["--device", "model:spr", "--threshold", "4k", "--function", "copy,fill,compare"];
    for (name, host, options) in [
        ("always", &[][..], [&["--device", "model:spr"], &ALWAYS[..]].concat()),
        ("all-features", &[], [&["--device", "model:full"], &ALWAYS[..]].concat()),
        ("injected", &host, [&["--device", "hw:wq0.0"], &ALWAYS[..]].concat()),
        ("learning", &[], learning.into()),
    ] {
        let processes = soak(&program, name, host, &options, seed);
        let sum = |counter: &str| processes.iter().filter_map(|process| process[counter].as_u64()).sum::<u64>();
        assert!(sum("cpu_bytes") > 0, "{name}, seed {seed}: {processes:?}");
        if name != "learning" {
            // Whether a call site learns that its data is cold depends on the machine.
            assert!(sum("device_calls") > 0, "{name}, seed {seed}: {processes:?}");
            assert!(sum("faults") > 0, "{name}, seed {seed}: no page was absent: {processes:?}");
        }
    }
}

/// Runs a module of Python's tests by a command that executes its arguments. Returns the tests that fail, and the
/// number of all.
fn python_tests(launcher: &mut Command, module: &str) -> (Vec<String>, String) {
    let run = launcher.args(["python3", "-m", "unittest", "-q", module]).output().expect("a command");
    let stderr = String::from_utf8_lossy(&run.stderr).into_owned();
    let lines =
        |begin: &str| stderr.lines().filter(|line| line.starts_with(begin)).map(String::from).collect::<Vec<_>>();
    let mut failed = [lines("FAIL: "), lines("ERROR: ")].concat();
    failed.sort();
    // "Ran 197 tests in 17 s"
    let count = lines("Ran ").concat().split_whitespace().nth(1).unwrap_or_default().to_owned();
    (failed, count)
}

/// A test may fail on a machine for a reason of its own, so that the results are compared with those without offload.
#[test]
fn python_fails_no_more_of_its_tests_of_threads_and_children() {
    const NAME: &str = "python_fails_no_more_of_its_tests_of_threads_and_children";
    if seconds() <= 1 {
        // `programs` runs others of Python's tests.
        return;
    }
    let tests = Command::new("python3").args(["-c", "import test.test_threading, test.test_subprocess"]).output();
    if !tests.is_ok_and(|output| output.status.success()) {
        return skip::skip(NAME, "Python's tests are not there (Debian package libpython3-testsuite)");
    }
    for module in ["test.test_threading", "test.test_subprocess"] {
        let alone = python_tests(&mut Command::new("env"), module);
        let mut offload = Command::new(TELPHER);
        offload.args(["offload", "--quiet", "--device", "model:spr"]).args(ALWAYS).arg("--");
        assert_eq!(python_tests(&mut offload, module), alone, "{module}");
    }
}
