//! The guide in docs/guide: its chapters are linked, each has a figure and at most 1,500 words, and its commands print
//! what it says, up to numbers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[path = "../../../ci/skip.rs"]
mod skip;

/// Most words of a chapter.
const MOST_WORDS: usize = 1500;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of the chapters.
fn source() -> PathBuf {
    root().join("docs/guide/src")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the chapters: file name and text.
fn chapters() -> Vec<(String, String)> {
    let files = std::fs::read_dir(source()).expect("docs/guide/src").map(|entry| entry.expect("an entry").path());
    let mut chapters: Vec<(String, String)> = files
        .map(|path| (path.file_name().expect("a name").to_string_lossy().into_owned(), read(&path)))
        .filter(|(name, _)| name != "SUMMARY.md")
        .collect();
    chapters.sort();
    assert!(chapters.len() >= 10, "{} chapters", chapters.len());
    chapters
}

/// Returns the targets of the links in a text, without those of other hosts.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.starts_with("https://")).map(str::to_owned).collect()
}

#[test]
fn every_link_leads_to_a_file_and_every_chapter_is_in_the_summary() {
    let summary = read(&source().join("SUMMARY.md"));
    let listed: BTreeSet<String> = links(&summary).into_iter().collect();
    let names: BTreeSet<String> = chapters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(listed, names);
    for (name, text) in chapters() {
        for link in links(&text) {
            assert!(source().join(&link).exists(), "{name}: there is no {link}");
        }
    }
}

#[test]
fn every_chapter_has_a_figure_and_is_short() {
    for (name, text) in chapters() {
        let words = text.split_whitespace().count();
        assert!(words <= MOST_WORDS, "{name} has {words} words");
        assert!(text.contains("```text\n") || text.contains(".svg)"), "{name} has no figure");
    }
}

/// A command of a chapter and the output that it shows.
struct Example {
    command: String,
    output: Vec<String>,
}

/// Returns the commands of the blocks `console` of a chapter.
fn examples(text: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ => match line.strip_prefix("$ ") {
                Some(command) => examples.push(Example { command: command.to_owned(), output: Vec::new() }),
                None => examples.last_mut().expect("a block begins with a command").output.push(line.to_owned()),
            },
        }
    }
    examples
}

/// Returns a line with one `#` for each number, so that only the words are compared.
fn without_numbers(line: &str) -> String {
    let mut out = String::new();
    let mut in_number = false;
    for c in line.trim_end().chars() {
        let is_part = c.is_ascii_digit() || (in_number && (c == '.' || c == 'x' || c.is_ascii_hexdigit()));
        let repeats = matches!(c, ' ' | '─') && out.ends_with(c);
        if is_part && !in_number {
            out.push('#');
        } else if !is_part && !repeats {
            out.push(c);
        }
        in_number = is_part;
    }
    out
}

/// Returns the first expected line that the output does not have in its place. `…` stands for any lines, and at the end
/// of a line for any words.
fn first_difference(expected: &[String], output: &str) -> Option<String> {
    let output: Vec<String> = output.lines().map(without_numbers).collect();
    let (mut at, mut anywhere) = (0, false);
    for line in expected {
        if line == "…" {
            anywhere = true;
            continue;
        }
        let wanted = without_numbers(line);
        let matches = |found: &String| match wanted.strip_suffix('…') {
            Some(begin) => found.starts_with(begin.trim_end()),
            None => *found == wanted,
        };
        let found = output.get(at..).unwrap_or_default().iter().position(matches);
        match found {
            Some(further) if anywhere || further == 0 => at += further + 1,
            _ => return Some(line.clone()),
        }
        anywhere = false;
    }
    (at < output.len() && !anywhere).then(|| format!("(nothing after line {at})"))
}

#[test]
fn outputs_are_compared_up_to_numbers() {
    let expected = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let output = "size  1.25 µs\n───\nx 0x1f\nlast\n";
    assert_eq!(first_difference(&expected("size  9 µs\n──\nx 0xab\nlast"), output), None);
    assert_eq!(first_difference(&expected("…\nlast"), output), None);
    assert_eq!(first_difference(&expected("size …\n…"), output), None);
    assert_eq!(first_difference(&expected("size  9 ns\n…"), output), Some("size  9 ns".into()));
    assert_eq!(first_difference(&expected("size  9 µs"), output), Some("(nothing after line 1)".into()));
    assert_eq!(first_difference(&expected("…\nlast\nsize"), output), Some("size".into()));
}

#[test]
fn every_command_prints_what_the_chapter_shows() {
    let mut wrong = String::new();
    let mut seen = 0;
    for (name, text) in chapters() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide").join(&name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_telpher"), folder.join("telpher")).expect("a link");
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").expect("a path"));
        for Example { command, output } in examples(&text) {
            if command.contains("accel-config") && Command::new("accel-config").output().is_err() {
                skip::skip("every_command_prints_what_the_chapter_shows", &format!("no accel-config for {name}"));
                // Later commands of the chapter may need what this one leaves.
                break;
            }
            let mut shell = Command::new("bash");
            shell.args(["-c", &command]).current_dir(&folder).env("PATH", &path).stdin(Stdio::null());
            let done = shell.output().expect("bash runs");
            let shown = String::from_utf8_lossy(&done.stdout);
            if let Some(line) = first_difference(&output, &shown) {
                let stderr = String::from_utf8_lossy(&done.stderr);
                wrong.push_str(&format!("{name}: $ {command}\nexpected: {line}\nprinted:\n{shown}{stderr}\n"));
            } else if !done.status.success() {
                let errors = String::from_utf8_lossy(&done.stderr);
                wrong.push_str(&format!("{name}: $ {command}\nfailed: {}\n{errors}\n", done.status));
            }
            seen += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen >= 12, "{seen} commands");
}
