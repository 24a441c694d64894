//! The guide in docs/guide: its chapters are linked, each has a figure and at most 1,500 words, and its commands print
//! what it says, up to numbers. `ci/guide.sh` also runs the commands without an output.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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

/// A command of a chapter.
struct Example {
    command: String,
    /// The output that the chapter shows; `None` if it shows none.
    output: Option<Vec<String>>,
}

/// Returns the commands of the blocks `console`, which show outputs, and `sh`, which do not.
fn examples(text: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut block = "";
    for line in text.lines() {
        match (block, line.strip_prefix("```")) {
            (_, Some(language)) => block = language,
            ("console", None) => match line.strip_prefix("$ ") {
                Some(command) => examples.push(Example { command: command.to_owned(), output: Some(Vec::new()) }),
                None => {
                    let shown = examples.last_mut().and_then(|example| example.output.as_mut());
                    shown.expect("a block begins with a command").push(line.to_owned());
                }
            },
            ("sh", None) => {
                let command = line.split("  ").next().expect("a part").to_owned();
                examples.push(Example { command, output: None });
            }
            _ => {}
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

/// Returns a chapter's own folder, new and with `telpher` in it.
fn folder_of(test: &str, chapter: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test).join(chapter);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_telpher"), folder.join("telpher")).expect("a link");
    folder
}

/// Runs a command in a chapter's folder.
fn run(command: &str, folder: &Path) -> Output {
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").expect("a path"));
    let mut shell = Command::new("bash");
    shell.args(["-c", command]).current_dir(folder).env("PATH", &path).stdin(Stdio::null());
    shell.output().expect("bash runs")
}

/// Returns what a command did wrong; empty if it did what the chapter says.
fn mistakes(chapter: &str, example: &Example, command: &str, folder: &Path) -> String {
    let done = run(command, folder);
    let (shown, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if let Some(line) = example.output.as_ref().and_then(|output| first_difference(output, &shown)) {
        format!("{chapter}: $ {command}\nexpected: {line}\nprinted:\n{shown}{errors}\n")
    } else if !done.status.success() {
        format!("{chapter}: $ {command}\nfailed: {}\n{errors}\n", done.status)
    } else {
        String::new()
    }
}

fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn every_command_prints_what_the_chapter_shows() {
    let mut wrong = String::new();
    let mut seen = 0;
    for (name, text) in chapters() {
        let folder = folder_of("guide", &name);
        for example in examples(&text).iter().filter(|example| example.output.is_some()) {
            if example.command.contains("accel-config") && !is_installed("accel-config") {
                skip::skip("every_command_prints_what_the_chapter_shows", &format!("no accel-config for {name}"));
                // Later commands of the chapter may need what this one leaves.
                break;
            }
            wrong.push_str(&mistakes(&name, example, &example.command, &folder));
            seen += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen >= 12, "{seen} commands");
}

/// A program for `PROGRAM`, which a chapter leaves to the reader.
const PROGRAM: &str = "telpher sim profiles";

/// Serves until both sockets exist, then is interrupted.
const UNTIL_IT_SERVES: &str = r#" & pid=$!
for i in $(seq 600); do if [ -S a.sock ] && [ -S b.sock ]; then break; fi; sleep 0.1; done
[ -S a.sock ] && [ -S b.sock ] && kill -INT $pid && wait $pid"#;

/// A program of two MPI ranks.
const RANKS: &str = "from mpi4py import MPI\nassert MPI.COMM_WORLD.allreduce(1) == 2\n";

/// Returns what to run for a command that shows no output: with a program, on a virtual device, or until it serves. An
/// error says what this machine lacks.
fn runnable(command: &str, folder: &Path) -> Result<String, String> {
    let command = command.replace("PROGRAM", PROGRAM);
    let on_a_device = format!("telpher run --hardware spr-1 -- {command}");
    Ok(match &*command {
        _ if command.starts_with("accel-config ") => {
            if !is_installed("accel-config") {
                return Err("no accel-config".into());
            }
            format!("telpher run -- {command}")
        }
        _ if command.contains("mpirun") => {
            if !is_installed("mpirun") || !run("/usr/bin/python3 -c 'import mpi4py'", folder).status.success() {
                return Err("no mpirun, or no mpi4py".into());
            }
            std::fs::write(folder.join("program.py"), RANKS).expect("a program");
            let root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
            // Debian's packages are for Debian's Python.
            command
                .replace("mpirun", &format!("{root} mpirun --oversubscribe"))
                .replace(" python3", " /usr/bin/python3")
        }
        _ if command.contains("--verdicts") => {
            format!("telpher record predict recording --verdicts verdicts.toml > predicted && {command}")
        }
        _ if command.starts_with("telpher vhost ") => command.replace("/tmp/", "") + UNTIL_IT_SERVES,
        "telpher list" => on_a_device,
        // Shorter: all operations and sizes take this build many minutes.
        "telpher bench --device all" => format!("{on_a_device} --op move --size 4k --seconds 0.05"),
        // Not for the user who runs this.
        "telpher tune" => format!("{on_a_device} --seconds 1 --tuning tuning.toml"),
        _ => command,
    })
}

#[test]
#[ignore = "takes minutes; ci/guide.sh runs it"]
fn every_command_of_the_guide_runs() {
    let (mut wrong, mut seen) = (String::new(), 0);
    for (name, text) in chapters() {
        let folder = folder_of("whole-guide", &name);
        for example in examples(&text) {
            let prepared = match &example.output {
                Some(_) if example.command.contains("accel-config") && !is_installed("accel-config") => {
                    Err("no accel-config".to_owned())
                }
                Some(_) => Ok(example.command.clone()),
                None => runnable(&example.command, &folder),
            };
            match prepared {
                Ok(command) => {
                    eprintln!("{name}: $ {command}");
                    wrong.push_str(&mistakes(&name, &example, &command, &folder));
                    seen += 1;
                }
                Err(why) => {
                    skip::skip("every_command_of_the_guide_runs", &format!("{name}: {}: {why}", example.command))
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(seen >= 22, "{seen} commands");
}
