//! `--check`: for each misuse a program that commits it and one that does not; correct programs get no report.

use crate::harness::{Done, Run, View, client, in_both_views};
use std::time::{Duration, Instant};

/// How long a program commits a misuse again and again until it is seen.
const LIMIT: Duration = Duration::from_secs(60);

/// The names under which misuses are reported.
const MISUSES: [&str; 12] = [
    "record-misaligned",
    "record-in-use",
    "record-not-reset",
    "source-changed",
    "destination-changed",
    "unmapped",
    "list-changed",
    "read-after-write",
    "write-after-read",
    "write-after-write",
    "wrong-instruction",
    "no-record-requested",
];

/// True if the program did not commit its misuse: the device had no descriptor at that moment. The second of two
/// descriptors with one record then finds the status of the first, which is a misuse of its own.
fn came_too_late(misuse: &str, done: &Done) -> bool {
    let reports = reports(done);
    let only = |name: &str| reports.iter().all(|line| line.contains(name));
    reports.is_empty() || misuse == "record-in-use" && only("record-not-reset")
}

/// Lines that report a misuse.
fn reports(done: &Done) -> Vec<&str> {
    done.stderr.lines().filter(|line| MISUSES.iter().any(|name| line.contains(name))).collect()
}

/// Fails the test if anything was reported.
pub(crate) fn expect_no_report(done: &Done) {
    assert!(reports(done).is_empty(), "reported: {done}");
}

in_both_views! {
    fn only_a_committed_misuse_is_reported(view: View) {
        let Some(program) = client("misuse") else { return };
        for misuse in MISUSES {
            for runner in ["inline", "threaded"] {
                let run = Run::on_two_queues(view).with("--check").with("--runner").with(runner);
                // The misuse happens while the device has the descriptor, if the program gets a core in that fraction
                // of a millisecond. On a loaded machine it often does not.
                let commit = || run.program(&[program.as_os_str(), misuse.as_ref(), "commit".as_ref()]);
                let start = Instant::now();
                let mut done = commit();
                while came_too_late(misuse, &done) && start.elapsed() < LIMIT {
                    done = commit();
                }
                done.expect_success();
                let seen = reports(&done);
                assert!(
                    !seen.is_empty() && seen.iter().all(|line| line.contains(misuse)),
                    "{misuse}, {runner}: {done}"
                );
                let done = run.program(&[program.as_os_str(), misuse.as_ref(), "avoid".as_ref()]);
                done.expect_success();
                expect_no_report(&done);
            }
        }
    }

    fn correct_programs_get_no_report(view: View) {
        for name in
            ["operands", "rotating", "waits", "batches", "forked", "handlers", "processes", "threads", "interposer"] {
            let Some(program) = client(name) else { return };
            for runner in ["inline", "threaded"] {
                let done = Run::on_two_queues(view).with("--check").with("--runner").with(runner).program(&[&program]);
                done.expect_success();
                expect_no_report(&done);
            }
        }
    }
}
