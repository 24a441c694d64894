//! Plain English: words of the old dialect, lines that are too long, subjects of commits.

use crate::{files, none, relative, root, rust_files, text};
use std::process::Command;

#[path = "../../../../ci/skip.rs"]
mod skip;

/// The most hits of [`hits`] in 10,000 lines. Source: chosen, a fifteenth of what there was; it may only be lowered.
const MOST_HITS: usize = 5;

/// Words that hide who does something. They measure the language like a thermometer: a sentence without them can
/// still be a riddle.
const WORDS: [&str; 4] = ["nobody", "whoever", "whomever", "somebody"];
/// The same, of two words.
const PAIRS: [[&str; 2]; 2] = [["so", "many"], ["for", "who"]];

/// Counts the words in a line. A line counts once, as grep counts it.
fn hits(line: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<String> =
        line.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
    line.contains("fn told")
        || words.iter().any(|word| WORDS.contains(&word.as_str()))
        || words.windows(2).any(|pair| PAIRS.contains(&[pair[0].as_str(), pair[1].as_str()]))
}

#[test]
fn the_old_dialect_is_rare() {
    let mut lines = 0;
    let mut found = Vec::new();
    for path in files() {
        let name = relative(&path);
        let Some(content) = text(&path).filter(|_| !name.ends_with("Cargo.lock") && !name.ends_with("language.rs"))
        else {
            continue;
        };
        lines += content.lines().count();
        let of_file = content.lines().enumerate().filter(|(_, line)| hits(line));
        found.extend(of_file.map(|(at, line)| format!("{name}:{}: {}", at + 1, line.trim())));
    }
    let most = lines * MOST_HITS / 10_000;
    assert!(lines > 100_000, "only {lines} lines were read");
    assert!(
        found.len() <= most,
        "{} lines have words that hide the actor, {most} of {lines} may:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn the_words_are_found_as_words() {
    assert!(hits("Nobody waits.") && hits("as so many do") && hits("fn told() {") && hits("for who asks"));
    assert!(!hits("somebodys") && !hits("for whose") && !hits("so  few"));
}

/// Columns of a line, as `max_width` of rustfmt.toml counts them.
const COLUMNS: usize = 120;

/// Files that still have longer lines, and how many: tables of macros, embedded scripts, and code that rustfmt leaves
/// alone. The list may only shrink.
const LONG: &[(&str, usize)] = &[
    ("base/abi/src/word.rs", 2),
    ("base/interpose/examples/cost.rs", 1),
    ("base/interpose/src/exec/list.rs", 2),
    ("base/interpose/src/exec/program.rs", 1),
    ("base/interpose/src/exec/symbols.rs", 1),
    ("base/interpose/src/preload/original.rs", 1),
    ("base/interpose/src/sites/table.rs", 1),
    ("base/interpose/tests/common/mod.rs", 1),
    ("base/interpose/tests/decode.rs", 2),
    ("base/mem/src/local/kernels.rs", 1),
    ("base/mem/src/pool.rs", 2),
    ("base/mem/tests/meaning.rs", 2),
    ("doors/capi/tests/header.rs", 2),
    ("doors/cli/src/args/advise.rs", 1),
    ("doors/cli/tests/doctor/causes.rs", 11),
    ("doors/cli/tests/fuzz_files.rs", 1),
    ("doors/cli/tests/programs/harness.rs", 2),
    ("doors/cli/tests/programs/survivors.rs", 1),
    ("doors/cli/tests/programs/tier.rs", 4),
    ("doors/cli/tests/programs/tree.rs", 3),
    ("doors/cli/tests/sim.rs", 6),
    ("doors/python/src/batch.rs", 1),
    ("doors/python/src/mover.rs", 3),
    ("hosts/launch/src/program.rs", 1),
    ("hosts/vdev-guest/src/symbols/file_changes.rs", 6),
    ("hosts/vdev-guest/src/symbols/descriptors.rs", 3),
    ("hosts/vdev-guest/src/symbols/directories.rs", 2),
    ("hosts/vdev-guest/src/symbols/files.rs", 1),
    ("hosts/vdev-guest/src/symbols/polling.rs", 1),
    ("hosts/vdev-guest/src/symbols/signals.rs", 3),
    ("hosts/vdev-guest/src/symbols/status.rs", 7),
    ("hosts/vdev-guest/src/symbols/stdio.rs", 2),
    ("hosts/vdev-guest/src/symbols/walks.rs", 2),
    ("hosts/vdev/src/kernel/tests/loading.rs", 1),
    ("lab/report/src/html.rs", 8),
    ("lab/sim/tests/sim/calibration.rs", 1),
    ("path/hw/src/submit.rs", 1),
    ("path/model/src/legality/rows.rs", 1),
    ("path/mover/tests/mover/properties.rs", 1),
    ("uses/cache/src/index.rs", 2),
    ("uses/query/src/files/messages.rs", 2),
    ("uses/query/src/pipeline.rs", 6),
    ("uses/query/src/selection.rs", 2),
    ("uses/query/tests/query.rs", 1),
    ("uses/query/tests/runs.rs", 2),
    ("uses/vhost/src/in_flight.rs", 2),
    ("uses/vhost/src/inflight_fd/tests.rs", 1),
    ("uses/vhost/src/message.rs", 1),
    ("uses/vhost/src/packets/detached.rs", 2),
    ("uses/vhost/tests/peers/linux.rs", 2),
];

#[test]
fn no_line_is_longer_than_rustfmt_makes_it() {
    let mut findings = Vec::new();
    for (path, content) in rust_files() {
        // A row of a table cannot be broken, and an address cannot either.
        let breaks = |line: &str| !line.contains("//! |") && !line.contains("/// |") && !line.contains("://");
        let long = content.lines().filter(|line| line.chars().count() > COLUMNS && breaks(line)).count();
        let known = LONG.iter().find(|(file, _)| *file == path).map_or(0, |(_, count)| *count);
        if long != known {
            findings.push(format!("(\"{path}\", {long}),"));
        }
    }
    none("files with lines over 120 columns, other than the list says", &findings);
}

/// The last commit before subjects had to be short: the first of the rewrite in plain English comes after it.
const LAST_FREE: &str = "3c7c5a43";
/// Characters of a subject. Source: CONTRIBUTING.md.
const SUBJECT: usize = 72;

#[test]
fn subjects_of_commits_are_short() {
    let git = |args: &[&str]| Command::new("git").arg("-C").arg(root()).args(args).output().ok();
    let log = git(&["log", "--no-merges", "--format=%h %s", &format!("{LAST_FREE}..HEAD")]);
    let Some(log) = log.filter(|output| output.status.success()) else {
        return skip::skip("subjects_of_commits_are_short", "this is no clone with the whole history");
    };
    let log = String::from_utf8_lossy(&log.stdout);
    let subject = |line: &str| line.split_once(' ').map_or(0, |(_, subject)| subject.chars().count());
    let long: Vec<String> = log.lines().filter(|line| subject(line) > SUBJECT).map(str::to_owned).collect();
    none("subjects of more than 72 characters", &long);
}
