//! `telpher sim run`, `telpher sim profiles` and `telpher advise` from a user's view.

mod schemas;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn telpher(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    command.args(args).current_dir(test_folder()).output().expect("the binary runs")
}

/// Returns the folder for files of these tests.
fn test_folder() -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sim");
    std::fs::create_dir_all(&room).expect("a folder for what the tests write");
    room
}

fn success(args: &[&str]) -> String {
    let output = telpher(args);
    assert!(output.status.success(), "{args:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn refusal(args: &[&str]) -> String {
    let output = telpher(args);
    assert!(!output.status.success(), "{args:?} succeeded");
    assert!(output.stdout.is_empty(), "{args:?} printed to standard output");
    String::from_utf8(output.stderr).expect("text")
}

fn json(args: &[&str]) -> Value {
    schemas::parse(success(args))
}

fn file(name: &str, text: &str) -> String {
    std::fs::write(test_folder().join(name), text).expect("our own folder");
    format!("./{name}")
}

/// Fields of a line of CSV.
fn fields(line: &str) -> usize {
    line.split('"').step_by(2).map(|part| part.matches(',').count()).sum::<usize>() + 1
}

/// A device whose queue accepts 64 KiB and batches of four at most.
fn narrow() -> String {
    let text = "[{\"dev\":\"dsa0\",\"groups\":[{\"dev\":\"group0.0\",\"grouped_workqueues\":[{\"dev\":\"wq0.0\",\"mode\":\"shared\",\"size\":8,\
                \"max_transfer_size\":65536,\"max_batch_size\":4}],\n\"grouped_engines\":[{\"dev\":\"engine0.0\"}]}]}]";
    format!("model:{}", file("narrow.json", text))
}

const ONE: [&str; 11] =
    ["sim", "run", "--size", "4k", "--in-flight", "8", "--count", "300", "--device", "model:spr", "--no-html"];

#[test]
fn all_output_says_simulated_and_names_profile_and_hash() {
    let table = success(&ONE);
    let first = table.lines().next().expect("a heading");
    assert!(first.starts_with("Simulated · profile spr-asplos ("), "{first}");
    let result = json(&[&ONE[..], &["--format", "json"]].concat());
    assert_eq!((result["simulated"].as_bool(), result["profile"].as_str()), (Some(true), Some("spr-asplos")));
    let hash = result["profile_hash"].as_str().expect("a hash");
    assert!(first.contains(hash) && hash.len() == 16);
    let csv = success(&[&ONE[..], &["--format", "csv"]].concat());
    let mut lines = csv.lines().map(|line| line.split(',').take(3).collect::<Vec<_>>().join(","));
    assert_eq!(lines.next().as_deref(), Some("simulated,profile,profile_hash"));
    assert!(lines.all(|line| line == format!("yes,spr-asplos,{hash}")));
    let changed = json(&[&ONE[..], &["--format", "json", "--set", "submit.movdir64b_ns=600"]].concat());
    assert_ne!(changed["profile_hash"].as_str(), Some(hash), "other parameters, other hash");
    let rate = |result: &Value| result["points"][0]["bytes_per_s"].as_f64().expect("a rate");
    assert!(rate(&changed) < 0.5 * rate(&result));
    let advice = success(&["advise", "--size", "64k", "--no-html"]);
    assert!(advice.starts_with(first.split(" · 20").next().expect("the heading without its date")), "{advice}");
}

#[test]
fn the_parts_of_the_latency_add_up() {
    for options in [&["--wait", "umwait"][..], &["--wq-mode", "shared", "--threads", "4"], &["--batch", "16"]] {
        let result = json(&[&ONE[..], options, &["--format", "json"]].concat());
        let point = &result["points"][0];
        let parts: f64 =
            point["parts"].as_array().expect("parts").iter().map(|part| part["ns"].as_f64().expect("ns")).sum();
        let mean = point["mean_ns"].as_f64().expect("a mean");
        assert!((parts / mean - 1.0).abs() < 1e-6, "{options:?}: {parts} of {mean} ns");
        assert!(point["p50_ns"].as_f64() <= point["p99_ns"].as_f64());
        assert!(!point["bottleneck"]["sentence"].as_str().expect("a sentence").is_empty());
    }
}

#[test]
fn a_sweep_has_every_format_and_includes_the_cores_own_work() {
    let path = test_folder().join("report.html");
    let args = ["sim", "run", "--op", "move,fill", "--size", "1k,64k", "--count", "200"];
    let table = success(&[&args[..], &["--html", path.to_str().expect("a plain path")]].concat());
    for words in ["CPU", "one at a time", "×32", "2×b32", "limited by", "64 KiB"] {
        assert!(table.contains(words), "{words} is missing in\n{table}");
    }
    let page = std::fs::read_to_string(&path).expect("the report is there");
    for words in ["Simulated", "spr-asplos", "<svg", "Where latency is spent", "transfer size"] {
        assert!(page.contains(words), "{words} is missing in the report");
    }
    let csv = success(&[&args[..], &["--format", "csv", "--no-html"]].concat());
    let mut lines = csv.lines();
    let header = fields(lines.next().expect("a header"));
    let switch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/workloads/switch.toml").display().to_string();
    let switch_csv = success(&["sim", "run", &switch, "--format", "csv", "--no-html"]);
    assert!(switch_csv.lines().count() > 4 && switch_csv.lines().all(|line| fields(line) == header), "{switch_csv}");
    assert_eq!(csv.lines().count(), 1 + 2 * 2 * 4);
    assert!(lines.all(|line| fields(line) == header), "{csv}");
}

#[test]
fn invalid_input_is_refused_with_file_line_and_key() {
    let profile = file("mine.toml", "name = \"mine\"\nbase = \"spr-asplos\"\n[wait]\npoll_ns = -1\n");
    let twice = file(
        "twice.json",
        "[{\"dev\":\"dsa0\",\"groups\":[\n{\"dev\":\"group0.0\",\"grouped_workqueues\":[{\"dev\":\"wq0.0\",\"mode\":\"shared\",\"size\":8}],\n\
         \"grouped_engines\":[{\"dev\":\"engine0.0\"}]},\n{\"dev\":\"group0.1\",\"grouped_engines\":[{\"dev\":\"engine0.0\"}]}]}]",
    );
    let wide = file(
        "wide.json",
        "[{\"dev\":\"dsa0\",\"groups\":[{\"dev\":\"group0.0\",\n\"grouped_workqueues\":[\n{\"dev\":\"wq0.0\",\"mode\":\"shared\",\"size\":100},\n\
         {\"dev\":\"wq0.1\",\"mode\":\"shared\",\"size\":100}],\n\"grouped_engines\":[{\"dev\":\"engine0.0\"}]}]}]",
    );
    let narrow = narrow();
    let far = file(
        "far.json",
        "[{\"dev\":\"dsa0\",\"groups\":[{\"dev\":\"group0.0\",\"grouped_workqueues\":[\n{\"dev\":\"wq0.0\",\n\"size\":129}]}]}]",
    );
    let broken = file("broken.json", "[{\"dev\":\"dsa0\",\n\"groups\":7}]");
    let workload =
        file("load.toml", "why = \"To see.\"\n[[load]]\nname = \"a\"\nop = \"memory-move\"\nsize = \"4q\"\n");
    let model = |name: &str| format!("model:{name}");
    let (twice, wide, far, broken) = (model(&twice), model(&wide), model(&far), model(&broken));
    let empty = file("empty.toml", "");
    let cases: [(&[&str], &str); 20] = [
        (&["sim", "run", "--profile", &profile], "./mine.toml, line 4: wait.poll_ns is -1, not a number from"),
        (&["sim", "run", "--profile", &empty], "./empty.toml, line 1: name is missing; it must be a text"),
        (&["sim", "run", "--profile", "./none.toml"], "cannot read ./none.toml"),
        (&["sim", "run", "--profile", "sprr"], "'sprr' is no built-in profile; there are spr-asplos"),
        (&["sim", "run", "--set", "wait.pol_ns=1"], "--set, line 1: wait.pol_ns is not a parameter; known there: "),
        (&["sim", "run", "--set", "poll"], "--set takes KEY=VALUE"),
        (
            &["sim", "run", "--device", &twice],
            "./twice.json, line 4: dsa0: bringing up the modelled device failed: command 'enable device'",
        ),
        (&["sim", "run", "--device", &wide], "./wide.json, line 4: dsa0: "),
        (
            &["sim", "run", "--device", &far],
            "./far.json, line 3: dsa0: the configuration does not fit the device: wq0.0: size 129 is not between 1 and 128",
        ),
        (&["sim", "run", "--device", &broken], "./broken.json is not an accel-config configuration"),
        (&["sim", "run", "--device", &narrow, "--engines", "2"], "has its own queues and engines; leave out --engines"),
        (&["sim", "run", "--device", "hw:wq0.0"], "what is simulated has none"),
        (&["sim", "run", "--devices", "9"], "9 devices are configured, and the profile spr-asplos has 4"),
        (&["sim", "run", "--engines", "5"], "number 4 is not between 0 and 3"),
        (&["sim", "run", "--threads", "9"], "9 threads need a dedicated queue each, and there are 8"),
        (
            &["sim", "run", "--placement", "0,40"],
            "--placement's destination is node 40, and the profile spr-asplos has nodes 0 to",
        ),
        (&["sim", "run", "--wait", "sit"], "'sit' is not one of poll, umwait, interrupt, sleep"),
        (&["sim", "run", &workload], "./load.toml, line 5: load[0].size is 4q"),
        (&["advise", "--size", "2g", "--threads", "1000"], "1000 threads ask for advice, and at most 128"),
        (&["advise", "--objective", "fun"], "'fun' is not one of throughput, per-core, latency, cycles"),
    ];
    for (args, words) in cases {
        let message = refusal(&[args, &["--no-html"][..usize::from(args[0] == "sim")]].concat());
        assert!(message.starts_with("telpher: ") && message.contains(words), "{args:?}: {message}");
    }
}

#[test]
fn a_workload_s_loads_run_at_once_and_a_file_configures_their_devices() {
    let workloads = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/workloads");
    let path = |name: &str| workloads.join(name).display().to_string();
    let result = json(&["sim", "run", &path("messages-beside-pages.toml"), "--format", "json", "--no-html"]);
    let loads: Vec<_> =
        result["points"].as_array().expect("points").iter().map(|point| point["load"].as_str()).collect();
    assert_eq!(loads, [Some("messages"), Some("huge pages")]);
    let switches = success(&["sim", "run", &path("switch.toml"), "--no-html"]);
    assert!(switches.contains("xeon-8471n") && switches.contains("copied by the device"), "{switches}");
    let listing = success(&["list", "--device", "model:spr", "--format", "json"]);
    let saved = format!("model:{}", file("saved.json", &listing));
    let args = ["sim", "run", "--device", &saved, "--size", "4k", "--threads", "8", "--no-html", "--format", "json"];
    assert_eq!(json(&args)["points"][0]["threads"], 8);
}

#[test]
fn every_profile_runs_and_is_advised_on() {
    let list = success(&["sim", "profiles"]);
    // The description of a profile is indented under its line.
    let lines = list.lines().skip(2).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let mut seen = 0;
    for name in names {
        let result = json(&[&ONE[..], &["--profile", name, "--format", "json"]].concat());
        assert_eq!(result["profile"], name);
        assert!(result["points"][0]["bytes_per_s"].as_f64().expect("a rate") > 1e9, "{name}");
        let advice = json(&["advise", "--profile", name, "--size", "64k", "--format", "json", "--no-html"]);
        assert_eq!((&advice["profile"], &advice["simulated"]), (&Value::from(name), &Value::from(true)));
        assert!(advice["gain"].as_f64().expect("a gain") >= 1.0, "{name}");
        seen += 1;
    }
    assert!(seen >= 5, "{list}");
}

#[test]
fn the_movers_policy_decides_and_the_cache_fills() {
    let args =
        ["sim", "run", "--size", "1m", "--in-flight", "1", "--count", "40", "--device", "model:spr", "--no-html"];
    let run = |more: &[&str]| json(&[&args[..], more, &["--format", "json"]].concat())["points"][0].clone();
    let number = |point: &Value, key: &str| point[key].as_f64().expect("a number");
    let by_core = run(&["--policy", "threshold=never"]);
    let whole = run(&["--devices", "2", "--policy", "threshold=4k", "--policy", "split=never"]);
    let shared = run(&["--devices", "2", "--policy", "split=64k:2", "--policy", "hybrid=off"]);
    assert_eq!(by_core["bottleneck"]["limit"], "cpu");
    assert!(number(&whole, "mean_ns") < 0.5 * number(&by_core, "mean_ns"));
    assert!(number(&shared, "mean_ns") < 0.75 * number(&whole, "mean_ns"));
    let (portal, write) = (run(&[]), run(&["--through", "write"]));
    assert!(number(&write, "mean_ns") > number(&portal, "mean_ns") + 100.0);
    let uses = |point: &Value| point["resources"].to_string().contains("last-level cache of devices");
    assert!(uses(&run(&["--hint", "cache", "--footprint", "4m"])) && !uses(&portal));
    for (policy, words) in [
        ("rout=first", "one of threshold, route, split, hybrid"),
        ("route=straight", "'route' does not take 'straight'; it takes first"),
    ] {
        let message = refusal(&[&args[..], &["--policy", policy]].concat());
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn profiles_are_listed_and_shown_and_a_copy_is_valid() {
    let list = success(&["sim", "profiles"]);
    assert!(list.contains("spr-asplos") && list.contains("telpher sim profiles template"), "{list}");
    for name in ["spr-asplos", "template"] {
        let copy = file("copy.toml", &success(&["sim", "profiles", name]));
        assert!(success(&[&ONE[..], &["--profile", &copy]].concat()).starts_with("Simulated"), "{name}");
    }
}

#[test]
fn the_recommended_configuration_runs() {
    let saved = test_folder().join("advised.json");
    let name = saved.to_str().expect("a plain path");
    let path = test_folder().join("advice.html");
    let page = path.to_str().expect("a plain path");
    let text = success(&["advise", "--size", "4k", "--threads", "2", "--config", name, "--html", page]);
    let page = std::fs::read_to_string(&path).expect("the report is there");
    for words in ["Simulated", "spr-asplos (", "next best", "G1, G2", "Gain: ", "&quot;grouped_engines&quot;"] {
        assert!(page.contains(words), "{words} is missing in the report");
    }
    for words in [
        "guideline",
        "G1, G2",
        "G5",
        "G6",
        "next best",
        "Gain:",
        "cores alone",
        "the device is faster from",
        "\"grouped_engines\"",
    ] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
    let device = format!("model:{name}");
    let run = json(&[
        "sim",
        "run",
        "--device",
        &device,
        "--size",
        "4k",
        "--threads",
        "2",
        "--in-flight",
        "8",
        "--no-html",
        "--format",
        "json",
    ]);
    assert!(run["points"][0]["bytes_per_s"].as_f64().expect("a rate") > 1e9);
    assert!(success(&["list", "--device", &device]).contains("wq0.0"), "the model takes it too");
    let alone = ["--in-flight", "1", "--objective", "latency", "--format", "json", "--no-html"];
    let result = json(&[&["advise", "--size", "256"][..], &alone].concat());
    assert_eq!(
        (result["accel_config"].as_array().map(Vec::len), result["works"][0]["by"].as_str()),
        (Some(0), Some("core"))
    );
}

#[test]
fn published_and_simulated_numbers_are_compared() {
    let path = test_folder().join("validation.html");
    let page = path.to_str().expect("a plain path");
    let only = ["sim", "validate", "--only", "K-02,K-044,K-061,K-065,V-10,T-076"];
    let table = success(&[&only[..], &["--html", page]].concat());
    let first = table.lines().next().expect("a heading");
    assert!(first.starts_with("Simulated · profile ") && table.contains("spr-asplos"), "{first}");
    let long = table.lines().find(|line| line.chars().count() > 80);
    assert_eq!(long, None, "a line is wider than a terminal");
    // Two classes of held-out claims, the source of each claim, other readings.
    for words in
        ["Held out: ", "Never in view: ", "In view* during a choice: ", "Calibrating: ", "K-061*", "K-044 ", "beside "]
    {
        assert!(table.contains(words), "{words} is missing in\n{table}");
    }
    let result = json(&[&only[..], &["--format", "json", "--no-html"]].concat());
    assert_eq!((result["about"]["simulated"].as_bool(), result["some"].as_bool()), (Some(true), Some(true)));
    let rows = |of: &str| result[of]["rows"].as_array().expect("rows").clone();
    let (held_out, calibration) = (rows("held_out"), rows("calibration"));
    let ids: Vec<&str> = held_out.iter().map(|row| row["id"].as_str().expect("a name")).collect();
    assert!(ids.contains(&"V-100") && !ids.contains(&"V-103"), "V-103 calibrates: {ids:?}");
    assert!(calibration.iter().any(|row| row["id"] == "V-103"));
    for row in held_out.iter().chain(&calibration) {
        let (id, source) = (row["id"].as_str().expect("a name"), row["source"].as_str().expect("a source"));
        assert!(source.split_whitespace().count() > 1 && table.contains(id), "{id}: {source}");
        assert!(row["verdict"] == "holds" || !row["why"].as_str().expect("a reason").is_empty(), "{id}");
    }
    let count = |of: &str| result[of]["simulated"].as_u64().expect("a number");
    assert_eq!(count("held_out"), held_out.len() as u64);
    assert_eq!(count("held_out"), count("held_out_untouched") + count("held_out_in_view"));
    let seen = held_out.iter().filter(|row| !row["in_view"].as_str().expect("text").is_empty()).count() as u64;
    assert!(seen > 0 && seen == count("held_out_in_view"));
    let csv = success(&[&only[..], &["--format", "csv", "--no-html"]].concat());
    let width = csv.lines().next().expect("names").split(',').count();
    assert!(csv.lines().next().expect("names").ends_with(",formula_deviation_percent") && width == 17, "{csv}");
    assert!(csv.lines().skip(1).all(|line| line.starts_with("yes,") && line.contains("spr-asplos (")), "{csv}");
    assert!(csv.lines().all(|line| fields(line) == width), "{csv}");
    let html = std::fs::read_to_string(&path).expect("the report is there");
    for words in ["Simulated", "spr-asplos", "KUPER §4.3", "K-061*", "In view: "] {
        assert!(html.contains(words), "{words} is missing in the report");
    }
    let markdown = success(&[&only[..], &["--markdown", "--no-html"]].concat());
    assert!(markdown.starts_with("Simulated · profile "), "{markdown}");
    for row in held_out.iter().chain(&calibration) {
        let id = row["id"].as_str().expect("a name");
        let line = markdown.lines().find(|line| line.starts_with(&format!("| {id}"))).expect("a row for each claim");
        let cells = line.replace("\\|", "").matches('|').count();
        let simulated = row["simulated"].as_str().expect("text").replace('|', "\\|");
        assert!(cells == 8 && line.contains(&simulated), "{line}");
    }
    assert!(refusal(&["sim", "validate", "--only", "X-1"]).contains("K-021"), "a claim that is none");
}

#[test]
fn raw_series_are_sorted_by_use_and_executor() {
    let result = json(&["sim", "validate", "--only", "series", "--format", "json", "--no-html"]);
    let series = result["series"].as_array().expect("series");
    let groups: Vec<(bool, &str)> = series
        .iter()
        .map(|row| (row["held_out"].as_bool().expect("its use"), row["by"].as_str().expect("what executed it")))
        .collect();
    let mut once = groups.clone();
    once.dedup();
    assert_eq!(once, [(true, "device"), (true, "core"), (false, "device")], "{groups:?}");
    assert!(series.iter().all(|row| row["points"].as_array().is_some_and(|points| !points.is_empty())));
}

#[test]
fn nothing_is_wider_than_a_terminal() {
    let workload = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/workloads/messages-beside-pages.toml");
    let workload = workload.display().to_string();
    let figures = test_folder().join("narrow").display().to_string();
    for args in [
        &["sim", "profiles"][..],
        &["sim", "run", "--op", "move,compare-pattern", "--size", "64..1m", "--count", "200", "--no-html"],
        &[
            "sim",
            "run",
            "--size",
            "4k",
            "--threads",
            "16",
            "--wq-mode",
            "shared",
            "--in-flight",
            "32",
            "--count",
            "200",
            "--no-html",
        ],
        &["sim", "run", &workload, "--no-html"],
        &["sim", "figures", "--only", "asplos-2,asplos-6,lightdsa-single", "--no-html", "--folder", &figures],
        &["advise", "--no-html"],
        &["advise", "--size", "64k", "--in-flight", "1", "--objective", "latency", "--no-html"],
    ] {
        let text = success(args);
        let long = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{args:?}:\n{text}");
    }
}

#[test]
fn published_experiments_run_on_any_machine_or_are_reported_as_impossible() {
    let list = success(&["sim", "profiles"]);
    let mine = file("mine-too.toml", "name = \"mine, too\"\nbase = \"spr-asplos\"\n");
    let names = list.lines().skip(2).take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).chain([mine.as_str()]);
    let out = test_folder().join("elsewhere").display().to_string();
    for name in names {
        // A claim for any machine, one that needs CXL, one with the thesis' HBM, and a switch.
        let only = ["--only", "asplos-5,asplos-6,thesis-3.6,vhost", "--folder", &out, "--format", "json"];
        let figures = json(&[&["sim", "figures", "--no-html", "--profile", name][..], &only].concat());
        for figure in figures["figures"].as_array().expect("figures") {
            let (panels, cannot) = (figure["panels"].as_array().expect("panels").len(), figure["cannot"].as_str());
            assert_eq!(panels == 0, cannot.is_some(), "{name}: {figure}");
            assert_eq!(figure["profiles"].as_array().map(Vec::len), Some(1));
            assert!(cannot.is_none_or(|why| why.contains("has")), "{name}: {cannot:?}");
            let written = Path::new(&out).join(format!("{}.json", figure["figure"].as_str().expect("a name")));
            let written = schemas::parse(std::fs::read(&written).expect("a file for each figure"));
            assert_eq!(written["panels"], figure["panels"], "{name}");
        }
        let only = ["--only", "K-02,K-037,T-03,V-01,P-01,series", "--format", "json"];
        let result = json(&[&["sim", "validate", "--no-html", "--profile", name][..], &only].concat());
        let profile = result["about"]["profile"].as_str().expect("a name");
        assert_eq!(result["elsewhere"].as_str(), Some(profile));
        assert!(name.ends_with(".toml") || name == profile);
        assert!(result["held_out"]["simulated"].as_u64().expect("a number") > 5, "{name}");
    }
    assert!(refusal(&["sim", "figures", "--profile", "sprr"]).contains("is no built-in profile"));
    assert!(refusal(&["sim", "validate", "--set", "wait.poll_ns=1", "--no-html"]).contains("needs"));
    assert!(
        refusal(&["sim", "run", "--profile", "template", "--no-html"])
            .contains("sim profiles template > my-machine.toml")
    );
}

#[test]
fn a_refused_operation_has_a_reason_and_no_number() {
    let some = ["sim", "run", "--op", "dif-check", "--size", "4160,4096", "--in-flight", "32", "--no-html"];
    let result = json(&[&some[..], &["--device", "model:spr", "--format", "json"]].concat());
    let sizes = |of: &str| {
        let of = result[of].as_array().expect("a list");
        of.iter().map(|of| of["size"].as_u64().expect("a size")).collect::<Vec<_>>()
    };
    assert_eq!((sizes("points"), sizes("refused")), (vec![4160], vec![4096]), "a block and its tuple have 520 bytes");
    let refused = &result["refused"][0];
    assert_eq!(refused["status"], "transfer size is zero or too large (0x13)");
    assert!(refused["reason"].as_str().expect("a text").contains("a multiple of the block size"), "{refused}");
    let gigabytes = result["points"][0]["bytes_per_s"].as_f64().expect("a number") / 1e9;
    assert!((20.0..32.0).contains(&gigabytes), "simulated, spr-asplos: {gigabytes} GB/s");

    let csv = success(&[&some[..], &["--device", "model:spr", "--format", "csv"]].concat());
    let widths: Vec<usize> = csv.lines().map(fields).collect();
    assert!(widths.iter().all(|width| *width == widths[0]), "{csv}");
    assert!(
        csv.lines().any(|line| line.contains("dif-check,4096,") && line.contains(",transfer size is zero")),
        "{csv}"
    );

    let narrow = narrow();
    let all: [(&[&str], &str); 4] = [
        (&["--device", &narrow, "--size", "128k"], "max_transfer_size, 65536; model:./narrow.json answers: transfer"),
        (
            &["--device", &narrow, "--size", "1k", "--batch", "8"],
            "max_batch_size, 4; model:./narrow.json answers: desc",
        ),
        (&["--device", "model:spr", "--op", "create-delta", "--size", "1m"], "transfer size within 512 KiB"),
        // The CPU does it, which is not what was asked of the device.
        (&["--op", "create-delta", "--size", "1m"], "transfer size within 512 KiB"),
    ];
    for (args, words) in all {
        let output = telpher(&[&["sim", "run", "--no-html"][..], args].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        // The table wraps its sentences.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(words) && text.contains("refused"), "{args:?}: {text}");
        assert_eq!(output.status.code(), Some(1), "the device did nothing: {args:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("refuses all of these operations"), "{stderr}");
    }
}

#[test]
fn a_time_can_replace_the_count() {
    let run = |more: &[&str]| {
        let args = [
            "sim",
            "run",
            "--size",
            "4k",
            "--in-flight",
            "8",
            "--device",
            "model:spr",
            "--no-html",
            "--format",
            "json",
        ];
        json(&[&args[..], more].concat())["points"][0].clone()
    };
    let number = |point: &Value, key: &str| point[key].as_f64().expect("a number");
    let (brief, long) = (run(&[]), run(&["--seconds", "0.05"]));
    assert_eq!(number(&brief, "operations"), 2000.0);
    let seconds = number(&long, "operations") / number(&long, "ops_per_s");
    assert!((seconds / 0.05 - 1.0).abs() < 0.02, "{seconds} s");
    let message = refusal(&["sim", "run", "--seconds", "3600", "--no-html"]);
    assert!(message.contains("give fewer --seconds"), "{message}");
    assert!(
        refusal(&["sim", "run", "--seconds", "1", "--count", "5", "--no-html"]).contains("cannot be used together")
    );
}

/// A tenant with 1 KiB copies and a limit of latency beside one with 1 MiB copies.
const TENANTS: &str = "devices = 1\n\
    [[tenant]]\nname = \"requests\"\nop = \"memory-move\"\nsize = \"1k\"\nrate = 500_000\nin_flight = 8\np99_us = 4\n\
    [[tenant]]\nname = \"bulk\"\nop = \"memory-move\"\nsize = \"1m\"\nin_flight = 16\n";

#[test]
fn advice_for_tenants_keeps_their_limits_and_shows_the_plan_without_each_setting() {
    let (work, config) = (file("tenants.toml", TENANTS), test_folder().join("tenants.json"));
    let config_path = config.display().to_string();
    let result = json(&["advise", &work, "--config", &config_path, "-f", "json"]);
    assert_eq!((&result["kind"], &result["keeps"]), (&"advise tenants".into(), &true.into()), "{result:#}");
    let of = |plan: &Value, name: &str| -> Value {
        plan.as_array().unwrap().iter().find(|tenant| tenant["name"] == name).unwrap().clone()
    };
    let limited = of(&result["tenants"], "requests");
    assert!(limited["beside"]["p99_ns"].as_f64().unwrap() <= 4000.0, "{limited}");
    assert_eq!(of(&result["advice"]["by_default"], "requests")["keeps"], false);
    let choices = result["advice"]["choices"].as_array().unwrap();
    assert!(!choices.is_empty());
    for choice in choices {
        assert_eq!(choice["without"].as_array().unwrap().len(), 2, "{choice}");
        assert_ne!(choice["chosen"], choice["default"], "{choice}");
    }
    // The text has the same, with a line for each setting.
    let text = success(&["advise", &work]);
    assert!(text.contains("The limits of all tenants hold.") && text.contains("With the defaults"), "{text}");
    let without = text.split("without it:").count() - 1;
    assert_eq!(without, choices.len(), "{text}");
    // The simulator agrees on the file that was written, and finds that the defaults do not keep the limits.
    let device = format!("model:{config_path}");
    let again = json(&["sim", "run", &work, "--device", &device, "-f", "json"]);
    assert_eq!((&again["kind"], &again["keeps"]), (&"sim tenants".into(), &true.into()), "{again:#}");
    assert_eq!(again["tenants"], result["tenants"]);
    let text = success(&["sim", "run", &work]);
    assert!(text.contains("The limits of a tenant do not hold."), "{text}");
    let csv = success(&["sim", "run", &work, "--device", &device, "-f", "csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines.len() == 5 && lines.iter().all(|line| fields(line) == fields(lines[0])), "{csv}");
    // A virtual device can be configured so.
    let run = ["run", "--hardware", &config_path, "--view", "preload", "--"];
    let script = "cat /sys/bus/dsa/devices/wq0.0/name /sys/bus/dsa/devices/wq0.1/name /sys/bus/dsa/devices/wq*/state";
    let names = success(&[&run[..], &["/bin/sh", "-c", script]].concat());
    assert_eq!(names.lines().collect::<Vec<_>>()[..4], ["requests", "bulk", "enabled", "enabled"], "{names}");
}

#[test]
fn wrong_tenants_are_named_with_their_line() {
    for (from, to, words) in [
        ("\"bulk\"", "\"requests\"", "tenants-wrong.toml, line 10: tenant[1].name is requests, as of another tenant"),
        ("\"bulk\"", "\"bulk copies\"", "tenant[1].name is 'bulk copies', not 1 to 15 letters"),
        ("p99_us = 4", "p99_us = 0", "tenant[0].p99_us is 0, not a number from 0.001"),
        ("devices = 1", "devices = 9", "devices is 9, not a number from 1 to 4 devices"),
        ("p99_us = 4", "p98_us = 4", "tenant[0].p98_us is not a parameter"),
    ] {
        let wrong = TENANTS.replace(from, to);
        assert_ne!(wrong, TENANTS);
        let message = refusal(&["advise", &file("tenants-wrong.toml", &wrong)]);
        assert!(message.contains(words), "{message}\ninstead of {words}");
    }
    // A queue for each tenant, by its name.
    let text = refusal(&["sim", "run", &file("tenants.toml", TENANTS), "--device", &narrow()]);
    assert!(text.contains("load requests: no queue of the devices has the name requests"), "{text}");
}
