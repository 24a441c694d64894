//! Rules for every file and every crate.

use crate::metadata::members;
use crate::{files, none, relative, root, rust_files, text};

/// Maximum lines of a file of product code; at a third of it, consider splitting the file.
const LONGEST: usize = 900;

#[test]
fn no_file_of_product_code_is_too_long() {
    let mut findings = Vec::new();
    for (path, text) in rust_files() {
        // Tests at the end of a file do not count.
        let lines = text.lines().take_while(|line| *line != "mod tests {").count();
        if path.contains("/src/") && !path.ends_with("/tests.rs") && lines > LONGEST {
            findings.push(format!("{path}: {lines} lines"));
        }
    }
    none(&format!("longer than {LONGEST} lines"), &findings);
}

/// Lines of the command-line crate's source for each command, on average. It has the arguments and one file for each
/// command; what a command does belongs in the crates below. The number grows with the commands, because each brings
/// its own options, help and examples. Issue 22 allowed 6,000 lines for the 23 commands of that time, so 260 for each.
const LINES_OF_A_COMMAND: usize = 260;

/// The number of commands that `main` calls a function for.
fn count_commands() -> usize {
    let main = text(&root().join("doors/cli/src/main.rs")).expect("main.rs is text");
    let (_, calls) = main.split_once("match cli.command {").expect("main calls the commands");
    let (calls, _) = calls.split_once("\n    }\n").expect("the calls end");
    // Arms with a `match` of their own have an arm for each of their commands.
    calls.lines().filter(|line| line.contains(" => ") && !line.contains("match ")).count()
}

#[test]
fn the_command_line_is_thin() {
    let source = rust_files().into_iter().filter(|(path, _)| path.starts_with("doors/cli/src/"));
    let lines: usize = source.map(|(_, text)| text.lines().count()).sum();
    assert!(lines > 1000, "only {lines} lines were found");
    let commands = count_commands();
    assert!((20..100).contains(&commands), "{commands} commands were found");
    let most = commands * LINES_OF_A_COMMAND;
    assert!(lines <= most, "doors/cli/src has {lines} lines for {commands} commands; move code to the crates below");
}

#[test]
fn every_todo_names_an_issue() {
    // In two halves, so that this file does not match.
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    let macros = [concat!("todo", "!("), concat!("unimplemented", "!(")];
    let mut findings = Vec::new();
    for path in files() {
        let Some(text) = text(&path) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            let word = line.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word));
            // A reference to an issue is allowed: `(#12)`.
            if (word || macros.iter().any(|name| line.contains(name))) && !line.contains("(#") {
                findings.push(format!("{}:{number}: {}", relative(&path), line.trim()));
            }
        }
    }
    none("left to do, without an issue", &findings);
}

#[test]
fn every_crate_has_a_readme_with_its_assumptions() {
    let mut findings = Vec::new();
    for (room, package) in members() {
        if package.description.as_deref().is_none_or(|description| description.len() < 20) {
            findings.push(format!("{room} has no description"));
        }
        let folder = root().join(&package.folder);
        let Ok(readme) = std::fs::read_to_string(folder.join("README.md")) else {
            findings.push(format!("{}/README.md is missing", package.folder));
            continue;
        };
        if !readme.starts_with(&format!("# {}\n", package.name)) {
            findings.push(format!("{}/README.md does not begin with `# {}`", package.folder, package.name));
        }
        if !readme.contains("\n## Assumptions\n") {
            findings.push(format!("{}/README.md has no Assumptions", package.folder));
        }
        let lib = std::fs::read_to_string(folder.join("src/lib.rs")).unwrap_or_default();
        if readme.contains("```rust\n") && !lib.contains("include_str!(\"../README.md\")") {
            findings.push(format!("{}/README.md: its example is not compiled as a documentation test", package.folder));
        }
    }
    none("crates that do not introduce themselves", &findings);
}

/// The sections of the changelog: entries that are not released, then one for each version, with its date.
#[test]
fn the_changelog_has_an_unreleased_section_and_one_of_this_version() {
    let changelog = std::fs::read_to_string(root().join("CHANGELOG.md")).expect("CHANGELOG.md");
    let mut sections = changelog.split("\n## ").skip(1);
    let (heading, entries) = sections.next().and_then(|first| first.split_once('\n')).expect("a section");
    assert_eq!(heading, "Unreleased");
    let headings = ["### Added", "### Changed", "### Fixed"];
    assert!(entries.trim() == "Nothing yet." || headings.iter().any(|heading| entries.contains(heading)), "{entries}");
    let version = env!("CARGO_PKG_VERSION");
    let mut found = false;
    for section in sections {
        let heading = section.lines().next().expect("a heading");
        let (number, date) = heading.split_once(" (").expect("a version and its date");
        let parts: Vec<usize> = date.trim_end_matches(')').split('-').map(str::len).collect();
        assert_eq!(parts, [4, 2, 2], "{heading}: not a date such as 2026-11-28");
        assert!(headings.iter().any(|heading| section.contains(heading)), "{heading} has no entries");
        found |= number == version;
    }
    assert!(found, "no section of version {version}");
}

#[test]
fn the_readme_opens_with_the_two_commands() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let head: Vec<&str> = readme.lines().take(30).collect();
    for command in ["cargo run --release -- bench", "./test"] {
        assert!(head.iter().any(|line| line.starts_with(command)), "README.md does not open with `{command}`");
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut findings = Vec::new();
    for path in files().iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = text(path).expect("UTF-8");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().expect("the first part");
            let outside = link.contains("://") || file.is_empty();
            if !outside && !path.parent().expect("a folder").join(file).exists() {
                findings.push(format!("{}: {link}", relative(path)));
            }
        }
    }
    none("links that lead nowhere", &findings);
}

/// A registry's or a machine's name in the tree would not work on other machines.
#[test]
fn no_file_names_a_registry_or_a_home() {
    let marks =
        [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("index.", "crates"), concat!("[source", ".crates-io]")];
    let mut findings = Vec::new();
    for path in files() {
        let Some(text) = text(&path) else { continue };
        for mark in marks.iter().filter(|mark| text.contains(**mark)) {
            findings.push(format!("{}: {mark}", relative(&path)));
        }
    }
    none("names of one machine", &findings);
}
