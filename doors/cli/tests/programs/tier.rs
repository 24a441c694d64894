//! Unmodified programs under `telpher tier run` with all their memory moving back and forth: they must not notice it.

use crate::harness::{TELPHER, client, finish, lacking, test_folder};
use crate::schemas;
use crate::skip::skip;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use telpher_os::{Scan, Userfault, UserfaultFeatures};

/// Returns `telpher tier run` with two tiers of one node, all memory moved continuously, and a report in a JSON file.
fn moving(json: &Path, device: &str) -> Command {
    let mut command = Command::new(TELPHER);
    command.process_group(0);
    command.args(["tier", "run", "--tier", "fast=256m", "--tier", "slow", "--shuffle", "--limit", "2g"]);
    command.args(["--device", device, "--format", "json", "--output"]).arg(json).arg("--");
    command
}

/// Returns the same command with fewer moves, and with traps as the source of hotness.
fn trapping(json: &Path) -> Command {
    let mut command = Command::new(TELPHER);
    command.process_group(0);
    command.args(["tier", "run", "--tier", "fast=256m", "--tier", "slow", "--shuffle", "--limit", "64m"]);
    command.args(["--source", "traps", "--format", "json", "--output"]).arg(json).arg("--");
    command
}

/// Returns the number of page faults caused by traps.
fn trapped(json: &Path) -> u64 {
    let report = schemas::list(std::fs::read(json).unwrap(), "processes");
    report.iter().map(|state| state["tracking"]["faults"].as_u64().unwrap()).sum()
}

/// Returns the number of moved pages; asserts that none was lost.
fn moved(json: &Path) -> u64 {
    let report = schemas::list(std::fs::read(json).unwrap(), "processes");
    let counts = || report.iter().map(|state| &state["counts"]);
    assert!(counts().all(|counts| counts["lost"] == 0), "{report:?}");
    counts().map(|counts| counts["moved"].as_u64().unwrap()).sum()
}

/// Skips the test and returns true if this kernel moves no pages for this user.
pub(crate) fn cannot(test: &str) -> bool {
    let cannot = Scan::open().is_err() || Userfault::open(UserfaultFeatures::MOVE).is_err();
    if cannot {
        skip(test, "the kernel has no userfaultfd that moves pages, or not for this user (Linux 6.8)");
    }
    cannot
}

/// Returns TELPHER_SOAK_SECONDS, or 3.
fn seconds() -> u64 {
    std::env::var("TELPHER_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Uses writers, counters, read(2), mremap, madvise, munmap, the C library's heap, threads that start and end, forks,
/// mlock
/// and mprotect.
#[test]
fn a_program_finds_all_its_bytes_unchanged() {
    const NAME: &str = "a_program_finds_all_its_bytes_unchanged";
    if cannot(NAME) {
        return;
    }
    let Some(stress) = client("tier_stress") else { return };
    let json = test_folder("tier_stress").join("tiers.json");
    // Losses occurred at the start of a program, so it starts several times.
    let turns = [(1, false), (1, true), (1, false), (1, true), (seconds(), false), (seconds(), true)];
    let by_cpu = turns.map(|(seconds, traps)| (seconds, traps, "cpu"));
    for (seconds, traps, device) in by_cpu.into_iter().chain([(seconds(), false, "model:spr")]) {
        let mut command = if traps { trapping(&json) } else { moving(&json, device) };
        command.arg(&stress).arg(seconds.to_string());
        // A program that waits for itself would wait forever.
        let done = finish(&mut command, None, Duration::from_secs(60 + 2 * seconds));
        assert_eq!(done.code(), 0, "{done}");
        // This number is reached on a busy machine, too.
        assert!(moved(&json) > 1000, "{done}");
        // In a short run, no trapped page may be accessed: the program forks all the time, and every fork removes the
        // traps.
        assert!(!traps || seconds < 10 || trapped(&json) > 0, "{done}");
    }
}

/// Checks its descriptors, also closed and replaced ones, its signals, its children and their threads, and forks
/// without a
/// free descriptor.
#[test]
fn a_program_is_not_disturbed_by_the_library() {
    const NAME: &str = "a_program_is_not_disturbed_by_the_library";
    if cannot(NAME) {
        return;
    }
    let Some(manners) = client("tier_manners") else { return };
    let json = test_folder("tier_manners").join("tiers.json");
    for mut command in [moving(&json, "cpu"), trapping(&json)] {
        command.arg(&manners).arg((seconds() * 2).to_string());
        let done = finish(&mut command, None, Duration::from_secs(60 + 4 * seconds()));
        assert_eq!(done.code(), 0, "{done}");
        assert!(moved(&json) > 1000, "{done}");
    }
}

/// Whole programs are measured alone and managed. If one fails, the bench ends with its last output.
#[test]
fn given_programs_are_measured_alone_and_managed() {
    const NAME: &str = "given_programs_are_measured_alone_and_managed";
    if cannot(NAME) {
        return;
    }
    let Some(stress) = client("tier_stress") else { return };
    let bench = |program: &str| {
        let mut command = Command::new(TELPHER);
        command.args(["bench", "tier", "--only", "programs", "--format", "json", "--no-html", "--program", program]);
        finish(&mut command, None, Duration::from_secs(120))
    };
    let done = bench(&format!("{} 1", stress.display()));
    assert_eq!(done.code(), 0, "{done}");
    let report = schemas::parse(&done.stdout);
    let rows = report["contests"][0]["rows"].as_array().unwrap();
    let measured: Vec<f64> = rows.iter().map(|row| row["measured"].as_f64().unwrap()).collect();
    // Alone, managed, the ratio, pages promoted and demoted. The program runs for little more than a second.
    assert!(rows.len() == 5 && measured[..3].iter().all(|&number| number > 0.9 && number < 20.0), "{rows:?}");
    let failed = bench("sh -c 'echo nothing works >&2; exit 7'");
    assert!(failed.code() != 0 && failed.stderr.contains("exit status: 7; it said last: nothing works"), "{failed}");
}

/// Without `--program`, the bench runs its own two, each as large and as long as the time allows.
#[test]
fn the_benchs_own_programs_are_measured_without_an_option() {
    const NAME: &str = "the_benchs_own_programs_are_measured_without_an_option";
    if cannot(NAME) {
        return;
    }
    let mut command = Command::new(TELPHER);
    command.args(["bench", "tier", "--only", "programs", "--seconds", "1", "--format", "json", "--no-html"]);
    let done = finish(&mut command, None, Duration::from_secs(300));
    assert_eq!(done.code(), 0, "{done}");
    let report = schemas::parse(&done.stdout);
    assert_eq!(report["contests"].as_array().unwrap().len(), 1, "{done}");
    let rows = report["contests"][0]["rows"].as_array().unwrap();
    let named: Vec<&str> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
    let of = |name: &str| {
        ["alone", "managed", "managed by alone", "promoted", "demoted"].map(|row| format!("{name}: {row}"))
    };
    assert_eq!(named, [of("cross sections"), of("shortest paths")].concat());
    for row in rows {
        let (measured, is_ratio) = (row["measured"].as_f64().unwrap(), row["unit"] == "of the time");
        assert!(measured >= 0.0 && (measured > 0.0 || row["unit"] == "pages"), "{row}");
        // A run of ten seconds, which has the lower goal, is possible on a busy machine.
        let goal = row["goal"]["at_most"].as_f64();
        assert!(if is_ratio { goal == Some(1.1) || goal == Some(1.05) } else { goal.is_none() }, "{row}");
    }
}

/// Returns the answer of `redis-cli`, without the line end.
fn ask(socket: &Path, words: &[&str]) -> String {
    let output = Command::new("redis-cli").arg("-s").arg(socket).args(words).output().expect("redis-cli runs");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Fills a server, and runs a benchmark and a snapshot by a forked child. Returns the results that never vary.
fn redis(mut command: Command, folder: &Path) -> Vec<String> {
    let socket = folder.join("socket");
    command.args(["redis-server", "--port", "0", "--save", "", "--appendonly", "no", "--dir"]).arg(folder);
    command.arg("--unixsocket").arg(&socket).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = command.spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while ask(&socket, &["ping"]) != "PONG" {
        assert!(Instant::now() < end && server.try_wait().unwrap().is_none(), "the server does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut bench = Command::new("redis-benchmark");
    bench.arg("-s").arg(&socket).args([
        "-t",
        "set,get,lpush,lpop,sadd,hset,zadd",
        "-n",
        "20000",
        "-r",
        "20000",
        "-d",
        "400",
        "-P",
        "16",
        "-q",
    ]);
    assert!(bench.output().expect("redis-benchmark runs").status.success());
    let script = "redis.call('flushall') for i = 1, 30000 do \
                  redis.call('set', 'k:' .. i, ('v' .. i):rep(20)) redis.call('hset', 'h:' .. i % 100, 'f' .. i, i * 7) \
                  redis.call('zadd', 'z:' .. i % 10, i % 1000, 'm' .. i) redis.call('rpush', 'l:' .. i % 10, i) end \
                  for i = 1, 30000, 3 do redis.call('del', 'k:' .. i) end return redis.call('dbsize')";
    let size = ask(&socket, &["eval", script, "0"]);
    let saved = ask(&socket, &["save"]);
    assert_eq!(ask(&socket, &["bgsave"]), "Background saving started");
    while ask(&socket, &["info", "persistence"]).contains("rdb_bgsave_in_progress:1") {
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = ask(&socket, &["info", "persistence"]);
    let status =
        status.lines().find(|line| line.starts_with("rdb_last_bgsave_status")).unwrap_or_default().trim().to_owned();
    let sums = "local all = '' for i = 1, 30000 do all = redis.sha1hex(all .. tostring(redis.call('get', 'k:' .. i))) end \
                for i = 0, 9 do all = redis.sha1hex(all .. table.concat(redis.call('zrange', 'z:' .. i, 0, -1, 'withscores'), ',') .. \
                table.concat(redis.call('lrange', 'l:' .. i, 0, -1), ',')) end \
                for i = 0, 99 do local h = redis.call('hgetall', 'h:' .. i) table.sort(h) all = redis.sha1hex(all .. table.concat(h, ',')) end return all";
    let sums = ask(&socket, &["eval", sums, "0"]);
    ask(&socket, &["shutdown", "nosave"]);
    assert!(server.wait().unwrap().success());
    vec![size, saved, status, sums]
}

#[test]
fn redis_has_the_same_content_as_unmanaged() {
    const NAME: &str = "redis_has_the_same_content_as_unmanaged";
    if cannot(NAME)
        || lacking(
            NAME,
            &[("redis-server", "redis-server"), ("redis-cli", "redis-tools"), ("redis-benchmark", "redis-tools")],
        )
    {
        return;
    }
    let (plain, managed) = (test_folder("redis"), test_folder("redis-tier"));
    let json = managed.join("tiers.json");
    // Short paths: a socket's path has at most 108 bytes.
    let short = |name: &str| {
        let folder = std::env::temp_dir().join(format!("telpher-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    let (one, other) = (short("redis"), short("redis-tier"));
    let mut env = Command::new("env");
    env.current_dir(&plain);
    let answers = [redis(env, &one), redis(moving(&json, "cpu"), &other)];
    for folder in [one, other] {
        let _ = std::fs::remove_dir_all(folder);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0][2], "rdb_last_bgsave_status:ok");
    assert!(moved(&json) > 10_000);
}

#[test]
fn python_passes_its_own_tests() {
    const NAME: &str = "python_passes_its_own_tests";
    if cannot(NAME) || lacking(NAME, &[("python3", "python3")]) {
        return;
    }
    let there = Command::new("python3").args(["-c", "import test.test_dict"]).stderr(Stdio::null()).status();
    if !there.is_ok_and(|status| status.success()) {
        return skip(NAME, "Python's tests are not there (Debian package libpython3-testsuite)");
    }
    let folder = test_folder("python-tier");
    let json = folder.join("tiers.json");
    let mut python = moving(&json, "cpu");
    python.args([
        "python3",
        "-m",
        "test",
        "test_dict",
        "test_list",
        "test_set",
        "test_bytes",
        "test_fork1",
        "test_zlib",
        "test_gc",
    ]);
    let done = finish(python.current_dir(&folder), None, Duration::from_secs(600));
    assert_eq!(done.code(), 0, "{done}");
    assert!(done.stdout.contains("SUCCESS"), "{done}");
    assert!(moved(&json) > 10_000);
}

/// The program registers a userfaultfd on memory that is managed already. Without our help the kernel would answer
/// `EBUSY`.
#[test]
fn a_program_registers_its_own_userfaultfd_on_managed_memory() {
    const NAME: &str = "a_program_registers_its_own_userfaultfd_on_managed_memory";
    if cannot(NAME) {
        return;
    }
    let Some(userfault) = client("tier_userfault") else { return };
    let json = test_folder("tier_userfault").join("tiers.json");
    let done = finish(moving(&json, "cpu").arg(&userfault), None, Duration::from_secs(200));
    assert_eq!((done.code(), done.stdout.as_str()), (0, "done\n"), "{done}");
    assert!(moved(&json) > 1000, "{done}");
}

/// Returns the state of a running process, as `telpher tier top` shows it.
fn state(pid: &str) -> Value {
    let top = Command::new(TELPHER).args(["tier", "top", "--once", "--format", "json", pid]).output().unwrap();
    // Until the process has a state, there is nothing to show.
    if top.stdout.is_empty() { Value::Null } else { schemas::parse(&top.stdout)["processes"][0].take() }
}

/// Waits until the state of the process fulfils a condition.
fn wait_for(pid: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let state = state(pid);
        if is_so(&state) {
            return state;
        }
        assert!(Instant::now() < end, "{what} does not happen: {state}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn moved_pages(state: &Value) -> u64 {
    state["counts"]["moved"].as_u64().unwrap_or(0)
}

/// Returns the next line of a program's output.
fn line(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("the program can be read");
    line.trim_end().to_owned()
}

#[test]
fn a_tracer_reads_every_page_and_other_readers_too_while_paused() {
    const NAME: &str = "a_tracer_reads_every_page_and_other_readers_too_while_paused";
    if cannot(NAME) {
        return;
    }
    let Some(readers) = client("tier_readers") else { return };
    let json = test_folder("tier_readers").join("tiers.json");
    let mut run = moving(&json, "cpu");
    run.arg(&readers).arg("hold").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let place = line(&mut BufReader::new(run.stdout.take().unwrap()));
    let [pid, start, pages] = place.split(' ').collect::<Vec<_>>()[..] else { panic!("{place}") };
    let reader = |how: &str| {
        let mut reader = Command::new(&readers);
        reader.args([how, pid, start, pages]).stdin(Stdio::piped()).stdout(Stdio::piped());
        reader
    };
    let before = wait_for(pid, "a move", |state| moved_pages(state) > 10_000);
    assert_eq!((&before["tracer"], &before["paused"]), (&Value::Null, &Value::Bool(false)));

    let mut tracer = reader("trace").spawn().unwrap();
    let mut output = BufReader::new(tracer.stdout.take().unwrap());
    assert_eq!(line(&mut output), "attached");
    wait_for(pid, "that the tracer is noticed", |state| state["tracer"] == tracer.id());
    tracer.stdin.take().unwrap().write_all(b"\n").unwrap();
    let all = 10 * pages.parse::<u64>().unwrap();
    assert_eq!(line(&mut output), format!("0 of {all} wrong"), "PTRACE_PEEKDATA");
    assert!(tracer.wait().unwrap().success());
    let after = wait_for(pid, "that it is not traced", |state| state["tracer"].is_null());
    wait_for(pid, "a move after that", |state| moved_pages(state) > moved_pages(&after) + 10_000);

    let tier = |command: &str, pid: &str| Command::new(TELPHER).args(["tier", command, pid]).output().unwrap();
    for _ in 0..2 {
        let paused = tier("pause", pid);
        assert!(paused.status.success() && paused.stderr.is_empty(), "{paused:?}");
        let read = reader("mem").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&read.stdout), format!("0 of {all} wrong\n"), "/proc/PID/mem");
    }
    let paused = state(pid);
    assert_eq!(paused["paused"], true, "{paused}");
    for _ in 0..2 {
        let resumed = tier("resume", pid);
        assert!(resumed.status.success() && resumed.stderr.is_empty(), "{resumed:?}");
    }
    wait_for(pid, "a move after that", |state| moved_pages(state) > moved_pages(&paused) + 10_000);
    drop(run.stdin.take());
    let done = run.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert!(moved(&json) > 10_000);
    let states = schemas::list(std::fs::read(&json).unwrap(), "processes");
    let held = states.iter().filter_map(|state| state["held_seconds"].as_f64());
    assert!(held.sum::<f64>() > 0.0, "pages were held in place meanwhile: {states:?}");
    // The program has ended.
    let refused = tier("pause", pid);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains(&format!("process {pid} does not run under")), "{stderr}");
}
