//! `telpher qdp` from a user's view: answers, formats, files, errors, simulated tables.

mod schemas;

use arrow_array::{
    ArrayRef, BinaryArray, Date32Array, Decimal128Array, Float64Array, Int64Array, RecordBatch, StringArray,
};
use parquet::arrow::ArrowWriter;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use telpher_os::Random;

/// Returns the folder for files of this test process.
fn test_folder() -> PathBuf {
    let room = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("qdp-{}", std::process::id()));
    std::fs::create_dir_all(&room).expect("a folder for what the tests write");
    room
}

fn telpher(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telpher"));
    command.arg("qdp").args(args).current_dir(test_folder()).output().expect("the binary runs")
}

fn success(args: &[&str]) -> String {
    let output = telpher(args);
    assert!(output.status.success(), "{args:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json(args: &[&str]) -> Value {
    schemas::parse(success(&[args, &["--format", "json", "--no-html"]].concat()))
}

/// Runs a command that must fail; returns its error message.
fn refusal(args: &[&str]) -> String {
    let output = telpher(&[args, &["--no-html"]].concat());
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?} succeeded");
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(text.trim_end().lines().count(), 1, "{args:?} said more than a sentence: {text}");
    text
}

const SMALL: [&str; 6] = ["--size", "1m", "--repeat", "2", "--chunk", "5000"];

/// Prices in hundredths, days, letters; `rows` of them.
fn table(rows: i32) -> RecordBatch {
    let price =
        Decimal128Array::from_iter_values((0..rows).map(|row| i128::from(row % 1000))).with_precision_and_scale(15, 2);
    let letter = StringArray::from_iter_values((0..rows).map(|row| if row % 3 == 0 { "A" } else { "R" }));
    let columns: [(&str, ArrayRef); 4] = [
        ("price", Arc::new(price.expect("a decimal"))),
        ("day", Arc::new(Date32Array::from_iter_values((0..rows).map(|row| row % 365)))),
        ("flag", Arc::new(letter)),
        ("share", Arc::new(Float64Array::from_iter_values((0..rows).map(f64::from)))),
    ];
    RecordBatch::try_from_iter(columns).expect("a table")
}

fn parquet(name: &str, batch: &RecordBatch) -> String {
    let file = File::create(test_folder().join(name)).expect("our own folder");
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
    writer.write(batch).expect("rows");
    writer.close().expect("a file");
    name.to_owned()
}

fn arrow(name: &str, batch: &RecordBatch) -> String {
    let file = File::create(test_folder().join(name)).expect("our own folder");
    let mut writer = arrow_ipc::writer::FileWriter::try_new(file, &batch.schema()).expect("a writer");
    writer.write(batch).expect("rows");
    writer.finish().expect("a file");
    name.to_owned()
}

const QUERY: &str = "select flag, sum(price), count(*), max(day) from t where day < '1970-04-11' group by flag";

/// Computes the expected answer, row by row.
fn expected(rows: i64, times: i64) -> Value {
    let of = |letter: u8| {
        let all = (0..rows).filter(|row| row % 365 < 100 && (row % 3 == 0) == (letter == b'A'));
        let (sum, count) = all.clone().fold((0, 0), |(sum, count), row| (sum + row % 1000, count + 1));
        let price = format!("{}.{:02}", sum * times / 100, sum * times % 100);
        let day = all.map(|row| row % 365).max().expect("a row");
        // Day 98 is April 9, and day 99 the next one.
        serde_json::json!([char::from(letter).to_string(), price, count * times, format!("1970-04-{:02}", day - 89)])
    };
    serde_json::json!([of(b'A'), of(b'R')])
}

#[test]
fn every_configuration_is_executed_and_reported() {
    let result = json(&SMALL);
    let names: Vec<&str> =
        result["runs"].as_array().expect("runs").iter().filter_map(|run| run["name"].as_str()).collect();
    assert_eq!(names[..4], ["alone", "none", "in step", "relaxed"]);
    for run in result["runs"].as_array().expect("runs") {
        assert_eq!(run["times_ns"].as_array().expect("times").len(), 2, "{run}");
        assert!(run["median_ns"].as_f64().expect("a median") > 0.0 && run["speedup"].as_f64().expect("a ratio") > 0.0);
    }
    assert_eq!(result["answer"]["columns"], serde_json::json!(["sum(b)"]));
    let table = success(&[&SMALL[..], &["--html", "small.html"]].concat());
    assert!(table.contains("sum(b)") && table.contains("relaxed") && table.contains("to none"), "{table}");
    // The first line describes the machine.
    assert!(table.lines().skip(1).all(|line| line.chars().count() < 80), "{table}");
    let page = std::fs::read_to_string(test_folder().join("small.html")).expect("the report");
    assert!(page.matches("<svg").count() == 2 && page.contains("What became of the blocks"));
    let csv = success(&[&SMALL[..], &["--format", "csv", "--no-html"]].concat());
    let fields: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(fields.len() > 8 && fields.iter().all(|count| *count == fields[0]), "{csv}");
}

#[test]
fn forced_fetches_are_made_and_every_device_gives_the_same_answer() {
    let mut answers = Vec::new();
    for device in ["cpu", "model:spr"] {
        let result = json(&[&SMALL[..], &["--device", device, "--query", "q6", "--late", "wait"]].concat());
        let runs = result["runs"].as_array().expect("runs");
        if let Some(forced) = runs.iter().find(|run| run["name"] == "forced") {
            let count = |name: &str| forced["blocks"][name].as_u64().expect("a number");
            // Whether the fetching threads run before the others have read everything depends on timing.
            assert_eq!(forced["hit_rate"].is_null(), count("requested") == 0, "{forced}");
            assert!(count("spared") == 0 && count("hits") + count("late") + count("absent") > 0, "{forced}");
        }
        answers.push(result["answer"].clone());
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn a_seed_determines_the_table_and_plain_runs_only_the_engine() {
    let sum = |seed| json(&["--size", "1m", "--plain", "--repeat", "3", "--seed", seed]);
    let (one, again, other) = (sum("1"), sum("1"), sum("2"));
    assert_eq!(one["answer"], again["answer"]);
    assert_ne!(one["answer"], other["answer"]);
    assert_eq!(
        (one["runs"].as_array().map(Vec::len), one["runs"][0]["times_ns"].as_array().map(Vec::len)),
        (Some(1), Some(3))
    );
}

#[test]
fn files_of_both_formats_give_the_expected_answers() {
    let batch = table(20_000);
    let (one, two) = (parquet("t.parquet", &batch), arrow("t.arrow", &batch));
    for file in [&one, &two] {
        let result = json(&["--query", QUERY, "--input", file, "--repeat", "1", "--chunk", "999"]);
        assert_eq!(result["answer"]["rows"], expected(20_000, 1), "{file}");
    }
    let both = json(&["--query", QUERY, "--input", &one, "--input", &one, "--plain"]);
    assert_eq!(both["answer"]["rows"], expected(20_000, 2));
    let counted = json(&["--query", "select count(*) from t", "--input", &two, "--plain"]);
    assert_eq!(counted["answer"]["rows"], serde_json::json!([[20_000]]));
}

#[test]
fn texts_nulls_and_floating_point_numbers_have_answers() {
    let columns: [(&str, ArrayRef); 3] = [
        ("x", Arc::new(Int64Array::from(vec![Some(1), None, Some(3), None]))),
        ("mode", Arc::new(StringArray::from(vec![Some("SHIP"), Some("AIR"), None, Some("AIR")]))),
        ("share", Arc::new(Float64Array::from(vec![Some(0.1), Some(0.2), Some(0.25), None]))),
    ];
    let file = parquet("types.parquet", &RecordBatch::try_from_iter(columns).expect("a table"));
    let answer = |query: &str| json(&["--query", query, "--input", &file, "--repeat", "1"])["answer"]["rows"].clone();
    assert_eq!(
        answer("select mode, count(*), count(x), sum(x), avg(share) from t group by mode"),
        serde_json::json!([["AIR", 2, 0, null, 0.2], ["SHIP", 1, 1, 1, 0.1], [null, 1, 1, 3, 0.25]])
    );
    assert_eq!(answer("select count(*), max(mode) from t where mode <> 'AIR'"), serde_json::json!([[1, "SHIP"]]));
    let text =
        success(&["--query", "select mode, sum(share) from t group by mode", "--input", &file, "--plain", "--no-html"]);
    assert!(text.contains("null        0.25"), "{text}");
}

#[test]
fn unsupported_data_is_a_one_sentence_error() {
    let file = parquet("refused.parquet", &table(100));
    let with = |query: &str| refusal(&["--query", query, "--input", &file]);
    let days = with("select count(*) from t where day < 100");
    assert!(days.contains("column day holds dates, and 100 is none; write day < date '1998-09-02'"), "{days}");
    assert!(with("select sum(flag) from t").contains("because column flag holds text; write count, min or max"));
    assert!(with("select sum(cost) from t").contains("has no column 'cost'; it has price, day, flag, share"));
    let lists: ArrayRef = Arc::new(BinaryArray::from_vec(vec![b"one", b"two"]));
    let lists = arrow("lists.arrow", &RecordBatch::try_from_iter([("x", lists)]).expect("a table"));
    assert!(
        refusal(&["--query", "select max(x) from t", "--input", &lists]).contains("holds values of the type Binary")
    );
    assert!(refusal(&["--input", "nowhere.parquet"]).contains("cannot read nowhere.parquet; name a Parquet"));
    std::fs::write(test_folder().join("text.csv"), "a,b\n1,2\n").expect("our own folder");
    assert!(refusal(&["--input", "text.csv"]).contains("cannot read text.csv as a Parquet or an Arrow file"));
    assert!(refusal(&["--query", "q7"]).contains("--query 'q7'"));
    assert!(refusal(&["--query", "select median(a) from t"]).contains("at character 14"));
    assert!(refusal(&["--query", "select sum(c) from t", "--size", "1m"]).contains("no column 'c'"));
    assert!(refusal(&["--size", "65g"]).contains("from 1 byte to 64g"));
    assert!(refusal(&["--size", "1m", "--node", "9999"]).contains("9999"));
    assert!(refusal(&["--policy", "threshold"]).contains("--policy takes NAME=VALUE"));
    assert!(refusal(&["--device", "gpu", "--size", "1m"]).contains("gpu"));
}

#[test]
fn a_damaged_file_is_refused_and_never_a_panic_s_exit() {
    for file in [parquet("damaged.parquet", &table(300)), arrow("damaged.arrow", &table(300))] {
        let whole = std::fs::read(test_folder().join(&file)).expect("what was written");
        let damaged = format!("broken-{file}");
        let (mut random, mut refused) = (Random::new(9), 0);
        for round in 0..40 {
            let mut bytes = whole.clone();
            let at = usize::try_from(random.below(bytes.len() as u64)).expect("below a length");
            if round % 4 == 0 {
                bytes.truncate(at)
            } else {
                bytes[at] ^= 1 << random.below(8)
            }
            std::fs::write(test_folder().join(&damaged), bytes).expect("our own folder");
            let output = telpher(&["--query", QUERY, "--input", &damaged, "--plain", "--repeat", "1", "--no-html"]);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1)), "{damaged}, round {round}: {output:?}");
            refused += usize::from(code == Some(1));
        }
        assert!(refused >= 10, "{file}: {refused} of 40 were refused");
    }
}

#[test]
fn the_thesis_tables_have_deviations_and_simulated_hits() {
    let result = json(&["--profile", "xeon-max-9468"]);
    assert_eq!((result["simulated"].as_bool(), result["profile"].as_str()), (Some(true), Some("xeon-max-9468")));
    let rows = result["published"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let times = row["published"].as_array().expect("numbers").iter().filter(|it| it["what"] != "hits");
        for compared in times {
            assert!(compared["deviation"].as_f64().expect("a deviation").abs() < 0.1, "{row}");
        }
    }
    assert!(rows[2]["hits_percent"].as_f64() > Some(0.0) && rows[0]["hits_percent"].is_null());
    let questions = result["questions"].as_array().expect("questions");
    let asked: Vec<&str> = questions.iter().filter_map(|question| question["name"].as_str()).collect();
    for question in ["push-pull", "dedicated", "waiting", "chunks", "cache-mode"] {
        assert!(asked.contains(&question), "{question} is not among {asked:?}");
    }
    for pair in questions.iter().flat_map(|question| question["ways"].as_array().expect("ways")) {
        let ms = |columns: &str| pair[columns]["time_ms"].as_f64();
        assert!(ms("same_node") > Some(1.0) && ms("distributed") > Some(1.0), "{pair}");
    }
    let text = success(&["--profile", "xeon-max-9468", "--html", "thesis.html"]);
    assert!(text.starts_with("Simulated · profile xeon-max-9468 (") && text.contains("131.18"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    let (held_out, calibration) = (text.find("Held out: "), text.find("Calibration: "));
    assert!(held_out.is_some() && calibration > held_out, "{text}");
    let page = std::fs::read_to_string(test_folder().join("thesis.html")).expect("the report");
    assert!(page.contains("thesis-6.1: ") && page.contains("thesis-6.2: "));
    // Two charts of one figure, three of the other, and one for each question.
    assert_eq!(page.matches("<svg").count(), 5 + questions.len());
    let csv = success(&["--profile", "xeon-max-9468", "--format", "csv", "--no-html"]);
    assert!(csv.lines().count() > 4 + 2 * questions.len() && csv.lines().skip(1).all(|line| line.starts_with("yes,")));
    let message = refusal(&["--profile", "xeon-max-9468", "--device", "cpu"]);
    assert!(message.contains("cannot be used"), "{message}");
    assert!(refusal(&["--profile", "spr-asplos"]).contains("spr-asplos cannot execute the thesis' query"));
    assert!(refusal(&["--profile", "xeon"]).contains("'xeon' is no built-in profile; there are"));
    assert!(refusal(&["--set", "device.bubble_ns=10"]).contains("--profile"));
}

#[test]
fn any_plan_is_simulated_in_all_ways_with_a_verdict() {
    let result = json(&["--profile", "xeon-max-9468", "--query", "q1", "--size", "16m"]);
    assert_eq!((result["simulated"].as_bool(), result["profile"].as_str()), (Some(true), Some("xeon-max-9468")));
    let ways: Vec<&str> =
        result["ways"].as_array().expect("ways").iter().filter_map(|way| way["name"].as_str()).collect();
    assert_eq!(
        ways,
        [
            "DDR",
            "HBM",
            "DDR of two nodes",
            "prefetching",
            "prefetching from another node",
            "HBM in cache mode: first run",
            "HBM in cache mode: later run"
        ]
    );
    assert_eq!(result["verdicts"].as_array().map(Vec::len), Some(2));
    // SCAN reads a date of 4 bytes in each row; four amounts and two letters can be prefetched.
    let rows = result["rows"].as_u64().expect("a number");
    assert_eq!(result["scanned_bytes"].as_u64(), Some(rows * 4));
    assert_eq!(result["prefetched_bytes"].as_u64(), Some(rows * 34));
    let read = result["aggregated_bytes"].as_u64().expect("a number");
    assert!(read > rows * 30 && read <= rows * 34, "{read} of {rows} rows");
    let counted = success(&[
        "--profile",
        "xeon-max-9468",
        "--query",
        "select count(*) from t where a < 9",
        "--size",
        "1m",
        "--no-html",
    ]);
    assert!(counted.contains("there is nothing to") && !counted.contains("prefetching  "), "{counted}");
    let text = success(&["--profile", "xeon-max-9468", "--query", "q6", "--size", "4m", "--html", "plan.html"]);
    assert!(text.starts_with("Simulated · profile xeon-max-9468 (") && text.contains("Prefetching"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
    let csv = success(&["--profile", "xeon-max-9468", "--query", "q6", "--size", "4m", "--format", "csv", "--no-html"]);
    assert!(csv.lines().all(|line| line.split(',').count() == 5), "{csv}");
    assert!(refusal(&["--profile", "spr-asplos", "--query", "q6", "--size", "1m"]).contains("cannot execute"));
}
