//! Tests of the vocabulary: one flag for one meaning, help on one screen, and examples that parse.

use super::{Cli, tree};
use clap::Command;
use std::collections::{BTreeMap, BTreeSet};

/// Most lines of the help of a command, at [`COLUMNS`].
const MOST_LINES: usize = 80;
/// Columns of the terminal in these tests.
const COLUMNS: usize = 100;

/// Flags that no command may have, with the flag that has their meaning.
const SYNONYMS: [(&str, &str); 22] = [
    ("depth", "in-flight"),
    ("queue-depth", "in-flight"),
    ("iodepth", "in-flight"),
    ("at-once", "in-flight"),
    ("outstanding", "in-flight"),
    ("json", "format json"),
    ("csv", "format csv"),
    ("text", "format table"),
    ("out", "output"),
    ("report", "html"),
    ("dev", "device"),
    ("ops", "op"),
    ("operation", "op"),
    ("sizes", "size"),
    ("bytes", "size"),
    ("machine", "profile"),
    ("duration", "seconds"),
    ("time", "seconds"),
    ("workers", "threads"),
    ("silent", "quiet"),
    ("debug", "verbose"),
    ("log", "verbose"),
];

/// A command, by its full name without `telpher`.
fn commands() -> Vec<(String, Command)> {
    fn walk(name: &str, command: &Command, all: &mut Vec<(String, Command)>) {
        for inner in command.get_subcommands() {
            let name = format!("{name} {}", inner.get_name());
            walk(name.trim(), inner, all);
        }
        all.push((name.to_owned(), command.clone()));
    }
    let mut tree = tree();
    tree.build();
    let mut all = Vec::new();
    walk("", &tree, &mut all);
    assert!(all.len() >= 25, "there are {} commands", all.len());
    all
}

/// A flag as a command has it: its short form and the name of its value.
type Form = (Option<char>, Option<String>);

/// Returns every form of every visible flag, with the commands that have it.
fn flags() -> BTreeMap<String, BTreeMap<Form, BTreeSet<String>>> {
    let mut flags: BTreeMap<String, BTreeMap<Form, BTreeSet<String>>> = BTreeMap::new();
    for (name, command) in commands() {
        for option in command.get_arguments().filter(|option| !option.is_positional() && !option.is_hide_set()) {
            let long = option.get_long().expect("every option has a long name");
            let value = option.get_value_names().filter(|_| option.get_action().takes_values());
            let value = value.map(|names| names.join(" "));
            let forms = flags.entry(long.into()).or_default();
            forms.entry((option.get_short(), value)).or_default().insert(name.clone());
        }
    }
    flags
}

#[test]
fn a_flag_has_the_same_short_form_and_value_name_in_all_commands() {
    for (flag, forms) in flags() {
        assert_eq!(forms.len(), 1, "--{flag} differs between commands: {forms:?}");
    }
}

#[test]
fn a_short_flag_has_one_meaning() {
    let mut meanings: BTreeMap<char, String> = BTreeMap::new();
    for (flag, forms) in flags() {
        for short in forms.keys().filter_map(|(short, _)| *short) {
            let before = meanings.insert(short, flag.clone());
            assert!(before.is_none(), "-{short} is --{flag} and --{}", before.unwrap_or_default());
        }
    }
    assert!(meanings.len() >= 8, "{meanings:?}");
}

#[test]
fn no_command_has_a_synonym() {
    let flags = flags();
    for (synonym, flag) in SYNONYMS {
        assert!(!flags.contains_key(synonym), "--{synonym} means --{flag}");
    }
}

/// Results have the same three formats in all commands.
#[test]
fn every_result_can_be_a_table_json_or_csv_in_a_file() {
    let mut seen = 0;
    for (name, command) in commands() {
        let option = |long: &str| command.get_opts().find(|option| option.get_long() == Some(long));
        let Some(format) = option("format") else {
            assert!(option("html").is_none() && option("output").is_none(), "{name} has no --format");
            continue;
        };
        let values: Vec<String> =
            format.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        assert_eq!(values, ["table", "json", "csv"], "{name}");
        assert!(option("output").is_some(), "{name} has no --output");
        seen += 1;
    }
    assert!(seen >= 18, "{seen} commands have --format");
}

/// Returns the help of a command as a terminal shows it.
fn help(name: &str, columns: usize) -> String {
    let words = ["telpher"].into_iter().chain(name.split_whitespace()).chain(["--help"]);
    tree().term_width(columns).try_get_matches_from(words).expect_err("help ends the parser").to_string()
}

#[test]
fn help_fits_on_80_lines() {
    let mut long = String::new();
    for (name, _) in commands() {
        let text = help(&name, COLUMNS);
        let lines = text.lines().count();
        if lines > MOST_LINES {
            long.push_str(&format!("telpher {name}: {lines} lines\n"));
        }
        for line in text.lines().filter(|line| line.chars().count() > COLUMNS) {
            long.push_str(&format!("telpher {name}: {line}\n"));
        }
    }
    assert!(long.is_empty(), "{long}");
}

#[test]
fn options_are_grouped_by_topic() {
    let grouped = |name: &str| {
        let text = help(name, COLUMNS);
        text.contains("General:") && !text.contains("\nOptions:")
    };
    let names = commands().into_iter().map(|(name, _)| name);
    assert_eq!(names.filter(|name| !grouped(name)).collect::<Vec<_>>(), Vec::<String>::new());
}

/// Splits an example into words, as a shell does; the comment after two blanks, and a redirection, are left out.
fn words(example: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    let example = example.trim();
    let mut blank = false;
    for c in example.chars() {
        match (quote, c) {
            (None, ' ') if blank => break,
            (None, ' ') => {
                blank = true;
                words.push(std::mem::take(&mut word));
                continue;
            }
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => word.push(c),
        }
        blank = false;
    }
    if !word.is_empty() {
        words.push(word);
    }
    let end = words.iter().position(|word| word == ">").unwrap_or(words.len());
    words.truncate(end);
    words
}

/// Returns the examples in the help of a command.
fn examples(command: &Command) -> Vec<String> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let lines = text.lines().filter(|line| line.starts_with("  telpher ") || *line == "  telpher");
    lines.map(str::to_owned).collect()
}

/// Commands whose examples are in the help of the command above them.
const EXEMPT: [&str; 5] = ["offload off", "offload on", "tier pause", "tier resume", "sim"];

#[test]
fn every_example_parses() {
    let mut seen = 0;
    for (name, command) in commands() {
        let examples = examples(&command);
        assert!(!examples.is_empty() || EXEMPT.contains(&name.as_str()), "{name}");
        for example in examples {
            assert!(example.chars().count() <= 80, "telpher {name}: wider than a terminal: {example}");
            if let Err(error) = Cli::parse_from_words(words(&example)) {
                panic!("telpher {name}: {example}\n{error}");
            }
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen} examples");
}

/// Flags whose value is a file or a folder that the command writes.
const WRITES: [&str; 9] =
    ["--output", "-o", "--record", "--folder", "--tuning", "--config", "--html", "--trace", "--capture"];

/// A reader has only the binary: an example reads a file only if an example of the same help writes it.
#[test]
fn examples_need_no_files() {
    for (name, command) in commands() {
        let examples = examples(&command);
        let mut written: BTreeSet<String> = BTreeSet::new();
        for example in &examples {
            written.extend(
                example.split_once(" > ").and_then(|(_, rest)| rest.split_whitespace().next()).map(str::to_owned),
            );
            for pair in words(example).windows(2) {
                if WRITES.contains(&pair[0].as_str()) {
                    written.insert(pair[1].clone());
                    written.extend(pair[1].split_once(':').map(|(_, file)| file.to_owned()));
                }
            }
        }
        for example in &examples {
            for word in words(example) {
                let file = word.rsplit(':').next().unwrap_or_default().trim_start_matches("./");
                let named = [".toml", ".json", ".trace", ".parquet", ".csv", ".pcap", ".html"];
                let is_file = named.iter().any(|end| file.ends_with(end));
                assert!(!is_file || written.contains(file), "telpher {name}: {file} does not exist: {example}");
                assert!(!word.contains("my-program") && !word.starts_with("lab/"), "telpher {name}: {example}");
            }
        }
    }
}

/// The table in docs/commands.md has every flag of two or more commands.
#[test]
fn the_documentation_lists_the_vocabulary() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    let text = std::fs::read_to_string(page).expect("docs/commands.md is readable");
    let short = |short: Option<char>| short.map_or(String::new(), |short| format!("`-{short}`"));
    let mut missing = Vec::new();
    for (flag, forms) in flags() {
        let ((letter, value), commands) = forms.iter().next().expect("a flag has a form");
        if commands.len() < 2 && letter.is_none() {
            continue;
        }
        let value = value.as_ref().map_or(String::new(), |value| format!(" {value}"));
        let begin = format!("| `--{flag}{value}` | {} |", short(*letter));
        let end = match commands.len() {
            n if n == self::commands().len() => "| all |".to_owned(),
            _ => format!(
                "| {} |",
                commands
                    .iter()
                    .map(|name| format!("`{name}`").replace("``", "`telpher`"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
        };
        if !text.lines().any(|line| line.starts_with(&begin) && line.ends_with(&end)) {
            missing.push(format!("{begin} … {end}"));
        }
    }
    assert!(missing.is_empty(), "docs/commands.md has no line\n{}", missing.join("\n"));
}
