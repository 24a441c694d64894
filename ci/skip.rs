//! How a test skips visibly when it lacks something. Included with
//! `#[path = "../../../ci/skip.rs"] mod skip;` in a test file, used as
//! `let Some(cc) = compiler() else { return skip::skip("my_test", "no C compiler") };`.
//!
//! The line goes to standard error, past libtest's capture, and into the file that `TELPHER_SKIP_LOG` names. `./test`
//! counts and lists these lines; with `CI=true` it fails on a line that `ci/expected-skips` does not list.

use std::io::Write;

/// Prints and logs that `test` did not run, and why.
pub(crate) fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED: {test}: {reason}\n");
    // Nothing can be done if standard error is closed; the log below still counts.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(log) = std::env::var_os("TELPHER_SKIP_LOG") {
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("the skip log opens");
        // One write, so that lines of concurrent tests do not mix.
        log.write_all(line.as_bytes()).expect("the skip log takes a line");
    }
}
