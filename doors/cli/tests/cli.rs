//! The binary from a user's view: help, one-sentence errors, formats, the report.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod schemas;
#[path = "../../../ci/skip.rs"]
mod skip;

fn telpher(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    command.args(args).current_dir(test_folder()).output().expect("the binary runs")
}

/// Returns the folder for files of these tests.
fn test_folder() -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli");
    std::fs::create_dir_all(&room).expect("a folder for what the tests write");
    room
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Runs a command that must fail; returns its error message.
fn refusal(args: &[&str]) -> String {
    let output = telpher(args);
    assert!(!output.status.success(), "{args:?} succeeded");
    assert!(output.stdout.is_empty(), "{args:?} printed to standard output");
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(text.trim_end().lines().count(), 1, "{args:?} said more than a sentence: {text}");
    assert!(text.starts_with("telpher: "), "{text}");
    text
}

fn success(args: &[&str]) -> String {
    let output = telpher(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} failed: {errors}");
    stdout(&output)
}

const SMALL: [&str; 6] = ["bench", "--seconds", "0.2", "--size", "64,4k", "--no-html"];

#[test]
fn help_and_version_succeed_and_have_examples() {
    for args in [
        &["--help"][..],
        &["bench", "--help"],
        &["bench", "ops", "--help"],
        &["bench", "pollution", "--help"],
        &["bench", "mover", "--help"],
        &["bench", "run", "--help"],
        &["bench", "nvmf", "--help"],
        &["bench", "telemetry", "--help"],
        &["bench", "offload", "--help"],
        &["bench", "query", "--help"],
        &["bench", "cache", "--help"],
        &["bench", "cachelike", "--help"],
        &["bench", "tier", "--help"],
        &["bench", "vhost", "--help"],
        &["bench", "fabric", "--help"],
        &["bench", "all", "--help"],
        &["bench", "hosts", "--help"],
    ] {
        let text = success(args);
        assert!(text.contains("Examples:") && text.contains("telpher bench"), "{text}");
    }
    assert!(success(&["list", "--help"]).contains("accel-config"));
    for command in ["doctor", "exporter", "nvmf", "qdp", "run", "trace", "tune", "vhost"] {
        let text = success(&[command, "--help"]);
        assert!(text.contains("Examples:") && text.contains(&format!("telpher {command}")), "{text}");
    }
    assert_eq!(success(&["-V"]), format!("telpher {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn invalid_values_list_the_valid_ones() {
    let cases: [(&[&str], &str); 31] = [
        (&["bench", "--size", "4x"], "'4x' is not a size; a size is a number of bytes"),
        (&["bench", "--size", "4k..64"], "is not a range"),
        (&["bench", "--op", "mvoe"], "use move, fill"),
        (&["bench", "--wq-mode", "both"], "dedicated or shared"),
        (&["bench", "--sice", "4k"], "did you mean '--size'?"),
        (&["bench", "--device", "gpu"], "accepted: cpu, model:spr"),
        (&["bench", "--device", "hw:wq99999.0"], "cannot open wq99999.0"),
        (&["list", "--device", "hw:wq99999.0"], "there is no wq99999.0 on this machine"),
        (&["bench", "pollution", "--device", "all"], "is not one device"),
        (&["bench", "--device", "model:nowhere.json"], "cannot read nowhere.json"),
        (&["bench", "--placement", "0,63"], "NUMA node 63 does not exist; this machine has"),
        (&["bench", "--threads", "2", "--wq-size", "100"], "128 entries"),
        (&["bench", "mover", "--only", "shraing"], "is not an experiment; use"),
        (&["bench", "cache", "--only", "hit"], "is not an experiment; use hits, threads"),
        (&["bench", "tier", "--only", "smal"], "is not an experiment; use small, huge, busy"),
        (&["bench", "tier", "--workload", "xsbench"], "is not a program; use cross-sections or shortest-paths"),
        (&["bench", "all", "--only", "pollution"], "is no bench with goals; use ops, mover"),
        (&["bench", "all", "--against", "no/such/folder"], "cannot read no/such/folder"),
        (&["bench", "hosts", "no/such/folder"], "cannot read no/such/folder"),
        (&["bench", "vhost", "--only", "copied"], "copies or pipeline or threads"),
        (&["bench", "vhost", "--ring", "spilt"], "split or packed"),
        (&["bench", "fabric", "--only", "latencies"], "latency or long"),
        (&["bench", "vhost", "--size", "9k"], "packets have from 64 to 2048 bytes"),
        (&["bench", "--seconds", "no"], "seconds from 0.05"),
        (&["list", "--format", "xml"], "table or json or csv"),
        (&["bnech"], "did you mean 'bench'?"),
        (&["run"], "PROGRAM"),
        (&["run", "--abi", "5.4", "--", "true"], "5.15 or 6.1 or 6.6 or 6.12"),
        (&["run", "--view", "fuse", "--", "true"], "auto or preload or namespace"),
        (&["run", "--hardwear", "spr-1", "--", "true"], "did you mean '--hardware'?"),
        (&["run", "--zzz", "--", "true"], "takes --hardware"),
    ];
    for (args, words) in cases {
        let message = refusal(args);
        assert!(message.contains(words), "{args:?}: {message}");
    }
}

#[test]
fn an_unwritable_report_is_an_error_before_measuring() {
    let message = refusal(&["bench", "--html", "no/such/folder/r.html"]);
    assert!(
        message.contains("no/such/folder/r.html") && message.contains("name another file with --html"),
        "{message}"
    );
}

#[test]
fn json_has_every_point_with_its_distance_and_the_crossovers() {
    let args = [&SMALL[..], &["--op", "move,crc", "--format", "json"]].concat();
    let result = schemas::parse(success(&args));
    let points = result["points"].as_array().expect("points");
    assert!(points.len() >= 2 * 2 * 4, "{} points", points.len());
    for point in points {
        assert!(point["bytes_per_s"].as_f64().expect("a number") > 0.0, "{point}");
        // Percentiles of too few samples are null, never 0.
        let samples = point["samples"].as_u64().expect("a number");
        let percentiles = [("p50_ns", 1), ("p99_ns", 100), ("p999_ns", 1000)].map(|(name, least)| {
            let nanoseconds = point[name].as_f64();
            assert_eq!(nanoseconds.is_some_and(|ns| ns > 0.0), samples >= least, "{name} of {point}");
            assert_eq!(point[name].is_null(), samples < least, "{name} of {point}");
            nanoseconds
        });
        let percentiles: Vec<f64> = percentiles.into_iter().flatten().collect();
        assert!(percentiles.is_sorted(), "{point}");
    }
    let threaded = points.iter().find(|p| p["runner"] == "threaded").expect("a threaded point");
    if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        assert!(threaded["distance"]["round_trip_ns"].as_f64().expect("a distance") > 0.0);
    }
    assert!(!result["crossovers"].as_array().expect("crossovers").is_empty());
    assert!(result["remarks"][0].as_str().expect("a remark").contains("not the speed of DSA hardware"));
}

#[test]
fn csv_is_a_rectangle() {
    let text = success(&[&SMALL[..], &["--op", "fill", "--format", "csv"]].concat());
    let fields: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
    assert!(fields.len() > 8 && fields.iter().all(|n| *n == fields[0]), "{text}");
    assert!(text.starts_with("op,size_bytes,device,runner,"));
}

#[test]
fn the_table_and_the_report_are_readable() {
    let html = test_folder().join("report.html");
    let path = html.to_str().expect("a path in UTF-8");
    let text = success(&["bench", "--full", "--seconds", "0.2", "--size", "64,4k", "--op", "move", "--html", path]);
    for words in [
        "throughput, GB/s",
        "p50 / p99 / p99.9",
        "4 KiB",
        "Crossover",
        "not the speed of DSA hardware",
        "copies of 4 MiB, waiting for model:spr",
    ] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
    let page = std::fs::read_to_string(&html).expect("the report was written");
    for words in ["<svg", "throughput, GB/s", "transfer size", "64 B", "not the speed of DSA hardware", "telpher bench"]
    {
        assert!(page.contains(words), "{words} is missing in the report");
    }
    assert!(page.contains("DSA (spr-asplos), simulated"), "the simulated line is missing in the report");
    assert!(page.contains("<title>CPU, 4 KiB: throughput "), "points have no values");
    let (file, data) =
        (page.find("download=\"report.csv\""), page.find("href=\"data:text/csv;charset=utf-8,op,size_bytes,"));
    assert!(file.is_some() && data.is_some(), "the report has no data");
    for word in ["<script", "src="] {
        assert!(!page.contains(word), "the report is not self-contained: {word}");
    }
}

#[test]
fn the_summary_has_a_screen_and_a_simulated_device() {
    let folder = test_folder().join("summary");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    let output = command.args(["bench", "--seconds", "0.2"]).current_dir(&folder).output().expect("the binary runs");
    let (text, said) = (stdout(&output), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let written: Vec<_> = std::fs::read_dir(&folder).expect("readable").collect();
    assert!(written.is_empty(), "a report that was not asked for: {written:?}");
    assert!(text.lines().count() <= 25 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for words in ["simulated DSA", "1 MiB", "copy-crc", "Latency of move", "bench --full --html bench.html"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}

#[test]
fn every_operation_runs_on_every_route_and_is_checked() {
    let args = ["bench", "--op", "all", "--size", "4k,64k", "--seconds", "0.3", "--device", "model:full", "--no-html"];
    let text = success(&[&args[..], &["--format", "csv"]].concat());
    for op in ["move", "create-delta", "apply-delta", "dualcast", "copy-crc", "dif-update", "cache-flush"] {
        for route in [",cpu,", ",inline,", ",threaded,"] {
            let found = text.lines().any(|line| line.starts_with(&format!("{op},")) && line.contains(route));
            assert!(found, "{op} on {route} is missing in\n{text}");
        }
    }
}

#[test]
fn options_shape_the_queue_and_the_buffers() {
    let small = ["bench", "--op", "move", "--size", "4k", "--seconds", "0.1", "--no-html", "--format", "csv"];
    for options in [
        &["--wq-mode", "shared", "--threads", "2", "--engines", "2"][..],
        &["--threads", "2", "--wq-size", "8", "--in-flight", "1,4", "--batch", "1,8"],
        &["--pages", "2m", "--hint", "memory", "--placement", "0,0"],
        &["--device", "cpu"],
    ] {
        let text = success(&[&small[..], options].concat());
        assert!(text.lines().count() >= 2, "{options:?}: {text}");
    }
    // Few machines have reserved such pages.
    let args = [&small[..], &["--pages", "1g", "--device", "cpu"]].concat();
    let output = telpher(&args);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || error.contains("in pages of 1 GiB"), "{error}");
    assert!(output.status.success() || error.contains("hugepages-1048576kB/nr_hugepages"), "{error}");
}

#[test]
fn the_comparison_with_alternatives_has_ratios_and_costs() {
    let text = success(&["bench", "ops", "--op", "move,crc", "--size", "4k", "--seconds", "0.3", "--no-html"]);
    for words in ["memcpy", "crc-fast", "ratio", "Median over all sizes", "no-op", "idle device"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}

#[test]
fn the_pollution_experiment_runs_where_there_are_two_cores() {
    let args = ["bench", "pollution", "--working-set", "64k", "--seconds", "0.5", "--no-html", "--format", "json"];
    if std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) {
        let result = schemas::parse(success(&args));
        assert_eq!(result["rows"].as_array().expect("rows").len(), 4);
    } else {
        assert!(refusal(&args).contains("needs two cores"));
    }
}

#[test]
fn an_experiment_of_the_mover_runs_by_name_in_every_format() {
    let small = ["bench", "mover", "--only", "sharing", "--seconds", "0.2"];
    if std::thread::available_parallelism().is_ok_and(|n| n.get() == 1) {
        assert!(success(&[&small[..], &["--no-html"]].concat()).contains("sharing needs 2 cores"));
        return;
    }
    let path = test_folder().join("mover.html");
    let text = success(&[&small[..], &["--html", path.to_str().expect("a plain path")]].concat());
    assert!(text.contains("sharing: ") && text.contains("one shared queue"), "{text}");
    assert!(std::fs::read_to_string(&path).expect("the report is there").contains("one shared queue"));
    let json = success(&[&small[..], &["--no-html", "--format", "json"]].concat());
    let result = schemas::parse(&json);
    assert_eq!((result["kind"].as_str(), result["contests"][0]["name"].as_str()), (Some("mover"), Some("sharing")));
    let csv = success(&[&small[..], &["--no-html", "--format", "csv"]].concat());
    assert!(csv.starts_with("contest,what,measured,unit,at_most,at_least,reached\nsharing,"), "{csv}");
}

#[test]
fn the_cost_of_moving_pages_is_measured_and_bytes_are_checked() {
    let json = success(&["bench", "tier", "--only", "small,huge", "--seconds", "0.5", "--no-html", "--format", "json"]);
    let result = schemas::parse(&json);
    assert_eq!(result["kind"].as_str(), Some("tier"));
    let rows = |at: usize| result["contests"][at]["rows"].as_array().expect("rows").clone();
    let measured = |row: &Value| row["measured"].as_f64().expect("a number");
    let cost = |words: &str| {
        let row = rows(0).into_iter().find(|row| row["what"].as_str().is_some_and(|what| what.contains(words)));
        measured(&row.unwrap_or_else(|| panic!("no row of {words}")))
    };
    // Moving many pages together costs less for each page than moving one, even on a busy machine.
    let (one, most) = (cost("of 1 that go"), cost("of 512 that go together, neighbours"));
    assert!(0.0 < most && 2.0 * most < one, "{most} ns of 512, {one} ns of one");
    // Where transparent huge pages are off, the bench leaves the experiment out and says so.
    if telpher_os::TransparentHugePages::setting().are_off() {
        assert!(json.contains("Not measured: huge"), "{json}");
    } else {
        assert!(measured(&rows(1)[0]) > 0.1, "GB/s: {json}");
    }
}

#[test]
fn the_cost_of_the_cache_is_reported_by_experiment_in_every_format() {
    let small = ["bench", "cache", "--only", "memory,hits", "--seconds", "0.2"];
    let path = test_folder().join("cache.html");
    let text = success(&[&small[..], &["--html", path.to_str().expect("a plain path")]].concat());
    for words in ["hits: What does a hit cost", "≤ 60", "peek (weak access)", "memory: ", "≤ 128"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
    let page = std::fs::read_to_string(&path).expect("the report is there");
    assert!(page.contains("telpher bench cache") && page.contains("memory of an entry"), "{page}");
    let json = success(&[&small[..], &["--no-html", "--format", "json"]].concat());
    let result = schemas::parse(&json);
    assert_eq!((result["kind"].as_str(), result["contests"][0]["name"].as_str()), (Some("cache"), Some("hits")));
    let entry = &result["contests"][1]["rows"][0];
    // An entry is at least as large as its addresses and lengths.
    assert!(entry["measured"].as_f64().expect("a number") > 32.0, "{entry}");
    let csv = success(&[&small[..], &["--no-html", "--format", "csv"]].concat());
    assert!(csv.starts_with("contest,what,measured,unit,at_most,at_least,reached\nhits,"), "{csv}");
}

#[test]
fn goals_of_a_host_are_saved_compared_and_counted() {
    let folder = test_folder().join("hosts");
    let _ = std::fs::remove_dir_all(&folder);
    let path = folder.to_str().expect("a path in UTF-8");
    let all = ["bench", "all", "--only", "cache", "--seconds", "0.2"];
    let words = [&all[..], &["--rounds", "2", "--save", path, "--format", "json"]].concat();
    let saved = schemas::parse(success(&words));
    let quantities = saved["quantities"].as_array().expect("quantities");
    let hits = quantities.iter().find(|quantity| quantity["experiment"] == "hits").expect("the experiment hits");
    assert_eq!(hits["values"].as_array().expect("a value for each round").len(), 2, "{hits}");
    assert_eq!(saved["missing"], serde_json::json!([]));
    let files: Vec<_> = std::fs::read_dir(&folder).expect("the folder").map(|file| file.expect("a file")).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(schemas::parse(std::fs::read(files[0].path()).expect("the file"))["quantities"], saved["quantities"]);
    let table = success(&[&all[..], &["--against", path]].concat());
    assert!(table.contains("telpher bench cache") && table.contains("goals are reached"), "{table}");
    let page = success(&["bench", "hosts", path]);
    assert!(page.starts_with("1 kind of host") && page.contains("| cache | "), "{page}");
    let csv = success(&[&all[..], &["--format", "csv"]].concat());
    assert!(csv.lines().count() > 2 && csv.starts_with("bench,experiment,what,median"), "{csv}");
}

#[test]
fn without_duckdb_only_the_engine_is_timed() {
    let small = ["bench", "query", "--size", "1m", "--seconds", "0.1", "--python", "/nowhere/python3", "--no-html"];
    let result = schemas::parse(success(&[&small[..], &["--format", "json"]].concat()));
    let rows = result["rows"].as_array().expect("rows");
    assert!(rows.iter().any(|row| row["what"] == "TPC-H query 1"), "{rows:?}");
    assert!(rows.iter().all(|row| row["unit"] == "ms" && row["goal"].is_null()), "{rows:?}");
    assert!(success(&small).contains("There is no DuckDB to compare with (/nowhere/python3 does not start"));
    let csv = success(&[&small[..], &["--format", "csv"]].concat());
    assert!(csv.starts_with("what,measured,unit,at_most,at_least,reached\n\"the thesis' query"), "{csv}");
}

#[test]
fn without_testpmd_packets_are_forwarded_to_our_own_guest() {
    let small =
        ["bench", "vhost", "--own-guest", "--quick", "--size", "64,1518", "--only", "copies,rings,flat,latency"];
    let html = test_folder().join("vhost.html");
    let args = [&small[..], &["--format", "json", "--html", html.to_str().expect("text")]].concat();
    let result = schemas::parse(success(&args));
    let list = |name: &str| result[name].as_array().unwrap_or_else(|| panic!("{name}")).clone();
    let names: Vec<String> = list("contests").iter().map(|contest| contest["name"].to_string()).collect();
    // On busy cores no point may count; the rows of latency then say that nothing was measured.
    assert_eq!(names, ["\"rings\"", "\"flat\"", "\"latency\""]);
    assert_eq!(list("costs").len(), 2 * 2 * 2);
    let kept = result["points"]["kept"].as_u64().expect("a number");
    let seen: u64 = list("rates").iter().map(|rate| rate["points"].as_u64().expect("a number")).sum();
    assert!(seen <= kept && list("ratios").is_empty(), "{result}");
    let page = std::fs::read_to_string(html).expect("the report");
    assert!(page.contains("ticks a packet") && page.contains("What a packet costs"), "no chart of costs");
}

#[test]
fn the_listing_has_accel_configs_format_and_loads_as_a_device() {
    let text = success(&["list", "--device", "model:spr", "--format", "json"]);
    let listing = schemas::parse(&text);
    let groups = listing[0]["groups"].as_array().expect("groups");
    assert_eq!((listing[0]["dev"].as_str(), groups.len()), (Some("dsa0"), 4));
    assert!(groups[0]["grouped_workqueues"][0]["size"].as_u64().expect("a size") > 0);
    let file = test_folder().join("saved.json");
    std::fs::write(&file, &text).expect("the listing is saved");
    let name = format!("model:{}", file.display());
    assert!(success(&["list", "--device", &name]).contains("wq0.7"));
    let args = ["bench", "--full", "--device", &name, "--op", "move", "--size", "4k", "--seconds", "0.1", "--no-html"];
    assert!(success(&args).contains("threaded"));
    assert!(refusal(&[&args[..], &["--engines", "2"]].concat()).contains("has its own queues and engines"));
}

#[test]
fn the_text_listing_names_queues_engines_and_operations() {
    let text = success(&["list"]);
    for words in ["dsa0 (model:spr)", "8 of 8 work queues", "128 queue entries", "memory-move", "engine0.3", "cpu:"] {
        assert!(text.contains(words), "{words} is missing in\n{text}");
    }
}

#[test]
fn the_listing_names_the_kernels_of_the_tuning_file() {
    let file = test_folder().join("kernels.toml");
    let list = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
        command.arg("list").env("TELPHER_TUNING", &file).output().expect("telpher runs")
    };
    let text = "version = 1\n[machine]\ncpu = \"x\"\ndevice = \"cpu\"\nin-flight = 1\n[kernels]\n";
    for length in ["1024", "2048"] {
        std::fs::write(&file, format!("{text}guard-prefetch = \"{length}\"\n")).expect("a tuning file");
        let listed = String::from_utf8(list().stdout).expect("text");
        assert!(listed.contains(&format!("guard-prefetch={length}")), "{listed}");
    }
    std::fs::write(&file, format!("{text}guard-prefetch = \"3\"\n")).expect("a tuning file");
    let refused = list();
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && message.contains("guard-prefetch"), "{message}");
}

#[test]
fn the_long_version_names_commit_target_and_kernels() {
    let text = success(&["--version"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0], format!("telpher {}", env!("CARGO_PKG_VERSION")));
    let commit = lines[1].strip_prefix("commit: ").expect("a line with the commit");
    let is_hash = commit.len() == 12 && commit.chars().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{text}");
    assert!(lines[2].starts_with("target: x86_64-"), "{text}");
    let level = telpher_ops::dispatch::level();
    assert!(
        lines[3].starts_with(&format!("kernels: operations {level}")) && lines[3].contains(", guarded copies "),
        "{text}"
    );
}

/// Runs `telpher run -- true` and returns its messages.
fn messages(flags: &[&str], variable: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    command.args(flags).args(["run", "--hardware", "spr-1", "--", "true"]).env_remove("TELPHER_LOG");
    if let Some(level) = variable {
        command.env("TELPHER_LOG", level);
    }
    let output = command.output().expect("the binary runs");
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn verbose_commands_report_their_choices_on_standard_error() {
    assert_eq!(messages(&[], None), "");
    assert_eq!(messages(&[], Some("warn")), "");
    let info = messages(&["-v"], None);
    assert!(info.contains("telpher: info: devices of spr-1: 1; driver of kernel 6.6"), "{info}");
    assert!(info.contains("runner Auto") && !info.contains("debug"), "{info}");
    assert_eq!(messages(&[], Some("info")), info);
    let debug = messages(&["-vv"], None);
    assert!(debug.contains("telpher: debug: telpher ") && debug.contains("kernels: "), "{debug}");
    assert_eq!(messages(&[], Some("debug")), debug);
    let wrong = messages(&[], Some("loud"));
    assert_eq!(wrong, "telpher: warning: TELPHER_LOG is 'loud' and is ignored; use warn, info or debug\n");
}

#[test]
fn results_go_to_the_named_file() {
    let file = test_folder().join("listing.csv");
    let name = file.to_str().expect("a path of ours");
    assert_eq!(success(&["list", "--device", "model:spr", "--format", "csv", "--output", name]), "");
    let text = std::fs::read_to_string(&file).expect("the listing");
    assert_eq!(text.lines().count(), 9, "a line of names, and 8 queues: {text}");
    assert!(text.contains("wq0.7") && text.lines().next().is_some_and(|names| names.contains("max_transfer_size")));
    let message = refusal(&["list", "--output", "no/such/folder/l"]);
    assert!(message.contains("no/such/folder/l") && message.contains("--output"), "{message}");
}

#[test]
fn tune_replaces_the_file_with_the_printed_values() {
    let file = test_folder().join("tuned.toml");
    let name = file.to_str().expect("a path of ours");
    std::fs::write(&file, "older").expect("our own folder");
    let args = ["tune", "--op", "move,crc", "--size", "256,64k", "--seconds", "0.3", "--tuning", name];
    let table = success(&args);
    assert!(table.contains("move") && table.contains("64 KiB") && table.contains("export TELPHER_TUNING=/"), "{table}");
    let text = std::fs::read_to_string(&file).expect("it was written");
    assert!(text.contains("version = 1") && text.contains("memory-move = [") && text.contains("[policy]"), "{text}");
    let words: Vec<&str> =
        args.into_iter().chain(["--format", "json", "--in-flight", "4", "--runner", "threaded"]).collect();
    let json = schemas::parse(success(&words));
    assert_eq!(json["kind"], "tune");
    assert_eq!(json["in_flight"], 4);
    assert_eq!(json["operations"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["operations"][0]["points"].as_array().map(Vec::len), Some(2));
    assert!(std::fs::read_to_string(&file).expect("it was replaced").contains("in-flight = 4"));
    let beside = std::fs::read_dir(test_folder()).expect("our folder").flatten();
    assert!(beside.map(|entry| entry.file_name()).all(|name| !name.to_string_lossy().starts_with("tuned.toml.")));
}

#[test]
fn invalid_devices_and_files_are_errors_before_tuning() {
    let nowhere = test_folder().join("missing").join("tuned.toml");
    let nowhere = nowhere.to_str().expect("a path of ours");
    let message = refusal(&["tune", "--tuning", nowhere]);
    assert!(message.contains("cannot write the tuning file") && message.contains("missing/tuned.toml"), "{message}");
    let message = refusal(&["tune", "--device", "cpu"]);
    assert!(message.contains("name a model or a queue"), "{message}");
    let message = refusal(&["tune", "--device", "model:nowhere.json"]);
    assert!(message.contains("nowhere.json"), "{message}");
    assert!(refusal(&["tune", "--op", "sort"]).contains("use move, fill"));
}

const TRACE: &str = "\
0.000001000 1/1 wq0.0 #1 enqcmd memory-move(src=0x10, dst=0x20, size=64, flags=crav|rcr) = 0x01 success <5.000us>
0.000002000 1/2 wq0.1 #1 movdir64b batch(list=0x40, count=2) = 0x05 batch-fail members=2 <9.000us>
0.000002000 1/2 wq0.1     #1[0] fill(pattern=0x0, dst=0x20, size=4096) = \
0x83 page-fault-write bytes=100 fault=0x84 <7.000us>
0.000003000 2/2 wq0.1 #2 movdir64b fill(pattern=0x0, dst=0x20, size=64) = (not completed)
0.000004000 2/2 wq0.1 #3 enqcmd nop() = (retry) retries=7
0.000005000 2/2 wq0.1 misuse read-after-write address=0x20 len=64: #2 source-1 of fill(dst=0x20)
0.000006000 2/2 wq0.1 lost entries=4
";

/// Writes a trace to a file of this name, and returns its path.
fn trace_file(name: &str, text: &str) -> String {
    let path = test_folder().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().expect("a path of this project").to_owned()
}

#[test]
fn a_trace_is_filtered_and_converted() {
    let file = trace_file("some.trace", TRACE);
    let trace = |options: &[&str]| success(&[&["trace", &file], options].concat());
    let first = format!("{}\n", TRACE.lines().next().unwrap());
    assert_eq!(trace(&[]), TRACE);
    let filters = ["--queue wq0.0,wq9.9 --op copy", "--process 1 --op copy", "--status success --slower-than 4us"];
    for options in filters {
        assert_eq!(trace(&options.split(' ').collect::<Vec<_>>()), first, "{options}");
    }
    let json = trace(&["--format", "json"]);
    assert_eq!(json.lines().count(), 7);
    assert_eq!(success(&["trace", &trace_file("json.trace", &json)]), TRACE, "JSON round-trips");
    let csv = trace(&["--format", "csv"]);
    assert_eq!(csv.lines().count(), 8);
    assert!(csv.starts_with("time_ns,process,thread,queue,kind,"), "{csv}");
    assert!(
        csv.lines().nth(1).unwrap().starts_with("1000,1,1,wq0.0,descriptor,#1,enqcmd,memory-move,success,5000,0,\"")
    );
}

#[test]
fn a_summary_of_a_trace_counts_what_passes() {
    let file = trace_file("summed.trace", TRACE);
    let summary = |options: &[&str]| success(&[&["trace", &file, "--summary"], options].concat());
    let text = summary(&["--queue", "wq0.1"]);
    assert!(text.starts_with("3 descriptors, 100 B completed, by 2 processes\n"), "{text}");
    let parts = ["1 batch-fail", "1 page-fault", "1 not completed", "7 retries", "1 finding: 1 read-after-write"];
    for part in parts.into_iter().chain(["misses 4 events"]) {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let json = schemas::parse(summary(&["--format", "json"]));
    assert_eq!(json["operations"]["memory-move"]["ends"]["success"], 1);
    let csv = summary(&["--format", "csv"]);
    assert!(csv.lines().next().unwrap().contains("operation"), "{csv}");
    assert!(csv.lines().any(|line| line.contains("memory-move")), "{csv}");
}

#[test]
fn an_incomplete_last_line_of_a_trace_is_accepted_and_other_bad_lines_are_not() {
    let torn = telpher(&["trace", &trace_file("torn.trace", &TRACE[..TRACE.len() - 20])]);
    assert!(torn.status.success());
    assert_eq!(stdout(&torn).lines().count(), 6);
    assert!(String::from_utf8_lossy(&torn.stderr).contains("torn.trace is incomplete"));
    for (name, text, said) in [
        ("long.trace", "x".repeat(2 << 20), "line 1 is longer than 1048576 bytes"),
        ("hello.trace", "hello\n".to_owned(), "line 1 is not a line of a trace: hello"),
    ] {
        let error = refusal(&["trace", &trace_file(name, &text)]);
        assert!(error.contains(&format!("{name} is not a trace of `telpher run`: {said}")), "{error}");
    }
    let middle = telpher(&["trace", &trace_file("middle.trace", &format!("{TRACE}oops\n{TRACE}"))]);
    assert!(!middle.status.success() && String::from_utf8_lossy(&middle.stderr).contains("line 8 is not a line"));
}

/// Returns what bash offers after these words, with the script of `telpher completions bash`.
fn completed(words: &[&str]) -> Vec<String> {
    let script = test_folder().join("telpher.bash");
    std::fs::write(&script, success(&["completions", "bash"])).expect("the script is written");
    let program = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                   _telpher telpher \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\" || true; \
                   printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-euc", program, "bash"]).arg(&script).args(words);
    let output = bash.output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Without any offer, printf prints an empty line.
    stdout(&output).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_flags_and_values() {
    assert_eq!(completed(&["telpher", "be"]), ["bench"]);
    assert_eq!(completed(&["telpher", "bench", "pol"]), ["pollution"]);
    assert_eq!(completed(&["telpher", "sim", "run", "--wq-s"]), ["--wq-size"]);
    assert_eq!(completed(&["telpher", "list", "--format", ""]), ["table", "json", "csv"]);
    // Hidden in `bench`, and an option of `sim figures`.
    assert_eq!(completed(&["telpher", "bench", "--no-h"]), Vec::<String>::new());
    assert_eq!(completed(&["telpher", "sim", "figures", "--no-h"]), ["--no-html"]);
    for (shell, words) in [("zsh", "#compdef telpher"), ("fish", "complete -c telpher")] {
        assert!(success(&["completions", shell]).contains(words), "{shell}");
    }
    assert!(refusal(&["completions", "tcsh"]).contains("bash or zsh or fish"));
}

#[test]
fn every_command_has_a_manual_page_that_renders() {
    if Command::new("groff").arg("--version").output().is_err() {
        return skip::skip("every_command_has_a_manual_page_that_renders", "no groff in PATH");
    }
    let folder = test_folder().join("man1");
    let _ = std::fs::remove_dir_all(&folder);
    success(&["man", "--folder", folder.to_str().expect("a path in UTF-8")]);
    let pages: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("pages").map(|entry| entry.expect("an entry").path()).collect();
    assert!(pages.len() > 30 && pages.contains(&folder.join("telpher-bench-ops.1")), "{pages:?}");
    let mut groff = Command::new("groff");
    groff.args(["-k", "-ww", "-man", "-Tutf8", "-P-cbou"]).args(&pages);
    let output = groff.output().expect("groff runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    let text = stdout(&output);
    for words in ["telpher-tier-run - ", "telpher bench ops --op move", "--tuning", "EXAMPLES"] {
        assert!(text.contains(words), "{words} is missing");
    }
    assert_eq!(success(&["man", "bench", "ops"]), std::fs::read_to_string(folder.join("telpher-bench-ops.1")).unwrap());
    assert!(refusal(&["man", "benhc"]).contains("no command 'benhc'"));
}

/// The binary carries the libraries compressed; not packed, they would be a sixth of what is installed.
#[test]
fn preloaded_libraries_are_packed_and_whole() {
    use std::io::BufRead as _;
    use telpher_launch::libraries::{COLLECTIVES, FABRIC, OFFLOAD, TIER, VDEV};
    let binary = std::fs::read(env!("CARGO_BIN_EXE_telpher")).expect("the binary is readable");
    // A word of each that is no word of this command.
    for (library, word) in [
        (&VDEV, "telpher_share_signals"),
        (&TIER, "thrd_create"),
        (&OFFLOAD, "__memcpy_chk"),
        (&FABRIC, "fi_prov_ini"),
        (&COLLECTIVES, "MPI_Allreduce"),
    ] {
        let bytes = library.bytes();
        assert!(bytes.starts_with(b"\x7fELF"), "{}", library.name);
        let word = [b"\0", word.as_bytes(), b"\0"].concat();
        assert!(bytes.windows(word.len()).any(|part| part == word), "{}", library.name);
        let (first, next) = bytes[bytes.len() / 2..][..64].split_first().expect("64 bytes");
        let mut rest = binary.as_slice();
        while rest.skip_until(*first).expect("memory is readable") > 0 {
            assert!(!rest.starts_with(next), "{} is not packed", library.name);
        }
    }
}
