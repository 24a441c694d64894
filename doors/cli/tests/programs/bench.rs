//! `telpher bench run`, `telpher bench offload` and `telpher bench nvmf` measure everything they promise. Their goals
//! are not checked here; that needs a quiet machine.

use crate::harness::{TELPHER, finish, test_folder};
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
    let result: Value = serde_json::from_str(&bench("json")).expect("valid JSON");
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

/// The counts of a fixed program and a simulated ratio do not depend on the machine, so these goals are checked.
#[test]
fn bench_offload_measures_every_promise() {
    let mut command = Command::new(TELPHER);
    command.args(["bench", "offload", "--seconds", "1", "--no-html", "--format", "json"]);
    let done = finish(command.current_dir(test_folder("bench_offload")), None, Duration::from_secs(240));
    done.expect_success();
    let result: Value = serde_json::from_str(&done.stdout).expect("valid JSON");
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
    let result: Value = serde_json::from_str(&done.stdout).expect("valid JSON");
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

#[test]
fn bench_run_has_a_table_and_csv() {
    let text = bench("table");
    assert!(text.contains("≤ 300") && text.contains("times faster") && text.contains("GB/s in the program"), "{text}");
    let csv = bench("csv");
    assert!(csv.starts_with("what,measured,unit,") && csv.lines().count() > 12, "{csv}");
}
