//! `telpher bench run` measures everything it promises. Its goals are not checked here; that needs a quiet machine.

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

#[test]
fn bench_run_has_a_table_and_csv() {
    let text = bench("table");
    assert!(text.contains("≤ 300") && text.contains("times faster") && text.contains("GB/s in the program"), "{text}");
    let csv = bench("csv");
    assert!(csv.starts_with("what,measured,unit,") && csv.lines().count() > 12, "{csv}");
}
