//! `telpher doctor`: every cause has a sample tree that differs from a healthy one in that fact and its consequences,
//! and the doctor finds that cause and no other.
//!
//! `healthy.json` is a bundle of a machine with two sockets in use, two devices and three queues, put together from the
//! driver's tables (not a real machine). The causes come from the driver's own checks and from public tickets:
//! intel/idxd-config 5, 9, 11, 15, 16, 29, 40, 46, 54, 73, 78; intel/DML 25, 32, 41; intel/qpl 19, 50; spdk/spdk 2076,
//! 2316; intel/dsa-perf-micros 2; intel/intel-device-plugins-for-kubernetes 1779, 1836.

mod causes;
#[path = "../schemas/mod.rs"]
mod schemas;
mod tree;

use causes::{CASES, Case, HARMLESS};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tree::{Change, Tree};

fn telpher(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_telpher")).args(args).output().expect("the binary runs")
}

/// Returns the path of a test file.
fn file(name: &str) -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doctor");
    std::fs::create_dir_all(&room).expect("a folder for what the tests write");
    room.join(name)
}

/// Returns the doctor's JSON output for a tree, and its exit code.
fn examined(name: &str, tree: &Tree) -> (Value, i32) {
    let path = file(&format!("{name}.json"));
    std::fs::write(&path, tree.text()).expect("room for a bundle");
    let output = telpher(&["doctor", "--format", "json", "--bundle", path.to_str().expect("a path in UTF-8")]);
    (schemas::parse(&output.stdout), output.status.code().expect("no signal"))
}

fn ids(said: &Value) -> Vec<&str> {
    let findings = said["findings"].as_array().expect("findings");
    findings.iter().map(|finding| finding["id"].as_str().expect("a name")).collect()
}

#[test]
fn a_healthy_machine_has_no_finding() {
    let (said, code) = examined("healthy", &Tree::healthy());
    assert_eq!((ids(&said), code), (vec![], 0), "{said:#}");
    assert!(said["worst"].is_null());
    let walk = said["walk"].as_array().expect("a walk");
    assert!(walk.len() == 15 && walk.iter().all(|step| step["state"] == "fine"), "{said:#}");
}

#[test]
fn each_cause_is_found_in_its_tree_and_nothing_else_is() {
    let mut wrong = Vec::new();
    for Case { id, changes } in CASES {
        let tree = Tree::with(changes);
        let (said, code) = examined(id, &tree);
        if ids(&said) != [*id] {
            wrong.push(format!("{id}: found {:?}", ids(&said)));
            continue;
        }
        let finding = &said["findings"][0];
        let expected = match finding["severity"].as_str() {
            Some("note") => 0,
            Some("warning") => 2,
            _ => 3,
        };
        let texts = |key: &str| finding[key].as_array().map_or(0, Vec::len);
        let shown = finding["evidence"].as_array().into_iter().flatten().any(|evidence| {
            let source = evidence["source"].as_str().unwrap_or_default();
            tree.changed(source)
        });
        if code != expected || texts("remedy") == 0 || !shown {
            wrong.push(format!(
                "{id}: exit {code} for {expected}, {} steps, evidence shows the change: {shown}",
                texts("remedy")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_cause_has_its_tree() {
    let output = telpher(&["doctor", "--causes", "--format", "json"]);
    let table = schemas::list(&output.stdout, "causes");
    let known: BTreeSet<&str> = table.iter().filter_map(|cause| cause["id"].as_str()).collect();
    let tested: BTreeSet<&str> = CASES.iter().map(|case| case.id).collect();
    assert_eq!(known, tested);
    assert!(known.len() >= 20);
    // The text format.
    let text = String::from_utf8(telpher(&["doctor", "--causes"]).stdout).expect("text");
    assert!(known.iter().all(|id| text.contains(id)), "{text}");
}

/// Healthy machines that look faulty, and faulty ones whose real cause is another.
#[test]
fn machines_that_only_look_faulty_have_other_findings() {
    let wrong = HARMLESS.iter().filter_map(|(what, changes, expected)| {
        let (said, _) = examined(&format!("harmless-{}", what.replace(' ', "-")), &Tree::with(changes));
        (ids(&said) != *expected).then(|| format!("{what}: found {:?} for {expected:?}", ids(&said)))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the text output for a bundle that `examined` has written.
fn text_of(name: &str) -> String {
    let path = file(&format!("{name}.json"));
    let output = telpher(&["doctor", "--bundle", path.to_str().expect("a path in UTF-8")]);
    String::from_utf8(output.stdout).expect("text")
}

/// The walk says which library a program has, also where that is no finding.
#[test]
fn the_walk_names_the_dml_of_a_program() {
    let has = |name: &str, changes: &[&[Change]]| {
        let (said, _) = examined(name, &Tree::with(changes));
        let walk = said["walk"].as_array().expect("a walk");
        let step = walk.iter().find(|step| step["stage"] == "program").expect("the stage of the program");
        step["says"].as_str().expect("a line").to_owned()
    };
    let telpher = [Change::Text("/opt/server", ""), Change::Text("/opt/libdml.so.1.2.0", causes::DML_OF_TELPHER)];
    let line = "telpher's Data Mover Library, version 1.2.0 in /opt/libdml.so.1.2.0";
    assert_eq!(has("dml-telpher", &[causes::LOADS, &telpher]), line);
    // A file that is not in the recording was not readable.
    let one = [Change::Text("/opt/server", "")];
    let line = "no Data Mover Library is loaded; not readable: /opt/libdml.so.1.2.0";
    assert_eq!(has("dml-unknown", &[causes::LOADS, &one]), line);
}

/// A queue that this user or container may not open can be meant for others, if another queue can be opened.
#[test]
fn a_queue_of_another_user_is_a_note_if_another_queue_is_usable() {
    for (call, errno) in [("stat", 2), ("open", 1)] {
        let (said, code) = examined(&format!("one-{call}"), &Tree::with(&[&[Change::Node("wq0.1", call, errno)]]));
        assert_eq!((said["worst"].as_str(), code), (Some("note"), 0), "{said:#}");
        let all = ["wq0.0", "wq0.1", "wq2.0"].map(|queue| Change::Node(queue, call, errno));
        let (said, code) = examined(&format!("all-{call}"), &Tree::with(&[&all]));
        assert_eq!((said["worst"].as_str(), code, ids(&said).len()), (Some("error"), 3, 3), "{said:#}");
        // The text merges them.
        let text = text_of(&format!("all-{call}"));
        assert!(text.matches("  cause ").count() == 1 && text.contains("  also    wq0.1, wq2.0 "), "{text}");
    }
}

/// Texts in a bundle cannot add commands to the steps that a user pastes into a shell.
#[test]
fn a_name_from_a_bundle_stays_one_shell_word() {
    let mut tree = Tree::with(&[&[
        Change::Text("/sys/bus/dsa/devices/wq0.1/name", "x'; reboot; '"),
        Change::Text("/sys/bus/dsa/devices/wq0.1/block_on_fault", "0"),
        Change::With("/sys/bus/pci/devices", "0000:00:00.0; reboot"),
        Change::Link("/sys/bus/pci/devices/0000:00:00.0; reboot", "../../../devices/pci0000:6a/0000:6a:01.0/x"),
        Change::Text("/sys/bus/pci/devices/0000:00:00.0; reboot/vendor", "0x8086"),
    ]]);
    tree.change(&Change::Text("/sys/bus/pci/devices/0000:00:00.0; reboot/device", "0x0b25"));
    let (said, _) = examined("quoted", &tree);
    assert_eq!(ids(&said), ["block-on-fault-off"], "{said:#}");
    let steps: Vec<&str> =
        said["findings"][0]["remedy"].as_array().expect("steps").iter().flat_map(Value::as_str).collect();
    assert!(steps.iter().any(|step| step.contains(r"--name='x'\''; reboot; '\''' --driver-name=user")), "{steps:?}");
}

/// A machine without a device has one finding, in few lines that fit a terminal.
#[test]
fn a_machine_without_a_device_has_one_finding() {
    let case = CASES.iter().find(|case| case.id == "processor-without-dsa").expect("a case");
    let (said, code) = examined("none", &Tree::with(case.changes));
    assert_eq!((ids(&said).len(), code), (1, 3), "{said:#}");
    let text = text_of("none");
    // Commands are not wrapped, and this finding has only one.
    let broken = text.lines().filter(|line| !line.contains("telpher run -- PROGRAM"));
    assert!(text.lines().count() <= 14 && broken.clone().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("kernel … container"), "{text}");
}

/// docs/doctor.md lists exactly the known causes.
#[test]
fn the_page_about_the_doctor_has_every_cause() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let page = std::fs::read_to_string(page).expect("docs/doctor.md");
    let table = schemas::list(telpher(&["doctor", "--causes", "--format", "json"]).stdout, "causes");
    let says = |cause: &Value, key: &str| cause[key].as_str().expect("a text").to_owned();
    let rows = table.iter().map(|cause| {
        format!(
            "| {} | {} | {} | {} |",
            says(cause, "stage"),
            says(cause, "id"),
            says(cause, "severity"),
            says(cause, "what")
        )
    });
    let (_, listed) = page.split_once("|---|---|---|---|\n").expect("a table of four columns");
    assert_eq!(listed.lines().collect::<Vec<_>>(), rows.collect::<Vec<_>>());
}

#[test]
fn causes_are_listed_in_the_order_of_the_walk() {
    let mut tree = Tree::healthy();
    for id in ["umwait-missing", "threshold-missing", "read-buffers-few"] {
        let case = CASES.iter().find(|case| case.id == id).expect("a case");
        case.changes.iter().flat_map(|some| some.iter()).for_each(|change| tree.change(change));
    }
    let (said, code) = examined("several", &tree);
    assert_eq!((ids(&said), code), (vec!["read-buffers-few", "threshold-missing", "umwait-missing"], 3), "{said:#}");
    assert_eq!(said["worst"], "error");
}

#[test]
fn the_text_has_cause_evidence_and_remedy() {
    let case = CASES.iter().find(|case| case.id == "threshold-missing").expect("a case");
    let tree = Tree::with(case.changes);
    let path = file("text.json");
    std::fs::write(&path, tree.text()).expect("room for a bundle");
    let output = telpher(&["doctor", "--bundle", path.to_str().expect("a path in UTF-8")]);
    let text = String::from_utf8(output.stdout).expect("text");
    for words in [
        "ERROR wq0.0: threshold-missing",
        "/sys/bus/dsa/devices/wq0.0/threshold: 0",
        "echo 48 > /sys/bus/dsa/devices/wq0.0/threshold",
        "accel-config enable-wq dsa0/wq0.0",
        "1 error, 0 warnings, 0 notes",
        "queues             1 finding",
        "2 DSA functions at 0000:6a:01.0, 0000:e7:01.0",
    ] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}

/// This machine and its recording give the same result.
#[test]
fn a_recording_gives_the_same_result_as_the_machine() {
    let path = file("recorded.json");
    let name = path.to_str().expect("a path in UTF-8");
    let recorded = telpher(&["doctor", "--record", name]);
    assert!(recorded.status.success() && recorded.stdout.is_empty(), "{recorded:?}");
    assert!(String::from_utf8_lossy(&recorded.stderr).contains("--bundle"), "{recorded:?}");
    let here = telpher(&["doctor", "--format", "json"]);
    let there = telpher(&["doctor", "--format", "json", "--bundle", name]);
    assert_eq!(here.status.code(), there.status.code());
    let parsed = |output: &Output| schemas::parse(&output.stdout);
    let (here, there) = (parsed(&here), parsed(&there));
    assert_eq!(ids(&here), ids(&there));
    assert_eq!(here["walk"].as_array().map(Vec::len), Some(15));
    let text = std::fs::read_to_string(&path).expect("the recording");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    assert!(host.len() < 4 || !text.contains(&format!("\"{host}")), "the recording names the host");
}

#[test]
fn an_invalid_bundle_is_refused_in_one_sentence() {
    let healthy = Tree::healthy().text();
    for (name, content, words) in [
        ("empty", "", "is not a bundle of `telpher doctor --record`"),
        ("cut", &healthy[..healthy.len() / 2], "is not a bundle"),
        ("array", "[]", "is not a bundle"),
        (
            "future",
            r#"{"telpher_bundle": 9, "recorded_by": "telpher 7.0"}"#,
            "format 9, but this telpher reads format 1",
        ),
        ("deep", &"[".repeat(100_000), "is not a bundle"),
        ("crowd", &Tree::crowd(100_000).text(), "more than 8192 names"),
        ("chatty", &Tree::chatty(100_000).text(), "more than 200 lines of the kernel's log"),
    ] {
        let path = file(&format!("bad-{name}.json"));
        std::fs::write(&path, content).expect("room for a file");
        let output = telpher(&["doctor", "--bundle", path.to_str().expect("a path in UTF-8")]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {stderr}");
        assert!(
            stderr.contains(words) && stderr.trim_end().lines().count() == 1 && output.stdout.is_empty(),
            "{name}: {stderr}"
        );
    }
    let output = telpher(&["doctor", "--bundle", "/no/such/file"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot read the bundle /no/such/file"), "{output:?}");
}

/// The doctor terminates with one of its own exit codes for any content of a bundle.
#[test]
fn no_content_of_a_bundle_breaks_the_doctor() {
    let healthy = Tree::healthy();
    let garbage = [
        "",
        "\u{1b}[2J",
        "-1",
        "18446744073709551616",
        "0x",
        "wq0.0 wq0.0 engine9.9",
        "ffffffffffffffff",
        "0-4294967295",
    ];
    let mut trees: Vec<Tree> = garbage.iter().map(|text| healthy.with_all_texts(text)).collect();
    trees.extend([1, 2, 5, 13, 95, 4096, -7].map(|errno| healthy.with_all_errors(errno)));
    // A tenth of the answers is missing, a different tenth each time.
    trees.extend((0..10).map(|left_out| healthy.without_every_tenth(left_out)));
    trees.push(healthy.with_links_in_circles());
    for (i, tree) in trees.iter().enumerate() {
        let (said, code) = examined(&format!("hostile-{i}"), tree);
        assert!([0, 2, 3].contains(&code) && said["walk"].is_array(), "{i}: {code}: {said:#}");
    }
    // Excessive numbers of devices, processors, control groups and log lines.
    let many = |item: &str, n: usize| vec![item; n].join(if item.starts_with('/') { "" } else { "," });
    let mut long = healthy.clone();
    long.say("/sys/devices/system/node/node0/cpulist", &many("0-65535", 100_000));
    long.say("/proc/self/cgroup", &format!("0::{}", many("/a", 1_000_000)));
    long.point("/sys/bus/pci/devices/0000:6a:01.0", &many("/a", 1_000_000));
    let (said, _) = examined("long", &long);
    assert!(said["walk"].is_array(), "{said:#}");
    // A machine where nothing can be read, or with an empty recording, is not healthy.
    for errno in [1, 2, 5] {
        let (said, code) = examined(&format!("silent-{errno}"), &healthy.with_all_errors(errno));
        assert_eq!(code, 3, "{errno}: {said:#}");
    }
    let (said, code) = examined("nothing", &Tree::empty());
    assert_eq!(code, 3, "{said:#}");
}
