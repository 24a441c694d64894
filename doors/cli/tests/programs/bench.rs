//! `telpher bench run`, `telpher bench offload`, `telpher bench telemetry`, `telpher bench nvmf` and `telpher bench
//! fabric` measure everything they promise. Their goals are not checked here; that needs a quiet machine.

use crate::harness::{TELPHER, finish, test_folder};
use crate::schemas;
use crate::skip::skip;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

fn bench(format: &str) -> String {
    let mut command = Command::new(TELPHER);
    command.args(["bench", "run", "--seconds", "1", "--no-html", "--format", format]).current_dir(test_folder("bench"));
    let done = finish(&mut command, None, Duration::from_secs(120));
    done.expect_success();
    done.stdout
}

#[test]
fn bench_run_measures_every_promise() {
    let result = schemas::parse(bench("json"));
    let rows = result["rows"].as_array().expect("rows");
    for row in rows {
        let difference = row["what"].as_str().is_some_and(|what| what.contains("adds"));
        assert!(row["measured"].as_f64().is_some_and(|number| number > 0.0 || difference), "{row}");
    }
    for (what, goal, number) in [
        ("call site to return, rewritten", "at_most", 300.0),
        ("rewritten against trapping", "at_least", 15.0),
        ("1 MiB copies against the model, lenient", "at_least", 0.8),
        ("1 MiB copies against the model, strict", "at_least", 0.8),
        ("telpher run -- true, preloaded", "at_most", 100.0),
    ] {
        let row = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no row {what}"));
        assert_eq!(row["goal"][goal], number, "{row}");
    }
    assert!(
        rows.iter().filter(|row| row["what"].as_str().is_some_and(|what| what.starts_with("never touches"))).count()
            == 2
    );
}

#[test]
fn bench_telemetry_measures_every_promise() {
    let mut command = Command::new(TELPHER);
    command.args(["bench", "telemetry", "--seconds", "1", "--no-html", "--format", "json"]);
    let done = finish(command.current_dir(test_folder("bench_telemetry")), None, Duration::from_secs(240));
    done.expect_success();
    let result = schemas::parse(&done.stdout);
    let experiments = result["contests"].as_array().expect("experiments");
    let rows: Vec<&Value> = experiments.iter().flat_map(|one| one["rows"].as_array().expect("rows")).collect();
    for (what, most) in [("totals", 1.05), ("recorded times", 1.5), ("a scrape", 5.0), ("telpher top --once", 100.0)] {
        let row = rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no row {what}: {rows:?}"));
        assert_eq!(row["goal"]["at_most"], most, "{row}");
        assert!(row["measured"].as_f64().is_some_and(|number| number > 0.0), "{row}");
    }
}

/// The counts of a fixed program and a simulated ratio do not depend on the machine, so these goals are checked.
#[test]
fn bench_offload_measures_every_promise() {
    let mut command = Command::new(TELPHER);
    command.args(["bench", "offload", "--seconds", "1", "--no-html", "--format", "json"]);
    let done = finish(command.current_dir(test_folder("bench_offload")), None, Duration::from_secs(240));
    done.expect_success();
    let result = schemas::parse(&done.stdout);
    let remarks = result["remarks"].as_array().expect("remarks");
    let experiments = result["contests"].as_array().expect("experiments");
    for name in ["calls", "start", "hot", "cold", "simulated", "prediction", "redis"] {
        let is_named =
            |remark: &Value| remark.as_str().is_some_and(|text| text.contains(&format!("Not measured: {name}")));
        let Some(experiment) = experiments.iter().find(|experiment| experiment["name"] == name) else {
            assert!(remarks.iter().any(is_named), "{name} is neither measured nor skipped: {remarks:?}");
            continue;
        };
        for row in experiment["rows"].as_array().expect("rows") {
            let stays_with_cpu = row["how"].as_str().is_some_and(|how| how.contains("to the CPU"));
            assert!(row["measured"].is_f64() != stays_with_cpu, "{row}");
            let what = row["what"].as_str().expect("a name");
            let is_exact = ["calls by the device", "bytes by the device"].iter().any(|start| what.starts_with(start))
                || what.contains("simulated on");
            let goal = row["goal"]["at_most"].as_f64();
            if let (true, Some(measured), Some(goal)) = (is_exact, row["measured"].as_f64(), goal) {
                assert!(measured <= goal, "{row}");
            }
        }
    }
}

#[test]
fn bench_nvmf_measures_every_promise() {
    let mut command = Command::new(TELPHER);
    command.args(["bench", "nvmf", "--seconds", "1", "--no-html", "--format", "json"]);
    let done = finish(command.current_dir(test_folder("bench_nvmf")), None, Duration::from_secs(240));
    done.expect_success();
    let result = schemas::parse(&done.stdout);
    let remarks = result["remarks"].as_array().expect("remarks");
    let experiments = result["contests"].as_array().expect("experiments");
    for (name, goals) in [("idle", 2), ("reads", 1), ("digests", 8), ("engines", 4)] {
        let is_named =
            |remark: &Value| remark.as_str().is_some_and(|text| text.contains(&format!("Not measured: {name}")));
        let Some(experiment) = experiments.iter().find(|experiment| experiment["name"] == name) else {
            assert!(remarks.iter().any(is_named), "{name} is neither measured nor skipped: {remarks:?}");
            continue;
        };
        let rows = experiment["rows"].as_array().expect("rows");
        assert!(rows.iter().all(|row| row["measured"].is_f64()), "{rows:?}");
        assert_eq!(rows.iter().filter(|row| row["goal"].is_object()).count(), goals, "{rows:?}");
    }
}

/// Every peer of every part is measured, or a remark says why it is not; every goal has a row. A busy machine may drop
/// all points of a peer, but the ranks of telpher's library always start, and no rank may send wrong bytes.
#[test]
fn bench_fabric_has_every_goal_and_says_what_is_missing() {
    let mut command = Command::new(TELPHER);
    command.args(["bench", "fabric", "--quick", "--seconds", "1", "--no-html", "--format", "json"]);
    let done = finish(command.current_dir(test_folder("bench_fabric")), None, Duration::from_secs(600));
    done.expect_success();
    let result = schemas::parse(&done.stdout);
    let remarks: Vec<&str> = result["remarks"].as_array().expect("remarks").iter().filter_map(Value::as_str).collect();
    if remarks.iter().any(|remark| remark.contains("has one core")) {
        return skip("bench_fabric_has_every_goal_and_says_what_is_missing", "only one core");
    }
    let parts = result["contests"].as_array().expect("parts");
    for (name, goals) in
        [("latency", 2), ("long", 9), ("bandwidth", 0), ("rma", 0), ("rate", 3), ("allreduce", 4), ("overlap", 1)]
    {
        let part = parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("no part {name}"));
        let rows = part["rows"].as_array().expect("rows");
        // A goal has one row for each distance that was seen.
        assert!((goals..=2 * goals).contains(&rows.len()), "{part}");
        assert!(rows.iter().all(|row| row["goal"].is_object()), "{part}");
    }
    for peer in ["telpher", "shm", "vader", "MPICH over UCX", "Open MPI over telpher", "MPICH over telpher"] {
        let is_measured = result["peers"].as_array().expect("peers").iter().any(|measured| measured["peer"] == peer);
        let is_named = |remark: &&str| remark.starts_with("Not measured: ") && remark.contains(&format!(", {peer}: "));
        assert!(is_measured || remarks.iter().any(is_named), "{peer} is neither measured nor skipped: {remarks:?}");
    }
    let library = "telpher-fabric";
    assert!(
        result["peers"].as_array().expect("peers").iter().any(|measured| measured["peer"] == library),
        "{remarks:?}"
    );
    let wrong = remarks.iter().find(|remark| remark.contains("wrong "));
    assert_eq!(wrong, None);
    let counts = result["points"].as_object().expect("points");
    let points: u64 = counts.values().filter_map(Value::as_u64).sum();
    assert!(points > 0, "{counts:?}");
    for median in result["medians"].as_array().expect("medians") {
        let is_hidden_part = median["unit"] == "%";
        assert!(median["value"].as_f64().is_some_and(|value| value > 0.0 || is_hidden_part), "{median}");
    }
}

#[test]
fn bench_run_has_a_table_and_csv() {
    let text = bench("table");
    assert!(text.contains("≤ 300") && text.contains("times faster") && text.contains("GB/s in the program"), "{text}");
    let csv = bench("csv");
    assert!(csv.starts_with("what,measured,unit,") && csv.lines().count() > 12, "{csv}");
}
