//! `--trace`, `--summary` and `telpher trace`: a program's submissions and their results.

use crate::harness::{Run, TELPHER, View, client, finish, in_both_views, test_folder};
use crate::schemas;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The submissions of `rotating.c`: 64 slots through each of three mappings, then a No-op, on a shared and a dedicated
/// queue.
const COPIES: usize = 2 * 3 * 64;
const BYTES: usize = 256;

/// Returns the lines of a JSON trace that describe descriptors.
fn stories(trace: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(trace).expect("the trace was written");
    let lines = text.lines().map(schemas::parse);
    lines.filter(|line| line["event"] == "descriptor").collect()
}

/// Runs `telpher trace` with these arguments, which must succeed, and returns its output.
fn filtered_trace(words: &[&str], trace: &Path) -> String {
    let done = finish(Command::new(TELPHER).arg("trace").args(words).arg(trace), None, Duration::from_secs(60));
    done.expect_success();
    done.stdout
}

in_both_views! {
    fn every_descriptor_and_record_is_in_the_json_trace(view: View) {
        let Some(program) = client("rotating") else { return };
        let trace = test_folder(&format!("trace-json-{}", view.name())).join("trace");
        let run = Run::on_two_queues(view).with("--trace").with(&trace).with("--trace-format").with("json");
        run.success(&[program]);
        let stories = stories(&trace);
        for (queue, how) in [("wq0.0", "enqcmd"), ("wq0.1", "movdir64b")] {
            let of_queue: Vec<&Value> = stories.iter().filter(|story| story["queue"] == queue).collect();
            let copies: Vec<&&Value> = of_queue.iter().filter(|story| story["operation"] == "memory-move").collect();
            assert_eq!(copies.len(), COPIES / 2, "{queue}");
            assert_eq!(of_queue.iter().filter(|story| story["operation"] == "nop").count(), 1, "{queue}");
            for story in &of_queue {
                assert_eq!(story["how"], how, "{story}");
                assert_eq!((&story["status"], &story["end"]), (&1.into(), &"record".into()), "{story}");
                assert!(story["process"].as_u64().is_some_and(|process| process > 1), "{story}");
                assert!(story["duration_ns"].as_u64().is_some_and(|duration| duration > 0), "{story}");
                assert!(
                    story["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "rcr")),
                    "{story}"
                );
            }
            for copy in copies {
                assert_eq!(copy["operands"]["size"].as_u64(), Some(BYTES as u64), "{copy}");
            }
            // Each opening counts its own submissions.
            let numbers: Vec<u64> = stories.iter().filter(|story| story["queue"] == queue)
                .filter_map(|story| story["submission"].as_u64()).collect();
            assert_eq!(numbers[..COPIES / 2], (1..=COPIES as u64 / 2).collect::<Vec<_>>(), "{queue}");
        }
    }

    fn a_text_trace_is_filtered_and_summed_up(view: View) {
        let Some(program) = client("batches") else { return };
        let trace = test_folder(&format!("trace-text-{}", view.name())).join("trace");
        Run::on_two_queues(view).with("--trace").with(&trace).success(&[program]);
        let all = filtered_trace(&[], &trace);
        assert_eq!(all, std::fs::read_to_string(&trace).expect("the trace was written"));
        assert!(all.contains("batch(") && all.contains("memory-move(") && all.contains("crc-generation("), "{all}");
        // In each of two queues, two of sixteen children fault on a null source, and one more before a fence.
        let faults = filtered_trace(&["--status", "page-fault"], &trace);
        assert_eq!(faults.lines().count(), 2 * 3, "{faults}");
        assert!(faults.lines().all(|line| line.contains("memory-move(") && line.contains("0x03")), "{faults}");
        let one = filtered_trace(&["--queue", "wq0.0", "--op", "batch"], &trace);
        assert!(
            one.lines().count() > 5 && one.lines().all(|line| line.contains("wq0.0") && line.contains("batch(")),
            "{one}"
        );
        let summary = filtered_trace(&["--summary"], &trace);
        assert!(summary.contains("memory-move") && summary.contains("batch"), "{summary}");
        // Converting the text to JSON and back gives the same text.
        let json = filtered_trace(&["--format", "json"], &trace);
        let path = trace.with_extension("json");
        std::fs::write(&path, &json).expect("a file");
        assert_eq!(filtered_trace(&["--format", "table"], &path), all);
    }

    fn a_summary_counts_descriptors_bytes_and_faults(view: View) {
        let Some(program) = client("rotating") else { return };
        let done = Run::on_two_queues(view).with("--summary").program(&[program]);
        done.expect_success();
        let line = done.stderr.lines().find(|line| line.contains("memory-move")).unwrap_or_else(|| panic!("{done}"));
        assert!(line.contains(&COPIES.to_string()), "{COPIES} copies: {done}");
        let Some(program) = client("holes") else { return };
        let done = Run::on_two_queues(view).with("--summary").program(&[program]);
        done.expect_success();
        assert!(done.stderr.contains("page-fault"), "{done}");
    }

    fn a_trace_contains_killed_processes(view: View) {
        let Some(program) = client("flood") else { return };
        let trace = test_folder(&format!("trace-killed-{}", view.name())).join("trace");
        // Kill the program after it has written many lines of its trace.
        let script = format!(
            "{} dedicated & p=$!; until [ $(wc -l < {}) -gt 200 ]; do sleep 0.05; done; kill -9 $p; wait $p || true",
            program.display(),
            trace.display()
        );
        let run = Run::on_two_queues(view).with("--trace").with(&trace).with("--trace-format").with("json");
        run.program(&["/bin/bash", "-c", &script]).expect_success();
        assert!(stories(&trace).len() > 100);
    }
}

#[test]
fn an_unwritable_trace_is_an_error_before_the_start() {
    let done = Run::new(View::Preload).with("--trace").with("/no/such/folder/trace").program(&["touch", "/no/such"]);
    assert_eq!(done.code(), 125, "{done}");
    assert!(done.stderr.lines().count() == 1 && done.stderr.contains("/no/such/folder/trace"), "{done}");
}

#[test]
fn a_trace_goes_to_standard_error_if_asked() {
    let Some(program) = client("submission") else { return };
    let done = Run::on_two_queues(View::Preload).with("--trace").with("-").program(&[program]);
    done.expect_success();
    assert!(
        done.stderr.contains("nop(") && done.stderr.contains("movdir64b") && done.stderr.contains("write"),
        "{done}"
    );
}
