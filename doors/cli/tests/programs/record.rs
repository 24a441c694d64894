//! Unmodified programs under `telpher record`: their recordings have the calls that they make, however their processes
//! begin and end.

use crate::harness::{Done, TELPHER, client, client_with, eventually, finish, test_folder};
use crate::offload::{offload, sum};
use crate::schemas;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How often the program makes each call.
const MANY: u64 = 1000;

/// Records a program. Returns its result and the folder of its recordings.
fn record(name: &str, program: &[&str]) -> (Done, PathBuf) {
    let folder = test_folder(name).join("recording");
    let mut command = Command::new(TELPHER);
    command.args(["record", "--folder"]).arg(&folder).arg("--").args(program);
    (finish(&mut command, None, Duration::from_secs(120)), folder)
}

/// Runs `telpher record` with these words. Returns what it prints.
fn ask(words: &[&str]) -> Done {
    finish(Command::new(TELPHER).arg("record").args(words), None, Duration::from_secs(60))
}

fn word(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Returns recordings as JSON.
fn show(path: &Path) -> Value {
    let done = ask(&["show", "--format", "json", word(path)]);
    done.expect_success();
    schemas::parse(&done.stdout)
}

/// Returns the sites whose calls all have this size.
fn sites(profile: &Value, size: u64) -> Vec<&Value> {
    let sites = profile["sites"].as_array().expect("sites");
    let is_of_size = |site: &&Value| number(site, "calls") > 0 && number(site, "bytes") == size * number(site, "calls");
    sites.iter().filter(is_of_size).collect()
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {of}"))
}

/// Returns the calls from sites whose calls all have this size.
fn calls(profile: &Value, size: u64) -> u64 {
    sites(profile, size).iter().map(|site| number(site, "calls")).sum()
}

#[test]
fn every_function_is_counted_with_its_sites() {
    let Some(program) = client("record_calls") else { return };
    let (done, folder) = record("record_all", &[word(&program), "all"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    assert!(done.stderr.contains("1 process"), "{done}");
    let profile = show(&folder);
    for (size, function) in [
        (3001, "memcpy"),
        (5003, "memmove"),
        (6007, "mempcpy"),
        (9001, "memset"),
        (9000, "memcmp"),
        (13001, "memcpy"),
        (20011, "memmove"),
        (65537, "memmove"),
    ] {
        let found = sites(&profile, size);
        let [site] = found[..] else { panic!("{} sites with {size} bytes: {found:?}", found.len()) };
        assert_eq!(number(site, "calls"), MANY, "{site}");
        assert_eq!(site["operations"], serde_json::json!([{"operation": function, "calls": MANY}]), "{site}");
        assert!(site["file"].as_str().unwrap().ends_with("record_calls"), "{site}");
        let name = site["name"].as_str().unwrap();
        assert!(name.starts_with("all_functions+0x"), "{site}");
    }
    let overlapping = sites(&profile, 65537)[0];
    assert_eq!(number(&overlapping["overlaps_down"], "below_line"), MANY, "{overlapping}");
    // Short calls have no site, but all are counted.
    let by_size = profile["summary"]["by_size"].as_array().unwrap();
    let short = by_size.iter().find(|row| number(row, "from") == 64).unwrap();
    assert!((100 * MANY..101 * MANY).contains(&number(short, "calls")), "{short}");
    let process = &profile["processes"][0];
    assert!(process["cpu_ns"].as_u64() > Some(0) && process["noted_ns"].as_u64() > Some(0), "{process}");
    assert_eq!(profile["not_recorded"]["calls_lost"], 0, "{}", profile["not_recorded"]);
    // Long calls have a temperature, because the machine was calibrated.
    assert!(profile["summary"]["temperature"]["timed_calls"].as_u64() >= Some(2 * MANY), "{}", profile["summary"]);
}

/// The prediction has the recorded calls, and names what it assumes. Its times depend on the machine.
#[test]
fn a_recording_has_a_prediction() {
    let Some(program) = client("record_calls") else { return };
    let (done, folder) = record("record_predict", &[word(&program), "all"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let page = folder.join("page.html");
    let text = ask(&["predict", word(&folder), "--profile", "spr-asplos", "--html", word(&page)]);
    text.expect_success();
    for expected in ["Simulated · profile spr-asplos", "Best policy for each call site", "Assumed", "all_functions+0x"]
    {
        assert!(text.stdout.contains(expected), "no {expected:?} in {text}");
    }
    assert!(text.stdout.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(std::fs::read_to_string(page).unwrap().contains("all_functions+0x"));
    let json = |words: &[&str]| -> Value {
        let done = ask(&[&["predict", "-f", "json", word(&folder)], words].concat());
        done.expect_success();
        schemas::parse(&done.stdout)
    };
    let prediction = json(&["--against", word(&folder), "--devices", "1", "--hint", "cache", "--comparisons"]);
    let recorded = &prediction["recorded"];
    // 20,011 and 65,537 bytes; the calibration and other calls of the process are shorter.
    let (long, bytes) = (2 * MANY, (20_011 + 65_537) * MANY);
    assert_eq!((number(recorded, "long_calls"), number(recorded, "long_bytes")), (long, bytes), "{recorded}");
    assert_eq!(number(&prediction["check"], "replayed_calls"), long, "{}", prediction["check"]);
    assert!(prediction["check"]["error"].as_f64().is_some_and(|error| error.abs() < 0.03), "{}", prediction["check"]);
    assert!(prediction["against"].is_object(), "the same recording is another one, too: {prediction}");
    assert!(prediction["gain_of_calls"].as_f64().is_some_and(|gain| gain >= 0.99), "{prediction}");
    let unknown = ask(&["predict", word(&folder), "--profile", "no-such-machine"]);
    assert!(unknown.code() != 0 && unknown.stderr.contains("no-such-machine"), "{unknown}");
}

/// The way from a recording to a device: what was predicted for each call site is what is executed.
#[test]
fn a_predicted_choice_is_what_offload_executes() {
    let Some(program) = client("record_calls") else { return };
    let (done, folder) = record("record_verdicts", &[word(&program), "all"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let file = folder.join("choices");
    ask(&["predict", "--verdicts", word(&file), word(&folder)]).expect_success();
    let choices = std::fs::read_to_string(&file).unwrap();
    // The prediction depends on how cold the data was, so the test makes its own choice: one site of 1000 calls with
    // 65,537 bytes, and none of the others.
    let profile = show(&folder);
    let overlapping = sites(&profile, 65537);
    let offset = format!("{:#x}", number(overlapping[0], "offset"));
    let lines = choices.lines().skip(1).filter(|line| line.contains("record_calls"));
    // Those of long calls.
    assert_eq!(lines.clone().count(), 2, "{choices}");
    let chosen = lines.map(|line| {
        let rest = line.trim_start_matches("device ").trim_start_matches("cpu    ");
        format!("{} {rest}\n", if rest.contains(&format!(" {offset} ")) { "device" } else { "cpu" })
    });
    let first = choices.lines().next().unwrap();
    std::fs::write(&file, format!("{first}\n{}", chosen.collect::<String>())).unwrap();
    let options = ["--device", "model:spr", "--threshold", "16k", "--verdicts", word(&file)];
    let (done, processes) = offload("record_verdicts_offload", &options, &[word(&program), "all"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    assert_eq!((sum(&processes, "device_calls"), sum(&processes, "device_bytes")), (MANY, 65_537 * MANY), "{done}");
    std::fs::write(&file, "device somewhere\n").unwrap();
    let (done, _) = offload("record_verdicts_offload", &options, &["true"]);
    assert!(done.code() == 125 && done.stderr.contains("has no verdicts"), "{done}");
}

/// Calls, bytes and simulated time of a run with the times of a simulated device are those of the prediction for it.
#[test]
fn a_predicted_time_is_that_of_a_run_with_simulated_device_times() {
    let Some(program) = client("record_calls") else { return };
    let (done, folder) = record("record_times", &[word(&program), "all"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let file = folder.join("choices");
    let done = ask(&["predict", "-f", "json", "--hint", "cache", "--verdicts", word(&file), word(&folder)]);
    done.expect_success();
    let prediction = schemas::parse(&done.stdout);
    // The prediction depends on how cold the data was, so the test gives both sites with long calls to the device.
    let choices = std::fs::read_to_string(&file).unwrap();
    let chosen: String = choices.lines().map(|line| format!("{}\n", line.replacen("cpu   ", "device", 1))).collect();
    std::fs::write(&file, chosen).unwrap();
    let sites = prediction["sites"].as_array().expect("sites").iter();
    let predicted_ns: f64 = sites
        .filter(|site| number(site, "replayed_calls") > 0)
        .map(|site| site["device_ns"].as_f64().expect("a time") * number(site, "calls") as f64)
        .sum();
    let options = ["--device", "model:spr", "--device-times", "spr-asplos", "--verdicts", word(&file)];
    let (done, processes) = offload("record_times_offload", &options, &[word(&program), "all"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let (calls, bytes) = (2 * MANY, (20_011 + 65_537) * MANY);
    assert_eq!((sum(&processes, "device_calls"), sum(&processes, "device_bytes")), (calls, bytes), "{processes:?}");
    let deviation = sum(&processes, "simulated_ns") as f64 / predicted_ns - 1.0;
    assert!(deviation.abs() < 0.1, "{deviation}: {predicted_ns} ns predicted, {processes:?}");
    assert!(sum(&processes, "late_descriptors") <= calls, "{processes:?}");
    // Without simulated times, none are counted.
    let (_, processes) =
        offload("record_times_offload", &[&options[..2], &options[4..]].concat(), &[word(&program), "all"]);
    assert_eq!((sum(&processes, "device_calls"), sum(&processes, "simulated_ns")), (calls, 0), "{processes:?}");
    // The times are for modelled devices.
    let refused = |options: &[&str]| offload("record_times_offload", options, &["true"]).0;
    let done = refused(&["--device", "cpu", "--device-times", "spr-asplos"]);
    assert!(done.code() == 125 && done.stderr.contains("--device model:spr"), "{done}");
    let done = refused(&["--device", "model:spr", "--device-times", "no-such-machine"]);
    assert!(done.code() == 125 && done.stderr.contains("no-such-machine"), "{done}");
}

#[test]
fn copies_of_strings_are_counted_and_shown_as_not_offloadable() {
    let Some(program) = client("record_strings") else { return };
    let (done, folder) = record("record_strings", &[word(&program)]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let profile = show(&folder);
    let strings = &profile["not_offloadable"];
    let calls = 100 + 200 + 300 + 400 + 3 * 50;
    assert_eq!(number(strings, "long_calls"), calls, "{strings}");
    assert_eq!(number(strings, "long_bytes"), 3000 * (calls - 350) + 5000 * 350, "{strings}");
    let text = ask(&["show", word(&folder)]);
    assert!(text.stdout.contains("Not offloadable here: strcpy"), "{text}");
    // The same calls while nothing is recorded, and while the program is offloaded.
    let (done, _) = offload("record_strings_offload", &["--device", "model:spr"], &[word(&program)]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
}

#[test]
fn threads_and_signal_handlers_lose_no_call() {
    let Some(program) = client("record_calls") else { return };
    let (done, folder) = record("record_threads", &[word(&program), "threads"]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let profile = show(&folder);
    assert_eq!(calls(&profile, 17011), 4 * MANY, "{profile}");
    // The first thread may have made calls, too.
    assert!((4..=5).contains(&number(&profile, "threads")), "{profile}");
    let (done, folder) = record("record_signals", &[word(&program), "signals"]);
    let handled: u64 =
        done.stdout.lines().next().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{done}"));
    assert_eq!(calls(&show(&folder), 33013), handled, "{done}");
}

/// Two runs differ by exactly the calls that the second one makes more, handlers' calls included.
#[test]
fn short_calls_of_each_length_are_counted_exactly() {
    let Some(program) = client("record_calls") else { return };
    let count = |rounds: u64| {
        let name = format!("record_lengths_{rounds}");
        let (done, folder) = record(&name, &[word(&program), "lengths", &rounds.to_string()]);
        let lines: Vec<&str> = done.stdout.lines().collect();
        let [handled, "ok"] = lines[..] else { panic!("{done}") };
        let (handled, profile) = (handled.parse::<u64>().expect("a number"), show(&folder));
        // What the handlers have copied: 5 and 40 bytes each.
        [number(&profile["summary"], "calls") - 2 * handled, number(&profile["summary"], "bytes") - 45 * handled]
    };
    let [few, many] = [100, 700].map(count);
    // Three copies, a fill and a comparison of 0 to 80 bytes, and a comparison of nothing.
    let rounds = 600;
    assert_eq!([many[0] - few[0], many[1] - few[1]], [rounds * 81 * 6, rounds * 5 * (80 * 81 / 2)]);
}

#[test]
fn forked_children_have_recordings_of_their_own() {
    let Some(program) = client("record_calls") else { return };
    let (done, folder) = record("record_children", &[word(&program), "children"]);
    assert_eq!((done.code(), done.stdout.trim().lines().last()), (0, Some("ok")), "{done}");
    let profile = show(&folder);
    // The parent, three forked children, one of a bare clone, and a program that was executed without its environment.
    assert_eq!(profile["processes"].as_array().unwrap().len(), 6, "{}", profile["processes"]);
    assert_eq!(calls(&profile, 10007), 2 * MANY, "the parent's calls, before and after");
    for size in [30011, 30013, 30017, 30031, 30059] {
        assert_eq!(calls(&profile, size), MANY, "{size} bytes: {profile}");
    }
    // The child of vfork has its parent's memory, so its call is the parent's.
    assert_eq!(calls(&profile, 30029), 1, "{profile}");
    let joined = folder.join("joined");
    let done = ask(&["merge", word(&folder), "--into", word(&joined)]);
    assert_eq!((done.code(), done.stderr.contains("6 recordings")), (0, true), "{done}");
    assert_eq!(show(&joined), profile);
    assert!(std::fs::metadata(&joined).unwrap().len() < 20 << 20, "unused parts of the tables are left out");
}

#[test]
fn a_library_that_is_loaded_later_has_its_name() {
    let Some(program) = client("record_calls") else { return };
    let Some(library) = client_with("record_library", "record_library.so", &["-shared", "-fPIC"]) else { return };
    let (done, folder) = record("record_library", &[word(&program), "library", word(&library)]);
    assert_eq!((done.code(), done.stdout.trim()), (0, "ok"), "{done}");
    let profile = show(&folder);
    let found = sites(&profile, 50021);
    let [site] = found[..] else { panic!("{found:?}") };
    assert!(site["file"].as_str().unwrap().ends_with("record_library.so"), "{site}");
    assert_eq!(number(site, "calls"), MANY, "{site}");
}

#[test]
fn the_recording_of_a_killed_program_is_valid_and_can_be_read_before() {
    let Some(program) = client("record_calls") else { return };
    let folder = test_folder("record_killed").join("recording");
    let mut command = Command::new(TELPHER);
    command.args(["record", "--quiet", "--folder"]).arg(&folder).args(["--", word(&program), "until-killed"]);
    let mut child = command.stdout(Stdio::null()).spawn().expect("telpher");
    // Without a recording yet, the command fails.
    let read = || serde_json::from_str(&ask(&["show", "-f", "json", word(&folder)]).stdout).ok();
    let mut pid = None;
    eventually("the program records", || {
        let profile: Option<Value> = read();
        pid = profile.as_ref().and_then(|profile| profile["processes"][0]["pid"].as_u64());
        profile.is_some_and(|profile| calls(&profile, 30047) > 10 * MANY)
    });
    let killed = Command::new("kill").args(["-KILL", &pid.expect("a process").to_string()]).status();
    assert!(killed.is_ok_and(|status| status.success()));
    assert_eq!(child.wait().expect("telpher").code(), Some(128 + 9));
    let profile = show(&folder);
    assert!(calls(&profile, 30047) > 10 * MANY && profile["not_recorded"]["entries_damaged"] == 0, "{profile}");
    assert!(profile["processes"][0]["cpu_ns"].as_u64() > Some(0), "{profile}");
}

#[test]
fn what_cannot_be_recorded_or_read_is_said() {
    let folder = test_folder("record_refused");
    let code = |words: &[&str]| {
        let done = ask(words);
        (done.code(), done.stderr)
    };
    let recordings = folder.join("recordings");
    assert_eq!(code(&["--folder", word(&recordings), "--", "no-such-program"]).0, 127);
    let fine = code(&["--folder", word(&recordings), "--", "true"]);
    assert_eq!((fine.0, fine.1.contains("next: telpher record show")), (0, true), "{}", fine.1);
    let again = code(&["--folder", word(&recordings), "--", "true"]);
    assert_eq!((again.0, again.1.contains("already has recordings")), (125, true), "{}", again.1);
    let none = code(&["show", word(&folder)]);
    assert_eq!((none.0, none.1.contains("has no recordings")), (1, true), "{}", none.1);
    std::fs::write(folder.join("text"), "something else").unwrap();
    let other = code(&["show", word(&folder.join("text"))]);
    assert_eq!((other.0, other.1.contains("is no recording")), (1, true), "{}", other.1);
    assert_eq!(code(&["show"]).0, 2);
    assert_eq!(code(&[]).0, 125);
    // Text of at most 80 columns, a line for each site, and a page.
    let page = folder.join("page.html");
    let text = ask(&["show", "--html", word(&page), word(&recordings)]);
    text.expect_success();
    assert!(text.stdout.contains("memcpy"), "{text}");
    assert!(text.stdout.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(std::fs::read_to_string(page).unwrap().contains("telpher record"));
    let dto = ask(&["show", "--stats", "dto", word(&recordings)]);
    dto.expect_success();
    assert!(dto.stdout.contains("Number of Memory Operations"), "{dto}");
    let mixed = code(&["show", "--stats", "dto", "--format", "json", word(&recordings)]);
    assert_eq!((mixed.0, mixed.1.contains("leave out --format")), (1, true), "{}", mixed.1);
}
