//! `telpher top`: the numbers of a run's devices are those of its programs.

use crate::harness::{Run, Runtime, TELPHER, View, client, finish, have, in_both_views, lacking};
use crate::schemas;
use crate::terminal::{Terminal, hang_up};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions};
use telpher_mover::{Mover, Policy, Threshold};

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
    let snapshot = schemas::list(printed.join("\n"), "snapshots").pop();
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
    let without_programs = &["top", "--once", "--show", "runs,hardware"][..];
    let only_runs = &["top", "--once", "--show", "runs"][..];
    for words in [&["top", "--once"][..], without_programs, only_runs, &["top", "--pcm", "--once"]] {
        let mut command = Command::new(TELPHER);
        command.args(words).env("TELPHER_RUNTIME_DIR", runtime.path());
        let done = finish(&mut command, None, Duration::from_secs(120));
        // Programs of this user may publish what they count meanwhile; the columns of pcm-accel have none.
        if words.contains(&"--pcm") || words.contains(&"--show") || done.stdout.is_empty() {
            assert_eq!(done.code(), 1, "{done}");
            assert!(done.stderr.contains("no DSA device is in use"), "{done}");
            // What was looked for, and what not.
            let looked_for_hardware = words != only_runs;
            assert_eq!(done.stderr.contains("Linux shows no hardware"), looked_for_hardware, "{done}");
            let left_out =
                if looked_for_hardware { "not looked for: programs;" } else { "not looked for: hardware, programs;" };
            let is_whole = !words.contains(&"--pcm") && !words.contains(&"--show");
            assert_eq!(done.stderr.contains(left_out), !is_whole, "{done}");
            assert_eq!(done.stderr.contains("--show runs,hardware,programs"), !is_whole, "{done}");
        }
    }
}

/// An unknown name, and combinations of arguments without effect: the message lists what is accepted.
#[test]
fn arguments_without_effect_are_refused_with_what_is_accepted() {
    let runtime = Runtime::new("top-arguments");
    for (words, told) in [
        (&["--show", "guests"][..], &["runs", "hardware", "programs"][..]),
        (&["--show", "programs", "--pcm"], &["--pcm cannot show programs", "runs, hardware, or both"]),
        (&["--show", "runs,programs", "--pcm"], &["--pcm cannot show programs"]),
        (
            &["--show", "runs,hardware", "--sort", "fallbacks"],
            &["--sort fallbacks", "add programs to --show", "descriptors"],
        ),
        (&["--once", "--sort", "read", "--format", "json"], &["--sort", "--format table"]),
        (&["--once", "--sort", "read", "--format", "csv"], &["--sort", "--format table"]),
    ] {
        let mut command = Command::new(TELPHER);
        command.arg("top").args(words).env("TELPHER_RUNTIME_DIR", runtime.path());
        let done = finish(&mut command, None, Duration::from_secs(120));
        assert_eq!((done.code(), done.stdout.as_str()), (2, ""), "{words:?}: {done}");
        assert!(told.iter().all(|told| done.stderr.contains(told)), "{words:?}: {done}");
    }
}

/// A mover of this process works; `telpher top` shows it, also without a device.
#[test]
fn programs_are_shown_with_what_they_publish() {
    let device = ModelDevice::start(ModelOptions::default()).expect("a model");
    let policy = Policy { threshold: Threshold::all(0), ..Policy::default() };
    let mover = Mover::new([device.portal("wq0.0").expect("its queue")], policy);
    mover.copy(vec![7_u8; 1 << 20], vec![0_u8; 1 << 20]).wait();
    let runtime = Runtime::new("top-programs");
    let top = |format: &str| {
        let mut command = Command::new(TELPHER);
        command.args(["top", "--once", "--format", format]).env("TELPHER_RUNTIME_DIR", runtime.path());
        let done = finish(&mut command, None, Duration::from_secs(120));
        done.expect_success();
        done.stdout
    };
    let snapshots = schemas::list(top("json"), "snapshots");
    let rows = snapshots[0]["programs"].as_array().expect("programs");
    let is_own = |row: &&Value| row["pid"] == std::process::id() && row["system"] == "mover";
    let row = rows.iter().find(is_own).unwrap_or_else(|| panic!("{rows:?}"));
    assert!(row["operations"].as_u64() >= Some(1) && row["bytes"].as_u64() >= Some(1 << 20), "{row}");
    assert!(row["cpu_whole"].as_u64() >= Some(1 << 20), "{row}");
    let pid = std::process::id().to_string();
    let table = top("table");
    let line = table.lines().find(|line| line.contains(&pid) && line.contains("mover"));
    assert!(line.is_some_and(|line| line.contains(" %")), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(top("csv").lines().any(|line| line.starts_with(&format!("program,,,{pid},"))), "the line of the mover");
}

/// A run that lasts until its input ends, and a command for `telpher top` on it.
struct Watched {
    runtime: Runtime,
    run: Child,
}

impl Watched {
    fn new(test: &str) -> Watched {
        let runtime = Runtime::new(test);
        let mut command = Run::on_two_queues(View::Preload).command(&["/bin/cat"]);
        command.env("TELPHER_RUNTIME_DIR", runtime.path()).stdin(Stdio::piped()).stdout(Stdio::null());
        let run = command.spawn().expect("telpher run starts");
        let is_published = || runtime.of_runs("run-").iter().any(|path| path.join("devices.json").exists());
        crate::harness::eventually("the run publishes its devices", is_published);
        Watched { runtime, run }
    }

    /// Shows the run, and nothing that other programs of this machine do.
    fn top(&self, words: &[&str]) -> Command {
        let mut command = Command::new(TELPHER);
        command.args(["top", "--show", "runs,hardware"]).args(words).env("TELPHER_RUNTIME_DIR", self.runtime.path());
        command
    }

    /// Ends the run.
    fn end(&mut self) {
        drop(self.run.stdin.take());
        self.run.wait().expect("telpher run ends");
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.end();
    }
}

/// Enters and leaves the second screen of a terminal. Source: xterm, DECSET 1049.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

#[test]
fn the_live_view_restores_the_terminal_after_keys_and_signals() {
    if lacking("the_live_view_restores_the_terminal_after_keys_and_signals", &[("setsid", "util-linux")]) {
        return;
    }
    let watched = Watched::new("top-live");
    let signals = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
    let ends = ["q", "\x1b", "\x03"].map(Ok).into_iter().chain(signals.map(Err));
    for end in ends {
        let mut terminal = Terminal::start(&watched.top(&["--every", "0.2", "--sort", "read"]), 80, 24);
        let before = terminal.mode();
        for part in [ENTER, "wq0.1", "engine0.3", "by read", "q quit  Tab table"] {
            terminal.wait_for(part, 0);
        }
        assert_ne!(terminal.mode(), before, "keys come at once and without an echo");
        match end {
            Ok(key) => terminal.press(key),
            Err(signal) => kill_process(Pid::from_raw(terminal.process().cast_signed()).unwrap(), signal).unwrap(),
        }
        let status = terminal.end();
        assert!(status.success(), "{end:?}: {status} {:?}", terminal.written);
        assert_eq!(terminal.mode(), before, "{end:?}");
        let left = terminal.written.rfind(LEAVE).unwrap_or_else(|| panic!("{:?}", terminal.written));
        assert!(left > terminal.written.find(ENTER).unwrap(), "{end:?}");
        assert!(terminal.written.contains("\x1b[?25h"), "the cursor is shown again");
    }
}

/// The processes of this user that have this variable in their environment.
fn processes_with(variable: &str) -> Vec<u32> {
    let is_it = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|of| of == variable.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").expect("processes").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_it).collect()
}

#[test]
fn the_live_view_ends_well_when_its_terminal_hangs_up_and_leaves_nothing() {
    if lacking("the_live_view_ends_well_when_its_terminal_hangs_up_and_leaves_nothing", &[("setsid", "util-linux")]) {
        return;
    }
    let watched = Watched::new("top-hang-up");
    let files = || {
        let mut files: Vec<_> = watched.runtime.of_runs("run-");
        files.sort();
        files
    };
    let before = files();
    // With a signal, and without one: the terminal then belongs to no session, and only its end is seen.
    for owned in [true, false] {
        let mark = format!("{}-{owned}", std::process::id());
        let mut top = watched.top(&["--every", "0.2"]);
        top.env("TELPHER_TEST_HANG_UP", &mark);
        let status = hang_up(&top, "q quit  Tab table", owned);
        assert!(status.success(), "owned: {owned}: {status}");
        assert!(processes_with(&format!("TELPHER_TEST_HANG_UP={mark}")).is_empty(), "owned: {owned}");
    }
    assert_eq!(files(), before, "the run goes on, and no file is left");
}

#[test]
fn the_live_view_follows_the_terminal_s_size_and_the_end_of_the_last_device() {
    if !have("setsid") {
        return crate::skip::skip("the_live_view_follows_the_terminal_s_size", "no setsid (Debian package util-linux)");
    }
    let mut watched = Watched::new("top-resize");
    let mut terminal = Terminal::start(&watched.top(&["--every", "60"]), 80, 24);
    terminal.wait_for("scroll", 0);
    let from = terminal.written.len();
    // The next reading is a minute away: what comes now is drawn because of the size.
    terminal.resize(52, 12);
    terminal.wait_for("q quit  Tab table  ←→ sort  r reverse", from);
    drop(terminal);
    let mut terminal = Terminal::start(&watched.top(&["--every", "0.2"]), 80, 24);
    terminal.wait_for("scroll", 0);
    watched.end();
    assert!(terminal.end().success());
}

#[test]
fn no_color_leaves_out_colors() {
    if lacking("no_color_leaves_out_colors", &[("setsid", "util-linux"), ("env", "coreutils")]) {
        return;
    }
    let watched = Watched::new("top-color");
    let top = watched.top(&["--every", "0.2"]);
    for (value, has_color) in [("NO_COLOR=1", false), ("NO_COLOR=", true)] {
        let mut command = Command::new("env");
        command
            .arg(value)
            .arg(top.get_program())
            .args(top.get_args())
            .env("TELPHER_RUNTIME_DIR", watched.runtime.path());
        let mut terminal = Terminal::start(&command, 80, 24);
        terminal.wait_for("quit", 0);
        terminal.press("q");
        assert!(terminal.end().success());
        // SGR 30 to 37, 90 to 97 and 38;5;N set a color; crossterm writes the last form.
        assert_eq!(terminal.written.contains("\x1b[38;5;"), has_color, "{value}: {:?}", terminal.written);
    }
}

#[test]
fn without_a_terminal_or_with_once_tables_are_printed() {
    let watched = Watched::new("top-plain");
    let done = finish(&mut watched.top(&["--count", "1", "--sort", "queue"]), None, Duration::from_secs(120));
    done.expect_success();
    assert!(!done.stdout.contains('\x1b'), "{done}");
    assert!(done.stdout.lines().all(|line| line.chars().count() < 80), "{done}");
    let source = done.stdout.lines().next().unwrap_or_default();
    assert!(source.starts_with("run-") && done.stdout.matches(source).count() == 1, "{done}");
    let done = finish(&mut watched.top(&["--once", "--sort", "speed"]), None, Duration::from_secs(120));
    assert_eq!(done.code(), 2, "{done}");
    assert!(done.stderr.contains("descriptors"), "the message lists the columns: {done}");
}
