//! The simulator cannot have looked: nothing of what it is held against stands in its code or its profiles.

use std::path::{Path, PathBuf};
use telpher_claims::published::{Kind, Use, Value, claims};

/// Every file that a simulation is made of, with its text. Tests are not: they hold it against something, as this room does.
fn files() -> Vec<(PathBuf, String)> {
    let sim = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sim");
    let mut folders = vec![sim.join("src"), sim.join("profiles")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            // A file's own tests come last.
            let code = text.split("#[cfg(test)]").next().unwrap_or("").to_owned();
            files.push((path, code));
        }
    }
    assert!(files.len() > 20, "{files:?}");
    files
}

/// Numbers of a text, comments left out.
fn numbers(text: &str) -> Vec<String> {
    let code = text.lines().map(|line| line.split("//").next().unwrap_or("").split('#').next().unwrap_or(""));
    let mut numbers = Vec::new();
    for line in code {
        let mut number = String::new();
        for letter in line.chars().chain([' ']) {
            if letter.is_ascii_digit() || (letter == '.' && !number.is_empty()) || (letter == '_' && !number.is_empty())
            {
                number.push(letter);
            } else if !number.is_empty() {
                numbers.push(number.replace('_', "").trim_end_matches('.').to_owned());
                number.clear();
            }
        }
    }
    numbers
}

#[test]
fn no_claim_is_named() {
    for (path, text) in files() {
        for claim in claims() {
            assert!(!text.contains(&claim.id), "{} in {}", claim.id, path.display());
        }
    }
}

/// A held-out number that is nobody's by chance: of three digits with a point, or of two with one in a comment.
fn held_out_values(digits: usize) -> Vec<(&'static str, String)> {
    let mut values = Vec::new();
    for claim in claims().iter().filter(|claim| claim.usage == Use::Validate && claim.kind == Kind::Number) {
        let all = match &claim.value {
            Value::None => Vec::new(),
            Value::One(value) => vec![*value],
            Value::Many(values) => values.clone(),
        };
        for value in all {
            let text = value.to_string();
            let known = text.trim_start_matches(['0', '.']).chars().filter(char::is_ascii_digit).count();
            if known >= digits && text.contains('.') {
                values.push((claim.id.as_str(), text));
            }
        }
    }
    values
}

#[test]
fn no_value_of_a_held_out_claim_stands_there() {
    let values = held_out_values(3);
    assert!(values.len() > 10, "{values:?}");
    for (path, text) in files() {
        let numbers = [numbers(&text), numbers(&comments(&text))].concat();
        for (claim, value) in &values {
            assert!(!numbers.contains(value), "{claim}'s {value} in {}", path.display());
        }
    }
}

/// A profile's comments say where its numbers come from: a number with a point that was printed of a held-out claim is no source. Two
/// digits may be somebody else's, so that a comment is looked at only where it names the document.
#[test]
fn no_comment_states_what_a_held_out_claim_measured() {
    let values = held_out_values(2);
    assert!(values.len() > held_out_values(3).len(), "{values:?}");
    for (path, text) in files() {
        for line in text.lines().map(comment_of) {
            let numbers = numbers(line);
            for (claim, value) in values.iter().filter(|(claim, _)| names_its_document(line, claim)) {
                assert!(!numbers.contains(value), "{claim}'s {value} in {}: {line}", path.display());
            }
        }
    }
}

/// Whether a line names the document that a claim is of.
fn names_its_document(line: &str, claim: &str) -> bool {
    let names: &[&str] = match &claim[..1] {
        "K" => &["kuper", "asplos"],
        "T" => &["thesis"],
        "V" => &["white paper"],
        _ => &["baik", "slides"],
    };
    names.iter().any(|name| line.to_lowercase().contains(name))
}

fn comment_of(line: &str) -> &str {
    let at = [line.find("//"), line.find('#')].into_iter().flatten().min();
    at.map_or("", |at| line[at..].trim_start_matches(['/', '#', '!']))
}

fn comments(text: &str) -> String {
    text.lines().map(comment_of).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_number_is_found_where_it_stands() {
    assert_eq!(
        numbers("a = 159.72 # 7.02\nlet b = 1_024; // 4.63\nx1.5..=3"),
        ["159.72", "1024", "1.5..", "3"].map(|n| n.trim_end_matches('.').to_owned())
    );
    assert_eq!(numbers(&comments("a = 159.72 # 7.02\nlet b = 1_024; // 4.63 of it")), ["7.02", "4.63"]);
    assert!(names_its_document(" KUPER §4.2: 2.1", "K-020") && !names_its_document(" slides: 2.1 GHz", "K-020"));
}
